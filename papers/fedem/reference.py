"""FedEM and VR-FedEM in plain NumPy, to be read beside the paper; a test holds the method against them.

Source: Dieuleveut, Fort, Moulines, Robin, "Federated Expectation Maximization with heterogeneity mitigation and
variance reduction" (2021), Algorithms 1 and 2. Names and numbers of lines are the paper's:

    y       y_i, (m_i, d) the rows of client i; w: (n,) its weight, 1 / n in the paper
    S, V    S_k, (q,), the statistic; V_i, (n, q), the clients' memories; V_mean, their weighted sum, is the server's
    model   s_bar(theta, y_i): (q,) mean expected statistic, equation (4); T(S): theta, assumption A3; in_domain(S)
    quant   quant(k, i, x): client i's compressed message in round k, assumption A6
    batch   batch(k, i): numbers of the rows that client i uses in round k

Ours is one thing: a step that would leave the domain of T is halved until it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import numpy as np

Theta = tuple[np.ndarray, np.ndarray, np.ndarray]
Quant = Callable[[int, int, np.ndarray], np.ndarray]
Batch = Callable[[int, int], np.ndarray | slice]


class Model(Protocol):
    def s_bar(self, theta: Theta, y: np.ndarray) -> np.ndarray: ...
    def T(self, s: np.ndarray) -> Theta: ...
    def in_domain(self, s: np.ndarray) -> bool: ...


def fedem(
    model: Model,
    y: list[np.ndarray],
    w: np.ndarray,
    S: np.ndarray,
    V: np.ndarray,
    active: Callable[[int], Iterable[int]],
    batch: Batch,
    quant: Quant,
    rounds: int,
    gamma: float,
    alpha: float,
    p: float,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Algorithm 1, of which p n clients are active on average. Yields S_k and V_{k,i}, k = 1 .. rounds."""
    V = V.copy()
    V_mean = w @ V  # line 1
    for k in range(rounds):
        theta, Q_sum = model.T(S), np.zeros_like(S)
        for i in active(k):  # lines 3, 4
            delta = model.s_bar(theta, y[i][batch(k, i)]) - V[i] - S  # lines 6, 7
            Q = quant(k, i, delta)
            V[i] += alpha * Q  # line 8
            Q_sum += w[i] * Q  # line 9
        H = V_mean + Q_sum / p  # line 14
        S = step(model, S, gamma, H)  # line 15
        V_mean = V_mean + alpha * Q_sum  # line 16
        yield S, V.copy()


def vr_fedem(
    model: Model,
    y: list[np.ndarray],
    w: np.ndarray,
    S: np.ndarray,
    V: np.ndarray,
    batch: Batch,
    quant: Quant,
    k_out: int,
    k_in: int,
    gamma: float,
    alpha: float,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Algorithm 2. Yields S_{t,k} and V_{t,k,i}; rounds are numbered through, from 0."""
    V = V.copy()
    V_mean = w @ V
    for t in range(k_out):
        S_before = S  # lines 1, 17
        s = {i: model.s_bar(model.T(S), y_i) for i, y_i in enumerate(y) if len(y_i)}  # lines 2, 3, 19, 20
        for k in range(k_in):
            theta, theta_before, Q_sum = model.T(S), model.T(S_before), np.zeros_like(S)
            for i in s:
                rows = y[i][batch(t * k_in + k, i)]  # line 7
                s[i] = s[i] + model.s_bar(theta, rows) - model.s_bar(theta_before, rows)  # line 8
                Q = quant(t * k_in + k, i, s[i] - S - V[i])  # line 9
                V[i] += alpha * Q  # line 10
                Q_sum += w[i] * Q  # line 11
            S_before, S = S, step(model, S, gamma, V_mean + Q_sum)  # lines 13, 14
            V_mean = V_mean + alpha * Q_sum  # line 15
            yield S, V.copy()


def step(model: Model, S: np.ndarray, gamma: float, H: np.ndarray) -> np.ndarray:
    """S + gamma H, or with gamma / 2, gamma / 4 .. gamma / 4096, whichever is the first inside the domain; else S."""
    return next((moved for a in range(13) if model.in_domain(moved := S + gamma / 2**a * H)), S)


def dithering(x: np.ndarray, xi: np.ndarray, levels: int) -> np.ndarray:
    """Random dithering, after assumption A6, in the 2-norm; the norm travels as float32, rounded up."""
    exact = np.linalg.norm(x)
    single = np.float32(exact)
    norm = float(np.nextafter(single, np.float32(np.inf)) if single < exact else single)
    return norm / levels * np.sign(x) * np.floor(levels * np.abs(x) / (norm or 1.0) + xi)
