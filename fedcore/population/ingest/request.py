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

from fedcore.errors import ConfigError
from fedcore.population.choices import Format, Halves, Kind, PeriodUnit, Tokeniser, WhoseRows

MEMORY = 512 << 20
LEAST_MEMORY = 16 << 20
LARGEST_RECORD = 1 << 30  # bytes; the places in a text of 2 GiB do not fit into Arrow's 32 bits

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


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_none(cls, given: Any) -> Any:
        """None says nothing, also of an option with another default: forms store it."""
        return {name: one for name, one in given.items() if one is not None} if isinstance(given, dict) else given


class Reading(_Group):
    """How the source is read. None: found out from the source."""

    format: Format | None = Field(None, description="Format of the files, or sql (a query or its file); guessed.")
    kind: Kind | None = Field(
        None, description="What clients hold; guessed. words keeps each client's words, for a private vocabulary."
    )
    client: Text | None = Field(
        None, description="Column or array that names the client; of npy the file of the ids; of text file or folder."
    )
    unit: WhoseRows = Field(
        "client", description="record: no column says whose a row is, and each row is protected by itself."
    )
    token: str | None = Field(None, description="Column of the token (counts).")
    count: str | None = Field(None, description="Column of the count (counts); every row counts one without it.")
    features: int | None = Field(None, ge=1, description="Number of columns, or of feature ids without a vocabulary.")
    vocabulary: Words | None = Field(None, description="File with one token a line.")
    dtype: str | None = Field(
        None, description="Type in which dense rows are stored; holds the source's values exactly by default."
    )
    documents: str | None = Field(
        None,
        description="Deal each client's documents to a training and a held-out half, by a hash of client and document: "
        "column of the document; of text: file (each in a client's folder) or section (some lines of its file).",
    )
    tokeniser: Tokeniser = Field("words", description="What is counted in text.")
    heldout: Files | None = Field(None, description="Files of the same clients' held-out data.")
    halves: Halves | None = Field(
        None, description="What the held-out data of the source are: whole documents, or single entries."
    )
    array: str | None = Field(None, description="Array of dense rows in NPZ; x by default.")
    prefix: str | None = Field(None, description="Prefix of the arrays of a sparse matrix in NPZ, such as train.")
    heldout_prefix: str | None = Field(None, description="Prefix of the held-out matrix in NPZ, such as test.")
    delimiter: str | None = Field(None, min_length=1, max_length=1, description="Sign between the columns of CSV.")
    decimal: str | None = Field(
        None, min_length=1, max_length=1, description="Sign before decimal places in CSV; a point by default."
    )
    longest_record: int | None = Field(
        None, ge=1, le=LARGEST_RECORD, description="Bytes of a record of CSV or JSON lines; 1 MiB by default."
    )
    na: Names = Field((), description="Texts to read as missing besides NA, NaN, nan and null, such as n/a,-")
    image: str | None = Field(None, description="HEIGHTxWIDTH of dense rows that are pictures, line after line.")
    frames_per_client: int | None = Field(None, ge=1, description="Consecutive frames of a client; 8 by default.")
    frame_stride: int | None = Field(None, ge=1, description="Every so-many-th frame is read; 1 by default.")
    fold_ids: bool = Field(False, description="Make one client of ids that differ only in case, width or inner blanks.")


class TableColumns(_Group):
    """The columns of a table that are read, and what is public about them; or the file of a schema that says it."""

    schema_file: Text | None = Field(
        None, description="TOML file that says this, and more, of a table; `fedcore population sketch` drafts one."
    )
    columns: Names | None = Field(None, description="Columns to read as dense rows; all others by default.")
    bounds: BoundsOf | None = Field(
        None, description="Public bounds of columns, numbers or ISO dates, to which values are clipped."
    )
    units: dict[str, str] | None = Field(None, description="Units of columns for results, such as mg/dL.")
    dates: dict[str, str] | None = Field(
        None,
        description="Columns of dates, counted since 1970 in seconds, minutes, hours, days or years; after a comma the "
        "format, such as %d.%m.%Y, ISO by default.",
    )
    categories: ValuesOf | None = Field(
        None,
        description="Public values of columns, each of which becomes a column of 0 and 1; a last one, <other>, is all "
        "others.",
    )
    booleans: Names | None = Field(None, description="Columns of yes and no, true and false, or 1 and 0.")


class CalendarPeriods(_Group):
    """For budgets that hold for each calendar period: clients are dealt to entries, one for each period."""

    period: PeriodUnit | None = Field(
        None, description="Deal clients to entries, one for each calendar period in which they have rows."
    )
    time: str | None = Field(None, description="With a period: column of the time stamp (ISO dates or times).")
    zone: str | None = Field(
        None, description="With a period: time zone of its days, such as Europe/Zurich; UTC by default."
    )
    first: str | None = Field(None, description="Label of the first period, such as 2025-01.")
    through: str | None = Field(None, description="Label of the last period; appending moves it on.")


class Declarations(_Group):
    """What the owner declares in public about the whole population."""

    nominal_clients: int | None = Field(
        None, ge=0, description="Declared number of clients (in all, or of each period), for plans of private runs."
    )
    nominal_rows: int | None = Field(
        None, ge=1, description="Declared rows (of counts: different tokens) per client, for plans of private runs."
    )
    public_for_evaluation: str | None = Field(
        None, description="Reason why this population is public and any model may be evaluated on it."
    )


class Limits(_Group):
    """What an ingest may take, what it may leave out, and how many clients are stored together."""

    memory: int = Field(MEMORY, ge=LEAST_MEMORY, description="Bytes of memory to stay below, in each process.")
    workers: int | None = Field(
        None, ge=1, le=256, description="Processes that read a large table in parts; by default this one alone."
    )
    tolerance: int = Field(0, ge=0, description="Invalid rows to leave out before the ingest fails.")
    clients_per_leaf: int | None = Field(
        None, ge=1, description="Clients that are stored together; 1024, of frames as many as fill a block."
    )
    clients_per_block: int | None = Field(None, ge=1, description="Clients of a block; as suits this machine.")


OF_SOURCE = (*Reading.model_fields, *TableColumns.model_fields)  # options of how a source is read


class IngestRequest(Limits, Declarations, CalendarPeriods, TableColumns, Reading):
    """Every option of an ingest besides the source and the place of the population."""

    @classmethod
    def of(cls, *groups: _Group | Mapping[str, Any]) -> Self:
        """The request that these groups, or options by name, make; later ones win, and None says nothing. Raises
        ConfigError for an option that does not exist, or that is of another type or out of range.
        """
        options = {name: value for group in groups for name, value in dict(group).items() if value is not None}
        try:
            return cls.model_validate(options)
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            if name not in cls.model_fields:
                known = ", ".join(cls.model_fields)
                raise ConfigError(f"There is no option {name!r}.", f"Options are {known}.") from None
            given = repr(options[name])[:80]
            raise ConfigError(f"The option {name!r} cannot be {given}.", f"It is {form_of(name)}.") from None


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
    return FORMS[made["type"]]
