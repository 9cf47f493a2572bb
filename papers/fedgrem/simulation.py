"""Data of the paper's experiments, contamination of clients' rows, and errors from a known truth.

*Similar mixtures* (Tian, Weng, Feng 2024, Section 4.1 and Appendix B.1): clients with similar mixtures, and outliers.
Presets: "paper", as the text says, and "code", as the authors' program does it.

    item                      paper                   code
    outlier of a mixture      N(2 1, 3 I)             N(2.5 1, 4 I)
    outlier of a regression   coefficients 3 1        -3 1
    rows of a regression      150                     200

*Contamination*: `share` < 1 contaminates only so many rows of each chosen client, drawn at random.

    outlier   all rows are replaced by N(mean 1, variance I), as of the outliers of the paper
    flipped   rows are reflected in the client's mean; of a regression, the response changes its sign
    shifted   all rows are moved by one and the same vector of the given length; of a regression, the response
    random    every column is replaced by uniform numbers over its own range

*Errors* (Section 4): every client's components may be matched in their own way, and weights in another, as in the
authors' program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

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


# --- contamination ----------------------------------------------------------------------------------------------------


Contamination = Literal["outlier", "flipped", "shifted", "random"]
KINDS = ("outlier", "flipped", "shifted", "random")


def contaminated(
    x: np.ndarray,
    ptr: np.ndarray,
    clients: Sequence[int],
    kind: Contamination,
    seed: int,
    *,
    response: bool = False,
    share: float = 1.0,
    mean: float = 2.0,
    variance: float = 3.0,
    length: float = 10.0,
) -> np.ndarray:
    """A copy of rows x (N, d) with the rows of these clients contaminated.

    ptr: (C + 1,) int64. response: the last column is that of a regression. mean, variance: of "outlier"; length: of the
    shift. Raises ConfigError for an unknown kind, a share outside (0, 1] or a client that does not exist.
    """
    if kind not in KINDS:
        raise ConfigError(f"there is no contamination {kind!r}.", f"Known: {', '.join(KINDS)}.")
    if not 0 < share <= 1:
        raise ConfigError(f"a share of {share} of the rows cannot be contaminated.", "It is between 0 and 1.")
    outside = [client for client in clients if not 0 <= client < len(ptr) - 1]
    if outside:
        raise ConfigError(f"there is no client {outside[0]}.", f"Clients are 0 .. {len(ptr) - 2}.")
    x = np.array(x, np.float64)
    direction = stream(seed, "gradient_em/contamination/shift").standard_normal((x.shape[1],))
    shift = length * direction / np.linalg.norm(direction)
    for client in clients:
        generator = stream(seed, f"gradient_em/contamination/{kind}", client=int(client))
        rows = slice(int(ptr[client]), int(ptr[client + 1]))
        own = x[rows]
        if not len(own):
            continue
        hit = generator.random(len(own)) < share if share < 1 else np.ones(len(own), bool)
        changed = _changed(own, kind, generator, response, shift, mean, variance)
        x[rows] = np.where(hit[:, None], changed, own)
    return x


def _changed(
    own: np.ndarray,
    kind: Contamination,
    generator: np.random.Generator,
    response: bool,
    shift: np.ndarray,
    mean: float,
    variance: float,
) -> np.ndarray:
    if kind == "outlier":
        return mean + np.sqrt(variance) * generator.standard_normal(own.shape)
    if kind == "random":
        return generator.uniform(own.min(axis=0), own.max(axis=0), own.shape)
    changed = own.copy()
    columns = slice(own.shape[1] - 1, None) if response else slice(None)
    if kind == "shifted":
        changed[:, columns] += np.linalg.norm(shift) if response else shift
    else:
        changed[:, columns] = -own[:, columns] if response else 2.0 * own.mean(axis=0) - own
    return changed


# --- errors -----------------------------------------------------------------------------------------------------------


ENUMERATED = 6  # components up to which all matchings are tried


class Errors(NamedTuple):
    """largest: over clients and components, after the matching of each client that has the least such error.
    rms: root mean square over clients and components, after the matching of least squares."""

    largest: float
    rms: float


def errors(found: np.ndarray, truth: np.ndarray, inlier: np.ndarray) -> Errors:
    """found, truth: (K, R, p) centres or (K, R) weights; inlier: (K,) bool, who counts."""
    if found.ndim == 2:
        found, truth = found[:, :, None], truth[:, :, None]
    pairs = [np.linalg.norm(a[:, None] - b[None], axis=2) for a, b in zip(found[inlier], truth[inlier], strict=True)]
    least = [(cost**2)[linear_sum_assignment(cost**2)].mean() for cost in pairs]
    return Errors(max(_bottleneck(cost) for cost in pairs), float(np.sqrt(np.mean(least))))


def _bottleneck(cost: np.ndarray) -> float:
    """The least over matchings of the largest matched entry. cost: (R, R)."""
    components = len(cost)
    if components <= ENUMERATED:
        orders = np.array(list(permutations(range(components))))
        return float(cost[np.arange(components), orders].max(axis=1).min())
    for level in np.unique(cost):
        if (cost > level)[linear_sum_assignment(cost > level)].sum() == 0:
            return float(level)
    return float(cost.max())


def misclustered(found: np.ndarray, truth: np.ndarray, components: int) -> int:
    """Rows whose label is wrong after the best matching of labels found (N,) to true ones (N,), both 0 .. R - 1."""
    table = np.zeros((components, components))
    np.add.at(table, (found, truth), 1)
    rows, columns = linear_sum_assignment(-table)
    return int(len(found) - table[rows, columns].sum())
