"""Mixed-effects regressions: a round by hand, exact maximum likelihood, sums, hostile clients, degenerate rows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.stats import chi2, multivariate_normal

from fedcore.methods.mixed_effects.regression import (
    Common,
    Systems,
    first_common,
    next_common,
    own_fits,
    personal,
    posteriors,
    round_sums,
    systems,
)
from fedcore.methods.mixture_models import tiles
from fedcore.methods.mixture_models.local_steps import Rows


def rows_of(inputs: list[np.ndarray], responses: list[np.ndarray]) -> Rows:
    ptr = np.concatenate([[0], np.cumsum([len(x) for x in inputs])]).astype(np.int64)
    return Rows(np.concatenate(inputs).astype(float), np.concatenate(responses).astype(float), ptr)


def simulated(seed: int, clients: int = 60, p: int = 3, n: int = 12, noise: float = 1.0):
    """inputs, responses and coefficients of clients that scatter with covariance .2 I."""
    random = np.random.default_rng(seed)
    coefficients = random.normal(size=p) + np.sqrt(0.2) * random.normal(size=(clients, p))
    inputs = [random.normal(size=(n, p)) for _ in range(clients)]
    responses = [x @ b + noise * random.normal(size=n) for x, b in zip(inputs, coefficients, strict=True)]
    return inputs, responses, coefficients


def started(own: Systems) -> Common:
    fits = own_fits(own)
    return first_common(fits.coefficients, fits.variances, fits.sums)


def fitted(own: Systems, robust: bool = True, rounds: int = 100) -> Common:
    common = started(own)
    for _ in range(rounds):
        common = next_common(common, round_sums(own, posteriors(own, common, robust)))
    return common


def log_likelihood(inputs, responses, mean, between, noise) -> float:
    """Of the responses, by the density of each client's n_k numbers."""
    total = 0.0
    for x, y in zip(inputs, responses, strict=True):
        total += multivariate_normal.logpdf(y, x @ mean, x @ between @ x.T + noise * np.eye(len(y)))
    return total


def in_notation(own: Systems) -> tuple[np.ndarray, np.ndarray]:
    """G and h."""
    turned = own.root.transpose(0, 2, 1)
    return turned @ own.root, (turned @ own.target[:, :, None])[:, :, 0]


# --- one round --------------------------------------------------------------------------------------------------------


def test_a_round_worked_by_hand():
    """Two clients, one input of 1, two rows each; m = 4, D = 2, s2 = 4. G = 2, h = 4 and 12, C = (2/4 + 1/2)^-1 = 1,
    b = h/4 + 4/2 = 3 and 5; u = -4 and 4, d2 = 16 / (2 2 2 + 4 2) = 1; e = (4 + 0 + 2) / 8 and (1 + 9 + 2) / 8."""
    own = systems(rows_of([np.ones((2, 1))] * 2, [np.array([1.0, 3.0]), np.array([4.0, 8.0])]))
    gram, products = in_notation(own)
    assert_allclose(gram.ravel(), [2, 2])
    assert_allclose(products.ravel(), [4, 12])
    assert_allclose(own.rss, [2, 8])
    common = Common(np.array([4.0]), np.array([[2.0]]), 4.0, 1e-12)
    found = posteriors(own, common)
    assert_allclose(found.covariances.ravel(), [1, 1])
    assert_allclose(found.coefficients.ravel(), [3, 5])
    assert_allclose(found.distances, [1, 1])
    assert_allclose(found.noises, [0.75, 1.5])
    assert_allclose(found.shares, [1, 1])
    after = next_common(common, round_sums(own, found))
    assert_allclose(after.mean, [4])
    assert_allclose(after.between, [[2]])  # ((1 + 1) + (1 + 1)) / 2
    assert_allclose(after.noise, 4.5)  # 4 (2 .75 + 2 1.5) / 4


def test_the_start_worked_by_hand():
    """Own fits 2 and 6, but for the ridge; their median 4, MAD 2; residual variances 2 and 8, median 5."""
    own = systems(rows_of([np.ones((2, 1))] * 2, [np.array([1.0, 3.0]), np.array([4.0, 8.0])]))
    fits = own_fits(own)
    shrunk = 1 / (1 + 1e-3 / 2)
    assert_allclose(fits.coefficients.ravel(), [2 * shrunk, 6 * shrunk])
    assert_allclose(fits.variances, [2, 8])
    assert_allclose(fits.sums, [4, 90, 4, 2])
    common = started(own)
    assert_allclose(common.mean, [4 * shrunk])
    assert_allclose(common.between, [[(1.4826 * 2 * shrunk) ** 2]])
    assert_allclose(common.noise, 5)


