"""Gaussian mixtures: known common, spherical, diagonal, tied or full covariances.

Statistics of a row y, with x = y - c for a fixed public centre c (second moments about a distant origin lose digits):

    known      r_g ; r_g x
    spherical  r_g ; r_g x ; r_g |x|^2
    diag       r_g ; r_g x ; r_g x^2
    full       r_g ; r_g x ; r_g x x'       upper triangle, see `fedcore.methods.mixture_models.packing`
    tied       r_g ; r_g x ; x x'           once: it does not depend on theta

Penalised M-step for R = sum_g [ nu/2 ln|Sigma_g| + tr(Lam Sigma_g^-1)/2 - a ln pi_g ], tied: its covariance terms once:

    pi_g    = (s0_g + a) / (sum s0 + G a)
    mu_g    = c + s1_g / s0_g
    Sigma_g = (s2_g - s1_g s1_g'/s0_g + Lam) / (s0_g + nu)
    Sigma   = (M - sum_g s1_g s1_g'/s0_g + Lam) / (1 + nu)      tied, M the mean of x x'

Lam > 0 keeps the likelihood bounded. Source: Dieuleveut, Fort, Moulines, Robin 2021 (tied: their experiments); the
penalty is the conjugate prior of Fraley and Raftery 2007 without the term for the mean.

Data should be of about unit scale (whitened by public moments): floors and margins are meant in those units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import scipy

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.client_sums import PaddedTile, Workspace
from fedcore.methods.mixture_models.contract import Rows, Theta
from fedcore.methods.mixture_models.gaps import Components, Gaps, completed, take_gaps
from fedcore.methods.mixture_models.mixture import (
    LEAST_VARIANCE,
    Mixture,
    alive,
    check_weights,
    floored_counts,
    log_weights,
    longest,
    require_finite,
    responsibilities,
)
from fedcore.methods.mixture_models.packing import (
    LOG_TWO_PI,
    RELATIVE_FLOOR,
    SMALLEST_MOMENT,
    Layout,
    check_array,
    check_columns,
    check_finite_rows,
    check_positive_definite,
    check_seen_rows,
    check_shape,
    floored,
    lacking,
    least_eigenvalue,
    pack_symmetric,
    penalty_matrix,
    positive_definite,
    products,
    refuse,
    triangle,
    unpack_symmetric,
)

Covariance = Literal["known", "spherical", "diag", "tied", "full"]
COVARIANCES = ("known", "spherical", "diag", "tied", "full")


@dataclass(frozen=True, eq=False)
class GaussianMixture(Mixture):
    """theta: weights (G,), means (G, d), and unless known covariances: (G,), (G, d), (d, d) or (G, d, d).

    components: G; features: d
    covariance: one of COVARIANCES
    centre: (d,) public; None: the origin
    nu, lam, a: the penalty; lam a number, (d,) or (d, d), positive semi-definite. spherical uses its mean diagonal,
        diag its diagonal
    known: (d, d), the common covariance of "known"; None: the identity
    missing: whether rows may have missing entries (NaN), see `fedcore.methods.mixture_models.gaps`

    Raises ConfigError for settings out of range.
    """

    components: int
    features: int
    covariance: Covariance = "diag"
    centre: Any = None
    nu: float = 0.0
    lam: Any = 0.0
    a: float = 0.0
    known: Any = None
    missing: bool = False

    def __post_init__(self) -> None:
        d = self.features
        if self.covariance not in COVARIANCES:
            raise ConfigError(f"there is no covariance {self.covariance!r}.", f"Known: {', '.join(COVARIANCES)}.")
        if self.components < 1 or d < 1:
            raise ConfigError("a mixture needs at least one component and one feature.")
        if not (self.nu >= 0 and self.a >= 0):
            raise ConfigError("nu and a must be 0 or more.")
        known = np.eye(d) if self.known is None else self.known
        set_ = object.__setattr__
        set_(self, "lam", penalty_matrix(self.lam, d))
        set_(self, "centre", check_shape("centre", np.zeros(d) if self.centre is None else self.centre, (d,)))
        set_(self, "known", check_shape("known", known, (d, d)))
        if self.covariance == "known":
            check_positive_definite("known", self.known)

    def _layout(self) -> Layout:
        d = self.features
        second = {"known": (), "tied": (), "spherical": (1,), "diag": (d,), "full": (triangle(d),)}[self.covariance]
        return Layout(self.components, (1, d, *second), triangle(d) if self.covariance == "tied" else 0)

    @property
    def _row_numbers(self) -> int:
        """Features of a row."""
        return sum(self.layout.kinds)

    # --- E-step -------------------------------------------------------------------------------------------------------

    def _columns(self, work: Workspace, n: int) -> np.ndarray:
        return work.array("features", self._row_numbers)[1 : 1 + self.features, :n]

    def _expand(self, work: Workspace, n: int, joint_only: bool = False) -> np.ndarray:
        d, z = self.features, work.array("features", self._row_numbers)[:, :n]
        x, z[0] = z[1 : 1 + d], 1.0
        if self.centre.any():
            x -= self.centre[:, None]
        if self.covariance == "diag":
            np.multiply(x, x, out=z[1 + d :])
        elif self.covariance == "spherical":
            np.einsum("ij,ij->j", x, x, out=z[1 + d])
        elif self.covariance == "full" and not joint_only:
            products(x, z[1 + d :])
        return z

    def _prepare(self, theta: Theta) -> Any:
        if self.covariance == "full":
            return self._whitening(theta)
        m, logs = theta["means"] - self.centre, log_weights(theta)
        constant = -0.5 * self.features * LOG_TWO_PI
        if self.covariance in ("known", "tied"):
            factor = _inverse_factors(self.known if self.covariance == "known" else theta["covariances"])
            precision = factor.T @ factor
            first = m @ precision
            logs = logs - 0.5 * np.einsum("gi,gi->g", m, first)
            constant += float(np.log(np.diagonal(factor)).sum())
            return _Linear(np.hstack([logs[:, None], first]), constant, precision)
        variances = theta["covariances"][:, None] if self.covariance == "spherical" else theta["covariances"]
        first, second = m / variances, -0.5 / variances
        logs = logs - 0.5 * np.log(np.broadcast_to(variances, m.shape)).sum(axis=1) - 0.5 * np.sum(m * first, axis=1)
        return _Linear(np.hstack([logs[:, None], first, second]), constant, None)

    def _whitening(self, theta: Theta) -> _Whitening:
        inverse = _inverse_factors(theta["covariances"])
        offset = np.einsum("gij,gj->gi", inverse, theta["means"] - self.centre)
        logs = log_weights(theta) + np.log(np.diagonal(inverse, axis1=1, axis2=2)).sum(axis=1)
        return _Whitening(inverse.reshape(-1, self.features), offset.reshape(-1, 1), logs[:, None])

    def _log_joint(self, prepared, z: np.ndarray, work: Workspace, each: int | None = None) -> np.ndarray:
        if isinstance(prepared, _Linear):
            return work.product("log joint", prepared.phi, z, each)
        white = work.product("white", prepared.factors, z[1 : 1 + self.features], each)
        white -= prepared.offset
        white *= white
        log_joint = white.reshape(self.components, self.features, -1).sum(axis=1)
        log_joint *= -0.5
        log_joint += prepared.logs
        return log_joint

    def _log_constant(self, prepared: _Linear | _Whitening, z: np.ndarray) -> np.ndarray | float:
        if isinstance(prepared, _Whitening):
            return -0.5 * self.features * LOG_TWO_PI
        if prepared.precision is None:
            return prepared.constant
        x = z[1 : 1 + self.features]
        return prepared.constant - 0.5 * np.einsum("ij,ij->j", x, prepared.precision @ x)

    def _shared_total(self, z: np.ndarray, weights: np.ndarray | None) -> np.ndarray | None:
        if self.covariance != "tied":
            return None
        x = z[1:]
        return pack_symmetric((x if weights is None else x * weights) @ x.T)

    def _shared_by_client(
        self, z: np.ndarray, work: Workspace, tile: PaddedTile, without: np.ndarray | None, weights: np.ndarray | None
    ) -> np.ndarray | None:
        if self.covariance != "tied":
            return None
        x = work.array("counted", self.features)[:, : z.shape[1]]
        np.copyto(x, z[1:])
        tile.leave_out(x, without)
        return pack_symmetric(work.client_products("squares", x if weights is None else x * weights, x, tile.each))

    # --- rows with missing entries ------------------------------------------------------------------------------------

    def _gaps(self, z: np.ndarray, r: np.ndarray) -> Gaps | None:
        return take_gaps(z, r, self.features) if self.missing else None

    def components_of(self, theta: Theta) -> Components:
        """What rows with gaps need of the parameters."""
        d, second = self.features, {"known": "", "spherical": "sum", "diag": "diag"}.get(self.covariance, "full")
        means, logs = theta["means"] - self.centre, log_weights(theta)
        if self.covariance in ("spherical", "diag"):
            variances = theta["covariances"].reshape(self.components, -1)
            variances = np.broadcast_to(variances, (self.components, d))
            return Components(logs, means, None, np.zeros(self.components), variances, second)
        covariances = self.known if self.covariance == "known" else theta["covariances"]
        whiten = _inverse_factors(np.reshape(covariances, (-1, d, d)))
        half_log_det = np.log(np.diagonal(whiten, axis1=1, axis2=2)).sum(axis=1)
        return Components(logs, means, whiten, half_log_det, np.zeros((0, 0)), second)

    def _gap_log_joint(self, theta: Theta, gaps: Gaps) -> np.ndarray:
        log_joint = np.empty((self.components, len(gaps.columns)))
        for batch in completed(self.components_of(theta), gaps.x):
            log_joint[:, batch.columns] = batch.log_joint
        return log_joint

    def _gap_sums(
        self, theta: Theta, gaps: Gaps, weights: np.ndarray | None = None, owners: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        components = self.components_of(theta)
        each, tied = np.zeros(len(gaps.columns), np.int64), self.covariance == "tied"
        if owners is not None:
            each = np.unique(owners, return_inverse=True)[1]
        own, log_joint = sum(self.layout.kinds), np.empty((self.components, len(each)))
        sums = np.zeros((int(each[-1]) + 1, self.components, own))
        shared = np.zeros((len(sums), self.layout.shared)) if tied else None
        for batch in completed(components, gaps.x):
            log_joint[:, batch.columns] = batch.log_joint
            r, clients = responsibilities(batch.log_joint), each[batch.columns]
            if weights is not None:
                r *= weights[batch.columns]
            starts = np.flatnonzero(np.diff(clients, prepend=-1))
            added = batch.sums(r, starts, components.second)
            sums[clients[starts]] += added[:, :, :own]
            if shared is not None:
                shared[clients[starts]] += added[:, :, own:].sum(axis=1)
        return sums, shared, log_joint

    # --- M-step -------------------------------------------------------------------------------------------------------

    def _scatter(self, counts: np.ndarray, parts: list[np.ndarray], margin: float) -> tuple[np.ndarray, np.ndarray]:
        """s2 - s1 s1'/s0 + Lam - margin s0, and the second moments it was subtracted from; (G,), (G, d), (d, d) or
        (G, d, d), each with moments of one axis less than a matrix."""
        d, first = self.features, parts[1]
        if self.covariance == "spherical":
            moments = parts[2][:, 0] + np.trace(self.lam)
            return moments - np.sum(first * first, axis=1) / counts - d * margin * counts, moments
        if self.covariance == "diag":
            moments = parts[2] + np.diagonal(self.lam)
            return moments - first * first / counts[:, None] - margin * counts[:, None], moments
        second = unpack_symmetric(parts[2], d) + self.lam
        moments = np.diagonal(second, axis1=-2, axis2=-1)
        if self.covariance == "tied":
            return second - (first / counts[:, None]).T @ first - margin * np.eye(d), moments
        outer = first[:, :, None] * (first / counts[:, None])[:, None, :]
        return second - (outer + margin * counts[:, None, None] * np.eye(d)), moments

    def maximise(self, s: np.ndarray, start: Theta | None = None, rough: bool = False) -> Theta:
        parts = self.layout.unpack(require_finite(s))
        counts = floored_counts(parts[0])
        theta = {"weights": self._weights_of(counts, self.a), "means": self.centre + parts[1] / counts[:, None]}
        if self.covariance == "known":
            return theta
        scatter, moments = self._scatter(counts, parts, 0.0)
        if self.covariance == "spherical":
            scatter = np.maximum(scatter, RELATIVE_FLOOR * np.maximum(moments, SMALLEST_MOMENT))
            return theta | {"covariances": scatter / (self.features * (counts + self.nu))}
        if self.covariance == "diag":
            scatter = np.maximum(scatter, RELATIVE_FLOOR * np.maximum(moments, SMALLEST_MOMENT))
            return theta | {"covariances": scatter / (counts + self.nu)[:, None]}
        divisor = 1.0 + self.nu if self.covariance == "tied" else (counts + self.nu)[:, None, None]
        return theta | {"covariances": floored(scatter, moments) / divisor}

    def admissible(self, s: np.ndarray, margin: float = 0.0) -> bool:
        """s0_g > margin, and every eigenvalue of (s2_g - s1_g s1_g'/s0_g + Lam) / s0_g beyond margin and rounding."""
        if not np.isfinite(s).all():
            return False
        parts = self.layout.unpack(s)
        counts = parts[0].ravel()
        if not alive(counts, margin):
            return False
        if self.covariance == "known":
            return True
        scatter, moments = self._scatter(counts, parts, margin)
        if self.covariance in ("spherical", "diag"):
            return bool(((moments > 0) & (scatter > RELATIVE_FLOOR * moments)).all())
        return positive_definite(scatter, moments)

    def statistic_of(self, theta: Theta) -> np.ndarray:
        counts = self._counts_of(theta["weights"], self.a)
        m = theta["means"] - self.centre
        first = counts[:, None] * m
        if self.covariance == "known":
            return self.layout.join(counts, first)
        covariances = np.asarray(theta["covariances"])
        if self.covariance == "spherical":
            second = self.features * covariances * (counts + self.nu) - np.trace(self.lam) + np.sum(first * m, axis=1)
        elif self.covariance == "diag":
            second = covariances * (counts + self.nu)[:, None] - np.diagonal(self.lam) + first * m
        elif self.covariance == "tied":
            second = pack_symmetric(covariances * (1.0 + self.nu) - self.lam + first.T @ m)
        else:
            outer = first[:, :, None] * m[:, None, :]
            second = pack_symmetric(covariances * (counts + self.nu)[:, None, None] - self.lam + outer)
        return self.layout.join(counts, first, second)

    def _keep_variances(self, theta: Theta, before: list[np.ndarray], parts: list[np.ndarray]) -> bool:
        """Generalised eigenvalues of (covariance after, covariance before) are floored."""
        if self.covariance == "known":
            return False
        counts, old = parts[0][:, 0], np.asarray(theta["covariances"])
        scatter, _ = self._scatter(counts, parts, 0.0)
        if self.covariance in ("spherical", "diag"):
            each = self.features if self.covariance == "spherical" else 1
            lacks = LEAST_VARIANCE * (old.T * each * (counts + self.nu)).T - scatter
            parts[2] += np.maximum(lacks, 0.0).reshape(parts[2].shape)
            return bool((lacks > 0).any())
        divisor = np.array(1.0 + self.nu) if self.covariance == "tied" else counts + self.nu
        lacks = lacking(scatter / divisor[..., None, None], old, LEAST_VARIANCE)
        parts[2] += pack_symmetric(lacks * divisor[..., None, None])
        return bool(lacks.any())

    def least_ratio(self, before: Theta, after: Theta) -> float:
        """Of covariances: the smallest generalised eigenvalue of (after, before)."""
        ratio = super().least_ratio(before, after)
        if self.covariance == "known":
            return ratio
        if self.covariance in ("spherical", "diag"):
            return min(ratio, float(np.min(after["covariances"] / before["covariances"])))
        return min(ratio, least_eigenvalue(after["covariances"], before["covariances"]))

    def penalty(self, theta: Theta) -> float:
        value = -self.a * float(log_weights(theta).sum()) if self.a else 0.0
        if self.covariance == "known" or not (self.nu or self.lam.any()):
            return value
        covariances = np.asarray(theta["covariances"])
        if self.covariance in ("spherical", "diag"):
            variances = covariances[:, None] if self.covariance == "spherical" else covariances
            variances = np.broadcast_to(variances, (self.components, self.features))
            return value + 0.5 * float(self.nu * np.log(variances).sum() + (np.diagonal(self.lam) / variances).sum())
        factors = _inverse_factors(covariances)
        log_det = -2.0 * np.log(np.diagonal(factors, axis1=-2, axis2=-1)).sum()
        return value + 0.5 * float(self.nu * log_det + np.sum((factors @ self.lam) * factors))

    # --- components ---------------------------------------------------------------------------------------------------

    def own_parameters(self, theta: Theta) -> list[str]:
        return [name for name in super().own_parameters(theta) if name != "covariances" or self.covariance != "tied"]

    def _alone(self, share: float) -> Self:
        own = self.covariance not in ("tied", "known")
        return replace(self, components=1, lam=self.lam / share if own else self.lam)

    def along_longest_axis(self, theta: Theta, y: Rows) -> np.ndarray:
        y = np.asarray(y)
        return longest(np.where(np.isnan(y), 0.0, y - theta["means"][0]))

    # --- checks -------------------------------------------------------------------------------------------------------

    def check_rows(self, y: Rows) -> None:
        """With missing entries: NaN is allowed, but not in all columns of a row."""
        check_columns(y, self.features)
        if self.missing:
            refuse(y, np.isinf, "is infinite", "Use NaN for missing values.")
            check_seen_rows(y)
        else:
            check_finite_rows(y)

    def check_theta(self, theta: Mapping[str, np.ndarray]) -> Theta:
        """theta in float64. Raises ConfigError unless its shapes fit, the weights are positive and add up to 1, and the
        covariances are positive definite."""
        g, d = self.components, self.features
        checked = {"weights": check_weights(theta, g), "means": check_array(theta, "means", (g, d))}
        if self.covariance == "known":
            return checked
        shape = {"spherical": (g,), "diag": (g, d), "tied": (d, d), "full": (g, d, d)}[self.covariance]
        covariances = check_array(theta, "covariances", shape)
        if self.covariance in ("spherical", "diag"):
            if (covariances <= 0).any():
                raise ConfigError("the variances of a start must be positive.")
        else:
            check_positive_definite("the covariances of a start", covariances)
        return checked | {"covariances": covariances}


class _Linear(NamedTuple):
    """Logits phi @ z; ln p(y) has further terms constant - x' precision x / 2."""

    phi: np.ndarray
    constant: float
    precision: np.ndarray | None


class _Whitening(NamedTuple):
    """Rows factors @ x - offset have squared norms that are Mahalanobis distances. Differences are take_into before
    squares, which keeps the digits of an ill-conditioned covariance."""

    factors: np.ndarray
    offset: np.ndarray
    logs: np.ndarray


def _inverse_factors(covariances: np.ndarray) -> np.ndarray:
    """W (..., d, d) lower triangular with W'W = covariance^-1, from Cholesky factors."""
    lower = np.linalg.cholesky(np.asarray(covariances, np.float64))
    eye = np.eye(lower.shape[-1])
    # LAPACK itself: with G small factors the checks of solve_triangular cost more than what they guard
    if lower.ndim == 2:
        return scipy.linalg.lapack.dtrtrs(lower.T, eye, lower=0, trans=1)[0]
    return np.stack([scipy.linalg.lapack.dtrtrs(factor.T, eye, lower=0, trans=1)[0] for factor in lower])
