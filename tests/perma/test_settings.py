"""Every setting changes what is published or what it costs; and settings of runs of `dictionaries` are refused."""

from dataclasses import asdict

import numpy as np
import pytest

from fedcore.errors import ConfigError
from fedcore.methods.perma import PermaConfig
from fedcore.methods.registry import make_method
from fedcore.randomness import stream
from tests.perma.run_in_memory import block_of, run
from tests.perma.test_rounds import task

QUICK = {"rounds": 4, "starts": 2, "start_steps": 20}
TOP = {"code": "top_k", "sparsity": 2}

# name: (other settings, what it is changed to)
CHANGES = {
    "profile": ({}, "paper"),
    "atoms": ({}, 5),
    "global_atoms": ({}, 2),
    "learner": ({}, "gradient"),
    "code": ({"sparsity": 2}, "top_k"),
    "threshold": ({}, 0.4),
    "sparsity": (TOP, 1),
    "refine_steps": ({}, 2),
    "restarts": ({"start_steps": 1}, 3),
    "starts": ({}, 5),
    "start_steps": ({}, 3),
    "matcher": ({"start_steps": 1}, "path"),
    "aggregate": ({}, "mean"),
    "norm": ({}, "polar"),
    "align": ({"global_atoms": 5, "threshold": 2.0}, "greedy"),  # a start that fits nothing, so that choices collide
    "far": ({"start_steps": 1}, 0.05),
    "rounds": ({}, 3),
}


@pytest.fixture(scope="module")
def block():
    rows, _, _ = task(2, clients=8, sizes=40, garbage=1)
    return block_of([own + 0.8 * stream(i, "noise").standard_normal(own.shape) for i, own in enumerate(rows)])


def test_all_settings_are_here():
    assert CHANGES.keys() == PermaConfig.model_fields.keys()


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_changes_the_run(block, name):
    settings, value = CHANGES[name]
    before, after = {**QUICK, **settings}, {**QUICK, **settings, name: value}
    assert getattr(PermaConfig(**before), name) != getattr(PermaConfig(**after), name)
    given = {"global": np.eye(6)[:5]} if name == "align" else None
    one, other = (asdict(run(block, **chosen, given=given).state) for chosen in (before, after))
    assert any(not np.array_equal(one[part], other[part]) for part in one)


@pytest.mark.parametrize(
    "settings",
    [
        {"profile": "recommended"},
        {"profile": "robust"},
        {"learner": "orthogonal"},
        {"start": "local"},
        {"global_atoms": "null"},
        {"loss": "huber"},
        {"matcher": "star"},
        {"code": "top_k"},
        {"matched_clients": 5},
    ],
    ids=str,
)
def test_dictionaries_refuses_what_belongs_here(settings):
    with pytest.raises(ConfigError, match="the method perma"):
        make_method("dictionaries", settings)
