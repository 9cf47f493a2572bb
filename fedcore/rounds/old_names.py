"""Old names that still work for one minor version. docs/stability.md has the rules.

A renamed setting has an entry in `Method.renamed_settings`, which stays: stored runs are read with their old names.
For an option, an argument or a Python name, call `Renamed("NEW", since="1.4").used("option 'OLD' ...")` where the old
name is read. A test of the next version reads these texts to find out which names may go.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import fedcore
from fedcore.errors import ConfigError


class OldName(FutureWarning):
    """An old name was used that will stop working. The message states the new name."""


@dataclass(frozen=True)
class Renamed:
    """new: the name now. since: the first minor version that has it, such as "1.2", in which the old one works too"""

    new: str
    since: str

    @property
    def until(self) -> str:
        """The minor version that refuses the old name."""
        major, minor = self.since.split(".")
        return f"{major}.{int(minor) + 1}"

    def used(self, what: str) -> str:
        """The new name, for a user who gave the old one. what: kind and old name, "setting 'tolerance' of ...".

        Warns once in a process. Raises ConfigError from version `until` on.
        """
        if _release(fedcore.__version__) >= _release(self.until):
            raise ConfigError(f"The {what} is called {self.new!r} since version {self.since}.", "Use the new name.")
        _warn(f"The {what} is called {self.new!r} now. The old name stops working in version {self.until}.")
        return self.new


def new_names(
    settings: Mapping[str, Any], renamed: Mapping[str, Renamed], method: str, *, stored: bool = False
) -> dict[str, Any]:
    """The settings of a method by their new names. stored: they are those of a run, where old names are no mistake.

    Raises ConfigError for a setting that is given by both names, and as `Renamed.used` does.
    """
    found = dict(settings)
    for name in settings:
        if name in renamed:
            what = f"setting {name!r} of {method!r}"
            new = renamed[name].new if stored else renamed[name].used(what)
            if new in found:
                raise ConfigError(f"The {what} is given by its old and by its new name {new!r}.", "Use the new name.")
            found[new] = found.pop(name)
    return found


@cache
def _warn(text: str) -> None:
    warnings.warn(text, OldName, stacklevel=2)


def _release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
