"""The baselines against slow versions, one client after the other."""

import numpy as np
import pytest
from fedcore.papers.fedgrem.simulation import errors, misclustered, simulated_clients
from scipy.stats import multivariate_normal, norm

from fedcore.methods.mixture_models import GaussianMixture
from tests.papers.fedgrem.run_in_memory import block_of, run

FAST = {"starts": 3, "start_steps": 10}


def tasks_of(model="gaussian", **options):
    sizes = np.array([150, 80, 200, 150, 120, 150])
    return simulated_clients(0, model=model, clients=6, h=1.0, **{"rows": sizes, **options})


def clients_of(block):
    return [block.x[a:b] for a, b in zip(block.ptr[:-1], block.ptr[1:], strict=True)]


def responsibilities(x, theta, w):
    g = w * np.exp(-0.5 * ((x[:, None] - theta) ** 2).sum(axis=2))
    return g / g.sum(axis=1, keepdims=True)


def lines(x, y, theta, w):
    g = w * np.exp(-0.5 * (y[:, None] - x @ theta.T) ** 2)
    return g / g.sum(axis=1, keepdims=True)


def starts_of(block, **settings):
    memory = run(block, algorithm="local-fit", **FAST, **settings).memory
    return memory["theta"].copy(), memory["w"].copy()


def test_local_em_and_local_gradient_em():
    block = block_of(tasks_of().rows)
    theta, w = starts_of(block)
    for k, x in enumerate(clients_of(block)):
        for _ in range(7):
            g = responsibilities(x, theta[k], w[k])
            w[k], theta[k] = g.mean(axis=0), (g.T @ x) / g.sum(axis=0)[:, None]
    out = run(block, algorithm="local-em", rounds=7, **FAST).outputs()
    np.testing.assert_allclose(out["centres"], theta, atol=1e-8)
    np.testing.assert_allclose(out["weights"], w, atol=1e-9)
    theta, w = starts_of(block)
    for k, x in enumerate(clients_of(block)):
        for _ in range(7):
            g = responsibilities(x, theta[k], w[k])
            w[k], theta[k] = g.mean(axis=0), theta[k] + 0.1 * np.einsum("ir,irp->rp", g, x[:, None] - theta[k]) / len(x)
    out = run(block, algorithm="local-grem", rounds=7, **FAST).outputs()
    np.testing.assert_allclose(out["centres"], theta, atol=1e-8)


@pytest.mark.parametrize("average", ["rows", "clients"])
def test_fedem(average):
    block = block_of(tasks_of().rows)
    theta, w = starts_of(block)
    rows = clients_of(block)
    for _ in range(6):
        means = []
        for k, x in enumerate(rows):
            g = responsibilities(x, theta[k], w[k])
            w[k] = g.mean(axis=0)
            means.append((g.T @ x) / g.sum(axis=0)[:, None])
        theta[:] = np.average(means, axis=0, weights=[len(x) for x in rows] if average == "rows" else None)
    ran = run(block, algorithm="fedem", average=average, rounds=6, **FAST)
    np.testing.assert_allclose(ran.outputs()["centres"], theta, atol=1e-8)
    np.testing.assert_allclose(ran.outputs()["weights"], w, atol=1e-9)


def test_fedem_of_regressions():
    block = block_of(tasks_of("regression").rows)
    theta, w = starts_of(block, model="regression")
    rows = clients_of(block)
    for _ in range(4):
        found = []
        for k, own in enumerate(rows):
            x, y = own[:, :-1], own[:, -1]
            g = lines(x, y, theta[k], w[k])
            w[k] = g.mean(axis=0)
            found.append(
                [
                    np.linalg.solve(
                        (g[:, r, None] * x).T @ x + 1e-5 * np.eye(10), (g[:, r] * y) @ x + 1e-5 * theta[k, r]
                    )
                    for r in range(5)
                ]
            )
        theta[:] = np.average(found, axis=0, weights=[len(own) for own in rows])
    out = run(block, model="regression", algorithm="fedem", rounds=4, **FAST).outputs()
    np.testing.assert_allclose(out["centres"], theta, atol=1e-6)


@pytest.mark.parametrize("model", ["gaussian", "regression"])
def test_one_m_step_on_the_rows_of_all(model):
    block = block_of(tasks_of(model).rows)
    theta, w = starts_of(block, model=model)
    rows = clients_of(block)
    for _ in range(4):
        mass, first, second = np.zeros(5), np.zeros((5, 10)), np.zeros((5, 10, 10))
        for k, own in enumerate(rows):
            x, y = (own, None) if model == "gaussian" else (own[:, :-1], own[:, -1])
            g = responsibilities(x, theta[k], w[k]) if y is None else lines(x, y, theta[k], w[k])
            w[k] = g.mean(axis=0)
            mass += g.sum(axis=0)
            first += g.T @ x if y is None else (g * y[:, None]).T @ x
            second += np.einsum("ir,ip,iq->rpq", g, x, x)
        theta[:] = first / mass[:, None] if model == "gaussian" else np.linalg.solve(second, first[..., None])[..., 0]
    out = run(block, model=model, algorithm="fedem-w", rounds=4, **FAST).outputs()
    np.testing.assert_allclose(out["centres"], theta, atol=1e-4)


