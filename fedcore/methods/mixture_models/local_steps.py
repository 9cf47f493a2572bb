"""E- and M-steps of clients that each have their own parameters, in units where the noise is standard normal.

    gaussian     rows x ~ N(theta_r, I)             gradient of Q  sum_i g_ir (x_i - theta_r)
    regression   y = x.theta_r + N(0, 1)            gradient of Q  sum_i g_ir (y_i - x_i.theta_r) x_i

g are the exact posterior probabilities, in the log domain. All arrays are over C clients and R components; an empty
client has sums of zero. Source: Tian, Weng, Feng 2024, Algorithm 1 and their two examples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcore.errors import PopulationError
from fedcore.methods.mixture_models.packing import triangle
from fedcore.methods.mixture_models.tiles import stacks
from fedcore.population.blocks import RowsBlock

LOG_WEIGHT_FLOOR = 1e-12
LOG_TWO_PI = float(np.log(2.0 * np.pi))
LABELLED_ROWS = 10_000  # of a client in its outputs
RIDGE = 1e-5  # added to sum g x x' in the full M-step of a regression


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of C clients. x: (N, p) float64; y: (N,) the response, None for Gaussians; ptr: (C + 1,) int64.

    white: (R, p, p) if each component has a covariance: x @ white[r] is x in the units of component r, in which its
    covariance is the identity. Densities are then in the units of x. None: x is in the model's units
    """

    x: np.ndarray
    y: np.ndarray | None
    ptr: np.ndarray
    white: np.ndarray | None = None

    @property
    def responses(self) -> np.ndarray:
        """y, of rows that have one: those of regressions."""
        if self.y is None:
            raise ValueError("rows of Gaussians have no response")
        return self.y

    @property
    def sizes(self) -> np.ndarray:
        """(C,) float64."""
        return np.diff(self.ptr).astype(np.float64)

    @property
    def owners(self) -> np.ndarray:
        """(N,) int64: the client of each row."""
        return np.repeat(np.arange(len(self.ptr) - 1), np.diff(self.ptr))

    def where(self, kept: np.ndarray) -> Rows:
        """The rows with kept (N,) bool; clients without any stay, empty."""
        before = np.concatenate([[0], np.cumsum(kept)])
        return Rows(self.x[kept], None if self.y is None else self.y[kept], before[self.ptr], self.white)


@dataclass(frozen=True, slots=True)
class Sums:
    """What an E-step of every client gives.

    mass:      (C, R) sum of g
    gradient:  (C, R, p) of n_k Q, clipped row by row if asked
    second:    (C, R, p, p) sum of g x x' of a regression if asked, else None
    log_likelihood: (C,) of the rows, nats
    scatter:   (p, p), or (1, 1) of a regression: sum over all clients of shares_kr g (x - theta)(x - theta)', and
               scatter_mass the sum of shares_kr g; None and 0 without shares. (R, p, p) and (R,) if each component
               has a covariance
    """

    mass: np.ndarray
    gradient: np.ndarray
    second: np.ndarray | None
    log_likelihood: np.ndarray
    scatter: np.ndarray | None = None
    scatter_mass: float | np.ndarray = 0.0


def e_step(
    rows: Rows,
    theta: np.ndarray,
    w: np.ndarray,
    *,
    second: bool = False,
    clip: float | None = None,
    shares: np.ndarray | None = None,
) -> Sums:
    """theta: (C, R, p); w: (C, R). second: whether the matrices of a regression are wanted. clip: L2 bound of x - theta
    of a row, or bound of the absolute residual of a regression; None: no clipping. shares: (C, R), for the scatter.
    """
    clients, components, p = theta.shape
    mass, gradient = np.zeros((clients, components)), np.zeros(theta.shape)
    likelihood = np.zeros(clients)
    packed = np.zeros((clients, components, triangle(p))) if second and rows.y is not None else None
    logs = np.log(np.maximum(w, LOG_WEIGHT_FLOOR))
    scatter: np.ndarray | None = None
    if shares is not None:
        shape = (p, p) if rows.y is None else (1, 1)
        scatter = np.zeros(shape if rows.white is None else (components, *shape))
    for stack in stacks(rows.ptr, 2 * (components + p)):
        x, c = stack.take(rows.x), stack.clients
        y = None if rows.y is None else stack.take(rows.y)
        g, gradients, fit = _stack(x, y, theta[c], logs[c], stack.seen, clip, rows.white)
        masses = g.sum(axis=2).T
        mass[c] += masses
        gradient[c] += gradients
        likelihood[c] += fit
        if packed is not None:
            packed[c] += np.matmul(g.transpose(1, 0, 2), pair_products(x))
        if scatter is not None and shares is not None:
            own = gradients if clip is None else None
            if rows.white is None:
                scatter += _scatter(x, y, theta[c], g, masses, shares[c], own)
                continue
            for r, white in enumerate(rows.white):
                one = slice(r, r + 1)
                scatter[r] += _scatter(
                    x @ white, y, theta[c][:, one], g[one], masses[:, one], shares[c][:, one], gradients[:, one]
                )
    kept: float | np.ndarray = 0.0
    if shares is not None:
        kept = float((shares * mass).sum()) if rows.white is None else (shares * mass).sum(axis=0)
    return Sums(mass, gradient, None if packed is None else _full(packed, p), likelihood, scatter, kept)


