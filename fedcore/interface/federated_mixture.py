"""A mixture of Gaussians over clients as an estimator, in the manner of scikit-learn's GaussianMixture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
from sklearn.base import DensityMixin
from sklearn.mixture import GaussianMixture
from sklearn.utils.validation import _check_sample_weight

from fedcore.errors import ConfigError
from fedcore.evaluation.scikit_learn import gaussian_mixture
from fedcore.interface.data import Groups, Stored
from fedcore.interface.densities import Densities, in_standard_units
from fedcore.interface.estimator import checked_seed
from fedcore.interface.imputing import ImputingEstimator
from fedcore.interface.model import Model
from fedcore.interface.starts import given_start
from fedcore.methods.federated_em.criteria import free_parameters
from fedcore.methods.federated_em.looks import start_passes
from fedcore.methods.mixture_models.imputation import Imputation
from fedcore.methods.mixture_models.student import DEGREES
from fedcore.methods.registry import make_method
from fedcore.population.store import Population
from fedcore.rounds.engine import Backend
from fedcore.rounds.fitted import CovarianceType

STARTS = {"kmeans": "kmeans++", "random_from_data": "random"}  # of scikit-learn's names those that mean the same
FIRST_AND_LAST = 2  # passes over the rows: for sizes and a sample, and for the last log-likelihood
COPIED = ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_", "converged_")


class FederatedMixture(DensityMixin, ImputingEstimator):
    """Fit a Gaussian mixture by expectation maximisation over clients, for rows that need not fit in memory.

    It is the method `federated_em` (Dieuleveut, Fort, Moulines, Robin 2021). With `algorithm="em"` clients send exact
    sums, and the result is that of pooled EM; "fedem" and "vr-fedem" compress what they send. It is not private.
    Parameters that scikit-learn's GaussianMixture has too mean the same; docs/notes/python.md lists the differences.

    n_components: number of components G; "auto": 1, 2, 4 ... 64, as long as held-out entries are predicted better, or
        held-out rows fitted better where nothing is missing. The number is chosen on the sample of the first pass; it
        is the length of weights_
    covariance_type: "full", "tied", "diag" or "spherical"
    algorithm: "em", "fedem" or "vr-fedem"
    tol: the fit ends when a pass gains less, in nats per row. None: by the method, 1e-4 for em
    max_iter: maximum number of EM steps. At most max_iter + 2 passes over the rows are made. The two more are for sizes
        and for the last log-likelihood. Em searches its starts on a sample of the first pass. The starts of "fedem" and
        "vr-fedem" read all rows, and their passes count here. None: by the method
    n_init: number of starts to compare. None: by the method, 4 for em; for "fedem" 1 if the passes of 4 would be more
        than half of max_iter
    init_params: "kmeans": centres of k-means from k-means++ seeds; "random_from_data": rows at random
    weights_init, means_init, precisions_init: (G,), (G, d) and the shape of covariance_type: where the fit starts,
        instead of a search. The other two need means_init. What is not given comes from the rows nearest to each mean
    random_state: a whole number is the seed of the run; a NumPy RandomState or Generator draws one for each fit; None
        is 0, so two fits agree
    warm_start: whether a second fit starts from the parameters of the first, if n_components and covariance_type are
        the same
    settings: other settings of the method, by name (`fedcore methods federated_em`). With algorithm="em", {"tails":
        "auto"} chooses between normal and Student-t components by held-out rows, and {"tails": 5} sets 5 degrees of
        freedom
    folder: where to keep the population and the run; None: nowhere
    backend: computes the client statistics, as of `fedcore.train`

    Fitted: weights_ (G,), means_ (G, d), covariances_, precisions_ and precisions_cholesky_ (in scikit-learn's shapes),
    all float64; n_iter_ EM steps; converged_; lower_bound_, the mean log density of the training rows less the penalty,
    nats in the units of the data (NaN if clients have equal weights and entries are missing); lower_bounds_, a list of
    it at the steps where it is known; n_features_in_,
    feature_names_in_ for columns with names; degrees_of_freedom_, infinite unless components are Student-t, whose
    covariances_ are scale matrices; outcome_, statement_, run_, model_.
    Raises ConfigError at `fit` for parameters out of range.

    >>> import numpy as np, fedcore
    >>> x = np.concatenate([np.random.default_rng(0).normal(size=(200, 2)) + at for at in (-4, 4)])
    >>> mixture = fedcore.FederatedMixture(n_components=2).fit(x)
    >>> sorted(mixture.means_[:, 0].round().tolist())
    [-4.0, 4.0]
    """

    method = "federated_em"

    def __init__(
        self,
        n_components: int | Literal["auto"] = 1,
        *,
        covariance_type: CovarianceType = "full",
        algorithm: Literal["em", "fedem", "vr-fedem"] = "em",
        tol: float | None = None,
        max_iter: int | None = None,
        n_init: int | None = None,
        init_params: Literal["kmeans", "random_from_data"] = "kmeans",
        weights_init: Any = None,
        means_init: Any = None,
        precisions_init: Any = None,
        random_state: int | np.random.RandomState | np.random.Generator | None = 0,
        warm_start: bool = False,
        settings: Mapping[str, Any] | None = None,
        folder: str | None = None,
        backend: Backend | None = None,
    ):
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.algorithm = algorithm
        self.tol = tol
        self.max_iter = max_iter
        self.n_init = n_init
        self.init_params = init_params
        self.weights_init = weights_init
        self.means_init = means_init
        self.precisions_init = precisions_init
        self.random_state = random_state
        self.warm_start = warm_start
        self.settings = settings
        self.folder = folder
        self.backend = backend

    def fit(self, X: Any, y: object = None, groups: Groups = None, sample_weight: Any = None) -> Self:
        """Fit the mixture to rows.

        X: (n, d) rows, NaN = missing; a population, or its folder or URL; or files of rows
        y: ignored
        groups: (n,) the client of each row, or the column of the files that names it; None: rows without a client, but
            for files with a column "client". The result of exact EM does not depend on the clients
        sample_weight: (n,) how often each row of an array counts, 0 or more; None: once. Populations and files name the
            column of the weights in settings={"weight_column": NUMBER}
        Returns the estimator.
        Raises ConfigError, PopulationError, IngestError, and ValueError for arrays that are no rows of numbers.
        """
        if sample_weight is not None and not isinstance(X, (Population, str, Path)):
            sample_weight = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        return self._fit(X, groups, sample_weight=sample_weight)

    def fit_predict(self, X: Any, y: object = None, groups: Groups = None, sample_weight: Any = None) -> np.ndarray:
        """Fit the mixture to rows of an array and label them.

        X, y, groups, sample_weight: as for `fit`, but X is an array
        Returns (n,) int64, the most probable component of each row.
        Raises ConfigError for a population or files, and what `fit` raises.
        """
        if isinstance(X, (Population, str, Path)):
            raise ConfigError("fit_predict labels rows of an array.", "Call fit, and predict on rows in memory.")
        return self.fit(X, groups=groups, sample_weight=sample_weight).predict(X)

    # --- the run ------------------------------------------------------------------------------------------------------

    def _method_settings(self) -> dict[str, Any]:
        if self.init_params not in STARTS:
            raise ConfigError(f"init_params cannot be {self.init_params!r}.", f"It is one of {', '.join(STARTS)}.")
        optional = {"tol": self.tol, "restarts": None if self._is_given() else self.n_init}
        chosen: dict[str, Any] = {
            "algorithm": self.algorithm,
            "components": self.n_components,
            "covariance": self.covariance_type,
            "start": "given" if self._is_given() else STARTS[self.init_params],
            **{name: value for name, value in optional.items() if value is not None},
        }
        if self.max_iter is None:
            return chosen
        if self.algorithm == "em":
            return {**chosen, "max_passes": self.max_iter + FIRST_AND_LAST}
        before = self._start_passes(chosen)
        if self.n_init is None and before > self.max_iter / 2:
            chosen["restarts"] = 1
            before = self._start_passes(chosen)
        if before > self.max_iter:
            raise ConfigError(
                f"max_iter = {self.max_iter} leaves no round of {self.algorithm}, whose starts take {before} passes.",
                f"Take {before + 1} or more, or a smaller n_init.",
            )
        return {**chosen, "rounds": self.max_iter - before + 1}

    def _start_passes(self, chosen: Mapping[str, Any]) -> int:
        method = cast(Any, make_method(self.method, {**chosen, **dict(self.settings or {})}))
        return start_passes(method.config)

    def _goes_on(self) -> bool:
        """Whether this fit starts from the one before."""
        same = getattr(self, "_kind", None) == self.covariance_type and len(self.means_) == self.n_components
        return bool(self.warm_start) and same

    def _is_given(self) -> bool:
        given = (self.weights_init, self.means_init, self.precisions_init)
        is_given = self._goes_on() or any(one is not None for one in given)
        if is_given and self.n_components == "auto":
            raise ConfigError('n_components = "auto" finds its own start.', "Give a number of components.")
        return is_given

    def _before_training(self, population: Population, place: Path) -> dict[str, Any]:
        column = self._column_of(population)
        return {} if column is None else {"weight_column": column}

    def _start(self, population: Population, place: Path) -> str | None:
        if not self._is_given():
            return None
        if self._goes_on():
            arrays = in_standard_units(self._kind, self.weights_, self.means_, self.covariances_)
            if np.isfinite(self.degrees_of_freedom_):
                arrays[DEGREES] = np.array([self.degrees_of_freedom_])
        else:
            given = self.weights_init, self.means_init, self.precisions_init
            arrays = given_start(
                self.covariance_type, cast(int, self.n_components), population, self._column_of(population), *given
            )
        np.savez(place / "start.npz", **arrays)  # type: ignore[arg-type]
        return str(place / "start.npz")

    def _column_of(self, population: Population) -> int | None:
        """The column of the weights."""
        if population.features > self.n_features_in_:
            return self.n_features_in_
        column: int | None = dict(self.settings or {}).get("weight_column")
        return column

    def _take(self, model: Model, stored: Stored) -> None:
        method, state = cast(tuple[Any, Any], model.fitted)
        fitted = method.fitted_model(state)
        made = gaussian_mixture(fitted)
        for name in COPIED:
            setattr(self, name, getattr(made, name))
        self.degrees_of_freedom_ = fitted.degrees
        self.n_iter_ = max(state.round, 1)
        self._kind, self._weight_column = method.config.model.covariance, self._column_of(stored.population)
        self._densities = Densities.of(
            self._kind, self.weights_, self.means_, self.covariances_, self.degrees_of_freedom_
        )
        self._free = free_parameters(method.config, state.parameters())
        logs = float(state.seen @ np.log(state.scale)) / state.rows if len(state.scale) else 0.0
        if not method.config.by_rows and (state.seen < state.rows).any():
            logs = np.nan  # clients count the same, and what each of them has observed is not known
        self.lower_bounds_ = [-one["objective"] - logs for one in model.metrics if one.get("objective") is not None]
        self.lower_bound_ = float(-state.objective - logs)

    # --- the fitted mixture -------------------------------------------------------------------------------------------

    def to_sklearn(self) -> GaussianMixture:
        """Return the mixture as a fitted GaussianMixture of scikit-learn.

        Raises ConfigError for Student-t components, which scikit-learn does not have.
        """
        made: GaussianMixture = self._known().to_sklearn()
        made.n_iter_, made.lower_bound_, made.lower_bounds_ = self.n_iter_, self.lower_bound_, self.lower_bounds_
        names = getattr(self, "feature_names_in_", ())
        if len(names) == made.n_features_in_:  # without a column of weights
            made.feature_names_in_ = names
        return made

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the responsibilities of the components, from the observed columns of each row.

        X: (n, d) rows, NaN = missing
        Returns (n, G) float64; each row adds up to 1.
        Raises ValueError for other columns than those of the fit.
        """
        x = self._rows(X)
        return self._densities.responsibilities(x)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable component of each row.

        X: (n, d) rows, NaN = missing
        Returns (n,) int64.
        Raises ValueError for other columns than those of the fit.
        """
        labels: np.ndarray = self.predict_proba(X).argmax(axis=1)
        return labels

    def score_samples(self, X: Any) -> np.ndarray:
        """Return the log density of the observed columns of each row.

        X: (n, d) rows, NaN = missing
        Returns (n,) float64, nats, in the units of the data.
        Raises ValueError for other columns than those of the fit.
        """
        x = self._rows(X)
        return self._densities.log_densities(x)

    def score(self, X: Any, y: object = None) -> float:
        """Return the mean log density of rows X (n, d), nats per row.

        Raises ValueError for other columns than those of the fit.
        """
        return float(self.score_samples(X).mean())

    def bic(self, X: Any) -> float:
        """Return the Bayesian information criterion of rows X (n, d), nats times 2; lower is better (Schwarz 1978).

        Raises ValueError for other columns than those of the fit.
        """
        densities = self.score_samples(X)
        return float(-2 * densities.sum() + self._free * np.log(len(densities)))

    def aic(self, X: Any) -> float:
        """Return the Akaike information criterion of rows X (n, d), nats times 2; lower is better (Akaike 1974).

        Raises ValueError for other columns than those of the fit.
        """
        return float(-2 * self.score_samples(X).sum() + 2 * self._free)

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows of the mixture with random_state: the same ones at each call if it is a number.

        n_samples: number of rows, 1 or more
        Returns X (n_samples, d) float64, and y (n_samples,) int64, their components, in their order.
        Raises ValueError if n_samples is below 1.
        """
        method, state = self._known().fitted
        made, seed = gaussian_mixture(cast(Any, method).fitted_model(state)), checked_seed(self.random_state)
        made.random_state = seed
        rows, components = made.sample(n_samples)
        degrees, means = self.degrees_of_freedom_, self.means_[components]
        if np.isfinite(degrees):
            shares = np.random.default_rng(seed).chisquare(degrees, n_samples) / degrees
            rows = means + (rows - means) / np.sqrt(shares)[:, None]
        return rows, components

    def _imputation(self, X: Any) -> tuple[Imputation, np.ndarray]:
        x = self._rows(X)
        return self._densities.imputation, x

    def _rows(self, X: Any) -> np.ndarray:
        """(n, d) of the columns that the mixture is of."""
        self._known()
        x = self._checked_rows(X, reset=False)
        if self._weight_column is not None and self._weight_column < self.n_features_in_:
            x = np.delete(x, self._weight_column, axis=1)
        return x
