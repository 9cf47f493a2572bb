"""What every model of the room owes to EM (`fedcore.methods.mixture_models.contract`)."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp

from fedcore.errors import ConfigError
from tests.mixture_models.cases import MAKERS, case, directions, moved
from tests.mixture_models.natural import natural

ALL = sorted(MAKERS)
each_model = pytest.mark.parametrize("name", ALL)


def difference(a, b) -> float:
    return max(float(np.max(np.abs(a[key] - b[key]))) for key in a)


def ragged(c, sizes):
    """ptr over the rows of the arrays for clients of so many observations."""
    return np.concatenate([[0], np.cumsum(sizes)]) * c.each


def sizes_of(c):
    return [0, 1, 3, c.observations - 4, 0]


@each_model
def test_maximise_inverts_statistic_of(name):
    c = case(name)
    again = c.model.maximise(c.model.statistic_of(c.theta))
    assert again.keys() == c.theta.keys()
    assert difference(again, c.theta) < 1e-10
    assert c.model.admissible(c.model.statistic_of(c.theta))


@each_model
def test_fisher_identity(name):
    """grad F = -J_phi' s_bar + grad psi + grad R, along random directions, by central differences."""
    c, rng = case(name), np.random.default_rng(11)
    s = c.model.e_total(c.theta, c.y) / c.observations
    for _ in range(3):
        direction, step = directions(c, rng), 1e-5
        up, down = moved(c.theta, direction, step), moved(c.theta, direction, -step)
        (phi_up, psi_up), (phi_down, psi_down) = natural(c.model, up), natural(c.model, down)
        right = -(phi_up - phi_down) @ s + psi_up - psi_down + c.model.penalty(up) - c.model.penalty(down)
        left = c.objective(up) - c.objective(down)
        assert left / (2 * step) == pytest.approx(right / (2 * step), rel=2e-6, abs=2e-6)


@each_model
def test_an_em_step_descends_to_a_fixed_point(name):
    c = case(name)
    theta, values = c.theta, [c.objective(c.theta)]
    for _ in range(5):
        theta = c.model.maximise(c.model.e_total(theta, c.y) / c.observations, theta)
        values.append(c.objective(theta))
    assert np.all(np.diff(values) <= 1e-12)
    assert values[-1] < values[0] - 1e-4


@each_model
def test_maximise_minimises_the_surrogate(name):
    """psi + R - <s, phi> at T(s) is no larger than anywhere near it."""
    c, rng = case(name), np.random.default_rng(12)
    s = c.model.e_total(c.theta, c.y) / c.observations
    best = c.model.maximise(s)

    def surrogate(theta):
        phi, psi = natural(c.model, theta)
        return psi + c.model.penalty(theta) - s @ phi

    for _ in range(5):
        for scale in (1e-3, 1e-1):
            direction = directions(c, rng)
            if name == "ppca":  # stay among covariances of that form
                direction["covariance"] = direction["covariance"] * 0 + np.eye(4) * 0.1 * rng.standard_normal()
            try:
                assert surrogate(moved(best, direction, scale)) > surrogate(best)
            except np.linalg.LinAlgError:
                continue  # left the positive definite cone


@each_model
def test_mean_is_the_mean_of_single_rows(name):
    c = case(name)
    sizes = sizes_of(c)
    mean = c.model.e_mean(c.theta, c.y, ragged(c, sizes))
    assert mean.shape == (len(sizes), c.model.q)
    alone = c.model.e_mean(c.theta, c.y, np.arange(c.observations + 1) * c.each)
    ends = np.cumsum(sizes)
    for client, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        expected = alone[end - size : end].mean(axis=0) if size else np.zeros(c.model.q)
        np.testing.assert_allclose(mean[client], expected, atol=1e-12)


