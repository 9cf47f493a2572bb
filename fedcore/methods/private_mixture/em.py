"""A round of EM on the server: weights, means and covariances from noisy sums in each component's units.

The known noise shrinks every number towards the round before, so that the rounds add up to one estimate:

    mean         moves by delta (1 - E noise^2 / delta^2)
    scale        from the mean square of rows cut to C, by inverting what the cut does to a normal component
    shape        pooled over components; a component's own matrix is mixed in by 1 - E noise^2 / deviation^2
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedcore.methods.mixture_models import chi_squared as chi2
from fedcore.methods.mixture_models.noisy_matrices import covariance_of
from fedcore.methods.mixture_models.whole_rows import ONE, matrix_of_products
from fedcore.methods.private_mixture.series import KNOWN, MEANS, SCALES, SHAPES, SHARES
from fedcore.methods.private_mixture.whitening import diagonal_noise

SURE, LIKELY, LEAST_SHARE = 3.0, 1.0, 0.002  # deviations of a count, and of all units: less is dropped
FLOOR = 0.05  # of the mean eigenvalue
LEAST_BACKGROUND = 1e-3
UNLIKELY = math.log(1000.0)
LEAST_SCALE, MOST_SCALE = 0.05, 4.0  # of a component's variance, relative to the round before
LEAST_EIGENVALUE, MOST_EIGENVALUE = 1e-4, 1e4  # in the coordinates of the components
MOST_MOVE = 10.0  # of a mean in a round, in the clip


@dataclass(frozen=True, slots=True)
class Sums:
    """A round's published values in steps, with the standard deviations of their noise under the same names.

    p: (k + 1,); pv: (k + 1, d); pvv: (k + 1,); pooled: (t,); own: (k + 1, t) or None. The background is the last of
    each, and not in the pooled triangle. There may be places of no component before it.
    """

    p: np.ndarray
    pv: np.ndarray
    pvv: np.ndarray
    pooled: np.ndarray
    own: np.ndarray | None
    noise: dict[str, float]


@dataclass(frozen=True, slots=True)
class Components:
    """weights: (k + 1,), the background's last; means (k, d), covariances (k, d, d). known: (k, KNOWN) variances of the
    noise in shares, means, scales and shapes, in own units; of no component before the first round."""

    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    known: np.ndarray


def roots_of(covariances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(k, d, d) symmetric inverse roots, and roots."""
    values, vectors = np.linalg.eigh(covariances)
    values = np.clip(values, LEAST_EIGENVALUE, MOST_EIGENVALUE)
    turned = np.swapaxes(vectors, -1, -2)
    return (vectors / np.sqrt(values)[..., None, :]) @ turned, (vectors * np.sqrt(values)[..., None, :]) @ turned


def bounded(covariances: np.ndarray) -> np.ndarray:
    """(k, d, d) with eigenvalues from LEAST_EIGENVALUE to MOST_EIGENVALUE; matrices whose own are within are left as
    they are. Rounds multiply up, and what is published may be anything."""
    values, vectors = np.linalg.eigh(covariances)
    outside = (values[:, 0] < LEAST_EIGENVALUE) | (values[:, -1] > MOST_EIGENVALUE)
    cut = np.clip(values, LEAST_EIGENVALUE, MOST_EIGENVALUE)
    rebuilt = (vectors * cut[:, None, :]) @ np.swapaxes(vectors, -1, -2)
    found: np.ndarray = np.where(outside[:, None, None], rebuilt, covariances)
    return found


@lru_cache(maxsize=64)
def _cut_table(d: int, clip: float) -> tuple[np.ndarray, np.ndarray]:
    """Variances, and the mean square over columns of normal rows of that variance that are cut to a norm of `clip`."""
    variances = np.geomspace(LEAST_SCALE / 4, MOST_SCALE * 16, 400)
    ratio = clip**2 / variances
    squares = variances * chi2.cdf(ratio, d + 2) + ratio * variances / d * chi2.sf(ratio, d)
    return variances, squares


