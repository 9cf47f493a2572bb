"""Ingest of tables with 20 rows for each of `--clients` clients: CPU-microseconds a row, of the thread that sorts and
writes, and of all threads; `decode_us` is Arrow reading the file on one thread, and nothing else.

Rows are in random order, but for those that say they are sorted by client. Lines with `workers` are of processes that
share the reading, up to `--workers` of them, in turns with this one alone: what passed (`wall_us`), of which starting
and ending them (`start_us`); CPU of all processes (`all_us`); and both over those of this process alone.

Lines with `kind` are Parquet files with ten columns of one kind, in turns with a floor that is written by hand and has
everything in memory. `gather_us` is decoding and bringing the rows of each client together. `floor_us` also writes them
to files of a block's size, with CRC32C and BLAKE3, and flushes these.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter, process_time, thread_time

import numpy as np
from fedcore.tasks.dask_backend import sharing

from benchmarks.command import children_cpu
from benchmarks.measured import Measured
from fedcore.population.ingest.ingest import ingest
from fedcore.randomness import stream

CLIENTS = 25_000
ROWS, COLUMNS, TOKENS = 20, 10, 5000
BLOCK = 32 << 20  # bytes of a file of the floor
MISSING = 0.1


def measure(options) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        _write(where, options.clients)
        tables = {
            "csv": "rows.csv",
            "csv, sorted": "sorted.csv",
            "csv of counts": "counts.csv",
            "parquet": "rows.parquet",
        }
        rows = options.clients * ROWS
        found = [_row(what, where / name, rows, options.repeats) for what, name in tables.items()]
        for what in ("csv", "parquet"):
            found += _shared(what, where / tables[what], rows, options.repeats, options.workers)
        for kind in _KINDS:
            file = where / "kind.parquet"
            _write_kind(file, kind, options.clients)
            found.append(_kind(kind, file, rows, options.repeats))
    return {"benchmark": "ingest", "rows": found}


def _normal(generator, rows: int) -> np.ndarray:
    return generator.normal(size=rows).round(4)


def _missing(generator, rows: int):
    import pyarrow as pa

    return pa.array(_normal(generator, rows), mask=generator.random(rows) < MISSING)


# By name: (values of a column, columns, whether the rows are sorted by client, whether ids are whole numbers)
_KINDS: dict[str, tuple[Callable, int, bool, bool]] = {
    "float64": (_normal, COLUMNS, False, False),
    "float64, sorted by client": (_normal, COLUMNS, True, False),
    "float64, ids as whole numbers": (_normal, COLUMNS, False, True),
    "float32": (lambda g, rows: _normal(g, rows).astype(np.float32), COLUMNS, False, False),
    "int32": (lambda g, rows: g.integers(0, 1000, rows).astype(np.int32), COLUMNS, False, False),
    "booleans": (lambda g, rows: g.random(rows) < 0.5, COLUMNS, False, False),
    "float64, a tenth missing": (_missing, COLUMNS, False, False),
    "one float64": (_normal, 1, False, False),
}


def _write_kind(file: Path, kind: str, clients: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    column, columns, ordered, whole = _KINDS[kind]
    generator, rows = stream(1, "benchmark/kinds"), clients * ROWS
    whose = generator.integers(0, clients, rows)
    whose = np.sort(whose) if ordered else whose
    names = pa.array([f"client-{one:09d}" for one in range(clients)])
    values = {f"x{number}": column(generator, rows) for number in range(columns)}
    parquet.write_table(pa.table({"client": whose if whole else names.take(pa.array(whose)), **values}), file)


def _kind(kind: str, file: Path, rows: int, repeats: int) -> dict:
    """In turns, of which the first does not count."""
    made, blocks = file.with_suffix(".made"), file.with_suffix(".blocks")
    parts = {
        "all_us": lambda: ingest(file, made),
        "decode_us": lambda: _decoded(file),
        "gather_us": lambda: _gathered(file),
        "floor_us": lambda: _stored(_gathered(file), blocks),
    }
    taken: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(repeats + 1):
        for name, part in parts.items():
            taken[name].append(_seconds(part)[1] / rows * 1e6)
        shutil.rmtree(made)
        shutil.rmtree(blocks)
    measured = {name: Measured(each[1:]) for name, each in taken.items()}
    every = measured["all_us"]
    ratios = {f"all_over_{name}": every.over(measured[f"{name}_us"]) for name in ("decode", "floor")}
    return {"what": "parquet", "kind": kind, "rows": rows, **measured, **ratios}


def _gathered(file: Path) -> np.ndarray:
    """(rows, columns) float64, the rows of each client together."""
    import pyarrow.parquet as parquet

    table = parquet.read_table(file, use_threads=False)
    whose = table.column(0).combine_chunks().dictionary_encode()
    codes = whose.indices.to_numpy()
    order = np.argsort(codes.astype(np.uint16) if len(whose.dictionary) <= 1 << 16 else codes, kind="stable")
    x = np.empty((len(codes), table.num_columns - 1))
    for number, column in enumerate(table.columns[1:]):
        start = 0
        for chunk in column.chunks:
            filled = chunk.fill_null(np.nan) if chunk.null_count else chunk
            x[start : start + len(chunk), number] = filled.to_numpy(zero_copy_only=False)
            start += len(chunk)
    return x.take(order, axis=0)


def _stored(x: np.ndarray, folder: Path) -> None:
    import google_crc32c
    from blake3 import blake3

    folder.mkdir()
    content = x.reshape(-1).view(np.uint8)
    for number, start in enumerate(range(0, len(content), BLOCK)):
        block = content[start : start + BLOCK]
        with open(folder / str(number), "wb") as file:
            file.write(block)
            file.write(google_crc32c.value(block).to_bytes(4, "little") + blake3(block).digest())
            file.flush()
            os.fsync(file.fileno())


def _write(folder: Path, clients: int) -> None:
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as parquet

    generator, rows = stream(1, "benchmark/tables"), clients * ROWS
    names, whose = pa.array([f"client-{one:09d}" for one in range(clients)]), generator.integers(0, clients, rows)
    values = {f"x{column}": generator.normal(size=rows).round(4) for column in range(COLUMNS)}
    table = pa.table({"client": names.take(pa.array(whose)), **values})
    counts = {"token": generator.integers(0, TOKENS, rows), "count": generator.integers(1, 10, rows)}
    csv.write_csv(table, folder / "rows.csv")
    parquet.write_table(table, folder / "rows.parquet")
    csv.write_csv(pa.table({"client": names.take(pa.array(np.sort(whose))), **values}), folder / "sorted.csv")
    csv.write_csv(pa.table({"client": table.column("client"), **counts}), folder / "counts.csv")


def _row(what: str, file: Path, rows: int, repeats: int) -> dict:
    """In turns with Arrow alone, of which the first does not count."""
    made, taken = file.with_suffix(".made"), []
    more = {"features": TOKENS} if what == "csv of counts" else {}
    for _ in range(repeats + 1):
        taken.append([*_seconds(lambda: ingest(file, made, **more)), *_seconds(lambda: _decoded(file))])
        shutil.rmtree(made)
    main, every, wall, _, decode, _ = (
        Measured(one / rows * 1e6 for one in each) for each in zip(*taken[1:], strict=True)
    )
    return {
        "what": what,
        "rows": rows,
        "main_us": main,
        "all_us": every,
        "wall_us": wall,
        "decode_us": decode,
        "all_over_decode": every.over(decode),
    }


def _shared(what: str, file: Path, rows: int, repeats: int, most: int) -> list[dict]:
    """In turns with one process alone, of which the first does not count."""
    made, taken = file.with_suffix(".made"), []
    for _ in range(repeats + 1):
        turn = []
        for workers in range(most + 1):
            started = _Started(workers)
            before = children_cpu()
            _, own, wall = _seconds(partial(ingest, file, made, sharing=started.sharing if workers else None))
            turn.append((own + children_cpu() - before, wall, started.seconds))
            shutil.rmtree(made)
        taken.append(turn)
    alone, *others = [
        [Measured(one / rows * 1e6 for one in each) for each in zip(*turns, strict=True)]
        for turns in zip(*taken[1:], strict=True)
    ]
    return [
        {
            "what": what,
            "rows": rows,
            "workers": workers,
            "wall_us": wall,
            "start_us": start,
            "all_us": every,
            "wall_over_alone": wall.over(alone[1]),
            "all_over_alone": every.over(alone[0]),
        }
        for workers, (every, wall, start) in enumerate(others, 1)
    ]


class _Started:
    """Workers, and the seconds that pass until they are there, and until they are gone again."""

    def __init__(self, workers: int):
        self.workers, self.seconds = workers, 0.0

    @contextmanager
    def sharing(self) -> Iterator:
        began = perf_counter()
        with sharing(self.workers) as found:
            self.seconds += perf_counter() - began
            yield found
            began = perf_counter()
        self.seconds += perf_counter() - began


def _seconds(function: Callable[[], object]) -> list[float]:
    """Of CPU, of this thread and of all; and that passed."""
    clocks = (thread_time, process_time, perf_counter)
    before = [clock() for clock in clocks]
    function()
    return [clock() - start for clock, start in zip(clocks, before, strict=True)]


def _decoded(file: Path) -> object:
    import pyarrow.csv as csv
    import pyarrow.parquet as parquet

    if file.suffix == ".parquet":
        return parquet.read_table(file, use_threads=False)
    return csv.read_csv(file, csv.ReadOptions(use_threads=False))
