"""Regressions of clients that differ: beta_k ~ N(m, D), y_k = A_k beta_k + noise of variance s2; all of it estimated.

m, D (full) and s2 are found by EM from sums of the clients. A client keeps the square system that an orthogonal
factorisation makes of its rows (`systems`), from which

    G = A'A = R'R,    h = A'y = R'a,    |y - A b|^2 = |a - R b|^2 + rss.

With D = L L', B = R L, z = a - R m and J = B'B + s2 I, a client finds

    q = J^-1 B'z,    b = m + L q,    C = s2 L J^-1 L'                       mean and covariance of beta_k given its rows
    d2 = |z - B q|^2 / s2 + |q|^2      = u'(G D G + s2 G)^-1 u for u = h - G m: chi-squared with min(p, n) degrees
    e = (|y - A b|^2 + tr C G) / (n s2)                                     about 1
    t = clip(2 - d2 / chi2(0.99), 0, 1) clip(2 - e / (1 + 3 sqrt(2 / n)), 0, 1)

without an inverse of G or of D, so that fewer rows than inputs and clients that do not differ at all are ordinary
cases. t is what the client counts in the next m, D and s2: nothing if its coefficients or its noise are far from
what the others have. With t = 1 a round is a step of EM for maximum likelihood, and the likelihood never falls.

Source: Laird, Ware 1982 for EM of random effects; the robust weights are ours.

Fewer rounds of EM where D is nearly singular: extrapolation of the server's own steps; clients notice nothing.

Where D has a small eigenvalue, or the data hardly identify a direction, EM moves by ever smaller steps. Three
consecutive points, x0, x1 = F(x0), x2 = F(x1), show how the steps shrink:

    r = x1 - x0,  v = (x2 - x1) - r,  a = |r| / |v|,      x = x0 + 2 a r + a^2 v

from which the next three follow. A point is m, the symmetric root of D, and log s2, in units of the standard deviations
of clients' coefficients at x0, so that any x stands for a proper D. a is at least 1 (then x = x2) and at most
`longest`, which doubles each time. The next round measures x: if its own step is more than `WORST` times the one
before, or the likelihood falls where it is what is maximised, the server goes back to F(x2) and `longest` falls.

Source: Varadhan, Roland 2008, squared iterative methods with steplength S3; the units and the measure are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedcore.methods.mixture_models import apart
from fedcore.methods.mixture_models import chi_squared as chi2
from fedcore.methods.mixture_models.local_steps import Rows
from fedcore.methods.mixture_models.tiles import stacks

QUANTILE = 0.99
NOISE_DEVIATIONS = 3.0
TAIL = 10.0  # nu of `apart`
RIDGE = 1e-3  # of a client's own fit, in mean squares of each input over a row
MAD_TO_SD = 1.4826
SMALLEST_NOISE = 1e-12  # s2, relative to the mean square of the response
LOG_TWO_PI = float(np.log(2.0 * np.pi))


class Systems(NamedTuple):
    """What clients keep of their rows. root: (C, p, p) upper triangular R; target: (C, p) a; rss: (C,) what no
    coefficients explain; n: (C,) rows."""

    root: np.ndarray
    target: np.ndarray
    rss: np.ndarray
    n: np.ndarray


class Common(NamedTuple):
    """What the clients share. mean: (p,) m; between: (p, p) D; noise: s2; smallest: of s2."""

    mean: np.ndarray
    between: np.ndarray
    noise: float
    smallest: float

    def row(self) -> np.ndarray:
        """(p + p p + 1,) m, D and s2."""
        return np.concatenate([self.mean, self.between.ravel(), [self.noise]])

    @classmethod
    def of_row(cls, row: np.ndarray, p: int, smallest: float) -> Common:
        return cls(row[:p], row[p:-1].reshape(p, p), float(row[-1]), smallest)


class Posteriors(NamedTuple):
    """Of each client's coefficients. coefficients: (C, p) b; covariances: (C, p, p) C; distances, noises, shares: (C,)
    d2, e and t; log_likelihoods: (C,) of its responses, with the coefficients integrated out, nats;
    reduced: (C, p) q; reduced_covariances: (C, p, p) s2 J^-1.
    """

    coefficients: np.ndarray
    covariances: np.ndarray
    distances: np.ndarray
    noises: np.ndarray
    shares: np.ndarray
    log_likelihoods: np.ndarray
    reduced: np.ndarray
    reduced_covariances: np.ndarray


class OwnFits(NamedTuple):
    """What clients send before the first round.

    coefficients: (C, p) of a fit with a small ridge
    variances:    (C,) its residual variance; NaN for clients that have no more rows than inputs
    sums:         (p + 3,) diagonal of G, squares of the responses, rows, clients with rows
    """

    coefficients: np.ndarray
    variances: np.ndarray
    sums: np.ndarray


# --- clients ----------------------------------------------------------------------------------------------------------


def systems(rows: Rows) -> Systems:
    """The square systems of all clients; those of clients without rows are 0."""
    y, c, p = rows.responses, len(rows.ptr) - 1, rows.x.shape[1]
    found = np.zeros((c, p + 1, p + 1))
    for stack in stacks(rows.ptr, 2 * (p + 1)):
        table = np.zeros((stack.shape[0], stack.shape[1] + p + 1, p + 1))
        table[:, : p + 1] = found[stack.clients]  # of a client in several stacks, what there was before
        own = table[:, p + 1 :]
        own[:, :, :p], own[:, :, p] = stack.take(rows.x), stack.take(y)
        if stack.seen is not None:
            own[~stack.seen] = 0.0
        found[stack.clients] = np.linalg.qr(table, mode="r")
    return Systems(found[:, :p, :p], found[:, :p, p], found[:, p, p] ** 2, rows.sizes)


def own_fits(own: Systems) -> OwnFits:
    """Every client's least squares, with a ridge that is negligible unless its rows leave a direction open."""
    p, n = own.root.shape[1], np.maximum(own.n, 1)
    squares = np.einsum("kij,kij->kj", own.root, own.root)
    ridge = RIDGE * squares / n[:, None]
    ridge = np.where(ridge > 0, ridge, 1.0)  # of an input that is always 0
    gram = own.root.transpose(0, 2, 1) @ own.root
    gram[:, np.arange(p), np.arange(p)] += ridge
    coefficients = np.linalg.solve(gram, np.einsum("kij,ki->kj", own.root, own.target)[:, :, None])[:, :, 0]
    free = own.n - p
    variances = np.where(free > 0, own.rss / np.maximum(free, 1), np.nan)
    response = np.einsum("ki,ki->", own.target, own.target) + own.rss.sum()
    sums = np.concatenate([squares.sum(axis=0), [response, own.n.sum(), np.count_nonzero(own.n)]])
    return OwnFits(coefficients, variances, sums)