def _scatter(
    x: np.ndarray,
    y: np.ndarray | None,
    theta: np.ndarray,
    g: np.ndarray,
    mass: np.ndarray,
    shares: np.ndarray,
    gradients: np.ndarray | None,
) -> np.ndarray:
    """gradients: (c, R, p) unclipped ones, which spare the sums of g x; or None."""
    if y is not None:
        return np.sum(g * shares.T[:, :, None] * (y - _products_with(x, theta)) ** 2).reshape(1, 1)
    p = x.shape[2]
    first = np.matmul(g.transpose(1, 0, 2), x) if gradients is None else gradients + mass[:, :, None] * theta
    first = (first * shares[:, :, None]).reshape(-1, p)
    weights = np.matmul(shares[:, None], g.transpose(1, 0, 2))[:, 0]
    centres, held = theta.reshape(-1, p), (mass * shares).reshape(-1, 1)
    cross = first.T @ centres
    products = (x * weights[:, :, None]).reshape(-1, p).T @ x.reshape(-1, p)
    return products - cross - cross.T + (centres * held).T @ centres


def _stack(
    x: np.ndarray,
    y: np.ndarray | None,
    theta: np.ndarray,
    logs: np.ndarray,
    seen: np.ndarray | None,
    clip: float | None,
    white: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """g (R, c, m), 0 for padding; gradients (c, R, p); log-likelihoods (c,)."""
    if white is not None:
        return _white_stack(x, theta, logs, seen, white)
    if y is None:
        return _gaussian_stack(x, theta, logs, seen, clip)
    return _regression_stack(x, y, theta, logs, seen, clip)


def _gaussian_stack(
    x: np.ndarray, theta: np.ndarray, logs: np.ndarray, seen: np.ndarray | None, clip: float | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    squares = np.einsum("crp,crp->cr", theta, theta)
    g = _products_with(x, theta)
    distances = None
    if clip is not None:
        norms = np.einsum("cmp,cmp->cm", x, x)
        distances = np.sqrt(np.maximum(norms - 2.0 * g + squares.T[:, :, None], 0.0))
    g += (logs - 0.5 * squares).T[:, :, None]
    top = _softmax(g, seen)
    top -= 0.5 * np.einsum("cmp,cmp->cm", x, x) + 0.5 * x.shape[2] * LOG_TWO_PI
    weights = g
    if distances is not None:
        weights = g * np.minimum(1.0, clip / np.maximum(distances, 1e-300))
    first = np.matmul(weights.transpose(1, 0, 2), x)
    return g, first - weights.sum(axis=2).T[:, :, None] * theta, _total(top, seen)


def _white_stack(
    x: np.ndarray, theta: np.ndarray, logs: np.ndarray, seen: np.ndarray | None, white: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    left = [x @ own - theta[:, r, None] for r, own in enumerate(white)]
    g = np.stack([-0.5 * np.einsum("cmp,cmp->cm", own, own) for own in left])
    g += (logs + np.linalg.slogdet(white)[1] - 0.5 * x.shape[2] * LOG_TWO_PI).T[:, :, None]
    top = _softmax(g, seen)
    first = [np.matmul(g[r][:, None], own)[:, 0] for r, own in enumerate(left)]
    return g, np.stack(first, axis=1), _total(top, seen)


def _regression_stack(
    x: np.ndarray, y: np.ndarray, theta: np.ndarray, logs: np.ndarray, seen: np.ndarray | None, clip: float | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    residuals = y - _products_with(x, theta)
    g = -0.5 * residuals * residuals
    g += logs.T[:, :, None]
    top = _softmax(g, seen)
    top -= 0.5 * LOG_TWO_PI
    if clip is not None:
        residuals = np.clip(residuals, -clip, clip)
    return g, np.matmul((g * residuals).transpose(1, 0, 2), x), _total(top, seen)


def _products_with(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """(R, c, m) x.theta: components first, so that every later step runs along contiguous memory."""
    product = np.empty((theta.shape[1], *x.shape[:2]))
    np.matmul(theta, x.transpose(0, 2, 1), out=product.transpose(1, 0, 2))
    return product


def _softmax(g: np.ndarray, seen: np.ndarray | None) -> np.ndarray:
    """In place over the first axis, 0 for padding; returns the logarithm of the normaliser, (c, m)."""
    top = g.max(axis=0)
    g -= top
    np.exp(g, out=g)
    total = g.sum(axis=0)
    g *= 1.0 / total if seen is None else seen / total
    return top + np.log(total)


def _total(values: np.ndarray, seen: np.ndarray | None) -> np.ndarray:
    return (values if seen is None else values * seen).sum(axis=1)


def pair_products(x: np.ndarray) -> np.ndarray:
    """(c, m, p (p + 1) / 2): upper triangles of x x'."""
    left, right = np.triu_indices(x.shape[2])
    return x[:, :, left] * x[:, :, right]


def _full(packed: np.ndarray, p: int) -> np.ndarray:
    left, right = np.triu_indices(p)
    matrices = np.empty((*packed.shape[:2], p, p))
    matrices[:, :, left, right] = packed
    matrices[:, :, right, left] = packed
    return matrices


# --- steps ----------------------------------------------------------------------------------------------------------


def full_m_step(theta: np.ndarray, sums: Sums) -> np.ndarray:
    """(C, R, p) the maximiser of Q; a component without mass stays. Needs `second` for a regression."""
    if sums.second is None:
        return theta + sums.gradient / np.where(sums.mass > 0, sums.mass, 1.0)[:, :, None]
    matrices = sums.second + RIDGE * np.eye(theta.shape[2])
    # theta + A^-1 (b - A theta) = A^-1 b up to the ridge, whose pull is towards theta
    return theta + np.linalg.solve(matrices, sums.gradient[..., None])[..., 0]


def largest_curvature(second: np.ndarray, sizes: np.ndarray, steps: int = 8) -> np.ndarray:
    """(C, R) an estimate of the largest eigenvalue of A_r = second / n by power steps; from below."""
    matrices = second / np.maximum(sizes, 1.0)[:, None, None, None]
    vector = np.abs(matrices).sum(axis=3)  # nearer to the top eigenvector than ones are
    for _ in range(steps):
        vector = np.matmul(matrices, vector[..., None])[..., 0]
        vector /= np.maximum(np.linalg.norm(vector, axis=2, keepdims=True), 1e-300)
    return np.einsum("crp,crpq,crq->cr", vector, matrices, vector)


def finite_rows(block: RowsBlock) -> np.ndarray:
    """(N, d) float64 rows of the clients. Raises PopulationError if a number is not finite."""
    x = block.x.astype(np.float64, copy=False)
    if not np.isfinite(x).all():
        row, column = np.argwhere(~np.isfinite(x))[0]
        client = block.first + int(np.searchsorted(block.ptr, row, "right")) - 1
        raise PopulationError(
            f"row {row - block.ptr[client - block.first]} of client {client} has no finite number in column {column}.",
            "Fill in or leave out what is missing.",
        )
    return x


def regression_rows(block: RowsBlock, noise: float | None, intercept: bool) -> Rows:
    """Rows whose last column is the response, in units of the noise. noise: its variance; None: 1. intercept: whether
    there is a further input that is 1. Raises PopulationError if a number is not finite."""
    x = finite_rows(block)
    y = x[:, -1]
    if noise is not None:
        y = y / np.sqrt(noise)
    x = np.column_stack([x[:, :-1], np.ones(len(x))]) if intercept else x[:, :-1]
    return Rows(np.ascontiguousarray(x), np.ascontiguousarray(y), block.ptr)


def expected(rows: Rows, theta: np.ndarray, w: np.ndarray) -> np.ndarray:
    """(N,) responses that regressions theta (C, R, p) with weights w (C, R) expect of the rows, in theta's units."""
    means = np.einsum("cr,crp->cp", w, theta)
    return np.einsum("ij,ij->i", rows.x, means[rows.owners])


def labels_of_clients(ptr: np.ndarray, g: np.ndarray, largest: int) -> np.ndarray:
    """(C, L) int16 most probable component of each row of a client, -1 beyond them. g: (N, R) posterior probabilities.
    largest: rows of the largest client of all; L is at most `LABELLED_ROWS`."""
    clients, sizes = len(ptr) - 1, np.diff(ptr)
    labels = np.full((clients, min(max(largest, 1), LABELLED_ROWS)), -1, np.int16)
    at = np.arange(len(g)) - np.repeat(ptr[:-1], sizes)
    kept = at < labels.shape[1]
    labels[np.repeat(np.arange(clients), sizes)[kept], at[kept]] = g.argmax(axis=1)[kept]
    return labels


def posteriors(rows: Rows, theta: np.ndarray, w: np.ndarray) -> np.ndarray:
    """(N, R) posterior probabilities of the components of every row under its client's parameters."""
    found = np.zeros((len(rows.x), theta.shape[1]))
    logs = np.log(np.maximum(w, LOG_WEIGHT_FLOOR))
    for stack in stacks(rows.ptr, 2 * (theta.shape[1] + theta.shape[2])):
        c, y = stack.clients, None if rows.y is None else stack.take(rows.y)
        g, _, _ = _stack(stack.take(rows.x), y, theta[c], logs[c], stack.seen, None, rows.white)
        if isinstance(stack.rows, slice):
            found[stack.rows] = g.reshape(len(g), -1).T
        else:
            seen = np.ones(stack.shape, bool) if stack.seen is None else stack.seen
            found[stack.rows[seen]] = g[:, seen].T
    return found
