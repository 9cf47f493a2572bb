"""What others may build upon, as lists (`golden/*.txt`) that a test compares with the code.

python -m tests.stability.make          writes the lists again

A line is "name: what it is", or "object: field=type field=type". What is removed or changed breaks what others built.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.stability import formats, names

GOLDEN = Path(__file__).with_name("golden")
LISTS: dict[str, Callable[[], dict[str, str]]] = {
    "python": names.python,
    "methods": names.methods,
    "settings": names.settings,
    "commands": names.commands,
    "formats": formats.declared,
    "json": lambda: formats.sampled()[0],
    "files": lambda: formats.sampled()[1],
}
SLOW = ("json", "files")
MAKE = "python -m tests.stability.make"


def written(found: dict[str, str], fields: bool = False) -> str:
    """One line for each name; with `fields`, one for all fields of an object."""
    lines = [f"{name}: {what}".rstrip() for name, what in found.items() if not (fields and what)]
    of_objects: dict[str, list[str]] = {}
    for name, what in sorted(found.items()):
        if fields and what:
            parent, _, field = name.rpartition(".")
            of_objects.setdefault(parent, []).append(f"{field}={what}")
    lines += [f"{name}: {' '.join(some)}" for name, some in of_objects.items()]
    return "".join(f"{line}\n" for line in sorted(lines))


def stored(name: str) -> dict[str, str]:
    return read((GOLDEN / f"{name}.txt").read_text(), name in SLOW)


def read(text: str, fields: bool = False) -> dict[str, str]:
    """What `written` wrote."""
    pairs = [line.partition(": ")[::2] for line in text.splitlines()]
    if not fields:
        return {name.removesuffix(":"): what for name, what in pairs}
    found = {}
    for place, fields in pairs:
        parts = [one.split("=") for one in fields.split(" ")] if "=" in fields else []
        found |= {f"{place}.{field}": kind for field, kind in parts} or {f"{place}: {fields.removesuffix(':')}": ""}
    return found


def differences(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """One line for each change. A parameter with a default at the end, or by name alone, is an addition."""
    found = [f"removed: {name}" for name in before if name not in now]
    found += [f"added: {name}" for name in now if name not in before]
    for name in before.keys() & now.keys():
        if before[name] != now[name]:
            kind = "added to" if extends(before[name], now[name]) else "changed"
            found.append(f"{kind}: {name}: {before[name]} -> {now[name]}")
    return sorted(found)


def extends(before: str, now: str) -> bool:
    """Whether a signature has the same parameters, in the same order, and others with defaults behind them."""
    if not (before.startswith("(") and now.startswith("(")):
        return False
    (places, names), (more_places, more_names) = parameters(before), parameters(now)
    more = more_places[len(places) :] + [one for one in more_names if one not in names]
    same = more_places[: len(places)] == places and set(names) <= set(more_names)
    return same and all("=" in one for one in more)


def parameters(signature: str) -> tuple[list[str], list[str]]:
    """(by place, by name alone); defaults hold no comma that is followed by a name."""
    parts = [one for one in re.split(r", (?=[a-zA-Z_*/])", signature[1:].rpartition(")")[0]) if one not in ("", "/")]
    star = next((at for at, one in enumerate(parts) if one.startswith("*") and not one.startswith("**")), len(parts))
    return parts[:star], [one for one in parts[star:] if one != "*"]


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, make in LISTS.items():
        (GOLDEN / f"{name}.txt").write_text(written(make(), name in SLOW))
