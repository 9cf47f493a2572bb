"""The outcome of a run as a value: a mixture that can be sampled and scored, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.mixture_models import GaussianMixture
from fedcore.methods.private_gmm.state import PrivateGMMState


@dataclass(frozen=True, slots=True)
class PrivateMixture:
    """weights: (m,); means: (m, d); covariances: (m,), (m, d) or (m, d, d), by `form`. unreliable: (m,) bool, see
    `PrivateGMMState`. found: whether there is a mixture; otherwise arrays are empty, and reason, units_needed and
    epsilon_factor say what lacked. Everything is made of published values.
    """

    found: bool
    reason: str
    form: str
    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    unreliable: np.ndarray
    units_needed: float
    epsilon_factor: float

    @property
    def components(self) -> int:
        return len(self.weights)

    def matrices(self) -> np.ndarray:
        """(m, d, d) covariances, whatever their form."""
        d = self.means.shape[1]
        if self.form == "full":
            return self.covariances
        return np.stack([np.eye(d) * row for row in self.covariances]) if self.components else np.zeros((0, d, d))

    def parameters(self) -> dict[str, np.ndarray]:
        """As `fedcore.methods.mixture_models.GaussianMixture` takes them. Raises RunError if nothing was found."""
        self._check()
        return {"weights": self.weights, "means": self.means, "covariances": self.covariances}

    def log_likelihood(self, x: np.ndarray) -> np.ndarray:
        """(n,) nats of rows (n, d), in the units of the data."""
        return self._model().log_likelihood(self.parameters(), np.asarray(x, np.float64))

    def responsibilities(self, x: np.ndarray) -> np.ndarray:
        """(n, m)."""
        return np.asarray(self._model().personalise(self.parameters(), np.asarray(x, np.float64))["responsibilities"])

    def labels(self, x: np.ndarray) -> np.ndarray:
        """(n,) int64, the component of each row: the nearest mean relative to the component's mean variance.

        Not by the full covariances: those are noisy where a component holds few rows.
        """
        self._check()
        x, centre = np.asarray(x, np.float64), self.means.mean(axis=0)
        rows, points = x - centre, self.means - centre
        squares = (rows**2).sum(axis=1)[:, None] - 2 * rows @ points.T + (points**2).sum(axis=1)
        d = self.means.shape[1]
        spheres = np.trace(self.matrices(), axis1=1, axis2=2) / d
        return np.argmin(squares / spheres + d * np.log(spheres), axis=1).astype(np.int64)

    def sample(self, generator: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """(n, d) rows and (n,) int64 components of them."""
        self._check()
        labels = generator.choice(self.components, size=n, p=self.weights / self.weights.sum())
        roots = np.linalg.cholesky(self.matrices())
        normal = generator.standard_normal((n, self.means.shape[1]))
        return self.means[labels] + np.einsum("nij,nj->ni", roots[labels], normal), labels.astype(np.int64)

    def _model(self) -> GaussianMixture:
        return GaussianMixture(self.components, self.means.shape[1], self.form)

    def _check(self) -> None:
        if not self.found:
            raise RunError(
                f"the run has no mixture: {self.reason}.",
                "Use more records, more budget, or data whose components are further apart.",
            )


def result_of(covariance: str, state: PrivateGMMState | Mapping) -> PrivateMixture:
    """What a state says. covariance: of the config."""
    values = {name: getattr(state, name) for name in ("weights", "means", "covariances", "unreliable")}
    if not state.found:
        values = {name: value[:0] for name, value in values.items()}
    return PrivateMixture(
        state.found,
        state.reason or state.outcome,
        covariance,
        **values,
        units_needed=state.units_needed,
        epsilon_factor=state.epsilon_factor,
    )
