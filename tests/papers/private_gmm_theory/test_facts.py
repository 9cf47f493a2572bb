"""Facts about separated Gaussians that the proofs rest on, and the lemma on noisy projections."""

import numpy as np
import pytest
from fedcore.papers.private_gmm import simulation as sim
from fedcore.papers.private_gmm.theory.mechanisms import Ball, symmetric_noise, within
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def mixed():
    """Not flat enough for condition (7) to be met with its constants at n = 3000, but nearly: d = 400."""
    truth = sim.mixture(400, 3, 150.0, 1, scales=(1, 2, 3), weights=(0.2, 0.3, 0.5))
    rows, labels = sim.sample(truth, 1500, 1)
    return truth, rows, labels


@pytest.mark.slow
def test_rows_are_at_the_distance_of_the_trace(mixed):
    truth, rows, labels = mixed
    rng = np.random.default_rng(0)
    for i in range(3):
        trace = np.trace(truth.covariances[i])
        own = rows[labels == i]
        squares = ((own - truth.means[i]) ** 2).sum(axis=1)  # P1
        assert squares.min() >= trace / 2 and squares.max() <= 1.5 * trace
        a, b = own[rng.permutation(len(own))[:100]], own[rng.permutation(len(own))[:100]]
        pairs = ((a - b) ** 2).sum(axis=1)  # P2
        assert pairs[pairs > 0].min() >= trace and pairs.max() <= 3 * trace
        spectral = np.linalg.norm(own - truth.means[i], ord=2)  # P3
        reference = (len(own) ** 0.5 + 400**0.5) * truth.sigmas[i]
        assert 0.5 * reference < spectral < 1.5 * reference
        assert 0.5 * truth.weights[i] <= len(own) / len(rows) <= 1.5 * truth.weights[i]  # P5
    assert np.array_equal(sim.nearest(rows, truth.means), labels)  # P4


def test_five_times_a_ball_of_two_rows_holds_their_component(mixed):
    truth, rows, labels = mixed
    for i in range(3):
        own = rows[labels == i]
        for ball in (
            Ball((own[0] + own[1]) / 2, np.linalg.norm(own[0] - own[1]) / 2),
            Ball((own[0] + truth.means[i]) / 2, np.linalg.norm(own[0] - truth.means[i]) / 2),
        ):
            assert within(own, ball, 1.001).any() and within(own, ball, 1 + 2 * 3**0.5).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.floats(0.0, 50.0))
def test_projection_by_noisy_components_keeps_means(seed, k, scale):
    """Lemma 3.1: |mean_i - P mean_i| <= (|X - C| + sqrt(Bd)) / sqrt(n_i)."""
    truth = sim.mixture(12, k, 8.0, seed)
    rows, labels = sim.sample(truth, 80, seed)
    moment = rows.T @ rows
    noised = moment + symmetric_noise(12, scale, np.random.default_rng(seed))

    def missed(vectors):
        p = vectors @ vectors.T
        return np.linalg.norm(moment - p @ moment @ p, ord=2)

    top, best = (np.linalg.eigh(m)[1][:, ::-1][:, :k] for m in (noised, moment))
    slack = max(missed(top) - missed(best), 0.0)
    spread = np.linalg.norm(rows - truth.means[labels], ord=2)
    for i in range(k):
        if (labels == i).any():
            mean = rows[labels == i].mean(axis=0)
            bound = (spread + slack**0.5) / (labels == i).sum() ** 0.5
            assert np.linalg.norm(mean - top @ (top.T @ mean)) <= bound * (1 + 1e-9)
