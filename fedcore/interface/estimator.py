"""What the estimators share: settings in the manner of scikit-learn, data in, a run on the engine, values out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Self

import numpy as np
import scipy
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags, check_array, check_consistent_length
from sklearn.utils.validation import validate_data

from fedcore.errors import ConfigError
from fedcore.interface import data
from fedcore.interface.data import Groups, Stored
from fedcore.interface.frames import as_array
from fedcore.interface.functions import train
from fedcore.interface.model import Model, finished
from fedcore.population.blocks import Kind
from fedcore.population.columns import ColumnEntry
from fedcore.population.store import Population
from fedcore.storage.scratch import scratch_folder

RUNS = "runs"  # in the folder of an estimator
SEEDS = 2**31  # that a RandomState or a Generator draws from


class FederatedEstimator(BaseEstimator, ABC):
    """An estimator whose `fit` is a run of a method.

    `folder` keeps the population and the run that `fit` makes, so that they can be inspected, resumed and given to the
    command line. Without one they are in a temporary folder and are gone after `fit`. `model_` still has its tables
    then, and can be exported.
    """

    kind: Kind = "rows"
    method: str
    folder: str | None
    settings: Mapping[str, Any] | None
    random_state: Any
    backend: Any

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self._allows_missing()
        tags.input_tags.sparse = tags.input_tags.positive_only = self.kind == "counts"
        return tags

    @abstractmethod
    def _method_settings(self) -> dict[str, Any]:
        """The settings of the method that the parameters of the estimator stand for."""

    @abstractmethod
    def _take(self, model: Model, stored: Stored) -> None:
        """Set the fitted attributes; population and run are still there."""

    def _before_training(self, population: Population, place: Path) -> dict[str, Any]:
        """Settings that depend on the population; the budget of one that was made here is set."""
        return {}

    def _allows_missing(self) -> bool:
        """Whether rows may have missing entries (NaN)."""
        return self.kind == "rows"

    def _start(self, population: Population, place: Path) -> str | None:
        """The file of what the run starts from, made in `place`; None: the method finds its own start."""
        return None

    def _trained_method(self) -> str:
        """The method that `fit` trains with these parameters."""
        return self.method

    def _population_options(self, place: Path, groups: Groups) -> dict[str, Any]:
        """Options of a population that `fit` makes; "records": whether every row is a separate record."""
        return {}

    def _fit(self, X: Any, groups: Groups, **last: np.ndarray | None) -> Self:
        """last: (n,) float64 by name, a column that comes after those of an array; None: there is none."""
        seed = checked_seed(self.random_state)
        with self._place() as place:
            stored = self._stored(X, groups, place, {name: one for name, one in last.items() if one is not None})
            paid = self._before_training(stored.population, place)
            settings = {**self._method_settings(), **paid, **dict(self.settings or {})}
            model = train(
                self._trained_method(),
                stored.population,
                settings,
                runs=place / RUNS,
                seed=seed,
                start_from=self._start(stored.population, place),
                backend=self.backend,
                report=self.folder is not None,
            )
            self.run_ = str(model.path) if self.folder is not None else None
            self.model_ = finished(model.path)
            self.statement_ = self.model_.statement
            self.outcome_ = self.model_.outcome
            self.n_iter_ = max(len(self.model_.metrics), 1)
            self._take(self.model_, stored)
            _ = self.model_.fitted, self.model_.learnt.document  # read while the files are there
        return self

    def _stored(self, X: Any, groups: Groups, place: Path, last: Mapping[str, np.ndarray]) -> Stored:
        options = self._population_options(place, groups)
        if isinstance(X, (Population, str, Path)):
            if last:
                raise ConfigError(f"{', '.join(last)} is for rows of an array.", "Make it a column of the population.")
            found = (
                X if isinstance(X, Population) else data.opened(X, groups, place / "population", self.kind, **options)
            )
            self.n_features_in_ = self._checked_kind(found).features
            return Stored(found)
        if self.kind == "counts":
            counts = self._checked_counts(X, reset=True)
            return data.counts_stored(counts, place / "population", **options)
        x = self._checked_rows(X, reset=True)
        names = [str(name) for name in getattr(self, "feature_names_in_", ())]  # of a data frame
        check_consistent_length(x, *last.values())
        x, names = np.column_stack([x, *last.values()]) if last else x, [*names, *last] if names else []
        named = all(names) and len(set(names)) == len(names)
        columns = [ColumnEntry(name=name, of=name) for name in names] if named else []
        return data.rows_stored(x, groups, place / "population", columns=columns, **options)

    def _checked_kind(self, population: Population) -> Population:
        if population.kind != self.kind:
            raise ConfigError(
                f"population {population.path.name!r} holds {population.kind}; this estimator reads {self.kind}."
            )
        return population

    def _checked_rows(self, X: Any, *, reset: bool) -> np.ndarray:
        """(n, d) float32 or float64, NaN = missing where that is allowed. Raises ValueError as estimators do."""
        finite = "allow-nan" if self._allows_missing() else True
        x: np.ndarray = self._checked(X, reset, dtype=[np.float64, np.float32], ensure_all_finite=finite, order="C")
        return x

    def _checked_counts(self, X: Any, *, reset: bool) -> scipy.sparse.csr_matrix:
        """(C, d) whole numbers >= 0. Raises ValueError."""
        counts = scipy.sparse.csr_matrix(self._checked(X, reset, accept_sparse="csr", dtype=np.float64))
        if counts.nnz and (counts.data.min() < 0 or (counts.data != np.floor(counts.data)).any()):
            raise ValueError("Negative values in data passed to X, or others that are not whole: it holds counts.")
        return counts

    def _checked(self, X: Any, reset: bool, **rules: Any) -> Any:
        """X as an array; the columns of a data frame have the names and the order of the fit."""
        x = as_array(X)
        if x is X:
            return validate_data(self, X, reset=reset, **rules)
        validate_data(self, X, reset=reset, skip_check_array=True)
        return check_array(x, estimator=self, input_name="X", **rules)

    @contextmanager
    def _place(self) -> Iterator[Path]:
        if self.folder is None:
            with scratch_folder() as made:
                yield made
            return
        place = Path(self.folder)
        if (place / RUNS).is_dir():  # of an earlier fit, which stays
            place = next(p for number in count(2) if not (p := place / f"fit-{number}").exists())
        elif place.exists() and any(place.iterdir()):
            raise ConfigError(f"the folder {str(place)!r} holds other files.", "Name another one.")
        place.mkdir(parents=True, exist_ok=True)
        yield place

    def _known(self) -> Model:
        if not hasattr(self, "model_"):
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet. Call 'fit' with appropriate arguments first."
            )
        model: Model = self.model_
        return model


def checked_seed(random_state: Any) -> int:
    """The seed of a run: a whole number from 0 is itself, None is 0, and a RandomState or a Generator of NumPy gives
    the next number that it draws. Raises ConfigError for others."""
    if random_state is None:
        return 0
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(SEEDS))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(SEEDS))
    if isinstance(random_state, (bool, np.bool_)) or not isinstance(random_state, (int, np.integer)):
        raise ConfigError(
            f"random_state cannot be {random_state!r}.", "Give a whole number, a RandomState, a Generator or None."
        )
    return int(random_state)
