"""Mixture models as estimators: a private one for all rows, and one for each client."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
import scipy
from sklearn.base import ClusterMixin, DensityMixin
from sklearn.metrics import r2_score
from sklearn.mixture import GaussianMixture
from sklearn.utils import check_array

from fedcore.errors import ConfigError
from fedcore.interface.data import Groups, Stored, check_given, checked_groups, places_of
from fedcore.interface.densities import Densities
from fedcore.interface.estimator import FederatedEstimator, checked_seed
from fedcore.interface.imputing import ImputingEstimator
from fedcore.interface.model import Model
from fedcore.interface.private import PrivateEstimator
from fedcore.methods.gradient_em.coordinates import coordinates_of
from fedcore.methods.mixture_models.imputation import Imputation
from fedcore.population.store import Population
from fedcore.rounds.engine import Backend


class PrivateMixture(DensityMixin, PrivateEstimator, ImputingEstimator):
    """A Gaussian mixture under differential privacy, without bounds to declare or a separation to assume.

    The densities of `score_samples` and `score` have a heavy tail of weight 0.01, which `sample` and `to_sklearn` leave
    out.

    It is the method `private_mixture`: releases of private scales, starts, rounds of EM, and a test for valleys between
    components, by which groups are told apart.

    n_components: at most so many; alpha: chance of claiming separate groups where there is a single peak
    epsilon, delta: of this fit; delta well below 1 / number of people
    nominal_clients: a public number of clients (or of records, without groups), by which a fit is planned
    public_schema: why the columns of X are public. The statement repeats it

    The fitted attributes and `sample` are private. `predict`, `predict_proba`, `score_samples`, `score`, `impute`,
    `impute_intervals` and `fit_predict` apply them to rows that you give. What they return depends on these rows, and
    is not private for data of people.
    There is no `bic` or `aic`: both need the exact likelihood of the training rows, at its maximum.

    A fit of data that have no budget needs all four, and has an account of its own: what two fits say about the same
    people adds up, and nobody counts it. Give `fit` a population with a budget to have them counted; epsilon is then
    this run's share of it.

    Fitted: weights_ (k,) without the background, background_ its weight; means_ (k, d), covariances_ (k, d, d) of the
    columns of numbers, in the units of the data; probabilities_ (k, values) of all categories' values, or None without
    categories (the settings `categories` and `steps` say what else than a number a column is); groups_ (k,) int64, the
    group of each component, from 0; n_iter_, outcome_, statement_, run_, model_. A column that stands alone (table
    `column_forms` of model_) is no part of the mixture: its means_ are near 0, whatever its numbers are.
    """

    method = "private_mixture"

    def __init__(
        self,
        n_components: int = 8,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        nominal_clients: int | None = None,
        public_schema: str | None = None,
        alpha: float = 0.01,
        random_state: int | None = 0,
        settings: Mapping[str, Any] | None = None,
        folder: str | None = None,
        backend: Backend | None = None,
    ):
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.nominal_clients = nominal_clients
        self.public_schema = public_schema
        self.alpha = alpha
        self.random_state = random_state
        self.settings = settings
        self.folder = folder
        self.backend = backend

    def fit(self, X: Any, y: object = None, groups: Groups = None) -> Self:
        """X: (n, d) rows; gaps (NaN) are filled from the rest of their rows; a population, or its place; or files of
        rows.

        groups: (n,) the client of each row, or the column of the files that names it: clients are protected, whatever
        number of rows they have. None: rows of an array or of files are records, and each is protected by itself.
        Raises ConfigError for a fit without what it needs, or from which nothing can be learnt; BudgetExceeded,
        PopulationError, IngestError, and ValueError for arrays that are no rows of numbers.
        """
        if self.epsilon is None:
            raise ConfigError("epsilon is not given, and this estimator is private.", "FederatedMixture is not.")
        return self._fit(X, groups)

    def fit_predict(self, X: Any, y: object = None, groups: Groups = None) -> np.ndarray:
        """(n,) int64 the group of each row of an array, after a fit to it; -1 for rows without a number.

        The fit alone is private. The labels depend on each row itself, so they are for its owner: see `predict`.
        """
        if isinstance(X, (Population, str, Path)):
            raise ConfigError("fit_predict labels rows of an array.", "Call fit, and predict on rows in memory.")
        self.fit(X, groups=groups)
        x = self._checked_rows(X, reset=False)
        usable, labels = self._fitted.usable(x), np.full(len(x), -1, np.int64)
        labels[usable] = self.groups_[self._fitted.labels(x[usable])]
        return labels

    def _population_options(self, place: Path, groups: Groups) -> dict[str, Any]:
        return {**super()._population_options(place, groups), "records": groups is None}

    def _method_settings(self) -> dict[str, Any]:
        return {"components": self.n_components, "alpha": self.alpha}

    def _take(self, model: Model, stored: Stored) -> None:
        fitted = cast(Any, model.fitted[0]).model(model.fitted[1])
        self.weights_, self.background_ = fitted.weights[:-1], float(fitted.weights[-1])
        self.means_, self.covariances_ = fitted.means_of_data(), fitted.covariances_of_data()
        self.probabilities_ = None if fitted.probabilities is None else fitted.probabilities[:-1]
        self.groups_ = fitted.group
        self._fitted = fitted

    def to_sklearn(self) -> GaussianMixture:
        """The mixture as a fitted scikit-learn estimator; the background is its last component. Raises ConfigError for
        a mixture with categories, or with columns that stand alone (the table `column_forms` of model_)."""
        made: GaussianMixture = self._known().to_sklearn()
        return made

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """(X (n_samples, d) float64, y (n_samples,) int64): rows of the mixture and their components, k for the
        background. They are made of released values alone, so they cost no privacy. Columns with steps have multiples
        of them, columns with many zeros have zeros; the tail of the density is left out.

        They are drawn with random_state: the same ones at each call if it is a number. Raises ValueError below 1, and
        ConfigError for a mixture with categories.
        """
        self._known()
        if self.probabilities_ is not None:
            raise ConfigError("the mixture has categories, and no rows are drawn of these.", "Set categories to [].")
        if n_samples < 1:
            raise ValueError(f"n_samples is {n_samples}, and has to be 1 at least.")
        rows, components = self._fitted.sample(n_samples, np.random.default_rng(checked_seed(self.random_state)))
        return rows, components

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, k + 1) responsibilities of the components for each row, the background's last."""
        self._known()
        found: np.ndarray = self._fitted.responsibilities(self._usable(X))
        return found

    def predict(self, X: Any) -> np.ndarray:
        """(n,) int64 the group of each row: that of its most probable component."""
        self._known()
        found: np.ndarray = self.groups_[self._fitted.labels(self._usable(X))]
        return found

    def score_samples(self, X: Any) -> np.ndarray:
        """(n,) log density of each row, nats, in the units of the data."""
        self._known()
        found: np.ndarray = self._fitted.log_likelihood(self._usable(X))
        return found

    def score(self, X: Any, y: object = None) -> float:
        """Mean log density of the rows, nats."""
        return float(self.score_samples(X).mean())

    def impute(self, X: Any, draws: int | None = None) -> np.ndarray:
        """(n, d) float64: the rows, with the conditional mean of each missing entry given what its row has.

        The mixture is private, and filling rows costs no privacy. The filled rows are not part of the private output:
        they depend on the rows that you give, and are for the owner of these rows. Columns with steps are filled with
        numbers between the steps. A row without any entry gets the means of the mixture.

        draws: (draws, n, d) float64 instead, that many completed tables. Each is drawn from the mixture given what was
            seen, with random_state
        Raises ValueError for draws below 1, and ConfigError for a mixture with categories.
        """
        return super().impute(X, draws)

    def impute_intervals(self, X: Any, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """(low, high), each (n, d) float64: a missing entry is between them with this probability, if the mixture is
        right. Entries that are there are both ends. As the result of `impute`, they are not part of the private output.

        Raises ValueError unless coverage is above 0 and below 1, and ConfigError for a mixture with categories.
        """
        return super().impute_intervals(X, coverage)

    def _imputation(self, X: Any) -> tuple[Imputation, np.ndarray]:
        made = self.to_sklearn()
        densities = Densities.of("full", made.weights_, made.means_, made.covariances_)
        return densities.imputation, self._checked_rows(X, reset=False)

    def _usable(self, X: Any) -> np.ndarray:
        x = self._checked_rows(X, reset=False)
        if not self._fitted.usable(x).all():
            raise ValueError("a row of X has no number (NaN in all of its columns), so it has no density.")
        return x


class RobustMultiTaskMixture(ClusterMixin, FederatedEstimator):
    """A mixture for each client, shrunk towards common centres from which clients may differ and some may be outliers.

    It is the method `gradient_em` (Tian, Weng, Feng 2023: FedGrEM). With model "regression" the last column of X, or y,
    is the response; a single regression for each client (n_components = 1) is the method `mixed_effects`. Neither is
    private.

    n_components: R; settings: others of the method, by name (`fedcore methods gradient_em` or `mixed_effects`)

    Fitted: centers_ (R, p) common; covariances_ (d, d), or (R, d, d) if components have their own, within components of
    Gaussians and in the units of the data (None where every client has its own units); clients_ (C,) ids,
    client_centers_ (C, R, p), client_weights_ (C, R) and apart_ (C, R) bool, in the order of clients_; labels_ (n,) the
    component of each row, -1 beyond the first 10,000 rows of a client; n_iter_, outcome_, statement_, run_, model_. If
    all clients are similar, at most 5 % of them are expected to be apart in a component
    (`fedcore.methods.mixture_models.apart`); more are where similar clients end in different optima.
    """

    method = "gradient_em"

    def __init__(
        self,
        n_components: int = 2,
        *,
        model: Literal["gaussian", "regression"] = "gaussian",
        random_state: int | None = 0,
        settings: Mapping[str, Any] | None = None,
        folder: str | None = None,
        backend: Backend | None = None,
    ):
        self.n_components = n_components
        self.model = model
        self.random_state = random_state
        self.settings = settings
        self.folder = folder
        self.backend = backend

    def fit(self, X: Any, y: Any = None, groups: Groups = None) -> Self:
        """X: (n, d) finite rows of clients; y: (n,) the response of regressions, or None if it is the last column of X.
        Gaussians ignore y.

        groups: (n,) the client of each row; needed. Raises ConfigError, ValueError.
        """
        check_given(groups)
        regression = self.model == "regression"
        if regression and y is not None:
            return self._fit(X, groups, response=check_array(y, ensure_2d=False, dtype=np.float64).ravel())
        self._fit(X, groups)
        if regression:  # the inputs alone are asked for later
            self.n_features_in_ -= 1
            names = getattr(self, "feature_names_in_", None)
            if names is not None:
                self.feature_names_in_ = names[:-1]
        return self

    def _trained_method(self) -> str:
        return "mixed_effects" if self.model == "regression" and self.n_components == 1 else self.method

    def _method_settings(self) -> dict[str, Any]:
        model = {} if self._trained_method() == "mixed_effects" else {"model": self.model}
        return {"components": self.n_components, **model}

    def _take(self, model: Model, stored: Stored) -> None:
        outputs = model.personalised(stored.population)
        self.client_centers_, self.client_weights_ = outputs["centres"], outputs["weights"]
        self.apart_ = outputs["apart"].astype(bool)
        centres = model.tables.get("centres")
        self.centers_ = None if centres is None else np.array([c.values for c in centres.columns[1:]], np.float64)
        self.covariances_ = None if self.model == "regression" else self._covariances(*model.fitted)
        self.clients_ = stored.ids()
        self.labels_ = stored.in_given_order(_unpadded(outputs["labels"], stored.population))

    def _covariances(self, method: Any, state: Any) -> np.ndarray | None:
        known = coordinates_of(state)
        if method.config.standardise == "clients":
            return None
        inside = known.covariance if len(known.covariance) else np.eye(self.client_centers_.shape[2])
        scale = known.scale if len(known.scale) else np.ones(inside.shape[-1])
        found: np.ndarray = inside * np.outer(scale, scale)
        return found

    def _allows_missing(self) -> bool:
        return False

    # --- new rows of known clients ------------------------------------------------------------------------------------

    def predict(self, X: Any, groups: Groups = None) -> np.ndarray:
        """(n,) int64 the most probable component of each row under its client's own Gaussians; of regressions (n,)
        float64 the response by its client's own regressions, weighted by their weights.

        X: (n, d) rows, or inputs without the response; groups: (n,) the client of each row; needed. Raises ConfigError
        for unknown clients, ValueError.
        """
        if self.model != "regression":
            labels: np.ndarray = self._log_joint(X, groups).argmax(axis=1)
            return labels
        x, at = self._of_clients(X, groups)
        theta = self.client_centers_[at]
        if theta.shape[2] == x.shape[1] + 1:  # an intercept
            x = np.column_stack([x, np.ones(len(x))])
        responses: np.ndarray = np.einsum("nr,nrp,np->n", self.client_weights_[at], theta, x)
        return responses

    def predict_proba(self, X: Any, groups: Groups = None) -> np.ndarray:
        """(n, R) float64 responsibilities of the components for each row, under its client's own Gaussians. See
        `predict`; raises ConfigError for regressions."""
        shares: np.ndarray = scipy.special.softmax(self._log_joint(X, groups), axis=1)
        return shares

    def score_samples(self, X: Any, groups: Groups = None) -> np.ndarray:
        """(n,) float64 log density of each row under its client's own Gaussians, nats, in the units of the data. See
        `predict`; raises ConfigError for regressions."""
        densities: np.ndarray = scipy.special.logsumexp(self._log_joint(X, groups), axis=1)
        return densities

    def score(self, X: Any, y: Any = None, groups: Groups = None) -> float:
        """Mean log density of the rows, nats; of regressions the coefficient of determination R^2 of the responses y.
        See `predict`."""
        if self.model == "regression":
            return float(r2_score(y, self.predict(X, groups)))
        return float(self.score_samples(X, groups).mean())

    def _of_clients(self, X: Any, groups: Groups) -> tuple[np.ndarray, np.ndarray]:
        """(x (n, d), places of their clients (n,))."""
        self._known()
        check_given(groups)
        x = self._checked_rows(X, reset=False).astype(np.float64)
        return x, places_of(self.clients_, checked_groups(groups, len(x)))

    def _log_joint(self, X: Any, groups: Groups) -> np.ndarray:
        """(n, R) log of weight times density."""
        x, at = self._of_clients(X, groups)
        if self.covariances_ is None:
            raise ConfigError(
                "there are no densities of new rows: it is a regression, or the units differ by client.",
                "labels_ has the component of each fitted row.",
            )
        joint = np.empty((len(x), self.client_weights_.shape[1]))
        factors = np.linalg.cholesky(
            np.broadcast_to(self.covariances_, (joint.shape[1], *self.covariances_.shape[-2:]))
        )
        for component, factor in enumerate(factors):
            white = scipy.linalg.solve_triangular(factor, (x - self.client_centers_[at, component]).T, lower=True)
            joint[:, component] = -0.5 * (white**2).sum(axis=0) - np.log(np.diagonal(factor)).sum()
        joint -= 0.5 * x.shape[1] * np.log(2 * np.pi)
        with np.errstate(divide="ignore"):
            return joint + np.log(self.client_weights_[at])


def _unpadded(labels: np.ndarray, population: Any) -> np.ndarray:
    """(n,) labels of rows from those of clients (C, L); -1 for rows beyond L."""
    sizes = np.concatenate([np.diff(population.read(index).ptr) for index in range(len(population.blocks))])
    ends = np.cumsum(sizes)
    at = np.arange(ends[-1]) - np.repeat(ends - sizes, sizes)
    client = np.repeat(np.arange(len(sizes)), sizes)
    inside = at < labels.shape[1]
    found = np.full(len(at), -1, np.int64)
    found[inside] = labels[client[inside], at[inside]]
    return found
