"""The penalty in pseudo-rows, its older unit, and the warning of components that only it keeps from a point."""

import numpy as np
import pytest
from pydantic import ValidationError

from fedcore.methods.federated_em import FederatedEM, models
from fedcore.rounds.results import Features
from tests.federated_em.run_in_memory import block_of, facts, run
from tests.federated_em.varied import Varied

OF_ONE = dict(algorithm="em", rounds=4, cluster_rounds=1, restarts=1)
EXACT = OF_ONE | dict(components=2)


def rows_of_two_groups(sizes=(30, 10, 60), d=3, seed=0, apart=4.0):
    generator = np.random.default_rng(seed)
    return [generator.normal(size=(size, d)) + apart * generator.integers(0, 2, (size, 1)) for size in sizes]


@pytest.mark.parametrize("covariance", ["full", "tied", "diag", "spherical"])
def test_pseudo_rows_are_a_share_of_the_rows(covariance):
    """nu0 rows of the pooled variances among N are the share nu0 / N."""
    block = block_of(rows_of_two_groups())
    ends = [
        run(Varied(**EXACT, covariance=covariance, **penalty), block, facts(block)).state
        for penalty in ({"pseudo_rows": 2.0}, {"regularisation": 0.02})
    ]
    assert np.array_equal(ends[0].theta, ends[1].theta)
    assert ends[0].penalty_share == 0.02 and ends[1].penalty_share is None


def test_one_component_by_hand():
    """Rows 0, 2 and 4 have the variance 8/3; half a row of it more makes the variance 8/3 + 8/3 (1/2) / 3 = 28/9."""
    block = block_of([np.array([[0.0], [2.0]]), np.array([[4.0]])])
    config = Varied(algorithm="em", components=1, rounds=1, pseudo_rows=0.5, restarts=1)
    state = run(config, block, facts(block)).state
    assert FederatedEM(config).parameters(state)["covariances"].item() == pytest.approx(28 / 9, rel=1e-12)


@pytest.mark.parametrize("model", ["gaussian", "regression", "gaussian_imputer"])
def test_the_default_is_a_thousandth_of_a_row(model):
    block = block_of(rows_of_two_groups())
    state = run(Varied(algorithm="fedem", model=model, rounds=1), block, facts(block)).state
    assert state.penalty_share == 1e-3 / 100


def test_of_very_many_rows_the_share_stays_above_rounding():
    config = Varied()
    assert config.penalty_share(1e9) == 1e-8 and Varied(pseudo_rows=0).penalty_share(1e9) == 0.0


@pytest.mark.parametrize("settings", [{"model": "poisson"}, {"algorithm": "private"}, {"regularisation": 0.01}])
def test_elsewhere_the_penalty_is_a_share_as_before(settings):
    config = Varied(**settings)
    assert config.penalty_share(100.0) is None and config.fixed_share == settings.get("regularisation", 1e-3)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"pseudo_rows": 1, "model": "poisson"}, "pseudo_rows is for model gaussian, .* not poisson"),
        ({"pseudo_rows": 1, "algorithm": "private"}, "pseudo_rows is not for a private run"),
        ({"pseudo_rows": -1.0}, "greater than or equal to 0"),
    ],
)
def test_contradictions_say_what_to_write(settings, words):
    with pytest.raises(ValidationError, match=words):
        Varied(**settings)


def test_a_state_of_an_earlier_version_keeps_its_penalty():
    """It has no field for the share, and its settings name the regularisation."""
    block, config = block_of(rows_of_two_groups()), Varied(**EXACT, regularisation=0.25)
    state = run(config, block, facts(block)).state
    fields = {name: getattr(state, name) for name in FederatedEM.State.__dataclass_fields__ if name != "penalty_share"}
    assert models.penalty_share(config, FederatedEM.State(**fields).scaling()) == 0.25


# --- components without width -----------------------------------------------------------------------------------------


def finished(rows, common=EXACT, **settings):
    block = block_of(rows)
    method = FederatedEM(Varied(**{**common, "rounds": 30, **settings}))
    return method, run(method.config, block, facts(block)).state


def narrow_in(method, state) -> list:
    tables = {table.name: table for table in method.result(state, Features(len(state.variance))).tables}
    return list(tables["narrow_columns"].columns[-1].values) if "narrow_columns" in tables else []


@pytest.mark.parametrize("covariance", ["full", "tied", "diag", "spherical"])
def test_ordinary_components_are_not_warned_of(covariance):
    method, state = finished(rows_of_two_groups(), covariance=covariance)
    assert "penalty" not in method.outcome(state) and narrow_in(method, state) == []


@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_a_constant_column_of_a_component_is_warned_of(covariance):
    rows = rows_of_two_groups(apart=20.0)
    for own in rows:
        own[own[:, 0] > 10, 1] = 7.0  # one value in the second group
    method, state = finished(rows, covariance=covariance)
    assert "1 of 2 components have variances that only the penalty keeps" in method.outcome(state)
    assert narrow_in(method, state) == [["column 1"]]


def test_columns_that_determine_each_other_are_warned_of():
    rows = [np.column_stack([own, own[:, 0] + own[:, 1]]) for own in rows_of_two_groups()]
    method, state = finished(rows, OF_ONE, model="gaussian_imputer")
    assert "Variances that only" in method.outcome(state)
    assert narrow_in(method, state) == [["column 0", "column 1", "column 3"]]


def test_a_regression_without_residuals_is_warned_of():
    rows = [np.column_stack([own[:, :2], own[:, 0] - own[:, 1]]) for own in rows_of_two_groups()]
    method, state = finished(rows, model="regression", components=1)
    assert narrow_in(method, state) == [["column 2"]]
