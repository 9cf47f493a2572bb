"""The table runner: an experiment is declared, and everything else is done here.

An experiment names its conditions, how one of them is measured with one seed, and the rows and columns that show the
measurements beside published figures. The runner loops over conditions and seeds, stores each result as one JSON file
(a *cell*), so that an interrupted experiment continues with the next one, aggregates over seeds, and writes the table
as JSON and Markdown with its figure.

Cells are simulations: they charge no budget, and nothing that they write is private. So they read populations that are
synthetic or declared public, and others only into a file that states what it is.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fedcore.papers.data import Place, needed_data
from pydantic import BaseModel, ConfigDict, Field

from fedcore.errors import ConfigError, RunError
from fedcore.storage.files import write_json, write_whole

NOT_PRIVATE = "privacy: none. Simulated runs without a budget, beside baselines that are not private."


class Options(BaseModel):
    """The options of an experiment, the same for the command line and the flow."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    quick: bool = Field(False, description="a smaller version of the same table, in some minutes")
    seeds: int | None = Field(None, ge=1, le=100, description="repetitions for the intervals; 3 by default")
    population: str | None = Field(None, description="a population instead of the experiment's own data")


# --- declarations ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Condition:
    """What is measured, which as a rule is a line of the table.

    settings: JSON for `measure`. labels: first columns of its line. texts: values of columns that differ from the
    declared ones, such as published figures. once: the condition repeats by itself and takes no seed.
    """

    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, Any] = field(default_factory=dict)
    once: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """One condition with one seed, or with several.

    key: a file name, unique in the experiment. arguments: its settings and seeds. seeds: None: it takes none.
    """

    key: str
    title: str
    arguments: Mapping[str, Any]
    seeds: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement to make: a cell, one of its seeds (0 if it takes none), and where."""

    cell: Cell
    seed: int
    options: Options
    place: Place

    @property
    def key(self) -> str:
        return self.cell.key

    @property
    def quick(self) -> bool:
        return self.options.quick

    def __getitem__(self, name: str) -> Any:
        """A setting."""
        return self.cell.arguments[name]


@dataclass(frozen=True, slots=True)
class Seeds:
    """Number of repetitions without --seeds, and the number of the first one.

    quick: None: the same as whole. together: seeds of a cell, where one alone takes little time.
    """

    whole: int = 1
    quick: int | None = None
    first: int = 1
    together: int = 1

    def of(self, options: Options) -> range:
        default = self.quick if options.quick and self.quick is not None else self.whole
        return range(self.first, self.first + (options.seeds or default))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. labels: its first columns. of: the condition of its other columns; None: they are empty.
    texts: values of columns that differ from the declared ones."""

    labels: Mapping[str, Any]
    of: str | None = None
    texts: Mapping[str, Any] = field(default_factory=dict)


Quantity = str | Callable[[dict[str, Any]], Any]  # a key of a result, or a function of a result


@dataclass(frozen=True, slots=True)
class Found:
    """Results by condition: one for each seed, or a single one of a condition that takes no seed."""

    options: Options
    seeds: range
    conditions: Mapping[str, Condition]
    by_condition: Mapping[str, list[dict[str, Any]]]

    def __contains__(self, condition: str) -> bool:
        return condition in self.by_condition

    def __getitem__(self, condition: str) -> list[dict[str, Any]]:
        return self.by_condition[condition]

    def one(self, condition: str) -> dict[str, Any]:
        """The result with the first seed, or of a condition that takes none."""
        return self.by_condition[condition][0]

    def get(self, condition: str) -> dict[str, Any] | None:
        """`one`; None if it was not measured."""
        return self.one(condition) if condition in self else None

    def values(self, condition: str, of: Quantity) -> list[Any]:
        """The quantity at each seed."""
        results = self.by_condition.get(condition, ())
        return [one[of] if isinstance(of, str) else of(one) for one in results]

    def mean(self, condition: str, of: Quantity) -> float:
        return float(np.mean(self.values(condition, of)))

    def median(self, condition: str, of: Quantity) -> float:
        return float(np.median(self.values(condition, of)))

    def known_median(self, condition: str, of: Quantity) -> float | None:
        """The median; None if a result has no number, or if there is no result."""
        values = self.values(condition, of)
        return None if not values or None in values else float(np.median(values))


