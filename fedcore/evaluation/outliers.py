"""Which clients are apart from the common centres, and which of them are suspected outliers.

A client's score is the median over its components of its distance from the common centre, in units of that beyond
which its method calls it apart (`Method.outlier_distances`). By the threshold of the paper's penalty all clients can be
apart where they differ much, so a client is suspected only if its score is also far from the others':
(score - median) / (1.4826 MAD) above `cutoff`.

The list says which client's data are unusual. It is not private, and not a proof: a client may be rightly different.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.population.store import Population
from fedcore.rounds.clients import redacted
from fedcore.runs.store import Run
from fedcore.training.personalise import check_fits, remembering_leaves, trained

CUTOFF = 3.5
NORMAL_MAD = 1.4826  # times the median absolute deviation is the standard deviation of normal numbers
SMALLEST_DEVIATION = 0.05  # of scores, so that a few equal ones make no client an outlier


@dataclass(frozen=True, slots=True)
class DistantClient:
    """A client that is apart in at least one component. The fields are keys of diagnosis.json.

    client: its id; number: in the population
    score, deviation: see the module; the latter in robust standard deviations
    apart, counted:   components in which it is apart, of those that count
    """

    client: str
    number: int
    score: float
    deviation: float
    apart: int
    counted: int
    suspected: bool


def scores(distance: np.ndarray) -> np.ndarray:
    """(K,) medians over the components that count; NaN for a client without any. distance: (K, R), NaN where a
    component does not count."""
    known = np.isfinite(distance)
    found = np.full(len(distance), np.nan)
    some = known.any(axis=1)
    found[some] = np.nanmedian(np.where(known, distance, np.nan)[some], axis=1)
    return found


def deviations(score: np.ndarray) -> np.ndarray:
    """(K,) how far each score is above the median, in robust standard deviations; NaN stays NaN."""
    known = np.isfinite(score)
    if not known.any():
        return np.full(len(score), np.nan)
    middle = np.median(score[known])
    deviation = NORMAL_MAD * np.median(np.abs(score[known] - middle))
    return (score - middle) / max(deviation, SMALLEST_DEVIATION)


def suspected(distance: np.ndarray, cutoff: float = CUTOFF) -> np.ndarray:
    """(K,) bool: apart, and far more than the others. distance: (K, R) in units of the threshold."""
    score = scores(distance)
    return (np.nan_to_num(score) > 1.0) & (np.nan_to_num(deviations(score)) > cutoff)


def diagnose(run_path: str | Path, population_path: str | Path, cutoff: float = CUTOFF) -> list[DistantClient]:
    """The clients that are apart in at least one component, those of the largest scores first.

    Reads the clients' memories of the run's last round, block by block. Raises RunError, PopulationError, WrongKind,
    and ConfigError for a run of another method or algorithm.
    """
    run, population = Run.open(run_path), Population.open(population_path)
    check_fits(run, population)
    method, state = trained(run)
    distances: list[np.ndarray] = []
    for index, leaf, memory in remembering_leaves(run, population, method):
        with redacted(method, index):
            distances.append(method.outlier_distances(state, leaf, memory))
    ids = [str(client) for index in range(len(population.blocks)) for client in population.client_ids(index)]
    distance = np.concatenate(distances)
    score, hit = scores(distance), suspected(distance, cutoff)
    deviation = deviations(score)
    with np.errstate(invalid="ignore"):
        apart, counted = (distance > 1.0).sum(axis=1), np.isfinite(distance).sum(axis=1)
    order = sorted(np.flatnonzero(apart > 0), key=lambda k: -score[k])
    return [
        DistantClient(
            ids[k], int(k), float(score[k]), float(deviation[k]), int(apart[k]), int(counted[k]), bool(hit[k])
        )
        for k in order
    ]


def distances_figure(clients: Sequence[Mapping[str, Any]]) -> bytes:
    """A PNG: the clients' scores, the largest first, suspected ones in another colour. clients: `DistantClient`s as
    dicts."""
    from fedcore.evaluation.curves import curves_figure

    at = range(1, len(clients) + 1)
    score = [float(client["score"]) for client in clients]
    hit = [bool(client["suspected"]) for client in clients]
    curves = {
        label: (at, [s if own == wanted else np.nan for s, own in zip(score, hit, strict=True)])
        for label, wanted in (("suspected", True), ("apart", False))
    }
    return curves_figure(
        curves, "Clients that are apart from the others", "clients, most distant first", "distance / limit", log_y=True
    )
