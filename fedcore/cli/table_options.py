"""What is said of the columns of a table on the command line."""

from __future__ import annotations

from typing import Any

from fedcore.errors import ConfigError


def column_options(
    bounds: list[str] | None,
    units: list[str] | None,
    date: list[str] | None,
    category: list[str] | None,
    boolean: str | None,
    na: str | None,
) -> dict[str, Any]:
    """Arguments of `ingest`; None for what nobody said. Raises ConfigError for what is not of the form."""
    return {
        "bounds": _named("--bounds", bounds, "COLUMN=LOW:HIGH", _low_and_high),
        "units": _named("--units", units, "COLUMN=UNIT", str),
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
