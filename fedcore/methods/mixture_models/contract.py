"""The contract of a curved exponential-family model, as the EM methods see it.

    p(y, z; theta) = rho(y, z) exp( <s(y, z), phi(theta)> - psi(theta) ),    s in R^q

A model is a frozen value (its shape and its penalty); it keeps no state, draws nothing and knows nothing of clients'
memories, codecs or rounds. E-steps give the expected statistic s_bar = E[s(y, z) | y; theta]; `maximise` is the M-step
T(s) = argmin psi(theta) + R(theta) - <s, phi(theta)>. Source: Dieuleveut, Fort, Moulines, Robin 2021, section 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp

Theta = Mapping[str, np.ndarray]  # parameters by name, float64, as they are published and stored


class LazyRows(Protocol):
    """Dense rows (N, d) float64 that are computed or read when they are used. Slices and selections are lazy again;
    `np.asarray` of a part gives its rows, and `fill` writes them as columns: see
    `fedcore.methods.mixture_models.client_sums.fill`."""

    shape: tuple[int, int]

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice | np.ndarray) -> LazyRows: ...

    def __array__(self, dtype=None, copy=None) -> np.ndarray: ...

    def fill(self, out: np.ndarray, own: int, each: int) -> np.ndarray | None: ...


Rows = np.ndarray | sp.csr_matrix | LazyRows  # (N, d) observations; the models of counts take CSR as well


class CurvedEM(Protocol):
    """q: length of the packed statistic. blocks: its natural parts (weights, one component's mean ...), for codecs."""

    q: int
    blocks: tuple[slice, ...]

    def e_total(self, theta: Theta, y: Rows, weights: np.ndarray | None = None) -> np.ndarray:
        """(q,): sum over the rows of weights[j] * s_bar(y_j); weights None: all one. The fast path: no client is told
        apart."""

    def e_mean(self, theta: Theta, y: Rows, ptr: np.ndarray) -> np.ndarray:
        """(C, q): mean of s_bar over the rows ptr[i] .. ptr[i + 1] - 1 of every client; 0 for a client without rows."""

    def e_mean_at(self, theta: Theta, y: Rows, ptr: np.ndarray, at: np.ndarray) -> np.ndarray:
        """(C, q): mean of s_bar over the rows ptr[i] + at[i, :] of every client; at: (C, b) row numbers there."""

    def maximise(self, s: np.ndarray, start: Theta | None = None) -> Theta:
        """T(s). start: where an iterative M-step begins (its result must not depend on it beyond rounding).
        Entries outside the domain are floored here, never in s itself."""

    def admissible(self, s: np.ndarray, margin: float = 0.0) -> bool:
        """Whether s lies in the domain of T, with a margin."""

    def statistic_of(self, theta: Theta) -> np.ndarray:
        """(q,) a right inverse: maximise(statistic_of(theta)) == theta."""

    def log_likelihood(self, theta: Theta, y: Rows) -> np.ndarray:
        """(N,) ln p(y_j; theta), nats."""

    def penalty(self, theta: Theta) -> float:
        """R(theta)."""

    def check_rows(self, y: Rows) -> None:
        """Raises PopulationError that names the first bad row and column (non-finite, negative count, not 0/1 ...)."""

    def check_theta(self, theta: Theta) -> Theta:
        """theta as float64. Raises ConfigError unless it can be parameters of this model; for starts from outside."""

    def personalise(self, theta: Theta, y: Rows) -> dict[str, Any]:
        """Arrays by name, first axis = rows: responsibilities and label, or imputed rows."""
