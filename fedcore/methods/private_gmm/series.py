"""Shared knowledge of the runs of a series: shares, means and second moments of their components, pooled.

A run ends with the shares, means and second moments that it released for every component, each with noise of a known
standard deviation. A run that continues a series takes the inverse-variance mean of what the series knew of a component
and of what it released itself. What the series knew counts FORGETTING less from run to run.

Two runs mean the same component if their means are no farther apart than noise explains, and one standard deviation of
its rows (`matched`). A component that the series does not know starts with the releases of this run. One that this run
did not find is kept, unless it is one too many, for a later run that finds it again.

If the mean of a component is farther away than noise explains, the component has moved, and its mean starts again.
Shares are those of all components of a run, so they are pooled only if a run has found the same ones as the last one.

Everything here is a function of released arrays and of the plans of runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.packing import triangle
from fedcore.methods.mixture_models.whole_rows import matrix_of
from fedcore.methods.private_gmm.config import Covariance
from fedcore.methods.private_gmm.tree import triangle_of

FORGETTING = 0.95  # weight of what was there before a run, against 1 for what the run adds
SHARES, MEANS, MOMENTS = range(3)  # columns of `precision` and `noise`
QUANTITIES = 3
UNLIKELY = math.log(1000.0)  # a distance is more than noise if noise exceeds it less often than once in exp(UNLIKELY)


@dataclass(frozen=True, slots=True)
class Pool:
    """c components, in the units of the data; the present ones first.

    shares: (c,); means: (c, d); moments: (c, width) second moments about the means, as they are released
    precision: (c, 3) of shares, means and moments: the root of the sum of the inverse variances of what was released,
        as far as it is remembered; 0: of nothing
    noise: (c, 3) standard deviation of the noise in an entry
    present: (c,) 1 if the last run that found components found it, else 0
    lost: (1,) 1 if the last run did not find the components where the series has them, so that the next one searches
    """

    shares: np.ndarray
    means: np.ndarray
    moments: np.ndarray
    precision: np.ndarray
    noise: np.ndarray
    present: np.ndarray
    lost: np.ndarray

    def __len__(self) -> int:
        return len(self.shares)

    @property
    def found(self) -> Pool:
        """The components that the last run found."""
        return self.chosen(np.flatnonzero(self.present))

    def chosen(self, components: np.ndarray) -> Pool:
        rows = {field.name: getattr(self, field.name)[components] for field in fields(self) if field.name != "lost"}
        return replace(self, **rows)

    def forgotten(self) -> Pool:
        """What counts of it in the next run."""
        return replace(self, precision=math.sqrt(FORGETTING) * self.precision)

    def scales(self, form: Covariance, smallest: float) -> np.ndarray:
        """(c,) standard deviation of the rows, over all columns."""
        d = self.means.shape[1]
        if form == "full":
            traces = np.array([np.trace(matrix_of(row, d)) for row in self.moments])
        else:
            traces = self.moments.sum(axis=1)
        return np.sqrt(np.maximum(traces / d, smallest**2))


def empty(features: int, width: int) -> Pool:
    """Of no component."""
    none = np.zeros((0, QUANTITIES))
    return Pool(np.zeros(0), np.zeros((0, features)), np.zeros((0, width)), none, none, np.zeros(0), np.zeros(1))


def of_run(shares: np.ndarray, means: np.ndarray, moments: np.ndarray, noise: np.ndarray) -> Pool:
    """The pool of one run. noise: (m, 3) standard deviations."""
    return Pool(shares, means, moments, 1.0 / noise, noise, np.ones(len(shares)), np.zeros(1))


def matched(past: Pool, means: np.ndarray, noise: np.ndarray, form: Covariance, smallest: float) -> np.ndarray:
    """(m,) int64: which component of the past each of a run is; -1: none.

    means: (m, d) of the run; noise: (m,) of them. Nearest pairs first. Besides what noise explains a component may have
    moved by one standard deviation of its rows.
    """
    found = np.full(len(means), -1)
    if not len(past):
        return found
    squares = ((means[:, None] - past.means[None]) ** 2).sum(axis=2)
    explained = by_noise(noise[:, None], past.noise[None, :, MEANS], means.shape[1])
    allowed = explained + past.scales(form, smallest) ** 2
    for place in np.argsort(squares / allowed, axis=None, kind="stable"):
        own, other = divmod(int(place), len(past))
        if squares[own, other] <= allowed[own, other] and found[own] < 0 and other not in found:
            found[own] = other
    return found


def by_noise(noise: np.ndarray, other: np.ndarray, d: int) -> np.ndarray:
    """The largest squared distance of two estimates of one mean that noise explains. It is (v + v') chi2(d), v and v'
    the variances, and exceeds this less often than once in exp(UNLIKELY) times (Laurent and Massart 2000)."""
    largest: np.ndarray = (noise**2 + other**2) * (d + 2 * math.sqrt(d * UNLIKELY) + 2 * UNLIKELY)
    return largest


def joined(past: Pool, own: Pool, pairs: np.ndarray, form: Covariance, most: int) -> Pool:
    """What is known after a run: its components, then those of the past that it did not find, `most` in all at most.

    past: as it counts in this run; pairs: (m,) as `matched` gives them.
    """
    known = np.flatnonzero(pairs >= 0)
    before, now = past.chosen(pairs[known]), own.chosen(known)
    if len(known) < len(own) or before.present.sum() < past.present.sum():
        before = replace(before, precision=before.precision * np.array([0.0, 1.0, 1.0]))
    explained = by_noise(before.noise[:, MEANS], now.noise[:, MEANS], own.means.shape[1])
    moved = ((before.means - now.means) ** 2).sum(axis=1) > explained
    before.precision[moved, MEANS] = 0.0
    gains = 1.0 / (1.0 + (before.precision / now.precision) ** 2)
    means = _between(before.means, now.means, gains[:, MEANS])
    centres = np.where(moved[:, None], before.means, means)
    moments = _between(_about(centres, before, form), _about(means, now, form), gains[:, MOMENTS])
    pooled = {
        "shares": _between(before.shares, now.shares, gains[:, SHARES]),
        "means": means,
        "moments": moments,
        "precision": np.hypot(before.precision, now.precision),
        "noise": np.hypot((1.0 - gains) * before.noise, gains * now.noise),
    }
    for name, values in pooled.items():
        whole = getattr(own, name).copy()
        whole[known] = values
        pooled[name] = whole
    return _with_missed(replace(own, **pooled), past.chosen(np.setdiff1d(np.arange(len(past)), pairs)), most)


def _between(before: np.ndarray, now: np.ndarray, gain: np.ndarray) -> np.ndarray:
    gain = gain.reshape(-1, *(1,) * (now.ndim - 1))
    return (1.0 - gain) * before + gain * now


def _about(means: np.ndarray, pool: Pool, form: Covariance) -> np.ndarray:
    """(c, width) second moments about other means that are nearer to the truth: what the noise of the pool's own means
    had added is taken off."""
    moved = pool.means - means
    if form == "full":
        added = [triangle_of(np.outer(row, row)) for row in moved]
        return pool.moments - np.array(added).reshape(pool.moments.shape)
    return pool.moments - (moved**2 if form == "diag" else (moved**2).sum(axis=1, keepdims=True))


def _with_missed(found: Pool, missed: Pool, most: int) -> Pool:
    """Those that are known best are kept."""
    order = np.argsort(-missed.precision[:, MEANS], kind="stable")[: max(most - len(found), 0)]
    missed = replace(missed.chosen(order), present=np.zeros(len(order)))
    names = [field.name for field in fields(Pool) if field.name != "lost"]
    return replace(found, **{name: np.concatenate([getattr(found, name), getattr(missed, name)]) for name in names})


# --- arrays of warm starts ------------------------------------------------------------------------------------------

SERIES_NAMES = tuple(f"pooled_{field.name}" for field in fields(Pool))


def arrays_of(pool: Pool) -> dict[str, np.ndarray]:
    """As arrays of a warm start; none if it knows nothing."""
    return {f"pooled_{field.name}": getattr(pool, field.name) for field in fields(pool)} if len(pool) else {}


def pool_in(arrays: Mapping[str, np.ndarray] | None, features: int, form: Covariance) -> Pool:
    """That of a warm start; of no component if it has none. Raises ConfigError for what no run leaves."""
    width = width_of(form, features)
    if arrays is None or not any(name in arrays for name in SERIES_NAMES):
        return empty(features, width)
    values = [np.asarray(arrays.get(name, np.zeros(0)), np.float64) for name in SERIES_NAMES]
    pool = Pool(*values)
    c = pool.shares.size
    shapes = [(c,), (c, features), (c, width), (c, QUANTITIES), (c, QUANTITIES), (c,), (1,)]
    if c == 0 or [value.shape for value in values] != shapes:
        raise ConfigError(
            f"{', '.join(SERIES_NAMES)} of the start are not those of a series with {form} covariances over "
            f"{features} columns.",
            "Keep the covariance of the series, or start from nothing.",
        )
    if not all(np.isfinite(value).all() for value in values) or (pool.precision < 0).any() or (pool.noise < 0).any():
        raise ConfigError("the pool of the start holds what no run leaves.", "Start from another run, or from nothing.")
    return pool


def width_of(form: Covariance, features: int) -> int:
    """Numbers of a released second moment."""
    return {"spherical": 1, "diag": features, "full": triangle(features)}[form]
