"""A mixture, or a regression, for each client as an estimator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

import numpy as np
import scipy
from sklearn.base import ClusterMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_array

from fedcore.errors import ConfigError
from fedcore.interface.data import Groups, Stored, check_given, checked_groups, places_of
from fedcore.interface.estimator import FederatedEstimator
from fedcore.interface.model import Model
from fedcore.methods.gradient_em.coordinates import coordinates_of
from fedcore.rounds.engine import Backend


class RobustMultiTaskMixture(ClusterMixin, FederatedEstimator):
    """Fit a mixture for each client, shrunk towards common centres. Some clients may differ or be outliers.

    It is the method `gradient_em` (Tian, Weng, Feng 2023: FedGrEM). With model "regression" the last column of X, or y,
    is the response; a single regression for each client (n_components = 1) is the method `mixed_effects`. Neither is
    private.

    n_components: number of components R
    model: "gaussian" or "regression"
    random_state: seed of the run
    settings: other settings of the method, by name (`fedcore methods gradient_em` or `mixed_effects`)
    folder: where to keep the population and the run; None: nowhere
    backend: computes the client statistics, as of `fedcore.train`

    Fitted: centers_ (R, p) common; covariances_ (d, d), or (R, d, d) if components have separate ones, within
        components
    of Gaussians and in the units of the data (None where each client has other units); clients_ (C,) ids,
    client_centers_ (C, R, p), client_weights_ (C, R) and apart_ (C, R) bool, in the order of clients_; labels_ (n,) the
    component of each row, -1 beyond the first 10,000 rows of a client; n_iter_, outcome_, statement_, run_, model_. If
    all clients are similar, at most 5 % of them are expected to be apart in a component
    (`fedcore.methods.mixture_models.apart`); more are where similar clients end in different optima.
    Raises ConfigError at `fit` for parameters out of range.

    >>> import numpy as np, fedcore
    >>> x = np.random.default_rng(0).normal(size=(200, 2)) + np.where(np.arange(200) % 2, 4, -4)[:, None]
    >>> mixture = fedcore.RobustMultiTaskMixture(2).fit(x, groups=np.repeat(np.arange(10), 20))
    >>> sorted(mixture.centers_[:, 0].round().tolist()), mixture.client_centers_.shape
    ([-4.0, 4.0], (10, 2, 2))
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
        """Fit a mixture for each client.

        X: (n, d) finite rows of clients
        y: (n,) the response of regressions, or None if it is the last column of X. Gaussians ignore y
        groups: (n,) the client of each row; needed
        Returns the estimator.
        Raises ConfigError without groups, ValueError for arrays that are no finite rows.
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
        outputs = model.predict(stored.population)
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
        """Return the most probable component of each row under its client's Gaussians, or the response of regressions.

        X: (n, d) rows, or inputs without the response
        groups: (n,) the client of each row; needed
        Returns (n,) int64 components; of regressions (n,) float64, the mean of the client's regressions by their
        weights.
        Raises ConfigError for unknown clients, ValueError.
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
        """Return the responsibilities of the components for each row, under its client's Gaussians.

        X: (n, d) rows
        groups: (n,) the client of each row; needed
        Returns (n, R) float64; each row adds up to 1.
        Raises ConfigError for unknown clients and for regressions, ValueError.
        """
        shares: np.ndarray = scipy.special.softmax(self._log_joint(X, groups), axis=1)
        return shares

    def score_samples(self, X: Any, groups: Groups = None) -> np.ndarray:
        """Return the log density of each row under its client's Gaussians.

        X: (n, d) rows
        groups: (n,) the client of each row; needed
        Returns (n,) float64, nats, in the units of the data.
        Raises ConfigError for unknown clients and for regressions, ValueError.
        """
        densities: np.ndarray = scipy.special.logsumexp(self._log_joint(X, groups), axis=1)
        return densities

    def score(self, X: Any, y: Any = None, groups: Groups = None) -> float:
        """Return the mean log density of rows in nats per row, or the R^2 of the responses of regressions.

        X, y, groups: (n, d) rows; (n,) responses of regressions, else ignored; (n,) the client of each row, needed
        Raises ConfigError for unknown clients, ValueError.
        """
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
