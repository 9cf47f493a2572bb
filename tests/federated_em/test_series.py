"""Series of private runs: what a run takes over, how releases are pooled, and what a plan expects of it."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import ConfigError
from fedcore.methods.federated_em import FederatedEM, FederatedEMState
from fedcore.methods.federated_em.private import accumulated_budget, noise_of
from fedcore.methods.federated_em.series import FORGETTING, SERIES_NAMES, Precision, of_first_run
from fedcore.methods.federated_em.server import damped_step
from fedcore.methods.federated_em.start import public_model
from fedcore.storage.arrays import read_values, write_values
from tests.federated_em.direct_em import loss, two_components
from tests.federated_em.run_in_memory import answer, block_of, facts, rounded_normal, run
from tests.federated_em.series import People
from tests.federated_em.series import series as whole_series
from tests.federated_em.varied import Varied

PRIVATE = Varied(algorithm="private", covariance="known", components=2, rounds=8, record_bound=8.0)


def small_block(rows=600, clients=40):
    y, _ = two_components(rows)
    return block_of(np.array_split(y, clients))


def public_facts(block, **changes):
    _, start = two_components(10)
    return facts(block, **{"start": start, "rho": 1.0, "nominal": block.clients, **changes})


def noise(seed=0):
    return rounded_normal(np.random.default_rng(seed))


# --- the pooling law --------------------------------------------------------------------------------------------------

estimates = st.lists(st.tuples(st.floats(-5, 5), st.floats(1e-6, 1e3)), min_size=1, max_size=30)


@given(estimates, st.floats(-5, 5), st.floats(1e-6, 1e3))
def test_the_statistic_is_a_mean_by_inverse_variance(released, s, variance):
    """Of what was known and of all estimates S + H, each with its own noise."""
    precision, values, weights = Precision(1 / variance, variance), [s], [1 / variance]
    for estimate, noise_of_it in released:
        gamma = precision.step(1.0, noise_of_it)
        s += gamma * (estimate - s)
        precision = precision.after(gamma, gamma, noise_of_it)
        values.append(estimate)
        weights.append(1 / noise_of_it)
    assert s == pytest.approx(np.average(values, weights=weights), rel=1e-9, abs=1e-9)
    assert precision.weight == pytest.approx(sum(weights)) and precision.variance == pytest.approx(1 / sum(weights))


@given(estimates, st.floats(1e-6, 1e3), st.floats(0.01, 1.0))
def test_shorter_steps_of_the_settings_are_kept_and_the_variance_is_that_of_the_mean(released, variance, planned):
    precision, shares = Precision(1 / variance, variance), [1.0]
    for _, noise_of_it in released:
        gamma = precision.step(planned, noise_of_it)
        assert 0 < gamma <= planned
        shares = [share * (1 - gamma) for share in shares] + [gamma]
        precision = precision.after(gamma, gamma, noise_of_it)
    variances = [variance, *(each for _, each in released)]
    assert sum(shares) == pytest.approx(1)
    assert precision.variance == pytest.approx(sum(a * a * v for a, v in zip(shares, variances, strict=True)))


def test_a_release_that_was_used_in_part_counts_in_part():
    past = Precision(10.0, 0.1)
    assert past.after(0.2, 0.2, 1.0).weight == 11 and past.after(0.05, 0.2, 1.0).weight == 10.25
    assert past.after(0.0, 0.2, 1.0) == past
    assert past.forgotten() == Precision(FORGETTING * 10.0, 0.1)


def test_what_a_first_run_leaves():
    assert of_first_run(0.5, 2.0, 30) == Precision(1.5, 2.0 / 3)
    assert of_first_run(0.5, 2.0, 2) == Precision(1.0, 1.0), "no better than the mean of its rounds"
    assert not of_first_run(2.0, 1.0, 30).known


# --- runs -------------------------------------------------------------------------------------------------------------


def test_a_run_without_a_series_makes_the_steps_that_it_made():
    """A constant step from the first round to the last, to the last bit."""
    block = small_block()
    public = public_facts(block)
    ran, plan, draw = run(PRIVATE, block, public, noise=noise()), FederatedEM(PRIVATE).plan(public), noise()
    model, s, method = public_model(PRIVATE, public), ran.states[0].statistic, FederatedEM(PRIVATE)
    for planned, before, after in zip(plan, ran.states[:-1], ran.states[1:], strict=True):
        message = method.message(before)
        exact = method.release_values(message, answer(method, message, block, 1024, None)[0])[planned.name]
        field = draw(planned, exact) * (PRIVATE.algorithm.clip / 2**16) * before.part_scales / before.clients
        s = damped_step(model, s, field, 0.5)[0]
        assert np.array_equal(s, after.statistic)
    assert set(SERIES_NAMES) <= set(method.warm_start_of(ran.state))
    assert not method.outcome(ran.state).startswith("Pooled")


def test_a_run_of_a_series_takes_shorter_steps():
    block, method = small_block(), FederatedEM(PRIVATE)
    first = run(PRIVATE, block, public_facts(block), noise=noise(1))
    left = method.warm_start_of(first.state)
    second = run(PRIVATE, block, public_facts(block, start=left), noise=noise(2))
    v = noise_of(PRIVATE, first.state)
    past = Precision(float(left["pooled_weight"][0]), float(left["pooled_variance"][0]))
    assert past == Precision(3 / v, v / 3)
    rounds = np.arange(PRIVATE.algorithm.rounds)
    assert not second.column("halvings").any()
    np.testing.assert_allclose(second.column("gamma"), 1 / (FORGETTING * 3 + rounds + 1), rtol=1e-12)
    assert "Pooled with earlier runs" in method.outcome(second.state)
    alone = {name: value for name, value in left.items() if name not in SERIES_NAMES}
    third = run(PRIVATE, block, public_facts(block, start=alone), noise=noise(2))
    assert (third.column("gamma") == 0.5).all()


def test_a_run_with_more_budget_counts_more():
    block, method = small_block(), FederatedEM(PRIVATE)
    left = method.warm_start_of(run(PRIVATE, block, public_facts(block, rho=10.0), noise=noise(1)).state)
    gammas = [
        run(PRIVATE, block, public_facts(block, start=left, rho=rho), noise=noise(2)).column("gamma")[0]
        for rho in (1.0, 5.0, 1000.0)
    ]
    assert gammas[0] < gammas[1] < gammas[2] == 0.5


def test_replacing_a_client_counts_its_noise():
    """Twice the noise is a quarter of the weight."""
    block, method = small_block(), FederatedEM(PRIVATE)
    left = [
        method.warm_start_of(run(PRIVATE, block, public_facts(block, relation=relation), noise=noise()).state)
        for relation in ("add_or_remove_one", "replace_one")
    ]
    assert left[1]["pooled_weight"][0] == pytest.approx(left[0]["pooled_weight"][0] / 4)


def test_a_state_in_the_middle_goes_on_to_the_same_bits(tmp_path):
    """Every state of the second run, stored and read again, leads to the same end."""
    block, method = small_block(), FederatedEM(PRIVATE)
    left = method.warm_start_of(run(PRIVATE, block, public_facts(block), noise=noise(1)).state)
    public = public_facts(block, start=left)
    whole, plan = run(PRIVATE, block, public, noise=noise(2)), method.plan(public)
    draws, draw = [], noise(2)
    for planned, before in zip(plan, whole.states[:-1], strict=True):
        message = method.message(before)
        exact = method.release_values(message, answer(method, message, block, 1024, None)[0])[planned.name]
        draws.append(draw(planned, exact))
    for middle in range(1, len(plan)):
        where = tmp_path / str(middle)
        write_values(where, dataclasses.asdict(whole.states[middle]))
        state = FederatedEMState(**read_values(where))
        for planned, published in zip(plan[middle:], draws[middle:], strict=True):
            state, _ = method.server_update(state, {planned.name: published})
        for name, value in dataclasses.asdict(whole.state).items():
            assert np.array_equal(getattr(state, name), value), name


def test_states_of_earlier_versions_start_a_series_anew():
    """They did not keep how precise they are: the next run is a first one."""
    block, method = small_block(), FederatedEM(PRIVATE)
    fields = dataclasses.asdict(run(PRIVATE, block, public_facts(block), noise=noise()).state)
    for name in ("spread", "pooled_weight", "pooled_variance"):
        del fields[name]
    old = FederatedEMState(**fields)
    left = method.warm_start_of(old)
    assert not set(left) & set(SERIES_NAMES) and not method.outcome(old)
    again = run(PRIVATE, block, public_facts(block, start=left), noise=noise())
    assert (again.column("gamma") == 0.5).all()


@pytest.mark.parametrize("bad", [{"pooled_weight": [1.0]}, {"pooled_weight": [-1.0], "pooled_variance": [1.0]}])
def test_what_no_run_leaves_is_refused(bad):
    block = small_block()
    _, start = two_components(10)
    arrays = {**start, **{name: np.array(value) for name, value in bad.items()}}
    with pytest.raises(ConfigError, match="pooled_weight and pooled_variance"):
        FederatedEM(PRIVATE).init(public_facts(block, start=arrays))


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"gamma_decay": 3.0}, {"gamma": 0.1}, {"rounds": 1}])
def test_what_a_plan_expects_of_a_series_is_what_its_runs_leave(changes):
    block, config = small_block(), PRIVATE.model_copy(update=changes)
    method, public = FederatedEM(config), public_facts(block)
    planned = dataclasses.replace(public, warm_start=None)
    budgets = []
    for number in range(4):
        ran = run(config, block, public, noise=noise(number))
        left, expected = method.warm_start_of(ran.state), method.likely_warm_start(planned)
        for name in SERIES_NAMES:
            np.testing.assert_allclose(left[name], expected[name], rtol=1e-12)
        budgets.append(accumulated_budget(config, planned))
        sketch = method.budget_sketch(planned, method.plan(planned))
        assert sketch["noise"] == pytest.approx(np.sqrt(left["pooled_variance"][0]))
        public, planned = public_facts(block, start=left), dataclasses.replace(planned, warm_start=expected)
    assert budgets[0] == pytest.approx(1.0) and budgets == sorted(budgets) and budgets[3] > 2


@pytest.mark.parametrize("model", ["gaussian", "regression", "poisson", "multinomial", "bernoulli", "gaussian_imputer"])
def test_a_run_can_be_planned_before_there_is_a_start(model):
    """With stand-ins, as `budget plan` has them; the run itself is refused without a start."""
    of_mixtures = {} if model == "gaussian_imputer" else {"components": 2}
    config = Varied(algorithm="private", model=model, rounds=3, **of_mixtures)
    method, public = FederatedEM(config), public_facts(small_block(), start=None)
    plan = method.plan(public)
    start = method.likely_warm_start(public)
    with_start = dataclasses.replace(public, warm_start=start)
    assert method.plan(with_start) == plan
    method.init(with_start)
    with pytest.raises(ConfigError, match="needs parameters"):
        method.init(public)
    assert FederatedEM(Varied()).likely_warm_start(public) is None


# --- what it brings ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_series_learns():
    """At a budget with which single runs do not: mean of the last three of eight, two seeds."""
    y, start = two_components(3000)
    people = People(block_of(np.array_split(y, 300)), y, start)
    config = PRIVATE.model_copy(update={"rounds": 10})
    excess = {True: [], False: []}
    for pooled, found in excess.items():
        for seed in range(2):
            states = whole_series(lambda _: people.block, start, config, 0.02, 8, seed, pooled=pooled)
            found += [loss(state.parameters(), y) for state in states[-3:]]
    exact = loss(run(config, people.block, public_facts(people.block)).state.parameters(), y)
    assert np.mean(excess[True]) - exact < 0.3 * (np.mean(excess[False]) - exact)
