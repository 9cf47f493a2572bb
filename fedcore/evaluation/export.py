"""The result of a run, for other programs: tables, arrays and fitted estimators, in the form that the name requests.

    NAME                  a folder with every table as NAME.csv, and result.json, which describes them
    NAME.csv, .parquet    one table: the only one, or the one that is named; standard errors in separate columns
    NAME.json             all tables, the outcome and the privacy statement, as result.json in the folder of the run
    NAME.npz, .zarr       the arrays of the state, and those of the model in the units of the data under `model_...`
    NAME.png              the result as pictures, where rows are pictures: a single one pixel by pixel, several together
    NAME.joblib, .pkl     a fitted estimator of scikit-learn, where the method has a counterpart there

Everything comes from committed rounds; in a private run, from published values. Arrays of other runs may contain what
single clients sent. A file is whole or absent. If the run claims no privacy, only the owner can read the file.
"""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.errors import ConfigError, RunError, needs
from fedcore.evaluation.images import pictures_figure
from fedcore.evaluation.result_file import RESULT, json_value, result_document
from fedcore.evaluation.run_summary import features_of, result_of
from fedcore.evaluation.scikit_learn import estimator_of
from fedcore.rounds.fitted import Fitted
from fedcore.rounds.method import AnyMethod, State
from fedcore.rounds.results import Column, Pictures, Result, Table
from fedcore.runs.store import Run
from fedcore.storage.arrays import state_values
from fedcore.storage.files import (
    Place,
    flush,
    is_file,
    is_remote,
    json_bytes,
    make_folder,
    place,
    seal,
    sweep_partials,
    write_whole,
)
from fedcore.storage.parsing import format_suffix, safe_cell
from fedcore.training.personalise import trained
from fedcore.training.spec import vocabulary_of

PICKLED = (
    "Loading this file runs the code in it. Load it only if you know who made it, and with the version of "
    "scikit-learn that made it. The other forms contain numbers only."
)
OF_ERRORS = " (standard error)"  # behind the name of a column
OF_MODEL = "model_"  # before the names of arrays in the units of the data


def export_run(
    run: Run | Learnt,
    dest: str | Path | Place,
    table: str | None = None,
    *,
    force: bool = False,
    safe_cells: bool = False,
) -> dict[str, Any]:
    """Write what a run has learnt to `dest`: `fedcore.evaluation.export`.

    run: a run, or what was read of one
    dest: a file may be a URL; a folder is local
    table: name of the table that a .csv or .parquet file holds; None: the only one
    force: whether a file that exists is replaced; a folder never is
    safe_cells: of CSV files, whether texts that a spreadsheet would run as formulas get an apostrophe before them

    Returns {"dest", "holds": names of tables or arrays, or the estimator, "private", and "note" where there is
    something to know}. Raises ConfigError for a name that asks for no form or exists, a table that there is not, and a
    model without a counterpart in scikit-learn; RunError for a run without a model, or if `dest` cannot be written.
    """
    path = place(dest)
    write = FORMS.get(format_suffix(path.name))
    if write is None:
        known = ", ".join(sorted(suffix for suffix in FORMS if suffix))
        raise ConfigError(
            f"a run cannot be exported as {path.suffix!r}, which is how {str(dest)!r} ends.",
            f"End the name in one of {known}, or in nothing for a folder of tables.",
        )
    one_table = write is _csv_file or write is _parquet_file
    if table is not None and not one_table:
        raise ConfigError(
            f"{str(dest)!r} does not hold a single table.", "Leave out --table, or end it in .csv or .parquet."
        )
    if safe_cells and write is not _csv_file and write is not _folder:
        raise ConfigError("--safe-cells is for CSV files.", "End the name in .csv or in nothing, or leave it out.")
    folder = write is _folder or write is _zarr
    if not folder and str(dest).endswith(("/", os.sep)):
        raise ConfigError(f"{str(dest)!r} is the name of a folder that ends like a file.", "Leave the last slash out.")
    if folder and is_remote(path):
        raise ConfigError(f"{path} would be a folder behind a URL.", "Name a local folder, or a single file.")
    _check_free(path, force and not folder)
    learnt = run if isinstance(run, Learnt) else Learnt(run)
    if learnt.run.round < 1:
        raise RunError(f"run {learnt.run.id!r} has not finished a round yet.", "Resume it first.")
    source = _Source(learnt, table, safe_cells)
    try:
        told = write(source, path)
    except OSError as error:
        raise RunError(f"cannot write {str(dest)!r}: {error.strerror or error}.", "Nothing was kept.") from error
    return {"dest": str(dest), **told, "private": source.private}


