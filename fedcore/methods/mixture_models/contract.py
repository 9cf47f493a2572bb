"""The contract of a curved exponential-family model, as the EM methods see it.

    p(y, z; theta) = rho(y, z) exp( <s(y, z), phi(theta)> - psi(theta) ),    s in R^q

A model is a frozen value, its shape and its penalty: it keeps no state, draws nothing at random, and knows nothing of
clients' memories, codecs or rounds. The E-step gives the expected statistic s_bar = E[s(y, z) | y; theta]; `maximise`
is the M-step T(s) = argmin psi(theta) + R(theta) - <s, phi(theta)>.

Source: Dieuleveut, Fort, Moulines, Robin 2021, section 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias, TypeGuard

import numpy as np
import scipy

Theta = Mapping[str, np.ndarray]  # parameters by name, float64, as they are published and stored


class LazyRows(Protocol):
    """Dense rows (N, d) float64 that are computed or read when they are used. Slices and selections are lazy again;
    `np.asarray` of a part gives its rows, and `fill` writes them as columns: see
    `fedcore.methods.mixture_models.client_sums.fill`.
    """

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def ndim(self) -> int: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice | np.ndarray) -> LazyRows: ...

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray: ...

    def fill(self, out: np.ndarray, own: int = 1, each: int = 1) -> np.ndarray | None: ...


# (N, d) observations; CSR for the models of counts only
Rows: TypeAlias = "np.ndarray | scipy.sparse.csr_matrix | LazyRows"


def is_sparse(y: Rows) -> TypeGuard[scipy.sparse.csr_matrix]:
    return hasattr(y, "indptr")


class CurvedEM(Protocol):
    """A model over rows y (N, d), of which client i owns ptr[i] .. ptr[i + 1] - 1; ptr: (C + 1,).

    q: length of the packed statistic. blocks: its natural parts (weights, one component's mean ...), for codecs.
    """

    @property
    def q(self) -> int: ...

    @property
    def blocks(self) -> tuple[slice, ...]: ...

    def e_total(self, theta: Theta, y: Rows, weights: np.ndarray | None = None) -> np.ndarray:
        """(q,): sum over the rows of weights[j] s_bar(y_j); weights None: all one. The fast path, without separate sums
        for clients."""

    def e_totals_and_log_likelihoods(
        self, thetas: Sequence[Theta], y: Rows, weights: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(R, q) `e_total` and (R, N) `log_likelihood` of each theta, to the last bit. Mixtures read the rows once."""

    def e_mean(self, theta: Theta, y: Rows, ptr: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """(C, q): mean of s_bar over the rows of every client, by their weights (N,) >= 0, None: all one; 0 for a
        client without rows, or without any of a weight above 0."""

    def maximise(self, s: np.ndarray, start: Theta | None = None, rough: bool = False) -> Theta:
        """T(s), s (q,). start: where an iterative M-step begins; its result must not depend on it beyond rounding.
        rough: an iterative M-step may stop early, because EM continues; other M-steps are exact in any case.
        Entries outside the domain are floored here, never in s itself. Raises ValueError if s is not finite.
        """

    def admissible(self, s: np.ndarray, margin: float = 0.0) -> bool:
        """Whether s (q,) is in the domain of T, with a margin."""

    def least_ratio(self, before: Theta, after: Theta) -> float:
        """The smallest ratio of a weight, or of a variance in some direction, in `after` to what it was in `before`; 1
        for a model that has neither."""

    def statistic_of(self, theta: Theta) -> np.ndarray:
        """(q,) a right inverse: maximise(statistic_of(theta)) == theta."""

    def log_likelihood(self, theta: Theta, y: Rows) -> np.ndarray:
        """(N,) ln p(y_j; theta), nats."""

    def penalty(self, theta: Theta) -> float:
        """R(theta)."""

    def check_rows(self, y: Rows) -> None:
        """Raises PopulationError that names the first bad row and column (not finite, a negative count ...)."""

    def check_theta(self, theta: Theta) -> Theta:
        """theta as float64. Raises ConfigError unless it can be parameters of this model; for warm starts."""

    def personalise(self, theta: Theta, y: Rows) -> dict[str, np.ndarray]:
        """Mixtures: responsibilities (N, G) float64. Models of incomplete rows: imputed (N, d) float64, the rows with
        what is missing filled in."""