@each_model
def test_total_is_the_weighted_sum(name):
    c, rng = case(name), np.random.default_rng(13)
    n = c.observations
    rows = c.model.e_mean(c.theta, c.y, np.arange(n + 1) * c.each)
    weights = rng.random(n)
    np.testing.assert_allclose(c.model.e_total(c.theta, c.y), rows.sum(axis=0), atol=1e-10)
    np.testing.assert_allclose(c.model.e_total(c.theta, c.y, weights), weights @ rows, atol=1e-10)
    ptr = ragged(c, sizes_of(c))
    means = c.model.e_mean(c.theta, c.y, ptr)
    np.testing.assert_allclose(np.array(sizes_of(c)) @ means, rows.sum(axis=0), atol=1e-10)
    sizes = sizes_of(c)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    weights[owner == owner[-1]] = 0.0  # as if this client had no rows
    totals = np.bincount(owner, weights, len(sizes))
    expected = np.array([weights[owner == i] @ rows[owner == i] for i in range(len(sizes))])
    weighted = c.model.e_mean(c.theta, c.y, ptr, weights)
    np.testing.assert_allclose(weighted, expected / np.where(totals > 0, totals, 1.0)[:, None], atol=1e-12)
    assert not weighted[owner[-1]].any()


@each_model
def test_gradient_of_the_lyapunov_function(name):
    """W = F o T: grad W(s) = -B h with B = d(phi o T)/ds, along random directions."""
    c, rng = case(name), np.random.default_rng(14)
    s = (
        c.model.statistic_of(c.theta)
        if name.startswith("tables")
        else (0.5 * c.model.statistic_of(c.theta) + 0.5 * c.model.e_total(c.theta, c.y) / c.observations)
    )
    if name.startswith("tables"):
        # inside a region of constant rank the nuclear norm is smooth along T
        s = s + 0.01 * rng.standard_normal(s.shape)
    theta = c.model.maximise(s)
    h = c.model.e_total(theta, c.y) / c.observations - s
    step = 1e-5
    for _ in range(3):
        u = rng.standard_normal(c.model.q)
        up, down = c.model.maximise(s + step * u, theta), c.model.maximise(s - step * u, theta)
        bend = (natural(c.model, up)[0] - natural(c.model, down)[0]) / (2 * step)
        slope = (c.objective(up) - c.objective(down)) / (2 * step)
        assert slope == pytest.approx(-bend @ h, rel=5e-5, abs=1e-5)


@each_model
def test_blocks_cover_the_statistic_once(name):
    model = case(name).model
    covered = np.concatenate([np.arange(model.q)[block] for block in model.blocks])
    assert np.array_equal(covered, np.arange(model.q))


@each_model
def test_nobody_and_one_row(name):
    c = case(name)
    none = c.y[:0]
    assert np.array_equal(c.model.e_total(c.theta, none), np.zeros(c.model.q))
    assert np.array_equal(c.model.e_mean(c.theta, none, np.zeros(4, np.int64)), np.zeros((3, c.model.q)))
    assert c.model.log_likelihood(c.theta, none).shape == (0,)
    one = c.y[: c.each]
    total = c.model.e_total(c.theta, one)
    np.testing.assert_allclose(c.model.e_mean(c.theta, one, np.array([0, 0, c.each]))[1], total, atol=1e-12)
    for array in c.model.personalise(c.theta, one).values():
        assert len(array) == c.each


@each_model
def test_the_answer_does_not_depend_on_the_tile(name, monkeypatch):
    c = case(name)
    ptr = ragged(c, sizes_of(c))
    before = c.model.e_mean(c.theta, c.y, ptr), c.model.e_total(c.theta, c.y), c.model.log_likelihood(c.theta, c.y)
    monkeypatch.setattr(type(c.model), "_tile", lambda *_: 4, raising=False)
    monkeypatch.setattr("fedcore.methods.mixture_models.low_rank_tables.TILE_NUMBERS", 40)
    after = c.model.e_mean(c.theta, c.y, ptr), c.model.e_total(c.theta, c.y), c.model.log_likelihood(c.theta, c.y)
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-11)