def posteriors(own: Systems, common: Common, robust: bool = True, widened: np.ndarray | None = None) -> Posteriors:
    """What the clients find, all at once. widened: (C,) factor of D for each client; None: 1."""
    c, p, s2 = *own.target.shape, common.noise
    half = root_of(common.between)
    reach = own.root @ half
    if widened is not None:
        reach = reach * np.sqrt(widened)[:, None, None]
    z = own.target - own.root @ common.mean
    squares = reach.transpose(0, 2, 1) @ reach
    # The least shift that keeps a singular matrix invertible; it is below the rounding of the matrix itself.
    shift = s2 + 4 * p * np.finfo(float).eps * np.trace(squares, axis1=1, axis2=2)
    inverse = np.linalg.inv(squares + shift[:, None, None] * np.eye(p))
    q = np.einsum("kij,klj,kl->ki", inverse, reach, z, optimize=True)
    left = z - np.einsum("kij,kj->ki", reach, q)
    left = np.einsum("ki,ki->k", left, left)
    degrees = np.minimum(own.n, p)
    fitted = np.einsum("kij,kji->k", inverse, squares)  # tr C G / s2
    distances = left / s2 + np.einsum("ki,ki->k", q, q)
    n = np.where(own.n > 0, own.n, 1.0)
    noises = ((own.rss + left) / s2 + fitted) / n
    far = distances / chi2.ppf(QUANTILE, np.maximum(degrees, 1))
    noisy = noises / (1.0 + NOISE_DEVIATIONS * np.sqrt(2.0 / n))
    shares = (own.n > 0).astype(np.float64)
    if robust:
        shares *= np.clip(2.0 - far, 0.0, 1.0) * np.clip(2.0 - noisy, 0.0, 1.0)
    logdet = -np.linalg.slogdet(inverse)[1] + (own.n - p) * np.log(s2)
    fit = -0.5 * (own.n * LOG_TWO_PI + logdet + own.rss / s2 + distances)
    scale = np.ones(c) if widened is None else np.sqrt(widened)
    reduced_covariances = s2 * inverse
    covariances = half @ reduced_covariances @ half.T * (scale**2)[:, None, None]
    coefficients = common.mean + scale[:, None] * (q @ half.T)
    return Posteriors(coefficients, covariances, distances, noises, shares, fit, q, reduced_covariances)


