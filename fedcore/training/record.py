"""What the record of a run says of its software and of the named columns of its population, which is then read, and
compared, without the population.
"""

from __future__ import annotations

import platform
from importlib import metadata

from fedcore.population.store import Population
from fedcore.storage.parsing import JsonObject

# On which a run's numbers may depend, and what schedules and answers it.
PACKAGES = ("numpy", "scipy", "zarr", "python-flint", "dask", "prefect")


def installed() -> dict[str, str]:
    """Version by name, of Python and of those packages that are there. Nothing is imported for it."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def columns_to_record(population: Population) -> list[dict[str, str]] | None:
    """Name and unit of each column, as run.json has them; None if they have no names."""
    return [{"name": column.name, "unit": column.unit} for column in population.manifest.columns] or None


def other_columns(info: JsonObject, population: Population) -> str:
    """The first column in which the population differs from that of the run, in words; empty if there is none, or one
    of the two does not name its columns. info: run.json. Units are compared where both name one.
    """
    theirs, mine = info.get("columns"), columns_to_record(population)
    if not theirs or mine is None:
        return ""
    for number, (one, other) in enumerate(zip(theirs, mine, strict=False)):
        if one["name"] != other["name"]:
            return f"column {number} is {other['name']!r} instead of {one['name']!r}"
        if one.get("unit") and other["unit"] and one["unit"] != other["unit"]:
            return f"{one['name']!r} is in {other['unit']} instead of {one['unit']}"
    return "" if len(theirs) == len(mine) else f"it has {len(mine)} columns instead of {len(theirs)}"
