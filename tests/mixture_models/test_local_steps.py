"""Vectorised E- and M-steps against one client at a time, and the local starts."""

import numpy as np
import pytest
from fedcore.papers.fedgrem.simulation import errors, simulated_clients
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from fedcore.methods.mixture_models import GaussianMixture, tiles
from fedcore.methods.mixture_models.local_fits import local_fits
from fedcore.methods.mixture_models.local_steps import Rows, e_step, full_m_step, largest_curvature, posteriors

SIZES = (0, 3, 50, 50, 1, 0, 17, 400, 50, 18, 19)


def ragged(seed=0, regression=False, sizes=SIZES, p=3, components=4):
    generator = np.random.default_rng(seed)
    ptr = np.concatenate([[0], np.cumsum(sizes)])
    x = 2.0 * generator.normal(size=(ptr[-1], p))
    y = generator.normal(size=ptr[-1]) * 3 if regression else None
    theta = generator.normal(size=(len(sizes), components, p)) * 2
    return Rows(x, y, ptr), theta, generator.dirichlet(np.full(components, 3.0), len(sizes))


def by_hand(x, y, theta, w):
    """One client: responsibilities and log-likelihood."""
    if y is None:
        logs = np.stack([np.log(w[r]) + multivariate_normal.logpdf(x, theta[r]) for r in range(len(w))])
    else:
        logs = np.log(w)[:, None] - 0.5 * (y - theta @ x.T) ** 2 - 0.5 * np.log(2 * np.pi)
    logs = logs.reshape(len(w), len(x))
    return np.exp(logs - logsumexp(logs, axis=0)), logsumexp(logs, axis=0).sum()


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("numbers", [40, 1_000_000])
def test_equals_one_client_at_a_time(regression, numbers, monkeypatch):
    """Also when clients are larger than a stack."""
    monkeypatch.setattr(tiles, "STACK_NUMBERS", numbers)
    rows, theta, w = ragged(regression=regression)
    sums = e_step(rows, theta, w, second=True)
    full, g_all = full_m_step(theta, sums), posteriors(rows, theta, w)
    for k, (low, high) in enumerate(zip(rows.ptr[:-1], rows.ptr[1:], strict=True)):
        x, y = rows.x[low:high], None if rows.y is None else rows.y[low:high]
        if not len(x):
            assert not sums.mass[k].any() and not sums.gradient[k].any() and np.allclose(full[k], theta[k])
            continue
        g, fit = by_hand(x, y, theta[k], w[k])
        np.testing.assert_allclose(g_all[low:high], g.T, atol=1e-12)
        np.testing.assert_allclose(sums.mass[k], g.sum(axis=1), rtol=1e-11)
        np.testing.assert_allclose(sums.log_likelihood[k], fit, rtol=1e-11)
        for r in range(len(w[k])):
            if y is None:
                slope = (g[r][:, None] * (x - theta[k, r])).sum(axis=0)
                np.testing.assert_allclose(full[k, r], g[r] @ x / g[r].sum(), atol=1e-9)
            else:
                slope = (g[r] * (y - x @ theta[k, r])) @ x
                matrix = (g[r][:, None] * x).T @ x
                np.testing.assert_allclose(sums.second[k, r], matrix, rtol=1e-10, atol=1e-12)
                if len(x) > 30:
                    solved = np.linalg.solve(matrix, (g[r] * y) @ x)
                    np.testing.assert_allclose(full[k, r], solved, rtol=1e-3, atol=1e-3)
            np.testing.assert_allclose(sums.gradient[k, r], slope, rtol=1e-9, atol=1e-10)


def test_agrees_with_the_shared_model():
    """One client: the model `known` of fedcore.methods.mixture_models."""
    rows, theta, w = ragged(sizes=(300,))
    model = GaussianMixture(4, 3, "known")
    parameters = {"weights": w[0], "means": theta[0]}
    counts, first = model.layout.unpack(model.e_total(parameters, rows.x))
    sums = e_step(rows, theta, w)
    np.testing.assert_allclose(sums.mass[0], counts[:, 0], rtol=1e-12)
    np.testing.assert_allclose(sums.gradient[0] + sums.mass[0][:, None] * theta[0], first, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(sums.log_likelihood[0], model.log_likelihood(parameters, rows.x).sum(), rtol=1e-12)


def test_far_rows_keep_their_component():
    """Exponents that underflow without the log domain."""
    theta = np.array([[[0.0, 0.0], [300.0, 0.0]]])
    rows = Rows(np.array([[400.0, 900.0], [-200.0, 50.0]]), None, np.array([0, 2]))
    g = posteriors(rows, theta, np.array([[0.5, 0.5]]))
    np.testing.assert_allclose(g, [[0, 1], [1, 0]], atol=1e-12)


@pytest.mark.parametrize("regression", [False, True])
def test_the_scatter(regression):
    rows, theta, w = ragged(regression=regression)
    shares = np.random.default_rng(2).random(w.shape)
    sums, g = e_step(rows, theta, w, shares=shares), posteriors(rows, theta, w)
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    expected, mass = 0.0, 0.0
    for r in range(w.shape[1]):
        q = g[:, r] * shares[owner, r]
        if regression:
            expected = expected + np.array([[q @ (rows.y - (rows.x * theta[owner, r]).sum(axis=1)) ** 2]])
        else:
            d = rows.x - theta[owner, r]
            expected = expected + (d * q[:, None]).T @ d
        mass += q.sum()
    np.testing.assert_allclose(sums.scatter, expected, rtol=1e-9)
    assert sums.scatter_mass == pytest.approx(mass)


def test_clipped_gradients():
    rows, theta, w = ragged(sizes=(200,))
    g = posteriors(rows, theta, w)
    d = rows.x[:, None] - theta[0]
    norm = np.linalg.norm(d, axis=2)
    expected = (g[:, :, None] * d * np.minimum(1, 1.5 / norm)[:, :, None]).sum(axis=0)
    np.testing.assert_allclose(e_step(rows, theta, w, clip=1.5).gradient[0], expected, rtol=1e-10)
    far = Rows(np.vstack([rows.x, [[1e6, 0, 0]]]), None, np.array([0, 201]))
    moved = e_step(far, theta, w, clip=1.5).gradient - e_step(rows, theta, w, clip=1.5).gradient
    assert np.linalg.norm(moved, axis=2).sum() <= 1.5 * (1 + 1e-9), "a row moves the gradients by no more than the clip"


def test_the_largest_curvature():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(5, 3, 40, 6))
    second = x.transpose(0, 1, 3, 2) @ x
    exact = np.linalg.eigvalsh(second)[..., -1] / 40
    found = largest_curvature(second, np.full(5, 40.0))
    assert (found <= exact * (1 + 1e-12)).all() and (found >= 0.9 * exact).all()


