"""A Gaussian mixture of a table in Parquet files: `FederatedMixture` from the files, scikit-learn in memory and on a
sample. Each is a process of its own; `--clients` is thousands of rows.

The sample is what fits anywhere: 100,000 rows, the first of each file. Held-out rows are scored under every result.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processes import taken

CLIENTS = 25_000
COLUMNS, COMPONENTS, ITERATIONS, SEED = 10, 5, 20, 0
ROWS_OF_A_FILE = 1_000_000
SAMPLE = 100_000
SCORED = 50_000

_RSS = "import resource, json, sys, numpy as np\n"
_SAY = """
held = np.load(held)
print(json.dumps({"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                  "score": mixture.score(held), "iterations": int(mixture.n_iter_)}))
"""
_FEDERATED = (
    _RSS
    + f"""
files, held = sys.argv[1:]
import fedcore
mixture = fedcore.FederatedMixture({COMPONENTS}, max_iter={ITERATIONS}).fit(files + "/*.parquet")
"""
    + _SAY
)
_POOLED = (
    _RSS
    + f"""
files, held, rows, iterations = sys.argv[1:]
import pyarrow.dataset as ds
from sklearn.mixture import GaussianMixture
table = ds.dataset(files)
x = np.empty((table.count_rows(), {COLUMNS}))
at = 0
for batch in table.to_batches():
    x[at : at + len(batch)] = np.column_stack([column.to_numpy() for column in batch.columns])
    at += len(batch)
if int(rows):
    x = np.array(x[:: max(len(x) // int(rows), 1)])
mixture = GaussianMixture({COMPONENTS}, init_params="k-means++", max_iter=int(iterations), random_state={SEED}).fit(x)
"""
    + _SAY
)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    rows = options.clients * 1000
    folder = options.dir / f"large-{rows}"
    held = folder / "held.npy"
    if not held.exists():
        _write(folder / "table", rows)
        np.save(held, normal_rows(np.random.default_rng(SEED + 1), SCORED))
    files = str(folder / "table")
    processes = {
        "FederatedMixture, from files": [_FEDERATED, files, str(held)],
        "GaussianMixture, in memory": [_POOLED, files, str(held), "0", str(ITERATIONS)],
        "GaussianMixture, on a sample": [_POOLED, files, str(held), str(SAMPLE), str(ITERATIONS)],
    }
    found = []
    for name, words in processes.items():
        try:
            one = taken(["-W", "ignore", "-c", *words])
        except RuntimeError as error:  # memory that is not there is a result
            found.append({"what": name, "failed": str(error).splitlines()[-1] if str(error) else "killed"})
            continue
        said = json.loads(one.out)
        found.append({"what": name, "seconds": one.seconds, "cpu_seconds": one.cpu, **said})
    size = rows * COLUMNS * 8 / 2**30
    return {"rows": [{**row, "table_gib": size} for row in found]}


def _write(folder: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(SEED)
    for number, low in enumerate(range(0, rows, ROWS_OF_A_FILE)):
        x = normal_rows(generator, min(ROWS_OF_A_FILE, rows - low))
        columns = {f"x{column}": np.ascontiguousarray(x[:, column]) for column in range(COLUMNS)}
        pq.write_table(pa.table(columns), folder / f"part-{number:05}.parquet")


def normal_rows(generator: np.random.Generator, rows: int, components: int = COMPONENTS) -> np.ndarray:
    """(rows, COLUMNS) float64 of a mixture whose components touch, which is the same for every generator."""
    shape = np.random.default_rng(SEED)
    means = 2.0 * shape.normal(size=(components, COLUMNS))
    factors = shape.normal(size=(components, COLUMNS, COLUMNS)) / np.sqrt(COLUMNS)
    label = generator.choice(components, rows, p=np.arange(1, components + 1) / (components * (components + 1) / 2))
    x = generator.normal(size=(rows, COLUMNS))
    for component in range(components):
        own = label == component
        x[own] = x[own] @ factors[component] + means[component] + 0.3 * generator.normal(size=(own.sum(), COLUMNS))
    return x
