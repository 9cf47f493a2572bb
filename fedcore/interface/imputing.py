"""Missing entries of rows as estimators fill them: means, draws and intervals, given what each row has."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from fedcore.interface.estimator import FederatedEstimator, checked_seed
from fedcore.methods.mixture_models.imputation import Imputation


class ImputingEstimator(FederatedEstimator):
    """An estimator whose fitted mixture fills missing entries (NaN) of rows that it is given."""

    @abstractmethod
    def _imputation(self, X: Any) -> tuple[Imputation, np.ndarray]:
        """(what the fitted mixture says of missing entries, the checked rows (n, d))."""

    def impute(self, X: Any, draws: int | None = None) -> np.ndarray:
        """(n, d) float64: the rows, with the conditional mean of each missing entry given what its row has.

        draws: (draws, n, d) float64 instead, that many completed tables. Each is drawn from the mixture given what was
            seen, with random_state, so that analyses of them show how uncertain the missing entries are (multiple
            imputation)
        Raises ValueError for draws below 1.
        """
        imputation, x = self._imputation(X)
        if draws is None:
            return imputation.means(x)
        if draws < 1:
            raise ValueError(f"draws = {draws} is below 1.")
        generator = np.random.default_rng(checked_seed(self.random_state))
        return np.stack([imputation.draws(x, generator) for _ in range(draws)])

    def impute_intervals(self, X: Any, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """(low, high), each (n, d) float64: a missing entry is between them with this probability, if the mixture is
        right. Entries that are there are both ends. Raises ValueError unless coverage is above 0 and below 1."""
        if not 0 < coverage < 1:
            raise ValueError(f"coverage = {coverage} is not between 0 and 1.")
        imputation, x = self._imputation(X)
        return imputation.intervals(x, coverage)