def test_stacks_cover_every_row_once_with_little_padding(monkeypatch):
    monkeypatch.setattr(tiles, "STACK_NUMBERS", 5000)
    generator = np.random.default_rng(0)
    sizes = np.clip(np.exp(generator.normal(3.5, 1.2, 500)), 0, 900).astype(int)
    sizes[::50] = 0
    ptr = np.concatenate([[0], np.cumsum(sizes)])
    seen, padded, number = np.zeros(ptr[-1], int), 0, 0
    for stack in tiles.stacks(ptr, 10):
        rows = stack.take(np.arange(ptr[-1]))
        real = np.ones(stack.shape, bool) if stack.seen is None else stack.seen
        assert (np.searchsorted(ptr, rows, "right") - 1 == stack.clients[:, None]).all()
        np.add.at(seen, rows[real], 1)
        padded, number = padded + rows.size, number + 1
    assert (seen == 1).all() and padded < ptr[-1] / (1 - tiles.PADDING) and number < 250


# --- starts ---------------------------------------------------------------------------------------------------------


def test_local_fits_find_the_components():
    tasks = simulated_clients(0, clients=8, outliers=0, rows=300)
    x, sizes = np.concatenate(tasks.rows), [len(rows) for rows in tasks.rows]
    fits = local_fits(Rows(x, None, np.concatenate([[0], np.cumsum(sizes)])), 5, 0, 0)
    # about 60 rows of a cluster in 10 dimensions: sqrt(10 / 60) = 0.41, overlap makes it larger
    assert errors(fits.theta, tasks.theta, tasks.inlier).rms < 0.6
    assert errors(fits.w, tasks.w, tasks.inlier).largest < 0.1
    assert np.abs(fits.covariance - np.eye(10)).max() < 0.5


def test_a_client_is_fitted_as_if_alone():
    tasks = simulated_clients(1, clients=6, outliers=0, rows=np.array([150, 40, 9, 150, 33, 60]))
    x, sizes = np.concatenate(tasks.rows), [len(rows) for rows in tasks.rows]
    ptr = np.concatenate([[0], np.cumsum(sizes)])
    fits = local_fits(Rows(x, None, ptr), 5, 7, 100, starts=3)
    assert fits.fitted.tolist() == [True, True, False, True, True, True]
    for k in (0, 1, 4):
        own = local_fits(Rows(tasks.rows[k], None, np.array([0, sizes[k]])), 5, 7, 100 + k, starts=3)
        np.testing.assert_allclose(own.theta[0], fits.theta[k], atol=1e-6)
    assert not fits.theta[2].any()


def test_more_starts_are_never_less_likely():
    tasks = simulated_clients(2, clients=5, outliers=0)
    rows = Rows(np.concatenate(tasks.rows), None, np.arange(6) * 150)
    few = local_fits(rows, 5, 0, 0, starts=1, ward=False, steps=40)
    many = local_fits(rows, 5, 0, 0, starts=8, ward=True, steps=40)
    assert (many.log_likelihood >= few.log_likelihood - 1.0).all()
    assert many.log_likelihood.sum() > few.log_likelihood.sum() + 5.0


def test_regressions_of_well_separated_lines():
    centres = np.array([[8.0, 0.0], [-8.0, 0.0], [0.0, 8.0]])
    tasks = simulated_clients(0, model="regression", clients=4, outliers=0, rows=300, centres=centres)
    rows = np.concatenate(tasks.rows)
    fits = local_fits(Rows(rows[:, :-1], rows[:, -1], np.arange(5) * 300), 3, 0, 0, starts=20)
    assert errors(fits.theta, tasks.theta, tasks.inlier).largest < 0.6
    np.testing.assert_allclose(fits.covariance, 1.0, atol=0.5)


def test_a_large_client_is_fitted_on_some_rows():
    tasks = simulated_clients(0, clients=1, outliers=0, rows=5000)
    fits = local_fits(Rows(tasks.rows[0], None, np.array([0, 5000])), 5, 0, 0, starts=2)
    assert errors(fits.theta, tasks.theta, tasks.inlier).rms < 0.3
