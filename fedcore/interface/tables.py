"""Files of rows without clients, as a population: rows in the order of the files, part by part.

A sum over all rows does not depend on whose they are, so that a part of consecutive rows stands where a client would.
Nothing is sorted, no row gets a name, and memory stays at one part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.errors import ConfigError, IngestError, needs
from fedcore.population.ingest.sources import files_of
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter

ROWS_OF_A_PART = 16_384
CLIENT = "client"  # a column of this name is the client's, if no column is declared
SMALL = ("float16", "float32", "int8", "int16", "uint8", "uint16", "bool")  # exact in float32
FORMATS = (".parquet", ".pq", ".csv")
READ_AHEAD = 2**16  # bytes of a column


def are_nobodys(where: str) -> bool:
    """Whether files hold rows and do not say whose: CSV or Parquet without a column "client", or NPY. Raises
    IngestError for files that are not there or cannot be read."""
    files = files_of(where)
    if all(file.suffix == ".npy" for file in files):
        return True
    return all(file.suffix in FORMATS for file in files) and CLIENT not in _schema(files[0]).names


def rows_of_nobody(where: str, folder: Path, **options: Any) -> Population:
    """A population in `folder` of all rows of CSV, Parquet or NPY files; every column is a number, empty = missing.

    where: a file, a folder or a pattern; options: of `PopulationWriter`. Raises ConfigError for columns that hold no
    numbers, IngestError for files that cannot be read, or hold infinite numbers or no row.
    """
    files = files_of(where)
    features, dtype, parts = (_arrays if files[0].suffix == ".npy" else _tables)(files)
    first = 0
    with PopulationWriter(folder, "rows", features, dtype=dtype, clients_per_leaf=1, **options) as writer:
        for x in _of_equal_size(parts):
            if np.isinf(x).any():
                raise IngestError(f"Row {first + int(np.isinf(x).any(axis=1).argmax())} of {where} is infinite.")
            writer.write([f"rows {first}-{first + len(x) - 1}"], (np.array([0, len(x)]), x))
            first += len(x)
        if not first:
            raise IngestError(f"There is no row in {where}.", "Check the files.")
        return writer.commit(Provenance(sources=tuple(file.name for file in files)))


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """What Arrow does not take is an IngestError that names the file."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise IngestError(
            f"{file} cannot be read: {error}.", "Check that it is whole, and a table of numbers."
        ) from error


def _schema(file: Path) -> Any:
    """The columns of a file, a pyarrow.Schema; those of CSV as its first lines have them."""
    with needs(f"The table {file}", "pyarrow", "Or give an array, a data frame or a file .npy."):
        import pyarrow.csv as arrow_csv
        import pyarrow.parquet as parquet

    with _reading(file):
        if file.suffix != ".csv":
            return parquet.read_schema(file)
        with arrow_csv.open_csv(file) as opened:
            return opened.schema


def _batches(file: Path, schema: Any) -> Iterator[Any]:
    """The rows of a file, some at a time. Numbers of CSV are float64, whatever those in the first lines are."""
    import pyarrow as pa
    import pyarrow.csv as arrow_csv
    import pyarrow.parquet as parquet

    with _reading(file):
        if file.suffix != ".csv":  # a column chunk is read in pieces: a group of rows may be as large as the file
            with parquet.ParquetFile(file, buffer_size=READ_AHEAD, pre_buffer=False) as stored:
                yield from stored.iter_batches(ROWS_OF_A_PART, use_threads=False)
            return
        options = arrow_csv.ConvertOptions(column_types={name: pa.float64() for name in schema.names})
        with arrow_csv.open_csv(file, convert_options=options) as opened:
            yield from opened


def _is_number(kind: Any) -> bool:
    import pyarrow.types as types

    return any(test(kind) for test in (types.is_integer, types.is_floating, types.is_boolean, types.is_null))


def _tables(files: Sequence[Path]) -> tuple[int, str, Iterator[np.ndarray]]:
    import pyarrow as pa

    schemas = [_schema(file) for file in files]
    names, kinds = schemas[0].names, {kind for schema in schemas for kind in schema.types}
    for file, schema in zip(files, schemas, strict=True):
        if schema.names != names:
            raise IngestError(f"{file} has other columns than {files[0]}.", "Fit to files of one table.")
        words = [field.name for field in schema if not _is_number(field.type)]
        if words:
            raise ConfigError(
                f"there are no numbers in these columns of {file}: {', '.join(words[:20])}.",
                "Name the column of the clients (groups), or make a population with `fedcore population ingest`.",
            )
    small = files[0].suffix != ".csv" and all(_name(kind) in SMALL for kind in kinds)
    dtype, number = ("float32", pa.float32()) if small else ("float64", pa.float64())

    def parts() -> Iterator[np.ndarray]:
        for file, schema in zip(files, schemas, strict=True):
            for batch in _batches(file, schema):
                x = np.empty((batch.num_rows, len(names)), dtype)
                for place, column in enumerate(batch.columns):
                    x[:, place] = column.cast(number).to_numpy(zero_copy_only=False)
                yield x

    return len(names), dtype, parts()


def _name(kind: Any) -> str:
    """Of an Arrow type, as of NumPy's."""
    return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(kind), str(kind))


def _arrays(files: Sequence[Path]) -> tuple[int, str, Iterator[np.ndarray]]:
    try:
        stored = [np.load(file, mmap_mode="r", allow_pickle=False) for file in files]
    except (OSError, ValueError) as error:
        raise IngestError(f"{files[0]} cannot be read: {error}.", "Check that the files are whole.") from error
    widths = {x.shape[1:] for x in stored}
    if len(widths) != 1 or stored[0].ndim != 2 or any(x.dtype.kind not in "iufb" for x in stored):
        raise IngestError("The arrays are not all rows of as many numbers.", "Give arrays of shape (rows, features).")
    dtype = "float32" if all(x.dtype.name in SMALL for x in stored) else "float64"
    step = ROWS_OF_A_PART
    parts = (np.array(x[low : low + step], dtype) for x in stored for low in range(0, len(x), step))
    return stored[0].shape[1], dtype, parts


def _of_equal_size(parts: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """The same rows in parts of ROWS_OF_A_PART, but the last: whatever the batches of the files, the bits of a fit are
    the same."""
    waiting: list[np.ndarray] = []
    size = 0
    for part in parts:
        while len(part):
            taken = part[: ROWS_OF_A_PART - size]
            waiting.append(taken)
            size += len(taken)
            part = part[len(taken) :]
            if size == ROWS_OF_A_PART:
                yield waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
                waiting, size = [], 0
    if waiting:
        yield np.concatenate(waiting)
