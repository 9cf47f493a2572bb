"""What `fedcore plan` promises of a run of every method, over what the run then took: 1 is a promise that was kept.

Every case is planned and run in turn, --repeats times, with `--local` and --clients clients, of methods whose clients
hold much a hundredth or a thousandth of them. *seconds*: of all rounds. *work*: the promised seconds of a core over the
CPU-seconds from the first commit to the last, which other work does not change much; those of reading, of commits and
of memories are in the run alone. *memory*: the peak of the process. *passes*: more than 1 where a run ended early;
seconds and work are then those of the passes that were made.

--only CASE ...: these cases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import private_gmm
from benchmarks.command import Trained, plan, train
from benchmarks.measured import Measured
from benchmarks.populations import (
    COLUMNS,
    COMPONENTS,
    mixture_means,
    mixture_rows,
    reddit_like,
    reddit_like_documents,
    shared_dictionaries,
    similar_mixtures,
    still_cameras,
)
from fedcore.population.store import Population
from fedcore.population.synthetic import PUBLIC

CLIENTS = 40_000
CACHE = 512  # MiB


class Case(NamedTuple):
    """population: of (folder, clients). part: of the clients of the command line, of which it has one. workers: None
    for `--local`. start: writes what the run starts from, which is public, and returns the file."""

    what: str
    method: str
    population: Callable[[Path, int], Population]
    part: int
    settings: dict
    workers: int | None = None
    start: Callable[[Path], Path] | None = None


def near_means(folder: Path) -> Path:
    """Parameters beside those of `mixture_rows`."""
    file, means = folder / "near-means.npz", mixture_means()
    given = {"weights": np.full(COMPONENTS, 1 / COMPONENTS), "means": means + 0.5, "covariances": np.ones_like(means)}
    np.savez(file, **given, centre=np.zeros(COLUMNS), scale=np.full(COLUMNS, 3.0))
    return file


COUNTS = partial(Case, method="histograms", population=reddit_like, part=1)
MIXTURE = partial(Case, method="federated_em", population=mixture_rows, part=1)
ATOMS = partial(Case, method="dictionaries", population=shared_dictionaries, part=100)
SIMILAR = partial(Case, method="gradient_em", population=similar_mixtures, part=20)
DIAGONAL = {"components": COMPONENTS, "covariance": "diag"}
CASES = (
    COUNTS("histograms, float", method="paper_histograms", settings={"rounds": 40}),
    COUNTS("histograms, private", settings={"clusters": 10, "epsilon": 15.0, "rounds": 30}),
    COUNTS(
        "histograms, documents",
        population=reddit_like_documents,
        settings={"clusters": 10, "epsilon": 15.0, "rounds": 20, "weights": "local"},
    ),
    MIXTURE("federated_em, em", settings={"algorithm": "em", **DIAGONAL, "max_passes": 42}),
    MIXTURE("federated_em, fedem", settings={"algorithm": "fedem", **DIAGONAL, "rounds": 15}),
    MIXTURE("federated_em, vr-fedem", settings={"algorithm": "vr-fedem", **DIAGONAL, "rounds": 15}, part=2),
    MIXTURE(
        "federated_em, private",
        settings={"algorithm": "private", **DIAGONAL, "epsilon": 8.0, "rounds": 30},
        start=near_means,
    ),
    SIMILAR("gradient_em", settings={"rounds": 40, "components": 5}),
    SIMILAR(
        "gradient_em, paper",
        method="paper_gradient_em",
        settings={"rounds": 40, "components": 5, "preset": "paper"},
        part=50,
    ),
    ATOMS("dictionaries, statistics", settings={"atoms": 32, "global_atoms": 16, "rounds": 20}),
    ATOMS("dictionaries, private", settings={"private": True, "epsilon": 8.0, "rounds": 10}),
    ATOMS("perma", method="perma", settings={"atoms": 32, "global_atoms": 16, "rounds": 20}),
    Case("background", method="background", population=still_cameras, part=1000, settings={}),
    Case(
        "private_gmm",
        "private_gmm",
        private_gmm.population_of,
        10,
        {"epsilon": 1, "spare_releases": 0, **private_gmm.settings()},
    ),
    Case("private_mixture", "private_mixture", mixture_rows, 1, {"components": COMPONENTS, "epsilon": 8.0}),
    COUNTS("histograms, private, 2 workers", settings={"clusters": 10, "epsilon": 15.0, "rounds": 60}, workers=2),
    MIXTURE("federated_em, em, 2 workers", settings={"algorithm": "em", **DIAGONAL, "max_passes": 82}, workers=2),
    MIXTURE("federated_em, fedem, 2 workers", settings={"algorithm": "fedem", **DIAGONAL, "rounds": 30}, workers=2),
)


def measure(options) -> dict:
    rows = []
    for case in CASES:
        if options.only and case.what not in options.only:
            continue
        population = case.population(options.dir, max(20, options.clients // case.part))
        start = () if case.start is None else ("--start-from", str(case.start(options.dir)), "--public-start", PUBLIC)
        turns = [_turn(case, population, start) for _ in range(options.repeats)]
        rows.append(
            {
                "what": case.what,
                "clients": population.n_clients,
                **{name: Measured(turn[name] for turn in turns) for name in turns[0]},
            }
        )
    return {"benchmark": "plan", "rows": rows}


def _turn(case: Case, population: Population, start: Sequence[str]) -> dict[str, float]:
    asked, where = (case.method, population.path, case.settings), {"workers": case.workers, "cache": CACHE}
    promised = plan(*asked, **where, more=start)
    return beside(promised, train(*asked, **where, more=start, watched=True))


def beside(promised: dict, run: Trained) -> dict[str, float]:
    """Ratios promised / measured, and what was measured. work: of runs in one process, NaN where a commit was missed.

    Where the run made fewer passes than were promised, its last ones are missing from the promise too.
    """
    passes = len(run.metrics)
    missing = [row for row in promised["phases"] for _ in range(row["passes"])][passes:]
    seconds, cpu = sum(row["seconds_round"] for row in run.metrics), run.cpu_of_rounds()
    work = promised["seconds_of_work"] - sum(row["client_seconds"] for row in missing)
    found = {
        "seconds": (promised["seconds"] - sum(row["seconds_per_pass"] for row in missing)) / seconds,
        "memory": promised["bytes_of_flow"] / run.flow,
        "passes": promised["passes"] / passes,
        "pace": promised["pace"],
        "measured_s": seconds,
        "planning_s": promised["calibration"]["seconds"],
    }
    if run.worker:
        return found | {"worker_memory": promised["bytes_per_worker"] / run.worker}
    return found | ({} if np.isnan(cpu) else {"work": work / cpu, "measured_cpu_s": cpu})
