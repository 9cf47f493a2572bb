"""Rounds from 10,000 to --clients clients (1,000,000 unless told; 10,000,000 need 19 GB of disk), through the whole
command `fedcore train` with Prefect, Dask and the store, on 1, 2 and 4 workers or on --workers.

    float, grid     a round of histograms' clustering, 10 centres in 1000 columns: float sums, not private; exact sums
                    on the grid, private; secure noise apart. Floor: SciPy in one process, all counts in memory
    em, ragged em   a round of EM: 5 diagonal components in 10 columns, 20 rows for each client, or 1 to 39. Floor:
                    `floors.mixture_in_tiles`

*cached*: decoded blocks stay in the workers, who are given enough memory; *store*: every block is read in every round.
round_s is of rounds when files are in the page cache and futures have their size; first_s is of the first pass of a
fresh process after the pages of the population were dropped, where the system lets us (`posix_fadvise`). CPU-seconds
are of all processes, from commit to commit. Cells that do not fit into memory are left out.

--least N: no smaller sizes; --only CASE ...: these cases, whose populations alone are made; --repeats 0: no floors.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

import numpy as np
import psutil
from threadpoolctl import threadpool_limits

from benchmarks import floors
from benchmarks.command import train
from benchmarks.measured import Measured, seconds
from benchmarks.populations import COMPONENTS, mixture_means, mixture_rows, reddit_like, with_rounds
from fedcore.population.store import Population
from fedcore.population.synthetic import settings_of, true_centres
from fedcore.privacy.mechanisms import SecureNoise
from fedcore.privacy.plan import PlannedRelease

CLIENTS, WORKERS = 1_000_000, (1, 2, 4)
SMALLEST = 10_000
WARM_UP = 4  # rounds that fill caches and size the futures
ROUNDS = {10_000: 100, 100_000: 30, 1_000_000: 10}  # of a long run, by clients; of more clients:
FEWEST_ROUNDS = 7
UNIT = 100_000  # clients that per-client costs of larger populations are compared with
HISTOGRAMS = {"overseed": 10}
MIXTURES = {
    **{"components": COMPONENTS, "covariance": "diag", "tol": 0.0},
    **{"start": "random", "restarts": 1, "pseudo_rows": 1.0},  # the start is not what is measured
}


class Case(NamedTuple):
    """population: counts, rows or ragged. settings: of the method. every: whether all numbers of workers are tried."""

    what: str
    method: str
    population: str
    settings: dict
    every: bool = True


CASES = (
    Case("float", "paper_histograms", "counts", HISTOGRAMS),
    Case("grid", "histograms", "counts", {"clusters": 10, "epsilon": 15.0, **HISTOGRAMS}),
    Case("em", "federated_em", "rows", {"algorithm": "em", **MIXTURES}),
    Case("ragged em", "federated_em", "ragged", {"algorithm": "em", **MIXTURES}, every=False),
)


def measure(options) -> dict:
    workers = (options.workers,) if isinstance(options.workers, int) else options.workers
    cases = [case for case in CASES if not options.only or case.what in options.only]
    wanted = {case.population for case in cases}
    made = {
        clients: populations(options.dir, clients, wanted)
        for clients in sizes(options.clients, options.least or SMALLEST)
    }
    known = {clients: dict(floors_of(made[clients], options.repeats)) if options.repeats else {} for clients in made}
    rows = []
    for case in cases:
        for number in workers if case.every else workers[-2:][:1]:
            for blocks in ("cached", "store"):
                cells = {}  # sizes follow each other, so that they meet the same minutes
                for clients, of_size in made.items():
                    population = of_size[case.population]
                    cache = cache_of(population, number) if blocks == "cached" else 0
                    if cache is not None:
                        cells[clients] = _row(case, population, number, cache, known[clients].get(case.what))
                unit = cells.get(UNIT, {}).get("cpu_us_per_client")
                for clients, row in cells.items():
                    spent = row.get("cpu_us_per_client")
                    compared = {"cpu_of_100000": spent / unit} if spent and unit else {}
                    named = {"what": case.what, "clients": clients, "workers": number, "blocks": blocks}
                    rows.append({**named, **row, **compared})
    return {"benchmark": "scale", "rows": rows}


def sizes(most: int, least: int) -> list[int]:
    """`least` times powers of ten, and `most`."""
    found = []
    while not found or found[-1] * 10 <= most:
        found.append(found[-1] * 10 if found else min(least, most))
    return found if found[-1] == most else [*found, most]


MAKERS = {"counts": reddit_like, "rows": mixture_rows, "ragged": partial(mixture_rows, ragged=True)}


def populations(folder: Path, clients: int, wanted: Collection[str]) -> dict[str, Population]:
    return {name: make(folder, clients) for name, make in MAKERS.items() if name in wanted}


# --- floors ---------------------------------------------------------------------------------------------------------


class Floor(NamedTuple):
    """Seconds of a round that passed, and of the CPU."""

    wall: Measured
    cpu: Measured


def floors_of(made: dict[str, Population], repeats: int) -> Iterator[tuple[str, Floor]]:
    """By the name of a case; those whose arrays would take more than half of what is free are left out."""
    counts = made.get("counts")
    with threadpool_limits(1):
        if counts is not None and _fits(5 * _decoded(counts)):
            matrix = floors.counts_in_memory(counts)
            settings = settings_of("reddit-like", {"clients": counts.n_clients})
            centres = true_centres(settings, 1)
            kinds = (floors.clustering, floors.clustering_by_bincount)
            yield "float", min((_timed(kind(matrix, centres), repeats) for kind in kinds), key=lambda floor: floor.wall)
            yield "grid", _timed(floors.grid_sums(matrix, centres, centres.mean(axis=0)), repeats)
            del matrix
        for what, name in (("em", "rows"), ("ragged em", "ragged")):
            if name not in made or not _fits(3 * _decoded(made[name])):
                continue
            x = np.concatenate([made[name].read(index).x for index in range(len(made[name].blocks))]).astype(np.float64)
            means = mixture_means()
            theta = np.full(COMPONENTS, 1 / COMPONENTS), means, np.ones_like(means)
            found = _timed(floors.mixture_in_tiles(x, *theta), repeats)
            del x
            yield what, found


def _timed(function, repeats: int) -> Floor:
    """Both clocks around the same calls."""
    walls = []

    def timed():
        began = perf_counter()
        function()
        walls.append(perf_counter() - began)

    cpu = seconds(timed, repeats, process_time)
    return Floor(Measured(walls[1:]), cpu)


def _decoded(population: Population) -> int:
    return sum(population.decoded_bytes(index) for index in range(len(population.blocks)))


def _fits(needed: float) -> bool:
    return needed < psutil.virtual_memory().available / 2


# --- ours -----------------------------------------------------------------------------------------------------------


def cache_of(population: Population, workers: int) -> int | None:
    """MiB of each worker for all its blocks, with a quarter to spare; None if the machine has not the memory."""
    needed = 1.25 * _decoded(population)
    return int(needed / workers / 2**20) + 64 if _fits(needed) else None


def drop_pages(population: Population) -> bool:
    """Ask the system to forget the population's files, so that they are read from the disk; whether it can be asked."""
    if not hasattr(os, "posix_fadvise"):
        return False
    for file in Path(population.path).rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)  # pages that are not on the disk yet cannot be dropped
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
    return True


