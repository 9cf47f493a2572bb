"""The simulations of Tian, Weng, Feng 2024, Section 4.1 and Appendix B.1: clients with similar mixtures, and outliers.

Presets: "paper", as the text says, and "code", as the authors' program does it.

    item                      paper                   code
    outlier of a mixture      N(2 1, 3 I)             N(2.5 1, 4 I)
    outlier of a regression   coefficients 3 1        -3 1
    rows of a regression      150                     200
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedcore.errors import ConfigError
from fedcore.randomness import stream

CENTRES = np.array(
    [
        [1, 0, 3, -1, 1, -1, 0, 1, 1, -1],
        [0, 1, -1, -3, 2, -1, 2, -1, 1, -1],
        [-3, -1, 2, -1, 2, -1, 1, -3, -1, -2],
        [1, -2, 0, -1, -2, 2, 1, 3, 1, -1],
        [3, 1, 2, -1, -2, 1, 2, -1, -1, 2],
    ],
    np.float64,
)
Model = Literal["gaussian", "regression"]
Preset = Literal["paper", "code"]


@dataclass(frozen=True, slots=True)
class SimulatedClients:
    """rows: of each client, the response of a regression in the last column; theta: (K, R, p), w: (K, R) the truth, NaN
    for outliers; inlier: (K,) bool; labels: of each client's rows, -1 for outliers."""

    rows: list[np.ndarray]
    theta: np.ndarray
    w: np.ndarray
    inlier: np.ndarray
    labels: list[np.ndarray]


def simulated_clients(
    seed: int,
    *,
    model: Model = "gaussian",
    clients: int = 10,
    outliers: int = 1,
    h: float = 0.0,
    rows: int | np.ndarray | None = None,
    preset: Preset = "paper",
    centres: np.ndarray = CENTRES,
    concentration: float = 5.0,
) -> SimulatedClients:
    """K clients (the paper's tasks); the last ones are outliers.

    theta_r^(k) = c_r + h z / |z|, w^(k) ~ Dirichlet(concentration).

    rows: of every client, or (K,) of each; None: the preset's. centres: (R, p). Raises ConfigError unless
    0 <= outliers <= clients.
    """
    if not 0 <= outliers <= clients:
        raise ConfigError(f"{outliers} of {clients} clients cannot be outliers.")
    if rows is None:
        rows = 200 if (model, preset) == ("regression", "code") else 150
    sizes = np.broadcast_to(np.asarray(rows, np.int64), clients)
    components, p = centres.shape
    inlier = np.arange(clients) < clients - outliers
    theta, w = np.full((clients, components, p), np.nan), np.full((clients, components), np.nan)
    found, labels = [], []
    for client in range(clients):
        generator, n = stream(seed, "gradient_em/tasks", client=client), int(sizes[client])
        shares = generator.dirichlet(np.full(components, concentration))
        z = generator.standard_normal((components, p))
        own = centres + h * z / np.linalg.norm(z, axis=1, keepdims=True)
        label = generator.choice(components, n, p=shares)
        noise, last = generator.standard_normal((n, p)), generator.standard_normal(n)
        if inlier[client]:
            theta[client], w[client] = own, shares
            x = own[label] + noise if model == "gaussian" else noise
            y = np.einsum("np,np->n", noise, own[label]) + last
        else:
            label = np.full(n, -1)
            mean, scale = (2.0, np.sqrt(3.0)) if preset == "paper" else (2.5, 2.0)
            x = mean + scale * noise if model == "gaussian" else noise
            y = noise.sum(axis=1) * (3.0 if preset == "paper" else -3.0) + last
        found.append(x if model == "gaussian" else np.column_stack([x, y]))
        labels.append(label)
    return SimulatedClients(found, theta, w, inlier, labels)