def round_sums(own: Systems, found: Posteriors) -> np.ndarray:
    """(p p + p + 5,) all that leaves the clients in a round, added over them: t (q q' + s2 J^-1), t q, t n e, t n, t;
    then for the round's metrics t times the log-likelihood, and clients with t = 0."""
    t, q = found.shares, found.reduced
    second = (t[:, None] * q).T @ q + np.tensordot(t, found.reduced_covariances, 1)
    rows = t * own.n
    none = np.count_nonzero((t == 0) & (own.n > 0))
    last = [rows @ found.noises, rows.sum(), t.sum(), t @ found.log_likelihoods, none]
    return np.concatenate([second.ravel(), t @ q, last])


def personal(own: Systems, common: Common, robust: bool = True) -> Posteriors:
    """The last step: a client that is far out takes D_k = D max(1, d2 / chi2(0.99)), so that its own rows decide."""
    found = posteriors(own, common, robust)
    if not robust:
        return found
    wide = posteriors(own, common, robust, widening(own, found))
    return wide._replace(distances=found.distances, noises=found.noises, shares=found.shares)


def degrees(own: Systems) -> np.ndarray:
    """(2, C) degrees of freedom of d2 and of n e, at least 1."""
    return np.maximum([np.minimum(own.n, own.target.shape[1]), own.n], 1.0)


def ratios(own: Systems, found: Posteriors) -> np.ndarray:
    """(2, C) d2 and n e over their degrees of freedom, about 1; NaN without rows."""
    return np.where(own.n > 0, [found.distances, own.n * found.noises] / degrees(own), np.nan)


def scores(own: Sequence[Systems], found: Sequence[Posteriors]) -> np.ndarray:
    """(2, 320) `apart.counts_of_largest` of coefficients and of noise, over the components."""
    each = np.stack([ratios(*one) for one in zip(own, found, strict=True)], axis=2)
    return np.stack([apart.counts_of_largest(kind) for kind in each])


def relative_distances(
    own: Sequence[Systems], found: Sequence[Posteriors], scores: np.ndarray, typical: float
) -> np.ndarray:
    """(C, R) how far from the others a client is by the worse of coefficients and noise, 1 where it begins to be apart;
    NaN without rows. scores: over all clients; typical: rows of a client in a component."""
    p, relative = own[0].target.shape[1], []
    for one, posterior in zip(own, found, strict=True):
        kinds = zip(ratios(one, posterior), scores, (min(typical, p), typical), degrees(one), strict=True)
        limited = [ratio / apart.limits(counts, of, d, len(own), TAIL, kinds=2) for ratio, counts, of, d in kinds]
        relative.append(np.sqrt(np.maximum(*limited)))
    return np.stack(relative, axis=1)


def widening(own: Systems, found: Posteriors) -> np.ndarray:
    """(C,) the factor of D of each client in the end, if weights are robust."""
    degrees = np.maximum(np.minimum(own.n, own.target.shape[1]), 1)
    return np.maximum(1.0, found.distances / chi2.ppf(QUANTILE, degrees))


def log_density_of_others(every: Systems, own: Systems, common: Common, robust: bool = True) -> np.ndarray:
    """(C,) log-density of the responses in `every` that are not in `own`, given those in `own`, nats."""
    found = posteriors(own, common, robust)
    widened = widening(own, found) if robust else None
    given = found if widened is None else posteriors(own, common, robust, widened)
    return posteriors(every, common, robust, widened).log_likelihoods - given.log_likelihoods


# --- server -----------------------------------------------------------------------------------------------------------


def first_common(coefficients: np.ndarray, variances: np.ndarray, sums: np.ndarray) -> Common:
    """The start: medians of own fits, their squared MAD, the median residual variance.

    coefficients: (K, p), variances: (K,) of clients that were asked; sums: of `OwnFits`, over all clients. D is at
    least the noise that an average client's own fit has: from D = 0 no round would move m.
    Raises ValueError if there is no client.
    """
    if not len(coefficients) or not sums[-2] > 0:
        raise ValueError("no client has rows")
    p = coefficients.shape[1]
    rows, clients = sums[-2], sums[-1]
    smallest = max(SMALLEST_NOISE * float(sums[p] / rows), float(np.finfo(float).tiny) ** 0.5)
    full = np.isfinite(variances)
    if full.any():
        coefficients = coefficients[full]
        noise = float(np.median(variances[full]))
    else:
        noise = float(sums[p] / rows)  # no client can separate noise from differences; the rounds do
    noise = max(noise, smallest)
    mean = np.median(coefficients, axis=0)
    mad = MAD_TO_SD * np.median(np.abs(coefficients - mean), axis=0)
    information = sums[:p] / clients
    least = np.where(information > 0, noise / np.where(information > 0, information, 1.0), 0.0)
    return Common(mean, np.diag(np.maximum(mad**2, least)), noise, smallest)


