"""What is said of the columns of a table on the command line, as options or in the file of a schema."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcore.errors import ConfigError


def column_options(
    bounds: list[str] | None, date: list[str] | None, category: list[str] | None, boolean: str | None, na: str | None
) -> dict[str, Any]:
    """Arguments of `ingest`; None for what nobody said. Raises ConfigError for what is not of the form."""
    return {
        "bounds": _named("--bounds", bounds, "COLUMN=LOW:HIGH", _low_and_high),
        "dates": _named("--date", date, "COLUMN=UNIT", str),
        "categories": _named("--category", category, "COLUMN=A,B,C", _listed),
        "booleans": None if boolean is None else _listed(boolean),
        "na": () if na is None else tuple(_listed(na)),
    }


def _named(option: str, pairs: list[str] | None, form: str, value_of) -> dict[str, Any] | None:
    if not pairs:
        return None
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name or not text:
            raise ConfigError(f"{option} {pair!r} is not of the form {form}.")
        if name in found:
            raise ConfigError(f"{option} is said twice of the column {name!r}.", "Say it once.")
        found[name] = value_of(text)
    return found


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",")]


def _low_and_high(text: str) -> tuple[str, str]:
    low, colon, high = text.partition(":")
    if not colon or not low.strip() or not high.strip():
        raise ConfigError(f"the bounds {text!r} are not of the form LOW:HIGH.", "Write 0:120, or -5:5.")
    return low.strip(), high.strip()


def with_schema(file: Path, said: Mapping[str, Any], append: bool) -> dict[str, Any]:
    """The arguments of `ingest` in the file of a schema, and those beside it. Raises ConfigError if both say something
    of the same, and what `read_schema` raises.

    append: the schema is that of before, and the number of clients that it declares no new one
    """
    from fedcore.population.ingest.schema import read_schema

    given = {name: value for name, value in said.items() if value not in (None, ()) and (name, value) != UNIT}
    schema = read_schema(file)
    if append:
        schema.pop("nominal_clients", None)
    of_columns = {"columns", "bounds", "dates", "categories", "booleans"}
    if both := sorted((given.keys() & schema.keys()) | (of_columns & given.keys())):
        raise ConfigError(f"{', '.join(both)}: said in {file} and beside it.", "Say it in the schema.")
    return {**said, **schema}


UNIT = ("unit", "client")  # what nobody has to say
