"""The server of the private pipeline: its decisions on published values."""

import math

import numpy as np
import pytest

from fedcore.methods.histograms import Histograms, HistogramsConfig, HistogramsState, sizes
from fedcore.methods.histograms.simplex import denoised_mean
from fedcore.privacy.grid import grid_step
from fedcore.rounds.method import RoundInfo
from fedcore.storage.arrays import read_values, state_values, write_values
from tests.histograms.example_clients import SMALL, block_of, random_counts
from tests.histograms.run_in_memory import answer, facts, rounded_normal, run

# --- rounds ---------------------------------------------------------------------------------------------------------


def state_for_rounds(centres, rounds, sigma=1e-6, **fields) -> HistogramsState:
    k, d = np.shape(centres)
    uniform = np.full(d, 1 / d)
    numbers = dict(round=0, seed=0, rounds=rounds, clusters=k, overseed=k, merge_after=0, perturbation=0.3)
    start = dict(mean=uniform, mean_precision=1e30, metric=uniform, multipliers=np.full(rounds + 2, sigma))
    held = dict(centres=np.array(centres), counts=np.zeros(k), sums=np.zeros((0, d)), reseed=np.zeros(0, np.int64))
    defaults = dict(phase="rounds", **numbers, **start, **held, entropy=0.0, clients=0.0)
    return HistogramsState(**{**defaults, **fields})


def finish(state: HistogramsState, block) -> list[HistogramsState]:
    """The states of the remaining rounds, without noise."""
    method, states = Histograms(HistogramsConfig(clusters=len(state.centres))), []
    while (message := method.message(state)) is not None:
        statistics = answer(method, message, block, 1024)
        state, _ = method.server_update(state, method.release_values(message, statistics))
        states.append(state)
    return states


def moved(state: HistogramsState, block) -> RoundInfo:
    """What is shown of one round, without noise."""
    method = Histograms(HistogramsConfig(clusters=len(state.centres)))
    message = method.message(state)
    return method.server_update(state, method.release_values(message, answer(method, message, block, 1024)))[1]


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


@pytest.mark.parametrize(("multiplier", "weights"), [(0.0, 0), (0.5, 1)])
def test_the_release_of_weights_is_a_round_if_it_is_planned(multiplier, weights):
    state = state_for_rounds([[0.6, 0.4], [0.3, 0.7]], rounds=3, weights_multiplier=multiplier)
    assert Histograms(HistogramsConfig(clusters=2)).total_rounds(state) == 2 + 3 + weights


def test_centres_do_not_move_where_every_cell_is_dead():
    state = state_for_rounds([[0.8, 0.2], [0.2, 0.8]], rounds=1, sigma=0.2)
    assert moved(state, block_of([[1, 0]] * 3)).scalars["movement"] == 0.0


@pytest.mark.parametrize(("sigma", "reliable"), [(1e-6, 1.0), (20.0, 0.0)])
def test_what_is_shown_of_the_rough_mean(sigma, reliable):
    """The released sum, and whether it is more than noise. There are no centres yet that could move.

    A client's (1/2, 1/2) has the norm sqrt(1/2), and is shortened to the clip 0.2: its entries add up to 0.2 sqrt(2).
    """
    state = state_for_rounds([[0.5, 0.5]], rounds=1, sigma=sigma, phase="flat")
    shown = moved(state, block_of([[1, 1]] * 20)).scalars
    assert shown["released_count"] == pytest.approx(20 * 0.2 * math.sqrt(2), rel=1e-3)
    assert (shown["live_cells"], shown["movement"], shown["noise_multiplier"]) == (reliable, 0.0, sigma)


def test_a_mean_alone_is_made_of_both_of_its_releases():
    """It is nearer to the truth than what the whitened release alone gives, over 40 draws of noise."""
    d, clients = 100, 3000
    shares = 1.0 / np.arange(1, d + 1)
    shares /= shares.sum()
    block = block_of(np.random.default_rng(0).multinomial(100, shares, clients))
    config, public = HistogramsConfig(), facts(d, rho=5e-5, nominal=clients)
    assert sizes.sizes_of(config, public).rounds == 0
    losses = []
    for seed in range(40):
        state, _ = run(Histograms(config), block, public, rounded_normal(np.random.default_rng(seed)))
        assert state.sums.shape == (0, d)
        count = state.pool_sums[0, 0].sum()
        alone = denoised_mean(state.pool_sums[0, 0] / count, np.sqrt(state.pool_mean_noise[0]) / count, 1e-6)
        losses.append([(shares * np.log(shares / mean)).sum() for mean in (state.mean, alone)])
    both, alone = np.mean(losses, axis=0)
    assert both < 0.9 * alone, (both, alone)


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
    np.testing.assert_allclose(merged.counts, expected.sum(axis=1), atol=180 * grid_step(3.0))
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


def test_every_state_survives_the_run_store(tmp_path):
    public = facts(9, rho=0.5, nominal=100)
    method, block = Histograms(SMALL), block_of(random_counts(np.random.default_rng(0), 30, 9))
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
        state, info = method.server_update(again, method.release_values(message, statistics))
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
