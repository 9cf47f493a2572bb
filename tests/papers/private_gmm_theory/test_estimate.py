"""One Gaussian: PSGE and PGE; sums over pairs of records and the slip of pairing what survives a filter."""

import math

import numpy as np
import pytest
from fedcore.papers.private_gmm import simulation as sim
from fedcore.papers.private_gmm.theory import estimate as est
from fedcore.papers.private_gmm.theory.mechanisms import (
    Ball,
    clipped,
    only,
    principal_components,
    second_moment,
    within,
)
from hypothesis import given, settings
from hypothesis import strategies as st


@st.composite
def neighbours(draw):
    """Rows, the same without one record, and a ball; rows at, inside and far beyond its edge."""
    n, d, seed = draw(st.integers(1, 12)), draw(st.integers(1, 4)), draw(st.integers(0, 10**6))
    rng = np.random.default_rng(seed)
    ball = Ball(rng.standard_normal(d), float(rng.uniform(0.1, 3)))
    directions = rng.standard_normal((n, d))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    rows = ball.centre + directions * ball.radius * rng.choice([0.0, 0.3, 1.0, 1.5, 1e6], (n, 1))
    fewer = rows.copy()
    fewer[draw(st.integers(0, n - 1))] = draw(st.sampled_from([np.nan, np.inf]))
    return rows, fewer, ball


@settings(max_examples=80, deadline=None)
@given(neighbours())
def test_one_record_moves_every_statistic_by_its_sensitivity(data):
    rows, fewer, ball = data
    r = ball.radius * (1 + 1e-9)
    upper = np.triu_indices(rows.shape[1])
    kept = [only(x, within(x, ball)) for x in (rows, fewer)]
    assert np.linalg.norm(clipped(rows, ball).sum(axis=0) - clipped(fewer, ball).sum(axis=0)) <= r + 1e-9
    moment = second_moment(rows, ball) - second_moment(fewer, ball)
    assert np.linalg.norm(moment) <= r**2 + 1e-9 and np.linalg.norm(moment[upper]) <= np.linalg.norm(moment) + 1e-9
    assert abs(est.paired_sum(kept[0]) - est.paired_sum(kept[1])) <= 4 * r**2 + 1e-9
    a, b = (est.pair_differences(x) for x in kept)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    assert (~same.all(axis=1)).sum() <= 1


def test_pairs_of_survivors_have_no_bounded_sensitivity():
    """Slip S2: rows in equal pairs; without the first record every later pair is of unlike rows."""
    ball = Ball(np.zeros(1), 1.0)
    rows = np.repeat(np.tile([1.0, -1.0], 50), 2)[:, None]
    fewer = rows.copy()
    fewer[0] = np.nan

    def by_position(x):
        y = clipped(only(x, within(x, ball)), ball)
        return float(((y[0 : len(y) // 2 * 2 : 2] - y[1 : len(y) // 2 * 2 : 2]) ** 2).sum())

    assert abs(by_position(rows) - by_position(fewer)) == pytest.approx(4 * 99)  # 99 times what one pair can do
    assert abs(est.paired_sum(rows) - est.paired_sum(fewer)) <= 4


def test_second_moment_is_centred_and_clipped_at_the_node():
    """Slip S3: about the origin the same ball would need (|p| + r)^2."""
    ball = Ball(np.full(3, 1000.0), 1.0)
    rows = ball.centre + np.eye(3)
    assert second_moment(rows, ball) == pytest.approx(np.eye(3))
    basis = principal_components(
        ball.centre + np.array([[1.0, 0, 0]] * 500 + [[0, 0.1, 0]] * 9), ball, 1, 50.0, 1e-6, np.random.default_rng(0)
    )
    assert abs(basis[0, 0]) > 0.99 and basis.shape == (3, 1)


@pytest.mark.parametrize("paired", [True, False])
def test_spherical_component(paired):
    rng = np.random.default_rng(0)
    rows = 5 + 2 * rng.standard_normal((4000, 10))
    found = est.spherical(rows, Ball(np.full(10, 5.5), 14.0), 50.0, 1e-6, rng, paired=paired)
    assert found.rows == pytest.approx(4000, abs=5)
    assert np.linalg.norm(found.mean - 5) < 0.3
    assert found.covariance == pytest.approx(found.covariance[0, 0] * np.eye(10))
    assert found.covariance[0, 0] == pytest.approx(4.0, rel=0.05)
    some = only(rows, np.arange(4000) % 3 == 0)  # no pair of records is whole
    assert est.spherical(some, Ball(np.full(10, 5.5), 14.0), 50.0, 1e-6, np.random.default_rng(0), paired=False)
    assert est.spherical(np.full((6, 10), np.nan), Ball(np.zeros(10), 1.0), 50.0, 1e-6, rng, paired=paired) is None


def turned(d, low, high, seed):
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return (rotation * np.geomspace(low, high, d)) @ rotation.T  # a root of the covariance


def whitened_errors(found, mean, root):
    back = np.linalg.inv(root)
    return (
        np.linalg.norm(back @ (found.mean - mean)),
        np.linalg.norm(back @ found.covariance @ back.T - np.eye(len(root))),
    )


def test_pge_learns_ill_conditioned_gaussians_far_from_the_origin():
    d, n, root = 6, 20_000, turned(6, 0.1, 30.0, 1)
    mean = np.full(d, 500.0)
    rows = mean + np.random.default_rng(2).standard_normal((n, d)) @ root.T
    sampling = math.sqrt(d / n), math.sqrt(d * (d + 1) / n)
    found = est.gaussian(rows, 0.1, 30.0, 20.0, 1e-6, np.random.default_rng(3))
    errors = whitened_errors(found, mean, root)
    assert errors[0] < 5 * sampling[0] and errors[1] < 10 * sampling[1]


def test_preconditioner_narrows_the_ratio_of_variances():
    d, root = 6, turned(6, 1.0, 30.0, 1)
    rows = np.random.default_rng(2).standard_normal((20_000, d)) @ root.T
    matrix, kappa = est.precondition(rows, 900.0, 20_000, 5.0, np.random.default_rng(3))
    values = np.linalg.eigvalsh(matrix @ root @ root.T @ matrix.T)
    assert kappa <= est.PRECONDITIONED and values.max() < 2 * kappa and values.max() / values.min() < 30
    assert est.precondition_rounds(900.0) == math.ceil(math.log(90) / -math.log(0.7))
    assert est.precondition_rounds(5.0) == 0


def test_few_rows_and_unfound_bins_give_nothing():
    rng = np.random.default_rng(0)
    assert est.gaussian(np.full((10, 2), np.nan), 1.0, 1.0, 1.0, 1e-6, rng) is None
    assert est.gaussian(rng.standard_normal((30, 2)), 1.0, 2.0, 0.5, 1e-6, rng) is None


def test_norm_quantile_covers():
    norms = np.linalg.norm(np.random.default_rng(0).standard_normal((20_000, 15)), axis=1)
    for beta in (0.1, 0.01):
        assert np.mean(norms > est.norm_quantile(15, beta)) <= beta


def test_inputs_are_left_alone():
    truth = sim.mixture(3, 1, 1.0, 1)
    rows, _ = sim.sample(truth, 300, 1)
    before = rows.copy()
    est.gaussian(rows, 0.5, 2.0, 50.0, 1e-6, np.random.default_rng(0))
    assert np.array_equal(rows, before)
