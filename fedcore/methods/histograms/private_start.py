"""Where the cells of a run come from when centres are given: released by an earlier run, or public.

Given centres cost nothing, so the two releases that find the mean fall away. More centres than the budget can pay cells
for are chosen among by one release of votes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcore.methods.histograms.simplex import perturbed, project, ward_merge
from fedcore.randomness import stream

START = "histograms/start"


def given_mean(start: Mapping[str, np.ndarray], floor: float) -> np.ndarray:
    """(d,) F: the given mean, else that of the centres weighted by their given counts, else their plain mean."""
    if "mean" in start:
        return project(np.asarray(start["mean"], np.float64), floor)
    centres = start["centres"]
    counts = np.maximum(start.get("counts", np.zeros(len(centres))), 0.0)
    weights = counts if counts.sum() > 0 else np.ones(len(centres))
    return project(np.average(centres, axis=0, weights=weights), floor)


def filled_up(centres: np.ndarray, cells: int, mean: np.ndarray, perturbation: float, seed: int) -> np.ndarray:
    """(max(k, cells), d): the centres, then perturbed copies of the mean as of a start without centres."""
    if len(centres) >= cells:
        return centres
    return np.vstack([centres, perturbed(mean, cells, perturbation, stream(seed, START))[len(centres) :]])


def elected(
    centres: np.ndarray, votes: np.ndarray, least: float, w: np.ndarray, cells: int
) -> tuple[np.ndarray, np.ndarray]:
    """(at most `cells` centres, the rows of `centres` with at least `least` votes).

    votes: (k,) noised. Candidates with fewer votes than noise explains are dropped; the others are merged by Ward cost,
    each with its votes for a weight.
    """
    live = np.flatnonzero(votes >= least)
    if len(live) <= cells:
        return centres[live], live
    groups = [live[group] for group in ward_merge(centres[live], votes[live], w, cells)]
    return np.stack([np.average(centres[group], axis=0, weights=votes[group]) for group in groups]), live
