"""Missing entries of rows under a mixture: their means, draws and intervals, given what was seen.

With responsibilities r_g of the observed entries, a missing entry has the density sum_g r_g N(x^_g, C_g) of
`fedcore.methods.mixture_models.gaps` (Little, Rubin, "Statistical analysis with missing data", chapter 11). Of
Student-t components it is sum_g r_g t(x^_g, C_g / w_g), with one degree of freedom more for each observed entry. Its
mean has the smallest expected squared error. The entries of a row are drawn together; an interval is that of one entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy

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
            values, wider = batch.rows[g, :, row].T, np.ones(len(row))
            if batch.latent is not None:
                wider = np.sqrt(batch.degrees / batch.latent[g, row] / generator.chisquare(batch.degrees))
            if len(batch.left):
                noise = np.sqrt(batch.left[g % len(batch.left), :, row].T) * generator.standard_normal(values.shape)
                values += noise * wider
            more = np.vstack([values, np.zeros(len(row))])  # what stands for no entry is the last
            for patterns in batch.patterns:
                rows, entries = patterns.rows, patterns.entries_of_rows
                own = patterns.covariances[:, :, patterns.number, g[rows] % patterns.covariances.shape[3]]
                noise = np.linalg.cholesky(own.transpose(2, 0, 1)) @ generator.standard_normal((*entries.shape, 1))
                more[entries, rows[:, None]] += noise[..., 0] * wider[rows, None]
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
    """Quantile of the mixture of every missing entry, which is between those of the components."""

    def fill(r: np.ndarray, batch: Completed) -> np.ndarray:
        sd = np.sqrt(_variances(batch))
        entry, row = np.nonzero(sd[0])
        mean, sd, r = batch.rows[:, entry, row], sd[:, entry, row], r[:, row]
        below_of, end = scipy.special.ndtr, scipy.special.ndtri(share)
        if batch.latent is not None:
            sd, degrees = sd / np.sqrt(batch.latent[:, row]), batch.degrees[row]
            below_of, end = partial(scipy.special.stdtr, degrees), scipy.special.stdtrit(degrees, share)
        ends = mean + sd * end
        low, high = ends.min(axis=0), ends.max(axis=0)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            below = np.sum(r * below_of((middle - mean) / sd), axis=0) < share
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        values = np.zeros(batch.rows.shape[1:])
        values[entry, row] = (low + high) / 2
        return values

    return fill


def _variances(batch: Completed) -> np.ndarray:
    """(G, d, n) C of the missing entries; 0 elsewhere."""
    if len(batch.left):
        return np.broadcast_to(batch.left, batch.rows.shape)
    g, d, n = batch.rows.shape
    variances = np.zeros((g, d + 1, n))
    for patterns in batch.patterns:
        own = np.diagonal(patterns.covariances)[patterns.number]  # (c, H, k)
        variances[:, patterns.entries_of_rows, patterns.rows[:, None]] = own.transpose(1, 0, 2)
    return variances[:, :d]
