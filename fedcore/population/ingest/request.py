"""The options of an ingest, each declared once: its type, range, default and description.

Python, the command line, the form of the flow and the ingest step of a pipeline all offer the fields of
`IngestRequest`. A new option is one field here and the code that uses it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from fedcore.errors import ConfigError, IngestError
from fedcore.population.choices import (
    Encoding,
    Format,
    Halves,
    Kind,
    Outside,
    PeriodUnit,
    Spelling,
    Tokeniser,
    WhoseRows,
)

MEMORY = 512 << 20
LEAST_MEMORY = 16 << 20
LARGEST_RECORD = 1 << 30  # bytes; the places in a text of 2 GiB do not fit into Arrow's 32 bits

TABLES: tuple[Format, ...] = ("csv", "parquet", "arrow", "jsonl", "sql")
DENSE: tuple[Format, ...] = (*TABLES, "npz", "npy")
WITH_IDS: tuple[Format, ...] = (*DENSE, "text")

OLD_NAMES = {"nominal_clients": "declared_clients"}  # of options before 1.0

Bound = float | str  # text of a date
Where = str | Path | Sequence[str | Path]


def _listed(given: Any) -> Any:
    """Text is a list whose parts are separated by commas."""
    parts = [one.strip() for one in given.split(",")] if isinstance(given, str) else given
    return _fixed(parts)


def _fixed(given: Any) -> Any:
    return tuple(given) if isinstance(given, list) else given


def _each_fixed(given: Any) -> Any:
    return {name: _fixed(one) for name, one in given.items()} if isinstance(given, Mapping) else given


def _as_text(given: Any) -> Any:
    return str(given) if isinstance(given, Path) else given


Text = Annotated[str, BeforeValidator(_as_text)]
Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Files = Annotated[str | Path | tuple[str | Path, ...], BeforeValidator(_fixed)]
Words = Annotated[str | Path | tuple[str, ...], BeforeValidator(_fixed)]
BoundsOf = Annotated[dict[str, tuple[Bound, Bound]], BeforeValidator(_each_fixed)]
ValuesOf = Annotated[dict[str, tuple[str, ...]], BeforeValidator(_each_fixed)]


def option(description: str, *formats: Format, default: Any = None, **limits: Any) -> Any:
    """A field of a request. formats: those that take the option, all if none is given; limits: of pydantic's `Field`"""
    extra: Any = {"formats": [*formats]} if formats else None
    return Field(default, description=description, json_schema_extra=extra, **limits)


