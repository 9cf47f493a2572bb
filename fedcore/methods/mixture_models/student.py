"""Mixtures of multivariate Student-t distributions, which have heavier tails than Gaussians.

A row y of component g is normal with mean mu_g and covariance Sigma_g / w, where w is drawn from a gamma distribution
of mean 1 and shape nu / 2. All components share the degrees of freedom nu. So Sigma_g is a scale matrix: the covariance
of the component is Sigma_g nu / (nu - 2). In d columns, with delta_g the squared Mahalanobis distance of y,

    ln f_g = ln Gamma((nu + d) / 2) - ln Gamma(nu / 2) - d/2 ln(nu pi) - ln|Sigma_g| / 2
             - (nu + d)/2 ln(1 + delta_g / nu)
    w_g    = E[w | y, g] = (nu + d) / (nu + delta_g)

Statistics, with x = y - c: r_g ; r_g w_g ; r_g w_g x ; and r_g w_g times the second moments of a Gaussian mixture. The
M-step is that of Gaussians whose rows weigh r_g w_g, but the scatter is divided by the sum of r_g:

    mu_g = c + s1_g / sw_g        Sigma_g = (s2_g - s1_g s1_g' / sw_g + Lam) / (s0_g + nu_penalty)

For a row with missing entries d and delta are those of what was seen, and the scatter gains r_g C_g, with C_g the
conditional covariance for w = 1 (`fedcore.methods.mixture_models.gaps`).

Source: Peel and McLachlan, "Robust mixture modelling using the t distribution" (2000); missing entries: Liu and Rubin,
"ML estimation of the t distribution using EM and its extensions" (1995).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.client_sums import Workspace, columns_of
from fedcore.methods.mixture_models.contract import Theta
from fedcore.methods.mixture_models.gaps import Components, log_kernel
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.mixture import alive, floored_counts, log_weights, require_finite
from fedcore.methods.mixture_models.packing import Layout, check_array

DEGREES = "degrees_of_freedom"  # among the parameters
LEAST_DEGREES = 2.0  # at and below it there is no covariance


@dataclass(frozen=True, eq=False)
class StudentMixture(GaussianMixture):
    """theta: as of `GaussianMixture`, but that covariances are scale matrices, and degrees_of_freedom (1,), which is
    that of the model.

    degrees: nu, above 2
    covariance: "full", "diag" or "spherical"

    Raises ConfigError for settings out of range.
    """

    degrees: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not LEAST_DEGREES < self.degrees < np.inf:
            raise ConfigError(f"{self.degrees} degrees of freedom are not a number above {LEAST_DEGREES:g}.")
        if self.covariance not in ("full", "diag", "spherical"):
            raise ConfigError(f"Student-t components have no {self.covariance} covariances.")

    @cached_property
    def _normal(self) -> GaussianMixture:
        """The Gaussian mixture with the same settings."""
        return GaussianMixture(**{field.name: getattr(self, field.name) for field in fields(GaussianMixture)})

    def _layout(self) -> Layout:
        return Layout(self.components, (1, *self._normal.layout.kinds))

    @property
    def _row_numbers(self) -> int:
        return sum(self._normal.layout.kinds)

    # --- E-step -------------------------------------------------------------------------------------------------------

    def _prepare(self, theta: Theta) -> _Distances:
        if self.covariance == "full":
            whitening = self._whitening(theta)
            return _Distances(whitening.factors, whitening.offset, whitening.logs)
        m = theta["means"] - self.centre
        variances = theta["covariances"][:, None] if self.covariance == "spherical" else theta["covariances"]
        first = m / variances
        logs = log_weights(theta) - 0.5 * np.log(np.broadcast_to(variances, m.shape)).sum(axis=1)
        phi = np.hstack([np.sum(m * first, axis=1, keepdims=True), -2.0 * first, 1.0 / variances])
        return _Distances(phi, None, logs[:, None])

    def _log_joint(self, prepared: _Distances, z: np.ndarray, work: Workspace, each: int | None = None) -> np.ndarray:
        """Working memory "latent" then has the w (G, n)."""
        if prepared.offset is None:
            distances = np.maximum(work.product("distances", prepared.factors, z, each), 0.0)
        else:
            white = work.product("white", prepared.factors, z[1 : 1 + self.features], each)
            white -= prepared.offset
            white *= white
            distances = white.reshape(self.components, self.features, -1).sum(axis=1)
        latent = self._latent(work, z)
        np.fmax(distances, 0.0, out=latent)  # no NaN of rows with missing entries, whose r is 0
        latent += self.degrees
        np.divide(self.degrees + self.features, latent, out=latent)
        log_joint = log_kernel(distances, self.features, self.degrees)
        log_joint += prepared.logs
        return log_joint

    def _latent(self, work: Workspace, z: np.ndarray) -> np.ndarray:
        return work.array("latent", self.components)[:, : z.shape[1]]

    def _log_constant(self, prepared: Any, z: np.ndarray) -> float:
        return 0.0

    def _total(self, r: np.ndarray, z: np.ndarray, work: Workspace) -> np.ndarray:
        return np.hstack([r.sum(axis=1, keepdims=True), self._mass(r, z, work) @ z.T])

    def _by_client(self, r: np.ndarray, z: np.ndarray, work: Workspace, each: int) -> np.ndarray:
        counts = columns_of(r, each).sum(axis=2, keepdims=True)
        return np.concatenate([counts, super()._by_client(self._mass(r, z, work), z, work, each)], axis=2)

    def _mass(self, r: np.ndarray, z: np.ndarray, work: Workspace) -> np.ndarray:
        """(G, n) working memory: r w."""
        return np.multiply(r, self._latent(work, z), out=work.array("mass", self.components)[:, : z.shape[1]])

    def components_of(self, theta: Theta) -> Components:
        return super().components_of(theta)._replace(degrees=self.degrees)

    # --- M-step -------------------------------------------------------------------------------------------------------

    def maximise(self, s: np.ndarray, start: Theta | None = None, rough: bool = False) -> Theta:
        s, g = require_finite(s), self.components
        counts, masses = floored_counts(s[:g]), floored_counts(s[g : 2 * g])
        theta = self._normal.maximise(s[g:])
        covariances = (theta["covariances"].T * ((masses + self.nu) / (counts + self.nu))).T
        return {"weights": self._weights_of(counts, self.a), "means": theta["means"], "covariances": covariances} | {
            DEGREES: np.array([self.degrees])
        }

    def admissible(self, s: np.ndarray, margin: float = 0.0) -> bool:
        """s0_g > margin, and the others as of `GaussianMixture`, relative to sw_g."""
        own = s[: self.components]
        return bool(np.isfinite(own).all()) and alive(own, margin) and self._normal.admissible(s[len(own) :], margin)

    def statistic_of(self, theta: Theta) -> np.ndarray:
        rest = self._normal.statistic_of(theta)  # with w = 1
        return np.concatenate([rest[: self.components], rest])

    # --- components and checks ----------------------------------------------------------------------------------------

    def own_parameters(self, theta: Theta) -> list[str]:
        return [name for name in super().own_parameters(theta) if name != DEGREES]

    def check_theta(self, theta: Mapping[str, np.ndarray]) -> Theta:
        """As of `GaussianMixture`. Raises ConfigError for other degrees of freedom than those of the model."""
        checked, degrees = super().check_theta(theta), check_array(theta, DEGREES, (1,))
        if degrees[0] != self.degrees:
            raise ConfigError(f"the start has {degrees[0]:g} degrees of freedom, and the model {self.degrees:g}.")
        return {**checked, DEGREES: degrees}


class _Distances(NamedTuple):
    """Squared Mahalanobis distances are factors @ z; or, with an offset, squared norms of factors @ x - offset."""

    factors: np.ndarray
    offset: np.ndarray | None
    logs: np.ndarray


def with_tails(model: GaussianMixture, degrees: float) -> StudentMixture:
    """The mixture with the same settings, but for its tails."""
    return StudentMixture(
        **{field.name: getattr(model, field.name) for field in fields(GaussianMixture)}, degrees=degrees
    )


def degrees_in(theta: Mapping[str, np.ndarray]) -> float | None:
    """nu among the parameters; None where components are normal. Raises ConfigError for what is no such number."""
    if DEGREES not in theta:
        return None
    degrees = float(check_array(theta, DEGREES, (1,))[0])
    if degrees <= LEAST_DEGREES:
        raise ConfigError(f"{DEGREES} of a start must be above {LEAST_DEGREES:g}.")
    return degrees
