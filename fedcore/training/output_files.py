"""Files of per-client outputs, written block by block: a Zarr folder, a Parquet or a CSV file, by the name's ending.

    NAME, NAME.zarr   a Zarr group with an array for each output, first axis = clients, and clients.jsonl with their ids
    NAME.parquet      a line for each client: its id, and a column for each output, lists where it has several numbers
    NAME.csv          the same with a column for each number: OUTPUT_0, OUTPUT_1 ..., or OUTPUT:FEATURE

Where rows are pictures there are also NAME.npz, NAME.pngs and NAME.videos (`fedcore.training.output_pictures`).

Outputs of rows are in the same group, with client i owning the rows ptr[i] .. ptr[i + 1] - 1. Or they are in a second
file NAME.rows.parquet or NAME.rows.csv with a line for each row: its client, its number among the client's rows from 0.
A file NAME.csv.about.json describes NAME.csv (the same for Parquet). The attributes of a group, and the metadata of a
Parquet file, describe it too.

Only the owner can read the files, and they have temporary names until they are whole.
"""

from __future__ import annotations

import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from fedcore.errors import PopulationError, needs
from fedcore.population.store import Population
from fedcore.rounds.method import ROWS, ClientOutputs
from fedcore.storage.files import flush, json_bytes, make_folder, opened, seal, sweep_partials, write_whole
from fedcore.storage.parsing import parse_json, safe_cell

if TYPE_CHECKING:
    import pyarrow as pa
    import zarr

ROWS_PER_CHUNK = 16_384
CHUNK_BYTES = 2**26  # of rows as wide as a picture
GROUP_BYTES = 2**24  # of a row group of Parquet, before compression
LINE_NUMBERS = 2**20  # of lines of CSV that are made at once
LABELS = ("component", "rows_labels")  # of components; files of lines have a column `segment` with their names
OF_CELLS = {
    False: "Client ids are as they are stored. A spreadsheet runs one that begins with =, +, - or @ as a formula.",
    True: "A client id that begins with =, +, -, @, a tab or a carriage return has an apostrophe before it.",
}


@dataclass(frozen=True, slots=True)
class Leaf:
    """Consecutive clients of a population whose outputs are written together.

    first: number of the first of them; first_row: of their first row; ptr: (clients + 1,) where each client's rows
    begin, from 0; None in a population of counts
    """

    first: int
    clients: int
    first_row: int = 0
    ptr: np.ndarray | None = None


class OutputFiles(ABC):
    """Outputs under a temporary name, which get their own when they are whole; nothing stays of what never is.

    with output_files(...) as files:
        files.begin(about)
        files.add(leaf, ids, outputs)  # for every leaf, in order
        files.commit()
    """

    safe_cells = False  # whether ids that look like formulas have an apostrophe before them

    def __init__(self, path: Path, population: Population, features: Sequence[str]):
        self.path, self.population, self.features = path, population, tuple(features)
        self.partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self.clients = 0
        self.check_free()

    def __enter__(self) -> OutputFiles:
        sweep_partials(self.path)
        shutil.rmtree(
            self.partial, ignore_errors=True
        )  # of a dead process that had this number: in a container all have
        make_folder(self.partial, private=True)
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()
        shutil.rmtree(self.partial, ignore_errors=True)

    def check_free(self) -> None:
        if self.path.exists():
            raise PopulationError(f"{str(self.path)!r} exists already.", "Name what does not exist.")

    @property
    def files(self) -> list[str]:
        """What is there after the commit, besides the path."""
        return []

    @abstractmethod
    def begin(self, about: Mapping[str, Any]) -> None:
        """about: description of the outputs, as JSON."""

    @abstractmethod
    def add(self, leaf: Leaf, ids: Sequence[str], outputs: ClientOutputs) -> None:
        """ids: of the leaf's clients."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Whatever is open. Called also after a failure."""


# --- a folder -------------------------------------------------------------------------------------------------------


