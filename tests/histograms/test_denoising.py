"""Estimates of noised values: sparse laws, the same bits for any cut into leaves, values without noise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.methods.histograms import Histograms, HistogramsConfig
from fedcore.methods.histograms.denoising import RATIO_GRID, denoised_centre, denoised_mean, posterior_means
from fedcore.methods.histograms.simplex import project
from fedcore.storage.arrays import state_values
from tests.histograms.example_clients import block_of
from tests.histograms.run_in_memory import answer, facts


def kl(p: np.ndarray, q: np.ndarray) -> float:
    return float(np.sum(p * (np.log(np.maximum(p, 1e-300)) - np.log(q))))


def sparse(generator: np.random.Generator, d: int, concentration: float) -> np.ndarray:
    """A histogram with few large shares and many tiny ones."""
    p = generator.dirichlet(np.full(d, concentration)) + 1e-8
    return p / p.sum()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.03, 0.2, 1.0]), st.sampled_from([1e-4, 1e-3, 1e-2]))
def test_denoised_means_are_no_worse_than_floored_ones(seed, concentration, noise):
    generator, d, losses = np.random.default_rng(seed), 200, []
    for _ in range(5):
        p = sparse(generator, d, concentration)
        s = noise * np.sqrt(0.5 * p + 0.5 / d)
        y = p + s * generator.standard_normal(d)
        losses.append((kl(p, denoised_mean(y, s, 1e-6)), kl(p, project(y, 1e-5))))
    denoised, floored = np.array(losses).T
    error = np.std(denoised - floored, ddof=1) / np.sqrt(len(losses))
    assert denoised.mean() <= floored.mean() + 3 * error + 1e-5


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.2, 1.0]), st.sampled_from([1e-3, 1e-2, 5e-2]))
def test_denoised_centres_are_no_worse_than_floored_ones(seed, spread, noise):
    """Ratios to the mean that are all 1, or log-normal."""
    generator, d, losses = np.random.default_rng(seed), 200, []
    for _ in range(5):
        mean = project(1 / (np.arange(d) + 2.7), 0)
        p = project(mean * np.exp(spread * generator.standard_normal(d)), 0)
        s = noise * np.sqrt(mean)
        y = p + s * generator.standard_normal(d)
        losses.append((kl(p, denoised_centre(y, s, mean, 1e-6)), kl(p, project(y, 1e-5))))
    denoised, floored = np.array(losses).T
    error = np.std(denoised - floored, ddof=1) / np.sqrt(len(losses))
    assert denoised.mean() <= floored.mean() + 3 * error + 1e-5


def test_values_without_noise_stay_as_they_are():
    p = np.random.default_rng(0).dirichlet(np.ones(7))
    np.testing.assert_allclose(denoised_mean(p, np.full(7, 1e-9), 1e-6), p, rtol=1e-6)
    ratios = np.array([0.03, 0.9, 1.0, 1.013, 25.0])
    np.testing.assert_allclose(posterior_means(ratios, np.full(5, 1e-9), RATIO_GRID, 100), ratios, rtol=1e-6)


def test_values_of_which_nothing_is_known_are_all_the_same():
    """Noise a thousand times as large as any share: what is left is a flat histogram."""
    generator = np.random.default_rng(1)
    y, s = 1e3 * generator.standard_normal(50), np.full(50, 1e3)
    assert np.ptp(np.log(denoised_mean(y, s, 1e-6))) < 0.1
    mean = generator.dirichlet(np.ones(50))
    np.testing.assert_allclose(denoised_centre(y, s, mean, 1e-6), mean, rtol=0.1)


def test_ratios_include_one_and_reach_far_enough():
    assert 1.0 in RATIO_GRID and len(RATIO_GRID) == 121
    assert RATIO_GRID[0] == pytest.approx(0.02) and RATIO_GRID[-1] >= 30
    assert np.all(RATIO_GRID > 0), "a point at 0 would make the loss infinite"


def test_many_values_are_fitted_to_some_of_them():
    """More values than the weights are fitted to, and more than a tile."""
    generator = np.random.default_rng(2)
    p = sparse(generator, 50_000, 0.1)
    s = np.full(len(p), 3e-5)
    y = p + s * generator.standard_normal(len(p))
    assert kl(p, denoised_mean(y, s, 1e-8)) < kl(p, project(y, 1e-7))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 5]), st.integers(1, 4))
def test_equal_bits_for_any_number_of_leaves(seed, clusters, rounds):
    """Noise included: the same whole numbers leave the clients, and all else is made of them."""
    generator = np.random.default_rng(seed)
    block = block_of(generator.multinomial(30, generator.dirichlet(np.ones(8), 3)[generator.integers(3, size=60)]))
    config = HistogramsConfig(clusters=clusters, rounds=rounds, overseed=clusters)
    method, public, ends = Histograms(config), facts(8, rho=1.0, nominal=60, seed=1), []
    for clients_per_leaf in (1, 7, 60):
        noise, state = np.random.default_rng(seed), method.init(public)
        while (message := method.message(state)) is not None:
            grids = method.release_values(message, answer(method, message, block, clients_per_leaf))
            noised = {
                name: grid + np.rint(1e4 * noise.standard_normal(grid.shape)).astype(np.int64)
                for name, grid in grids.items()
            }
            state, _ = method.server_update(state, noised)
        ends.append(state_values(state))
    for end in ends[1:]:
        for name, value in end.items():
            np.testing.assert_array_equal(value, ends[0][name], err_msg=name)
