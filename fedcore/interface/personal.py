"""Estimators whose product is for each client: histograms, and dictionaries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self, cast

import numpy as np
import scipy
from sklearn.base import ClassNamePrefixFeaturesOutMixin, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags, check_array

from fedcore.errors import ConfigError
from fedcore.interface.data import Groups, Stored, check_given, checked_groups, places_of
from fedcore.interface.estimator import FederatedEstimator
from fedcore.interface.model import Model, of_rows
from fedcore.interface.private import PrivateEstimator
from fedcore.methods.dictionaries.start import code_length
from fedcore.methods.dictionary_learning.sparse_codes import omp
from fedcore.population.blocks import CountsBlock, RowsBlock
from fedcore.rounds.engine import Backend

TRANSFORMED = 4096  # clients at once


class PersonalHistograms(OneToOneFeatureMixin, TransformerMixin, PrivateEstimator):
    """Estimate a histogram for each client: its counts, mixed with what similar clients have in common.

    With `epsilon` it is the method `histograms`, and the shared part is differentially private against adding or
    removing a client. Without it, it is `paper_histograms`: clustering without privacy (Setlur, Feldman, Talwar 2023).

    n_clusters: number of clusters K; None: by the method's rules
    epsilon, delta: budget of this fit; choose delta well below 1 / number of clients. None: the fit is not private
    nominal_clients: a public number of clients, by which a private fit is planned; needed there, because the exact
        number of clients in X is not public
    public_schema: why the columns of X (the words of a list, say) are public; needed by a private fit; the statement
        quotes it
    random_state: seed for simulation randomness; privacy noise does not use it
    settings: other settings of the method, by name (`fedcore methods histograms`)
    folder: where to keep the population and the run; None: nowhere
    backend: computes the client statistics, as of `fedcore.train`

    A private fit has a separate account. Two fits on the same people add up, but no ledger counts them. Give `fit` a
    population with a budget to have them counted; epsilon is then this run's part of it.

    Fitted: centers_ (K, d), mean_ (d,), n_iter_, outcome_, statement_, run_, model_.
    Raises ConfigError at `fit` for parameters that are missing or out of range.

    >>> import numpy as np, fedcore
    >>> counts = np.random.default_rng(0).multinomial(50, [0.6, 0.3, 0.1], size=40)
    >>> histograms = fedcore.PersonalHistograms(1).fit(counts)
    >>> histograms.mean_.round(1).tolist(), histograms.transform(counts).shape
    ([0.6, 0.3, 0.1], (40, 3))
    """

    method, kind = "histograms", "counts"

    def __init__(
        self,
        n_clusters: int | None = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        nominal_clients: int | None = None,
        public_schema: str | None = None,
        random_state: int | None = 0,
        settings: Mapping[str, Any] | None = None,
        folder: str | None = None,
        backend: Backend | None = None,
    ):
        self.n_clusters = n_clusters
        self.epsilon = epsilon
        self.delta = delta
        self.nominal_clients = nominal_clients
        self.public_schema = public_schema
        self.random_state = random_state
        self.settings = settings
        self.folder = folder
        self.backend = backend

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    def fit(self, X: Any, y: object = None) -> Self:
        """Fit the shared part of the histograms.

        X: (C, d) counts, a client per row, dense or sparse; a population of counts, or its folder or URL
        y: ignored
        Returns the estimator.
        Raises ConfigError for a private fit without what it needs, BudgetExceeded, ValueError for other than counts.
        """
        return self._fit(X, None)

    def _method_settings(self) -> dict[str, Any]:
        return {} if self.n_clusters is None else {"clusters": self.n_clusters}

    def _trained_method(self) -> str:
        return "paper_histograms" if self.epsilon is None else self.method

    def _take(self, model: Model, stored: Stored) -> None:
        method, state = model.fitted
        self.centers_, self.mean_ = state.centres, state.mean
        if stored.population.vocabulary() is not None:
            self.vocabulary_ = stored.population.vocabulary()

    def transform(self, X: Any) -> np.ndarray:
        """Estimate clients' distributions, each from the client's counts and the shared part.

        The estimate of a client is for that client: it is made of the client's data and is not private.

        X: (C, d) counts, a client per row, dense or sparse
        Returns (C, d) float32; each row adds up to 1.
        Raises ValueError for other than counts.
        """
        return self._outputs(X, "estimate")

    def predict(self, X: Any) -> np.ndarray:
        """Return the centre that is nearest to the counts of each client.

        Like `transform`, it uses the client's data and is not private.

        X: (C, d) counts, a client per row, dense or sparse
        Returns (C,) int64; -1 for a client without counts.
        Raises ValueError for other than counts.
        """
        return self._outputs(X, "cluster").astype(np.int64)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the columns of `transform`: those of X, or the tokens of the population.

        Returns (d,) objects.
        Raises ValueError for input_features other than those of the fit.
        """
        self._known()
        if input_features is None and not hasattr(self, "feature_names_in_") and hasattr(self, "vocabulary_"):
            return np.asarray(self.vocabulary_, object)
        names: np.ndarray = super().get_feature_names_out(input_features)
        return names

    def _outputs(self, X: Any, name: str) -> np.ndarray:
        model = self._known()
        counts = self._checked_counts(X, reset=False)
        parts = [counts[low : low + TRANSFORMED] for low in range(0, counts.shape[0], TRANSFORMED)]
        return np.concatenate([model.outputs(_block(part))[name] for part in parts])


