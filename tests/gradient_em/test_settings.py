"""Every setting is on its page, and changes what comes out or what it costs."""

import re
from pathlib import Path

import numpy as np
import pytest
from fedcore.papers.fedgrem.simulation import CENTRES, simulated_clients

from fedcore.methods.gradient_em import GradientEM, GradientEMConfig
from tests.gradient_em.run_in_memory import block_of, run

PAGE = Path(__file__).parents[2] / "docs" / "gradient-em.md"
REGRESSION = {"model": "regression", "components": 2}
GIVEN = {"start": "given", "given": {"centres": CENTRES}}

# name: (other settings, what it is changed to)
SETTINGS = {
    "model": ({"components": 2}, "regression"),
    "components": ({}, 4),
    "intercept": (REGRESSION, True),
    "covariance": ({}, 1.5),
    "standardise": ({}, "columns"),
    "participation": ({}, 0.5),
    "start": (GIVEN, "local"),
    "rounds": ({}, 2),
    "tolerance": ({"rounds": 9, "second_start": 0}, 100.0),
}


@pytest.fixture(scope="module")
def block():
    return block_of(simulated_clients(3, clients=10, outliers=2, rows=60, h=2.0).rows)


def test_all_settings_are_here_and_on_the_page():
    assert SETTINGS.keys() == GradientEMConfig.model_fields.keys()
    table = PAGE.read_text().partition("\n## Settings")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == SETTINGS.keys()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_changes_what_comes_out(block, name):
    settings, value = {"rounds": 3, **SETTINGS[name][0]}, SETTINGS[name][1]
    one, other = run(block, **settings), run(block, **{**settings, name: value})
    assert getattr(one.method.config, name) != getattr(other.method.config, name)
    assert not np.array_equal(one.outputs()["centres"], other.outputs()["centres"])


def test_main_settings_are_settings():
    assert {*GradientEM.main_settings} <= SETTINGS.keys()
