"""Peak memory of every process of a whole private flow, at n and at 10 n clients, beside the cache it was given."""

import json
import subprocess
import sys
import tempfile

from benchmarks.populations import reddit_like

CACHE = 256  # MiB for each process


def measure(options) -> dict:
    rows = []
    for clients in (options.clients, 10 * options.clients):
        population = reddit_like(options.dir, clients)
        with tempfile.TemporaryDirectory() as folder:
            what = ["train", "histograms", str(population.path), "--runs", folder, "--set", "epsilon=2", "--json"]
            how = ["--workers", str(options.workers), "--cache", f"{CACHE}MiB"]
            command = [sys.executable, "-m", "fedcore.cli", *what, *how]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        answer = json.loads(done.stdout)
        peak = answer["peak_memory_bytes"]
        rows.append({"clients": clients, "flow_MiB": peak["flow"] / 2**20,
                     "largest_worker_MiB": max(peak["workers"]) / 2**20, "cache_MiB": CACHE,
                     "rounds": answer["rounds"], "seconds": answer["seconds"]})  # fmt: skip
    return {"benchmark": "memory", "workers": options.workers, "rows": rows}
