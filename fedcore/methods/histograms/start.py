"""Warm starts: public arrays that a run starts from, released by an earlier run or declared public.

A warm start is `centres`, (k, d) histograms, perhaps with a `mean` (d,) and `counts` (k,). It costs no privacy, so the
two releases that find the mean fall away. If there are more centres than the budget allows cells, those with the
largest counts are used; if there are fewer, perturbed copies of the mean fill up, as in a run without a warm start.

An earlier run on the same population leaves a pool of sums (`fedcore.methods.histograms.pool`) besides: `pool_sums`
(k + 1, d), `pool_weights` and `pool_variances` (k + 1,), whose last row is that of all clients, and the metric of the
releases, `pool_metric` (d,). A private run adds to it, and splits cells if there are fewer than the series allows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.histograms.config import HistogramsConfig
from fedcore.methods.histograms.pool import FORGETTING, SPLIT_KEPT
from fedcore.methods.histograms.releases import FLAT, POOLED, plan
from fedcore.methods.histograms.sensitivities import sensitivity_factor
from fedcore.methods.histograms.simplex import perturbed, project, ward_merge
from fedcore.methods.histograms.sizes import remembered, series_before, sizes_of
from fedcore.methods.histograms.state import USUAL_WEIGHTS, HistogramsState
from fedcore.methods.histograms.weights import USUAL_OF_LITTLE, WEIGHTS
from fedcore.randomness import stream
from fedcore.rounds.method import PublicFacts

NAMES = ("centres", "mean", "counts")
SERIES_NAMES = ("pool_sums", "pool_weights", "pool_variances", "pool_metric")
LATER_NAMES = ("pool_mean_noise", "pool_scores", "pool_score_noise", "base_weights")  # which early runs do not leave
PRECISIONS = ("pool_weights", "pool_variances", "pool_mean_noise")  # by which sums are divided
SUM_TOLERANCE = 1e-5  # of a row's sum from 1: single precision of a large vocabulary
MOST_CENTRES = 10_000
LARGEST = 1e60  # of any number, so that squares and ratios neither overflow nor vanish
PERTURBATION = "histograms/start"


# --- what a run leaves, and what it accepts -------------------------------------------------------------------------


def warm_start_of(state: HistogramsState) -> dict[str, np.ndarray]:
    """What a later run may start from: centres (k, d), mean (d,), counts (k,), and the pool if there is one that others
    can add to. Raises ConfigError before round 1.
    """
    if state.round == 0 and state.phase != "done":
        raise ConfigError("has not finished a round that gives centres.", "Name a run that has.")
    left = {"centres": state.centres, "mean": state.mean, "counts": np.maximum(state.counts, 0.0)}
    if not len(state.history.cells) or len(state.kept):
        return left
    pool = {name: getattr(state, name) for name in (*SERIES_NAMES[:-1], *LATER_NAMES[:-1])}
    pair = (state.prior_tokens, state.floor)
    if state.weights_multiplier or pair not in (USUAL_WEIGHTS, USUAL_OF_LITTLE):  # chosen, now or earlier in the series
        pool["base_weights"] = np.array(pair)
    return {**left, **{name: value for name, value in pool.items() if value.size}, "pool_metric": state.metric}


def checked_warm_start(arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
    """The arrays as float64, rows renormalised. Raises ConfigError unless they are histograms over the run's tokens,
    with a whole pool or none.
    """
    if "centres" not in arrays or set(arrays) - {*NAMES, *SERIES_NAMES, *LATER_NAMES}:
        raise ConfigError(
            f"{what} holds the arrays {', '.join(arrays) or 'none'}.",
            "It needs centres (k, d), and may have a mean (d,) and counts (k,); no others.",
        )
    missing = [name for name in SERIES_NAMES if name not in arrays]
    if missing and (len(missing) < len(SERIES_NAMES) or not set(arrays).isdisjoint(LATER_NAMES)):
        raise ConfigError(
            f"{what} holds a part of what a series has released; {', '.join(missing)} is missing.",
            "Leave the arrays of the pool out, or take them all from one run.",
        )
    for name, value in arrays.items():
        if value.dtype.kind not in "iuf":
            raise ConfigError(f"{name} of {what} are {value.dtype}, not numbers.")
    values = {name: np.asarray(value, np.float64) for name, value in arrays.items()}
    k = len(values["centres"]) if values["centres"].ndim == 2 else 0
    shapes = {"centres": (k, features), "mean": (features,), "counts": (k,)}
    sums = values.get("pool_sums", np.zeros(0))
    h = (len(FORGETTING) if len(sums) == len(FORGETTING) else 1,) if sums.ndim == 3 else ()  # histories
    shapes |= {"pool_sums": (*h, k + 1, features), "pool_weights": (*h, k + 1), "pool_variances": (*h, k + 1)}
    shapes |= {"pool_metric": (features,), "pool_mean_noise": (*h, features)}
    shapes |= {"pool_scores": h, "pool_score_noise": h, "base_weights": (2,)}
    for name, value in values.items():
        if value.shape != shapes[name] or not 1 <= k <= MOST_CENTRES:
            raise ConfigError(
                f"{name} of {what} have the shape {value.shape}; the population has {features} tokens.",
                f"centres are (k, {features}) with k from 1 to {MOST_CENTRES}, the mean ({features},), counts (k,); "
                f"sums of a pool (k + 1, {features}), its weights and variances (k + 1,), its metric ({features},); "
                f"pools of several histories have {len(FORGETTING)} in front of that.",
            )
        if not np.all(np.isfinite(value)) or (name != "pool_sums" and np.any(value < 0)):
            raise ConfigError(f"{name} of {what} have entries that are negative, infinite or not numbers.")
        sizes = np.abs(value[value != 0])
        least = 1.0 / LARGEST if name in PRECISIONS else 0.0
        if sizes.size and not least <= sizes.min() <= sizes.max() <= LARGEST:
            raise ConfigError(
                f"{name} of {what} have entries of a size that no run leaves.",
                "Start from another run, or from nothing.",
            )
        if name in ("centres", "mean", "pool_metric"):
            sums = value.sum(axis=-1)
            if np.any(np.abs(sums - 1) > SUM_TOLERANCE):
                raise ConfigError(
                    f"{name} of {what} are no histograms: a row sums to {_worst(sums):.6g}, not to 1.",
                    "Divide every row by its sum.",
                )
            values[name] = value / sums[..., None]
    if not missing:
        _check_pool(values, what)
    return values


def _check_pool(values: Mapping[str, np.ndarray], what: str) -> None:
    """Raises ConfigError for a pool that no run leaves: a release has noise in every token."""
    weights, variances = values["pool_weights"], values["pool_variances"]
    noise, (a, c) = values.get("pool_mean_noise", np.ones(1)), values.get("base_weights", np.array([1.0, 0.0]))
    no_mean = np.any(weights[..., -1] == 0) or np.any(values["pool_metric"] == 0) or np.any(noise == 0)
    if np.any((weights > 0) != (variances > 0)) or no_mean:
        raise ConfigError(
            f"the pool of {what} has sums without noise.", "Start from another run, or from the centres alone."
        )
    if not (a > 0 and c < 1):
        raise ConfigError(
            f"base_weights of {what} are {a:g} and {c:g}.", "They are a > 0 and c from 0 to 1, of (a + c m) / (a + m)."
        )


def _worst(sums: np.ndarray) -> float:
    sums = np.atleast_1d(sums)
    return float(sums[np.argmax(np.abs(sums - 1))])


def likely_warm_start(config: HistogramsConfig, public: PublicFacts) -> dict[str, np.ndarray]:
    """What a run with these facts would leave, as far as the plans of later runs depend on it: the mean everywhere, and
    the weights that its noise gives to what it releases.
    """
    sizes = sizes_of(config, public)
    releases = [release for release in plan(config, public) if release.name != WEIGHTS]
    k, d = sizes.clusters, public.features
    uniform = np.full((k + 1, d), 1.0 / d)
    start = {"centres": uniform[:k]}
    if config.reduction != "none":
        return start
    noise_of = config.clip * sensitivity_factor(public.relation)
    noise = noise_of * releases[-1].noise_multiplier
    weights, variances, added = np.zeros(k), np.zeros(k), max(1, min(sizes.rounds, POOLED))
    of_mean = sum(1.0 / (r.shape[0] * (noise_of * r.noise_multiplier) ** 2) for r in releases if r.name != FLAT)
    weight, variance = 0.0, 0.0  # of all clients
    before = series_before(config, public)
    if before is not None:
        added, (weights, variances) = sizes.rounds, remembered(before)
        weight, variance, weights, variances = weights[-1], variances[-1], weights[:-1], variances[:-1]
        halves = min(2 * (k - len(weights)), k)  # each from a cell of its own
        kept = np.where(np.arange(k) < k - halves, 1.0, SPLIT_KEPT)
        number = np.minimum(np.arange(k), len(weights) - 1)
        weights, variances = kept * weights[number], kept**2 * variances[number]
    weights, variances = weights + added / noise**2, variances + added / noise**2
    pool = {
        "pool_sums": uniform,
        "pool_weights": np.append(weights, weight + of_mean),
        "pool_variances": np.append(variances, variance + of_mean),
        "pool_metric": uniform[0],
    }
    return {**start, **pool}


# --- the first cells ------------------------------------------------------------------------------------------------


def mean_of_warm_start(warm_start: Mapping[str, np.ndarray], floor: float) -> np.ndarray:
    """(d,) F: the mean, if there is one, else that of the centres weighted by their counts, else their plain mean."""
    if "mean" in warm_start:
        return project(np.asarray(warm_start["mean"], np.float64), floor)
    return project(np.average(warm_start["centres"], axis=0, weights=_counts(warm_start)), floor)


def _counts(warm_start: Mapping[str, np.ndarray]) -> np.ndarray:
    """(k,) counts of the centres, all 1 if none are known."""
    counts = np.maximum(warm_start.get("counts", np.zeros(0)), 0.0)
    return counts if counts.sum() > 0 else np.ones(len(warm_start["centres"]))


def perturbed_start(mean: np.ndarray, cells: int, perturbation: float, seed: int) -> np.ndarray:
    """(cells, d): perturbed copies of the mean, drawn from the run's public stream."""
    return perturbed(mean, cells, perturbation, stream(seed, PERTURBATION))


