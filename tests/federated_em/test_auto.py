"""The phase that chooses the penalty by rows held back, and the starts that exact EM tries."""

import numpy as np
import pytest

from fedcore.methods.federated_em import FederatedEM, models
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.validation import Split, training_part, validation_part
from tests.federated_em.run_in_memory import block_of, facts, run
from tests.federated_em.varied import Varied

OF_ONE = dict(algorithm="em", cluster_rounds=1, rounds=2, pseudo_rows="auto", trial_rounds=3, restarts=1)
AUTO = OF_ONE | dict(components=2)


def population(rows=200, d=6, seed=0):
    generator = np.random.default_rng(seed)
    return block_of([generator.normal(size=(10, d)) @ generator.normal(size=(d, d)) for _ in range(rows // 10)])


@pytest.mark.parametrize("weights", ["rows", "clients"])
def test_the_penalty_is_the_best_for_rows_held_back(weights):
    """EM by hand from the same start: on four fifths of the rows, with each penalty."""
    block, config = population(60), Varied(**AUTO, weights=weights)
    ran = run(config, block, facts(block, seed=3), clients_per_leaf=2)
    began = next(state for state in ran.states if state.phase == "penalties")
    assert began.waiting_rows == 0.2 and began.rows == 60
    split, scaling = Split(3, 0.2), began.scaling()
    training, held = ((part(block, split).x - began.centre) / began.scale for part in (training_part, validation_part))
    start = models.model_of(config, scaling).maximise(began.waiting[0])
    found = []
    for pseudo_rows in (0.001, 0.1, 1.0):
        model = GaussianMixture(2, 6, "full", lam=pseudo_rows / 60 * scaling.variance)
        theta = model.maximise(model.statistic_of(start))
        for _ in range(2):
            theta = model.maximise(model.e_total(theta, training) / len(training))
        found.append(-model.log_likelihood(theta, held).mean())
    assert ran.column("held_out_loss")[2] == pytest.approx(min(found), rel=1e-9)
    assert ran.column("pseudo_rows").tolist() == [[0.001, 0.1, 1.0][int(np.argmin(found))]]


def test_then_all_rows_take_part_and_the_start_is_the_same():
    block = population()
    ran = run(Varied(**AUTO), block, facts(block))
    after = next(state for state in ran.states if state.phase == "rounds")
    chosen = ran.column("pseudo_rows")[0]
    assert chosen == 1.0 and after.penalty_share == chosen / 200 and after.split() is None
    began = next(state for state in ran.states if state.phase == "penalties")
    started = models.model_of(Varied(**AUTO), began.scaling()).maximise(began.waiting[0])
    for name, array in after.parameters().items():
        np.testing.assert_allclose(array, started[name], rtol=1e-10, atol=1e-12)
    weights = after.statistic[:2].sum()
    assert weights == pytest.approx(1.0)


def test_what_it_costs_is_counted():
    """Three penalties, three passes, q = 2 + 12 + 42, 20 clients; then two rounds, without penalties."""
    block = population()
    ran = run(Varied(**AUTO), block, facts(block))
    q, parameters = 2 * (1 + 6 + 21), 2 * (1 + 6 + 36)
    assert ran.state.bits_up == 20 * 64 * q * (3 * 3 + 2)
    assert ran.state.bits_down == 20 * (64 + 64 * parameters) * 9 + 20 * (64 + 64 * (q + parameters)) * 2
    assert ran.state.expectations == 200 * (9 + 2)


def test_a_run_whose_penalty_was_chosen_is_the_run_with_that_penalty():
    block = population()
    ran = run(Varied(**AUTO | {"restarts": 3}), block, facts(block))
    chosen = ran.column("pseudo_rows")[0]
    other = run(Varied(**AUTO | {"restarts": 3, "pseudo_rows": chosen}), block, facts(block))
    np.testing.assert_allclose(ran.state.theta, other.state.theta, rtol=1e-8, atol=1e-10)


def test_clients_of_one_row_hold_nothing_back_and_the_default_is_taken():
    generator = np.random.default_rng(0)
    block = block_of([generator.normal(size=(1, 2)) for _ in range(40)])
    ran = run(Varied(**AUTO), block, facts(block))
    assert ran.column("pseudo_rows").tolist() == [0.001]


@pytest.mark.parametrize("model", ["regression", "gaussian_imputer"])
@pytest.mark.parametrize("algorithm", ["em", "fedem"])
def test_other_models_and_algorithms_may_ask_for_it(model, algorithm):
    block = population()
    settings = (OF_ONE if model == "gaussian_imputer" else AUTO) | {
        "model": model,
        "algorithm": algorithm,
        "restarts": 2,
    }
    ran = run(Varied(**settings), block, facts(block), clients_per_leaf=3)
    assert ran.column("pseudo_rows")[0] in (0.001, 0.1, 1.0) and ran.state.phase == "done"


def test_rows_of_the_validation_do_not_choose():
    """A run with validation is that of the other rows; the rows that choose are a fifth of these."""
    block = population()
    ran = run(Varied(**AUTO, validation=0.3), block, facts(block))
    rest = training_part(block, Split(0, 0.3))
    began = next(state for state in ran.states if state.phase == "penalties")
    choosing = validation_part(block, began.split())
    inner = Split(0, 0.2, Split(0, 0.3)).held_back(rest.ptr, 0)
    assert np.array_equal(choosing.x, rest.x[inner]) and inner.mean() == pytest.approx(0.2, abs=0.05)
    assert ran.state.rows == len(rest.x)


def test_a_run_that_goes_on_keeps_what_was_chosen():
    block = population()
    method = FederatedEM(Varied(**AUTO))
    arrays = method.warm_start_of(run(method.config, block, facts(block)).state)
    assert arrays["pseudo_rows"] == [1.0]
    given = Varied(algorithm="em", components=2, rounds=2, start="given")
    assert run(given, block, facts(block, start=arrays)).state.penalty_share == 1 / 200
    other = given.model_copy(update={"pseudo_rows": 0.5})
    assert run(other, block, facts(block, start=arrays)).state.penalty_share == 0.5 / 200


def test_defaults():
    exact = Varied(algorithm="em")
    assert exact.tries_penalties and exact.starts_tried == 4
    assert not Varied().tries_penalties and Varied().starts_tried == 4
    for one in (dict(algorithm="vr-fedem"), dict(batch=5), dict(codec="dithering"), dict(safeguards=False)):
        assert Varied(**one).starts_tried == 1, one
    given = Varied(algorithm="em", start="given")
    assert not given.tries_penalties and given.starts_tried == 1
    assert not Varied(algorithm="em", regularisation=0.1).tries_penalties
    assert Varied(algorithm="em", model="gaussian_imputer").starts_tried == 1


def test_a_start_that_leaves_the_domain_stays_where_it_was():
    """More components than distinct places: a weight goes to 0 in some start, which the trials must survive."""
    generator = np.random.default_rng(1)
    block = block_of([generator.integers(0, 2, (10, 2)).astype(float) + 1e-3 * generator.normal(size=(10, 2))])
    config = Varied(algorithm="em", components=7, rounds=2, trial_rounds=25)
    ran = run(config, block, facts(block))
    assert np.isfinite(ran.state.objective)
