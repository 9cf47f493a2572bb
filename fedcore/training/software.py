"""Which versions a run begins with: of what its numbers may depend on, and of what schedules and answers it."""

from __future__ import annotations

import platform
from importlib import metadata

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
