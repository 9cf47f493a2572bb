"""Local fits: every client fits its own mixture from several first guesses by a short EM and keeps the likeliest.

    gaussian     k-means++ and Ward partitions, then EM with one full covariance that the components share
    regression   coefficients drawn around the client's least-squares fit, then EM with a variance for each component

Many clients are fitted at once, all guesses of a client side by side. Every client makes the same number of steps,
so its result depends on its own rows and streams only. A client of more than `MOST_ROWS` rows uses that many of them,
evenly spread. Clients with fewer than two rows for each component are not fitted.

A shared covariance of few rows is shrunk towards a sphere that counts as much as p rows, so it is never singular.

Source: Tian, Weng, Feng 2024, Appendix B (mclust's EEE and mixreg as starts); Arthur, Vassilvitskii 2007.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy

from fedcore.methods.mixture_models.local_steps import LOG_TWO_PI, LOG_WEIGHT_FLOOR, Rows
from fedcore.methods.mixture_models.tiles import STACK_NUMBERS, Stacked, stacks
from fedcore.randomness import client_uniforms

COMPARED = "gradient_em/compared"  # names of streams stay, so that runs keep their bits
SEEDS, COEFFICIENTS = "gradient_em/start/pick", "gradient_em/start/draw"
MOST_ROWS = 2000
LLOYD_STEPS = 5
CHOSEN_STEPS = 5  # times the EM steps of the others are made from the best guess
FIRST_DEVIATION = 0.3  # standard deviation of a coefficient's first guess, relative to its least-squares value
SMALLEST_SCALE = 1e-3  # of a variance, relative to the client's pooled one
ROWS_PER_COMPONENT = 2


Fit = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # theta, w, covariance or variances, log-likelihood


@dataclass(frozen=True, slots=True)
class LocalFits:
    """theta: (C, R, p); w: (C, R); covariance: (C, p, p) shared within a Gaussian client, or variances (C, R) of a
    regression; log_likelihood: (C,) nats; fitted: (C,) bool. What was not fitted has zeros, equal weights, unit
    covariance and NaN likelihood.
    """

    theta: np.ndarray
    w: np.ndarray
    covariance: np.ndarray
    log_likelihood: np.ndarray
    fitted: np.ndarray


def local_fits(
    rows: Rows, components: int, seed: int, first: int, *, starts: int = 10, ward: bool = True, steps: int = 15
) -> LocalFits:
    """first: number of the first client in the population, which names the streams. steps: of EM for each start."""
    clients, p = len(rows.ptr) - 1, rows.x.shape[1]
    shape = (clients, p, p) if rows.y is None else (clients, components)
    covariance = np.ones(shape) if rows.y is not None else np.tile(np.eye(p), (clients, 1, 1))
    fits = LocalFits(
        np.zeros((clients, components, p)),
        np.full((clients, components), 1.0 / components),
        covariance,
        np.full(clients, np.nan),
        rows.sizes >= ROWS_PER_COMPONENT * components,
    )
    draws = components if rows.y is None else components * p
    purpose = SEEDS if rows.y is None else COEFFICIENTS
    each_start = [client_uniforms(seed, purpose, start, first, clients, draws) for start in range(starts)]
    uniforms = np.stack(each_start, axis=1)
    each = (starts + ward) * (components + p + (0 if rows.y is None else p * p))
    for stack in _thinned(rows.ptr, fits.fitted, each):
        x, c = stack.take(rows.x), stack.clients
        seen = np.ones(stack.shape) if stack.seen is None else stack.seen.astype(np.float64)
        if rows.y is None:
            found = _gaussian(x, seen, components, uniforms[c], ward, steps)
        else:
            found = _regression(x, stack.take(rows.y), seen, components, uniforms[c], steps)
        for target, value in zip((fits.theta, fits.w, fits.covariance, fits.log_likelihood), found, strict=True):
            target[c] = value
    return fits


def compared_up_to(seed: int, population: int, most: int) -> float:
    """The largest uniform number of a client whose fit is compared with others': all of them, or `most`."""
    if population <= most:
        return 1.0
    uniforms = client_uniforms(seed, COMPARED, 0, 0, population)[:, 0]
    return float(np.partition(uniforms, most - 1)[most - 1])


def compared(seed: int, largest: float, first: int, clients: int) -> np.ndarray:
    """(C,) bool, whose fits are compared. first: number of the first client; largest: of `compared_up_to`."""
    return client_uniforms(seed, COMPARED, 0, first, clients)[:, 0] <= largest