def _check_free(path: Place, force: bool) -> None:
    there = is_file(path) if is_remote(path) else path.exists()
    if there and not (force and is_file(path)):
        remedy = (
            "Name what does not exist, or replace it with --force." if is_file(path) else "Name what does not exist."
        )
        raise ConfigError(f"{str(path)!r} exists already.", remedy)


class Learnt:
    """What a run has learnt. Each part is read when it is first asked for, and kept."""

    def __init__(self, run: Run):
        self.run = run

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"run": (self.run.path, self.run.info, self.run.head)}

    def __setstate__(self, known: dict[str, Any]) -> None:
        self.__dict__.update(known | {"run": Run(*known["run"])})

    @cached_property
    def result(self) -> Result:
        """Tables and figures. Raises RunError."""
        return result_of(self.run, vocabulary_of(self.run))

    @cached_property
    def document(self) -> dict[str, Any]:
        """`fedcore.evaluation.result_file.result_document`. Raises RunError."""
        return result_document(self.run, self.result)

    @cached_property
    def names(self) -> Sequence[str] | None:
        """Names of the columns that the run read; None if they have no names."""
        return features_of(self.run, vocabulary_of(self.run)).names

    @cached_property
    def trained(self) -> tuple[AnyMethod, State]:
        """The method with its settings, and its last state. Raises RunError."""
        return trained(self.run)


class _Source:
    """What is exported of a run."""

    def __init__(self, learnt: Learnt, table: str | None, safe_cells: bool):
        self.learnt, self.run, self.table, self.safe_cells = learnt, learnt.run, table, safe_cells

    @property
    def result(self) -> Result:
        return self.learnt.result

    @property
    def document(self) -> dict[str, Any]:
        return self.learnt.document

    @property
    def private(self) -> bool:
        """Whether the run claims privacy. If not, what is written is for its owner."""
        return bool(self.document["privacy"]["private"])

    def one_table(self) -> Table:
        """The table that was asked for. Raises ConfigError if there is none of this name, or several and no name."""
        tables = {table.name: table for table in self.result.tables}
        if not tables:
            raise ConfigError(f"run {self.run.id!r} has no tables.", "Its arrays are exported as .npz or .zarr.")
        if self.table is None and len(tables) > 1:
            raise ConfigError(
                f"run {self.run.id!r} has the tables {', '.join(tables)}, and a file holds one.",
                "Choose with --table NAME, or leave the ending out for a folder with all of them.",
            )
        name = next(iter(tables)) if self.table is None else self.table
        if name not in tables:
            raise ConfigError(f"run {self.run.id!r} has no table {name!r}.", f"It has {', '.join(tables)}.")
        return tables[name]

    def values(self) -> dict[str, Any]:
        """Arrays and scalars of the state, and arrays of the model in the units of the data, if it has such."""
        method, state = self.learnt.trained
        values = state_values(state)
        try:
            found = method.fitted_model(state).arrays()
        except (ConfigError, RunError):  # no such model, or it has found none
            found = {}
        return values | {f"{OF_MODEL}{name}": array for name, array in found.items()}

    def fitted(self) -> Fitted:
        method, state = self.learnt.trained
        return method.fitted_model(state)


