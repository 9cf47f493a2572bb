"""The result of a run: a mixture that can be sampled and scored, or the reason why there is none; and its tables.

Per-client outputs: the components of a client's rows, for that client only. None of them is released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.mixture_models import GaussianMixture
from fedcore.methods.mixture_models.released import column_variances
from fedcore.methods.mixture_models.row_labels import labelled
from fedcore.methods.mixture_models.segments import of_numbers, segments_table
from fedcore.methods.mixture_models.tables import (
    by_component,
    components_table,
    correlations_table,
    positions,
    share_errors,
)
from fedcore.methods.mixture_models.whole_rows import matrix_of
from fedcore.methods.private_gmm import series
from fedcore.methods.private_gmm.config import Covariance
from fedcore.methods.private_gmm.state import PrivateGMMState
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import ClientOutputs
from fedcore.rounds.results import Column, Features, Result, Table, heaviest, of_columns, segment_names


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


def result_of(form: Covariance, state: PrivateGMMState, features: Features) -> Result:
    """Segments, shares, means, standard deviations and correlations (of full covariances) of the components, the
    largest first; empty unless the run has found some.

    Component 0 is row 0 of the state's arrays, and label 0 of the clients' outputs. Means and standard deviations are
    in the units of the data. Shares, means and standard deviations have standard errors (`errors_of`).
    """
    if not state.found:
        return Result()
    order = heaviest(len(state.weights), state.weights, len(state.weights))
    deviations = np.sqrt(column_variances(form, state.covariances, state.features))
    of_weights, of_means, of_deviations = errors_of(form, state)
    simplified = Column("covariance", ["too noisy, simplified" if state.unreliable[k] else form for k in order])
    first = of_columns(features, state.features)
    people = features.people if state.unit == "client" else None
    columns = [of_numbers(features, state.means, deviations, of_means)]
    tables = [
        segments_table(state.weights, order, columns, errors=of_weights, people=people, unit=state.unit),
        components_table(state.weights, simplified, order=order, errors=of_weights),
        by_component("means", "Means", first, state.means, order=order, errors=of_means),
        by_component(
            "standard_deviations", "Standard deviations", first, deviations, order=order, errors=of_deviations
        ),
    ]
    if form == "full":
        noise = _of_correlations(state)
        tables += filter(None, [correlations_table(features, state.covariances, order, noise)])
    if len(state.valley_p):
        names = dict(zip(order, segment_names(len(order)), strict=True))
        valleys = Table(
            "valleys",
            "Density dips between neighbouring components",
            (
                Column("segments", [" and ".join(sorted(names[int(i)] for i in pair)) for pair in state.pairs]),
                Column("units", state.valley_mass.tolist()),
                Column("valley / lower peak", state.valley_depth.tolist()),
                Column("p", state.valley_p.tolist()),
            ),
        )
        tables.append(valleys)
    return Result(tuple(tables), (positions(features, state.means, deviations, of_means, order),))


def errors_of(form: Covariance, state: PrivateGMMState) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Standard errors of shares (m,), means (m, d) and standard deviations (m, d) due to the noise in the cells'
    releases, as if the same people had answered again for the same cells. NaN where they are not known.

    With c_g the noisy counts, S_g the noisy sums of rows about a point near the mean and Q_g those of squares, and
    s_c, s_S, s_Q the standard deviations of their noise, known from the plan,

        mean      m_g = point + S_g / c_g         s_m = s_S / c_g          S_g itself is near 0, so c_g adds nothing
        variance  v_g = Q_g / c_g                 s_v^2 = (s_Q / c_g)^2 + (v_g s_c / c_g)^2
        standard deviation  sqrt(v_g)             s_v / (2 sqrt(v_g))

    to first order; for shares see `share_errors`. In a run that continues a series, s_c, s_m and s_Q / c_g come from
    the pooled knowledge of all its runs (`fedcore.methods.private_gmm.series`). No error is given for a variance that
    was raised to a floor, or whose matrix had eigenvalues raised. Noise in the search also affects which rows belong to
    a cell; the errors do not include that.
    """
    m, d = state.means.shape
    known = state.pool.found
    if len(known) != m:
        unknown = np.full((m, d), np.nan)
        return unknown[:, 0].copy(), unknown, unknown.copy()
    shares, means, moments = (known.noise[:, column] for column in (series.SHARES, series.MEANS, series.MOMENTS))
    of_means = np.repeat(means[:, None], d, axis=1)
    variances = column_variances(form, state.covariances, d)
    of_moments = np.stack([_of_variances(form, state, k, float(moments[k])) for k in range(m)])
    of_counts = variances * (shares / state.weights)[:, None]
    of_deviations = np.hypot(of_moments, of_counts) / (2 * np.sqrt(variances))
    return share_errors(state.weights, shares), of_means, of_deviations


def _of_variances(form: Covariance, state: PrivateGMMState, k: int, noise: float) -> np.ndarray:
    """(d,) standard deviations of the noise in the variances of component k by that of its second moment; NaN where a
    floor was in force. noise: of an entry of it, off the diagonal if the covariance is full."""
    d, own = state.features, state.pool.found.moments[k]
    shown = column_variances(form, state.covariances, d)[k]
    if form == "spherical":
        released, error = np.repeat(own / d, d), noise / d
    elif form == "diag":
        released, error = own, noise
    else:
        matrix = matrix_of(own, d)
        released, error = np.diagonal(matrix), math.sqrt(2.0) * noise
        if state.unreliable[k] and np.ptp(shown) == 0:
            released, error = np.repeat(released.mean(), d), error / math.sqrt(d)
        elif not state.unreliable[k] and not np.allclose(matrix, state.covariances[k], rtol=1e-9, atol=0):
            return np.full(d, np.nan)
    errors: np.ndarray = np.where(np.isclose(released, shown, rtol=1e-9, atol=0), error, np.nan)
    return errors


def _of_correlations(state: PrivateGMMState) -> np.ndarray:
    """(m, d, d) standard errors of the correlations of full covariances, by the noise of second moments.

    With r = M_ij / sqrt(M_ii M_jj), noise s in M_ij and sqrt(2) s on the diagonal, to first order

        s_r^2 = s^2 / (M_ii M_jj) + r^2 s^2 / 2 (1 / M_ii^2 + 1 / M_jj^2)

    NaN where it is unknown, and for simplified covariances.
    """
    m, d = state.means.shape
    known = state.pool.found
    if len(known) != m:
        return np.full((m, d, d), np.nan)
    noise = np.where(state.unreliable, np.nan, known.noise[:, series.MOMENTS])[:, None, None]
    variances = np.diagonal(state.covariances, axis1=1, axis2=2)
    products = variances[:, :, None] * variances[:, None, :]
    inverse = 1.0 / variances**2
    r = state.covariances / np.sqrt(products)
    errors: np.ndarray = noise * np.sqrt(1.0 / products + r**2 / 2 * (inverse[:, :, None] + inverse[:, None, :]))
    return errors


TILE = 2**16  # rows that are labelled at once


def personalise(mixture: PrivateMixture, block: RowsBlock) -> ClientOutputs:
    """For each of the C clients of a leaf, and for its N rows: `labelled`; rows that are not finite have no component.

    Raises RunError if the run has found no mixture.
    """
    if not mixture.found:
        raise RunError(f"the run found no mixture: {mixture.reason}.", "There is nothing to personalise.")
    return labelled(block, mixture.components, TILE, lambda x: np.isfinite(x).all(axis=1), mixture.labels)
