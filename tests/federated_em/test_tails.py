"""Student-t components of exact EM: set, or chosen by rows that the search holds back."""

import numpy as np
import pytest
from pydantic import ValidationError

from fedcore.methods.federated_em import FederatedEM, FederatedEMConfig
from fedcore.methods.federated_em.criteria import free_parameters
from fedcore.methods.federated_em.looks import start_passes
from fedcore.methods.federated_em.result import order_of
from fedcore.methods.mixture_models.student import DEGREES
from fedcore.rounds.results import Features
from tests.federated_em.run_in_memory import block_of, facts, run

CENTRES = np.array([[0.0, 0.0, 0.0], [9.0, 0.0, 3.0], [0.0, 9.0, -4.0]])


def rows_of(n, degrees=np.inf, seed=0, gaps=0.0):
    """Rows of three groups far apart, normal or Student-t."""
    generator = np.random.default_rng(seed)
    y = generator.normal(size=(n, 3))
    if np.isfinite(degrees):
        y /= np.sqrt(generator.chisquare(degrees, n) / degrees)[:, None]
    y += CENTRES[generator.integers(0, 3, n)]
    y[generator.random(y.shape) < gaps] = np.nan
    return y[~np.isnan(y).all(axis=1)]


def ended(y, clients=10, start=None, **changed):
    config = FederatedEMConfig(**{"algorithm": "em", "components": 3, **changed})
    block = block_of(np.array_split(y, clients))
    return FederatedEM(config), run(config, block, facts(block, start=start), clients_per_leaf=4)


def loss(method, state, y):
    from fedcore.methods.federated_em import models

    scaling = state.scaling()
    model = models.model_of(method.config, scaling)
    return -model.log_likelihood(state.parameters(), (y - scaling.centre) / scaling.scale).mean()


@pytest.mark.parametrize("gaps", [0.0, 0.2])
@pytest.mark.parametrize("covariance", ["full", "diag", "spherical"])
def test_heavy_tails_are_found(covariance, gaps):
    y, fresh = rows_of(3000, 3.0, gaps=gaps), rows_of(3000, 3.0, seed=1, gaps=gaps)
    method, ran = ended(y, covariance=covariance, tails="auto")
    state = ran.state
    degrees = state.parameters()[DEGREES][0]
    assert degrees in (3.0, 5.0)
    assert f"Chosen: components are Student-t with {degrees:g} degrees of freedom." in method.outcome(state)
    assert start_passes(method.config) + state.round + 1 <= 10
    found = method.parameters(state)
    order = np.lexsort(found["means"].round().T[:2])
    assert np.abs(found["means"][order] - CENTRES[[0, 1, 2]]).max() < 0.3
    normal, other = ended(y, covariance=covariance)
    assert DEGREES not in other.state.parameters()
    assert loss(method, state, fresh) < loss(normal, other.state, fresh) - 0.1


@pytest.mark.parametrize("gaps", [0.0, 0.2])
def test_normal_rows_have_normal_components(gaps):
    """The parameters are those of a run that does not choose, to the last bit."""
    y = rows_of(2000, gaps=gaps)
    method, ran = ended(y, tails="auto")
    assert "Chosen: components are normal." in method.outcome(ran.state)
    _, other = ended(y)
    assert ran.state.layout == other.state.layout and np.array_equal(ran.state.theta, other.state.theta)


def test_degrees_of_freedom_can_be_set():
    method, ran = ended(rows_of(1000), tails=7.0)
    assert ran.state.parameters()[DEGREES] == [7.0]
    assert "Components are Student-t with 7 degrees of freedom." in method.outcome(ran.state)
    objectives = ran.column("objective")
    assert (np.diff(objectives) <= 1e-9).all()


def test_reports_show_standard_deviations_of_rows():
    """The scale matrices are smaller: of 4 degrees of freedom by half."""
    method, ran = ended(rows_of(4000, 4.0), tails=4.0)
    result = method.result(ran.state, Features(3))
    tables = {table.name: table for table in result.tables}
    assert "Student-t with 4 degrees of freedom" in tables["components"].note
    shown = np.array([column.values for column in tables["standard_deviations"].columns[1:]])
    scales = np.diagonal(method.parameters(ran.state)["covariances"], axis1=1, axis2=2)
    np.testing.assert_allclose(shown**2, 2.0 * scales[order_of(method.parameters(ran.state))])
    assert np.abs(scales - 1.0).max() < 0.25


def test_weights_count_rows_as_often_as_they_say():
    y = rows_of(600, 3.0)
    counts = np.random.default_rng(1).integers(1, 3, len(y))
    _, ran = ended(np.column_stack([y, counts]), tails=3.0, weight_column=3, max_passes=40)
    _, other = ended(np.repeat(y, counts, axis=0), tails=3.0, max_passes=40)
    found, expected = (FederatedEM(FederatedEMConfig()).parameters(one.state)["means"] for one in (ran, other))
    found, expected = (means[np.lexsort(means.round().T[:2])] for means in (found, expected))
    np.testing.assert_allclose(found, expected, atol=0.02)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"algorithm": "fedem"}, "tails = auto is for the algorithm em"),
        ({"algorithm": "vr-fedem"}, "tails = auto is for the algorithm em"),
        ({"algorithm": "private"}, "tails = auto is for the algorithm em"),
        ({"algorithm": "em", "covariance": "tied"}, "not tied"),
        ({"algorithm": "em", "covariance": "known"}, "not known"),
        ({"algorithm": "em", "tails": 2.0}, "greater than 2"),
        ({"algorithm": "em", "tails": "heavy"}, "tails"),
    ],
)
def test_what_has_no_heavy_tails_is_refused(changed, why):
    with pytest.raises(ValidationError, match=why):
        FederatedEMConfig(**{"tails": "auto", **changed})


def test_a_start_brings_the_tails_that_were_chosen():
    """auto takes them from the run that it starts from, a number stays, and normal components have none."""
    y = rows_of(2000, 3.0)
    method, ran = ended(y, tails="auto")
    arrays, degrees = method.warm_start_of(ran.state), ran.state.parameters()[DEGREES]
    again = {"start": arrays, "algorithm": {"name": "em", "start": "given"}}
    _, after = ended(y, **again, tails="auto")
    assert np.array_equal(after.state.parameters()[DEGREES], degrees)
    assert after.state.objective == pytest.approx(ran.state.objective, abs=1e-4)
    _, after = ended(y, **again, tails=20.0)
    assert after.state.parameters()[DEGREES] == [20.0]
    _, after = ended(y, **again)
    assert DEGREES not in after.state.parameters()
    del arrays[DEGREES]
    method, after = ended(y, **again, tails="auto")
    assert DEGREES not in after.state.parameters() and "are normal" in method.outcome(after.state)


def test_chosen_degrees_of_freedom_are_a_free_parameter():
    y = rows_of(1000, 3.0)
    method, ran = ended(y, tails="auto")
    fixed, other = ended(y, tails=3.0)
    theta = ran.state.parameters()
    assert free_parameters(method.config, theta) == free_parameters(fixed.config, other.state.parameters()) + 1
    assert free_parameters(fixed.config, other.state.parameters()) == 2 + 3 * (3 + 6)


@pytest.mark.parametrize("rows", [1, 2, 4, 7])
def test_few_rows_are_no_error(rows):
    _, ran = ended(rows_of(rows, 3.0), clients=1, components=1, tails="auto")
    assert np.isfinite(ran.state.theta).all()