class ZarrFolder(OutputFiles):
    """Clients who were forgotten have a row and an empty id, so that rows are those of the population."""

    group: zarr.Group
    ids: IO[str] | None = None

    def begin(self, about: Mapping[str, Any]) -> None:
        import zarr

        self.group = zarr.open_group(self.partial, mode="a", zarr_format=3)
        self.group.attrs.update(dict(about))
        self.ids = open(self.partial / "clients.jsonl", "w")

    def add(self, leaf: Leaf, ids: Sequence[str], outputs: ClientOutputs) -> None:
        assert self.ids is not None
        people, per_leaf = self.population.n_clients, self.population.clients_per_leaf
        self.clients += leaf.clients
        self.ids.writelines(json.dumps(client) + "\n" for client in ids)
        if leaf.ptr is not None and any(name.startswith(ROWS) for name in outputs):
            self._put("ptr", leaf.ptr[1:] + leaf.first_row, leaf.first + 1, people + 1, per_leaf)
        for name, values in outputs.items():
            if name.startswith(ROWS):
                self._put(name, values, leaf.first_row, self.population.n_rows, ROWS_PER_CHUNK)
            else:
                self._put(name, values, leaf.first, people, per_leaf)

    def _put(self, name: str, values: np.ndarray, first: int, length: int, chunk: int) -> None:
        """values to entries first ... of the array of this name, which is made if it is not there."""
        if name not in self.group:
            self.group.create_array(
                name,
                shape=(length, *values.shape[1:]),
                dtype=values.dtype,
                chunks=(max(1, min(chunk, CHUNK_BYTES // max(values[:1].nbytes, 1))), *values.shape[1:]),
                config={"write_empty_chunks": True},
            )
        array = cast("zarr.Array[Any]", self.group[name])
        array[first : first + len(values)] = values

    def commit(self) -> None:
        self.close()
        seal(self.partial)
        self.partial.rename(self.path)
        flush(self.path.parent)

    def close(self) -> None:
        if self.ids is not None:
            self.ids.close()


# --- files of lines -------------------------------------------------------------------------------------------------


class LineFile(ABC):
    """One file with a line for each client or each row, written part by part."""

    def __init__(self, path: Path, about: Mapping[str, Any]):
        self.path, self.about = path, about
        self.sink = opened(path, "wb", private=True)

    @abstractmethod
    def columns(self, outputs: Mapping[str, np.ndarray], names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """Columns of numbers or lists. names: of the entries of the last axis, by output."""

    @abstractmethod
    def write(self, lines: pa.Table) -> None: ...

    def finish(self) -> None:
        """Everything into the file, durably."""
        self.sink.close()
        flush(self.path)

    def close(self) -> None:
        self.sink.close()


class ParquetFile(LineFile):
    """Row groups of about 16 MiB, so that neither many small clients nor few large ones fill the memory."""

    def __init__(self, path: Path, about: Mapping[str, Any]):
        super().__init__(path, about)
        self.writer: Any = None
        self.waiting: list[pa.Table] = []

    def columns(self, outputs: Mapping[str, np.ndarray], names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        return {name: _lists(values) for name, values in outputs.items()}

    def write(self, lines: pa.Table) -> None:
        self.waiting.append(lines)
        if sum(table.nbytes for table in self.waiting) >= GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        if not self.waiting:
            return
        group = pa.concat_tables(self.waiting)
        self.waiting = []
        if self.writer is None:
            told = {"sensitive": "true", "note": str(self.about.get("note", "")), "fedcore": json.dumps(self.about)}
            schema = group.schema.with_metadata(told)
            self.writer = parquet.ParquetWriter(self.sink, schema, compression="zstd", use_dictionary=False)
        self.writer.write_table(group.replace_schema_metadata(self.writer.schema.metadata), row_group_size=len(group))

    def finish(self) -> None:
        self._write_group()
        if self.writer is not None:
            self.writer.close()
        super().finish()

    def close(self) -> None:
        self.waiting = []
        super().close()


class CsvFile(LineFile):
    """A column for each number; texts in quotation marks where they need them. Undefined numbers are `nan`."""

    def __init__(self, path: Path, about: Mapping[str, Any]):
        super().__init__(path, about)
        self.writer: Any = None

    def columns(self, outputs: Mapping[str, np.ndarray], names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for output, values in outputs.items():
            flat = values.reshape(len(values), int(np.prod(values.shape[1:])))
            for number, at in enumerate(np.ndindex(*values.shape[1:])):
                found[_number_name(output, at, names.get(output))] = np.ascontiguousarray(flat[:, number])
        return found

    def write(self, lines: pa.Table) -> None:
        import pyarrow.csv as arrow_csv

        if self.writer is None:
            options = arrow_csv.WriteOptions(quoting_style="needed")
            self.writer = arrow_csv.CSVWriter(self.sink, lines.schema, write_options=options)
        step = max(1, LINE_NUMBERS // lines.num_columns)
        for start in range(0, len(lines), step):
            self.writer.write_table(lines.slice(start, step))

    def finish(self) -> None:
        if self.writer is not None:
            self.writer.close()
        super().finish()


def _lists(values: np.ndarray) -> Any:
    """An Arrow array of numbers, or of lists (of lists ...) of numbers, one for each entry of the first axis."""
    import pyarrow as pa

    found = pa.array(np.ascontiguousarray(values).reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        outer = int(np.prod(values.shape[:axis]))
        offsets = np.arange(outer + 1, dtype=np.int64) * values.shape[axis]
        found = pa.LargeListArray.from_arrays(pa.array(offsets), found)
    return found


def _number_name(output: str, at: tuple[int, ...], features: Sequence[str] | None) -> str:
    if not at:
        return output
    if features is None:
        return "_".join([output, *map(str, at)])
    return ":".join(["_".join([output, *map(str, at[:-1])]), features[at[-1]]])


class TableFiles(OutputFiles):
    """NAME with a line for each client, NAME.rows with one for each row, if a row has outputs, and NAME.about.json.

    Clients who were forgotten have no line. The file of the clients gets its name last: without it there is nothing.
    """

    Lines: type[LineFile]

    def __init__(self, path: Path, population: Population, features: Sequence[str]):
        with needs(f"The table {path.name!r}", "pyarrow", "Or write a folder: a name without .csv and .parquet."):
            import pyarrow  # noqa: F401
        self.rows_path = path.with_name(f"{path.stem}.rows{path.suffix}")
        self.about_path = path.with_name(f"{path.name}.about.json")
        super().__init__(path, population, features)
        vocabulary = population.vocabulary() if features else None
        self.names = {} if vocabulary is None else {name: vocabulary for name in features}
        self.written: dict[Path, LineFile] = {}
        self.about: dict[str, Any] = {}

    def check_free(self) -> None:
        """Leftovers of a process that was killed during its commit are removed, and do not count as existing."""
        super().check_free()
        if self._is_left_over():
            self.rows_path.unlink(missing_ok=True)
            self.about_path.unlink(missing_ok=True)
        for path in (self.rows_path, self.about_path):
            if path.exists():
                raise PopulationError(f"{str(path)!r} exists already.", "Choose another name, or remove it.")

    def _is_left_over(self) -> bool:
        try:
            found = parse_json(self.about_path.read_bytes())
        except (OSError, ValueError):
            return False
        return isinstance(found, dict) and found.get("file") == self.path.name and found.get("sensitive") is True

    @property
    def files(self) -> list[str]:
        rows = [str(self.rows_path)] if self._partial(self.rows_path) in self.written else []
        return [str(self.path), *rows, str(self.about_path)]

    def begin(self, about: Mapping[str, Any]) -> None:
        self.about = dict(about)

    def _partial(self, path: Path) -> Path:
        return self.partial / path.name

    def add(self, leaf: Leaf, ids: Sequence[str], outputs: ClientOutputs) -> None:
        here = ~self.population.are_holes(leaf.first, leaf.clients)
        self.clients += int(here.sum())
        clients = np.asarray(ids, object)
        mine = {name: values for name, values in outputs.items() if not name.startswith(ROWS)}
        self._write(self.path, {"client": clients[here]}, {name: values[here] for name, values in mine.items()})
        if len(mine) == len(outputs) or leaf.ptr is None:
            return
        sizes = np.diff(leaf.ptr)
        number = np.arange(int(leaf.ptr[-1])) - np.repeat(leaf.ptr[:-1], sizes)
        lines = {"client": np.repeat(clients, sizes), "row": number}
        self._write(self.rows_path, lines, {name: outputs[name] for name in outputs if name not in mine})

    def _write(self, path: Path, lines: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> None:
        import pyarrow as pa

        file = self.written.get(self._partial(path))
        if file is None:
            file = self.written[self._partial(path)] = self.Lines(self._partial(path), self.about)
        columns = {name: pa.array(values) for name, values in lines.items() if name != "client"}
        labels = next((values for name, values in outputs.items() if name in LABELS), None)
        if labels is not None and (segments := self.about.get("segments")):
            named = {number: name for name, number in segments.items()}
            columns["segment"] = pa.array([named.get(label) for label in labels.tolist()], pa.string())
        shown = lines["client"].tolist()
        ids = pa.array([safe_cell(one) for one in shown] if self.safe_cells else shown, pa.string())
        file.write(pa.table({"client": ids, **columns, **file.columns(outputs, self.names)}))

    def commit(self) -> None:
        if not self.written:
            raise PopulationError(
                f"population {self.population.path.name!r} has no clients.", "There is nothing to write."
            )
        for file in self.written.values():
            file.finish()
        has_rows = self._partial(self.rows_path) in self.written
        rows_file = {"rows_file": self.rows_path.name} if has_rows else {}
        self.check_free()
        about = {**self.about, "file": self.path.name, **rows_file, "clients": self.clients}
        write_whole(self.about_path, json_bytes(about), private=True)
        for path in [self.rows_path] * has_rows + [self.path]:
            os.replace(self._partial(path), path)
            flush(path.parent)

    def close(self) -> None:
        for file in self.written.values():
            file.close()


class ParquetFiles(TableFiles):
    """Arrays are lists."""

    Lines = ParquetFile


class CsvFiles(TableFiles):
    """Arrays are columns."""

    Lines = CsvFile

    def begin(self, about: Mapping[str, Any]) -> None:
        super().begin({**about, "text_cells": OF_CELLS[self.safe_cells]})
