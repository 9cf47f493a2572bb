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
        """Fill missing entries with their conditional means, given the other entries of the row.

        X: (n, d) rows, NaN = missing
        draws: number of completed tables instead, 1 or more. Each is drawn from the mixture given the observed entries,
            with random_state, so that analyses of them show how uncertain the missing entries are (multiple imputation)
        Returns (n, d) float64, or (draws, n, d) with draws.
        Raises ValueError if draws is below 1.
        """
        imputation, x = self._imputation(X)
        if draws is None:
            return imputation.means(x)
        if draws < 1:
            raise ValueError(f"draws = {draws} is below 1.")
        generator = np.random.default_rng(checked_seed(self.random_state))
        return np.stack([imputation.draws(x, generator) for _ in range(draws)])

    def impute_intervals(self, X: Any, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return intervals of missing entries, given the other entries of the row.

        X: (n, d) rows, NaN = missing
        coverage: probability, above 0 and below 1, that a missing entry is in its interval, if the mixture is right
        Returns low and high, each (n, d) float64. Observed entries are both ends.
        Raises ValueError for a coverage out of range.
        """
        if not 0 < coverage < 1:
            raise ValueError(f"coverage = {coverage} is not between 0 and 1.")
        imputation, x = self._imputation(X)
        return imputation.intervals(x, coverage)