def current_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by name, the old names replaced. Raises ConfigError for an option that is given by both names."""
    for old, new in OLD_NAMES.items():
        if old in options and new in options:
            raise ConfigError(f"{old} and {new} are the same option.", f"Give {new} only.")
    return {OLD_NAMES.get(name, name): value for name, value in options.items()}


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_none(cls, given: Any) -> Any:
        """None says nothing, also of an option with another default: forms store it."""
        if not isinstance(given, dict):
            return given
        return {name: one for name, one in current_names(given).items() if one is not None}


class Reading(_Group):
    """How the source is read. None: found out from the source."""

    format: Format | None = option("Format of the files, or sql (a query or its file); guessed.")
    kind: Kind | None = option("What clients hold; guessed. words keeps each client's words, for a private vocabulary.")
    client: Text | None = option(
        "Column or array that names the client; of npy the file of the ids; of text file or folder.", *WITH_IDS
    )
    unit: WhoseRows = option(
        "record: no column says whose a row is, and each row is protected by itself.", *DENSE, default="client"
    )
    token: str | None = option("Column of the token (counts).", *TABLES)
    count: str | None = option("Column of the count (counts); without it, every row counts as one.", *TABLES)
    features: int | None = option("Number of columns, or of feature ids without a vocabulary.", ge=1)
    vocabulary: Words | None = option("File with one token a line.", *WITH_IDS)
    dtype: str | None = option(
        "Type in which dense rows are stored; holds the source's values exactly by default.", *DENSE, "frames"
    )
    documents: str | None = option(
        "Split each client's documents into a training and a held-out half, by a hash of client and document: column "
        "of the document; of text: file (each in a client's folder) or section (some lines of its file).",
        *TABLES,
        "text",
    )
    tokeniser: Tokeniser = option("What is counted in text.", "text", default="words")
    heldout: Files | None = option("Files of the same clients' held-out data.", *WITH_IDS)
    halves: Halves | None = option("What the held-out data of the source are: whole documents, or single entries.")
    array: str | None = option("Array of dense rows in NPZ; x by default.", "npz", "frames")
    prefix: str | None = option("Prefix of the arrays of a sparse matrix in NPZ, such as train.", "npz")
    heldout_prefix: str | None = option("Prefix of the held-out matrix in NPZ, such as test.", "npz")
    delimiter: str | None = option("Sign between the columns of CSV.", "csv", min_length=1, max_length=1)
    decimal: str | None = option(
        "Sign before decimal places in CSV; a point by default.", "csv", min_length=1, max_length=1
    )
    encoding: Encoding | None = option("Encoding of the text of CSV or JSON lines; utf-8 by default.", "csv", "jsonl")
    longest_record: int | None = option(
        "Bytes of a record of CSV or JSON lines; 1 MiB by default.", "csv", "jsonl", ge=1, le=LARGEST_RECORD
    )
    na: Names = option("Texts to read as missing besides NA, NaN, nan and null, such as n/a,-", *TABLES, default=())
    image: str | None = option("HEIGHTxWIDTH of dense rows that are pictures, line after line.", *DENSE)
    frames_per_client: int | None = option("Consecutive frames of a client; 8 by default.", "frames", ge=1)
    frame_stride: int | None = option("Read every N-th frame; 1 by default.", "frames", ge=1)
    fold_ids: bool = option("Make one client of ids that differ only in case, width or inner blanks.", default=False)


class TableColumns(_Group):
    """The columns of a table that are read, and their public properties; or the file of a schema that declares them."""

    schema_file: Text | None = option(
        "TOML file that declares this, and more, for a table; `fedcore population sketch` drafts one."
    )
    columns: Names | None = option("Columns to read as dense rows; all others by default.", *TABLES)
    bounds: BoundsOf | None = option(
        "Public bounds of columns, numbers or ISO dates, to which values are clipped.", *TABLES
    )
    units: dict[str, str] | None = option("Units of columns for results, such as mg/dL.", *TABLES)
    dates: dict[str, str] | None = option(
        "Columns of dates, counted since 1970 in seconds, minutes, hours, days or years; after a comma the format, "
        "such as %d.%m.%Y, or several with | between them, of which iso is one; ISO by default.",
        *TABLES,
    )
    categories: ValuesOf | None = option(
        "Public values of columns, each of which becomes a column of 0 and 1; a last one, <other>, is all others.",
        *TABLES,
    )
    booleans: Names | None = option("Columns of yes and no, true and false, or 1 and 0.", *TABLES)
    outside: dict[str, Outside] | None = option(
        "What happens to a value out of the bounds of a column: clip moves it to the bound, missing reads it as "
        "missing, invalid leaves out its row; clip by default. For a category, of a value that is not in its list: "
        "missing or invalid.",
        *TABLES,
    )
    marks: dict[str, str] | None = option(
        "Columns of numbers with other marks: the one before decimal places, then the one between thousands, "
        "such as ,. for 1.234,56.",
        *TABLES,
    )
    spelling: dict[str, Spelling] | None = option(
        "How the values of a category may be spelled: exact; alike, in any case, with any blanks and accents; typos, "
        "also with one wrong letter.",
        *TABLES,
    )
    spellings: dict[str, dict[str, str]] | None = option(
        "Other spellings of the values of a category, and the value that each stands for.", *TABLES
    )


class CalendarPeriods(_Group):
    """For budgets of each calendar period: clients are split into entries, one for each period."""

    period: PeriodUnit | None = option("Split clients into entries, one for each calendar period with rows of theirs.")
    time: str | None = option("With a period: column of the time stamp (ISO dates or times).")
    zone: str | None = option("With a period: time zone of its days, such as Europe/Zurich; UTC by default.")
    first: str | None = option("Label of the first period, such as 2025-01.")
    through: str | None = option("Label of the last period; an append may extend it.")


class Declarations(_Group):
    """Public declarations of the owner about the whole population."""

    declared_clients: int | None = option(
        "Declared number of clients (in all, or of each period), for plans of private runs.", ge=0
    )
    nominal_rows: int | None = option(
        "Declared rows (of counts: different tokens) per client, for plans of private runs.", ge=1
    )
    public_for_evaluation: str | None = option(
        "Reason why this population is public and any model may be evaluated on it."
    )


class Limits(_Group):
    """What an ingest may take, what it may leave out, and how many clients are stored together."""

    memory: int = option("Bytes of memory to stay below, in each process.", default=MEMORY, ge=LEAST_MEMORY)
    workers: int | None = option("Processes that read a large table in parts; by default this one alone.", ge=1, le=256)
    tolerance: int = option("Invalid rows to leave out before the ingest fails.", default=0, ge=0)
    clients_per_leaf: int | None = option(
        "Clients that are stored together; 1024, of frames as many as fill a block.", ge=1
    )
    clients_per_block: int | None = option("Clients of a block; as suits this machine.", ge=1)


OF_SOURCE = (*Reading.model_fields, *TableColumns.model_fields)  # options of how a source is read


class IngestRequest(Limits, Declarations, CalendarPeriods, TableColumns, Reading):
    """Every option of an ingest besides the source and the place of the population."""

    @classmethod
    def of(cls, *groups: _Group | Mapping[str, Any]) -> Self:
        """The request that these groups, or options by name, make; later ones win, and None says nothing. Raises
        ConfigError for an option that does not exist, or that is of another type or out of range.
        """
        named = (current_names(dict(group)) for group in groups)
        options = {name: value for group in named for name, value in group.items() if value is not None}
        try:
            return cls.model_validate(options)
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            if name not in cls.model_fields:
                known = ", ".join(cls.model_fields)
                raise ConfigError(f"There is no option {name!r}.", f"Options are {known}.") from None
            given = repr(options[name])[:80]
            raise ConfigError(f"The option {name!r} cannot be {given}.", f"It is {form_of(name)}.") from None


def client_of(request: IngestRequest) -> str | None:
    """What names the clients; None if every row is a record. Raises IngestError."""
    if request.unit != "record":
        return request.client or "client"
    if request.client is not None:
        raise IngestError(
            f"Every row is declared to be a separate record, but {request.client!r} is declared as the client column.",
            "Give one of them: --client COLUMN, where a client may have several rows, or --unit record.",
        )
    return None


@functools.cache
def schema_of(name: str) -> dict[str, Any]:
    """The JSON schema of an option, of its first type where it has several."""
    made = _schemas()[name]
    return {**made, **made["anyOf"][0]} if "anyOf" in made else made


@functools.cache
def _schemas() -> dict[str, Any]:
    return IngestRequest.model_json_schema()["properties"]


FORMS = {
    "array": "a list of texts, or a text with commas between them",
    "boolean": "true or false",
    "object": "a table with a value for each column",
}


def form_of(name: str) -> str:
    """What values an option takes, in words."""
    made = schema_of(name)
    if "enum" in made:
        return f"one of {', '.join(made['enum'])}"
    if made["type"] == "integer":
        most = f" to {made['maximum']}" if "maximum" in made else ""
        return f"a whole number from {made['minimum']}{most}"
    if made["type"] == "string":
        return "one character" if made.get("maxLength") == 1 else "text"
    choices = made.get("additionalProperties", {}).get("enum") if made["type"] == "object" else None
    return f"a table with one of {', '.join(choices)} for each column" if choices else FORMS[made["type"]]
