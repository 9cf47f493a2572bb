"""Memory is bounded by the limit, not by the input: measured in processes of their own."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

MIB = 1 << 20
LIMIT = 64 * MIB

CHILD = """
import json, sys
from fedcore.population.ingest.ingest import ingest
import numcodecs.blosc, pyarrow.csv, pyarrow.parquet, zarr
try:
    import pandas  # which Arrow imports where it is installed
except ImportError:
    pass
source, dest, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])

def peak():  # of this program alone; ru_maxrss would include what the parent held before the exec
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

before = peak()
for step in options.pop("steps"):
    population = ingest(source, dest, **options, **step)
print(json.dumps({"grown": (peak() - before) * 1024, "clients": population.n_clients, "rows": population.n_rows}))
"""


def run(source, dest, steps=({},), **options):
    options = json.dumps({"memory": LIMIT, **options, "steps": steps})
    command = [sys.executable, "-c", CHILD, str(source), str(dest), options]
    # glibc has an arena for each of Arrow's and Zarr's threads; how full they get depends on timing, not on the input.
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"MALLOC_ARENA_MAX": "2"})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("append", [False, pytest.param(True, marks=pytest.mark.heavy)])
def test_dense_rows(tmp_path, append):
    """320 MB of rows, one client of five with 60 % of them."""
    rows, features = 400_000, 200
    generator = np.random.default_rng(0)
    who = np.where(generator.random(rows) < 0.6, 0, generator.integers(1, 3000, rows))
    x = generator.standard_normal((rows, features), np.float32)
    np.savez(tmp_path / "a.npz", x=x, client=who)
    steps = [{}, {"append": True}] if append else [{}]
    told = run(tmp_path / "a.npz", tmp_path / "p", steps, clients_per_leaf=1)
    assert told["rows"] == rows * len(steps) and x.nbytes >= 4 * LIMIT
    assert 0.1 * LIMIT < told["grown"] < 1.2 * LIMIT


@pytest.mark.slow
def test_frames(tmp_path):
    """200 MB of pixels in seven blocks, without a limit that would matter: no block is held whole."""
    frames = np.random.default_rng(0).integers(0, 256, (4000, 96, 128), np.uint8)
    np.save(tmp_path / "a.npy", frames)
    told = run(tmp_path / "a.npy", tmp_path / "p", format="frames", memory=512 * MIB)
    assert told["rows"] == 4000 and 4 * frames.nbytes >= 180 * MIB
    assert told["grown"] < 48 * MIB


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", pytest.param("feather", marks=pytest.mark.heavy)])
def test_typed_tables(tmp_path, form):
    """200 MB of rows in many row groups, stored without compression: no row group is kept."""
    import pyarrow as pa
    import pyarrow.feather as feather
    import pyarrow.parquet as parquet

    rows, features = 500_000, 50
    generator = np.random.default_rng(0)
    columns = {f"x{number}": generator.standard_normal(rows) for number in range(features)}
    table = pa.table({"client": generator.integers(0, 10_000, rows), **columns})
    if form == "parquet":
        parquet.write_table(
            table, tmp_path / "a.parquet", row_group_size=20_000, compression="none", use_dictionary=False
        )
    else:
        feather.write_feather(table, str(tmp_path / "a.feather"), compression="uncompressed", chunksize=20_000)
    told = run(tmp_path / f"a.{form}", tmp_path / "p", clients_per_leaf=64)
    assert told["rows"] == rows and table.nbytes >= 3 * LIMIT
    assert 0.1 * LIMIT < told["grown"] < 1.8 * LIMIT


@pytest.mark.parametrize(
    ("rows", "append", "documents"),
    [
        pytest.param(1_000_000, False, False, marks=[pytest.mark.slow, pytest.mark.heavy]),
        pytest.param(1_000_000, False, True, marks=pytest.mark.slow),
        pytest.param(5_000_000, False, False, marks=pytest.mark.heavy),
        pytest.param(5_000_000, True, False, marks=pytest.mark.heavy),
    ],
)
def test_long_counts(tmp_path, rows, append, documents):
    """Some million rows, 34 MB of text for each, 100,000 clients in random order; with documents, ten for each."""
    generator = np.random.default_rng(0)
    import pyarrow as pa
    import pyarrow.csv as arrow_csv

    names = pa.array([f"client number {i:010d} of many" for i in range(100_000)])
    who = generator.integers(0, 100_000, rows)
    columns = {"client": names.take(pa.array(who)), "token": generator.integers(0, 1000, rows)}
    if documents:
        columns["post"] = pa.array(generator.integers(0, 10, rows))
    arrow_csv.write_csv(pa.table(columns), tmp_path / "a.csv")
    steps = [{}, {"append": True}] if append else [{}]
    options = {"documents": "post"} if documents else {}
    told = run(tmp_path / "a.csv", tmp_path / "p", steps, features=1000, **options)
    expected = rows * len(steps) // (2 if documents else 1)
    assert told["clients"] == len(np.unique(who)) and abs(told["rows"] - expected) <= 0.01 * expected * documents
    assert 0.1 * LIMIT < told["grown"] < 1.2 * LIMIT
