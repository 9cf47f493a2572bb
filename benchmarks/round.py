"""Seconds of a histogram round through the whole flow (Prefect, Dask, Zarr), against SciPy in memory.

Each of the two kinds of sum (float, not private; exact on the grid, private) is held against its own floor, in the
same run; the flow once with the cache of decoded blocks and once reading every block from the store in every round.
Secure noise is not part of the round's ratio: see the column `release`.
"""

import tempfile
from pathlib import Path
from statistics import median

from threadpoolctl import threadpool_limits

from benchmarks import floors, machine
from benchmarks.measured import Measured, seconds
from benchmarks.populations import reddit_like
from fedcore.population.synthetic import settings_of, true_centres
from fedcore.runs.store import Run

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
    # A stored number and its index are read once; a product with every centre, an addition to one.
    limits, entries = machine.limits(), counts.nnz
    del counts
    rows = []
    for kind, floor, settings in (
        ("float sums", float_floor, {"algorithm": "algorithm2", "start": "perturbed_mean", "overseed": 10}),
        ("grid sums", grid_floor, {"algorithm": "private", "clusters": 10, "overseed": 10, "epsilon": 15.0}),
    ):
        for cache, name in ((2 * 2**30, "cached"), (0, "from the store")):
            took = [flow(population, settings, cache, options.workers) for _ in range(options.repeats)]
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


def flow(population, settings: dict, cache: int, workers: int) -> tuple[float, float, float]:
    """Median seconds of a round without its release, of its client part, and of its release."""
    from fedcore.flows.train import Compute, train_histograms

    from fedcore.methods.histograms.config import HistogramsConfig

    with tempfile.TemporaryDirectory() as folder:
        config = HistogramsConfig(rounds=ROUNDS, **settings)
        path = train_histograms(
            population=str(population.path),
            config=config,
            runs=folder,
            compute=Compute(workers=workers, cache_bytes=cache),
        )
        rows = Run.open(Path(path)).metrics()[WARM_UP:]
    release = [row.get("seconds_release", 0.0) for row in rows]
    whole = [row["seconds_round"] - r for row, r in zip(rows, release, strict=True)]
    return median(whole), median(row["seconds_clients"] for row in rows), median(release)
