"""Rows of Gaussian mixtures with missing entries: the E-step given what was seen, by conditional moments.

Of a row with observed entries o and missing ones m, and of component g with precision P = W'W,

    x_m | x_o, g ~ N(x^_m, C),   C = P_mm^-1,   x^_m - mu_m = -C P_mo (x_o - mu_o)
    ln N(x_o; mu_o, Sigma_oo) = -(|o| ln 2 pi - ln|P| + ln|P_mm| + |W (x^ - mu)|^2) / 2

with x^ the row completed by its conditional mean. So what has to be inverted is as large as what is missing, for each
pattern of missing entries and each component. The expected statistics are r_g, r_g x^, r_g (x^ x^' + C), C in the rows
and columns of m: those of a complete row, with x^ for x and C besides (Little, Rubin, "Statistical analysis with
missing data", chapter 11). Of Student-t components (`fedcore.methods.mixture_models.student`) x_m given x_o has
nu + |o| degrees of freedom and the scale matrix C / w, with w = (nu + |o|) / (nu + delta_o). Here delta_o is the
squared Mahalanobis distance of what was seen. Their statistics are r_g, r_g w, r_g w x^ and r_g (w x^ x^' + C).

Most rows may have a pattern that no other row has. So all patterns with k missing entries, and all components, are
inverted at once by k steps of the sweep operator (Goodnight 1979, "A tutorial on the SWEEP operator"), which run along
contiguous memory; beyond SWEPT missing entries by LAPACK, one after the other. Rows are answered in batches, so that
the memory does not grow with the number of patterns.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy

from fedcore.methods.mixture_models.packing import LOG_TWO_PI, pack_symmetric, packed_places, products, triangle

NUMBERS = 2**20  # float64 numbers of a batch: completed rows and conditional covariances of all components
SWEPT_NUMBERS = 2**15  # of the matrices that are swept at a time: they and their changes fit into the cache
SWEPT = 20  # missing entries, up to which sweeping is faster
FEW_NUMBERS = 2**15  # of the matrices of patterns with few rows, which do not justify a separate sweep
MANY_ROWS = 16  # of a pattern on average: then one product for each pattern is faster than one for each row


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


def joined(gaps: list[Gaps]) -> Gaps:
    return Gaps(np.concatenate([one.columns for one in gaps]), np.concatenate([one.x for one in gaps], axis=1))


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
    degrees: of freedom; infinite: components are normal
    """

    logs: np.ndarray
    means: np.ndarray
    whiten: np.ndarray | None
    half_log_det: np.ndarray
    variances: np.ndarray
    second: str
    degrees: float = math.inf


class Patterns(NamedTuple):
    """Rows with at most k missing entries each, k > 0, of p different patterns.

    rows:        (c,) which of the batch. number: (c,) the pattern of each, ascending
    entries:     (p, k) what is missing, then d, which stands for none
    covariances: (k, k, p, H) C, and the identity for none
    """

    rows: np.ndarray
    number: np.ndarray
    entries: np.ndarray
    covariances: np.ndarray

    @property
    def entries_of_rows(self) -> np.ndarray:
        """(c, k)"""
        return self.entries[self.number]


