"""Scoring a run and the baselines on held-out data, block by block, on any backend.

A run's report may show scores only of data that their owner declared public. Scores of other populations are written
only into a separate local file, which is marked as not private.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.errors import ConfigError, PopulationError, PrivacyError
from fedcore.evaluation.memories import Remembered, remembered_of
from fedcore.evaluation.report import report_if_possible
from fedcore.population.blocks import leaves, scored_from
from fedcore.population.store import Population
from fedcore.rounds.clients import Source, expect_block, population_of, read_block, redacted
from fedcore.rounds.engine import Backend, InProcessBackend
from fedcore.rounds.method import AnyMethod, State
from fedcore.rounds.statistics import Statistics, merge, values
from fedcore.runs.store import Run
from fedcore.storage.arrays import writing
from fedcore.storage.files import Place, json_bytes, write_json, write_whole
from fedcore.training.personalise import check_fits, trained
from fedcore.training.spec import vocabulary_of


def check_scored(method: AnyMethod) -> None:
    """Raises ConfigError unless runs of the method can be scored."""
    if not method.can_be_scored:
        raise ConfigError(f"runs of method {method.name!r} cannot be scored on held-out data.")


def check_public(population: Population) -> None:
    """Raises PrivacyError unless the owner declared the population public for evaluation."""
    if not population.manifest.public_for_evaluation:
        raise PrivacyError(
            f"population {population.path.name!r} is not declared public for evaluation, so its scores may not be "
            "shown.",
            "Declare it at ingest with --public-for-evaluation REASON, or write the scores to a local file with "
            "--not-private FILE.",
        )


@dataclass(frozen=True)
class Scoring:
    """The scores of one block, leaf by leaf; memories are read for one block at a time."""

    method: AnyMethod
    source: Source
    remembered: Remembered | None
    least: int

    def __call__(self, state: State, index: int) -> Statistics | None:
        population = population_of(self.source)
        block = scored_from(read_block(population, index, heldout=True), self.least)
        known = None if self.remembered is None else self.remembered.of(block.first, block.clients)
        total = None
        for leaf in leaves(block, population.clients_per_leaf):
            mine = None if known is None else known.part(leaf.first - block.first, leaf.clients)
            with redacted(self.method, index):
                total = merge(total, self.method.score_block(state, leaf, mine))
        return total

    def expect(self, state: State, index: int, spare: bool) -> None:
        """This block comes next (`fedcore.rounds.clients.answer_all`)."""
        expect_block(population_of(self.source), index, True, spare)


def evaluate_run(
    run_path: str | Place,
    population: Population,
    backend: Backend | None = None,
    *,
    keep: bool = False,
    settings: Mapping[str, Any] | None = None,
    least: int = 0,
) -> dict:
    """The table of scores: {"run", "population", "title", "rows", ...}, rows one dict for each method.

    keep: write it into the run's folder and its report; only for public populations (`check_public`). If the report
    cannot be written, the table has a "warning".
    settings: other values of settings that may change after a run (`Method.free_settings`). The table then has them as
        "settings", and is not kept, because the run's report is about the run as it was made.
    least: score only clients with at least this many tokens (rows, for a population of rows) in both parts, as if the
        others had no held-out data; 0: all clients with held-out data

    Raises WrongKind if run and population do not fit, PopulationError if nothing is held out, RunError if memories of
    the run's clients are lost, ConfigError for other settings.
    """
    run = Run.open(run_path)
    check_fits(run, population)
    if not population.has_heldout:
        raise PopulationError(f"population {population.path.name!r} has no held-out part.", "Ingest it with one.")
    method, state = trained(run, settings)
    check_scored(method)  # before any work
    remembered = remembered_of(run, population) if method.scores_use_memories else None
    function = Scoring(method, Source.of(population), remembered, least)
    blocks = range(len(population.blocks))
    statistics = (backend or InProcessBackend()).map_blocks(function, state, blocks, population.sizes())
    with np.errstate(over="ignore", invalid="ignore"):  # scores that are not finite are shown, or refused, as such
        table = method.score_table(values(statistics or {})).to_json(population.path.name)
    tokens = "tokens" if population.kind == "counts" else "rows"
    long = f" with at least {least} {tokens} in both parts" if least else ""
    title = f"{table.pop('title')}{long}; run {run.id}{_in_words(settings or {})}"
    result = {
        "run": run.id,
        "population": population.path.name,
        "version": population.version,
        "public": population.manifest.public_reason,
        "title": title,
        **({"settings": dict(settings)} if settings else {}),
        **({f"min_{tokens}": least} if least else {}),
        **table,
    }
    if keep and not settings:
        keep_scores(run, population, result)
        if warning := report_if_possible(run, vocabulary_of(run)):
            result["warning"] = warning
    return result


def _in_words(settings: Mapping[str, Any]) -> str:
    return "".join(f"{',' if place else ' with'} {name} = {settings[name]}" for place, name in enumerate(settings))


def keep_scores(run: Run, population: Population, result: dict) -> None:
    """Write the table of scores into the run's folder, for its report. Raises PrivacyError unless the population is
    public, PopulationError for scores that are not finite, RunError if it cannot be written.
    """
    check_public(population)
    if _finite(result["rows"]) != result["rows"]:
        raise PopulationError(
            f"scores on population {population.path.name!r} are not finite: held-out rows are too large for the model.",
            "Correct them, or clip their columns with --bounds when they are ingested.",
        )
    with writing("evaluation.json"):
        write_json(run.path / "evaluation.json", result)


def _finite(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows, with None in place of numbers that are not finite."""

    def number(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return [{name: number(value) for name, value in row.items()} for row in rows]


def write_not_private(result: dict, file: Path) -> None:
    """Scores of a population that is not public, in a file that says so; null for those that are not finite. Raises
    PopulationError if it cannot be written.
    """
    result = {**result, "rows": _finite(result["rows"])}
    warning = "NOT PRIVATE: computed from held-out data of people without noise. Do not publish or send."
    try:
        write_whole(Path(file), json_bytes({"privacy": "none", "warning": warning, **result}), private=True)
    except OSError as error:
        raise PopulationError(
            f"cannot write {str(file)!r}: {error.strerror}.", "Name a file in a folder that exists."
        ) from error
