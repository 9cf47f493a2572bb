"""What `fedcore reproduce` does. The command finds this module as the entry point `reproduce` of `fedcore.commands`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from fedcore.papers import EXPERIMENTS, experiment
from fedcore.papers.table import Experiment, Options, Place, ResultTable
from fedcore.papers.table import reproduce as run

from fedcore.rounds.engine import InProcessBackend


def names() -> list[dict[str, str]]:
    """Every experiment, with what it rebuilds."""
    return [{"name": name, "what": experiment(name).title} for name in EXPERIMENTS]


def reproduce(
    name: str, options: dict, folder: Path, compute: dict, progress: Callable[[int, int, str], None] | None
) -> ResultTable:
    """A table of a paper.

    options: of `Options`; compute: workers, dask and cache_bytes, as of a training; progress: called with (cells done,
    cells, title) of an experiment in this process; None: it is a Prefect flow. Raises ConfigError for an experiment
    that there is not.
    """
    found, chosen = experiment(name), Options(**options)
    if progress is not None:
        return reproduce_here(found, chosen, folder, compute, progress)
    made: ResultTable = import_module("fedcore.papers.flow").reproduce_flow(
        name=name, options=chosen, folder=str(folder), compute=compute
    )
    return made


def reproduce_here(
    found: Experiment, options: Options, folder: Path, compute: dict, progress: Callable[[int, int, str], None]
) -> ResultTable:
    """An experiment without Prefect. compute, progress: as of `reproduce`"""
    if compute["workers"] is None and compute["dask"] is None:
        return run(found, options, Place(folder, InProcessBackend(), compute["cache_bytes"]), progress)
    cluster = import_module("fedcore.tasks.dask_backend")
    with cluster.dask_backend(compute["workers"], compute["dask"]) as backend:
        return run(found, options, Place(folder, backend, compute["cache_bytes"]), progress)
