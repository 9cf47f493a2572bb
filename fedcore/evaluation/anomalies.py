"""The rows of a population that a run finds least likely.

`personalise` gives every row its log density under the run's parameters (`rows_log_density`); here the smallest are
kept, with their clients. A list of people's rows is not private, so private runs make none. There, each client sees
only the densities of the client's own rows, in the output of `personalise`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from fedcore.errors import ConfigError
from fedcore.population.blocks import RowsBlock
from fedcore.population.store import Population
from fedcore.rounds.clients import redacted
from fedcore.runs.store import Run
from fedcore.training.personalise import check_fits, remembering_leaves, trained

DENSITY = "rows_log_density"


@dataclass(frozen=True, slots=True)
class UnusualRow:
    """client: its id; row: number among the client's rows, from 0; log_density: nats, in the units of the data; -inf
    for a row so far away that its square overflows."""

    client: str
    row: int
    log_density: float


@dataclass(frozen=True, slots=True)
class Unusual:
    """rows: the least likely first. left_out: how many rows have no density, because the model asks for entries that
    they lack."""

    rows: list[UnusualRow]
    left_out: int


def unusual_rows(run_path: str | Path, population_path: str | Path, count: int = 20) -> Unusual:
    """The `count` rows of least density; ties go to rows that are stored first.

    Reads the population block by block and keeps as many rows as are asked for. Raises ConfigError for a private run
    and for a method that gives rows no density, WrongKind if run and population do not fit, RunError before a round.
    """
    run, population = Run.open(run_path), Population.open(population_path)
    check_fits(run, population)
    method, state = trained(run)
    if method.private:
        raise ConfigError(
            f"run {run.id!r} is private, and a list of unusual rows is not.",
            "`fedcore predict` writes the densities of each client's own rows, for that client.",
        )
    least: list[tuple[float, int, int, int]] = []  # a heap of (- density, - client, - row, block)
    left_out = 0
    for index, leaf, memory in remembering_leaves(run, population, method):
        with redacted(method, index), np.errstate(over="ignore", invalid="ignore"):
            outputs = method.personalise(state, leaf, memory) if population.kind == "rows" else {}
        if DENSITY not in outputs:
            raise ConfigError(
                f"{method.name} with these settings gives single rows no density.",
                "Mixtures and models of incomplete rows in federated_em do.",
            )
        rows = cast(RowsBlock, leaf)
        densities = _compared(np.array(outputs[DENSITY]), rows)
        left_out += int(np.isnan(densities).sum())
        _keep_least(least, densities, rows, index, count)
    ids = {index: population.client_ids(index) for index in {entry[3] for entry in least}}
    firsts = np.concatenate([[0], np.cumsum([block.clients for block in population.blocks])])
    found = [
        UnusualRow(str(ids[index][-client - firsts[index]]), -row, -negative)
        for negative, client, row, index in sorted(least, reverse=True)
    ]
    return Unusual(found, left_out)


def _compared(densities: np.ndarray, leaf: RowsBlock) -> np.ndarray:
    """The densities, with -inf for rows of which every entry is there and some are too large to be squared."""
    unknown = np.flatnonzero(np.isnan(densities))
    if len(unknown):
        densities[unknown[np.isfinite(np.asarray(leaf.x[unknown])).all(axis=1)]] = -np.inf
    return densities


def _keep_least(
    least: list[tuple[float, int, int, int]], densities: np.ndarray, leaf: RowsBlock, index: int, count: int
) -> None:
    known = len(densities) - int(np.isnan(densities).sum())
    for at in np.argsort(densities, kind="stable")[: min(count, known)].tolist():
        client = int(np.searchsorted(leaf.ptr, at, "right")) - 1
        entry = (-float(densities[at]), -(leaf.first + client), -(at - int(leaf.ptr[client])), index)
        if len(least) < count:
            heapq.heappush(least, entry)
        elif entry > least[0]:
            heapq.heapreplace(least, entry)
        else:
            return