class Completed(NamedTuple):
    """A batch of n rows as the components see them.

    columns:   which of the rows with gaps
    log_joint: (G, n) ln(pi_g f_g(x_o))
    rows:      (G, d, n) x^, from the model's centre
    left:      (H, d, n) variances of the missing entries given the others, 0 elsewhere, of diagonal covariances
    patterns:  those of other covariances, by number of missing entries
    latent:    (G, n) w of Student-t components; None of normal ones
    degrees:   (n,) of freedom of what is missing, given what was seen; infinite of normal components
    """

    columns: slice
    log_joint: np.ndarray
    rows: np.ndarray
    left: np.ndarray
    patterns: list[Patterns]
    latent: np.ndarray | None
    degrees: np.ndarray

    def sums(self, r: np.ndarray, starts: np.ndarray, second: str) -> np.ndarray:
        """(c, G, F): 1, x^, and the second moments, weighted by r (G, n) and summed over each run of rows; of Student-t
        components first r alone, and the others by r w. starts: (c,) where they begin, the first at 0. second: as in
        `Components`."""
        g, d, n = self.rows.shape
        mass = r if self.latent is None else r * self.latent
        sums = np.zeros((len(starts), g, 1 + d + {"": 0, "sum": 1, "diag": d, "full": triangle(d)}[second]))
        sums[:, :, 0] = np.add.reduceat(mass, starts, axis=1).T
        weighted = np.multiply(self.rows, mass[:, None], out=_memory("white", self.rows.shape))
        sums[:, :, 1 : 1 + d] = np.add.reduceat(weighted, starts, axis=2).transpose(2, 0, 1)
        if second == "full":
            if len(starts) == 1:
                sums[0, :, 1 + d :] = pack_symmetric(weighted @ np.swapaxes(self.rows, 1, 2))
            else:
                z = np.empty((triangle(d), n))
                for own, x, weights in zip(sums.transpose(1, 0, 2), self.rows, mass, strict=True):
                    products(x, z)
                    own[:, 1 + d :] = np.add.reduceat(z * weights, starts, axis=1).T
            for patterns in self.patterns:
                _add_covariances(patterns, r, np.searchsorted(starts, patterns.rows, "right") - 1, sums[:, :, 1 + d :])
        elif second:
            weighted *= self.rows
            weighted += self.left * r[:, None]
            squares = np.add.reduceat(weighted, starts, axis=2).transpose(2, 0, 1)
            sums[:, :, 1 + d :] = squares if second == "diag" else squares.sum(axis=2, keepdims=True)
        if self.latent is None:
            return sums
        return np.concatenate([np.add.reduceat(r, starts, axis=1).T[:, :, None], sums], axis=2)


