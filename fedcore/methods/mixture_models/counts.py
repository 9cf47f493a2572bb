"""Mixtures for counts: Poisson, multinomial and Bernoulli. Rows are dense or CSR; CSR rows are never made dense.

Statistics: r_g ; r_g y. M-steps with their conjugate penalties R:

    Poisson      R = sum (b lambda - a ln lambda)      lambda_g = (s1_g + a) / (s0_g + b)
    multinomial  R = -a sum ln beta                    beta_gv = (s1_gv + a) / (sum_v s1_gv + V a)
    Bernoulli    R = -a sum (ln p + ln(1 - p))         p_g = (s1_g + a) / (s0_g + 2 a)

For all three ln f_g(y) is linear in y. Parameters are kept at least RATE_FLOOR from the boundary, so that a count that
a component has never seen does not make its likelihood zero permanently. With a = 0 the statistics of unseen counts are
on the edge of the domain, where any noise of a compressor leaves it; a > 0 makes room.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
import scipy

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.client_sums import Workspace, client_tiles, client_totals, divisors_of, take
from fedcore.methods.mixture_models.contract import Rows, Theta, is_sparse
from fedcore.methods.mixture_models.mixture import (
    Mixture,
    alive,
    check_weights,
    floored_counts,
    log_weights,
    require_finite,
    responsibilities,
)
from fedcore.methods.mixture_models.packing import Layout, check_array, check_columns, refuse

RATE_FLOOR = 1e-10  # of a rate or probability
ROUNDING = 1e-12  # of a statistic whose true value is 0
AXIS_STEPS = 30
SPARSE_TILE_NUMBERS = 8_000_000  # of the dense sums of a tile of CSR rows, should every row be a client


class _Prepared(NamedTuple):
    """ln f_g(y) = intercepts_g + slopes_g'y, with ln pi_g inside the intercept."""

    intercepts: np.ndarray
    slopes: np.ndarray