def filled_up(centres: np.ndarray, cells: int, mean: np.ndarray, perturbation: float, seed: int) -> np.ndarray:
    """(max(k, cells), d): the centres, then the last ones of the perturbed start."""
    if len(centres) >= cells:
        return centres
    return np.vstack([centres, perturbed_start(mean, cells, perturbation, seed)[len(centres) :]])


def chosen_by_counts(
    warm_start: Mapping[str, np.ndarray], w: np.ndarray, cells: int
) -> tuple[np.ndarray, list[list[int]]]:
    """(at most `cells` centres, for each the rows of the warm start's centres that it is made of).

    Of more centres than that the ones with the largest counts are used. Without counts they are merged by Ward cost in
    the metric w (d,), all with the same weight. Free: all of it is public.
    """
    centres = np.asarray(warm_start["centres"], np.float64)
    if len(centres) <= cells:
        return centres, [[row] for row in range(len(centres))]
    counts = _counts(warm_start)
    if np.ptp(counts) > 0:
        largest = np.sort(np.argsort(-counts, kind="stable")[:cells])
        return centres[largest], [[int(row)] for row in largest]
    groups = [[int(row) for row in group] for group in ward_merge(centres, counts, w, cells)]
    return np.stack([centres[group].mean(axis=0) for group in groups]), groups
