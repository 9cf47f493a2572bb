"""Warm starts: public arrays that a run starts from, released by an earlier run or declared public.

A warm start is `centres`, (k, d) histograms, perhaps with a `mean` (d,) and `counts` (k,). It costs no privacy, so the
two releases that find the mean fall away. If there are more centres than the budget can pay cells for, one release of
votes chooses among them; if there are fewer, perturbed copies of the mean fill up, as in a run without a warm start.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.histograms.simplex import perturbed, project, ward_merge
from fedcore.methods.histograms.state import HistogramsState
from fedcore.randomness import stream

NAMES = ("centres", "mean", "counts")
SUM_TOLERANCE = 1e-5  # of a row's sum from 1: single precision of a large vocabulary
MOST_CENTRES = 10_000
PERTURBATION = "histograms/start"


# --- what a run leaves, and what it accepts -------------------------------------------------------------------------


def warm_start_of(state: HistogramsState) -> dict[str, np.ndarray]:
    """What a later run may start from: centres (k, d), mean (d,), counts (k,). Raises ConfigError before round 1."""
    if state.round == 0:
        raise ConfigError("has not finished a round that gives centres.", "Name a run that has.")
    return {"centres": state.centres, "mean": state.mean, "counts": np.maximum(state.counts, 0.0)}


def checked_warm_start(arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
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


# --- the first cells ------------------------------------------------------------------------------------------------


def mean_of_warm_start(warm_start: Mapping[str, np.ndarray], floor: float) -> np.ndarray:
    """(d,) F: the mean, if there is one, else that of the centres weighted by their counts, else their plain mean."""
    if "mean" in warm_start:
        return project(np.asarray(warm_start["mean"], np.float64), floor)
    centres = warm_start["centres"]
    counts = np.maximum(warm_start.get("counts", np.zeros(len(centres))), 0.0)
    weights = counts if counts.sum() > 0 else np.ones(len(centres))
    return project(np.average(centres, axis=0, weights=weights), floor)


def perturbed_start(mean: np.ndarray, cells: int, perturbation: float, seed: int) -> np.ndarray:
    """(cells, d): perturbed copies of the mean, drawn from the run's public stream."""
    return perturbed(mean, cells, perturbation, stream(seed, PERTURBATION))


def filled_up(centres: np.ndarray, cells: int, mean: np.ndarray, perturbation: float, seed: int) -> np.ndarray:
    """(max(k, cells), d): the centres, then the last ones of the perturbed start."""
    if len(centres) >= cells:
        return centres
    return np.vstack([centres, perturbed_start(mean, cells, perturbation, seed)[len(centres) :]])


def elected(
    centres: np.ndarray, votes: np.ndarray, least: float, w: np.ndarray, cells: int
) -> tuple[np.ndarray, np.ndarray]:
    """(at most `cells` centres, the rows of `centres` with at least `least` votes).

    votes: (k,) noised. Candidates with fewer votes are dropped; the others are merged by Ward cost, weighted by their
    votes.
    """
    live = np.flatnonzero(votes >= least)
    if len(live) <= cells:
        return centres[live], live
    groups = [live[group] for group in ward_merge(centres[live], votes[live], w, cells)]
    return np.stack([np.average(centres[group], axis=0, weights=votes[group]) for group in groups]), live
