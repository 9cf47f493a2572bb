"""What a run has learnt: a mixture that can be sampled and scored, or the reason why there is none; and its tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.mixture_models import GaussianMixture
from fedcore.methods.private_gmm.config import Covariance
from fedcore.methods.private_gmm.state import PrivateGMMState
from fedcore.rounds.results import Column, Features, Result, Table, heaviest


@dataclass(frozen=True, slots=True)
class PrivateMixture:
    """Everything is made of published values.

    found: whether there is a mixture; otherwise arrays are empty, and reason, units_needed and epsilon_factor say what
        lacked
    weights: (m,); means: (m, d); covariances: (m,), (m, d) or (m, d, d), by form; in the units of the data
    unreliable: (m,) bool, see `PrivateGMMState`
    """

    found: bool
    reason: str
    form: Covariance
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
        """(n,) nats of rows (n, d), in the units of the data. Raises RunError if nothing was found."""
        return self._model().log_likelihood(self.parameters(), np.asarray(x, np.float64))

    def responsibilities(self, x: np.ndarray) -> np.ndarray:
        """(n, m). Raises RunError if nothing was found."""
        return np.asarray(self._model().personalise(self.parameters(), np.asarray(x, np.float64))["responsibilities"])

    def labels(self, x: np.ndarray) -> np.ndarray:
        """(n,) int64, the component of each row: the nearest mean relative to the component's mean variance.

        Full covariances are not used: they are noisy where a component holds few rows. Raises RunError if nothing was
        found.
        """
        self._check()
        x, centre = np.asarray(x, np.float64), self.means.mean(axis=0)
        rows, points = x - centre, self.means - centre
        squares = (rows**2).sum(axis=1)[:, None] - 2 * rows @ points.T + (points**2).sum(axis=1)
        d = self.means.shape[1]
        spheres = np.trace(self.matrices(), axis1=1, axis2=2) / d
        return np.argmin(squares / spheres + d * np.log(spheres), axis=1).astype(np.int64)

    def sample(self, generator: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """(n, d) rows and (n,) int64 components of them. Raises RunError if nothing was found."""
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


def mixture_of(form: Covariance, state: PrivateGMMState) -> PrivateMixture:
    """The mixture of a finished run, or why there is none."""
    kept = slice(None) if state.found else slice(0)
    return PrivateMixture(
        state.found,
        state.reason or state.outcome,
        form,
        state.weights[kept],
        state.means[kept],
        state.covariances[kept],
        state.unreliable[kept],
        state.units_needed,
        state.epsilon_factor,
    )


def column_variances(form: Covariance, covariances: np.ndarray, d: int) -> np.ndarray:
    """(m, d), the diagonals of the covariances."""
    if form == "spherical":
        return np.repeat(covariances[:, None], d, axis=1)
    return covariances if form == "diag" else np.diagonal(covariances, axis1=1, axis2=2)


def result_of(form: Covariance, state: PrivateGMMState, features: Features) -> Result:
    """Shares, means and standard deviations of the components, the heaviest first; empty unless the run has found some.

    Component 1 is row 0 of the state's arrays, and label 0 of the clients' outputs. Means and standard deviations are
    in the units of the data.
    """
    if not state.found:
        return Result()
    order = heaviest(len(state.weights), state.weights, len(state.weights))
    deviations = np.sqrt(column_variances(form, state.covariances, state.features))
    components = Table(
        "components",
        "Components",
        (
            Column("component", [k + 1 for k in order]),
            Column("share", [float(state.weights[k]) for k in order], "%"),
            Column("covariance", ["too noisy, simplified" if state.unreliable[k] else form for k in order]),
        ),
    )
    names = Column("column", [features.name(index) for index in range(state.features)])

    def by_column(name: str, title: str, values: np.ndarray) -> Table:
        """A line for each column of the data. values: (m, d)."""
        return Table(name, title, (names, *(Column(f"component {k + 1}", values[k].tolist()) for k in order)))

    means = by_column("means", "Means", state.means)
    tables = [components, means, by_column("standard_deviations", "Standard deviations", deviations)]
    if len(state.valley_p):
        valleys = Table(
            "valleys",
            "Valleys between neighbouring components",
            (
                Column("components", [f"{i + 1} and {j + 1}" for i, j in state.pairs]),
                Column("units", state.valley_mass.tolist()),
                Column("valley / lower peak", state.valley_depth.tolist()),
                Column("p", state.valley_p.tolist()),
            ),
        )
        tables.append(valleys)
    return Result(tuple(tables))