def _add_covariances(patterns: Patterns, r: np.ndarray, owners: np.ndarray, sums: np.ndarray) -> None:
    """Adds to sums (c, G, d (d + 1) / 2) the packed C of every row, weighted by r (G, n). owners: (rows,) from 0."""
    (count, g, size), (k, _, p, _) = sums.shape, patterns.covariances.shape
    keys = owners * p + patterns.number
    order = np.argsort(keys, kind="stable")
    firsts = np.flatnonzero(np.diff(keys[order], prepend=-1))
    keys = keys[order[firsts]]  # of each owner's patterns
    weights = np.add.reduceat(r.T[patterns.rows[order]], firsts, axis=0)
    i, j = np.triu_indices(k)
    covariances, entries = patterns.covariances, patterns.entries
    if count > 1:
        covariances, entries = covariances[:, :, keys % p], entries[keys % p]
    values = _memory("values", (len(i), len(keys), g))
    for out, first, last in zip(values, i, j, strict=True):
        np.multiply(covariances[first, last], weights, out=out)
    places, scale = _places_or_none(size)
    at = places[entries[:, i], entries[:, j]].T  # (K, keys)
    size += 1
    chosen = scipy.sparse.csc_matrix(
        (scale[at].ravel(), (keys // p * size + at).ravel(), np.arange(at.size + 1)), shape=(count * size, at.size)
    )
    sums += (chosen @ values.reshape(-1, g)).reshape(count, size, g).transpose(0, 2, 1)[:, :, :-1]


@lru_cache(maxsize=16)
def _places_or_none(size: int) -> tuple[np.ndarray, np.ndarray]:
    """`packed_places` of d (d + 1) / 2 numbers: places (d + 1, d + 1) and scales, with one more place for what stands
    for no entry."""
    d = int(np.sqrt(2 * size))
    _, own, scale = packed_places(d)
    places = np.full((d + 1, d + 1), size)
    places[:d, :d] = own
    return places, np.append(scale, 0.0)


_kept = threading.local()


def _memory(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """float64 working memory of this shape, not initialised. A thread keeps what has this name, because memory that the
    system has just handed out costs more than the work that is done in it."""
    kept: dict[str, np.ndarray] = _kept.__dict__
    size = math.prod(shape)
    if name not in kept or len(kept[name]) < size:
        kept[name] = np.empty(size)
    return kept[name][:size].reshape(shape)


def completed(components: Components, x: np.ndarray) -> Iterator[Completed]:
    """The rows x (d, n), as in `Gaps`, in batches in order. What a batch holds is overwritten by the next one, and by
    the next call in this thread."""
    g, d = components.means.shape
    missing = np.isnan(x)
    each = g * (4 * d + np.count_nonzero(missing, axis=0) ** 2)
    batch = (np.cumsum(each) - each) // NUMBERS
    ends = [*np.flatnonzero(np.diff(batch)) + 1, x.shape[1]]
    for low, high in itertools.pairwise([0, *ends] if x.shape[1] else []):
        columns = slice(int(low), int(high))
        yield _batch(components, columns, x[:, columns], missing[:, columns])


def _batch(components: Components, columns: slice, x: np.ndarray, missing: np.ndarray) -> Completed:
    means = components.means[:, :, None]
    g, d, _ = means.shape
    more = _memory("rows", (g, d + 1, x.shape[1]))  # a row more, for what stands for no entry
    off = np.subtract(x, means, out=more[:, :d])  # (G, d, n) x^ - mu
    np.copyto(off, 0.0, where=missing)
    seen = x.shape[0] - np.count_nonzero(missing, axis=0)
    degrees, latent = components.degrees + seen, None
    if components.whiten is None:
        variances = components.variances[:, :, None]
        distances, patterns = np.sum(off * off / variances, axis=1), list[Patterns]()
        left = np.where(missing, variances, 0.0)
    else:
        patterns, half_log_dets = _complete(components.whiten, more, missing)
        white = np.matmul(components.whiten, off, out=_memory("white", off.shape))
        white *= white
        distances, left = white.sum(axis=1), np.zeros((0, 0, 0))
    if math.isinf(components.degrees):
        log_joint, halves = components.logs[:, None] - 0.5 * LOG_TWO_PI * seen, 0.5 * distances
    else:
        latent, halves = degrees / (components.degrees + distances), np.zeros(1)
        log_joint = components.logs[:, None] + log_kernel(distances, seen, components.degrees)
    if components.whiten is None:
        log_joint = log_joint - halves
        log_joint -= 0.5 * np.sum(np.where(missing, 0.0, np.log(variances)), axis=1)
    else:
        log_joint = log_joint + components.half_log_det[:, None] - half_log_dets
        log_joint -= halves
    off += means
    return Completed(columns, log_joint, off, left, patterns, latent, degrees)


def log_kernel(distances: np.ndarray, columns: int | np.ndarray, degrees: float) -> np.ndarray:
    """ln of the density of a Student-t of scale matrix I, at squared distances (G, n) from its mean. columns: number of
    them, or (n,) that of each row. degrees: of freedom."""
    power = 0.5 * (degrees + columns)
    constant = (
        scipy.special.gammaln(power)
        - scipy.special.gammaln(0.5 * degrees)
        - 0.5 * math.log(degrees * math.pi) * columns
    )
    values: np.ndarray = np.log1p(distances / degrees)
    values *= -power
    values += constant
    return values


def _complete(whiten: np.ndarray, more: np.ndarray, missing: np.ndarray) -> tuple[list[Patterns], np.ndarray]:
    """Fills in the missing entries of more (G, d + 1, n), which are 0; the patterns, and (H, n) ln|P_mm| / 2.

    Patterns with few rows are answered with those that have more missing entries.
    """
    (g, _, n), (h, d, _) = more.shape, whiten.shape
    precision = np.swapaxes(whiten, 1, 2) @ whiten
    pulled = _memory("white", more.shape)
    np.matmul(precision, more[:, :d], out=pulled[:, :d])
    pulled[:, d] = 0.0
    flat = np.zeros((d + 1, d + 1, h))
    flat[:d, :d] = precision.transpose(1, 2, 0)
    flat[d, d] = 1.0
    half_log_dets = np.zeros((h, n))
    keys, counts = _keys(missing), np.count_nonzero(missing, axis=0)
    row, column = np.nonzero(missing.T)
    entries = np.full((n, int(counts.max(initial=0))), d)
    entries[row, np.arange(len(row)) - (np.cumsum(counts) - counts)[row]] = column
    found: list[Patterns] = []
    low = 1
    sizes = np.bincount(counts, minlength=1)
    for k in np.flatnonzero(sizes).tolist():
        if k < low or (k < len(sizes) - 1 and sizes[low : k + 1].sum() * g * k * k < FEW_NUMBERS):
            continue
        rows = np.flatnonzero((counts >= low) & (counts <= k))
        low = k + 1
        rows = rows[np.argsort(keys[rows], kind="stable")]
        firsts = np.concatenate([[True], keys[rows[1:]] != keys[rows[:-1]]])
        own = entries[rows[firsts], :k]
        covariances, log_dets = _inverses(flat, own)
        patterns = Patterns(rows, np.cumsum(firsts) - 1, own, covariances)
        half_log_dets[:, rows] = 0.5 * log_dets.T[:, patterns.number]
        _fill(patterns, pulled, more)
        found.append(patterns)
    return found, half_log_dets


def _keys(missing: np.ndarray) -> np.ndarray:
    """(n,) one value for each pattern, of missing (d, n) bool."""
    d, n = missing.shape
    padded = np.zeros((n, -(-d // 64) * 64), bool)
    padded[:, :d] = missing.T
    words = np.packbits(padded, axis=1).view(np.uint64)
    return words[:, 0] if words.shape[1] == 1 else words.view(np.dtype((np.void, 8 * words.shape[1])))[:, 0]


def _inverses(flat: np.ndarray, entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(k, k, p, H) the inverses of P_mm for the patterns of entries (p, k), and (p, H) ln|P_mm|. flat: (d + 1, d + 1,
    H) P, and the identity for what stands for no entry."""
    (p, k), (more, _, h) = entries.shape, flat.shape
    at = entries.T[:, None] * more + entries.T[None]  # (k, k, p)
    at[(at == more * more - 1) & ~np.eye(k, dtype=bool)[:, :, None]] = more - 1  # 0 between two that stand for none
    flat = flat.reshape(more * more, h)
    inverses, log_dets = _memory(f"inverses {k}", (k, k, p, h)), np.empty((p, h))
    step = max(SWEPT_NUMBERS // (k * k * h), 1)
    for low in range(0, p, step):
        part = at[:, :, low : low + step]
        matrices = np.take(flat, part, axis=0, out=_memory("matrices", (*part.shape, h)), mode="clip")
        if k <= SWEPT:
            log_dets[low : low + step] = _sweep(matrices)
            np.negative(matrices, out=inverses[:, :, low : low + step])
        else:
            lower = np.linalg.cholesky(matrices.transpose(2, 3, 0, 1))
            inverse = np.linalg.inv(lower)
            inverses[:, :, low : low + step] = (np.swapaxes(inverse, 2, 3) @ inverse).transpose(2, 3, 0, 1)
            log_dets[low : low + step] = 2.0 * np.log(np.diagonal(lower, axis1=2, axis2=3)).sum(axis=-1)
    return inverses, log_dets


def _sweep(matrices: np.ndarray) -> np.ndarray:
    """Turns positive definite matrices (k, k, ...) into minus their inverses, in place; returns (...) their log
    determinants."""
    log_det, change = np.zeros(matrices.shape[2:]), _memory("change", matrices.shape)
    for j in range(len(matrices)):
        row = matrices[j].copy()
        scaled = row / row[j]
        log_det += np.log(row[j])
        np.multiply(row[:, None], scaled, out=change)
        matrices -= change
        matrices[j] = matrices[:, j] = scaled
        np.divide(-1.0, row[j], out=matrices[j, j])
    return log_det


def _fill(patterns: Patterns, pulled: np.ndarray, off: np.ndarray) -> None:
    """x^_m - mu_m = -C P_mo (x_o - mu_o) into off (G, d + 1, n). pulled: the same of P_mo (x_o - mu_o), 0 for none."""
    at, rows, p = patterns.entries_of_rows, patterns.rows, len(patterns.entries)
    own = pulled[:, at, rows[:, None]]  # (G, c, k)
    if len(rows) >= MANY_ROWS * p:
        for number, some in enumerate(np.split(np.arange(len(rows)), np.flatnonzero(np.diff(patterns.number)) + 1)):
            covariances = patterns.covariances[:, :, number].transpose(2, 0, 1)  # (H, k, k)
            off[:, at[some], rows[some, None]] = -(own[:, some] @ covariances)
        return
    own = np.ascontiguousarray(own.transpose(2, 1, 0))  # (k, c, G)
    covariances = patterns.covariances
    if len(rows) > p:
        covariances = covariances[:, :, patterns.number]
    filled, term = covariances[:, 0] * own[0], np.empty(own.shape)
    for j in range(1, len(own)):
        filled += np.multiply(covariances[:, j], own[j], out=term)
    off[:, at, rows[:, None]] = -filled.transpose(2, 1, 0)