def test_the_quantities_are_those_of_their_definitions():
    inputs, responses, _ = simulated(3, clients=4, p=3, n=7)
    own = systems(rows_of(inputs, responses))
    random = np.random.default_rng(4)
    half = random.normal(size=(3, 3))
    common = Common(random.normal(size=3), half @ half.T, 0.7, 1e-12)
    found = posteriors(own, common)
    gram, products = in_notation(own)
    for k, (x, y) in enumerate(zip(inputs, responses, strict=True)):
        assert_allclose(gram[k], x.T @ x, atol=1e-12)
        assert_allclose(products[k], x.T @ y, atol=1e-12)
        covariance = np.linalg.inv(x.T @ x / 0.7 + np.linalg.inv(common.between))
        b = covariance @ (x.T @ y / 0.7 + np.linalg.solve(common.between, common.mean))
        u = x.T @ (y - x @ common.mean)
        d2 = u @ np.linalg.solve(x.T @ x @ common.between @ x.T @ x + 0.7 * x.T @ x, u)
        e = (np.sum((y - x @ b) ** 2) + np.trace(covariance @ x.T @ x)) / (7 * 0.7)
        t = np.clip(2 - d2 / chi2.ppf(0.99, 3), 0, 1) * np.clip(2 - e / (1 + 3 * np.sqrt(2 / 7)), 0, 1)
        assert_allclose(found.covariances[k], covariance, rtol=1e-9)
        assert_allclose(found.coefficients[k], b, rtol=1e-9)
        assert_allclose([found.distances[k], found.noises[k], found.shares[k]], [d2, e, t], rtol=1e-9)
    expected = log_likelihood(inputs, responses, common.mean, common.between, 0.7)
    assert_allclose(found.log_likelihoods.sum(), expected, rtol=1e-12)


# --- sums -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 60])
def test_sums_do_not_depend_on_how_clients_are_cut(size: int):
    inputs, responses, _ = simulated(5)
    sizes = np.random.default_rng(6).integers(0, 13, 60)
    inputs = [x[:n] for x, n in zip(inputs, sizes, strict=True)]
    responses = [y[:n] for y, n in zip(responses, sizes, strict=True)]
    whole = systems(rows_of(inputs, responses))
    common = started(whole)
    expected = round_sums(whole, posteriors(whole, common))
    total = np.zeros_like(expected)
    for low in range(0, 60, size):
        part = systems(rows_of(inputs[low : low + size], responses[low : low + size]))
        total += round_sums(part, posteriors(part, common))
    assert_allclose(total, expected, rtol=1e-9, atol=1e-9)


def test_a_client_of_several_stacks_has_the_system_of_its_rows(monkeypatch: pytest.MonkeyPatch):
    inputs, responses, _ = simulated(7, clients=3, n=200)
    expected = systems(rows_of(inputs, responses))
    monkeypatch.setattr(tiles, "STACK_NUMBERS", 8 * 64)
    found = systems(rows_of(inputs, responses))
    for one, other in zip(in_notation(found), in_notation(expected), strict=True):
        assert_allclose(one, other, rtol=1e-10)
    assert_allclose(found.rss, expected.rss, rtol=1e-10)
    assert_allclose(found.n, expected.n)


def test_units_of_inputs_and_response_change_nothing():
    inputs, responses, _ = simulated(8)
    scale = np.array([1e3, 1.0, 1e-4])
    own = systems(rows_of(inputs, responses))
    other = systems(rows_of([x * scale for x in inputs], [50 * y for y in responses]))
    one, two = personal(own, fitted(own)), personal(other, fitted(other))
    assert_allclose(two.coefficients * scale / 50, one.coefficients, rtol=1e-6)
    assert_allclose(two.shares, one.shares, rtol=1e-6, atol=1e-9)


# --- maximum likelihood -----------------------------------------------------------------------------------------------


