"""An experiment: a table that is made of many small trainings.

Every training with its scores is a *cell*. A finished cell is one JSON file in the experiment's folder, so an
experiment that was interrupted goes on with the next one. Cells are simulations: they charge no budget, and nothing
that they give out is private. So they read populations that are synthetic or declared public, and others only into a
file that says what it is.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedcore.errors import ConfigError, RunError
from fedcore.rounds.engine import Backend
from fedcore.storage.files import write_json, write_whole

NOT_PRIVATE = "privacy: none. Simulated runs without a budget, beside baselines that are not private."


class Options(BaseModel):
    """The options of an experiment, the same for the command line and the flow."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    quick: bool = Field(False, description="a smaller version of the same table, in some minutes")
    seeds: int | None = Field(None, ge=1, le=100, description="repetitions for the intervals; 3 by default")
    population: str | None = Field(None, description="a population instead of the experiment's own data")


@dataclass(frozen=True, slots=True)
class Cell:
    """One training with its scores. key: a file name, unique in the experiment. arguments: JSON for `compute`."""

    key: str
    title: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A table for people.

    rows: one dict for each line, the same keys in each, values text or numbers; notes: what a reader must know
    """

    title: str
    rows: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = field(default=())


@dataclass(frozen=True, slots=True)
class Place:
    """Where an experiment runs.

    folder: its own; backend: computes the clients' answers; cache_bytes: as in `fedcore.rounds.engine`
    """

    folder: Path
    backend: Backend
    cache_bytes: int


class Experiment(Protocol):
    """A table of a paper. All knowledge about it is here; `reproduce` only keeps cells and writes files."""

    name: str
    title: str

    def cells(self, options: Options, place: Place) -> Sequence[Cell]:
        """The cells to compute, cheap ones first. May make the experiment's own populations."""

    def compute(self, cell: Cell, options: Options, place: Place) -> dict[str, Any]:
        """The results of a cell as JSON."""

    def table(self, options: Options, results: Mapping[str, dict[str, Any]]) -> ResultTable:
        """The table from all cells' results, by key."""

    def figure(self, options: Options, results: Mapping[str, dict[str, Any]]) -> bytes:
        """The figure from all cells' results, a PNG."""


# --- running --------------------------------------------------------------------------------------------------------


def open_folder(experiment: Experiment, options: Options, folder: Path) -> None:
    """Make the folder, or check that it is of this experiment with these options. Raises ConfigError if it is not."""
    identity = {"experiment": experiment.name, "options": options.model_dump(mode="json")}
    file = folder / "experiment.json"
    if file.exists():
        if json.loads(file.read_text()) != identity:
            raise ConfigError(f"{str(folder)!r} holds an experiment with other options.", "Choose another --dir.")
        return
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{str(folder)!r} is not empty and holds no experiment.", "Choose another --dir.")
    (folder / "cells").mkdir(parents=True)
    write_json(file, identity)


def finished(folder: Path, cell: Cell) -> dict[str, Any] | None:
    """The stored results of a cell; None if it was not computed yet. Raises RunError if they are damaged."""
    file = folder / "cells" / f"{cell.key}.json"
    if not file.exists():
        return None
    try:
        stored = json.loads(file.read_text())
        if stored["arguments"] == json.loads(json.dumps(dict(cell.arguments))):
            return stored["results"]
    except (ValueError, KeyError, TypeError):
        pass
    raise RunError(f"{str(file)!r} is damaged, or belongs to another version of the experiment.", "Delete it.")


def compute(experiment: Experiment, cell: Cell, options: Options, place: Place) -> dict[str, Any]:
    """The results of a cell, computed unless they are stored; stored before they are returned."""
    results = finished(place.folder, cell)
    if results is None:
        try:
            results = experiment.compute(cell, options, place)
        finally:
            shutil.rmtree(place.folder / "runs" / cell.key, ignore_errors=True)
        write_json(place.folder / "cells" / f"{cell.key}.json", {"arguments": dict(cell.arguments), "results": results})
    return results


def conclude(
    experiment: Experiment, options: Options, results: Mapping[str, dict[str, Any]], folder: Path
) -> ResultTable:
    """The table; also written as table.json, table.md and figure.png."""
    table = experiment.table(options, results)
    write_json(
        folder / "table.json",
        {
            "privacy": "none",
            "title": table.title,
            "rows": [dict(r) for r in table.rows],
            "notes": [NOT_PRIVATE, *table.notes],
        },
    )
    write_whole(folder / "table.md", markdown(table).encode())
    write_whole(folder / "figure.png", experiment.figure(options, results))
    return table


def reproduce(
    experiment: Experiment, options: Options, place: Place, progress: Callable[[int, int, str], None] | None = None
) -> ResultTable:
    """The whole experiment in this process. progress: called with (cells done, cells, title of the next one)."""
    open_folder(experiment, options, place.folder)
    cells = experiment.cells(options, place)
    results: dict[str, dict[str, Any]] = {}
    for number, cell in enumerate(cells):
        if progress is not None:
            progress(number, len(cells), cell.title)
        results[cell.key] = compute(experiment, cell, options, place)
    if progress is not None:
        progress(len(cells), len(cells), "table")
    return conclude(experiment, options, results, place.folder)


# --- tables ---------------------------------------------------------------------------------------------------------


def markdown(table: ResultTable) -> str:
    """The table as Markdown with its notes below."""
    names = list(table.rows[0]) if table.rows else []
    lines = [f"# {table.title}", "", "| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(str(row[name]) for name in names) + " |" for row in table.rows]
    return "\n".join([*lines, "", *(f"- {note}" for note in [NOT_PRIVATE, *table.notes]), ""])


def mean_and_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and half width of the 95 % interval of Student's t over repetitions; None for a single one."""
    from scipy.stats import t

    if len(values) < 2:
        return float(np.mean(values)), None
    return float(np.mean(values)), float(t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5)


def shown(values: Sequence[float]) -> str:
    """Mean and half width as text: 0.931 ±.004."""
    if not len(values):
        return ""
    mean, half = mean_and_interval(values)
    return f"{mean:.3f}" if half is None else f"{mean:.3f} ±{half:.3f}".replace("±0.", "±.")
