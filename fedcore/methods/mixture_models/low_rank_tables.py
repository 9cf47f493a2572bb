"""FedMissEM: one low-rank table of natural parameters, seen through incomplete tables.

Every table X (J, L) has independent entries of density rho(x) exp(x theta_jl - Psi(theta_jl)): Gaussian with unit
variance, Poisson (theta = log-intensity) or Bernoulli. Cells that were not observed are the latent part. Statistic of a
table: itself, completed; its expectation puts Psi'(theta) where nothing was observed. M-step:

    T(s) = argmin_theta sum Psi(theta) - <s, theta> + lam ||theta||_*        (see
    `fedcore.methods.mixture_models.nuclear_norm`)

Gaussian, one client a table, no compression: soft-impute of Mazumder, Hastie, Tibshirani 2010 on the mean completion.
Source: Dieuleveut, Fort, Moulines, Robin 2021, the application to biodiversity; the nuclear norm is the convex form
of (lam/2)(|U|^2 + |V|^2) for theta = U V'.

**Rows.** What the contract calls a row is a whole table here. In the arrays of a population a table is J consecutive
rows of L columns, NaN where missing; a client of k tables owns k J rows and `ptr` counts those. So `e_mean` averages
over a client's k tables, and `weights` and `log_likelihood` have one entry for each table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from fedcore.errors import ConfigError, PopulationError
from fedcore.methods.mixture_models.client_sums import client_totals, divisors_of
from fedcore.methods.mixture_models.contract import Rows, Theta
from fedcore.methods.mixture_models.mixture import require_finite
from fedcore.methods.mixture_models.nuclear_norm import (
    EXACT,
    FAMILIES,
    ROUGH,
    Family,
    log_partition,
    mean,
    minimise,
    nuclear_norm,
    soft_threshold,
)
from fedcore.methods.mixture_models.packing import check_array, check_columns, refuse

TILE_NUMBERS = 500_000  # of the tables completed at a time
HALF_LOG_TWO_PI = 0.5 * float(np.log(2.0 * np.pi))
SMALLEST_SINGULAR = 1e-12  # relative to the largest: below it a singular value is taken for 0


@dataclass(frozen=True, eq=False)
class LowRankTables:
    """theta: natural (J, L). q = J L, the completed table row by row; one block for each of its rows.

    rows, columns: J, L; family: one of "gaussian", "poisson", "bernoulli"
    lam: of the nuclear norm, >= 0, and > 0 unless Gaussian (an unobserved cell has no estimate without it)
    max_rank: of theta; None: no bound. A bound below the rank of the minimiser makes T non-convex.

    Raises ConfigError for settings out of range.
    """

    rows: int
    columns: int
    family: Family = "gaussian"
    lam: float = 1.0
    max_rank: int | None = None

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ConfigError(f"there is no family {self.family!r}.", f"Known: {', '.join(FAMILIES)}.")
        if self.rows < 1 or self.columns < 1 or (self.max_rank is not None and self.max_rank < 1):
            raise ConfigError("rows, columns and max_rank must be 1 or more.")
        if not (self.lam > 0 or (self.lam == 0 and self.family == "gaussian")):
            raise ConfigError("lam must be positive.", "It may be 0 for the Gaussian family.")

    @property
    def q(self) -> int:
        return self.rows * self.columns

    @property
    def blocks(self) -> tuple[slice, ...]:
        return tuple(slice(j * self.columns, (j + 1) * self.columns) for j in range(self.rows))

    # --- E-step -------------------------------------------------------------------------------------------------------

    def _tables(self, y: Rows) -> np.ndarray:
        """(tables, J L) view. Raises PopulationError unless the rows make whole tables."""
        self._check_tables(y)
        return np.asarray(y).reshape(-1, self.q)

    def _check_tables(self, y: Rows) -> None:
        check_columns(y, self.columns)
        if len(y) % self.rows:
            raise PopulationError(
                f"{len(y)} rows do not make whole tables of {self.rows} rows.", "Pad missing rows with NaN."
            )

    def _table_ptr(self, ptr: np.ndarray) -> np.ndarray:
        if (np.diff(ptr) % self.rows).any():
            raise PopulationError(
                f"a client's rows do not make whole tables of {self.rows} rows.", "Pad missing rows with NaN."
            )
        return np.asarray(ptr) // self.rows

    def _expected(self, theta: Theta) -> np.ndarray:
        return mean(self.family, theta["natural"]).ravel()

    def e_total(self, theta: Theta, y: Rows, weights: np.ndarray | None = None) -> np.ndarray:
        tables, expected = self._tables(y), self._expected(theta)
        total = np.zeros(self.q)
        step = max(1, TILE_NUMBERS // self.q)
        for low in range(0, len(tables), step):
            completed = _completed(tables[low : low + step], expected)
            if weights is None:
                total += completed.sum(axis=0)
            else:
                total += np.asarray(weights[low : low + step], np.float64) @ completed
        return total

    def e_totals_and_log_likelihoods(
        self, thetas: Sequence[Theta], y: Rows, weights: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        totals = [self.e_total(theta, y, weights) for theta in thetas]
        return np.array(totals), np.array([self.log_likelihood(theta, y) for theta in thetas])

    def e_mean(self, theta: Theta, y: Rows, ptr: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        self._check_tables(y)
        expected, ptr = self._expected(theta), self._table_ptr(ptr)
        means = np.zeros((len(ptr) - 1, self.q))
        counts = np.diff(ptr)
        if weights is None and (counts == 1).all():
            means[:] = _completed(self._tables(y), expected)
            return means
        step = max(1, TILE_NUMBERS // self.q)
        for client in np.flatnonzero(counts):  # heavy: a client is whole tables
            for low in range(int(ptr[client]), int(ptr[client + 1]), step):
                high = min(low + step, int(ptr[client + 1]))
                tables = self._tables(y[low * self.rows : high * self.rows])
                completed = _completed(tables, expected)
                means[client] += completed.sum(axis=0) if weights is None else weights[low:high] @ completed
        means /= divisors_of(client_totals(ptr, weights))[:, None]
        return means

    def step_of_cells(
        self, theta: Theta, total: np.ndarray, visits: np.ndarray, tables: float
    ) -> tuple[np.ndarray, float]:
        """A step of EM needs no more of the data than the sum of the observed values of every cell and how often it was
        seen: (mean of s_bar over the tables (q,), the objective at theta up to a constant, nats a table).

        total, visits: (J L,); tables: how many there are
        """
        natural = np.asarray(theta["natural"], np.float64).ravel()
        mapped = (total + (tables - visits) * self._expected(theta)) / tables
        loss = float(np.sum(visits * log_partition(self.family, natural) - total * natural)) / tables
        return mapped, loss + self.penalty(theta)

    # --- M-step -------------------------------------------------------------------------------------------------------

    def _outside(self, s: np.ndarray, margin: float) -> np.ndarray:
        """(J, L): by how much s leaves the range of a mean, less the margin; negative where too large."""
        s = np.asarray(s, np.float64).reshape(self.rows, self.columns)
        outside = np.maximum(margin - s, 0.0)
        return outside - np.maximum(s - (1.0 - margin), 0.0) if self.family == "bernoulli" else outside

    def maximise(self, s: np.ndarray, start: Theta | None = None, rough: bool = False) -> Theta:
        s = require_finite(s).reshape(self.rows, self.columns)
        if not self.admissible(s):
            s = s + self._outside(s, 0.0)
        first = None if start is None else start["natural"]
        return {"natural": minimise(self.family, s, self.lam, self.max_rank, first, ROUGH if rough else EXACT)}

    def admissible(self, s: np.ndarray, margin: float = 0.0) -> bool:
        """Whether the M-step has a solution: the part of s outside the range of a mean (Poisson [0, inf), Bernoulli
        [0, 1], each shrunk by the margin) has spectral norm below lam.

        Along a direction D in which Psi stays bounded, the objective grows like lam ||D||_* - <outside, |D|>, which is
        positive for all D exactly then. The set is open and convex and contains all true statistics: those of cells
        where only zeros were seen are on the edge of the range, but well inside this set.
        """
        if not np.isfinite(s).all():
            return False
        if self.family == "gaussian":
            return True
        return bool(np.linalg.norm(self._outside(s, margin), 2) < self.lam)

    def statistic_of(self, theta: Theta) -> np.ndarray:
        """Psi'(theta) + lam U V', theta = U D V'."""
        natural = np.asarray(theta["natural"], np.float64)
        u, values, v = np.linalg.svd(natural, full_matrices=False)
        k = int(np.count_nonzero(values > SMALLEST_SINGULAR * max(float(values[0]), SMALLEST_SINGULAR)))
        return (mean(self.family, natural) + self.lam * u[:, :k] @ v[:k]).ravel()

    def least_ratio(self, before: Theta, after: Theta) -> float:
        return 1.0

    def penalty(self, theta: Theta) -> float:
        return self.lam * nuclear_norm(theta["natural"])

    # --- likelihood and outputs ---------------------------------------------------------------------------------------

    def log_likelihood(self, theta: Theta, y: Rows) -> np.ndarray:
        """(tables,): of the observed cells of every table."""
        tables, natural = self._tables(y), np.asarray(theta["natural"], np.float64).ravel()
        partition = log_partition(self.family, natural)
        values = np.empty(len(tables))
        step = max(1, TILE_NUMBERS // self.q)
        for low in range(0, len(tables), step):
            x = tables[low : low + step].astype(np.float64)
            cells = x * natural - partition
            if self.family == "gaussian":
                cells -= 0.5 * x * x + HALF_LOG_TWO_PI
            elif self.family == "poisson":
                cells -= scipy.special.gammaln(x + 1.0)
            values[low : low + step] = np.nansum(cells, axis=1)
        return values

    def personalise(self, theta: Theta, y: Rows) -> dict[str, np.ndarray]:
        """imputed (N, L): the rows with Psi'(theta) where nothing was observed."""
        completed = _completed(self._tables(y), self._expected(theta))
        return {"imputed": completed.reshape(-1, self.columns)}

    def optimality(self, theta: Theta, y: Rows) -> tuple[float, float]:
        """How far theta is from minimising the observed objective itself, without EM.

        With G = mean over the tables of 1_observed (X - Psi'(theta)), theta is a minimiser exactly if ||G||_2 <= lam
        and <G, theta> = lam ||theta||_*. Returns (||G||_2 - lam, <G, theta> - lam ||theta||_*): at a minimiser the
        first is 0 or less (0 unless theta is 0), the second 0. Not for max_rank.

        Raises PopulationError without a table.
        """
        tables, expected = self._tables(y), self._expected(theta)
        if not len(tables):
            raise PopulationError("there is no table to check against.")
        # a cell that was not observed is completed by its expectation, and so contributes nothing
        gap = (self.e_total(theta, y) / len(tables) - expected).reshape(self.rows, self.columns)
        spectral = float(np.linalg.norm(gap, 2)) - self.lam
        return spectral, float(np.vdot(gap, theta["natural"])) - self.penalty(theta)

    # --- checks -------------------------------------------------------------------------------------------------------

    def check_rows(self, y: Rows) -> None:
        self._check_tables(y)
        missing = "Use NaN for missing values."
        refuse(y, np.isinf, "is infinite", missing)
        if self.family == "poisson":
            refuse(y, lambda values: values < 0, "is negative", "The model needs counts, or NaN.")
        elif self.family == "bernoulli":
            refuse(y, lambda x: (x != 0) & (x != 1) & ~np.isnan(x), "is neither 0 nor 1", missing)

    def check_theta(self, theta: Mapping[str, np.ndarray]) -> Theta:
        """theta in float64. Raises ConfigError unless its shape fits."""
        return {"natural": check_array(theta, "natural", (self.rows, self.columns))}


def _completed(tables: np.ndarray, expected: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(tables), expected, tables)


def parameters_from_cells(model: LowRankTables, total: np.ndarray, visits: np.ndarray) -> Theta:
    """theta from sums over the population: total (J, L) of observed values, visits (J, L) how often a cell was seen.

    Applies the link to a shrunken mean: each cell's mean, with the overall mean added as one more visit, cut to
    max_rank. If the penalty is so large that the statistic of this table is outside the domain, all cells get the link
    of the overall mean, whose statistic is always inside.
    """
    visits = np.asarray(visits, np.float64)
    overall = float(total.sum() / max(visits.sum(), 1.0))
    cells = {"natural": soft_threshold(_link(model.family, (total + overall) / (visits + 1.0)), 0.0, model.max_rank)}
    if model.admissible(model.statistic_of(cells)):
        return cells
    return {"natural": _link(model.family, np.full(visits.shape, overall))}


def _link(family: Family, means: np.ndarray) -> np.ndarray:
    """theta with Psi'(theta) = means, kept off the edge of their range."""
    if family == "gaussian":
        return means
    if family == "poisson":
        return np.log(np.maximum(means, 1e-3))
    means = np.clip(means, 0.01, 0.99)
    return np.log(means) - np.log1p(-means)
