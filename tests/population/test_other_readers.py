"""What a population holds, by programs of other people: Zarr's own reader opens it, and DuckDB reads its source."""

import json
import math
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as parquet
import pytest

from fedcore.population.ingest.ingest import ingest

from .contents import counts_of, rows_of
from .test_words import words_of

# Prints {half: {client: {array: values}}} of the newest version; docs/population-format.md says where they are.
BY_ZARR = """
import json, pathlib, sys
import zarr
folder = pathlib.Path(sys.argv[1])
root = zarr.open_group(folder, mode="r")
newest = max((folder / "versions").glob("*.json"))
found = {"train": {}, "heldout": {}}
for block in json.loads(newest.read_text())["blocks"]:
    group = root["blocks"][block["slot"]]
    names, ends = group["ids/bytes"][...].tobytes(), group["ids/ptr"][...]
    ids = [names[low:high].decode() for low, high in zip(ends, ends[1:])]
    for half in found:
        arrays = {name: array[...] for name, array in group[half].arrays()} if half in group else {}
        if "words" in arrays:
            arrays["indices"] = arrays.pop("words")[arrays["indices"]]
        ptr = arrays.pop("ptr" if "ptr" in arrays else "indptr", [])
        for client, low, high in zip(ids, ptr, ptr[1:]):
            assert client not in found[half]
            found[half][client] = {name: values[low:high].tolist() for name, values in arrays.items()}
assert not any(name.startswith("fedcore") for name in sys.modules)
print(json.dumps(found))
"""


def by_zarr(population) -> dict:
    """In a process that imports nothing of fedcore."""
    command = [sys.executable, "-c", BY_ZARR, str(population.path)]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def pairs(arrays: dict) -> dict:
    return dict(zip(arrays["indices"], arrays["counts"], strict=True))


@pytest.mark.slow
def test_zarr_reads_the_same_counts(counts_population):
    found = by_zarr(counts_population)
    assert len(found["train"]) == 23 and any(found["heldout"].values())
    for half, ours in (("train", counts_of(counts_population)), ("heldout", counts_of(counts_population, True))):
        assert {client: pairs(arrays) for client, arrays in found[half].items()} == ours


@pytest.mark.slow
def test_zarr_reads_the_same_rows(rows_population):
    found = by_zarr(rows_population)["train"]
    theirs = {
        client: [tuple(None if math.isnan(value) else value for value in row) for row in arrays["x"]]
        for client, arrays in found.items()
    }
    assert len(theirs) == 10 and theirs == rows_of(rows_population)


@pytest.mark.slow
def test_zarr_reads_the_same_words(tmp_path):
    (tmp_path / "words.csv").write_text("client,token,count\nann,tea,3\nbob,café,1\nann,water,2\nbob,tea,4\n")
    population = ingest(tmp_path / "words.csv", tmp_path / "p", kind="words", nominal_clients=10)
    found = by_zarr(population)["train"]
    theirs = {
        client: {
            bytes(word).rstrip(b"\0").decode(): count
            for word, count in zip(arrays["indices"], arrays["counts"], strict=True)
        }
        for client, arrays in found.items()
    }
    assert theirs == words_of(population) == {"ann": {"tea": 3, "water": 2}, "bob": {"café": 1, "tea": 4}}


# --- DuckDB reads the source ------------------------------------------------------------------------------------------


@pytest.fixture(params=["csv", "parquet"])
def written(request, tmp_path):
    """Writes a table as a file of either form: written(name, table) -> (path, what DuckDB selects from)."""

    def write(name: str, table: dict):
        path = tmp_path / f"{name}.{request.param}"
        (pyarrow.csv.write_csv if request.param == "csv" else parquet.write_table)(pa.table(table), path)
        return path, f"read_{request.param}('{path}')"

    return write


def duckdb_says(query: str) -> list[tuple]:
    return pytest.importorskip("duckdb").sql(query).fetchall()


def ordered(rows) -> list[tuple]:
    return sorted(rows, key=repr)


def test_duckdb_sees_the_rows_of_a_table_that_was_ingested(written, tmp_path):
    draw = np.random.default_rng(5)
    size, cities = 2000, ("Bern", "Basel", "Zürich, Süd")
    missing = draw.random(size) < 0.1
    table = {
        "person": [f"p{number}" for number in draw.integers(0, 150, size)],
        "x": [None if gone else value for gone, value in zip(missing, draw.normal(size=size).tolist(), strict=True)],
        "n": draw.integers(-(10**6), 10**6, size).tolist(),
        "city": [cities[number] for number in draw.integers(0, 3, size)],
    }
    path, source = written("rows", table)
    population = ingest(path, tmp_path / "p", client="person", categories={"city": list(cities)}, dtype="float64")
    chosen = ", ".join(f"(city = '{city}')::DOUBLE" for city in cities)
    theirs: dict[str, list] = {}
    for person, *row in duckdb_says(f"SELECT person, x, n::DOUBLE, {chosen} FROM {source}"):
        theirs.setdefault(person, []).append(tuple(row))
    ours = rows_of(population)
    assert len(ours) > 100 and sum(map(len, ours.values())) == size
    assert {person: ordered(rows) for person, rows in ours.items()} == {
        person: ordered(rows) for person, rows in theirs.items()
    }


def test_duckdb_sees_the_counts_of_a_table_that_was_ingested(written, tmp_path):
    draw = np.random.default_rng(6)
    words = [f"w{number}" for number in range(9)]
    table = {
        "client": [f"c{number}" for number in draw.integers(0, 80, 1500)],
        "token": [words[number] for number in draw.integers(0, 9, 1500)],
        "count": draw.integers(1, 50, 1500).tolist(),
    }
    path, source = written("counts", table)
    (tmp_path / "words.txt").write_text("".join(f"{word}\n" for word in words[:-1]))  # one is left out
    population = ingest(path, tmp_path / "p", kind="counts", vocabulary=tmp_path / "words.txt")
    query = f"SELECT client, token, sum(count)::BIGINT FROM {source} WHERE token != '{words[-1]}' GROUP BY ALL"
    ours = {(client, words[j], n) for client, row in counts_of(population).items() for j, n in row.items()}
    assert len(ours) > 400 and ours == set(duckdb_says(query))
