"""The private pipeline: its plan, the sensitivity of every release, and its decisions on published values."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.methods.histograms import Histograms, HistogramsConfig, HistogramsState
from fedcore.methods.histograms.private import ReleaseMessage
from fedcore.privacy.grid import GRID_NORM, grid_step
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.statistics import IntegerSum, values
from fedcore.storage.arrays import read_values, state_values, write_values
from tests.histograms.example_clients import block_of, counts_arrays, random_counts
from tests.histograms.run_in_memory import answer, facts, rounded_normal, run

SMALL = HistogramsConfig(clusters=2, rounds=5, overseed=4, merge_after=2)


# --- the plan -------------------------------------------------------------------------------------------------------


@given(st.floats(1e-9, 1e4), st.integers(1, 10**9), st.integers(2, 10**5), st.sampled_from([None, 1, 3, 50]))
def test_the_plan_never_exceeds_the_budget_and_wastes_none_of_it(rho, nominal, features, clusters):
    releases = Histograms(HistogramsConfig(clusters=clusters)).plan(facts(features, rho=rho, nominal=nominal))
    prices = [release.rho for release in releases]
    assert sum(prices) <= rho and math.fsum(prices) <= rho and sum(reversed(prices)) <= rho * (1 + 1e-15)
    assert math.fsum(prices) >= rho * (1 - 1e-9)
    assert [release.round for release in releases] == list(range(1, len(releases) + 1))
    assert len({release.name for release in releases}) == len(releases)
    assert all(type(release.sensitivity) is int and release.sensitivity == 2**16 for release in releases)


def test_shares_of_the_budget():
    prices = [release.rho for release in Histograms(SMALL).plan(facts(8, rho=2.0, nominal=100))]
    np.testing.assert_allclose(prices, [0.08, 0.08, *[0.368] * 5], rtol=1e-9)


def test_the_plan_knows_config_and_public_facts_only():
    public = facts(8, rho=2.0, nominal=100)
    assert Histograms(SMALL).plan(public) == Histograms(SMALL).plan(dataclasses.replace(public, seed=9))
    shapes = [release.shape for release in Histograms(SMALL).plan(public)]
    assert shapes == [(1, 8), (1, 8), (4, 8), (4, 8), (2, 8), (2, 8), (2, 8)]
    assert all(isinstance(release, PlannedRelease) for release in Histograms(SMALL).plan(public))
    assert Histograms(HistogramsConfig(algorithm="fedavg")).plan(public) == []


@given(counts_arrays(), st.integers(0, 5))
def test_rounds_and_shapes_do_not_depend_on_the_data(counts, seed):
    """`run` fails when a release is not exactly as planned, whatever the data and the noise are."""
    block = block_of(counts)
    public = facts(block.features, rho=0.01 * 10 ** (seed % 4), nominal=1000, seed=seed)
    state, infos = run(Histograms(SMALL), block, public, rounded_normal(np.random.default_rng(seed)))
    assert state.phase == "done" and len(infos) == 7
    assert np.all(np.isfinite(state.centres)) and state.centres.shape == (2, block.features)
    np.testing.assert_allclose(state.centres.sum(axis=1), 1.0)


# --- sensitivity ----------------------------------------------------------------------------------------------------


def messages_of(config: HistogramsConfig, block, seed: int) -> list[ReleaseMessage]:
    """The messages of a whole noised run."""
    method, messages = Histograms(config), []
    public = facts(block.features, rho=0.5, nominal=60, seed=seed)
    noise, plan = rounded_normal(np.random.default_rng(seed)), method.plan(public)
    state = method.init(public)
    while (message := method.message(state)) is not None:
        messages.append(message)
        grid = method.release_values(message, answer(method, message, block, 1024))
        planned = plan[len(messages) - 1]
        state, _ = method.server_update(state, {planned.name: noise(planned, grid[planned.name])})
    return messages


def squared_change(one: np.ndarray, other: np.ndarray) -> int:
    """Squared L2 norm of the difference of two integer arrays, in Python integers."""
    return sum((int(a) - int(b)) ** 2 for a, b in zip(one.ravel(), other.ravel(), strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_one_client_changes_no_release_by_more_than_the_planned_sensitivity(seed):
    """With the message fixed, adding any client (empty, one-token, usual, huge) moves the array by at most 2**16."""
    generator = np.random.default_rng(seed)
    counts = random_counts(generator, 25, 9)
    one = np.eye(9, dtype=int)
    newcomers = [0 * one[0], one[8], one[0] * 2**40, *random_counts(generator, 8, 9)]
    method, reached = Histograms(SMALL), 0
    for message in messages_of(SMALL, block_of(counts), seed):
        without = method.release_values(message, answer(method, message, block_of(counts), 4))[message.release]
        for newcomer in newcomers:
            place = generator.integers(0, 26)
            joined = block_of(np.insert(counts, place, newcomer, axis=0))
            with_one = method.release_values(message, answer(method, message, joined, 4))[message.release]
            change = squared_change(with_one, without)
            assert change <= GRID_NORM**2
            assert np.sum((with_one != without).any(axis=1)) <= 1, "a client is in one cell"
            assert (change == 0) == (not newcomer.any())
            reached = max(reached, change)
    assert reached > 0.999 * GRID_NORM**2, "the bound is tight, so a smaller declared sensitivity would be wrong"


def test_a_client_cannot_switch_cells_while_the_message_stands():
    """The cell is a function of the client's own counts and the message: nobody else's presence matters."""
    generator = np.random.default_rng(3)
    counts = random_counts(generator, 12, 9)
    method = Histograms(SMALL)
    message = messages_of(SMALL, block_of(counts), 1)[-1]
    alone = [answer(method, message, block_of(row[None]), 1)[message.release].value() for row in counts]
    together = answer(method, message, block_of(counts), 1024)[message.release].value()
    assert np.array_equal(sum(alone), together)


def test_only_the_planned_integer_sum_leaves_the_clients():
    block = block_of(random_counts(np.random.default_rng(0), 10, 9))
    for message in messages_of(SMALL, block, 0):
        statistics, memory = Histograms(SMALL).client_update(message, block, None)
        assert memory is None and list(statistics) == [message.release]
        assert type(statistics[message.release]) is IntegerSum


# --- rounds ---------------------------------------------------------------------------------------------------------


def state_for_rounds(centres, rounds, sigma=1e-6, **fields) -> HistogramsState:
    k, d = np.shape(centres)
    uniform = np.full(d, 1 / d)
    defaults = dict(
        phase="rounds",
        round=0,
        seed=0,
        rounds=rounds,
        clusters=k,
        overseed=k,
        merge_after=0,
        perturbation=0.3,
        multipliers=np.full(rounds + 2, sigma),
        mean=uniform,
        mean_precision=1e30,
        metric=uniform,
        centres=np.array(centres),
        counts=np.zeros(k),
        sums=np.zeros((0, d)),
        reseed=np.zeros(0, np.int64),
        entropy=0.0,
        clients=0.0,
    )
    return HistogramsState(**{**defaults, **fields})


def finish(state: HistogramsState, block) -> list[HistogramsState]:
    """The states of the remaining rounds, without noise."""
    method, states = Histograms(HistogramsConfig(clusters=len(state.centres))), []
    while (message := method.message(state)) is not None:
        statistics = answer(method, message, block, 1024)
        state, _ = method.server_update(state, method.release_values(message, statistics))
        states.append(state)
    return states


def test_two_rounds_with_two_clusters_worked_by_hand():
    """Clients A, A, A = (1, 0), B = (1/2, 1/2), D = (1/4, 3/4); w = (1/2, 1/2), so no client is clipped.

    Start (.6, .4), (.3, .7). B: ln .24 > ln .21, so B is in cell 1 and D in cell 2.
    Round 1: R = (3.5, .5), (.25, .75); P = (7/8, 1/8), (1/4, 3/4). Now B: ln(7/64) < ln(3/16), B moves to cell 2.
    Round 2: R = (3, 0), (.75, 1.25). Pooled with round 1: (6.5, .5) / 7 and (1, 2) / 3.
    """
    block = block_of([[4, 0], [2, 0], [1, 0], [1, 1], [1, 3]])
    first, second = finish(state_for_rounds([[0.6, 0.4], [0.3, 0.7]], rounds=2), block)
    # every client's entry is truncated by at most a grid step, times sqrt(w)
    tolerance = 4 * grid_step(3.0) * math.sqrt(0.5)
    np.testing.assert_allclose(first.centres, [[7 / 8, 1 / 8], [1 / 4, 3 / 4]], atol=tolerance)
    np.testing.assert_allclose(first.counts, [4, 1], atol=5 * tolerance)
    np.testing.assert_allclose(second.centres, [[13 / 14, 1 / 14], [1 / 3, 2 / 3]], atol=tolerance)
    np.testing.assert_allclose(second.counts, [3.5, 1.5], atol=5 * tolerance)
    assert (first.phase, second.phase) == ("rounds", "done")


def test_a_dead_cell_is_reseeded_early_and_becomes_the_mean_late():
    block = block_of([[4, 1]] * 50)
    states = finish(state_for_rounds([[0.8, 0.2], [0.01, 0.99]], rounds=4, sigma=0.01), block)
    for state in states[:2]:
        assert not np.allclose(state.centres[1], state.mean), "re-seeded by perturbing the mean"
    for state in states[2:]:
        np.testing.assert_allclose(state.centres[1], state.mean)


def test_a_cell_that_noise_explains_is_dead():
    """6 C sigma = 18 * 0.2 = 3.6: three clients are not enough, four are."""
    for clients, alive in ((3, False), (4, True)):
        block = block_of([[1, 0]] * 30 + [[0, 1]] * clients)
        (state,) = finish(state_for_rounds([[0.8, 0.2], [0.2, 0.8]], rounds=1, sigma=0.2), block)
        assert np.allclose(state.centres[1], state.mean) == (not alive)


def test_merging_keeps_sums_and_drops_dead_cells():
    """Four cells at three places and one empty: the two near ones merge, and the shape is as planned."""
    block = block_of([[9, 1, 1]] * 40 + [[8, 2, 1]] * 20 + [[1, 1, 9]] * 30)
    centres = np.array([[9, 1, 1], [8, 2, 1], [1, 1, 9], [1, 1000, 1]]) / np.array([[11], [11], [11], [1002]])
    state = state_for_rounds(centres, rounds=3, sigma=0.01, clusters=2, merge_after=1)
    method = Histograms(HistogramsConfig(clusters=2, overseed=4, rounds=3, merge_after=1))
    message = method.message(state)
    assert message.cells == 4
    merged, _ = method.server_update(state, method.release_values(message, answer(method, message, block, 1024)))
    assert merged.centres.shape == (2, 3)
    expected = np.array([[(9 * 40 + 8 * 20) / 11, (40 + 40) / 11, 60 / 11], [30 / 11, 30 / 11, 270 / 11]])
    np.testing.assert_allclose(merged.sums, expected, atol=60 * grid_step(3.0))
    # the noise of two merged cells is in the first, hence it is shrunk more than alone; both shrinkages are below 1e-5
    np.testing.assert_allclose(merged.centres, expected / expected.sum(axis=1, keepdims=True), atol=1e-4)


def test_fewer_live_cells_than_clusters_are_filled_up():
    block = block_of([[5, 1]] * 40)
    state = state_for_rounds([[0.8, 0.2], [0.01, 0.99], [0.02, 0.98]], rounds=4, sigma=0.01, clusters=2, merge_after=1)
    method = Histograms(HistogramsConfig(clusters=2, overseed=3, rounds=4, merge_after=1))
    message = method.message(state)
    merged, _ = method.server_update(state, method.release_values(message, answer(method, message, block, 1024)))
    np.testing.assert_allclose(merged.centres[0], [5 / 6, 1 / 6], atol=1e-3)
    assert merged.centres.shape == (2, 2) and not np.allclose(merged.centres[0], merged.centres[1])


@pytest.mark.parametrize(
    "config, public",
    [
        (SMALL, facts(9, rho=0.5, nominal=100)),
        (HistogramsConfig(algorithm="algorithm2", clusters=3), facts(9)),
        (HistogramsConfig(algorithm="fedavg"), facts(9)),
    ],
)
def test_every_state_survives_the_run_store(tmp_path, config, public):
    method, block = Histograms(config), block_of(random_counts(np.random.default_rng(0), 30, 9))
    state, plan = method.init(public), list(method.plan(public))
    for number in range(1000):
        folder = tmp_path / f"{number:06d}"
        write_values(folder, state_values(state))
        again = HistogramsState(**read_values(folder))
        for name, value in state_values(state).items():
            assert np.array_equal(getattr(again, name), value) and type(getattr(again, name)) is type(value), name
        message = method.message(again)
        if message is None:
            break
        statistics = answer(method, message, block, 1024)
        result = method.release_values(message, statistics) if method.private else values(statistics)
        state, info = method.server_update(again, result)
        assert all(math.isfinite(value) for value in info.scalars.values())
    assert state.phase == "done" and number >= len(plan)


def test_the_mean_of_the_rounds_is_better_than_that_of_the_second_release():
    """Precision adds up: after T rounds F rests on all releases, not on 4 % of the budget."""
    generator = np.random.default_rng(0)
    truth = generator.dirichlet(np.ones(40))
    block = block_of(generator.multinomial(200, truth, size=2000))
    exact = block.csr.toarray().mean(axis=0) / 200
    method, errors = Histograms(HistogramsConfig(clusters=2, rounds=4, overseed=2)), {"early": [], "late": []}
    for seed in range(5):
        public = facts(40, rho=0.02, nominal=2000, seed=seed)
        noise, plan, state = rounded_normal(np.random.default_rng(seed)), method.plan(public), method.init(public)
        for planned in plan:
            message = method.message(state)
            grid = method.release_values(message, answer(method, message, block, 1024))
            state, _ = method.server_update(state, {planned.name: noise(planned, grid[planned.name])})
            if planned.name == "whitened_mean":
                errors["early"].append(np.sum((state.mean - exact) ** 2 / exact))
        errors["late"].append(np.sum((state.mean - exact) ** 2 / exact))
    # 2 cells, 4 rounds of 23 % each: precision .04 + 4 * .23 / 2 = .5 against .04, a twelfth of the squared error
    assert np.mean(errors["late"]) < np.mean(errors["early"]) / 4
