"""Drafts of schemas: what a table is by the votes of its first rows, written down without any of their values.

Bounds, lists of values and the number of clients are public facts. A draft asks for them, and never takes them from the
data.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from fedcore.errors import IngestError
from fedcore.population.choices import Encoding
from fedcore.population.ingest import csv_blocks, sources
from fedcore.population.ingest.encodings import BIG, LITTLE
from fedcore.population.ingest.partitions import Partitioned
from fedcore.population.ingest.readings import text
from fedcore.population.ingest.request import TABLES, IngestRequest, Where
from fedcore.population.ingest.table_files import HEAD_BYTES, CsvFile, JsonFile, TableFile
from fedcore.population.ingest.votes import Kind, Verdict, nothing_in, verdict_of, words_of
from fedcore.population.words import OTHER

ROWS = 2000  # that vote
SEPARATORS = ",;\t|"
READ: tuple[Kind, ...] = ("number", "boolean", "date", "category")
USUAL: tuple[tuple[frozenset[str], Sequence[float], str], ...] = (  # words of a name, bounds, unit
    (frozenset(("age", "alter", "ages")), [0, 120], "years"),
    (frozenset(("percent", "percentage", "prozent", "pct")), [0, 100], "%"),
    (frozenset(("latitude", "lat")), [-90, 90], "degrees"),
    (frozenset(("longitude", "lon", "lng")), [-180, 180], "degrees"),
    (frozenset(("year", "jahr")), [1900, 2100], ""),
    (frozenset(("month", "monat")), [1, 12], ""),
    (frozenset(("weekday", "wochentag")), [0, 7], ""),
    (frozenset(("hour", "stunde")), [0, 24], "h"),
    (frozenset(("height", "groesse", "gr\u00f6sse", "gr\u00f6\u00dfe")), [0, 250], "cm"),
    (frozenset(("weight", "gewicht")), [0, 400], "kg"),
    (frozenset(("bmi",)), [5, 100], "kg/m2"),
    (frozenset(("pulse", "puls")), [0, 300], "1/min"),
)
USUAL_DATES = ["1900-01-01", "2100-01-01"]


@dataclass
class Draft:
    """A schema to fill in. source: as it was named; rows: that were read; verdicts: of all columns

    table, columns: what stands in the schema, by key. A category without `values` is not yet read
    """

    source: str
    rows: int
    verdicts: Sequence[Verdict]
    table: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def clients(self) -> list[str]:
        """Columns that could name the clients, the likeliest first."""
        likely = sorted(self.verdicts, key=lambda one: -one.likely)
        return [one.name for one in likely if one.likely and one.kind not in ("date", "boolean")]

    @property
    def left_out(self) -> list[str]:
        """Columns that are not read and cannot be without a change."""
        return [one.name for one in self.verdicts if one.name not in (*self.columns, self.table.get("client"))]

    def usual(self, name: str) -> Sequence[float] | Sequence[str] | None:
        """Usual bounds of a number or a date of this name; None if there are none."""
        if self.columns[name].get("date"):
            return USUAL_DATES
        return next((bounds for words, bounds, _ in USUAL if words & words_of(name)), None)

    def name_client(self, name: str | None) -> None:
        """Takes a column as that of the clients; None: every row is protected by itself."""
        self.table = {key: value for key, value in self.table.items() if key not in ("client", "unit")}
        if name is None:
            self.table = {"unit": "record", **self.table}
        else:
            self.table = {"client": name, **self.table}
            self.columns.pop(name, None)

    def asks(self) -> list[dict[str, Any]]:
        """What is still to be filled in: column, key and, for bounds, usual ones."""
        open_ones: list[dict[str, Any]] = []
        if not self.table.get("client") and self.table.get("unit") != "record":
            open_ones.append({"column": None, "key": "client", "usual": self.clients})
        kinds = {one.name: one.kind for one in self.verdicts}
        for name, said in self.columns.items():
            if kinds[name] == "category" and "values" not in said:
                open_ones.append({"column": name, "key": "values"})
            if kinds[name] in ("number", "date") and "bounds" not in said:
                open_ones.append({"column": name, "key": "bounds", "usual": self.usual(name)})
        return open_ones

    def to_json(self) -> dict[str, Any]:
        """The draft for programs: `table` and `columns` as a schema has them, and what is still to be filled in. It
        has no counts."""
        usable = {name: said for name, said in self.columns.items() if not self._is_open(name)}
        kinds = {one.name: one.kind for one in self.verdicts}
        drafted = {"table": self.table, "columns": usable, "kinds": kinds}
        return {**drafted, "asks": self.asks(), "left_out": self.left_out}

    def _is_open(self, name: str) -> bool:
        return any(one["column"] == name and one["key"] == "values" for one in self.asks())

    def toml(self, out: str | None = None) -> str:
        """The file to fill in. out: what it will be called, for the command at its end"""
        client = self.table.get("client", "")
        lines = [
            f"# The schema of {Path(self.source).name if len(self.source.split()) == 1 else 'a query'}. Fill in what "
            "has a # in front, from public facts and not from the data:",
            "# names, units, bounds and lists of values are shown to everyone who sees a result.",
            "",
            "[table]",
        ]
        if self.table.get("unit") != "record":
            named = json.dumps(client, ensure_ascii=False)
            lines.append(f'client = {named}  # the column that says whose a row is; or: unit = "record"')
        lines += [f"{key} = {_toml(value)}" for key, value in self.table.items() if key != "client"]
        if "declared_clients" not in self.table:
            lines.append("# declared_clients = 10000  # about how many clients there are, as far as that is public")
        for name, said in self.columns.items():
            lines += ["", *self._section(name, said)]
        if self.left_out:
            named = ", ".join(json.dumps(name, ensure_ascii=False) for name in self.left_out)
            lines += ["", f"# Left out (text, ids, or nothing): {named}"]
        made = out or "SCHEMA.toml"
        lines += [
            "",
            f"# fedcore population ingest {self.source} POPULATION --schema {made}",
            '# fedcore budget set POPULATION --epsilon 1 --delta 1e-6 --public-schema "why all of the above is public"',
            "# fedcore train private_mixture POPULATION --local",
        ]
        return "\n".join(lines) + "\n"

    def _section(self, name: str, said: dict[str, Any]) -> list[str]:
        head = f"[columns.{json.dumps(name, ensure_ascii=False)}]"
        lines = [f"{key} = {_toml(value)}" for key, value in said.items()]
        asked = {one["key"]: one.get("usual") for one in self.asks() if one["column"] == name}
        if "values" in asked:
            to_fill = f'# values = ["...", "{OTHER}"]'
            return [f"# {head}  # a category; its values are a public list", to_fill, *(f"# {line}" for line in lines)]
        if "bounds" in asked:
            usual = asked["bounds"]
            if "date" not in said and "unit" not in said:
                lines.append(f"# unit = {json.dumps(unit_of(name))}")
            lines.append(f"# bounds = {_toml(usual)}  # usual ones" if usual else "# bounds = [LOW, HIGH]")
            lines.append('# outside = "missing"  # or clip, invalid: a value out of bounds')
        return [head, *lines]


def unit_of(name: str) -> str:
    """The usual unit of a column of this name; empty if there is none."""
    return next((unit for words, _, unit in USUAL if words & words_of(name)), "")


def draft_of(source: Where, wanted: str | None = None) -> Draft:
    """A draft of the schema of a table. wanted: the format, None to find it out

    Up to 2,000 rows of the first MiB vote. No value is in the draft but words for "no answer". Raises IngestError, and
    ConfigError for a format that does not exist.
    """
    form = sources.format_of(source, IngestRequest.of({"format": wanted}).format)
    if form not in TABLES:
        raise IngestError(f"The source {source} is no table ({form}).", f"Sketch one of {', '.join(TABLES)}.")
    table: dict[str, Any] = {}
    if form in ("csv", "jsonl"):
        path = sources.files_of(source)[0]
        if (encoding := _encoding_of(path)) != "utf-8":
            table["encoding"] = encoding
        usual = "\t" if path.suffix == ".tsv" else ","
        if form == "csv" and (separator := _separator(path, encoding, usual)) != usual:
            table["delimiter"] = separator
    file = sources.table_files(source, form, IngestRequest.of({"format": form, **table}))[0]
    if form == "csv" and sum(verdict_of("", [name]).kind in READ for name in file.names) > len(file.names) / 2:
        raise IngestError(
            f"The first line of {source} holds numbers or dates, not the names of columns.",
            "Write a line with the names of the columns before it.",
        )
    held, typed = _held(file), _types(file)
    verdicts = [verdict_of(name, values, typed.get(name)) for name, values in held.items()]
    draft = Draft(str(source), max(map(len, held.values()), default=0), verdicts, table)
    decimal = _usual_decimal(verdicts) if form == "csv" else "."
    if decimal != ".":
        table["decimal"] = decimal
    if nothing := nothing_in(held[one.name] for one in verdicts if one.kind in READ and one.name not in typed):
        table["na"] = nothing
    best = draft.clients[:1]
    for one in verdicts:
        if one.kind in READ and one.name not in best:
            draft.columns[one.name] = _said(one, decimal, form in ("csv", "jsonl"))
    certain = {one.name: one.likely for one in verdicts}
    rivals = [name for name in draft.clients if certain[name] == certain[best[0]]] if best else []
    if len(rivals) == 1:
        draft.name_client(best[0])
    return draft


def _said(one: Verdict, decimal: str, plain_text: bool) -> dict[str, Any]:
    """The keys of a column. decimal: the mark of the table; plain_text: text of numbers without marks is read as
    numbers
    """
    if one.kind == "boolean":
        return {"boolean": True}
    if one.kind == "date":
        formats = () if one.formats in ((), ("iso",)) else one.formats
        return {"date": "days", **({"formats": list(formats)} if formats else {})}
    if one.kind == "category":
        return {} if one.spelling == "exact" else {"spelling": one.spelling}
    if not one.marks:  # the file knows its type
        return {}
    mark, thousands = next((marks for marks in one.marks if marks[0] == decimal), one.marks[0])
    said = {} if mark == decimal and (thousands or plain_text) else {"decimal": mark}
    return {**said, **({"thousands": thousands} if thousands else {})}


def _usual_decimal(verdicts: Sequence[Verdict]) -> str:
    """The mark of most columns in which only one is possible."""
    sure = Counter(one.marks[0][0] for one in verdicts if len({mark for mark, _ in one.marks}) == 1)
    return max(".,", key=lambda mark: sure[mark])


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# --- what the file holds ----------------------------------------------------------------------------------------------


def _encoding_of(path: Path) -> Encoding:
    with open(path, "rb") as file:
        head = file.read(HEAD_BYTES)
    if head.startswith((BIG, LITTLE)) or head[1:200:2].count(0) > len(head[1:200:2]) / 3:
        return "utf-16"
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return "utf-8" if error.start > len(head) - 4 and len(head) == HEAD_BYTES else "cp1252"
    return "utf-8"


def _separator(path: Path, encoding: Encoding, usual: str) -> str:
    """What splits the header of a CSV file into most names."""

    def names(separator: str) -> int:
        try:
            return len(csv_blocks.first_record(path, separator, encoding=encoding))
        except IngestError:  # a name in quotation marks that something else follows
            return 0

    return max((usual, *SEPARATORS), key=names)


def _held(file: TableFile) -> dict[str, list[str]]:
    """Texts of the first rows, by column."""
    if isinstance(file, Partitioned):
        return {**_held(file.file), **{name: [value or ""] for name, value in file.partition.items()}}
    if isinstance(file, CsvFile):
        rows: Iterator[Sequence[Any]] = file.head()
    elif isinstance(file, JsonFile):
        rows = ([_text(one.get(name)) for name in file.names] for one in file.head())
    else:
        rows = _rows_of(file)
    held: dict[str, list[str]] = {name: [] for name in file.names}
    for fields in islice(rows, ROWS):
        for values, one in zip(held.values(), fields, strict=True):
            values.append("" if one is None else text(one))
    return held


def _rows_of(file: Any) -> Iterator[Sequence[Any]]:
    with file._whole():
        for batch in file._records(dict.fromkeys(file.names, "text"), ROWS, None):
            columns = [batch.column(name).slice(0, ROWS).to_pylist() for name in file.names]
            yield from zip(*columns, strict=True)


def _text(one: Any) -> str:
    return "" if one is None else one if isinstance(one, str) else json.dumps(one)


def _types(file: TableFile) -> dict[str, Kind]:
    """Kinds of the columns whose type the file knows."""
    import pyarrow as pa

    if isinstance(file, Partitioned):
        return _types(file.file)
    kinds: dict[str, Kind] = {}
    for column in getattr(file, "schema", ()):
        types, kind = pa.types, column.type
        if types.is_boolean(kind):
            kinds[column.name] = "boolean"
        elif types.is_date(kind) or types.is_timestamp(kind):
            kinds[column.name] = "date"
        elif types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
            kinds[column.name] = "number"
    return kinds
