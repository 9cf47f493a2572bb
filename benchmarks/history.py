"""A file of measurements, one JSON object a line, and what changed between two commits.

The format is in docs/notes/benchmarks.md. In a row of a result, fractions are quantities; text and whole numbers name
what was measured.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

import fedcore
from benchmarks import machine
from benchmarks.measured import Measured
from fedcore.rounds.clients import peak_memory

SCHEMA = 1
FEWEST = 3  # values of a quantity that tell a spread
SHOWN = 10  # digits of a commit


# --- writing --------------------------------------------------------------------------------------------------------


def lines(result: Mapping, arguments: Mapping, load_before: float) -> list[dict]:
    """One object for each row of a benchmark's result that has quantities."""
    around = {
        "schema": SCHEMA,
        "benchmark": result["benchmark"],
        "arguments": {name: value for name, value in arguments.items() if isinstance(value, (bool, int, float, str))},
        **commit(),
        "version": fedcore.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.facts(),
        "load": [load_before, machine.load()],
        "peak_bytes": {"benchmark": peak_memory()},  # flow and workers tell their own, which are quantities
    }
    found = []
    for row in result["rows"]:
        quantities = {name: _quantity(value) for name, value in row.items() if isinstance(value, float)}
        named = {name: value for name, value in row.items() if not isinstance(value, float)}
        if quantities:
            found.append({**around, "labels": named, "quantities": quantities})
    return found


def _quantity(value: float) -> dict:
    measured = value if isinstance(value, Measured) else Measured([value])
    low, high = measured.quartiles
    return {"median": float(measured), "q1": low, "q3": high, "n": len(measured.values)}


def commit(folder: Path = Path(__file__).parent) -> dict:
    """commit: of the clone that the folder is in, or None; changed: whether tracked files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.CalledProcessError):  # no Git, or no clone
        return {"commit": None, "changed": False}


def append(file: Path, added: Iterable[Mapping]) -> None:
    """Raises OSError if it cannot be written, ValueError for numbers that JSON has not."""
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in added)
    with open(file, "a", encoding="utf-8") as opened:
        opened.write(text)


# --- reading --------------------------------------------------------------------------------------------------------


def read(file: Path) -> list[dict]:
    """Raises ValueError that names a line which is not of this format."""
    found = []
    for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
            if line["schema"] != SCHEMA:
                raise ValueError(f"schema {line['schema']}")
            line["benchmark"], line["labels"], line["quantities"], line["commit"]  # noqa: B018 - missing ones raise
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number} of {file} is no measurement ({type(error).__name__}: {error})") from None
        found.append(line)
    return found


class Interval(NamedTuple):
    """median: of the lines' medians. low, high: the least first and the largest third quartile. n: values in all."""

    median: float
    low: float
    high: float
    n: int


def compare(measured: Sequence[Mapping], between: tuple[str, str] | None = None) -> tuple[list[dict], list[str]]:
    """(rows, remarks): every quantity that both commits have, as a ratio later / earlier with its spread.

    between: beginnings of two commits, `+` behind one with changes; None: the last two of the file. A difference is
    inside the noise if the ranges from first to third quartile meet, and nothing is said about one of fewer than
    three values. Raises ValueError if a commit is not in the file, or there are no two.
    """
    first, second = _two(measured, between)
    one, other = (_by_quantity(line for line in measured if _name(line) == name) for name in (first, second))
    rows = [_compared(key, one[key], other[key]) for key in one if key in other]
    remarks = [f"{first} -> {second}: a ratio of 2 says that the number doubled."]
    alone = len(one.keys() ^ other.keys())
    if alone:
        remarks.append(f"{alone} quantities were measured at one of the two only.")
    machines = {json.dumps(line["machine"], sort_keys=True) for line in measured if _name(line) in (first, second)}
    if len(machines) > 1:
        remarks.append("The machines or their libraries were not the same: only ratios to floors can be compared.")
    busy = [
        line for line in measured if _name(line) in (first, second) and max(line["load"]) > line["machine"]["cores"]
    ]
    if busy:
        remarks.append(f"{len(busy)} lines were measured with a load above the number of cores.")
    return rows, remarks


def _name(line: Mapping) -> str:
    return f"{(line['commit'] or 'no commit')[:SHOWN]}{'+' * bool(line['changed'])}"


def _two(measured: Sequence[Mapping], between: tuple[str, str] | None) -> tuple[str, str]:
    names = list(dict.fromkeys(_name(line) for line in reversed(measured)))[::-1]  # by their last line
    if between is None:
        if len(names) < 2:
            raise ValueError(f"the file has measurements of {len(names)} commit(s), and two are compared")
        return names[-2], names[-1]
    found = []
    for wanted in between:
        plus, digits = wanted.endswith("+"), wanted.rstrip("+")[:SHOWN]
        fitting = [name for name in names if name.startswith(digits) and name.endswith("+") == plus]
        if len(fitting) != 1:
            raise ValueError(f"{wanted!r} stands for {len(fitting)} of the commits of the file: {', '.join(names)}")
        found.append(fitting[0])
    return found[0], found[1]


def _by_quantity(measured: Iterable[Mapping]) -> dict[tuple, Interval]:
    gathered: dict[tuple, list[dict]] = {}
    for line in measured:
        arguments = json.dumps(line.get("arguments", {}), sort_keys=True)
        labels = json.dumps(line["labels"], sort_keys=True)
        for name, value in line["quantities"].items():
            gathered.setdefault((line["benchmark"], arguments, labels, name), []).append(value)
    return {
        key: Interval(
            float(np.median([value["median"] for value in values])),
            min(value["q1"] for value in values),
            max(value["q3"] for value in values),
            sum(value["n"] for value in values),
        )
        for key, values in gathered.items()
    }


def _compared(key: tuple, one: Interval, other: Interval) -> dict:
    benchmark, _, labels, quantity = key
    row = {
        "benchmark": benchmark,
        "what": ", ".join(map(str, json.loads(labels).values())),
        "quantity": quantity,
        "earlier": one.median,
        "later": other.median,
    }
    if not (one.median > 0 and other.median > 0 and one.low > 0 and other.low > 0):
        return {**row, "ratio": None, "from": None, "to": None, "says": "no ratio: not positive"}
    ratio, low, high = other.median / one.median, other.low / one.high, other.high / one.low
    if min(one.n, other.n) < FEWEST:
        says = "unknown: too few values"
    elif low <= 1 <= high:
        says = "inside the noise"
    else:
        says = "more" if ratio > 1 else "less"
    return {**row, "ratio": ratio, "from": low, "to": high, "says": says}
