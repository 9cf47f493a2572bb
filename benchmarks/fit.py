"""`FederatedMixture(8).fit` and scikit-learn's `GaussianMixture(8).fit` of the same arrays of 10 columns.

Each fit is a process of its own, with one BLAS thread; ours and scikit-learn's take turns. `--repeats` is the number of
pairs, each with another seed of both fits; `--clients` is the number of rows of the largest array.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.large import COLUMNS, SCORED, SEED, normal_rows
from benchmarks.measured import Measured
from benchmarks.processes import taken

CLIENTS = 1_000_000
SIZES = (300, 10_000)
COMPONENTS = 8

_MIXTURES = {
    "FederatedMixture": f"from fedcore import FederatedMixture\nmixture = FederatedMixture({COMPONENTS}",
    "GaussianMixture": f"from sklearn.mixture import GaussianMixture\nmixture = GaussianMixture({COMPONENTS}",
}
_FIT = """, random_state=int(sys.argv[3]))
x, held = np.load(sys.argv[1]), np.load(sys.argv[2])
began = time.process_time()
mixture.fit(x)
print(json.dumps({"fit_cpu_s": time.process_time() - began, "held_out_loss": -mixture.score(held),
                  "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """A row for each size and estimator. process_cpu_s: CPU-seconds of the whole process, imports included; fit_cpu_s:
    of `fit` alone; peak_mib: largest resident memory, array included; held_out_loss: nats a row."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        table, held = Path(folder) / "table.npy", Path(folder) / "held.npy"
        np.save(held, normal_rows(np.random.default_rng(SEED + 1), SCORED, COMPONENTS))
        for rows in sorted({*(size for size in SIZES if size < options.clients), options.clients}):
            np.save(table, normal_rows(np.random.default_rng(SEED), rows, COMPONENTS))
            turns = [[_fit(name, table, held, seed) for name in _MIXTURES] for seed in range(options.repeats)]
            for name, fits in zip(_MIXTURES, zip(*turns, strict=True), strict=True):
                quantities = {key: Measured(fit[key] for fit in fits) for key in fits[0]}
                found.append({"what": f"{name}, {rows} rows", "columns": COLUMNS, **quantities})
    return {"rows": found}


def _fit(name: str, table: Path, held: Path, seed: int) -> dict[str, float]:
    program = f"import json, resource, sys, time\nimport numpy as np\n{_MIXTURES[name]}{_FIT}"
    words = ["-W", "ignore", "-c", program, str(table), str(held), str(seed)]
    one = taken(words, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    return {"process_cpu_s": one.cpu, **json.loads(one.out)}
