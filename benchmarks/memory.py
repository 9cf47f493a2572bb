"""Peak memory of every process of a whole private flow, at n and at 10 n clients, beside the cache it was given."""

from benchmarks.command import train
from benchmarks.populations import reddit_like

CACHE = 256  # MiB for each process


def measure(options) -> dict:
    rows = []
    for clients in (options.clients, 10 * options.clients):
        population = reddit_like(options.dir, clients)
        run = train("histograms", population.path, {"epsilon": 2}, workers=options.workers, cache=CACHE)
        rows.append(
            {"clients": clients, **run.peaks, "cache_MiB": CACHE, "rounds": len(run.metrics), "seconds": run.seconds}
        )
    return {"benchmark": "memory", "workers": options.workers, "rows": rows}