def test_without_robust_weights_it_is_maximum_likelihood():
    inputs, responses, _ = simulated(1, clients=40, p=2, n=12)
    own = systems(rows_of(inputs, responses))
    common = fitted(own, robust=False, rounds=200)

    def of(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        half = np.array([[numbers[2], 0.0], [numbers[3], numbers[4]]])
        return numbers[:2], half @ half.T, float(np.exp(numbers[5]))

    def lost(numbers: np.ndarray) -> float:
        mean, between, noise = of(numbers)
        total = 0.0
        for x, y in zip(inputs, responses, strict=True):
            covariance = x @ between @ x.T + noise * np.eye(len(y))
            left = y - x @ mean
            total += 0.5 * (np.linalg.slogdet(2 * np.pi * covariance)[1] + left @ np.linalg.solve(covariance, left))
        return total

    best = minimize(lost, [0.0, 0.0, 0.5, 0.0, 0.5, 0.0], method="BFGS", options={"gtol": 1e-4})
    mean, between, noise = of(best.x)
    found = log_likelihood(inputs, responses, common.mean, common.between, common.noise)
    assert found >= -best.fun - 1e-5
    assert_allclose(common.mean, mean, atol=1e-3)
    assert_allclose(common.between, between, atol=2e-3)
    assert_allclose(common.noise, noise, rtol=1e-3)


def test_without_robust_weights_the_likelihood_never_falls():
    inputs, responses, _ = simulated(2, n=4, noise=5.0)
    own = systems(rows_of(inputs, responses))
    common, values = started(own), []
    for _ in range(60):
        found = posteriors(own, common, robust=False)
        values.append(found.log_likelihoods.sum())
        common = next_common(common, round_sums(own, found))
    assert np.diff(values).min() > -1e-9 * abs(values[0])


# --- hostile clients --------------------------------------------------------------------------------------------------


def error(found: np.ndarray, truth: np.ndarray) -> float:
    return float(np.sqrt(np.mean((found - truth) ** 2)))


@pytest.mark.parametrize("kind", ["coefficients", "one coefficient", "noise", "alike"])
def test_a_third_of_hostile_clients_does_little(kind: str):
    """The honest clients' errors are at most 4 % above those of a fit without the hostile ones, and far below those
    of their own least squares."""
    random = np.random.default_rng(9)
    inputs, responses, truth = simulated(10, clients=200, p=5, n=15)
    hostile = 60
    alone = systems(rows_of(inputs[hostile:], responses[hostile:]))
    best = error(personal(alone, fitted(alone)).coefficients, truth[hostile:])
    own_error = error(own_fits(alone).coefficients, truth[hostile:])
    for k in range(hostile):
        if kind == "coefficients":
            responses[k] = inputs[k] @ (20 * random.normal(size=5)) + random.normal(size=15)
        elif kind == "one coefficient":
            responses[k] = responses[k] + inputs[k][:, 2] * 8 * random.choice([-1, 1])
        elif kind == "noise":
            responses[k] = responses[k] + 6 * random.normal(size=15)
        else:
            responses[k] = inputs[k] @ np.full(5, 12.0) + random.normal(size=15)
    own = systems(rows_of(inputs, responses))
    common = fitted(own)
    found = personal(own, common)
    assert error(found.coefficients[hostile:], truth[hostile:]) < 1.04 * best < 0.9 * own_error
    assert found.shares[:hostile].mean() < 0.1 < 0.9 < found.shares[hostile:].mean()
    if kind == "coefficients":  # its own rows decide about a client that is far out
        assert_allclose(found.coefficients[:hostile], own_fits(own).coefficients[:hostile], atol=1.5)


def test_clients_that_are_all_hostile_keep_their_own_fits():
    random = np.random.default_rng(11)
    inputs = [random.normal(size=(15, 3)) for _ in range(50)]
    responses = [
        x @ (10 * random.standard_cauchy(3)) + random.normal(size=15) * 10 ** random.uniform(-3, 3) for x in inputs
    ]
    own = systems(rows_of(inputs, responses))
    common = fitted(own)
    assert finite(common)
    found = personal(own, common)
    assert all(np.isfinite(part).all() for part in found)


def test_where_nobody_counts_nothing_moves():
    own = systems(rows_of([np.ones((3, 1))], [np.full(3, 1e6)]))
    common = Common(np.zeros(1), np.eye(1), 1.0, 1e-12)
    sums = round_sums(own, posteriors(own, common))
    assert sums[-3] == 0 and sums[-1] == 1
    assert next_common(common, sums) is common


# --- degenerate rows --------------------------------------------------------------------------------------------------


def finite(common: Common) -> bool:
    parts = (common.mean, common.between, common.noise)
    return all(np.isfinite(part).all() for part in parts) and np.linalg.eigvalsh(common.between)[0] > -1e-12


@pytest.mark.parametrize("robust", [True, False])
def test_fewer_rows_than_inputs(robust: bool):
    """Clients of one to three rows with five inputs have no fit of their own, and still find the common mean."""
    random = np.random.default_rng(12)
    inputs, responses, truth = simulated(13, clients=800, p=5, n=3, noise=0.5)
    sizes = random.integers(1, 4, 800)
    inputs = [x[:n] for x, n in zip(inputs, sizes, strict=True)]
    responses = [y[:n] for y, n in zip(responses, sizes, strict=True)]
    own = systems(rows_of(inputs, responses))
    common = fitted(own, robust)
    assert finite(common)
    assert error(common.mean, truth.mean(axis=0)) < 0.1
    found = personal(own, common, robust)
    assert error(found.coefficients, truth) < 0.95 * error(np.broadcast_to(truth.mean(axis=0), truth.shape), truth)


@pytest.mark.parametrize("robust", [True, False])
def test_one_row_clients(robust: bool):
    inputs, responses, truth = simulated(14, clients=2000, p=2, n=1, noise=0.5)
    own = systems(rows_of(inputs, responses))
    common = fitted(own, robust)
    assert finite(common)
    assert error(common.mean, truth.mean(axis=0)) < 0.1


@pytest.mark.parametrize("robust", [True, False])
def test_without_noise_clients_get_their_own_coefficients(robust: bool):
    inputs, responses, truth = simulated(15, noise=0.0)
    own = systems(rows_of(inputs, responses))
    common = fitted(own, robust)
    assert finite(common)
    assert_allclose(personal(own, common, robust).coefficients, truth, atol=1e-6)


@pytest.mark.parametrize("robust", [True, False])
def test_one_client_gets_its_least_squares(robust: bool):
    inputs, responses, _ = simulated(16, clients=1, n=20)
    own = systems(rows_of(inputs, responses))
    common = fitted(own, robust, rounds=400)
    expected = np.linalg.lstsq(inputs[0], responses[0], rcond=None)[0]
    assert_allclose(common.mean, expected, atol=1e-5)
    assert_allclose(personal(own, common, robust).coefficients[0], expected, atol=1e-5)


def test_clients_that_do_not_differ_get_the_pooled_fit():
    random = np.random.default_rng(17)
    inputs = [random.normal(size=(10, 3)) for _ in range(100)]
    responses = [x @ [1.0, -2.0, 0.5] + random.normal(size=10) for x in inputs]
    own = systems(rows_of(inputs, responses))
    common = fitted(own, rounds=300)
    pooled = np.linalg.lstsq(np.concatenate(inputs), np.concatenate(responses), rcond=None)[0]
    assert_allclose(common.mean, pooled, atol=0.02)
    assert np.trace(common.between) < 0.1  # three times the standard error of a trace that is 0


def test_nothing_varies_and_nobody_is_there():
    """A constant response of 0, an input that is always 0, one that is another's double, and a client without rows."""
    random = np.random.default_rng(18)
    inputs, responses, _ = simulated(19, clients=20)
    inputs = [np.column_stack([x, 2 * x[:, 0], np.zeros(len(x))]) for x in inputs]
    inputs[3], responses[3] = inputs[3][:0], responses[3][:0]
    for y in (responses, [0 * y for y in responses], [1e-30 * random.normal(size=len(y)) for y in responses]):
        own = systems(rows_of(inputs, y))
        common = fitted(own)
        assert finite(common)
        found = personal(own, common)
        assert all(np.isfinite(part).all() for part in found)
        assert_allclose(found.coefficients[3], common.mean)
        assert found.shares[3] == 0
    with pytest.raises(ValueError, match="no client has rows"):
        started(systems(rows_of([np.zeros((0, 2))], [np.zeros(0)])))
