"""Nuclear-norm penalised M-steps: argmin over theta (J, L) of sum Psi(theta) - <s, theta> + lam ||theta||_*.

Psi is the log-partition function of a natural exponential family, elementwise. For the Gaussian the minimiser is a
soft-thresholded singular value decomposition (Cai, Candes, Shen 2010, theorem 2.1). For Poisson and Bernoulli the
curvature exp(theta) of the cells may differ by orders of magnitude, and proximal gradient steps alone would crawl. So
two things alternate until a proximal step moves nothing any more:

- accelerated proximal gradient steps with backtracking (Beck, Teboulle 2009), restarted where the momentum points
  uphill (O'Donoghue, Candes 2015). They find the rank;
- Newton steps on the factors of theta = U V', where the norm is (|U|^2 + |V|^2) / 2 (Srebro, Rennie, Jaakkola 2004),
  by truncated conjugate gradients, preconditioned by the diagonal of their positive part, or where that
  does not do by the ridge regressions of one row or column at a time.

EM needs no exact M-step but the last: any theta that lowers the objective of the M-step also lowers its own (Dempster,
Laird, Rubin 1977), so that `ROUGH` is enough on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy

Family = Literal["gaussian", "poisson", "bernoulli"]
FAMILIES = ("gaussian", "poisson", "bernoulli")
PROXIMAL_STEPS = (8, 16, 32)  # in the first cycle, the second, and every later one
SMALLEST_FACTORS = 1e-12  # norm below which theta, at most half its square, is 0 to all purposes
SMALLEST_GRADIENT = 1e-12  # of the factors, relative to that of the penalty: Newton steps are done
INNER_STEPS = 200  # of conjugate gradients in a Newton step, at most
FORCING = 0.1  # what they leave of the gradient, at most


@dataclass(frozen=True, slots=True)
class Accuracy:
    """tolerance: of the gradient mapping, relative to the statistic. cycles, newton_steps (in a cycle): at most.
    close: whether Newton steps are solved ever more closely, as their quadratic convergence needs it."""

    tolerance: float
    cycles: int
    newton_steps: int
    close: bool


EXACT = Accuracy(1e-10, 60, 15, close=True)
ROUGH = Accuracy(1e-3, 2, 3, close=False)


def log_partition(family: Family, theta: np.ndarray) -> np.ndarray:
    """Psi(theta), elementwise: theta^2/2, exp theta, ln(1 + exp theta)."""
    if family == "gaussian":
        return 0.5 * theta * theta
    if family == "poisson":
        return np.exp(theta)
    return np.logaddexp(0.0, theta)


def mean(family: Family, theta: np.ndarray) -> np.ndarray:
    """Psi'(theta): the expected entry."""
    if family == "gaussian":
        return np.array(theta, np.float64)
    return np.exp(theta) if family == "poisson" else scipy.special.expit(theta)


def soft_threshold(x: np.ndarray, threshold: float, rank: int | None = None) -> np.ndarray:
    """U (D - threshold)_+ V' of x = U D V', at most `rank` singular values kept."""
    u, values, v = np.linalg.svd(x, full_matrices=False)
    kept = np.maximum(values[:rank] - threshold, 0.0)
    k = int(np.count_nonzero(kept))
    return (u[:, :k] * kept[:k]) @ v[:k]


def nuclear_norm(x: np.ndarray) -> float:
    return float(np.linalg.svd(x, compute_uv=False).sum())


def minimise(
    family: Family, s: np.ndarray, lam: float, rank: int | None, start: np.ndarray | None, accuracy: Accuracy = EXACT
) -> np.ndarray:
    """The minimiser (J, L). start: a first guess, or None. lam > 0 unless Gaussian.

    Stops when the gradient mapping (theta - prox(theta)) / step is `tolerance` times the norm of (s, Psi'(theta)), or
    after this number of cycles. With `rank` smaller than the rank of the minimiser the problem is no longer convex, and
    the result may depend on `start`.
    """
    if family == "gaussian":
        return soft_threshold(s, lam, rank)
    theta, step = np.zeros_like(s) if start is None else np.array(start, np.float64), 1.0
    by_blocks = False
    for cycle in range(accuracy.cycles):
        if cycle or start is not None:
            theta, by_blocks = _newton_steps(family, s, lam, theta, accuracy, by_blocks)
        count = PROXIMAL_STEPS[min(cycle, len(PROXIMAL_STEPS) - 1)]
        theta, step, done = _proximal_steps(family, s, lam, rank, theta, step, count, accuracy.tolerance)
        if done:
            break
    return theta


def _smooth(family: Family, s: np.ndarray, theta: np.ndarray) -> float:
    with np.errstate(over="ignore"):
        return float((log_partition(family, theta) - s * theta).sum())


