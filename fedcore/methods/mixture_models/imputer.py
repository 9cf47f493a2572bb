"""Rows of a Gaussian with missing entries: EM for the mean and covariance, and imputation by conditional means.

Statistic of a row: E[x] ; E[x x'], with x = y - c for a public centre c and x x' packed as in
`fedcore.methods.mixture_models.packing`. Given the observed part o of a row, with m the missing one,

    x_m | x_o ~ N(mu_m + B (x_o - mu_o), Sigma_mm - B Sigma_om),     B = Sigma_mo Sigma_oo^-1

M-step: mu = s1, Sigma = (s2 - s1 s1' + Lam) / (1 + nu); with `rank` r its probabilistic PCA: the r largest eigenpairs
are kept and the other eigenvalues replaced by their mean (Tipping, Bishop 1999, equations 7 and 8). Penalty
R = nu/2 ln|Sigma| + tr(Lam Sigma^-1)/2.

Rows are grouped by what is missing: one Cholesky factor for each pattern, all patterns of a leaf at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.client_sums import (
    client_tiles,
    client_totals,
    divisors_of,
    products_by_client,
    take,
)
from fedcore.methods.mixture_models.contract import Rows, Theta
from fedcore.methods.mixture_models.mixture import require_finite
from fedcore.methods.mixture_models.packing import (
    LOG_TWO_PI,
    check_array,
    check_columns,
    check_positive_definite,
    check_shape,
    floored,
    least_eigenvalue,
    pack_symmetric,
    penalty_matrix,
    positive_definite,
    refuse,
    triangle,
    unpack_symmetric,
)

PATTERN_NUMBERS = 2_000_000  # float64 numbers of the pattern matrices held at a time


class _Patterns(NamedTuple):
    """The P patterns of missing entries of some rows.

    order, counts: the rows sorted by pattern, and how many each has (P,)
    fill: (P, d, d), rows of B where missing, of the identity where observed
    residual: (P, d, d), covariance of the missing entries given the others, 0 elsewhere
    whiten: (P, d, d), inverse Cholesky factor of Sigma_oo, identity elsewhere
    """

    order: np.ndarray
    counts: np.ndarray
    fill: np.ndarray
    residual: np.ndarray
    whiten: np.ndarray

    def of_rows(self) -> np.ndarray:
        """(n,) the pattern of every row."""
        numbers = np.empty(len(self.order), np.int64)
        numbers[self.order] = np.repeat(np.arange(len(self.counts)), self.counts)
        return numbers

    def apply(self, matrices: np.ndarray, x: np.ndarray) -> np.ndarray:
        """(n, d): every row of x (n, d) multiplied by the matrix of its pattern, one product for patterns of equal
        count."""
        d, out = x.shape[1], np.empty_like(x)
        starts = np.cumsum(self.counts) - self.counts
        for count in np.unique(self.counts):
            which = np.flatnonzero(self.counts == count)
            rows = self.order[starts[which, None] + np.arange(count)]
            out[rows.ravel()] = (x[rows] @ np.swapaxes(matrices[which], 1, 2)).reshape(-1, d)
        return out


@dataclass(frozen=True, eq=False)
class GaussianImputer:
    """theta: mean (d,), covariance (d, d).

    features: d; rank: of the principal subspace, None: a full covariance
    centre: (d,) public, None: the origin; nu, lam: the penalty; lam a number, (d,) or (d, d)

    Raises ConfigError for settings out of range.
    """

    features: int
    rank: int | None = None
    centre: Any = None
    nu: float = 0.0
    lam: Any = 0.0

    def __post_init__(self) -> None:
        d = self.features
        if d < 1 or not self.nu >= 0:
            raise ConfigError("the imputer needs at least one feature, and nu of 0 or more.")
        if self.rank is not None and not 0 < self.rank < d:
            raise ConfigError(f"rank must be between 1 and {d - 1}.", "Leave it out for a full covariance.")
        object.__setattr__(self, "lam", penalty_matrix(self.lam, d))
        centre = np.zeros(d) if self.centre is None else self.centre
        object.__setattr__(self, "centre", check_shape("centre", centre, (d,)))

    @property
    def q(self) -> int:
        return self.features + triangle(self.features)

    @property
    def blocks(self) -> tuple[slice, ...]:
        return slice(0, self.features), slice(self.features, self.q)

    # --- E-step -------------------------------------------------------------------------------------------------------

    def _tile(self) -> int:
        return min(max(PATTERN_NUMBERS // self.features**2, 64), 8000)

    def _patterns(self, theta: Theta, missing: np.ndarray) -> _Patterns:
        """missing: (n, d) bool."""
        d, sigma = self.features, np.asarray(theta["covariance"], np.float64)
        packed = np.ascontiguousarray(np.packbits(missing, axis=1))
        keys = packed.view(np.dtype((np.void, packed.shape[1])))[:, 0]
        _, first, numbers, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        m = missing[first]
        seen = (~m).astype(np.float64)
        # the identity in place of what is missing keeps all patterns at one size and changes no determinant
        observed = sigma * seen[:, :, None] * seen[:, None, :]
        observed[:, np.arange(d), np.arange(d)] += m
        whiten = np.linalg.inv(np.linalg.cholesky(observed))
        rows = np.where(m[:, :, None], sigma * seen[:, None, :], 0.0)  # Sigma_mo
        half = rows @ np.swapaxes(whiten, 1, 2)
        fill = (half @ whiten) * seen[:, None, :]
        fill[:, np.arange(d), np.arange(d)] += seen
        residual = np.where(m[:, :, None] & m[:, None, :], sigma - half @ np.swapaxes(half, 1, 2), 0.0)
        return _Patterns(np.argsort(numbers, kind="stable"), counts, fill, residual, whiten)

    def _completed(self, theta: Theta, y: np.ndarray) -> tuple[np.ndarray, _Patterns]:
        """Rows less the centre, missing entries at their conditional means."""
        missing = np.isnan(y)
        patterns = self._patterns(theta, missing)
        x = np.where(missing, 0.0, y - theta["mean"])
        filled = patterns.apply(patterns.fill, x) + (theta["mean"] - self.centre)
        return np.where(missing, filled, y - self.centre), patterns

    def e_total(self, theta: Theta, y: Rows, weights: np.ndarray | None = None) -> np.ndarray:
        total = np.zeros(self.q)
        for low in range(0, len(y), self._tile()):
            x, patterns = self._completed(theta, np.asarray(y[low : low + self._tile()]))
            w = np.ones(len(x)) if weights is None else np.asarray(weights[low : low + len(x)], np.float64)
            masses = np.bincount(patterns.of_rows(), w, len(patterns.counts))
            second = (x * w[:, None]).T @ x + np.tensordot(masses, patterns.residual, 1)
            total += np.concatenate([w @ x, pack_symmetric(second)])
        return total

    def e_totals_and_log_likelihoods(
        self, thetas: Sequence[Theta], y: Rows, weights: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        totals = [self.e_total(theta, y, weights) for theta in thetas]
        return np.array(totals), np.array([self.log_likelihood(theta, y) for theta in thetas])

    def e_mean(self, theta: Theta, y: Rows, ptr: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        d, divisors = self.features, divisors_of(client_totals(ptr, weights))[:, None]
        means = np.zeros((len(divisors), self.q))
        for tile in client_tiles(ptr, self._tile()):
            x, patterns = self._completed(theta, np.asarray(take(y, tile.rows)))
            sizes = np.concatenate([np.full(count, each) for _, count, each in tile.runs])
            local = np.concatenate([[0], np.cumsum(sizes)])
            # row i of the selector has the weight of every row of client i, at its pattern
            shape = (len(sizes), len(patterns.counts))
            w = np.ones(len(x)) if weights is None else weights[tile.rows]
            selector = scipy.sparse.csr_matrix((w, patterns.of_rows(), local), shape=shape)
            xt = np.ascontiguousarray(x.T)
            if weights is not None:
                xt *= w
            sums = np.empty((len(sizes), self.q))
            sums[:, :d] = products_by_client(w[None], x, tile.runs)[:, 0]
            sums[:, d:] = pack_symmetric(products_by_client(xt, x, tile.runs))
            sums[:, d:] += selector @ pack_symmetric(patterns.residual)
            sums /= divisors[tile.clients]
            if tile.whole:
                means[tile.clients] = sums
            else:
                means[tile.clients] += sums
        return means

    # --- M-step -------------------------------------------------------------------------------------------------------

    def _scatter(self, s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """s1, s2 - s1 s1' + Lam, and the second moments that rounding is measured by."""
        if s.shape != (self.q,):
            raise ValueError(f"the statistic has shape {s.shape}, expected {(self.q,)}")
        first = s[: self.features]
        second = unpack_symmetric(s[self.features :], self.features) + self.lam
        return first, second - np.outer(first, first), np.diagonal(second)

    def maximise(self, s: np.ndarray, start: Theta | None = None, rough: bool = False) -> Theta:
        first, scatter, moments = self._scatter(require_finite(s))
        covariance = floored(scatter, moments) / (1.0 + self.nu)
        if self.rank is not None:
            values, vectors = np.linalg.eigh(covariance)
            values[: -self.rank] = values[: -self.rank].mean()
            covariance = (vectors * values) @ vectors.T
            covariance = (covariance + covariance.T) / 2
        return {"mean": self.centre + first, "covariance": covariance}

    def admissible(self, s: np.ndarray, margin: float = 0.0) -> bool:
        """Every eigenvalue of s2 - s1 s1' + Lam beyond the margin and rounding."""
        if not np.isfinite(s).all():
            return False
        _, scatter, moments = self._scatter(np.asarray(s, np.float64))
        return positive_definite(scatter - margin * np.eye(self.features), moments)

    def statistic_of(self, theta: Theta) -> np.ndarray:
        m = theta["mean"] - self.centre
        second = theta["covariance"] * (1.0 + self.nu) - self.lam + np.outer(m, m)
        return np.concatenate([m, pack_symmetric(second)])

    def least_ratio(self, before: Theta, after: Theta) -> float:
        return least_eigenvalue(after["covariance"], before["covariance"])

    def penalty(self, theta: Theta) -> float:
        if not (self.nu or self.lam.any()):
            return 0.0
        log_det = float(np.linalg.slogdet(theta["covariance"])[1])
        return 0.5 * self.nu * log_det + 0.5 * float(np.trace(np.linalg.solve(theta["covariance"], self.lam)))

    # --- likelihood and outputs ---------------------------------------------------------------------------------------

    def log_likelihood(self, theta: Theta, y: Rows) -> np.ndarray:
        """(N,) of the observed entries of every row; 0 for a row without any."""
        values = np.empty(len(y))
        for low in range(0, len(y), self._tile()):
            rows = np.asarray(y[low : low + self._tile()])
            missing = np.isnan(rows)
            patterns = self._patterns(theta, missing)
            white = patterns.apply(patterns.whiten, np.where(missing, 0.0, rows - theta["mean"]))
            log_det = -2.0 * np.log(np.diagonal(patterns.whiten, axis1=1, axis2=2)).sum(axis=1)
            seen = (~missing).sum(axis=1)
            squares = np.einsum("ij,ij->i", white, white)
            values[low : low + len(rows)] = -0.5 * (seen * LOG_TWO_PI + log_det[patterns.of_rows()] + squares)
        return values

    def personalise(self, theta: Theta, y: Rows) -> dict[str, np.ndarray]:
        """imputed (N, d): the rows, with conditional means where entries are missing."""
        imputed = np.empty(y.shape)
        for low in range(0, len(y), self._tile()):
            rows = np.asarray(y[low : low + self._tile()])
            x, _ = self._completed(theta, rows)
            imputed[low : low + len(rows)] = np.where(np.isnan(rows), x + self.centre, rows)
        return {"imputed": imputed}

    # --- checks -------------------------------------------------------------------------------------------------------

    def check_rows(self, y: Rows) -> None:
        check_columns(y, self.features)
        refuse(y, np.isinf, "is infinite", "Use NaN for missing values.")

    def check_theta(self, theta: Mapping[str, np.ndarray]) -> Theta:
        """theta in float64. Raises ConfigError unless shapes fit and the covariance is positive definite."""
        covariance = check_array(theta, "covariance", (self.features, self.features))
        check_positive_definite("the covariance of a start", covariance)
        return {"mean": check_array(theta, "mean", (self.features,)), "covariance": covariance}