Column = Callable[[Found, Row], Any]


def line_for_each(found: Found) -> Iterator[Row]:
    """A line for each condition that has labels."""
    for key, one in found.conditions.items():
        if one.labels:
            yield Row(one.labels, key, one.texts)


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A table for people.

    rows: one dict for each line, the same keys in each, values text or numbers; notes: what a reader must know
    """

    title: str
    rows: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = field(default=())


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table of a paper.

    conditions: by the beginning of their cells' keys, cheap ones first. measure: the results of a trial as JSON. rows
    and columns: the table; columns are texts of a row's condition. notes: how it was measured. checks: what is asked
    beside what was measured. heading: after the title. needs: data files, without which it is refused. check: further
    reasons to refuse, raises ConfigError. population: whether --population is accepted.
    """

    name: str
    title: str
    conditions: Callable[[Options], Mapping[str, Condition]]
    measure: Callable[[Trial], dict[str, Any]]
    rows: Callable[[Found], Iterable[Row]] = line_for_each
    columns: Callable[[Options], Mapping[str, Column]] = lambda options: {}
    figure: Callable[[Found], bytes]
    notes: Callable[[Found], Iterable[str]] = lambda found: ()
    checks: Callable[[Found], Iterable[str]] = lambda found: ()
    heading: Callable[[Found], str] = lambda found: ""
    seeds: Seeds = Seeds()
    needs: Sequence[tuple[str, ...]] = ()
    check: Callable[[Options], object] = lambda options: None
    population: bool = False

    def cells(self, options: Options) -> list[Cell]:
        """Every condition with every seed. Raises ConfigError for a population or data that the experiment lacks."""
        if options.population is not None and not self.population:
            raise ConfigError("this experiment makes its own populations.", "Leave the population out.")
        for file in self.needs:
            needed_data(*file)
        self.check(options)
        seeds, step = self.seeds.of(options), self.seeds.together
        parts = [tuple(seeds[at : at + step]) for at in range(0, len(seeds), step)]
        conditions = self.conditions(options).items()
        cells = [
            Cell(
                f"{key}-{part[0]}",
                f"{one.title}, seed {part[0]}" + (f" to {part[-1]}" if len(part) > 1 else ""),
                {**one.settings, **({"seed": part[0]} if step == 1 else {"seeds": list(part)})},
                part,
            )
            for part in parts
            for key, one in conditions
            if not one.once
        ]
        return cells + [Cell(key, one.title, one.settings) for key, one in conditions if one.once]

    def results(self, cell: Cell, options: Options, place: Place) -> dict[str, Any]:
        """The results of a cell; of one with several seeds {"each": in their order}."""
        found = [self.measure(Trial(cell, seed, options, place)) for seed in cell.seeds or (0,)]
        return {"each": found} if "seeds" in cell.arguments and cell.seeds else found[0]

    def found(self, options: Options, results: Mapping[str, dict[str, Any]]) -> Found:
        """Results by cell as results by condition; of conditions without all of their cells there are none."""
        seeds, conditions, step = self.seeds.of(options), self.conditions(options), self.seeds.together
        by_condition: dict[str, list[dict[str, Any]]] = {}
        for key, one in conditions.items():
            keys = [key] if one.once else [f"{key}-{seed}" for seed in seeds[::step]]
            if all(each in results for each in keys):
                parts = [results[each] for each in keys]
                by_condition[key] = parts if one.once or step == 1 else [one for part in parts for one in part["each"]]
        return Found(options, seeds, conditions, by_condition)

    def table(self, found: Found) -> ResultTable:
        """The table of these results. Raises ValueError for a text of a column that there is not."""
        columns, rows = self.columns(found.options), []
        for row in self.rows(found):
            if unknown := row.texts.keys() - columns.keys():
                raise ValueError(f"{self.name} has texts of no column: {', '.join(sorted(unknown))}")
            measured = {} if row.of is None else {k: of(found, row) for k, of in columns.items() if k not in row.texts}
            rows.append({**row.labels, **dict.fromkeys(columns, ""), **measured, **row.texts})
        return ResultTable(self.title + self.heading(found), rows, [*self.notes(found), *self.checks(found)])


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
            results = experiment.results(cell, options, place)
        finally:
            shutil.rmtree(place.folder / "runs" / cell.key, ignore_errors=True)
        write_json(place.folder / "cells" / f"{cell.key}.json", {"arguments": dict(cell.arguments), "results": results})
    return results