# --- tables ---------------------------------------------------------------------------------------------------------


def _folder(source: _Source, path: Place) -> dict[str, Any]:
    tables, document = source.result.tables, source.document
    if not tables:
        source.one_table()  # says so

    def fill(folder: Path) -> None:
        for table in tables:
            (folder / f"{table.name}.csv").write_bytes(csv_bytes(table, source.safe_cells))
        (folder / RESULT).write_bytes(json_bytes(document))

    _whole_folder(Path(str(path)), fill, private=not source.private)
    return {"holds": [table.name for table in tables], **_note_of_formulas(tables, source.safe_cells)}


def _csv_file(source: _Source, path: Place) -> dict[str, Any]:
    table = source.one_table()
    write_whole(path, csv_bytes(table, source.safe_cells), private=not source.private)
    return {"holds": [table.name], **_note_of_formulas([table], source.safe_cells)}


def csv_bytes(table: Table, safe_cells: bool = False) -> bytes:
    """A line for the headings, with units of numbers in brackets, and one for each row; lists with "; " between.

    safe_cells: whether texts that a spreadsheet would run as formulas get an apostrophe before them
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(_lines(table, safe_cell if safe_cells else str))
    return text.getvalue().encode("utf-8", "backslashreplace")


def _lines(table: Table, shown: Callable[[str], str]) -> list[list[str]]:
    """The headings and the rows. shown: how texts, which are not numbers, are written."""
    columns = with_errors(table)
    cells = [
        [shown(_cell(value)) if isinstance(value, (str, list, tuple)) else _cell(value) for value in column.values]
        for column in columns
    ]
    return [[shown(_heading(column)) for column in columns], *map(list, zip(*cells, strict=True))]


def _note_of_formulas(tables: Sequence[Table], safe_cells: bool) -> dict[str, str]:
    """A note if texts of CSV files are as they are, and look like formulas."""
    if safe_cells or all(_lines(table, safe_cell) == _lines(table, str) for table in tables):
        return {}
    return {
        "note": "A spreadsheet may run texts of these tables as formulas. --safe-cells puts apostrophes before them."
    }


def with_errors(table: Table) -> list[Column]:
    """The columns, and behind each that has standard errors a column of these, in the same unit."""
    columns = []
    for column in table.columns:
        columns.append(column)
        if column.errors is not None:
            columns.append(Column(f"{column.name}{OF_ERRORS}", column.errors, column.unit))
    return columns


def _heading(column: Column) -> str:
    return column.name if column.unit in ("", "%") else f"{column.name} [{column.unit}]"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, (list, tuple)):
        return "; ".join(_cell(item) for item in value)
    return str(value.item() if isinstance(value, np.generic) else value)


def _parquet_file(source: _Source, path: Place) -> dict[str, Any]:
    with needs(f"The table {path.name!r}", "pyarrow", "Or end the name in .csv."):
        import pyarrow.parquet as parquet

    table, sink = source.one_table(), io.BytesIO()
    about = {name: value for name, value in source.document.items() if name != "tables"}
    told = {"title": table.title, "fedcore": json.dumps(about)}
    written = _arrow(table)
    with parquet.ParquetWriter(sink, written.schema) as writer:
        writer.write_table(written)
        writer.add_key_value_metadata(told)  # separate from Arrow's copy of the schema, which is in base64
    write_whole(path, sink.getvalue(), private=not source.private)
    return {"holds": [table.name]}


def _arrow(table: Table) -> Any:
    """A pyarrow.Table; units are in the metadata of the columns, and columns of several kinds are texts."""
    import pyarrow as pa

    arrays, fields = [], []
    for column in with_errors(table):
        values = [value.item() if isinstance(value, np.generic) else value for value in column.values]
        try:
            array = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            array = pa.array([None if value is None else _cell(value) for value in values], pa.string())
        arrays.append(array)
        fields.append(pa.field(column.name, array.type, metadata={"unit": column.unit} if column.unit else None))
    return pa.table(arrays, pa.schema(fields))


def _json_file(source: _Source, path: Place) -> dict[str, Any]:
    document = source.document
    write_whole(path, json_bytes(document), private=not source.private)
    return {"holds": [table["name"] for table in document["tables"]]}


# --- arrays ---------------------------------------------------------------------------------------------------------


def _npz(source: _Source, path: Place) -> dict[str, Any]:
    """Without pickles: texts are arrays of characters, and what is None is left out."""
    arrays = {name: np.asarray(value) for name, value in source.values().items() if value is not None}
    sink = io.BytesIO()
    np.savez(sink, **arrays)  # type: ignore[arg-type]
    write_whole(path, sink.getvalue(), private=not source.private)
    return {"holds": sorted(arrays)}


def _zarr(source: _Source, path: Place) -> dict[str, Any]:
    """Scalars and what result.json says are attributes of the group."""
    import zarr

    values, document = source.values(), source.document
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    scalars = {name: json_value(value) for name, value in values.items() if name not in arrays}

    def fill(folder: Path) -> None:
        group = zarr.open_group(folder, mode="a", zarr_format=3)
        group.attrs.update({"fedcore": document, "scalars": scalars})
        for name, value in arrays.items():
            made = group.create_array(name, shape=value.shape, dtype=value.dtype)
            if value.size:
                made[...] = value

    _whole_folder(Path(str(path)), fill, private=not source.private)
    return {"holds": sorted(arrays)}


# --- pictures -------------------------------------------------------------------------------------------------------


def _png(source: _Source, path: Place) -> dict[str, Any]:
    """Raises ConfigError if the run has no pictures."""
    from PIL import Image

    found = next((figure for figure in source.result.figures if isinstance(figure, Pictures)), None)
    if found is None:
        raise ConfigError(
            f"run {source.run.id!r} has no pictures.", "Say what rows show when you ingest them (--option image=28x28)."
        )
    if found.brightness and len(found.images) == 1:
        sink = io.BytesIO()
        Image.fromarray(np.rint(np.clip(found.images[0], 0.0, 1.0) * 255).astype(np.uint8)).save(sink, "png")
        written = sink.getvalue()
    else:
        written = pictures_figure(found)
    write_whole(path, written, private=not source.private)
    return {"holds": [found.name]}


def _whole_folder(path: Path, fill: Callable[[Path], None], private: bool) -> None:
    """A folder that appears when all is in it, or never."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    sweep_partials(path)
    shutil.rmtree(partial, ignore_errors=True)  # of a dead process that had this number
    try:
        make_folder(partial, private=private)
        fill(partial)
        seal(partial)
        partial.rename(path)
        flush(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


# --- estimators -----------------------------------------------------------------------------------------------------


def _estimator(source: _Source, path: Place, dump: Callable[[Any, io.BytesIO], object]) -> dict[str, Any]:
    fitted = source.fitted()
    made, sink = estimator_of(fitted, source.learnt.names), io.BytesIO()
    dump(made, sink)
    write_whole(path, sink.getvalue(), private=not source.private)
    remark = f"{fitted.remark[:1].upper()}{fitted.remark[1:]}. " if fitted.remark else ""
    return {"holds": [repr(made)], "note": remark + PICKLED}


def _joblib(source: _Source, path: Place) -> dict[str, Any]:
    import joblib

    return _estimator(source, path, joblib.dump)


def _pickle(source: _Source, path: Place) -> dict[str, Any]:
    return _estimator(source, path, pickle.dump)


FORMS: Mapping[str, Callable[[_Source, Place], dict[str, Any]]] = {
    "": _folder,
    ".csv": _csv_file,
    ".parquet": _parquet_file,
    ".json": _json_file,
    ".npz": _npz,
    ".zarr": _zarr,
    ".png": _png,
    ".joblib": _joblib,
    ".pkl": _pickle,
}