def next_common(common: Common, sums: np.ndarray) -> Common:
    """m, D and s2 after a round. As they were if no client counts."""
    p = len(common.mean)
    second, q = sums[: p * p].reshape(p, p), sums[p * p : p * p + p]
    noises, rows, counted = sums[p * p + p : p * p + p + 3]
    if not (counted > 0 and rows > 0):
        return common
    half, q = root_of(common.between), q / counted
    between = half @ (second / counted - np.outer(q, q)) @ half.T
    noise = max(common.noise * noises / rows, common.smallest)
    return Common(common.mean + half @ q, 0.5 * (between + between.T), float(noise), common.smallest)


def root_of(between: np.ndarray) -> np.ndarray:
    """(p, p) L with L L' = D, also of a singular D."""
    values, vectors = np.linalg.eigh(between)
    return vectors * np.sqrt(np.maximum(values, 0.0))


# --- extrapolation ----------------------------------------------------------------------------------------------------


FIRST_LONGEST, LEAST_LONGEST = 4.0, 2.0
WORST = 10.0
FALL = 1e-6  # of a likelihood, relative
LARGEST_LOG = 600.0


class Trail(NamedTuple):
    """What the server remembers of its last steps.

    points:  (0 to 2, q) the present cycle, each m, D and s2 in a row
    safe:    (1, q) where to go if the present point is poor, or (0, q)
    step, fit: of the round before the present point: the length of its step, and its log-likelihood
    longest: of a
    """

    points: np.ndarray
    safe: np.ndarray
    step: float
    fit: float
    longest: float


def no_trail(p: int) -> Trail:
    empty = np.zeros((0, p + p * p + 1))
    return Trail(empty, empty, 0.0, 0.0, FIRST_LONGEST)


def next_point(trail: Trail, before: Common, after: Common, fit: float, *, likelihood: bool) -> tuple[Common, Trail]:
    """Where the next round starts, and the trail. after: F(before); fit: log-likelihood at before; likelihood: whether
    it is what is maximised."""
    step = _step_between(before, after)
    if len(trail.safe):  # before was extrapolated
        fell = likelihood and fit < trail.fit - FALL * abs(trail.fit)
        none = no_trail(len(before.mean))._replace(longest=trail.longest)
        if fell or not step <= WORST * trail.step:
            shorter = max(trail.longest / 4.0, LEAST_LONGEST)
            return Common.of_row(trail.safe[0], len(before.mean), before.smallest), none._replace(longest=shorter)
        return after, none._replace(points=after.row()[None], longest=2.0 * trail.longest)
    points = trail.points if len(trail.points) else before.row()[None]
    if len(points) < 2:
        return after, trail._replace(points=np.vstack([points, after.row()]))
    first = Common.of_row(points[0], len(before.mean), before.smallest)
    units = _units(first)
    x0, x1, x2 = (_coordinates(point, units) for point in (first, before, after))
    r = x1 - x0
    v = (x2 - x1) - r
    length = np.linalg.norm(v)
    a = min(max(float(np.linalg.norm(r) / length), 1.0), trail.longest) if length > 0 else 1.0
    found = _of_coordinates(x0 + 2.0 * a * r + a * a * v, units, before.smallest)
    return found, Trail(points[:0], after.row()[None], step, fit, trail.longest)


def _step_between(before: Common, after: Common) -> float:
    units = _units(before)
    return float(np.linalg.norm(_coordinates(after, units) - _coordinates(before, units)))


def _units(common: Common) -> np.ndarray:
    deviations = np.sqrt(np.maximum(np.diag(common.between), 0.0))
    return np.where(deviations > 0, deviations, 1.0)


def _coordinates(common: Common, units: np.ndarray) -> np.ndarray:
    """m, the upper triangle of the symmetric root of D with its norm kept, log s2."""
    values, vectors = np.linalg.eigh(common.between / np.outer(units, units))
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    at = np.triu_indices(len(units))
    return np.concatenate([common.mean / units, root[at] * _norms(at), [np.log(common.noise)]])


def _of_coordinates(x: np.ndarray, units: np.ndarray, smallest: float) -> Common:
    p = len(units)
    at = np.triu_indices(p)
    root = np.zeros((p, p))
    root[at] = root[at[1], at[0]] = x[p:-1] / _norms(at)
    noise = float(np.exp(np.clip(x[-1], -LARGEST_LOG, LARGEST_LOG)))
    return Common(x[:p] * units, (root @ root) * np.outer(units, units), max(noise, smallest), smallest)


def _norms(at: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return np.where(at[0] == at[1], 1.0, np.sqrt(2.0))