def conclude(
    experiment: Experiment, options: Options, results: Mapping[str, dict[str, Any]], folder: Path
) -> ResultTable:
    """The table; also written as table.json, table.md and figure.png."""
    found = experiment.found(options, results)
    table = experiment.table(found)
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
    write_whole(folder / "figure.png", experiment.figure(found))
    return table


def reproduce(
    experiment: Experiment, options: Options, place: Place, progress: Callable[[int, int, str], None] | None = None
) -> ResultTable:
    """Run the whole experiment in this process. progress: called with (cells done, cells, title of the next one)."""
    open_folder(experiment, options, place.folder)
    cells = experiment.cells(options)
    results: dict[str, dict[str, Any]] = {}
    for number, cell in enumerate(cells):
        if progress is not None:
            progress(number, len(cells), cell.title)
        results[cell.key] = compute(experiment, cell, options, place)
    if progress is not None:
        progress(len(cells), len(cells), "table")
    return conclude(experiment, options, results, place.folder)


def markdown(table: ResultTable) -> str:
    """The table as Markdown with its notes below."""
    names = list(table.rows[0]) if table.rows else []
    lines = [f"# {table.title}", "", "| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(str(row[name]) for name in names) + " |" for row in table.rows]
    return "\n".join([*lines, "", *(f"- {note}" for note in [NOT_PRIVATE, *table.notes]), ""])


# --- columns: a row's condition over its seeds, as text ---------------------------------------------------------------


def mean(of: Quantity, form: str = ".3f", at: str = "{}") -> Column:
    """Mean over seeds. at: the condition, where {} is the row's."""
    return lambda found, row: format(found.mean(at.format(row.of), of), form)


def median(of: Quantity, form: str = ".1e", none: str = "never") -> Column:
    """Median over seeds. none: the text if a seed has no number."""
    return lambda found, row: brief(found.known_median(str(row.of), of), form, none)


def mean_sd(of: Quantity, places: int = 2, at: str = "{}") -> Column:
    """Mean and standard deviation over seeds."""
    return lambda found, row: with_sd(found.values(at.format(row.of), of), places)


def given(found: Found, row: Row) -> str:
    """A column whose texts are the rows' own, such as published figures."""
    return ""


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
    middle, half = mean_and_interval(values)
    return f"{middle:.3f}" if half is None else f"{middle:.3f} ±{half:.3f}".replace("±0.", "±.")


def with_sd(values: Sequence[float], places: int = 2) -> str:
    """Mean and standard deviation as text: 1.13 (.47)."""
    middle = f"{np.mean(values):.{places}f}"
    return middle if len(values) < 2 else f"{middle} ({np.std(values, ddof=1):.{places}f})".replace("(0.", "(.")


def brief(value: float | None, form: str = ".1e", never: str = "never") -> str:
    return never if value is None else format(value, form)


def verdict(met: bool) -> str:
    return "met" if met else "NOT MET"