def _proximal_steps(
    family: Family,
    s: np.ndarray,
    lam: float,
    rank: int | None,
    theta: np.ndarray,
    step: float,
    count: int,
    tolerance: float,
) -> tuple[np.ndarray, float, bool]:
    """theta after at most `count` accelerated steps, the length of the last one, and whether it moved nothing."""
    ahead, momentum = theta, 1.0
    for _ in range(count):
        expected = mean(family, ahead)
        gradient, value = expected - s, _smooth(family, s, ahead)
        while True:
            new = soft_threshold(ahead - step * gradient, step * lam, rank)
            move = new - ahead
            square = float(np.vdot(move, move))
            bound = value + float(np.vdot(gradient, move)) + 0.5 * square / step
            # near the minimiser both sides agree to rounding, which must not halve the step without end
            if _smooth(family, s, new) <= bound + 1e-14 * (abs(value) + abs(bound)):
                break
            step *= 0.5
        scale = float(np.sqrt(np.vdot(s, s) + np.vdot(expected, expected)))
        if np.sqrt(square) <= step * tolerance * scale:
            return new, step, True
        if float(np.vdot(move, new - theta)) < 0.0:
            momentum, ahead = 1.0, new
        else:
            following = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum * momentum))
            ahead = new + ((momentum - 1.0) / following) * (new - theta)
            momentum = following
        theta = new
        step *= 1.1  # curvature may be smaller here than where the step was found
    return theta, step, False


def _newton_steps(
    family: Family, s: np.ndarray, lam: float, theta: np.ndarray, accuracy: Accuracy, by_blocks: bool
) -> tuple[np.ndarray, bool]:
    """Minimises over the factors of theta, its rank at most that of the start. by_blocks: of `_newton_direction`; also
    what the next steps do best with."""
    u, values, v = np.linalg.svd(theta, full_matrices=False)
    k = int(np.count_nonzero(values > 1e-14 * max(float(values[0]), 1.0)))
    if not k:
        return theta, by_blocks
    rows = len(theta)
    root = np.sqrt(values[:k])
    factors = np.concatenate([u[:, :k] * root, v[:k].T * root])  # U above V

    def objective(x: np.ndarray) -> float:
        return _smooth(family, s, x[:rows] @ x[rows:].T) + 0.5 * lam * float(np.vdot(x, x))

    value = objective(factors)
    for _ in range(accuracy.newton_steps):
        left, right = factors[:rows], factors[rows:]
        product = left @ right.T
        expected = mean(family, product)
        residual = expected - s
        gradient = lam * factors + np.concatenate([residual @ right, residual.T @ left])
        size = float(np.linalg.norm(gradient))
        norm = float(np.linalg.norm(factors))
        # factors that vanish shrink by a constant share without end; the proximal step makes them 0
        if size <= SMALLEST_GRADIENT * lam * norm or norm <= SMALLEST_FACTORS:
            break
        curvature = expected if family == "poisson" else expected * (1.0 - expected)
        # the forcing term makes the outer steps converge quadratically without solving the first ones to no purpose
        forcing = min(FORCING, size / (1.0 + size)) if accuracy.close else FORCING
        direction = _newton_direction(curvature, residual, left, right, lam, gradient, forcing * size, by_blocks)
        slope, length = float(np.vdot(gradient, direction)), 1.0
        while length > 1e-10:
            new = factors + length * direction
            new_value = objective(new)
            if new_value <= value + 1e-4 * length * slope + 1e-14 * abs(value):
                break
            length *= 0.5
        else:
            break
        factors, value = new, new_value
    else:
        by_blocks = accuracy.close  # numbers do not do here
    return factors[:rows] @ factors[rows:].T, by_blocks


def _newton_direction(
    curvature: np.ndarray,
    residual: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
    lam: float,
    gradient: np.ndarray,
    forcing: float,
    by_blocks: bool,
) -> np.ndarray:
    """Truncated conjugate gradients on the Hessian of the factored objective; stops at negative curvature, or when the
    norm of what is left of the gradient is `forcing`.

    by_blocks: preconditioned by matrices k x k instead of numbers. That takes fewer steps, but the J + L inverses take
    as long as a hundred.
    """
    rows, k = len(left), left.shape[1]
    if by_blocks:
        outer_right = (right[:, :, None] * right[:, None, :]).reshape(-1, k * k)
        outer_left = (left[:, :, None] * left[:, None, :]).reshape(-1, k * k)
        blocks = np.concatenate([curvature @ outer_right, curvature.T @ outer_left]).reshape(-1, k, k)
        inverse = np.linalg.inv(blocks + lam * np.eye(k))
    else:
        inverse = 1.0 / (np.concatenate([curvature @ (right * right), curvature.T @ (left * left)]) + lam)

    def precondition(x: np.ndarray) -> np.ndarray:
        return (inverse @ x[:, :, None])[:, :, 0] if by_blocks else inverse * x

    image = np.empty_like(gradient)

    def hessian(x: np.ndarray) -> np.ndarray:
        a, b = x[:rows], x[rows:]
        weighted = a @ right.T
        weighted += left @ b.T
        weighted *= curvature
        np.matmul(weighted, right, out=image[:rows])
        np.matmul(weighted.T, left, out=image[rows:])
        image[:rows] += residual @ b
        image[rows:] += residual.T @ a
        np.add(image, lam * x, out=image)
        return image

    direction, rest = np.zeros_like(gradient), -gradient
    search = precondition(rest)
    inner = float(np.vdot(rest, search))
    for step in range(INNER_STEPS):
        image = hessian(search)
        bend = float(np.vdot(search, image))
        if bend <= 0.0:
            return search if step == 0 else direction
        length = inner / bend
        direction += length * search
        rest -= length * image
        if float(np.linalg.norm(rest)) <= forcing:
            break
        solved = precondition(rest)
        following = float(np.vdot(rest, solved))
        search *= following / inner
        search += solved
        inner = following
    return direction
