"""The copies of released values that a private run keeps with its state (`fedcore.runs.store`), bound to its head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from fedcore.errors import RunError
from fedcore.runs import digests as run_digests
from fedcore.storage import digests, files
from fedcore.storage.arrays import read_values, write_values
from fedcore.storage.files import Place


class ReleaseCopies:
    """The folder releases/ of the run in this folder. plan: its planned releases, as run.json has them."""

    def __init__(self, folder: Place, run_id: str, plan: Sequence[Mapping[str, Any]]) -> None:
        self.folder = folder / "releases"
        self.run_id = run_id
        self.known: dict[str, str] | None = None  # digests by file, once they are needed
        self._plan = plan

    @cached_property
    def _rounds(self) -> dict[str, int]:
        return {f"{item['name']}.zip": item["round"] for item in self._plan}

    def keep(self, name: str, array: np.ndarray) -> None:
        """Keep a copy of a published value."""
        digest = write_values(self.folder / f"{name}.zip", {"values": array})
        if self.known is not None:
            self.known[f"{name}.zip"] = digest

    def remove_unplanned(self) -> None:
        """Remove copies of what no planned release is called. Raises OSError, Unreachable."""
        for name in self.names():
            if f"{name}.zip" not in self._rounds:
                files.remove(self.folder / f"{name}.zip")
        self.known = None

    def names(self) -> list[str]:
        """Names of the values of which there are copies."""
        stored = files.listing(self.folder)
        return [name.removesuffix(".zip") for name in stored if name.endswith(".zip") and not name.startswith(".")]

    def read(self) -> dict[str, np.ndarray]:
        """The values by name. Raises RunError if one is damaged."""
        return {name: read_values(self.folder / f"{name}.zip")["values"] for name in self.names()}

    def digest(self, round: int) -> str | None:
        """Of the list of the copies up to a round, which this process has kept or looked at; None if there is none."""
        if self.known is None:
            self.known = self._stored()
        return self._of(self.known, round)

    def check(self, round: int, expected: str | None) -> None:
        """Raises RunError if the copies up to a round are others than they were. expected: digest of their list."""
        if self._of(self._stored(), round) != expected:
            raise RunError(
                f"the copies of released values of run {self.run_id!r} are not those that its head names: they were "
                "changed, or some are lost.",
                "Restore the folder releases from a backup; `fedcore resume` restores it from the ledger.",
            )

    def _stored(self) -> dict[str, str]:
        try:
            return run_digests.of_folder(self.folder)
        except OSError as error:
            raise RunError(
                f"copies of released values of run {self.run_id!r} are unreadable ({error.strerror}).",
                "Restore the folder releases from a backup.",
            ) from error

    def _of(self, found: Mapping[str, str], round: int) -> str | None:
        """Without those of a round that is not committed, which was made until its values were released."""
        due = {name: digest for name, digest in found.items() if self._rounds.get(name, -1) <= round}
        return digests.of_files(due) if due else None
