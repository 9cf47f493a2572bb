"""The schema of a table: a TOML file that says whose its rows are, which columns are read, in which units and bounds.

`fedcore.population.ingest.sketch` drafts one; a person fills it in, from what is public; `read_schema` gives it to the
ingest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedcore.errors import ConfigError, FedcoreError, IngestError
from fedcore.population.choices import DateUnit, Outside, Spelling
from fedcore.population.ingest.readings import EITHER, Said, readings_of
from fedcore.population.ingest.request import IngestRequest, TableColumns, current_names
from fedcore.storage.parsing import parse_toml


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ColumnSection(_Strict):
    """The declaration of a column."""

    unit: str | None = None
    bounds: list[float | str] | None = Field(default=None, min_length=2, max_length=2)
    date: DateUnit | None = None
    format: str | None = None
    formats: list[str] | None = Field(default=None, min_length=1)
    values: list[str] | None = None
    spelling: Spelling | None = None
    spellings: dict[str, str] | None = None
    boolean: bool = False
    decimal: str | None = Field(default=None, min_length=1, max_length=1)
    thousands: str | None = Field(default=None, min_length=1, max_length=1)
    outside: Outside | None = None


class Schema(_Strict):
    """A section [table], and one [columns.NAME] for each column that is read."""

    table: dict[str, Any] = {}  # options of `TABLE`
    columns: dict[str, ColumnSection] = Field(min_length=1)


TABLE = (
    "client",
    "unit",
    "declared_clients",
    "encoding",
    "delimiter",
    "decimal",
    "na",
)  # options that stand in [table]
FORMS = {  # what a key is, in a section [columns.NAME]
    "unit": 'a text: unit = "mg/dL"',
    "bounds": "two numbers or ISO dates, the lower one first: bounds = [0, 120]",
    "date": f'one of {", ".join(get_args(DateUnit))}: date = "days"',
    "format": 'a text as strptime takes it: format = "%d.%m.%Y"',
    "formats": 'a list of such texts, and "iso": formats = ["iso", "%d.%m.%Y"]',
    "values": 'a list of texts: values = ["Bern", "Basel", "<other>"]',
    "spelling": f'one of {", ".join(get_args(Spelling))}: spelling = "alike"',
    "spellings": 'other spellings of values: spellings = { "Berne" = "Bern" }',
    "boolean": "boolean = true, or nothing",
    "decimal": 'the mark before decimal places: decimal = ","',
    "thousands": 'the mark between groups of three digits: thousands = "."',
    "outside": f'one of {", ".join(get_args(Outside))}: outside = "missing"',
}


def read_schema(file: Path) -> dict[str, Any]:
    """What a schema says, as options of an ingest. Raises IngestError, which names file, section and key."""
    try:
        said = parse_toml(file.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise IngestError(f"The schema {file} cannot be read.", "Check the path; it is UTF-8 text.") from error
    except ValueError as error:
        raise IngestError(f"The schema {file} is not valid TOML: {error}.", "Correct that line.") from error
    try:
        made = Schema.model_validate(said)
    except ValidationError as error:
        raise _misfit(file, [str(step) for step in error.errors()[0]["loc"]], error.errors()[0]["type"]) from error
    try:
        table = current_names(made.table)
        if unknown := [key for key in table if key not in TABLE]:
            raise _no_key(file, "[table]", unknown[0], TABLE)
        IngestRequest.of(table)
    except ConfigError as error:
        raise IngestError(f"The schema {file}, [table]: {_continued(error)}", error.remedy) from error
    client = table.get("client")
    if client and table.get("unit") == "record":
        raise IngestError(
            f"The schema {file} declares in [table] that every row is a separate record, and also client = {client!r}.",
            "Take one of the two out.",
        )
    columns = {name: one for name, one in made.columns.items() if name != client}
    for name, column in columns.items():
        _check_column(file, name, column, table.get("decimal", "."))
    arguments = {"columns": list(columns), **_said_of(columns, table.get("decimal", ".")), **table}
    return {name: value for name, value in arguments.items() if value}


def with_schema(request: IngestRequest, append: bool) -> IngestRequest:
    """The request with what its schema says, if it names one. Raises ConfigError if both say something of the same, and
    what `read_schema` raises.

    append: the schema is that of before, and the number of clients that it declares no new one
    """
    file = request.schema_file
    if file is None:
        return request
    schema = read_schema(Path(file))
    if append:
        schema.pop("declared_clients", None)
    given = {name for name, value in request if value != IngestRequest.model_fields[name].default} - {"schema_file"}
    if both := sorted(given & {*schema, *TableColumns.model_fields}):
        raise ConfigError(f"{', '.join(both)}: given in {file} and as an option too.", "Give it in the schema.")
    return IngestRequest.of({**dict(request), "schema_file": None}, schema)


def _said_of(columns: Mapping[str, ColumnSection], decimal: str = ".") -> dict[str, Any]:
    """decimal: the mark of the table, for columns without a declared one"""
    return {
        "bounds": {name: tuple(one.bounds) for name, one in columns.items() if one.bounds is not None},
        "units": {name: one.unit for name, one in columns.items() if one.unit},
        "dates": {
            name: ",".join(filter(None, (one.date, one.format or EITHER.join(one.formats or ()))))
            for name, one in columns.items()
            if one.date is not None
        },
        "categories": {name: one.values for name, one in columns.items() if one.values is not None},
        "booleans": [name for name, one in columns.items() if one.boolean],
        "outside": {name: one.outside for name, one in columns.items() if one.outside},
        "marks": {
            name: f"{one.decimal or decimal}{one.thousands or ''}"
            for name, one in columns.items()
            if one.decimal or one.thousands
        },
        "spelling": {name: one.spelling for name, one in columns.items() if one.spelling},
        "spellings": {name: one.spellings for name, one in columns.items() if one.spellings},
    }


def _check_column(file: Path, name: str, column: ColumnSection, decimal: str) -> None:
    """Raises IngestError if the declarations of a column do not fit together. decimal: the mark of the table"""
    where = f"The schema {file}, [columns.{_key(name)}]:"
    if (column.format or column.formats) is not None and column.date is None:
        raise IngestError(f"{where} a format, and no date.", 'Add date = "days", or leave the format out.')
    if column.format is not None and column.formats is not None:
        raise IngestError(f"{where} format and formats.", "Give all in formats.")
    try:
        readings_of([name], Said(**_said_of({name: column}, decimal)))
    except IngestError as error:
        raise IngestError(f"{where} {_continued(error)}", error.remedy) from error


def _continued(error: FedcoreError) -> str:
    """Its message, after a colon."""
    return error.message[0].lower() + error.message[1:]


def _no_key(file: Path, where: str, key: str, known: Iterable[str]) -> IngestError:
    return IngestError(f"The schema {file}, {where}: there is no key {key!r}.", f"Keys are {', '.join(known)}.")


def _misfit(file: Path, steps: list[str], fault: str) -> IngestError:
    """What is wrong at a place of the schema. fault: pydantic's name of it"""
    section = steps[0]
    if section not in Schema.model_fields:
        return IngestError(
            f"The schema {file} has a section or key {section!r}, which there is not.",
            "It has a section [table], and one [columns.NAME] for each column that is read.",
        )
    where = f"[{'.'.join([section, *map(_key, steps[1:2])])}]"
    if len(steps) <= 2:
        said = "no column has a section" if steps == ["columns"] else f"{where} is no section"
        return IngestError(
            f"The schema {file}: {said}.",
            "Write [table] once and [columns.NAME] for each column to read; `fedcore population sketch` drafts both.",
        )
    key = steps[2]
    if key not in FORMS:
        return _no_key(file, where, key, FORMS)
    what = "is too short or too long" if fault.startswith("too_") else "is not of its form"
    return IngestError(f"The schema {file}, {where}: {key} {what}.", f"It is {FORMS[key]}.")


def _key(name: str) -> str:
    """As TOML writes it."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