@dataclass(frozen=True, eq=False)
class CountMixture(Mixture):
    """components: G; features: V; a >= 0: the penalty, see the module. relative: whether log_likelihood leaves out what
    no parameter changes, the factorials of the counts. Raises ConfigError for settings out of range."""

    components: int
    features: int
    a: float = 0.0
    relative: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.components < 1 or self.features < 1:
            raise ConfigError("a mixture needs at least one component and one feature.")
        if not self.a >= 0:
            raise ConfigError("a must be 0 or more.")

    def _layout(self) -> Layout:
        return Layout(self.components, (1, self.features))

    @abstractmethod
    def _linear(self, theta: Theta) -> tuple[np.ndarray, np.ndarray]:
        """Intercepts (G,) and slopes (G, V) of ln f_g."""

    def _row_constant(self, y: np.ndarray | scipy.sparse.csr_matrix) -> np.ndarray | float:
        """(n,): what ln f_g(y) has besides."""
        return 0.0

    # --- E-step -------------------------------------------------------------------------------------------------------

    def _prepare(self, theta: Theta) -> _Prepared:
        intercepts, slopes = self._linear(theta)
        return _Prepared((log_weights(theta) + intercepts)[:, None], np.ascontiguousarray(slopes))

    def _features(self, y: Rows, work: Workspace, joint_only: bool = False) -> Any:
        """Dense: (1 + V, n) with ones first. Sparse: the CSR rows themselves, float64."""
        return y.astype(np.float64, copy=False) if is_sparse(y) else super()._features(y, work)

    def _columns(self, work: Workspace, n: int) -> np.ndarray:
        return work.array("features", 1 + self.features)[1:, :n]

    def _expand(self, work: Workspace, n: int, joint_only: bool = False) -> np.ndarray:
        z = work.array("features", 1 + self.features)[:, :n]
        z[0] = 1.0
        return z

    def _log_joint(self, prepared: _Prepared, z: Any, work: Workspace, each: int | None = None) -> np.ndarray:
        if is_sparse(z):
            return self._sparse_log_joint(prepared, z)
        log_joint = work.product("log joint", prepared.slopes, z[1:], each)
        log_joint += prepared.intercepts
        return log_joint

    def _sparse_log_joint(self, prepared: _Prepared, z: scipy.sparse.csr_matrix) -> np.ndarray:
        # products with a CSR matrix want the dense factor row by row
        return np.ascontiguousarray((z @ np.ascontiguousarray(prepared.slopes.T)).T) + prepared.intercepts

    def _log_constant(self, prepared: _Prepared, z: Any) -> np.ndarray | float:
        return 0.0 if self.relative else self._row_constant(z if is_sparse(z) else z[1:].T)

    def _total(self, r: np.ndarray, z: Any, work: Workspace) -> np.ndarray:
        if not is_sparse(z):
            return super()._total(r, z, work)
        return np.concatenate([r.sum(axis=1)[:, None], (z.T @ np.ascontiguousarray(r.T)).T], axis=1)

    def client_means(
        self, theta: Theta, y: Rows, ptr: np.ndarray, weights: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        if not is_sparse(y):
            return super().client_means(theta, y, ptr, weights)
        prepared = self._prepare(theta)
        means = np.zeros((len(ptr) - 1, self.q))
        counts = client_totals(ptr, weights)
        divisors = divisors_of(counts)[:, None]
        for tile in client_tiles(ptr, self._tile(y)):
            z = scipy.sparse.csr_matrix(take(y, tile.rows), dtype=np.float64)
            r = responsibilities(self._sparse_log_joint(prepared, z))
            if weights is not None:
                r *= weights[tile.rows]
            sizes = np.concatenate([np.full(count, each) for _, count, each in tile.runs])
            sums = self.layout.pack(self._sparse_sums(r, z, sizes)) / divisors[tile.clients]
            if tile.whole:
                means[tile.clients] = sums
            else:
                means[tile.clients] += sums
        return means, counts

    def _sparse_sums(self, r: np.ndarray, z: scipy.sparse.csr_matrix, sizes: np.ndarray) -> np.ndarray:
        """(c, G, 1 + V): sum of r_g z over the rows of every client; sizes: (c,) their rows."""
        ptr = np.concatenate([[0], np.cumsum(sizes)])
        sums = np.empty((len(sizes), self.components, 1 + self.features))
        for g in range(self.components):
            # row i of the selector holds r_g of the rows of client i
            selector = scipy.sparse.csr_matrix((r[g], np.arange(len(r[g])), ptr), shape=(len(sizes), len(r[g])))
            sums[:, g, 0] = np.add.reduceat(r[g], ptr[:-1])
            sums[:, g, 1:] = (selector @ z).toarray()
        return sums

    def _tile(self, y: Rows) -> int:
        if not is_sparse(y):
            return super()._tile(y)
        return min(max(SPARSE_TILE_NUMBERS // self.q, 256), 8000)

    # --- M-step -------------------------------------------------------------------------------------------------------

    def _parts(self, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        parts = self.layout.unpack(require_finite(s))
        return floored_counts(parts[0]), parts[1]

    def _inside(self, s: np.ndarray, margin: float) -> tuple[np.ndarray, np.ndarray] | None:
        """s0, s1 if the weights are fine."""
        if not np.isfinite(s).all():
            return None
        counts, first = self.layout.unpack(s)
        return (counts, first) if alive(counts, margin) else None

    # --- components ---------------------------------------------------------------------------------------------------

    def _alone(self, share: float) -> Self:
        return replace(self, components=1, a=self.a / share)

    @abstractmethod
    def _expected(self, theta: Theta, y: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Means (V,) and variances (V,) of the counts of a row of size 1 in a mixture of one, and sizes (N,)."""

    def along_longest_axis(self, theta: Theta, y: Rows) -> np.ndarray:
        """The errors are Pearson's residuals: counts over their standard deviations. The axis is found by power
        iterations, in which CSR rows stay sparse."""
        y = y if is_sparse(y) else np.asarray(y)
        means, variances, sizes = self._expected(theta, y)
        scale, root = 1.0 / np.sqrt(variances), np.sqrt(np.maximum(sizes, 1.0))
        along = np.where(np.arange(y.shape[0]) < y.shape[0] // 2, 1.0, -1.0)
        for _ in range(AXIS_STEPS):
            axis = scale * (y.T @ (along / root) - means * (along @ (sizes / root)))
            axis *= scale / (np.linalg.norm(axis) or 1.0)
            along = (y @ axis - sizes * (means @ axis)) / root
        return along

    # --- checks -------------------------------------------------------------------------------------------------------

    def check_rows(self, y: Rows) -> None:
        check_columns(y, self.features)
        refuse(y, lambda values: ~np.isfinite(values), "is not finite", "The model needs counts.")
        self._check_range(y)

    def _check_range(self, y: Rows) -> None:
        refuse(y, lambda values: values < 0, "is negative", "The model needs counts.")

    def _check_parameters(self, theta: Mapping[str, np.ndarray], name: str, upper: float) -> Theta:
        """weights and theta[name] (G, V) in float64. Raises ConfigError outside (0, upper)."""
        values = check_array(theta, name, (self.components, self.features))
        if (values <= 0).any() or (values >= upper).any():
            raise ConfigError(f"{name} of a start must be greater than 0 and less than {upper:g}.")
        return {"weights": check_weights(theta, self.components), name: values}


@dataclass(frozen=True, eq=False)
class PoissonMixture(CountMixture):
    """theta: weights (G,), rates (G, V) > 0. b >= 0: see the module; with b > 0 the rates shrink towards a / b."""

    b: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.b >= 0:
            raise ConfigError("b must be 0 or more.")

    def _linear(self, theta: Theta) -> tuple[np.ndarray, np.ndarray]:
        rates = theta["rates"]
        return -rates.sum(axis=1), np.log(rates)

    def _row_constant(self, y: np.ndarray | scipy.sparse.csr_matrix) -> np.ndarray:
        return -_log_factorials(y)

    def maximise(self, s: np.ndarray, start: Theta | None = None, rough: bool = False) -> Theta:
        counts, first = self._parts(s)
        rates = (first + self.a) / (counts + self.b)[:, None]
        return {"weights": self._weights_of(counts), "rates": np.maximum(rates, RATE_FLOOR)}

    def admissible(self, s: np.ndarray, margin: float = 0.0) -> bool:
        """s0_g > margin, and s1 + a >= 0 up to rounding: true statistics are on this edge where nothing was counted."""
        parts = self._inside(s, margin)
        return parts is not None and bool((parts[1] + self.a >= -ROUNDING).all())

    def statistic_of(self, theta: Theta) -> np.ndarray:
        counts = self._counts_of(theta["weights"])
        return self.layout.join(counts, theta["rates"] * (counts + self.b)[:, None] - self.a)

    def penalty(self, theta: Theta) -> float:
        rates = theta["rates"]
        return float((self.b * rates - self.a * np.log(rates)).sum())

    def _alone(self, share: float) -> Self:
        return replace(self, components=1, a=self.a / share, b=self.b / share)

    def _expected(self, theta: Theta, y: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return theta["rates"][0], theta["rates"][0], np.ones(y.shape[0])

    def check_theta(self, theta: Mapping[str, np.ndarray]) -> Theta:
        """theta in float64. Raises ConfigError unless shapes fit, weights add up to 1 and rates are positive."""
        return self._check_parameters(theta, "rates", np.inf)


@dataclass(frozen=True, eq=False)
class MultinomialMixture(CountMixture):
    """theta: weights (G,), probabilities (G, V) > 0 whose rows add up to 1. A row is all tokens of a document, say.

    length: tokens of a usual row; only `statistic_of` needs it, because theta does not contain it.
    """

    length: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.length > 0:
            raise ConfigError("length must be positive.")

    def _linear(self, theta: Theta) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(self.components), np.log(theta["probabilities"])

    def _row_constant(self, y: np.ndarray | scipy.sparse.csr_matrix) -> np.ndarray:
        return scipy.special.gammaln(_sizes(y) + 1.0) - _log_factorials(y)

    def maximise(self, s: np.ndarray, start: Theta | None = None, rough: bool = False) -> Theta:
        counts, first = self._parts(s)
        mass = np.maximum(first + self.a, 0.0)
        totals = mass.sum(axis=1, keepdims=True)
        # a component without tokens says nothing of its tokens: all are equally likely
        shares = np.divide(mass, totals, out=np.full_like(mass, 1.0 / self.features), where=totals > 0)
        shares = np.maximum(shares, RATE_FLOOR)
        shares /= shares.sum(axis=1, keepdims=True)
        return {"weights": self._weights_of(counts), "probabilities": shares}

    def admissible(self, s: np.ndarray, margin: float = 0.0) -> bool:
        """s0_g > margin, s1 + a >= 0 up to rounding (the edge: tokens never seen), and tokens in every component."""
        parts = self._inside(s, margin)
        if parts is None:
            return False
        mass = parts[1] + self.a
        return bool((mass >= -ROUNDING).all() and (mass.sum(axis=1) > 0).all())

    def statistic_of(self, theta: Theta) -> np.ndarray:
        counts = self._counts_of(theta["weights"])
        mass = (counts * self.length + self.features * self.a)[:, None] * theta["probabilities"]
        return self.layout.join(counts, mass - self.a)

    def penalty(self, theta: Theta) -> float:
        return -self.a * float(np.log(theta["probabilities"]).sum())

    def _expected(self, theta: Theta, y: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return theta["probabilities"][0], theta["probabilities"][0], _sizes(y)

    def check_theta(self, theta: Mapping[str, np.ndarray]) -> Theta:
        """theta in float64. Raises ConfigError unless shapes fit, and weights and each component's probabilities are
        positive and add up to 1."""
        checked = self._check_parameters(theta, "probabilities", np.inf)
        totals = checked["probabilities"].sum(axis=1, keepdims=True)
        if (np.abs(totals - 1.0) > 1e-6).any():
            raise ConfigError("the probabilities of every component must add up to 1.")
        return {**checked, "probabilities": checked["probabilities"] / totals}


@dataclass(frozen=True, eq=False)
class BernoulliMixture(CountMixture):
    """theta: weights (G,), probabilities (G, V) strictly between 0 and 1. Rows are zeros and ones."""

    def _linear(self, theta: Theta) -> tuple[np.ndarray, np.ndarray]:
        p = theta["probabilities"]
        absent = np.log1p(-p)
        return absent.sum(axis=1), np.log(p) - absent

    def maximise(self, s: np.ndarray, start: Theta | None = None, rough: bool = False) -> Theta:
        counts, first = self._parts(s)
        p = (first + self.a) / (counts + 2.0 * self.a)[:, None]
        return {"weights": self._weights_of(counts), "probabilities": np.clip(p, RATE_FLOOR, 1.0 - RATE_FLOOR)}

    def admissible(self, s: np.ndarray, margin: float = 0.0) -> bool:
        """s0_g > margin, s1 + a >= 0 and s0 - s1 + a >= 0 up to rounding (true statistics can be on these edges)."""
        parts = self._inside(s, margin)
        if parts is None:
            return False
        counts, first = parts
        slack = self.a + ROUNDING
        return bool((first + slack >= 0).all() and (counts - first + slack >= 0).all())

    def statistic_of(self, theta: Theta) -> np.ndarray:
        counts = self._counts_of(theta["weights"])
        return self.layout.join(counts, theta["probabilities"] * (counts + 2.0 * self.a)[:, None] - self.a)

    def penalty(self, theta: Theta) -> float:
        p = theta["probabilities"]
        return -self.a * float((np.log(p) + np.log1p(-p)).sum())

    def _expected(self, theta: Theta, y: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        p = theta["probabilities"][0]
        return p, p * (1.0 - p), np.ones(y.shape[0])

    def _check_range(self, y: Rows) -> None:
        refuse(y, lambda values: (values != 0) & (values != 1), "is neither 0 nor 1", "The model needs zeros and ones.")

    def check_theta(self, theta: Mapping[str, np.ndarray]) -> Theta:
        """theta in float64. Raises ConfigError unless shapes fit, weights add up to 1, p is inside (0, 1)."""
        return self._check_parameters(theta, "probabilities", 1.0)


def _sizes(y: np.ndarray | scipy.sparse.csr_matrix) -> np.ndarray:
    """(n,): the counts of each row, added up."""
    return np.asarray(y.sum(axis=1), np.float64).ravel()


def _log_factorials(y: np.ndarray | scipy.sparse.csr_matrix) -> np.ndarray:
    """(n,): sum over the columns of ln y!."""
    if not is_sparse(y):
        y = np.asarray(y)
        logs, several = np.zeros(y.shape), (y != 0.0) & (y != 1.0)  # the logarithms of 0! and 1! are 0
        logs[several] = scipy.special.gammaln(y[several] + 1.0)
        return logs.sum(axis=1)
    logs = scipy.sparse.csr_matrix((scipy.special.gammaln(y.data + 1.0), y.indices, y.indptr), shape=y.shape)
    return np.asarray(logs.sum(axis=1)).ravel()