def noise(plan: Sequence[Mapping]) -> float:
    """CPU-seconds of the secure noise of a plan's last round."""
    last = [
        PlannedRelease(
            item["name"],
            item["round"],
            tuple(item["shape"]),
            item["sensitivity"],
            item["noise_multiplier"],
            item["argument"],
            item["composition"],
        )
        for item in plan
        if item["round"] == plan[-1]["round"]
    ]
    if not last:
        return 0.0
    source, values = SecureNoise(), [np.zeros(one.shape, np.int64) for one in last]
    return seconds(lambda: list(map(source.draw, last, [""] * len(last), values)), 3, process_time)


def _row(case: Case, population: Population, workers: int, cache: int, floor: Floor | None) -> dict:
    dropped = drop_pages(population)
    rounds = next((ROUNDS[size] for size in sorted(ROUNDS) if size >= population.n_clients), FEWEST_ROUNDS)
    run = train(
        case.method, population.path, with_rounds(case.settings, rounds), workers=workers, cache=cache, watched=True
    )
    # Float sums of few clients soon stop moving, and the run ends: its first rounds do not count either.
    timed = run.metrics[min(max(WARM_UP, len(run.metrics) - rounds + WARM_UP), len(run.metrics) - 1) :]
    releases = Measured(row.get("seconds_release", 0.0) for row in timed)
    wall = Measured(row["seconds_round"] - row.get("seconds_release", 0.0) for row in timed)
    cpu = run.cpu_per_round(len(run.metrics) - len(timed)) - noise(run.plan)
    spent = {} if np.isnan(cpu) else {"cpu_us_per_client": cpu / population.n_clients * 1e6}
    found = {
        "cache_MiB": cache,
        "round_s": wall,
        "clients_s": Measured(row["seconds_clients"] for row in timed),
        "first_s": run.metrics[0]["seconds_clients"],
        "dropped": dropped,
        **spent,
        "us_per_client": wall.map(lambda value: value / population.n_clients * 1e6),
        "release_s": releases,
        **run.peaks,
    }
    if floor is None:
        return found
    return found | {
        "floor_s": floor.wall,
        "of_floor": wall.over(float(floor.wall)),
        **({"of_floor_cpu": cpu / floor.cpu} if spent else {}),
    }
