"""One iteration of what other libraries offer for the same task, on the same rows and one core, per CPU-second.

Rows of 5 Gaussians in 10 columns, 20 for each client, float64, standardised, in memory. Ours is `em`'s core: the
client updates of one round of EM. Of the others the CPU-seconds of ten iterations more, by two fits from the same
start, so that starting is in neither.

    scikit-learn    GaussianMixture and BayesianGaussianMixture, diagonal covariances: an EM iteration with its M-step
    dask-ml         KMeans, Lloyd's iteration, on Dask's synchronous scheduler: hard assignments and means only, which
                    is less than an EM iteration computes; there is no mixture in it

`--peer scikit-learn=INTERPRETER`, `--peer dask-ml=INTERPRETER`: environments that have them; scikit-learn is looked for
in this one too. A library that is not named is skipped.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.em import given_start, in_memory
from benchmarks.measured import Measured
from benchmarks.populations import mixture_rows

CLIENTS = 20_000
PEERS = {"GaussianMixture": "scikit-learn", "BayesianGaussianMixture": "scikit-learn", "KMeans": "dask-ml"}


def measure(options) -> dict:
    population, peers = mixture_rows(options.dir, options.clients), {"scikit-learn": sys.executable, **options.peers}
    with threadpool_limits(1):
        measured, _ = in_memory(population, options.repeats)
    ours = next(row["updates_per_cpu_s"] for row in measured if row["what"] == "core")
    rows = [{"what": "em, core", "updates_per_cpu_s": ours, "of_core": 1.0}]
    with tempfile.TemporaryDirectory() as folder:
        file, given = Path(folder) / "given.npz", given_start(population)
        x = np.concatenate([population.read(index).x for index in range(len(population.blocks))]).astype(np.float64)
        np.savez(
            file,
            rows=(x - given["centre"]) / given["scale"],
            means=given["means"],
            weights=given["weights"],
            variances=given["covariances"],
        )
        rows += [_peer(peers.get(PEERS[kind]), kind, file, options, ours) for kind in PEERS]
    return {"benchmark": "peers", "clients": options.clients, "rows": rows}


def _peer(interpreter: str | None, kind: str, file: Path, options, ours: float) -> dict:
    if interpreter is None:
        return {"what": kind, "skipped": f"no --peer {PEERS[kind]}=INTERPRETER"}
    command = [interpreter, str(Path(__file__).with_name("peer_iterations.py")), kind, str(file), str(options.repeats)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"what": kind, "skipped": (done.stderr.strip().splitlines() or ["it failed"])[-1]}
    answer = json.loads(done.stdout.splitlines()[-1])
    speed = Measured(options.clients / value for value in answer["seconds"])
    return {
        "what": f"{PEERS[kind]} {answer['version']}, {kind}",
        "updates_per_cpu_s": speed,
        "of_core": speed.over(float(ours)),
    }