def variance_before_cut(squares: np.ndarray, d: int, clip: float) -> np.ndarray:
    """The variance of normal rows whose mean square, cut, is `squares` a column."""
    variances, table = _cut_table(d, clip)
    found: np.ndarray = np.interp(squares, table, variances)
    return np.clip(found, LEAST_SCALE, MOST_SCALE)


@dataclass(frozen=True, slots=True)
class Believed:
    """share: (k,) of a movement that is believed; known: (k,) variance of the noise in where it ends."""

    share: np.ndarray
    known: np.ndarray


def believed(squares: np.ndarray, noise: np.ndarray, known: np.ndarray | None, numbers: float) -> Believed:
    """Shrink movements. squares: (k,) their squared sizes; numbers: how many numbers a movement has, each with noise of
    variance (k,).

    known: (k,) variances of the noise in their starting points; None if these count nothing. Without `known`, the share
    is the part of the movement that noise is not expected to have caused. With it, both are averaged by inverse
    variance, unless the movement is more than noise explains. Noise alone exceeds that limit less often than once in
    exp(UNLIKELY) times (Laurent and Massart 2000).
    """
    fresh = np.clip(1 - numbers * noise / np.maximum(squares, 1e-300), 0.0, 1.0)
    if known is None:
        return Believed(fresh, noise)
    both = known + noise
    same = squares <= both * (numbers + 2 * np.sqrt(numbers * UNLIKELY) + 2 * UNLIKELY)
    return Believed(np.where(same, known / both, fresh), np.where(same, known * noise / both, noise))


def staying(p: np.ndarray, noise: float, count: float, late: bool) -> tuple[np.ndarray, float]:
    """(k,) bool, which components hold enough to be kept, one at least; and how many units are enough. p: (k,)
    published, in steps, as is the standard deviation of its noise.

    late: whether it is one of the last rounds. Counts of the first ones are so noisy that a component must stand out of
    them by LIKELY deviations only, and then by SURE.
    """
    held = p / ONE
    least = max((SURE if late else LIKELY) * noise / ONE, LEAST_SHARE * count)
    stay: np.ndarray = held >= least
    stay[int(np.argmax(held))] = True
    return stay, least


