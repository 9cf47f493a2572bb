"""The generator of separated mixtures: its separation is exact, its rows do not depend on what follows."""

import numpy as np
import pytest
from fedcore.papers.private_gmm import simulation as sim

from fedcore.errors import ConfigError


@pytest.mark.parametrize("options", [{}, {"scales": (1, 1, 10)}, {"axis_spread": (0.4, 1.0)}])
def test_separation_is_exact(options):
    truth = sim.mixture(20, 3, 10.0, 5, **options)
    sigmas = [np.sqrt(np.linalg.eigvalsh(c)[-1]) for c in truth.covariances]
    pairs = [
        np.linalg.norm(truth.means[i] - truth.means[j]) / max(sigmas[i], sigmas[j]) for i in range(3) for j in range(i)
    ]
    assert min(pairs) == pytest.approx(10.0, rel=1e-9)
    assert truth.separation == pytest.approx(10.0, rel=1e-9)
    if "axis_spread" in options:
        spreads = np.sqrt(np.linalg.eigvalsh(truth.covariances))
        assert spreads.min() >= 0.4 - 1e-9 and spreads.max() <= 1 + 1e-9 and spreads.max() / spreads.min() > 1.5


def test_rows_have_the_moments_of_their_component_and_prefixes_agree():
    truth = sim.mixture(4, 2, 6.0, 1, weights=(0.3, 0.7), axis_spread=(0.5, 2.0))
    rows, labels = sim.sample(truth, 20_000, 3)
    shorter, _ = sim.sample(truth, 1500, 3)
    assert np.array_equal(shorter, rows[:1500])
    assert abs(np.mean(labels == 0) - 0.3) < 4 * (0.21 / 20_000) ** 0.5
    for i in range(2):
        own = rows[labels == i]
        assert np.linalg.norm(own.mean(axis=0) - truth.means[i]) < 5 * truth.sigmas[i] * (4 / len(own)) ** 0.5
        covariance = truth.covariances[i]
        assert np.linalg.norm(np.cov(own.T) - covariance) < 0.1 * covariance.max()
    assert sim.sample(truth, 0, 3)[0].shape == (0, 4)


def test_prior_covers_the_truth():
    truth = sim.mixture(20, 3, 10.0, 5, scales=(1, 2, 10), weights=(0.2, 0.3, 0.5))
    told = sim.prior(truth)
    assert told.sigma_min == pytest.approx(0.3) and told.sigma_max == pytest.approx(10)
    assert told.least_weight == pytest.approx(0.12)
    assert told.radius == pytest.approx(2 * (np.linalg.norm(truth.means, axis=1).max() + 10 * 20**0.5))


def test_structureless_data_are_what_they_say():
    rows = {kind: sim.structureless(kind, 5, 20_000, 1) for kind in ("gaussian", "t3", "cube", "ring", "needle")}
    assert np.allclose(np.cov(rows["gaussian"].T), np.eye(5), atol=0.06)
    assert np.allclose(rows["cube"].var(axis=0), 1, atol=0.03) and np.abs(rows["cube"]).max() <= 3**0.5
    assert np.mean(np.hypot(*rows["ring"][:, :2].T)) == pytest.approx(20, abs=0.2)
    assert rows["needle"].std(axis=0) == pytest.approx([20, 1, 1, 1, 1], rel=0.03)
    assert np.mean(np.abs(rows["t3"][:, 0]) < 0.7648923) == pytest.approx(0.5, abs=0.015)  # quartile of Student's t_3
    for kind, x in rows.items():
        assert np.mean(np.linalg.norm(x, axis=1) <= sim.structureless_prior(kind, 5, 2).radius) > 0.9


def test_scores_undo_the_order_and_measure_in_sigma():
    truth = sim.mixture(10, 3, 9.0, 2, scales=(1, 1, 3), weights=(0.2, 0.3, 0.5))
    rows, labels = sim.sample(truth, 500, 2)
    turn = np.array([2, 0, 1])
    shifted = truth.means + np.array([0.1, 0.1, 0.6])[:, None] * np.eye(10)[0]
    found = sim.scores(
        truth,
        shifted[turn],
        weights=truth.weights[turn] + [0, 0.01, 0],
        covariances=1.05 * truth.covariances[turn],
        rows=rows,
        labels=labels,
    )
    assert found.mean_errors == pytest.approx([0.1, 0.1, 0.2])
    assert found.weight_error == pytest.approx(0.01) and found.trace_error == pytest.approx(0.05)
    assert found.accuracy == np.mean(np.argmin(((rows[:, None] - shifted) ** 2).sum(axis=2), axis=1) == labels)


@pytest.mark.parametrize("bad", [{"weights": (0.5, 0.6)}, {"scales": (1,)}, {"axis_spread": (0, 1)}, {"weights": (1,)}])
def test_mixtures_that_cannot_be_are_refused(bad):
    with pytest.raises(ConfigError):
        sim.mixture(3, 2, 5.0, 1, **bad)
    with pytest.raises(ConfigError):
        sim.mixture(1, 3, 5.0, 1)
    with pytest.raises(ConfigError):
        sim.structureless("moons", 3, 10, 1)
