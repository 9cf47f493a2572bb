"""Every setting changes the background or what a run costs; and the settings of runs of `dictionaries` are refused."""

from dataclasses import asdict

import numpy as np
import pytest

from fedcore.errors import ConfigError
from fedcore.methods.background import BackgroundConfig
from fedcore.methods.dictionaries import Dictionaries
from fedcore.methods.registry import make_method
from fedcore.randomness import stream
from tests.background.run_in_memory import block_of, run

# name: what it is changed to
CHANGES = {"modes": 0, "rounds": 13, "cut": 3.0, "weight_cap": None, "precision": "float32", "least_change": 0.3}
CHANGES |= {"shadows": False}


def frames():
    """12 frames of 40 pixels, of three clients of different length, with light that moves over them."""
    generator = stream(1, "frames")
    image, light = generator.random(40) + 0.5, np.linspace(-1, 1, 40)
    sides = generator.standard_normal((12, 1)) * 0.2
    made = image * (1 + sides * light) + 0.01 * generator.standard_normal((12, 40))
    return block_of([made[:2], made[2:5], made[5:]])


def ends(settings):
    ran = run(frames(), **{"rounds": 12, **settings})
    return {**asdict(ran.state), **ran.outputs(), "bytes_down": ran.column("bytes_down")[-1]}


def test_all_settings_are_here():
    assert CHANGES.keys() == BackgroundConfig.model_fields.keys()


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_changes_the_run(name):
    before, after = ends({}), ends({name: CHANGES[name]})
    assert any(not np.array_equal(before[part], after[part]) for part in before)


@pytest.mark.parametrize("settings", [{"model": "background"}, {"modes": 2}])
def test_dictionaries_refuses_what_belongs_here(settings):
    with pytest.raises(ConfigError, match="the method background"):
        make_method("dictionaries", settings)


def test_dictionaries_starts_from_no_background():
    with pytest.raises(ConfigError, match="Train the method background") as refused:
        Dictionaries().checked_warm_start({"background": np.ones(12)}, "it", 12)
    assert "it has the background of a camera" in refused.value.message