def moved(before: Components, sums: Sums, clip: float, count: float, late: bool, pooled: bool = False) -> Components:
    """The components after a round; those that hold too little (`staying`) are dropped.

    pooled: whether what was known before the round is averaged with what it finds, as in runs of a series.
    """
    k, d = before.means.shape
    stay, least = staying(sums.p[:k], sums.noise["p"], count, late)
    held = np.maximum(sums.p[:k] / ONE, max(least, 1.0))
    _, roots = roots_of(before.covariances)
    known = dict.fromkeys(range(KNOWN)) if not pooled else dict(enumerate(before.known.T))

    # means, in own units
    delta = np.clip(sums.pv[:k] * (clip / ONE / held)[:, None], -MOST_MOVE * clip, MOST_MOVE * clip)
    noise = (sums.noise["pv"] * clip / ONE / held) ** 2
    squares = np.maximum((delta**2).sum(axis=1), 1e-300)
    mean = believed(squares, noise, known[MEANS], d)
    true = np.maximum(squares - d * noise, 0.0)  # of the movement without noise
    delta = delta * mean.share[:, None]
    means = before.means + np.einsum("kde,ke->kd", roots, delta)

    # scales
    mean_square = (sums.pvv[:k] * (clip**2 / ONE) / held - true) / d
    scale = variance_before_cut(mean_square, d, clip)
    uncertain = (sums.noise["pvv"] * (clip**2 / ONE) / held / d) ** 2
    size_of = believed(np.maximum((scale - 1) ** 2, 1e-12), uncertain, known[SCALES], 1)
    scale = 1 + (scale - 1) * size_of.share

    # shapes
    total = float(held[stay].sum())
    moved_by = np.einsum("k,kd,ke->de", np.where(stay, held, 0.0) / total, delta, delta)
    pooled_noise = diagonal_noise(sums.noise["pooled"]) * clip**2 / ONE / total
    matrix = matrix_of_products(sums.pooled, d) * (clip**2 / ONE / total) - moved_by
    size = float(np.trace(matrix)) / d
    size = size if size > FLOOR else 1.0
    matrix, pooled_noise = matrix / size, pooled_noise / size
    parts = (held / total) ** 2 if sums.own is not None else np.full(k, 1 / k)
    entries = np.full(k, pooled_noise**2)
    if (shapes_known := known[SHAPES]) is not None:
        away = matrix - np.eye(d)
        shared = believed((away**2).sum()[None], entries[:1], (parts @ shapes_known)[None], d * (d + 1) / 2)
        matrix, pooled_noise = np.eye(d) + shared.share[0] * away, float(shared.share[0]) * pooled_noise
        entries = np.full(k, shared.known[0])
    values, vectors = covariance_of(matrix, pooled_noise, FLOOR)
    values = values / values.mean()
    matrix = (vectors * values) @ vectors.T
    shapes = np.tile(matrix, (k, 1, 1)) * scale[:, None, None]
    if sums.own is not None:
        for j in np.flatnonzero(stay):
            of_own = shapes_known[j : j + 1] if shapes_known is not None else None
            own = _Own(sums.own[j], sums.noise["own"], held[j], clip)
            shapes[j], entries[j] = _with_own(shapes[j], scale[j], own, delta[j], of_own)
    covariances = np.einsum("kab,kbc,kcd->kad", roots, shapes, roots)
    covariances = bounded((covariances + np.swapaxes(covariances, -1, -2)) / 2)
    background = max(float(sums.p[-1]) / ONE, 0.0)
    weights = np.append(held[stay], background)
    weights /= weights.sum()
    share_noise = np.full(len(weights), (sums.noise["p"] / ONE / max(count, 1.0)) ** 2)
    old, old_known = before.weights[np.append(stay, True)], known[SHARES]
    if old_known is not None:
        old_known = np.append(old_known[stay], old_known[stay].mean())
    share = believed((weights - old / old.sum()) ** 2, share_noise, old_known, 1)
    if pooled:
        weights = np.maximum(old / old.sum() + share.share * (weights - old / old.sum()), LEAST_BACKGROUND)
    weights /= weights.sum()
    weights[-1] = np.clip(weights[-1], LEAST_BACKGROUND, 0.5)
    weights /= weights.sum()
    after = np.stack([share.known[:-1], mean.known[stay], size_of.known[stay], entries[stay]], axis=1)
    return Components(weights, means[stay], covariances[stay], after)


@dataclass(frozen=True, slots=True)
class _Own:
    """A component's own published triangle in steps, its noise, what the component holds, and the clip."""

    triangle: np.ndarray
    noise: float
    held: float
    clip: float


def _with_own(
    shared: np.ndarray, scale: float, own: _Own, delta: np.ndarray, known: np.ndarray | None
) -> tuple[np.ndarray, float]:
    """A component's matrix in its own units, the shared one with what its own release adds to that, and the variance of
    the noise of an entry. known: (1,) that of the shared one, or None."""
    d, unit = len(delta), own.clip**2 / ONE / own.held
    sd = diagonal_noise(own.noise) * unit
    matrix = matrix_of_products(own.triangle, d) * unit - np.outer(delta, delta)
    size = float(np.trace(matrix)) / d
    factor = scale / size if FLOOR < size else 1.0
    factor = float(np.clip(factor, 0.5, 4.0))  # what the cut has taken from it
    matrix, sd = matrix * factor, sd * factor
    deviation = matrix - shared
    mixed = believed((deviation**2).sum()[None], np.array([sd**2]), known, d * (d + 1) / 2)
    share, left = float(mixed.share[0]), float(mixed.known[0])
    if share == 0.0:
        return shared, left
    values, vectors = covariance_of(shared + share * deviation, share * sd, FLOOR)
    found: np.ndarray = (vectors * values) @ vectors.T
    return found, left
