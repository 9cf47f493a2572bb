"""Mixture models as estimators: a private one for all rows, and one for each client."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
from sklearn.base import ClusterMixin, DensityMixin
from sklearn.mixture import GaussianMixture

from fedcore.errors import ConfigError
from fedcore.interface.data import Groups, Stored, checked_groups
from fedcore.interface.estimator import FederatedEstimator
from fedcore.interface.model import Model
from fedcore.interface.private import PrivateEstimator
from fedcore.rounds.engine import Backend


class PrivateMixture(ClusterMixin, DensityMixin, PrivateEstimator):
    """A Gaussian mixture under differential privacy, without bounds to declare or a separation to assume.

    It is the method `private_mixture`: releases of private scales, starts, rounds of EM, and a test for valleys between
    components, by which groups are told apart.

    n_components: at most so many; alpha: chance of claiming separate groups where there is a single peak
    epsilon, delta: of this fit; delta well below 1 / number of people
    nominal_clients: a public number of clients (or of records, without groups), by which a fit is planned
    public_schema: why the columns of X are public. The statement repeats it

    A fit of data that have no budget needs all four, and has an account of its own: what two fits say about the same
    people adds up, and nobody counts it. Give `fit` a population with a budget to have them counted; epsilon is then
    this run's share of it.

    Fitted: weights_ (k,) without the background, background_ its weight; means_ (k, d), covariances_ (k, d, d) of the
    columns of numbers, in the units of the data; probabilities_ (k, values) of all categories' values, or None without
    categories (the settings `categories` and `steps` say what else than a number a column is); groups_ (k,) int64, the
    group of each component, from 0; n_iter_, outcome_, statement_, run_, model_.
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
        """X: (n, d) rows; rows with gaps (NaN) in their numbers are left out; a population, or its place; or files of
        rows.

        groups: (n,) the client of each row, or the column of the files that names it: clients are protected, whatever
        number of rows they have. None: rows of an array or of files are records, and each is protected by itself.
        Raises ConfigError for a fit without what it needs, or from which nothing can be learnt; BudgetExceeded,
        PopulationError, IngestError, and ValueError for arrays that are no rows of numbers.
        """
        if self.epsilon is None:
            raise ConfigError("epsilon is not given, and this estimator is private.", "FederatedMixture is not.")
        return self._fit(X, groups)

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
        """The mixture as a fitted scikit-learn estimator; the background is its last component."""
        made: GaussianMixture = self._known().to_sklearn()
        return made

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, k + 1) responsibilities of the components for each row, the background's last."""
        self._known()
        found: np.ndarray = self._fitted.responsibilities(self._complete(X))
        return found

    def predict(self, X: Any) -> np.ndarray:
        """(n,) int64 the group of each row: that of its most probable component."""
        self._known()
        found: np.ndarray = self.groups_[self._fitted.labels(self._complete(X))]
        return found

    def score_samples(self, X: Any) -> np.ndarray:
        """(n,) log density of each row, nats, in the units of the data."""
        self._known()
        found: np.ndarray = self._fitted.log_likelihood(self._complete(X))
        return found

    def score(self, X: Any, y: object = None) -> float:
        """Mean log density of the rows, nats."""
        return float(self.score_samples(X).mean())

    def _complete(self, X: Any) -> np.ndarray:
        x = self._checked_rows(X, reset=False)
        if not self._fitted.usable(x).all():
            raise ValueError("X contains NaN, and a row with gaps in its numbers has no density under this mixture.")
        return x


class RobustMultiTaskMixture(ClusterMixin, FederatedEstimator):
    """A mixture for each client, shrunk towards common centres from which clients may differ and some may be outliers.

    It is the method `gradient_em` (Tian, Weng, Feng 2023: FedGrEM). With model "regression" the last column of X, or y,
    is the response; a single regression for each client (n_components = 1) is the method `mixed_effects`. Neither is
    private.

    n_components: R; settings: others of the method, by name (`fedcore methods gradient_em` or `mixed_effects`)

    Fitted: centers_ (R, p) common, clients_ (C,) ids, client_centers_ (C, R, p), client_weights_ (C, R) and apart_
    (C, R) bool, in the order of clients_; labels_ (n,) the component of each row, -1 beyond the first 10,000 rows of a
    client; n_iter_, outcome_, statement_, run_, model_. If all clients are similar, at most 5 % of them are expected to
    be apart in a component (`fedcore.methods.mixture_models.apart`); more are where similar clients end in different
    optima.
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
        """X: (n, d) rows of clients; y: (n,) the response of regressions, or None if it is the last column of X.

        groups: (n,) the client of each row; needed. Raises ConfigError, ValueError.
        """
        if groups is None:
            raise ConfigError("the clients of the rows are not given.", "Pass groups=..., the client of each row.")
        if y is not None:
            if self.model != "regression":
                raise ConfigError("y is the response of regressions.", 'Leave it out, or use model="regression".')
            X = np.column_stack([X, y])
        return self._fit(X, groups)

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
        self.clients_ = stored.ids()
        self.labels_ = stored.in_given_order(_unpadded(outputs["labels"], stored.population))

    def predict(self, X: Any, groups: Groups = None) -> np.ndarray:
        """(n,) float64 responses of new rows of known clients, by their own regressions, weighted by their weights.

        X: (n, d) inputs, without the response. Raises ConfigError for mixtures of Gaussians and unknown clients.
        """
        self._known()
        if self.model != "regression":
            raise ConfigError("rows of Gaussians have no response.", "labels_ has the component of each fitted row.")
        x = np.asarray(X, np.float64)
        if x.ndim != 2 or x.shape[1] != self.n_features_in_ - 1:
            raise ValueError(f"X has the shape {x.shape}, and {self.n_features_in_ - 1} inputs are expected.")
        at = self._places(checked_groups(groups, len(x)))
        theta = self.client_centers_[at]
        if theta.shape[2] == x.shape[1] + 1:  # an intercept
            x = np.column_stack([x, np.ones(len(x))])
        responses: np.ndarray = np.einsum("nr,nrp,np->n", self.client_weights_[at], theta, x)
        return responses

    def _places(self, labels: np.ndarray) -> np.ndarray:
        order = np.argsort(self.clients_, kind="stable")
        found = np.searchsorted(self.clients_, labels, sorter=order).clip(max=len(order) - 1)
        places: np.ndarray = order[found]
        strangers = labels[self.clients_[places] != labels]
        if len(strangers):
            raise ConfigError(f"client {strangers[0]!r} was not there when the model was fitted.", "Fit with its rows.")
        return places


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
