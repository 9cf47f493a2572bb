"""Natural units of mixtures of regressions: what `fedcore.methods.mixture_models.natural_units` is for Gaussians.

A step d of a statistic with T(S) = theta moves, to first order and without a penalty, coefficients and variances by

    delta b = (pi M)^-1 c1,    delta sig2 = (c2 - sig2 d0) / pi,
    c1 = d_uv - d_uu b,        c2 = d_vv - 2 b'd_uv + b'd_uu b      (moments of the residual)

with M = S_uu / pi, the second moments of a component's inputs, and the expected log-likelihood of the complete data
falls by

    1/2 sum_g [ d0^2 / pi + c1' M^-1 c1 / (pi sig2) + (c2 - sig2 d0)^2 / (2 pi sig2^2) ]

M does not follow from theta. One diagonal M stands for those of all components, the second moments of the columns; for
standardised inputs it is I. With D = diag(M)^-1/2

    z0 = d0 / sqrt(pi)
    z_uu = pack(D d_uu D - I d0) / sqrt(2 pi)
    z_uv = D c1 / sqrt(pi sig2)
    z_vv = (c2 - sig2 d0) / (sig2 sqrt(2 pi))

z_uu costs nothing while b stays; the unit is that of inputs which are Gaussian.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedcore.methods.mixture_models.contract import Theta
from fedcore.methods.mixture_models.packing import WEIGHT_FLOOR, pack_symmetric, unpack_symmetric
from fedcore.methods.mixture_models.regression import RegressionMixture


@dataclass(frozen=True, eq=False)
class RegressionUnits:
    """The map between differences of statistics and natural units at theta. A
    `fedcore.methods.mixture_models.natural_units.Units`."""

    model: RegressionMixture
    theta: Theta

    def forward(self, differences: np.ndarray) -> np.ndarray:
        """z (C, q) float64 of packed differences of statistics (C, q), one row for each client."""
        counts, uu, uv, vv = self._split(differences)
        inner = unpack_symmetric(uu, self.model.inputs)
        along = self._times_coefficients(inner)
        residual = vv - np.sum(self._b * (2 * uv - along), axis=-1)
        second = pack_symmetric(inner * self._sizes - self._identity * counts[..., None, None])
        return self._join(
            counts / self._root,
            second / (np.sqrt(2.0) * self._root[:, None]),
            (uv - along) * self._scale / (self._root * np.sqrt(self._variances))[:, None],
            (residual / self._variances - counts) / (np.sqrt(2.0) * self._root),
        )

    def backward(self, z: np.ndarray) -> np.ndarray:
        """Packed differences of statistics (C, q) float64 of z (C, q): the inverse of `forward`."""
        counts, second, first, residual = self._split(z)
        counts = counts * self._root
        second = unpack_symmetric(second * (np.sqrt(2.0) * self._root[:, None]), self.model.inputs)
        inner = (second + self._identity * counts[..., None, None]) / self._sizes
        along = self._times_coefficients(inner)
        uv = first * (self._root * np.sqrt(self._variances))[:, None] / self._scale + along
        residual = (residual * (np.sqrt(2.0) * self._root) + counts) * self._variances
        vv = residual + np.sum(self._b * (2 * uv - along), axis=-1)
        return self._join(counts, pack_symmetric(inner), uv, vv)

    def possible(self, s: np.ndarray) -> np.ndarray:
        """As it is: what errors do to second moments is undone by smaller steps."""
        return s

    @cached_property
    def _root(self) -> np.ndarray:
        """(G,) sqrt(pi)."""
        return np.sqrt(np.maximum(self.theta["weights"], WEIGHT_FLOOR))

    @property
    def _b(self) -> np.ndarray:
        return self.theta["coefficients"]

    @property
    def _variances(self) -> np.ndarray:
        return self.theta["variances"]

    @cached_property
    def _scale(self) -> np.ndarray:
        """(p,) the diagonal of D."""
        return 1.0 / np.sqrt(self.model.input_moments)

    @cached_property
    def _sizes(self) -> np.ndarray:
        """(p, p) what D d D multiplies the entries of d by."""
        return np.outer(self._scale, self._scale)

    @cached_property
    def _identity(self) -> np.ndarray:
        return np.eye(self.model.inputs)

    def _times_coefficients(self, inner: np.ndarray) -> np.ndarray:
        """d_uu b (C, G, p) of matrices (C, G, p, p). Products are of one client, whose bits no other client changes."""
        return (inner @ self._b[..., None])[..., 0]

    def _split(self, packed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Views of (C, q): (C, G), (C, G, p (p + 1) / 2), (C, G, p), (C, G)."""
        clients, g, (_, second, first, _) = len(packed), self.model.components, self.model.layout.kinds
        counts, uu, uv, vv = np.split(packed, np.cumsum([g, g * second, g * first]), axis=1)
        return counts, uu.reshape(clients, g, second), uv.reshape(clients, g, first), vv

    def _join(self, *parts: np.ndarray) -> np.ndarray:
        return np.concatenate([part.reshape(len(part), int(np.prod(part.shape[1:]))) for part in parts], axis=1)