def _block(counts: scipy.sparse.csr_matrix) -> CountsBlock:
    counts = counts.sorted_indices()
    totals = np.asarray(counts.sum(axis=1), np.float64).ravel()
    indices = counts.indices.astype(np.int32)
    return CountsBlock(0, 0, counts.indptr, indices, counts.data.astype(np.float64), totals, counts.shape[1])


class PersonalDictionaries(ClassNamePrefixFeaturesOutMixin, TransformerMixin, FederatedEstimator):
    """Learn atoms that all clients share, and atoms that each client has alone, from rows of clients.

    It is the method `dictionaries`: shared atoms from sums over all clients, and local ones where they code held-out
    samples of the client better. It is not private unless `settings` make it so (docs/privacy/dictionaries.md).

    n_components: number of atoms of a client r, shared ones included
    n_global: number of shared atoms rg. None, of both: by the method, which finds both from held-out samples, or takes
        100 shared ones and 20 local ones per client (fewer if features are few)
    random_state: seed of the run
    settings: other settings of the method, by name (`fedcore methods dictionaries`)
    folder: where to keep the population and the run; None: nowhere
    backend: computes the client statistics, as of `fedcore.train`

    Fitted: components_ (rg, d) shared atoms; clients_ (C,) ids; local_components_ (C, r - rg, d), zeros beyond a
    client's atoms; global_part_ and local_part_ (n, d) float32, whose sum reconstructs X; reconstruction_err_ (C,) mean
    squared residual of each client; n_iter_, outcome_, statement_, run_, model_.
    Raises ConfigError at `fit` for parameters out of range.

    >>> import numpy as np, fedcore
    >>> random = np.random.default_rng(0)
    >>> x = random.normal(size=(80, 1)) * [0.6, 0.0, 0.8] + 0.1 * random.normal(size=(80, 3))
    >>> dictionaries = fedcore.PersonalDictionaries(1, n_global=1).fit(x, groups=np.repeat(np.arange(4), 20))
    >>> abs(dictionaries.components_).round(1).tolist()
    [[0.6, 0.0, 0.8]]
    """

    method = "dictionaries"
    clients_: np.ndarray
    local_components_: np.ndarray

    def __init__(
        self,
        n_components: int | None = None,
        *,
        n_global: int | None = None,
        random_state: int | None = 0,
        settings: Mapping[str, Any] | None = None,
        folder: str | None = None,
        backend: Backend | None = None,
    ):
        self.n_components = n_components
        self.n_global = n_global
        self.random_state = random_state
        self.settings = settings
        self.folder = folder
        self.backend = backend

    def fit(self, X: Any, y: object = None, groups: Groups = None) -> Self:
        """Learn the shared atoms and those of each client.

        X: (n, d) finite samples
        y: ignored
        groups: (n,) the client of each sample; needed
        Returns the estimator.
        Raises ConfigError without groups, ValueError for arrays that are no finite samples.
        """
        check_given(groups)
        return self._fit(X, groups)

    def fit_transform(self, X: Any, y: object = None, groups: Groups = None) -> Any:
        """Fit to samples and return their codes, as `fit` and then `transform`.

        X, y, groups: as for `fit`
        Returns (n, r) float64.
        Raises what they raise.
        """
        return self.fit(X, groups=groups).transform(X, groups)

    def transform(self, X: Any, groups: Groups = None) -> np.ndarray:
        """Return the codes of samples by matching pursuit, as in the fit.

        The codes are for the client of the sample, and not private.

        X: (n, d) samples
        groups: (n,) the client of each sample, whose local atoms are used; None: shared atoms alone, with 0 in the
            other columns
        Returns (n, r) float64: rg columns for the shared atoms, then one for each local atom.
        Raises ConfigError for unknown clients, ValueError.
        """
        self._known()
        return self._codes(self._checked_rows(X, reset=False).astype(np.float64), groups)

    def inverse_transform(self, X: Any, groups: Groups = None) -> np.ndarray:
        """Return the samples that codes stand for.

        X: (n, r) codes
        groups: (n,) the client of each sample, as for `transform`
        Returns (n, d) float64.
        Raises ConfigError for unknown clients, ValueError.
        """
        self._known()
        codes = check_array(X, dtype=np.float64)
        if codes.shape[1] != self._n_features_out:
            raise ValueError(f"X has {codes.shape[1]} columns, and {self._n_features_out} codes are expected.")
        samples = np.empty((len(codes), self.components_.shape[1]))
        for rows, atoms in self._clients_of(codes, groups):
            samples[rows] = codes[rows] @ atoms
        return samples

    def add_clients(self, X: Any, groups: Groups) -> Self:
        """Learn local atoms of clients that were not in the fit. The shared atoms stay.

        The clients are added to `clients_` and `local_components_`, so that `transform`, `inverse_transform` and
        `score` know them. Their atoms are those that the fit would have given them with these shared atoms; a client
        has none if its held-out samples are not coded better by them.

        X: (n, d) finite samples
        groups: (n,) the client of each sample
        Returns the estimator.
        Raises ConfigError for clients that are known already, ValueError.
        """
        check_given(groups)
        method, state = self._known().fitted
        x = self._checked_rows(X, reset=False)
        labels = checked_groups(groups, len(x))
        new, places = np.unique(labels, return_inverse=True)
        if (new.dtype.kind in "OSTU") != (self.clients_.dtype.kind in "OSTU"):
            raise ConfigError(
                "The clients of the fit are texts and these are numbers, or the reverse.", "Use one type."
            )
        if known := sorted(set(new.tolist()) & set(self.clients_.tolist())):
            raise ConfigError(f"client {known[0]!r} was there when the model was fitted.", "Add new clients only.")
        ptr = np.concatenate([[0], np.cumsum(np.bincount(places))]).astype(np.int64)
        block = RowsBlock(len(self.clients_), 0, ptr, x[np.argsort(places, kind="stable")])
        local = method.personalise(state, block, None)["local"]
        atoms, clients = np.concatenate([self.local_components_, local]), np.concatenate([self.clients_, new])
        self.local_components_, self.clients_ = atoms, clients
        return self

    def score(self, X: Any, y: object = None, groups: Groups = None) -> float:
        """Return minus the mean squared error of the samples rebuilt from their codes; higher is better.

        Samples that a private run leaves out do not count. A `transform` of a subclass is not used.

        X, groups: (n, d) samples; (n,) the client of each sample, as for `transform`
        Raises ConfigError for unknown clients, ValueError.
        """
        self._known()
        x = self._checked_rows(X, reset=False).astype(np.float64)
        codes = self._codes(x, groups)
        left = np.empty(len(x))
        for rows, atoms in self._clients_of(x, groups):
            left[rows] = ((x[rows] - codes[rows] @ atoms) ** 2).sum(axis=1)
        return -float(np.nanmean(left))

    def _codes(self, x: np.ndarray, groups: Groups) -> np.ndarray:
        method, state = cast(tuple[Any, Any], self._known().fitted)
        most = code_length(method.config, state)
        codes = np.full((len(x), self._n_features_out), np.nan)
        for rows, atoms in self._clients_of(x, groups):
            rows = rows[np.isfinite(x[rows]).all(axis=1)]
            codes[rows] = omp(x[rows], atoms, most)
        return codes

    def _clients_of(self, x: np.ndarray, groups: Groups) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(rows, atoms (r, d)) of each client; atoms that it does not have are 0."""
        if groups is None:
            none = np.zeros_like(self.local_components_[0])
            yield np.arange(len(x)), np.concatenate([self.components_, none])
            return
        places = places_of(self.clients_, checked_groups(groups, len(x)))
        for place in np.unique(places):
            yield np.flatnonzero(places == place), np.concatenate([self.components_, self.local_components_[place]])

    @property
    def _n_features_out(self) -> int:
        return len(self.components_) + int(self.local_components_.shape[1])

    def _allows_missing(self) -> bool:
        return bool(dict(self.settings or {}).get("private"))  # a private run leaves such rows out

    def _method_settings(self) -> dict[str, Any]:
        chosen = {"atoms": self.n_components, "global_atoms": self.n_global}
        return {name: value for name, value in chosen.items() if value is not None}

    def _take(self, model: Model, stored: Stored) -> None:
        outputs = model.predict(stored.population)
        _, state = model.fitted
        self.components_, self.local_components_ = state.common, outputs["local"]
        self.reconstruction_err_ = outputs["loss"]
        self.global_part_ = stored.in_given_order(of_rows(outputs, "global"))
        self.local_part_ = stored.in_given_order(of_rows(outputs, "local"))
        self.clients_ = stored.ids()
