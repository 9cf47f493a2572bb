"""What an ingest is asked to do beside source and place, in groups: a form for flows, which offers what the command
line does, and becomes arguments of `fedcore.population.ingest.ingest.ingest`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field

from fedcore.errors import ConfigError
from fedcore.population.blocks import Kind
from fedcore.population.columns import DateUnit
from fedcore.population.ingest.ingest import LEAST_MEMORY, MEMORY
from fedcore.population.ingest.schema import read_schema
from fedcore.population.ingest.sources import Format, WhoseRows
from fedcore.population.ingest.sources_text import Tokeniser
from fedcore.population.manifest import Halves
from fedcore.population.periods import PeriodUnit

OF_COLUMNS = ("columns", "units", "bounds", "dates", "categories", "booleans")


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Reading(_Group):
    """How the source is read. Nothing said: found out."""

    format: Format | None = Field(None, description="of the files, or sql; guessed from their names by default")
    kind: Kind | None = Field(None, description="counts or rows, guessed by default; words for a private vocabulary")
    client: str | None = Field(None, description="column or array that names the client")
    unit: WhoseRows = Field("client", description="record: no column says whose a row is, each is protected by itself")
    token: str | None = Field(None, description="column of the token, of counts")
    count: str | None = Field(None, description="column of the count, of counts")
    vocabulary: str | None = Field(None, description="file with one token a line")
    documents: str | None = Field(None, description="column of the document; of text: file or section")
    tokeniser: Tokeniser | None = Field(None, description="of text")
    heldout: str | None = Field(None, description="files of the same clients' held-out data")
    halves: Halves | None = Field(None, description="what was dealt to them: whole documents, or single entries")
    array: str | None = Field(None, description="array of dense rows in NPZ")
    prefix: str | None = Field(None, description="of the arrays of a sparse matrix in NPZ")
    heldout_prefix: str | None = Field(None, description="of the held-out one")
    delimiter: str | None = Field(None, min_length=1, max_length=1, description="between columns of CSV")
    decimal: str | None = Field(None, min_length=1, max_length=1, description="before decimal places in CSV")
    longest_record: int | None = Field(
        None, ge=1, description="bytes of a record of CSV or JSON lines; 1 MiB by default"
    )
    na: tuple[str, ...] = Field((), description="what stands for nothing beside NA, NaN, nan and null")
    image: str | None = Field(None, description="HEIGHTxWIDTH of rows that are pictures")
    frames_per_client: int | None = Field(None, ge=1, description="consecutive frames that are a client; 8 by default")
    frame_stride: int | None = Field(None, ge=1, description="every so-many-th frame is read; 1 by default")
    fold_ids: bool = Field(False, description="ids that differ only in case, width or inner blanks are one client")


class TableColumns(_Group):
    """The columns of a table that are read, and what is public about them; or the file of a schema that says it."""

    schema_file: str | None = Field(
        None, description="TOML file that says this, and more, of a table; `fedcore population sketch` drafts one"
    )
    columns: list[str] | None = Field(None, description="that are read as dense rows; all but the client's by default")
    bounds: dict[str, tuple[float | str, float | str]] | None = Field(
        None, description="public bounds [low, high] of columns, numbers or ISO dates, to which values are clipped"
    )
    units: dict[str, str] | None = Field(None, description="of columns, for people")
    dates: dict[str, str] | None = Field(
        None, description=f"columns of dates: {', '.join(get_args(DateUnit))} since 1970, then a comma and the format"
    )
    categories: dict[str, list[str]] | None = Field(
        None, description="public values of columns, each of which becomes a column of 0 and 1"
    )
    booleans: list[str] | None = Field(None, description="columns of yes and no, true and false, or 1 and 0")


class CalendarPeriods(_Group):
    """For budgets that promise privacy for each calendar period: clients are dealt to entries, one for each."""

    period: PeriodUnit | None = Field(None, description="day, week, month, quarter or year")
    time: str | None = Field(None, description="column of the time stamp")
    zone: str | None = Field(None, description="whose days these are, such as Europe/Zurich; UTC by default")
    first: str | None = Field(None, description="label of the first period, such as 2025-01")
    through: str | None = Field(None, description="label of the last one; appending moves it on")


class Declarations(_Group):
    """What the owner says in public of the whole population."""

    nominal_clients: int | None = Field(None, ge=1, description="size to plan private runs with")
    nominal_rows: int | None = Field(
        None, ge=1, description="rows of a client (different tokens, of counts) to plan private runs with"
    )
    public_for_evaluation: str | None = Field(None, description="the reason why anybody may evaluate on these data")


class Limits(_Group):
    """What an ingest may take, and what it may leave out."""

    memory: int = Field(MEMORY, ge=LEAST_MEMORY, description="bytes to stay below, in each process")
    workers: int | None = Field(None, ge=1, le=256, description="processes that read a large table in parts")
    tolerance: int = Field(0, ge=0, description="bad rows that are left out before it gives up")


def arguments(*groups: _Group, append: bool) -> dict[str, Any]:
    """Of `ingest`, as the groups say; what the schema says of a table included. Raises ConfigError if something is said
    twice, and what `read_schema` raises.

    append: as for `with_schema`
    """
    said = {name: value for group in groups for name, value in group if value not in (None, ())}
    file = said.pop("schema_file", None)
    return said if file is None else with_schema(Path(file), said, append)


def with_schema(file: Path, said: Mapping[str, Any], append: bool) -> dict[str, Any]:
    """The arguments of `ingest` in the file of a schema, and those beside it. Raises ConfigError if both say something
    of the same, and what `read_schema` raises.

    append: the schema is that of before, and the number of clients that it declares no new one
    """
    given = {name for name, value in said.items() if value not in (None, ()) and (name, value) != ("unit", "client")}
    schema = read_schema(file)
    if append:
        schema.pop("nominal_clients", None)
    if both := sorted(given & {*schema, *OF_COLUMNS}):
        raise ConfigError(f"{', '.join(both)}: said in {file} and beside it.", "Say it in the schema.")
    return {**said, **schema}