def _thinned(ptr: np.ndarray, chosen: np.ndarray, numbers_per_row: int) -> Iterator[Stacked]:
    """Stacks of the chosen clients; of a large client only some rows."""
    sizes = np.where(chosen, np.diff(ptr), 0)
    kept = np.minimum(sizes, MOST_ROWS)
    whole = np.concatenate([[0], np.cumsum(kept)])
    # a client stays in one stack however many numbers a row takes
    for stack in stacks(whole, min(numbers_per_row, STACK_NUMBERS // MOST_ROWS)):
        c, m = stack.clients, stack.shape[1]
        own = np.minimum(np.arange(m), kept[c, None] - 1)
        at = ptr[c, None] + own * sizes[c, None] // np.maximum(kept[c, None], 1)
        yield Stacked(c, at, stack.seen, stack.shape)


# --- Gaussians ------------------------------------------------------------------------------------------------------


def _gaussian(x: np.ndarray, seen: np.ndarray, components: int, uniforms: np.ndarray, ward: bool, steps: int) -> Fit:
    """x: (c, m, p), seen: (c, m), uniforms: (c, S, R). Returns theta, w, covariance and likelihood of each client."""
    n = seen.sum(axis=1)
    mean = (x * seen[:, :, None]).sum(axis=1) / n[:, None]
    x = (x - mean[:, None]) * seen[:, :, None]
    g = _member(_lloyd(x, seen, _seeds(x, seen, uniforms)), components, seen)
    if ward:
        labels = np.stack([_ward(own[: int(k)], components, len(own)) for own, k in zip(x, n, strict=True)])
        g = np.concatenate([g, _member(labels[:, None], components, seen)], axis=1)
    second = np.matmul(x.transpose(0, 2, 1), x)
    fit = _em_gaussian(x, seen, n, second, g, steps)
    best = np.argmax(fit[3], axis=1)[:, None]
    at = np.arange(len(x))[:, None]
    g = _responsibilities(x, seen, *(part[at, best] for part in fit[:3]))[0]
    chosen = _em_gaussian(x, seen, n, second, g, steps * CHOSEN_STEPS)
    theta, w, covariance, likelihood = (part[:, 0] for part in chosen)
    return theta + mean[:, None], w, covariance, likelihood


def _em_gaussian(x: np.ndarray, seen: np.ndarray, n: np.ndarray, second: np.ndarray, g: np.ndarray, steps: int) -> Fit:
    """EM from responsibilities g (c, S, R, m); theta, w, covariance, likelihood, each (c, S, ...)."""
    for _ in range(steps):
        theta, w, covariance = _m_step(x, n, second, g)
        g, likelihood = _responsibilities(x, seen, theta, w, covariance)
    return theta, w, covariance, likelihood


def _m_step(
    x: np.ndarray, n: np.ndarray, second: np.ndarray, g: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    p = x.shape[2]
    mass = g.sum(axis=3)
    first = np.matmul(g, x[:, None])
    theta = first / np.maximum(mass, 1e-9)[..., None]
    within = second[:, None] - np.matmul(first.transpose(0, 1, 3, 2), theta)
    trace = np.trace(within, axis1=2, axis2=3)
    floor = SMALLEST_SCALE * np.trace(second, axis1=1, axis2=2)[:, None]
    sphere = np.maximum(trace, floor + 1e-12) / (n[:, None] * p)
    covariance = (within + (p * sphere)[:, :, None, None] * np.eye(p)) / (n[:, None, None, None] + p)
    return theta, mass / n[:, None, None], covariance


def _responsibilities(
    x: np.ndarray, seen: np.ndarray, theta: np.ndarray, w: np.ndarray, covariance: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(c, S, R, m), 0 for padding, and log-likelihoods (c, S)."""
    white = np.linalg.inv(np.linalg.cholesky(covariance))
    rows = np.matmul(x[:, None], white.transpose(0, 1, 3, 2))
    centres = np.matmul(theta, white.transpose(0, 1, 3, 2))
    g = np.matmul(centres, rows.transpose(0, 1, 3, 2))
    g += (np.log(np.maximum(w, LOG_WEIGHT_FLOOR)) - 0.5 * (centres**2).sum(axis=3))[..., None]
    top = g.max(axis=2)
    g -= top[:, :, None]
    np.exp(g, out=g)
    total = g.sum(axis=2)
    g *= (seen[:, None] / total)[:, :, None]
    determinant = np.log(np.diagonal(white, axis1=2, axis2=3)).sum(axis=2)[..., None]
    fit = top + np.log(total) - 0.5 * (rows**2).sum(axis=3) + determinant - 0.5 * x.shape[2] * LOG_TWO_PI
    return g, (fit * seen[:, None]).sum(axis=2)


def _seeds(x: np.ndarray, seen: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """(c, S, R, p) seeds of k-means++: rows drawn with probability proportional to the squared distance from those
    drawn before."""
    squares = (x**2).sum(axis=2)
    weights = np.broadcast_to(seen[:, None], (*uniforms.shape[:2], x.shape[1])).copy()
    nearest = np.full(weights.shape, np.inf)
    at = np.arange(len(x))[:, None]
    seeds = []
    for draw in range(uniforms.shape[2]):
        cumulative = np.cumsum(weights, axis=2)
        row = (cumulative < uniforms[:, :, draw, None] * cumulative[:, :, -1:]).sum(axis=2)
        row = np.minimum(row, seen.sum(axis=1).astype(np.int64)[:, None] - 1)
        centre = x[at, row]
        seeds.append(centre)
        distance = squares[:, None] - 2.0 * np.matmul(centre, x.transpose(0, 2, 1)) + squares[at, row][..., None]
        nearest = np.minimum(nearest, np.maximum(distance, 0.0))
        weights = nearest * seen[:, None]
    return np.stack(seeds, axis=2)


def _lloyd(x: np.ndarray, seen: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """(c, S, m) labels after a few steps of k-means; an empty cluster keeps its centre."""
    for _ in range(LLOYD_STEPS):
        g = _member(_nearest(x, centres), centres.shape[2], seen)
        mass = g.sum(axis=3)[..., None]
        centres = np.where(mass > 0, np.matmul(g, x[:, None]) / np.maximum(mass, 1.0), centres)
    return _nearest(x, centres)


def _nearest(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    product = np.matmul(centres, x.transpose(0, 2, 1)[:, None])
    return (product - 0.5 * (centres**2).sum(axis=3)[..., None]).argmax(axis=2)


def _member(labels: np.ndarray, components: int, seen: np.ndarray) -> np.ndarray:
    """(c, S, R, m) one-hot."""
    return (labels[:, :, None] == np.arange(components)[:, None]) * seen[:, None, None]


def _ward(x: np.ndarray, components: int, length: int) -> np.ndarray:
    """(length,) labels of Ward's hierarchy cut into the components; 0 beyond the rows."""
    labels = np.zeros(length, np.int64)
    labels[: len(x)] = (
        scipy.cluster.hierarchy.fcluster(scipy.cluster.hierarchy.linkage(x, "ward"), components, "maxclust") - 1
    )
    return labels


# --- regressions ----------------------------------------------------------------------------------------------------


def _regression(
    x: np.ndarray, y: np.ndarray, seen: np.ndarray, components: int, uniforms: np.ndarray, steps: int
) -> Fit:
    """uniforms: (c, S, R p)."""
    p = x.shape[2]
    x, y = x * seen[:, :, None], y * seen
    left, right = np.triu_indices(p)
    products = np.concatenate([x[:, :, left] * x[:, :, right], x * y[:, :, None]], axis=2)
    place = np.empty((p, p), np.int64)
    place[left, right] = place[right, left] = np.arange(len(left))
    totals = products.sum(axis=1)
    ridge = 1e-5 * np.eye(p)
    ols = np.linalg.solve(totals[:, place] + ridge, totals[:, -p:, None])[..., 0]
    n = seen.sum(axis=1)
    variance = (((y - np.einsum("cmp,cp->cm", x, ols)) * seen) ** 2).sum(axis=1) / n
    normal = scipy.special.ndtri(uniforms).reshape(*uniforms.shape[:2], components, p)
    theta = ols[:, None, None] * (1.0 + FIRST_DEVIATION * normal)
    w = np.full(theta.shape[:3], 1.0 / components)
    variances = np.repeat(variance, w[0].size).reshape(w.shape)
    fit = _em_regression(x, y, seen, n, products, place, variance, theta, w, variances, steps)
    best, at = np.argmax(fit[3], axis=1)[:, None], np.arange(len(x))[:, None]
    theta, w, variances = (part[at, best] for part in fit[:3])
    fit = _em_regression(x, y, seen, n, products, place, variance, theta, w, variances, steps * CHOSEN_STEPS)
    return fit[0][:, 0], fit[1][:, 0], fit[2][:, 0], fit[3][:, 0]


def _em_regression(
    x: np.ndarray,
    y: np.ndarray,
    seen: np.ndarray,
    n: np.ndarray,
    products: np.ndarray,
    place: np.ndarray,
    variance: np.ndarray,
    theta: np.ndarray,
    w: np.ndarray,
    variances: np.ndarray,
    steps: int,
) -> Fit:
    """theta, w, variances and likelihoods, each (c, S, ...)."""
    p = x.shape[2]
    ridge = 1e-5 * np.eye(p)
    floor = SMALLEST_SCALE * variance[:, None, None]
    for _ in range(steps):
        residuals = y[:, None, None] - np.matmul(theta, x.transpose(0, 2, 1)[:, None])
        residuals *= residuals
        logs = np.log(np.maximum(w, LOG_WEIGHT_FLOOR)) - 0.5 * np.log(variances)
        g = logs[..., None] - 0.5 * residuals / variances[..., None]
        top = g.max(axis=2)
        g -= top[:, :, None]
        np.exp(g, out=g)
        total = g.sum(axis=2)
        likelihood = ((top + np.log(total) - 0.5 * LOG_TWO_PI) * seen[:, None]).sum(axis=2)
        g *= (seen[:, None] / total)[:, :, None]
        mass = g.sum(axis=3)
        sums = np.matmul(g, products[:, None])
        theta = np.linalg.solve(sums[..., place] + ridge, sums[..., -p:, None])[..., 0]
        squares = np.matmul(g, (y * y)[:, None, :, None])[..., 0]
        rest = squares - 2.0 * (theta * sums[..., -p:]).sum(axis=3)
        rest += np.einsum("csrp,csrpq,csrq->csr", theta, sums[..., place], theta)
        variances = np.maximum(rest / np.maximum(mass, 1e-9), floor)
        w = mass / n[:, None, None]
    return theta, w, variances, likelihood
