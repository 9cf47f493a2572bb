"""JSON and TOML from untrusted sources: read within bounds, and refused by one kind of error.

Files that users pass, or that are in folders others can write to, may be nested so deeply that parsers run out of
stack, or contain numbers that are no floats. All of this is a ValueError here; callers add the name of the file.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

JsonObject = Mapping[str, Any]  # as it was read; what its entries are is not known yet

DEEPEST = 100  # lists and tables within one another
LONGEST_NUMBER = 300  # digits; a longer one is no float, and takes time that grows with the square of its length
LONG_NUMBER = re.compile(rf"[0-9_]{{{LONGEST_NUMBER + 1},}}")
LARGEST_SETTINGS = 1 << 20  # bytes of a file of settings


def parse_json(text: str | bytes) -> Any:
    """The value. Raises ValueError for everything else, also for NaN, infinities, deep nesting and endless numbers."""
    text = text if isinstance(text, str) else text.decode("utf-8-sig")
    parse_int = _short if LONG_NUMBER.search(text) else None
    try:
        return _shallow(json.loads(text, parse_constant=_no_number, parse_float=_finite, parse_int=parse_int))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """The table. Raises ValueError (TOMLDecodeError is one) for everything else."""
    if match := LONG_NUMBER.search(_without_strings(text)):
        _short(match.group())
    try:
        table: dict[str, Any] = _shallow(tomllib.loads(text))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _in_64_bits(table)
    return table


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a file of settings. Raises OSError, and ValueError for what is too long or no TOML."""
    with open(path, "rb") as file:
        content = file.read(LARGEST_SETTINGS + 1)
    if len(content) > LARGEST_SETTINGS:
        raise ValueError(f"it is longer than {LARGEST_SETTINGS} bytes")
    return parse_toml(content.decode())


def _without_strings(text: str) -> str:
    return re.sub(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'', '""', text)


def _no_number(name: str) -> object:
    raise ValueError(f"it holds {name}, which is no number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("it holds a number that is too large")
    return value


def _short(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER + 1:
        raise ValueError(f"it holds a number of {len(digits)} digits")
    return int(digits)


def _in_64_bits(value: Any) -> None:
    """As TOML demands of its integers. Raises ValueError."""
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _in_64_bits(item)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"it holds a number of {len(str(abs(value)))} digits, which does not fit in 64 bits")


def _shallow(value: Any) -> Any:
    """The value, if it is not nested more than DEEPEST times."""
    level = [value]
    for _ in range(DEEPEST):
        inside = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list)))
        level = [item for one in inside for item in one if isinstance(item, (dict, list))]
        if not level:
            return value
    raise ValueError("it is nested too deeply")


def format_suffix(name: str) -> str:
    """The ending of a file's name that names its format, in small letters, such as ".csv"; empty if there is none: a
    point before a digit is part of the name (run_0.5_0).
    """
    stem, point, suffix = name.rpartition(".")
    return f".{suffix.lower()}" if stem and suffix and not suffix[0].isdigit() else ""


def safe_cell(text: str) -> str:
    """Text for a CSV file that no spreadsheet runs as a formula: with an apostrophe before it if it begins like one."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
