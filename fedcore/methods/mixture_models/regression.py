"""Mixtures of linear regressions. The response v is the last column of a row, u the others: v | u ~ N(u'b_g, sig2_g).

Statistics: r_g ; r_g u u' ; r_g u v ; r_g v^2, with u u' packed as in `fedcore.methods.mixture_models.packing`. With

    R = sum_g [ ridge |b_g|^2 / (2 sig2_g) + nu/2 ln sig2_g + lam / (2 sig2_g) - a ln pi_g ]

the M-step is closed: b_g = (S_uu + ridge I)^-1 S_uv, sig2_g = (S_vv - b_g'S_uv + lam) / (s0_g + nu). The numerator is
the Schur complement of the bordered matrix [[S_uu + ridge I, S_uv], [S_uv', S_vv + lam]], whose positive definiteness
is the domain. With an intercept, u gets a last entry of 1, which the ridge leaves alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.client_sums import Workspace
from fedcore.methods.mixture_models.contract import Rows, Theta
from fedcore.methods.mixture_models.mixture import (
    LEAST_VARIANCE,
    Mixture,
    alive,
    check_weights,
    floored_counts,
    log_weights,
    longest,
    require_finite,
)
from fedcore.methods.mixture_models.packing import (
    LOG_TWO_PI,
    RELATIVE_FLOOR,
    SMALLEST_MOMENT,
    Layout,
    check_array,
    check_columns,
    check_finite_rows,
    floored,
    lacking,
    pack_symmetric,
    positive_definite,
    products,
    triangle,
    unpack_symmetric,
)


class _Prepared(NamedTuple):
    coefficients: np.ndarray  # (G, p)
    half_precisions: np.ndarray  # (G, 1): -1 / (2 sig2)
    logs: np.ndarray  # (G, 1): ln pi - ln sig2 / 2


class _Features(NamedTuple):
    inputs: np.ndarray  # u (p, n)
    response: np.ndarray  # v (n,)
    statistics: np.ndarray  # 1 ; u u' ; u v ; v^2 (F, n)


@dataclass(frozen=True, eq=False)
class RegressionMixture(Mixture):
    """theta: weights (G,), coefficients (G, p), variances (G,); p = features - 1, or features with an intercept.

    components: G; features: d, the columns of a row with the response; intercept: last coefficient
    ridge, nu, lam, a: the penalty, numbers >= 0

    log_likelihood is that of the response given the other columns. Raises ConfigError for settings out of range.
    """

    components: int
    features: int
    intercept: bool = False
    ridge: float = 0.0
    nu: float = 0.0
    lam: float = 0.0
    a: float = 0.0

    def __post_init__(self) -> None:
        if self.components < 1 or self.inputs < 1:
            raise ConfigError("a mixture of regressions needs a component, and an input or an intercept.")
        if not all(value >= 0 for value in (self.ridge, self.nu, self.lam, self.a)):
            raise ConfigError("ridge, nu, lam and a must be 0 or more.")

    @property
    def inputs(self) -> int:
        """p, the numbers in u."""
        return self.features - 1 + self.intercept

    @property
    def _ridge(self) -> np.ndarray:
        ridge = np.full(self.inputs, self.ridge)
        if self.intercept:
            ridge[-1] = 0.0
        return ridge

    def _layout(self) -> Layout:
        return Layout(self.components, (1, triangle(self.inputs), self.inputs, 1))

    # --- E-step -------------------------------------------------------------------------------------------------------

    def _columns(self, work: Workspace, n: int) -> np.ndarray:
        return work.array("rows", self.features)[:, :n]

    def _expand(self, work: Workspace, n: int, joint_only: bool = False) -> _Features:
        p, t, rows = self.inputs, triangle(self.inputs), self._columns(work, n)
        u, z, v = work.array("inputs", p)[:, :n], work.array("features", sum(self.layout.kinds))[:, :n], rows[-1]
        u[: self.features - 1], z[0] = rows[:-1], 1.0
        if self.intercept:
            u[-1] = 1.0
        if joint_only:
            return _Features(u, v, z)
        products(u, z[1 : 1 + t])
        np.multiply(u, v, out=z[1 + t : -1])
        np.multiply(v, v, out=z[-1])
        return _Features(u, v, z)

    def _log_joint(self, prepared: _Prepared, z: _Features, work: Workspace, each: int | None = None) -> np.ndarray:
        log_joint = work.product("log joint", prepared.coefficients, z.inputs, each)
        log_joint -= z.response
        log_joint *= log_joint
        log_joint *= prepared.half_precisions
        log_joint += prepared.logs
        return log_joint

    def _total(self, r: np.ndarray, z: _Features, work: Workspace) -> np.ndarray:
        return super()._total(r, z.statistics, work)

    def _by_client(self, r: np.ndarray, z: _Features, work: Workspace, each: int) -> np.ndarray:
        return super()._by_client(r, z.statistics, work, each)

    def _prepare(self, theta: Theta) -> _Prepared:
        variances = theta["variances"][:, None]
        logs = log_weights(theta)[:, None] - 0.5 * np.log(variances)
        return _Prepared(theta["coefficients"], -0.5 / variances, logs)

    def _log_constant(self, prepared: _Prepared, z: _Features) -> float:
        return -0.5 * LOG_TWO_PI

    # --- M-step -------------------------------------------------------------------------------------------------------

    def input_moments(self, s: np.ndarray) -> np.ndarray:
        """(G, p, p): sum of r_g u u' in s (q,), and the ridge."""
        return unpack_symmetric(self.layout.unpack(s)[1], self.inputs) + np.diag(self._ridge)

    def _bordered(self, parts: list[np.ndarray]) -> np.ndarray:
        """(G, p + 1, p + 1)."""
        p = self.inputs
        bordered = np.empty((self.components, p + 1, p + 1))
        bordered[:, :p, :p] = unpack_symmetric(parts[1], p) + np.diag(self._ridge)
        bordered[:, :p, p] = bordered[:, p, :p] = parts[2]
        bordered[:, p, p] = parts[3][:, 0] + self.lam
        return bordered

    def maximise(self, s: np.ndarray, start: Theta | None = None, rough: bool = False) -> Theta:
        parts = self.layout.unpack(require_finite(s))
        p, counts = self.inputs, floored_counts(parts[0])
        bordered = self._bordered(parts)
        bordered = floored(bordered, np.diagonal(bordered, axis1=1, axis2=2))
        b = np.linalg.solve(bordered[:, :p, :p], bordered[:, :p, p:])[:, :, 0]
        square = bordered[:, p, p]
        residual = square - np.einsum("gi,gi->g", b, bordered[:, p, :p])
        residual = np.maximum(residual, RELATIVE_FLOOR * np.maximum(square, SMALLEST_MOMENT))
        return {
            "weights": self._weights_of(counts, self.a),
            "coefficients": b,
            "variances": residual / (counts + self.nu),
        }

    def admissible(self, s: np.ndarray, margin: float = 0.0) -> bool:
        """s0_g > margin, and the bordered matrix - margin s0_g I positive definite beyond rounding."""
        if not np.isfinite(s).all():
            return False
        parts = self.layout.unpack(s)
        if not alive(parts[0], margin):
            return False
        bordered = self._bordered(parts)
        moments = np.diagonal(bordered, axis1=1, axis2=2)
        return positive_definite(bordered - margin * parts[0][:, :, None] * np.eye(self.inputs + 1), moments)

    def statistic_of(self, theta: Theta) -> np.ndarray:
        """With inputs of second moment I. Any value is possible, since theta does not contain it."""
        counts, b = self._counts_of(theta["weights"], self.a), theta["coefficients"]
        uu = counts[:, None, None] * np.eye(self.inputs)
        uv = np.einsum("gij,gj->gi", uu + np.diag(self._ridge), b)
        vv = theta["variances"] * (counts + self.nu) - self.lam + np.sum(b * uv, axis=1)
        return self.layout.join(counts, pack_symmetric(uu), uv, vv)

    def _keep_variances(self, theta: Theta, before: list[np.ndarray], parts: list[np.ndarray]) -> bool:
        """Of the inputs in any direction, about 0, and of the response about its line."""
        p, counts, old = self.inputs, parts[0], self._bordered(before)
        moments, diagonals = old[:, :p, :p], np.diagonal(old, axis1=1, axis2=2)[:, :p]
        bordered = self._bordered(parts)
        inputs = bordered[:, :p, :p]
        lacks = lacking(
            inputs / counts[:, :, None], floored(moments, diagonals) / before[0][:, :, None], LEAST_VARIANCE
        )
        inputs += lacks * counts[:, :, None]
        parts[1] += pack_symmetric(lacks * counts[:, :, None])
        b = np.linalg.solve(floored(inputs, np.diagonal(inputs, axis1=1, axis2=2)), bordered[:, :p, p:])[:, :, 0]
        residual = bordered[:, p, p] - np.einsum("gi,gi->g", b, bordered[:, :p, p])
        short = LEAST_VARIANCE * theta["variances"] * (counts[:, 0] + self.nu) - residual
        parts[3] += np.maximum(short, 0.0)[:, None]
        return bool(lacks.any() or (short > 0).any())

    def least_ratio(self, before: Theta, after: Theta) -> float:
        return min(super().least_ratio(before, after), float(np.min(after["variances"] / before["variances"])))

    def penalty(self, theta: Theta) -> float:
        variances = theta["variances"]
        squares = (theta["coefficients"] ** 2) @ self._ridge + self.lam
        value = 0.5 * float((squares / variances + self.nu * np.log(variances)).sum())
        return value - self.a * float(log_weights(theta).sum()) if self.a else value

    # --- components ---------------------------------------------------------------------------------------------------

    def _alone(self, share: float) -> Self:
        return replace(self, components=1, ridge=self.ridge / share, lam=self.lam / share)

    def along_longest_axis(self, theta: Theta, y: Rows) -> np.ndarray:
        """The errors are the residual times each input: the score of the coefficients."""
        y = np.asarray(y)
        inputs = np.column_stack([y[:, :-1], np.ones(len(y))]) if self.intercept else y[:, :-1]
        return longest(inputs * (y[:, -1] - inputs @ theta["coefficients"][0])[:, None])

    # --- checks -------------------------------------------------------------------------------------------------------

    def check_rows(self, y: Rows) -> None:
        check_columns(y, self.features)
        check_finite_rows(y)

    def check_theta(self, theta: Mapping[str, np.ndarray]) -> Theta:
        """theta in float64. Raises ConfigError unless shapes fit, weights add up to 1 and variances are positive."""
        g = self.components
        variances = check_array(theta, "variances", (g,))
        if (variances <= 0).any():
            raise ConfigError("the variances of a start must be positive.")
        coefficients = check_array(theta, "coefficients", (g, self.inputs))
        return {"weights": check_weights(theta, g), "coefficients": coefficients, "variances": variances}
