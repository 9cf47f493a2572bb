"""Files of rows that belong to nobody in particular, as a population: rows in the order of the files, part by part.

A sum over all rows does not depend on whose they are, so that a part of consecutive rows stands where a client would.
Nothing is sorted, no row gets a name, and memory stays at one part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.errors import ConfigError, IngestError
from fedcore.population.ingest.sources import files_of
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter

ROWS_OF_A_PART = 16_384
CLIENT = "client"  # a column of this name is the client's, if nobody says which is
SMALL = ("float16", "float32", "int8", "int16", "uint8", "uint16", "bool")  # exact in float32
FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv"}


def are_nobodys(where: str) -> bool:
    """Whether files hold rows and do not say whose: CSV or Parquet without a column "client", or NPY. Raises
    IngestError for files that are not there or cannot be read, ConfigError for several formats at once."""
    files = files_of(where)
    if all(file.suffix == ".npy" for file in files):
        return True
    return all(file.suffix in FORMATS for file in files) and CLIENT not in _dataset(files).schema.names


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


def _dataset(files: Sequence[Path]) -> Any:
    """A pyarrow.dataset.Dataset. Numbers of CSV are float64, whatever those in the first lines are."""
    import pyarrow as pa
    import pyarrow.csv as arrow_csv
    import pyarrow.dataset as dataset

    kinds, names = {FORMATS[file.suffix] for file in files}, [str(file) for file in files]
    if len(kinds) > 1:
        raise ConfigError("The files are of several formats.", "Fit to files of one.")
    try:
        found = dataset.dataset(names, format=kinds.pop())
        for fragment in found.get_fragments():
            if fragment.physical_schema.names != found.schema.names:
                raise IngestError(f"{fragment.path} has other columns than {names[0]}.", "Fit to files of one table.")
        if files[0].suffix != ".csv":
            return found
        numbers = {field.name: pa.float64() for field in found.schema if _is_number(field.type)}
        options = arrow_csv.ConvertOptions(column_types=numbers)
        return dataset.dataset(names, format=dataset.CsvFileFormat(convert_options=options))
    except (OSError, pa.ArrowException) as error:
        raise IngestError(f"{files[0]} cannot be read: {error}.", "Check that the files are whole.") from error


def _is_number(kind: Any) -> bool:
    import pyarrow.types as types

    return any(test(kind) for test in (types.is_integer, types.is_floating, types.is_boolean, types.is_null))


def _tables(files: Sequence[Path]) -> tuple[int, str, Iterator[np.ndarray]]:
    import pyarrow as pa

    read = _dataset(files)
    kinds = [read.schema.field(name).type for name in read.schema.names]
    known = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    words = [name for name, kind in zip(read.schema.names, kinds, strict=True) if not any(test(kind) for test in known)]
    if words:
        raise ConfigError(
            f"the columns {', '.join(words[:20])} hold no numbers.",
            "Name the column of the clients (groups), or make a population with `fedcore population ingest`.",
        )
    dtype = "float32" if all(_name(kind) in SMALL for kind in kinds) else "float64"
    number = pa.float32() if dtype == "float32" else pa.float64()

    def parts() -> Iterator[np.ndarray]:
        try:
            for batch in read.to_batches(batch_size=ROWS_OF_A_PART, batch_readahead=1, fragment_readahead=1):
                x = np.empty((batch.num_rows, len(kinds)), dtype)
                for place, column in enumerate(batch.columns):
                    x[:, place] = column.cast(number).to_numpy(zero_copy_only=False)
                yield x
        except (OSError, pa.ArrowException) as error:
            raise IngestError(f"The files cannot be read: {error}.", "Check that they are whole.") from error

    return len(kinds), dtype, parts()


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