@each_model
def test_float32_rows_are_computed_in_float64(name):
    c = case(name)
    narrow = c.y.astype(np.float32)
    wide = narrow.astype(np.float64)
    got, expected = c.model.e_total(c.theta, narrow), c.model.e_total(c.theta, wide)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, expected, rtol=1e-14, atol=1e-13)


@each_model
def test_theta_is_checked(name):
    c = case(name)
    checked = c.model.check_theta({key: value.astype(np.float32) for key, value in c.theta.items()})
    assert all(array.dtype == np.float64 for array in checked.values())
    for key, value in c.theta.items():
        with pytest.raises(ConfigError):
            c.model.check_theta({k: v for k, v in c.theta.items() if k != key})
        with pytest.raises(ConfigError):
            c.model.check_theta(c.theta | {key: value[..., None]})
        with pytest.raises(ConfigError):
            c.model.check_theta(c.theta | {key: value * np.nan})


@each_model
def test_a_statistic_that_is_not_finite(name):
    c = case(name)
    s = c.model.statistic_of(c.theta)
    s[-1] = np.nan
    assert not c.model.admissible(s)
    with pytest.raises(ValueError, match="finite"):
        c.model.maximise(s)


@pytest.mark.parametrize("name", [name for name in ALL if not name.startswith(("tables-gaussian",))])
def test_outside_the_domain_theta_stays_finite(name):
    """The floors are the last defence: whatever arrives, T gives a theta that can be evaluated."""
    c, rng = case(name), np.random.default_rng(15)
    refused = 0
    for scale in (0.0, 0.1, 1.0, 10.0):
        for _ in range(5):
            s = rng.normal(0, scale, c.model.q) - scale
            theta = c.model.maximise(s)
            refused += not c.model.admissible(s)
            assert all(np.isfinite(value).all() for value in theta.values())
            assert np.isfinite(c.model.log_likelihood(theta, c.y)).all()
            assert np.isfinite(c.model.e_total(theta, c.y)).all()
    assert refused >= 10


@each_model
def test_a_model_travels(name):
    """Workers get it on the wire; it answers with the same bits there, and did not remember anything."""
    c = case(name)
    again = pickle.loads(pickle.dumps(c.model))
    assert np.array_equal(again.e_total(c.theta, c.y), c.model.e_total(c.theta, c.y))


@each_model
def test_rows_are_accepted(name):
    c = case(name)
    c.model.check_rows(c.y)


@pytest.mark.parametrize("name", [name for name in ALL if name.endswith("-csr")])
def test_csr_equals_dense(name):
    c = case(name)
    assert sp.issparse(c.y)
    dense = c.y.toarray()
    ptr = ragged(c, sizes_of(c))
    np.testing.assert_allclose(c.model.e_mean(c.theta, c.y, ptr), c.model.e_mean(c.theta, dense, ptr), atol=1e-13)
    np.testing.assert_allclose(c.model.log_likelihood(c.theta, c.y), c.model.log_likelihood(c.theta, dense), atol=1e-12)
    got, expected = c.model.personalise(c.theta, c.y), c.model.personalise(c.theta, dense)
    np.testing.assert_allclose(got["responsibilities"], expected["responsibilities"], atol=1e-13)


@pytest.mark.parametrize("weighted", [False, True])
@each_model
def test_statistics_and_likelihoods_of_one_pass_are_those_of_several(name, weighted):
    c, rng = case(name), np.random.default_rng(14)
    weights = rng.uniform(0.1, 2, c.observations) if weighted else None
    other = c.model.maximise(c.model.e_total(c.theta, c.y) / c.observations)
    thetas = [c.theta, other, c.theta]
    found = c.model.e_totals_and_log_likelihoods(thetas, c.y, weights)
    for total, values, theta in zip(*found, thetas, strict=True):
        assert total.tobytes() == c.model.e_total(theta, c.y, weights).tobytes()
        assert values.tobytes() == c.model.log_likelihood(theta, c.y).tobytes()
