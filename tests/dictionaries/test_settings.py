"""Every setting changes what is published or what it costs; settings that left are refused."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from fedcore.errors import ConfigError
from fedcore.methods.dictionaries import Dictionaries, DictionariesConfig
from fedcore.methods.dictionaries.config import MOVED
from fedcore.methods.registry import make_method
from fedcore.randomness import stream
from fedcore.rounds.private_settings import PrivateRunSettings
from tests.run_in_memory import block_of, facts, run_method

QUICK = {"rounds": 9, "atoms": 8, "global_atoms": 5, "sparsity": 4}

# name: (other settings, what it is changed to)
CHANGES = {
    "atoms": ({}, 6),
    "global_atoms": ({}, 4),
    "sparsity": ({}, 2),
    "least_sparsity": ({}, 4),
    "local_rounds": ({}, 1),
    "participation": ({}, 0.5),
    "rounds": ({}, 8),
}


def block(clients=6):
    """Clients of rows with two directions in common and one of their own."""
    shared, rows = stream(0, "shared").standard_normal((5, 8)), []
    for i in range(clients):
        generator = stream(i, "client")
        own = generator.standard_normal((1, 8))
        rows.append(generator.standard_normal((60, 5)) @ shared + 2 * generator.standard_normal((60, 1)) @ own)
    return block_of(rows)


def ends(people, given=None, **settings):
    ran = run_method(Dictionaries(DictionariesConfig(**{**QUICK, **settings})), people, given=given)
    return {**asdict(ran.state), "local": ran.outputs()["local"], "asked": ran.column("active_clients")}


def different(one, other):
    return any(not np.array_equal(one[part], other[part]) for part in one)


def test_all_settings_are_here():
    own = DictionariesConfig.model_fields.keys() - PrivateRunSettings.model_fields.keys()
    assert {*CHANGES, "forgetting", "private"} == own and len(own) <= 12


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_changes_the_run(name):
    settings, value = CHANGES[name]
    assert different(ends(block(), **settings), ends(block(), **{**settings, name: value}))


def test_forgetting_changes_who_answers():
    first = run_method(Dictionaries(DictionariesConfig(**QUICK)), block(4))
    left = first.method.warm_start_of(first.state)
    all_of_them, newcomers = (ends(block(), left, forgetting=share) for share in (0.0, 0.5))
    assert all_of_them["asked"][1] == 6 and newcomers["asked"][1] == 2


def test_a_private_run_releases_and_another_does_not():
    public = replace(facts(block()), rho=1.0, nominal_clients=6)
    assert Dictionaries(DictionariesConfig(private=True)).plan(public) and not Dictionaries().plan(public)


@pytest.mark.parametrize("setting", MOVED)
def test_settings_that_left_are_refused(setting):
    name, _, value = setting.partition("=")
    with pytest.raises(ConfigError, match="the method|leave it out|a run starts from") as refused:
        make_method("dictionaries", {name: value or "other"})
    assert name in refused.value.message