def test_tgmm():
    block = block_of(tasks_of().rows)
    theta, w = starts_of(block)
    first = theta.copy()
    for k, x in enumerate(clients_of(block)):
        others = first.sum(axis=0) - first[k]
        for _ in range(5):
            g = responsibilities(x, theta[k], w[k])
            w[k], s = g.mean(axis=0), g.sum(axis=0)[:, None]
            theta[k] = (g.T @ x + 0.4 * s * others) / (s * (1 + 0.4 * 5))
    out = run(block, algorithm="tgmm", rounds=5, **FAST).outputs()
    np.testing.assert_allclose(out["centres"], theta, atol=1e-8)
    np.testing.assert_allclose(out["weights"], w, atol=1e-9)


def test_pooled_em_is_em_of_the_shared_model():
    block = block_of(tasks_of().rows)
    ran = run(block, algorithm="pooled-em", rounds=6, **FAST)
    model = GaussianMixture(5, 10, "tied", lam=1e-3)
    start = run(block, algorithm="pooled-em", rounds=1, **FAST)
    theta = {"weights": start.state.weights, "means": start.state.centres, "covariances": start.state.pooled_covariance}
    for _ in range(5):
        theta = model.maximise(model.e_total(theta, block.x) / len(block.x))
    np.testing.assert_allclose(ran.state.centres, theta["means"], atol=1e-8)
    np.testing.assert_allclose(ran.state.pooled_covariance, theta["covariances"], atol=1e-8)
    out = ran.outputs()
    labels = model.personalise(theta, block.x)["responsibilities"].argmax(axis=1)
    assert np.array_equal(out["labels"][0, :150], labels[:150]) and np.array_equal(out["centres"][0], out["centres"][5])
    fit = ran.column("log_likelihood")
    assert (np.diff(fit) > -1e-3).all()


def test_pooled_gradient_em():
    block = block_of(tasks_of().rows)
    theta, _ = starts_of(block)
    v, w = theta[0], np.full(5, 0.2)
    for _ in range(5):
        g = responsibilities(block.x, v, w)
        w, v = g.mean(axis=0), v + 0.1 * np.einsum("ir,irp->rp", g, block.x[:, None] - v) / len(block.x)
    ran = run(block, algorithm="pooled-grem", rounds=5, **FAST)
    np.testing.assert_allclose(ran.state.centres, v, atol=1e-8)
    np.testing.assert_allclose(ran.outputs()["weights"][3], w, atol=1e-9)


def test_fedgmm():
    """Two rounds of Wu et al. with one covariance, client by client."""
    block = block_of(tasks_of("regression").rows)
    theta, w = starts_of(block, model="regression")
    joint = np.repeat(w[:, None], 3, axis=1) / 3
    mu, sigma = np.zeros((3, 10)), np.eye(10)
    mu[0, 0], mu[1, 0], mu[2, 1] = 0.5, -0.5, 0.5
    rows = clients_of(block)
    for _ in range(2):
        sums, mass, found, within = np.zeros((3, 10)), np.zeros(3), [], []
        for k, own in enumerate(rows):
            x, y = own[:, :-1], own[:, -1]
            inputs = np.stack([multivariate_normal.pdf(x, mu[a], sigma) for a in range(3)], axis=1)
            g = inputs[:, :, None] * norm.pdf(y[:, None] - x @ theta[k].T)[:, None] * joint[k]
            g /= g.sum(axis=(1, 2), keepdims=True)
            joint[k] = g.mean(axis=0)
            own_sums, own_mass = g.sum(axis=2).T @ x, g.sum(axis=(0, 2))
            sums, mass = sums + own_sums, mass + own_mass
            within.append((x.T @ x - own_sums.T @ (own_sums / own_mass[:, None])) / len(x))
            q = g.sum(axis=1)
            found.append(
                [np.linalg.solve((q[:, r, None] * x).T @ x + 1e-5 * np.eye(10), (q[:, r] * y) @ x) for r in range(5)]
            )
        sizes = [len(own) for own in rows]
        theta[:] = np.average(found, axis=0, weights=sizes)
        mu, sigma = sums / mass[:, None], np.average(within, axis=0, weights=sizes) + 1e-6 * np.eye(10)
    ran = run(block, model="regression", algorithm="fedgmm", rounds=2, **FAST)
    np.testing.assert_allclose(ran.state.centres, theta[0], atol=1e-6)
    np.testing.assert_allclose(ran.state.covariate_means, mu, atol=1e-6)
    np.testing.assert_allclose(ran.outputs()["weights"], joint.sum(axis=1), atol=1e-7)


def test_local_fits_label_by_their_own_covariance():
    tasks = simulated_clients(0, clients=4, outliers=0, rows=300)
    stretch = np.array([5.0] + [1.0] * 9)
    block = block_of([rows * stretch for rows in tasks.rows])
    out = run(block, algorithm="local-fit").outputs()
    assert errors(out["centres"] / stretch, tasks.theta, tasks.inlier).rms < 0.6
    wrong = sum(misclustered(out["labels"][k, :300], tasks.labels[k], 5) for k in range(4))
    best = run(block_of(tasks.rows), algorithm="local-em", rounds=50).outputs()["labels"]
    assert wrong <= 1.5 * sum(misclustered(best[k, :300], tasks.labels[k], 5) for k in range(4)) + 10
