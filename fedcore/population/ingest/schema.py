"""The schema of a table: a TOML file that says whose its rows are, which columns are read, in which units and bounds.

`sketch` drafts one from names and kinds alone; a person fills it in, from what is public; `read_schema` gives it to the
ingest.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedcore.errors import ConfigError, FedcoreError, IngestError
from fedcore.population.choices import DateUnit, Outside, Spelling
from fedcore.population.ingest import csv_blocks, sources
from fedcore.population.ingest.partitions import Partitioned
from fedcore.population.ingest.readings import EITHER, FALSE, TRUE, Said, readings_of, seconds_in
from fedcore.population.ingest.request import TABLES, IngestRequest, TableColumns, Where
from fedcore.population.ingest.table_files import CsvFile, JsonFile, TableFile
from fedcore.storage.parsing import parse_toml

HEAD = 1000  # records whose kinds are looked at
HEAD_BYTES = 1 << 20
SEPARATORS = ",;\t|"
NOTHING = ("n/a", "N/A", "#N/A", "-", "--", "?", ".", "none", "None", "NULL", "missing")  # usual texts for nothing


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ColumnSection(_Strict):
    """What is said of a column."""

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


TABLE = ("client", "unit", "nominal_clients", "encoding", "delimiter", "decimal", "na")  # options that stand in [table]
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
    table = made.table
    if unknown := [key for key in table if key not in TABLE]:
        raise _no_key(file, "[table]", unknown[0], TABLE)
    try:
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
        _check_column(file, name, column)
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
        schema.pop("nominal_clients", None)
    given = {name for name, value in request if value != IngestRequest.model_fields[name].default} - {"schema_file"}
    if both := sorted(given & {*schema, *TableColumns.model_fields}):
        raise ConfigError(f"{', '.join(both)}: given in {file} and as an option too.", "Give it in the schema.")
    return IngestRequest.of({**dict(request), "schema_file": None}, schema)


def _said_of(columns: Mapping[str, ColumnSection], decimal: str = ".") -> dict[str, Any]:
    """decimal: the mark of the table, for columns that have none of their own"""
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


def _check_column(file: Path, name: str, column: ColumnSection) -> None:
    """Raises IngestError if what is said of a column does not fit together."""
    where = f"The schema {file}, [columns.{_key(name)}]:"
    if (column.format or column.formats) is not None and column.date is None:
        raise IngestError(f"{where} a format, and no date.", 'Add date = "days", or leave the format out.')
    if column.format is not None and column.formats is not None:
        raise IngestError(f"{where} format and formats.", "Give all in formats.")
    try:
        readings_of([name], Said(**_said_of({name: column})))
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


# --- drafts -----------------------------------------------------------------------------------------------------------


def sketch(source: Where, wanted: str | None = None, out: str | None = None) -> str:
    """A schema to fill in, as TOML with comments. wanted: the format, None to find it out; out: the file that it will
    be in, for the commands at its end.

    Of a file that knows its types no value is read, of CSV and JSON lines the first 1,000 records, to tell numbers,
    dates, booleans and text apart; no value of a column is in the draft. Raises IngestError, and ConfigError for a
    format that does not exist.
    """
    form = sources.format_of(source, IngestRequest.of({"format": wanted}).format)
    if form not in TABLES:
        raise IngestError(f"The source {source} is no table ({form}).", f"Sketch one of {', '.join(TABLES)}.")
    separator = _separator(source) if form == "csv" else None
    file = sources.table_files(source, form, IngestRequest(format=form, delimiter=separator))[0]
    if form == "csv" and sum(_kind_of([name]) != "text" for name in file.names) > len(file.names) / 2:
        raise IngestError(
            f"The first line of {source} holds numbers or dates, not the names of columns.",
            "Write a line with the names of the columns before it.",
        )
    held = _held(file)
    kinds = _typed(file) or {name: _kind_of(values) for name, values in held.items()}
    read = {one for name, values in held.items() if kinds[name] != "text" for one in values}
    lines = [
        f"# The schema of {'a query' if form == 'sql' else Path(str(source)).name}",
        "# It was drafted from the names of the columns and the kinds of values in the head; no value is in here.",
        "# Fill it in from what is public: names, units, bounds and lists of values are told to everybody who sees",
        "# a result.",
        "",
        "[table]",
        'client = ""  # the column that says whose a row is: everything of one client is protected together',
        '# unit = "record"  # or, in its place: nobody can say whose a row is, and each is protected by itself',
        "# nominal_clients = 10000  # about how many clients there are, as far as that is public",
    ]
    if separator not in (None, ","):
        lines.append(f"delimiter = {json.dumps(separator)}")
    if "decimal" in kinds.values():
        lines.append('decimal = ","')
    if nothing := sorted(read.intersection(NOTHING)):
        lines.append(f"na = {json.dumps(nothing)}  # these stand for nothing")
    for name in file.names:
        lines += ["", *_section(name, kinds.get(name, "text"))]
    where = out or "SCHEMA.toml"
    lines += [
        "",
        "# Then (privacy first: epsilon and delta are promises, and the reason says why all of the above is public):",
        f"#   fedcore population ingest {source} POPULATION --schema {where}",
        '#   fedcore budget set POPULATION --epsilon 1 --delta 1e-6 --public-schema "REASON"',
        "#   (with --unit record, if that is the unit above)",
        "#   fedcore train private_mixture POPULATION --local",
    ]
    return "\n".join(lines) + "\n"


def _separator(source: Where) -> str:
    """What splits the header of a CSV file into most names."""
    path = sources.files_of(source)[0]

    def names(separator: str) -> int:
        try:
            return len(csv_blocks.first_record(path, separator))
        except IngestError:  # a name in quotation marks that something else follows
            return 0

    return max(SEPARATORS, key=names)


def _held(file: TableFile) -> dict[str, list[str]]:
    """Texts in the head of a file that does not know its types, by column."""
    if isinstance(file, Partitioned):
        return {**_held(file.file), **{name: [value or ""] for name, value in file.partition.items()}}
    rows: Iterator[Sequence[str]]
    if isinstance(file, CsvFile):
        blocks = csv_blocks.blocks(file.path, HEAD_BYTES, file.delimiter)
        block = next(csv_blocks.without_header(blocks, file.delimiter), None)
        records = iter(()) if block is None else csv_blocks.records(file.path, block, file.delimiter)
        rows = (fields for _, fields in records if len(fields) == len(file.names))
    elif isinstance(file, JsonFile):
        rows = ([_text(one.get(name)) for name in file.names] for one in file.head())
    else:
        return {}
    held: dict[str, list[str]] = {name: [] for name in file.names}
    for fields in itertools.islice(rows, HEAD):
        for values, one in zip(held.values(), fields, strict=True):
            values.append(one.strip())
    return held


def _text(one: Any) -> str:
    return "" if one is None else one if isinstance(one, str) else json.dumps(one)


def _kind_of(values: Sequence[str]) -> str:
    """number, decimal (a number with a comma), boolean, date or text."""
    there = {one for one in values if one not in csv_blocks.MISSING and one not in NOTHING}
    if not there:
        return "text"
    if {one.lower() for one in there} <= {*TRUE, *FALSE} and not there <= {"0", "1"}:
        return "boolean"
    for kind, reads in (
        ("number", csv_blocks.number),
        ("decimal", lambda one: csv_blocks.number(one, decimal=",")),
        ("date", seconds_in),
    ):
        if all(_can(reads, one) for one in there):
            return kind
    return "text"


def _can(reads: Any, one: str) -> bool:
    try:
        reads(one)
    except (ValueError, OverflowError):
        return False
    return True


def _typed(file: TableFile) -> dict[str, str]:
    """Kinds of the columns of a file that knows its types; empty otherwise."""
    import pyarrow as pa

    if isinstance(file, Partitioned):
        return {**_typed(file.file), **{name: _kind_of([value or ""]) for name, value in file.partition.items()}}
    kinds = {}
    for column in getattr(file, "schema", ()):
        types, kind = pa.types, column.type
        if types.is_boolean(kind):
            kinds[column.name] = "boolean"
        elif types.is_date(kind) or types.is_timestamp(kind):
            kinds[column.name] = "date"
        elif types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
            kinds[column.name] = "number"
        else:
            kinds[column.name] = "text"
    return kinds


def _section(name: str, kind: str) -> list[str]:
    head = f"[columns.{json.dumps(name, ensure_ascii=False)}]"
    if kind == "text":
        return [
            f"# {head}  # text, and left out. To read it, if it is not the client:",
            '# values = ["...", "<other>"]  # a category: a column of 0 and 1 for each value of a public list',
            '# date = "days"                # or a date: add format = "%d.%m.%Y" if it is not in ISO form',
        ]
    if kind == "boolean":
        return [head, "boolean = true"]
    if kind == "date":
        return [head, 'date = "days"  # since 1970', '# bounds = ["2000-01-01", "2030-12-31"]']
    return [head, '# unit = ""', "# bounds = [0, 1]"]
