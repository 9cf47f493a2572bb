"""Natural units of mixtures of regressions: what `fedcore.methods.mixture_models.natural_units` is for Gaussians.

A step d of a statistic S with T(S) = theta moves, to first order, coefficients and variances by

    delta b = (pi M)^-1 c1,    delta sig2 = (c2 - sig2 d0) / pi,
    c1 = d_uv - d_uu b,        c2 = d_vv - 2 b'd_uv + b'd_uu b      (moments of the residual)

with pi M = S_uu, the second moments of a component's inputs, and the expected log-likelihood of the complete data falls
by

    1/2 sum_g [ d0^2 / pi + c1' M^-1 c1 / (pi sig2) + (c2 - sig2 d0)^2 / (2 pi sig2^2) ]

So with M = L L' the numbers

    z0 = d0 / sqrt(pi)
    z_uu = pack(L^-1 d_uu L^-T - d0 I) / sqrt(2 pi)
    z_uv = L^-1 c1 / sqrt(pi sig2)
    z_vv = (c2 - sig2 d0) / (sig2 sqrt(2 pi))

have half their squared norm as that loss, but for z_uu, which costs nothing while b stays; its unit is that of inputs
that are Gaussian. M does not follow from theta: both sides have to know S. All of it is one congruence,

    B [ d_uu   d_uv ] B'    with    B = [  L^-1     0   ]
      [ d_uv'  d_vv ]                   [ -b'/sig  1/sig ]

less d0 I, over sqrt(2 pi) and packed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import scipy

from fedcore.methods.mixture_models.contract import Theta
from fedcore.methods.mixture_models.packing import WEIGHT_FLOOR, floored, pack_symmetric, unpack_symmetric
from fedcore.methods.mixture_models.regression import RegressionMixture


@dataclass(frozen=True, eq=False)
class RegressionUnits:
    """The map between differences of statistics and natural units at theta = T(s). A
    `fedcore.methods.mixture_models.natural_units.Units`. s: (q,); empty: M = I."""

    model: RegressionMixture
    theta: Theta
    s: np.ndarray

    order: ClassVar[Literal["C", "F"]] = "C"

    def forward(self, differences: np.ndarray) -> np.ndarray:
        """z (C, q) float64 of packed differences of statistics (C, q), one row for each client."""
        counts, matrices = self._matrices(differences)
        matrices = self._inverse @ matrices @ np.swapaxes(self._inverse, -1, -2) - self._identity * counts
        matrices /= self._sizes
        return self._packed(counts[..., 0, 0] / self._root, matrices)

    def backward(self, z: np.ndarray) -> np.ndarray:
        """Packed differences of statistics (C, q) float64 of z (C, q): the inverse of `forward`."""
        counts, matrices = self._matrices(z)
        counts = counts * self._root[:, None, None]
        matrices = matrices * self._sizes + self._identity * counts
        return self._packed(counts[..., 0, 0], self._factor @ matrices @ np.swapaxes(self._factor, -1, -2))

    def possible(self, s: np.ndarray) -> np.ndarray:
        """As it is: what errors do to second moments is undone by smaller steps."""
        return s

    @cached_property
    def _root(self) -> np.ndarray:
        """(G,) sqrt(pi)."""
        return np.sqrt(np.maximum(self.theta["weights"], WEIGHT_FLOOR))

    @cached_property
    def _identity(self) -> np.ndarray:
        return np.eye(self.model.inputs + 1)

    @cached_property
    def _sizes(self) -> np.ndarray:
        """(G, p + 1, p + 1) sqrt(2 pi); sqrt(pi) for uv, which is packed without a factor sqrt(2)."""
        sizes = np.full((self.model.inputs + 1, self.model.inputs + 1), np.sqrt(2.0))
        sizes[-1, :-1] = sizes[:-1, -1] = 1.0
        return sizes * self._root[:, None, None]

    @cached_property
    def _factor(self) -> np.ndarray:
        """(G, p + 1, p + 1) B^-1 = [[L, 0], [b'L, sig]]."""
        p, b = self.model.inputs, self.theta["coefficients"]
        factor = np.zeros((self.model.components, p + 1, p + 1))
        lower = np.linalg.cholesky(self._second_moments)
        factor[:, :p, :p] = lower
        factor[:, p, :p] = (b[:, None, :] @ lower)[:, 0]
        factor[:, p, p] = np.sqrt(self.theta["variances"])
        return factor

    @cached_property
    def _inverse(self) -> np.ndarray:
        """(G, p + 1, p + 1) B."""
        inverses = [
            scipy.linalg.solve_triangular(own, self._identity, lower=True, check_finite=False) for own in self._factor
        ]
        return np.stack(inverses)

    @property
    def _second_moments(self) -> np.ndarray:
        """(G, p, p) M, with what the ridge adds to it."""
        if not len(self.s):
            return np.tile(np.eye(self.model.inputs), (self.model.components, 1, 1))
        moments = self.model.input_moments(self.s)
        return floored(moments, np.diagonal(moments, axis1=1, axis2=2)) / self._root[:, None, None] ** 2

    def _matrices(self, packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(C, G, 1, 1) first numbers, and (C, G, p + 1, p + 1) moments of the inputs and the response of (C, q)."""
        clients, g, (_, second, first, _) = len(packed), self.model.components, self.model.layout.kinds
        p = self.model.inputs
        counts, uu, uv, vv = np.split(packed, np.cumsum([g, g * second, g * first]), axis=1)
        matrices = np.empty((clients, g, p + 1, p + 1))
        matrices[..., :p, :p] = unpack_symmetric(uu.reshape(clients, g, second), p)
        matrices[..., :p, p] = matrices[..., p, :p] = uv.reshape(clients, g, first)
        matrices[..., p, p] = vv
        return counts[..., None, None], matrices

    def _packed(self, counts: np.ndarray, matrices: np.ndarray) -> np.ndarray:
        """The inverse of `_matrices`."""
        clients, p = len(counts), self.model.inputs
        parts = (counts, pack_symmetric(matrices[..., :p, :p]), matrices[..., p, :p], matrices[..., p, p])
        return np.concatenate([part.reshape(clients, int(np.prod(part.shape[1:]))) for part in parts], axis=1)
