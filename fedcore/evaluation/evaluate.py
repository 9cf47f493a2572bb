"""Scoring a run on held-out data, block by block, on any backend; the baselines stand beside it.

What a run's report shows may come from data that their owner declared public, and from nothing else: a population that
is not public is scored only into a separate local file that says so.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path

from fedcore.errors import ConfigError, PopulationError, PrivacyError
from fedcore.evaluation.memories import Remembered, remembered_of
from fedcore.evaluation.report import write_report
from fedcore.population.blocks import leaves
from fedcore.population.store import Population
from fedcore.rounds.engine import Backend, InProcessBackend
from fedcore.rounds.statistics import Statistics, merge, values
from fedcore.runs.store import Run
from fedcore.storage.files import Place, write_json
from fedcore.training.personalise import check_fits, trained
from fedcore.training.session import vocabulary_of

# Modules with evaluate_block(config, state, leaf) and table(config, values), whose result has to_json(where). One that
# says READS_MEMORIES has evaluate_block(config, state, leaf, kept) instead, kept: `memories.Kept` of the leaf, or None.
SCORES = {
    "histograms": "fedcore.evaluation.histograms",
    "federated_em": "fedcore.evaluation.federated_em",
    "gradient_em": "fedcore.evaluation.gradient_em",
    "dictionaries": "fedcore.evaluation.dictionaries",
    "private_gmm": "fedcore.evaluation.private_gmm",
}


def scores_of(method: str):
    """The module that scores runs of this method. Raises ConfigError if there is none."""
    if method not in SCORES:
        raise ConfigError(
            f"runs of method {method!r} cannot be scored on held-out data.", f"Methods that can: {', '.join(SCORES)}."
        )
    return import_module(SCORES[method])


def check_public(population: Population) -> None:
    """Raises PrivacyError unless the owner declared the population public for evaluation."""
    if not population.manifest.public_for_evaluation:
        raise PrivacyError(
            f"population {population.path.name!r} is not declared public for evaluation, so its scores may not be "
            "shown.",
            "Declare it at ingest with --public-for-evaluation REASON, or keep the scores in a file of your own with "
            "--not-private FILE.",
        )


def score_block(
    method: str, config, path: str, version: int, remembered: Remembered | None, state, index: int
) -> Statistics:
    """The scores of one block, leaf by leaf; memories are read for one block at a time."""
    population = Population.open(path, version=version)
    scores = scores_of(method)
    block = population.read(index, heldout=True)
    kept = None if remembered is None else remembered.of(block.first, block.clients)
    total = None
    for leaf in leaves(block, population.clients_per_leaf):
        if getattr(scores, "READS_MEMORIES", False):
            mine = None if kept is None else kept.part(leaf.first - block.first, leaf.clients)
            statistics = scores.evaluate_block(config, state, leaf, mine)
        else:
            statistics = scores.evaluate_block(config, state, leaf)
        total = merge(total, statistics)
    return total


def evaluate_run(
    run_path: str | Place, population: Population, backend: Backend | None = None, *, keep: bool = False
) -> dict:
    """The table of scores: {"run", "population", "title", "rows", ...}, rows one dict for each method.

    keep: write it into the run's folder and its report; only for public populations (`check_public`).
    Raises WrongKind if run and population do not fit, PopulationError if nothing is held out, RunError if memories of
    the run's clients are lost.
    """
    run = Run.open(run_path)
    check_fits(run, population)
    if not population.has_heldout:
        raise PopulationError(f"population {population.path.name!r} has no held-out part.", "Ingest it with one.")
    method, state = trained(run)
    scores = scores_of(method.name)  # before anybody works
    remembered = remembered_of(run, population) if getattr(scores, "READS_MEMORIES", False) else None
    function = partial(score_block, method.name, method.config, population.location, population.version, remembered)
    blocks = range(len(population.blocks))
    statistics = (backend or InProcessBackend()).map_blocks(function, state, blocks, population.sizes())
    table = scores.table(method.config, values(statistics)).to_json(population.path.name)
    title = f"{table.pop('title')}; run {run.id}"
    result = {
        "run": run.id,
        "population": population.path.name,
        "version": population.version,
        "public": population.manifest.public_reason,
        "title": title,
        **table,
    }
    if keep:
        check_public(population)
        write_json(run.path / "evaluation.json", result)
        write_report(run, vocabulary_of(run))
    return result


def write_not_private(result: dict, file: Path) -> None:
    """Scores of a population that is not public, in a file that says so. Raises PopulationError if it cannot be
    written.
    """
    warning = "NOT PRIVATE: computed from held-out data of people without noise. Do not publish or send."
    try:
        write_json(Path(file), {"privacy": "none", "warning": warning, **result})
    except OSError as error:
        raise PopulationError(
            f"cannot write {str(file)!r}: {error.strerror}.", "Name a file in a folder that exists."
        ) from error
