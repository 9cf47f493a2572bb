"""A differentially private Gaussian mixture as an estimator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from sklearn.base import DensityMixin
from sklearn.mixture import GaussianMixture

from fedcore.errors import ConfigError
from fedcore.interface.data import Groups, Stored
from fedcore.interface.densities import Densities
from fedcore.interface.estimator import checked_seed
from fedcore.interface.imputing import ImputingEstimator
from fedcore.interface.model import Model
from fedcore.interface.private import PrivateEstimator
from fedcore.methods.mixture_models.imputation import Imputation
from fedcore.population.store import Population
from fedcore.rounds.engine import Backend


class PrivateMixture(DensityMixin, PrivateEstimator, ImputingEstimator):
    """Fit a differentially private Gaussian mixture. Needs no column bounds and no minimum separation.

    It is the method `private_mixture`. Its releases are private scales, starts, rounds of EM, and a unimodality test of
    pairs of components, which separates groups.

    n_components: maximum number of components
    epsilon, delta: budget of this fit; choose delta well below 1 / number of people
    nominal_clients: a public number of clients (or of records, without groups), by which a fit is planned
    public_schema: why the columns of X are public; the statement quotes it
    alpha: false-positive rate of the unimodality test that separates groups
    random_state: seed for simulation randomness and for `sample`; privacy noise does not use it
    settings: other settings of the method, by name (`fedcore methods private_mixture`)
    folder: where to keep the population and the run; None: nowhere
    backend: computes the client statistics, as of `fedcore.train`

    A fit of data that have no budget needs epsilon, delta, nominal_clients and public_schema, and has a separate
    account. Two fits on the same people add up, but no ledger counts them. Give `fit` a population with a budget to
    have them counted; epsilon is then this run's part of it.

    The fitted attributes and `sample` are private. `predict`, `predict_proba`, `score_samples`, `score`, `impute`,
    `impute_intervals` and `fit_predict` apply them to rows that you give. What they return depends on these rows, and
    is not private for data of people.
    There is no `bic` or `aic`: both need the exact likelihood of the training rows, at its maximum.
    The densities of `score_samples` and `score` have a heavy tail of weight 0.01, which `sample` and `to_sklearn` leave
    out.

    Fitted: weights_ (k,) without the background, background_ its weight; means_ (k, d), covariances_ (k, d, d) of the
    columns of numbers, in the units of the data; probabilities_ (k, values) of all categories' values, or None without
    categories (the settings `categories` and `steps` specify other columns than numbers); groups_ (k,) int64, the
    group of each component, from 0; n_iter_, outcome_, statement_, run_, model_. A column that stands alone (table
    `column_forms` of model_) is no part of the mixture: its means_ are near 0, whatever its numbers are.
    Raises ConfigError at `fit` for parameters that are missing or out of range.

    >>> import numpy as np, fedcore
    >>> x = np.random.default_rng(0).normal(size=(2000, 2))
    >>> terms = {"delta": 1e-6, "nominal_clients": 2000, "public_schema": "two measures, chosen in advance"}
    >>> mixture = fedcore.PrivateMixture(1, epsilon=1.0, **terms).fit(x)
    >>> mixture.means_.shape, mixture.statement_["epsilon"] <= 1
    ((1, 2), True)
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
        """Fit the mixture to rows.

        X: (n, d) rows; missing values (NaN) are filled from the rest of their rows; a population, or its folder or URL;
            or files of rows
        y: ignored
        groups: (n,) the client of each row, or the column of the files that names it: clients are protected, whatever
            number of rows they have. None: rows of an array or of files are records, and each is protected by itself
        Returns the estimator.
        Raises ConfigError for a fit without what it needs, or from which nothing can be learnt; BudgetExceeded,
        PopulationError, IngestError, and ValueError for arrays that are no rows of numbers.
        """
        if self.epsilon is None:
            raise ConfigError("epsilon is not given, and this estimator is private.", "FederatedMixture is not.")
        return self._fit(X, groups)

    def fit_predict(self, X: Any, y: object = None, groups: Groups = None) -> np.ndarray:
        """Fit the mixture to rows of an array and label them.

        The fit alone is private. The labels depend on each row itself, so they are for its owner: see `predict`.

        X, y, groups: as for `fit`, but X is an array
        Returns (n,) int64, the group of each row; -1 for rows without a number.
        Raises ConfigError for a population or files, and what `fit` raises.
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
        """Return the mixture as a fitted GaussianMixture of scikit-learn; the background is its last component.

        Raises ConfigError for a mixture with categories, or with columns that stand alone (the table `column_forms` of
        model_).
        """
        made: GaussianMixture = self._known().to_sklearn()
        return made

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows of the mixture with random_state: the same ones at each call if it is a number.

        They are made of released values alone, so they cost no privacy. Columns with steps have multiples of them,
        columns with many zeros have zeros; the tail of the density is left out.

        n_samples: number of rows, 1 or more
        Returns X (n_samples, d) float64, and y (n_samples,) int64, their components, k for the background.
        Raises ValueError if n_samples is below 1, and ConfigError for a mixture with categories.
        """
        self._known()
        if self.probabilities_ is not None:
            raise ConfigError("the mixture has categories, and no rows are drawn of these.", "Set categories to [].")
        if n_samples < 1:
            raise ValueError(f"n_samples is {n_samples}, and has to be 1 at least.")
        rows, components = self._fitted.sample(n_samples, np.random.default_rng(checked_seed(self.random_state)))
        return rows, components

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the responsibilities of the components for each row.

        X: (n, d) rows, each with at least one number
        Returns (n, k + 1) float64; the background is last.
        Raises ValueError for a row without a number.
        """
        self._known()
        found: np.ndarray = self._fitted.responsibilities(self._usable(X))
        return found

    def predict(self, X: Any) -> np.ndarray:
        """Return the group of each row: that of its most probable component.

        X: (n, d) rows, each with at least one number
        Returns (n,) int64.
        Raises ValueError for a row without a number.
        """
        self._known()
        found: np.ndarray = self.groups_[self._fitted.labels(self._usable(X))]
        return found

    def score_samples(self, X: Any) -> np.ndarray:
        """Return the log density of each row.

        X: (n, d) rows, each with at least one number
        Returns (n,) float64, nats, in the units of the data.
        Raises ValueError for a row without a number.
        """
        self._known()
        found: np.ndarray = self._fitted.log_likelihood(self._usable(X))
        return found

    def score(self, X: Any, y: object = None) -> float:
        """Return the mean log density of rows X (n, d), in nats per row.

        Raises ValueError for a row without a number.
        """
        return float(self.score_samples(X).mean())

    def impute(self, X: Any, draws: int | None = None) -> np.ndarray:
        """Fill missing entries with their conditional means, given the other entries of the row.

        The mixture is private, and filling rows costs no privacy. The filled rows are not part of the private output:
        they depend on the rows that you give, and are for the owner of these rows. Columns with steps are filled with
        numbers between the steps. A row without any entry gets the means of the mixture.

        X: (n, d) rows, NaN = missing
        draws: number of completed tables instead, 1 or more, each drawn from the mixture given the observed entries,
            with random_state
        Returns (n, d) float64, or (draws, n, d) with draws.
        Raises ValueError if draws is below 1, and ConfigError for a mixture with categories.
        """
        return super().impute(X, draws)

    def impute_intervals(self, X: Any, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return intervals of missing entries, given the other entries of the row.

        As the result of `impute`, they are not part of the private output.

        X: (n, d) rows, NaN = missing
        coverage: probability, above 0 and below 1, that a missing entry is in its interval, if the mixture is right
        Returns low and high, each (n, d) float64. Observed entries are both ends.
        Raises ValueError for a coverage out of range, and ConfigError for a mixture with categories.
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
