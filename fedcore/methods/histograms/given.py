"""Centres that are given from outside: what they must be before a run may start from them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.histograms.state import HistogramsState

NAMES = ("centres", "mean", "counts")
SUM_TOLERANCE = 1e-5  # of a row's sum from 1: single precision of a large vocabulary
MOST_CENTRES = 10_000


def start_of(state: HistogramsState) -> dict[str, np.ndarray]:
    """What a later run may start from: centres (k, d), mean (d,), counts (k,). Raises ConfigError before round 1."""
    if not state.round >= 1:
        raise ConfigError("has not finished a round that gives centres.", "Name a run that has.")
    return {"centres": state.centres, "mean": state.mean, "counts": np.maximum(state.counts, 0.0)}


def checked_arrays(arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
    """The arrays as float64, rows renormalised. Raises ConfigError unless they are histograms over so many tokens."""
    if "centres" not in arrays or set(arrays) - set(NAMES):
        raise ConfigError(
            f"{what} holds the arrays {', '.join(arrays) or 'none'}.",
            "It needs centres (k, d), and may have a mean (d,) and counts (k,); no others.",
        )
    for name, value in arrays.items():
        if value.dtype.kind not in "iuf":
            raise ConfigError(f"{name} of {what} are {value.dtype}, not numbers.")
    values = {name: np.asarray(value, np.float64) for name, value in arrays.items()}
    k = len(values["centres"]) if values["centres"].ndim == 2 else 0
    shapes = {"centres": (k, features), "mean": (features,), "counts": (k,)}
    for name, value in values.items():
        if value.shape != shapes[name] or not 1 <= k <= MOST_CENTRES:
            raise ConfigError(
                f"{name} of {what} have the shape {value.shape}; the population has {features} tokens.",
                f"centres are (k, {features}) with k from 1 to {MOST_CENTRES}, the mean ({features},), counts (k,).",
            )
        if not np.all(np.isfinite(value)) or np.any(value < 0):
            raise ConfigError(f"{name} of {what} have entries that are negative, infinite or not numbers.")
        if name != "counts":
            sums = value.sum(axis=-1)
            if np.any(np.abs(sums - 1) > SUM_TOLERANCE):
                raise ConfigError(
                    f"{name} of {what} are no histograms: a row sums to {_worst(sums):.6g}, not to 1.",
                    "Divide every row by its sum.",
                )
            values[name] = value / sums[..., None]
    return values


def _worst(sums: np.ndarray) -> float:
    sums = np.atleast_1d(sums)
    return float(sums[np.argmax(np.abs(sums - 1))])
