"""Contamination of some clients' rows, for experiments on robustness.

    outlier   all rows are replaced by N(mean 1, variance I), as of the outliers of Tian, Weng, Feng 2024
    flipped   rows are reflected in the client's mean; of a regression, the response changes its sign
    shifted   all rows are moved by one and the same vector of the given length; of a regression, the response
    random    every column is replaced by uniform numbers over its own range

`share` < 1 contaminates only so many rows of each chosen client, drawn at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedcore.errors import ConfigError
from fedcore.randomness import stream

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
