"""Mixed-effects regressions as runs: leaves, outputs, outliers, scores, settings."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from pydantic import ValidationError

from fedcore.errors import ConfigError, PopulationError
from fedcore.methods.mixed_effects import MixedEffectsConfig
from fedcore.methods.mixed_effects.config import MOVED
from fedcore.methods.mixed_effects.regression import root_of
from fedcore.methods.registry import make_method
from fedcore.rounds.results import Features
from tests.mixed_effects.run_in_memory import block_of, run

MIXED = {"components": 1}


def tables(seed: int = 0, clients: int = 40, outliers: int = 4):
    """Rows (x1, x2, y) of clients, the first of which have other coefficients; and all coefficients (K, 3)."""
    random = np.random.default_rng(seed)
    coefficients = np.array([1.0, -2.0, 3.0]) + 0.3 * random.normal(size=(clients, 3))
    coefficients[:outliers] += 10
    rows = []
    for number, (a, b, c) in enumerate(coefficients):
        x = random.normal(size=(0 if number == outliers + 1 else 6 + number % 9, 2))
        rows.append(np.column_stack([x, x @ [a, b] + c + 0.1 * random.normal(size=len(x))]))
    return rows, coefficients


def test_a_run_finds_what_clients_share_and_how_they_differ():
    rows, truth = tables()
    ran = run(block_of(rows), **MIXED, intercept=True)
    state = ran.state
    assert_allclose(state.centres[0], [1.0, -2.0, 3.0], atol=0.2)
    assert_allclose(np.sqrt(np.diag(state.between[0])), 0.3, atol=0.12)
    assert_allclose(np.sqrt(state.noise), 0.1, atol=0.02)
    assert state.left_apart == 4
    out = ran.outputs()
    assert_allclose(out["centres"][:4, 0], truth[:4], atol=0.5)
    assert np.array_equal(np.flatnonzero(out["apart"][:, 0]), np.arange(4))
    assert_allclose(out["centres"][5, 0], state.centres[0])  # a client without rows
    assert np.isnan(out["distance"][5, 0]) and np.isnan(out["log_likelihood"][5])
    rising = ran.column("log_likelihood")
    assert rising[-1] > rising[0]
    shown = {table.name: table for table in ran.method.result(state, Features(3, ("x1", "x2", "y"))).tables}
    assert set(shown) == {"components", "centres", "differences"}


def test_leaves_do_not_matter_and_the_end_is_found():
    rows, _ = tables(1)
    one, other = (run(block_of(rows), **MIXED, intercept=True, clients_per_leaf=size) for size in (64, 15))
    assert one.state.round < 60
    assert_allclose(one.state.centres, other.state.centres, rtol=1e-8)
    assert_allclose(one.state.between, other.state.between, rtol=1e-6, atol=1e-10)


def test_the_start_compares_some_clients_only():
    rows, _ = tables(2)
    few = run(block_of(rows), **MIXED, intercept=True, aligned_clients=20)
    assert few.infos[0].scalars["fitted"] < 22
    every = run(block_of(rows), **MIXED, intercept=True)
    assert_allclose(few.state.centres, every.state.centres, atol=0.02)


@pytest.mark.parametrize(
    "wrong", [{"model": "regression"}, {"algorithm": "fedgrem"}, {"participation": 0.5}, {"robust": "perhaps"}], ids=str
)
def test_settings_that_it_does_not_have_are_refused(wrong):
    with pytest.raises(ValidationError):
        MixedEffectsConfig(**wrong)


@pytest.mark.parametrize(("setting", "value"), [("algorithm", "mixed-effects"), ("robust", True)])
def test_what_left_gradient_em_is_refused_with_the_name_of_this_method(setting, value):
    with pytest.raises(ConfigError, match=f"{setting}.* the method mixed_effects"):
        make_method("gradient_em", {"model": "regression", "components": 1, setting: value})


def test_numbers_beyond_the_range_of_float64_are_an_error():
    rows, _ = tables(3)
    with pytest.raises(PopulationError, match="float64"), np.errstate(all="ignore"):
        run(block_of([own * 1e200 for own in rows]), **MIXED)


def test_no_rows_are_an_error():
    with pytest.raises(PopulationError, match="no client"):
        run(block_of([np.zeros((0, 3))] * 3), **MIXED)


def test_a_run_ends_with_the_movement_of_its_last_round():
    rows, _ = tables(4, outliers=0)
    settings = {**MIXED, "intercept": True, "robust": False, "tolerance": 0.0}
    one, two = (run(block_of(rows), rounds=rounds, **settings) for rounds in (1, 2))
    step = np.linalg.solve(root_of(one.state.between[0]), two.state.centres[0] - one.state.centres[0])
    assert_allclose(two.state.moved, np.sqrt(np.mean(step**2) * 39))  # of 40 clients, one has no rows
    fits = two.column("log_likelihood")
    assert_allclose([two.state.fit, two.state.change], [fits[-1], fits[-1] - fits[-2]])
    assert one.state.change is None and one.method.outcome(one.state).endswith("; raise rounds.")
    whole = run(block_of(rows), **{**settings, "tolerance": 1e-6})
    assert whole.method.outcome(whole.state).startswith("converged: ")


@pytest.mark.parametrize("setting", MOVED)
def test_settings_that_became_constants_are_refused(setting):
    with pytest.raises(ConfigError, match=f"'{setting}' has its former default"):
        make_method("mixed_effects", {setting: 5})
