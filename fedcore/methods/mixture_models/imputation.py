"""Missing entries of rows under a mixture of Gaussians: their means, draws and intervals, given what was seen.

With responsibilities r_g of the observed entries, a missing entry has the density sum_g r_g N(x^_g, C_g) of
`fedcore.methods.mixture_models.gaps` (Little, Rubin, "Statistical analysis with missing data", chapter 11). Its mean
has the smallest expected squared error. The entries of a row are drawn together; an interval is that of one entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from fedcore.methods.mixture_models.gaps import Completed, Components, completed
from fedcore.methods.mixture_models.mixture import responsibilities

HALVINGS = 60  # of the bracket of a quantile
Fill = Callable[[np.ndarray, Completed], np.ndarray]  # (d, n) of a batch, from its responsibilities (G, n)


@dataclass(frozen=True, eq=False)
class Imputation:
    """What a trained mixture says of missing entries.

    components: of standardised rows; centre, scale: (d,) what rows are standardised by, (0,) if they are not

    Rows are (n, d), NaN = missing, in the units of the data. What was seen comes back to the bit, as float64.
    """

    components: Components
    centre: np.ndarray
    scale: np.ndarray

    def means(self, x: np.ndarray) -> np.ndarray:
        """(n, d) the rows with conditional means for what is missing."""
        return self._filled(x, lambda r, batch: np.einsum("gn,gdn->dn", r, batch.rows))

    def draws(self, x: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """(n, d) the rows with a draw for what is missing: of a component, then of all missing entries of the row."""

        def drawn(r: np.ndarray, batch: Completed) -> np.ndarray:
            row = np.arange(r.shape[1])
            g = np.minimum((np.cumsum(r, axis=0) < generator.random(len(row))).sum(axis=0), len(r) - 1)
            values = batch.rows[g, :, row].T
            if len(batch.left):
                values += np.sqrt(batch.left[g % len(batch.left), :, row].T) * generator.standard_normal(values.shape)
            more = np.vstack([values, np.zeros(len(row))])  # what stands for no entry is the last
            for patterns in batch.patterns:
                rows, entries = patterns.rows, patterns.entries_of_rows
                own = patterns.covariances[:, :, patterns.number, g[rows] % patterns.covariances.shape[3]]
                noise = np.linalg.cholesky(own.transpose(2, 0, 1)) @ generator.standard_normal((*entries.shape, 1))
                more[entries, rows[:, None]] += noise[..., 0]
            return more[:-1]

        return self._filled(x, drawn)

    def intervals(self, x: np.ndarray, coverage: float) -> tuple[np.ndarray, np.ndarray]:
        """(low, high), each (n, d): a missing entry is between them with this probability, and as often below as
        above. What was seen is both."""
        low, high = (self._filled(x, _quantiles(share)) for share in ((1 - coverage) / 2, (1 + coverage) / 2))
        return low, high

    def _filled(self, x: np.ndarray, fill: Fill) -> np.ndarray:
        filled = np.array(x, np.float64)
        rows = np.flatnonzero(np.isnan(filled).any(axis=1))
        centre, scale = (self.centre, self.scale) if len(self.centre) else (0.0, 1.0)
        gaps = np.ascontiguousarray(((filled[rows] - centre) / scale).T)
        for batch in completed(self.components, gaps):
            own = rows[batch.columns]
            values = fill(responsibilities(batch.log_joint), batch).T * scale + centre
            filled[own] = np.where(np.isnan(filled[own]), values, filled[own])
        return filled


def _quantiles(share: float) -> Fill:
    """Of the mixture that every missing entry has: it lies between those of the components."""

    def fill(r: np.ndarray, batch: Completed) -> np.ndarray:
        sd = np.sqrt(_variances(batch))
        entry, row = np.nonzero(sd[0])
        mean, sd, r = batch.rows[:, entry, row], sd[:, entry, row], r[:, row]
        ends = mean + sd * ndtri(share)
        low, high = ends.min(axis=0), ends.max(axis=0)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            below = np.sum(r * ndtr((middle - mean) / sd), axis=0) < share
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        values = np.zeros(batch.rows.shape[1:])
        values[entry, row] = (low + high) / 2
        return values

    return fill


def _variances(batch: Completed) -> np.ndarray:
    """(G, d, n) of the missing entries; 0 elsewhere."""
    if len(batch.left):
        return np.broadcast_to(batch.left, batch.rows.shape)
    g, d, n = batch.rows.shape
    variances = np.zeros((g, d + 1, n))
    for patterns in batch.patterns:
        own = np.diagonal(patterns.covariances)[patterns.number]  # (c, H, k)
        variances[:, patterns.entries_of_rows, patterns.rows[:, None]] = own.transpose(1, 0, 2)
    return variances[:, :d]
