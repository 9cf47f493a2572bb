"""Seconds of a histogram round through the whole flow (Prefect, Dask, Zarr), against SciPy in memory.

Each of the two kinds of sum (float, not private; exact on the grid, private) is held against its own floor, in the
same run; the flow once with the cache of decoded blocks and once reading every block from the store in every round.
Secure noise is not part of the round's ratio: see the column `release`. Before them the clients' part alone: all blocks
answered in this process, in CPU-seconds and in turns with its floor, which other work on the machine changes less.
"""

import tempfile
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from fedcore.papers.histograms import PaperHistograms, PaperHistogramsConfig
from fedcore.papers.histograms.clients import AssignMessage
from fedcore.papers.histograms.config import Algorithm2
from threadpoolctl import threadpool_limits

from benchmarks import floors, machine
from benchmarks.measured import Measured, in_turns, seconds
from benchmarks.populations import reddit_like
from fedcore.methods.histograms.config import HistogramsConfig
from fedcore.methods.histograms.method import Histograms
from fedcore.methods.histograms.simplex import assignment_logs
from fedcore.methods.histograms.state import ReleaseMessage
from fedcore.population.synthetic import settings_of, true_centres
from fedcore.rounds.clients import Source, answer_block
from fedcore.runs.store import Run

CACHE = 2 * 2**30
ROUNDS = 14
FLOOR_REPEATS = 7
WARM_UP = 3  # rounds that fill caches and size the futures


def measure(options) -> dict:
    population = reddit_like(options.dir, options.clients)
    counts = floors.counts_in_memory(population)
    centres = true_centres(settings_of("reddit-like", {"clients": options.clients}), 1)
    with threadpool_limits(1):
        float_floor = min(
            seconds(kind(counts, centres), FLOOR_REPEATS) for kind in (floors.clustering, floors.clustering_by_bincount)
        )
        grid_floor = seconds(floors.grid_sums(counts, centres, centres.mean(axis=0)), FLOOR_REPEATS)
        rows = clients_alone(population, counts, centres, options.repeats)
    # A stored number and its index are read once; a product with every centre, an addition to one.
    limits, entries = machine.limits(), counts.nnz
    del counts
    for kind, floor, config in (
        ("float sums", float_floor, PaperHistogramsConfig(algorithm=Algorithm2(overseed=10, rounds=ROUNDS))),
        ("grid sums", grid_floor, HistogramsConfig(clusters=10, overseed=10, epsilon=15.0, rounds=ROUNDS)),
    ):
        for cache, name in ((CACHE, "cached"), (0, "from the store")):
            took = [flow(population, config, cache, options.workers) for _ in range(options.repeats)]
            whole, clients, release = (Measured(column) for column in zip(*took, strict=True))
            shares = limits.shares(
                float(clients) * options.workers, 8.0 * entries, entries * (2.0 * len(centres) + 1), "single"
            )
            rows.append(
                {
                    "sums": kind,
                    "blocks": name,
                    "clients": options.clients,
                    "floor_s": floor,
                    "round_s": whole,
                    "ratio": whole.over(float(floor)),
                    "clients_s": clients,
                    "release_s": release,
                    **shares,
                }
            )
    return {"benchmark": "round", "workers": options.workers, "rows": rows + limits.rows()}


def clients_alone(population, counts, centres, repeats: int) -> list[dict]:
    """What the clients of one round take of one core."""
    logs, mean = assignment_logs(centres, 1e-6), centres.mean(axis=0)
    turns, rows = {}, []
    for kind, floor, message, method in (
        ("float sums", floors.clustering(counts, centres), AssignMessage(logs), PaperHistograms()),
        (
            "grid sums",
            floors.grid_sums(counts, centres, mean),
            ReleaseMessage("clusters_001", len(centres), logs, 1 / np.sqrt(mean), 3.0),
            Histograms(),
        ),
    ):
        turns[kind, "floor"] = floor
        for cache, name in ((CACHE, "cached"), (0, "from the store")):
            source = Source(str(population.path), population.version, cache_bytes=cache, training="benchmark")
            turns[kind, name] = partial(answer_everybody, method, source, message, len(population.blocks))
    taken = in_turns(turns, repeats)
    for (kind, name), cpu in taken.items():
        if name != "floor":
            ratio, of_client = cpu.over(taken[kind, "floor"]), cpu.map(lambda value: value / counts.shape[0] * 1e6)
            rows.append(
                {"sums": kind, "blocks": f"{name}, one process", "cpu_us_a_client": of_client, "of_floor_cpu": ratio}
            )
    return rows


def answer_everybody(method, source: Source, message, blocks: int) -> None:
    for index in range(blocks):
        answer_block(method, source, message, index)


def flow(
    population, config: HistogramsConfig | PaperHistogramsConfig, cache: int, workers: int
) -> tuple[float, float, float]:
    """Median seconds of a round without its release, of its client part, and of its release."""
    from fedcore.flows.train import Compute, train_histograms, train_paper_histograms

    with tempfile.TemporaryDirectory() as folder:
        train = train_histograms if isinstance(config, HistogramsConfig) else train_paper_histograms
        path = train(
            population=str(population.path),
            config=config,
            runs=folder,
            compute=Compute(workers=workers, cache_bytes=cache),
        )
        rows = Run.open(Path(path)).metrics()[WARM_UP:]
    release = [row.get("seconds_release", 0.0) for row in rows]
    whole = [row["seconds_round"] - r for row, r in zip(rows, release, strict=True)]
    return median(whole), median(row["seconds_clients"] for row in rows), median(release)
