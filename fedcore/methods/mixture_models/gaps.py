"""Rows of Gaussian mixtures with missing entries: the E-step given what was seen, by conditional moments.

Of a row with observed entries o and missing ones m, and of component g with precision P = W'W,

    x_m | x_o, g ~ N(x^_m, C),   C = P_mm^-1,   x^_m - mu_m = -C P_mo (x_o - mu_o)
    ln N(x_o; mu_o, Sigma_oo) = -(|o| ln 2 pi - ln|P| + ln|P_mm| + |W (x^ - mu)|^2) / 2

with x^ the row completed by its conditional mean. So what has to be factorised is as large as what is missing, for each
pattern of missing entries and each component. The expected statistics are r_g, r_g x^, r_g (x^ x^' + C), C in the rows
and columns of m: those of a complete row, with x^ for x and C besides (Little, Rubin, "Statistical analysis with
missing data", chapter 11). Rows are answered in batches, so that the memory does not grow with the number of patterns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedcore.methods.mixture_models.packing import LOG_TWO_PI, packed_places, products, triangle

NUMBERS = 2**20  # float64 numbers of a batch: completed rows and conditional covariances of all components


class Gaps(NamedTuple):
    """columns: (n,) which columns of a tile have missing entries. x: (d, n) these rows less the model's centre, with
    NaN where something is missing."""

    columns: np.ndarray
    x: np.ndarray

    def without(self, columns: np.ndarray | None) -> Gaps:
        """Without some columns of the tile, those that stand for no row."""
        if columns is None:
            return self
        kept = ~np.isin(self.columns, columns)
        return Gaps(self.columns[kept], self.x[:, kept])


def take_gaps(z: np.ndarray, r: np.ndarray, d: int) -> Gaps | None:
    """The columns of z (F, n), 1 and the d numbers of a row first, that hold NaN; None if there are none. In z and in
    what was computed from it, r (G, n), they become 0. Whether there are any is seen from r, which is NaN where z is,
    at less than it costs to look at z."""
    if not np.isnan(r[0].sum()):
        return None
    columns = np.flatnonzero(np.isnan(z[1 : 1 + d]).any(axis=0))
    if not len(columns):  # infinite entries give NaN as well
        return None
    taken = z[1 : 1 + d, columns]
    z[:, columns] = 0.0
    r[:, columns] = 0.0
    return Gaps(columns, taken)


class Components(NamedTuple):
    """What rows with gaps need of the parameters. H: components, or 1 if all have one covariance.

    logs:    (G,) ln pi. means: (G, d), from the model's centre.
    whiten:  (H, d, d) W, precision: (H, d, d) P, half_log_det: (H,) ln|P| / 2; for diagonal covariances None, None and
             (H,) zeros
    variances: (H, d) of diagonal covariances; (0, 0) else
    second:  which second moments the statistic has: "", "sum" (spherical), "diag" or "full"
    """

    logs: np.ndarray
    means: np.ndarray
    whiten: np.ndarray | None
    half_log_det: np.ndarray
    variances: np.ndarray
    second: str


class Completed(NamedTuple):
    """A batch of n rows as the components see them.

    columns:   which of the rows with gaps
    log_joint: (G, n) ln(pi_g f_g(x_o))
    rows:      (G, d, n) x^, from the model's centre
    left:      (H, d, n) variances of the missing entries given the others, 0 elsewhere, of diagonal covariances
    blocks:    C of other covariances, by number of missing entries: rows (c,), their missing entries (c, k), and
               (H, c, k, k)
    """

    columns: slice
    log_joint: np.ndarray
    rows: np.ndarray
    left: np.ndarray
    blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray]]

    def features(self, g: int, second: str, kept: np.ndarray | None = None) -> np.ndarray:
        """(F, n): 1, x^, and the second moments of component g; in the memory of those of another component, if they
        are given."""
        x = self.rows[g]
        d, n = x.shape
        z = kept
        if z is None:
            z = np.empty((1 + d + {"": 0, "sum": 1, "diag": d, "full": triangle(d)}[second], n))
        z[0], z[1 : 1 + d] = 1.0, x
        if second == "full":
            products(x, z[1 + d :])
            _, places, scale = packed_places(d)
            for rows, missing, covariances in self.blocks:
                first, last = np.triu_indices(missing.shape[1])
                at = places[missing[:, first], missing[:, last]]
                z[1 + d + at, rows[:, None]] += covariances[g % len(covariances)][:, first, last] * scale[at]
        elif second:
            squares = x * x + self.left[g % len(self.left)]
            z[1 + d :] = squares if second == "diag" else squares.sum(axis=0)
        return z


def completed(components: Components, x: np.ndarray) -> Iterator[Completed]:
    """The rows x (d, n), as in `Gaps`, in batches in order."""
    g, d = components.means.shape
    missing = np.isnan(x)
    together = NUMBERS // (g * (4 * d + int(missing.sum(axis=0).max(initial=0)) ** 2))
    for low in range(0, x.shape[1], max(together, 1)):
        columns = slice(low, min(low + max(together, 1), x.shape[1]))
        yield _batch(components, columns, x[:, columns], missing[:, columns])


def _batch(components: Components, columns: slice, x: np.ndarray, missing: np.ndarray) -> Completed:
    off = np.where(missing, 0.0, x - components.means[:, :, None])  # (G, d, n) x^ - mu
    seen = x.shape[0] - np.count_nonzero(missing, axis=0)
    log_joint = components.logs[:, None] - 0.5 * LOG_TWO_PI * seen
    if components.whiten is None:
        variances = components.variances[:, :, None]
        log_joint = log_joint - 0.5 * np.sum(off * off / variances, axis=1)
        log_joint -= 0.5 * np.sum(np.where(missing, 0.0, np.log(variances)), axis=1)
        return Completed(columns, log_joint, off + components.means[:, :, None], np.where(missing, variances, 0.0), [])
    blocks, half_log_dets = _complete(components.whiten, off, missing)
    white = components.whiten @ off
    log_joint = log_joint + components.half_log_det[:, None] - half_log_dets
    log_joint -= 0.5 * np.einsum("gin,gin->gn", white, white)
    off += components.means[:, :, None]
    return Completed(columns, log_joint, off, np.zeros((0, 0, 0)), blocks)


def _complete(
    whiten: np.ndarray, off: np.ndarray, missing: np.ndarray
) -> tuple[list[tuple[np.ndarray, np.ndarray, np.ndarray]], np.ndarray]:
    """Fills in the missing entries of off (G, d, n), which are 0; the conditional covariances, and (H, n) ln|P_mm| / 2.

    One factor for each pattern of missing entries.
    """
    precision = np.swapaxes(whiten, 1, 2) @ whiten
    pulled = precision @ off
    half_log_dets = np.zeros((len(whiten), off.shape[2]))
    keys = np.ascontiguousarray(np.packbits(missing, axis=0).T)
    _, first, pattern = np.unique(keys.view(np.dtype((np.void, keys.shape[1])))[:, 0], True, True)
    counts = np.count_nonzero(missing, axis=0)
    blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for k in np.unique(counts[counts > 0]).tolist():
        rows = np.flatnonzero(counts == k)
        own, number = np.unique(pattern[rows], return_inverse=True)
        entries = np.nonzero(missing[:, first[own]].T)[1].reshape(-1, k)
        lower = np.linalg.cholesky(precision[:, entries[:, :, None], entries[:, None, :]])
        inverse = np.linalg.inv(lower)
        covariances = (np.swapaxes(inverse, -1, -2) @ inverse)[:, number]
        log_dets = np.log(np.diagonal(lower, axis1=-2, axis2=-1)).sum(axis=-1)
        half_log_dets[:, rows] = log_dets[:, number]
        at, which = entries[number], rows[:, None]
        off[:, at, which] = -(covariances @ pulled[:, at, which][..., None])[..., 0]
        blocks.append((rows, at, covariances))
    return blocks, half_log_dets
