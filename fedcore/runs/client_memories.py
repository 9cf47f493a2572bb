"""The clients' memories of a run (`fedcore.runs.store`): a folder for each round, with a file for each block.

Workers write the files (`fedcore.rounds.clients`); here are their places, and what binds them to the head of the run:
memory/000007.json lists the digests of memory/000007/.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from fedcore.errors import FedcoreError, RunError
from fedcore.runs import digests as run_digests
from fedcore.runs.run_files import refuse_links
from fedcore.storage import digests, files
from fedcore.storage.arrays import writing
from fedcore.storage.files import Place, is_remote

FORGOTTEN = "forgotten"  # in the head: when the memories were removed because clients were forgotten


class ClientMemories:
    """The folder memory/ of the run in this folder. `head` is always the run's head as it is now."""

    def __init__(self, folder: Place, run_id: str) -> None:
        self.root = folder / "memory"
        self.run_id = run_id

    def folder(self, round: int) -> Place:
        return self.root / f"{round:06d}"

    def _list(self, round: int) -> Place:
        return self.root / f"{round:06d}.json"

    def committed(self, head: Mapping[str, Any]) -> Place | None:
        """The folder after the last committed round; None if the method keeps none. Raises RunError if it is lost, or
        was removed because clients were forgotten.
        """
        if FORGOTTEN in head:
            raise RunError(
                f"the clients' memories of run {self.run_id!r} were removed on {head[FORGOTTEN]}, as clients were "
                "forgotten.",
                "Train again.",
            )
        folder = self.folder(head["round"])
        kept = head.get("memories", False)
        if kept and not files.is_folder(folder):
            raise RunError(
                f"the clients' memories after round {head['round']} of run {self.run_id!r} are lost: there is no "
                f"folder memory/{folder.name}.",
                "Restore it from a backup, or train again.",
            )
        if kept:
            refuse_links(folder, 1, self.run_id)
        return folder if kept else None

    def digests(self, head: Mapping[str, Any]) -> dict[str, str] | None:
        """{name: digest} of the committed files; None if they are not known. Raises RunError if they are others."""
        expected = (head.get("files") or {}).get("memory")
        if expected is None:
            return None
        round = head["round"]
        refuse_links(self.folder(round), 1, self.run_id)
        what = f"the clients' memories after round {round} of run {self.run_id!r}"
        return run_digests.read_list(self._list(round), self.folder(round), str(expected), what)

    def keep_list(self, round: int, found: Mapping[str, str] | None) -> str:
        """Keep the list of the digests of a round's files, and return its own. found: {name: digest}, where they are
        known. Raises RunError."""
        with writing("memory"):
            found = run_digests.of_folder(self.folder(round)) if found is None else found
            run_digests.write_list(self._list(round), found)
        return digests.of_files(found)

    def flush_names(self) -> None:
        """Make the names of the rounds durable. Raises RunError."""
        with writing("memory"):
            files.flush(self.root)

    def flush(self, round: int, contents: bool) -> None:
        """Make memories durable before the head names them: the names of their files, and the contents if they were
        written without a flush. On a disk that hosts share, what another host wrote is there since it closed the file.
        """
        folder = self.folder(round)
        if is_remote(folder) or not folder.is_dir():
            return
        with writing("memory"):
            for path in [*(sorted(folder.iterdir()) if contents else []), folder]:
                files.flush(path)

    def remove(self) -> int:
        """Remove all of them; returns their bytes. The head says so before. Raises RunError."""
        size = files.size(self.root)
        with writing("what is to be removed"):
            files.remove(self.root)
        return size

    def drop(self, round: int) -> None:
        """Remove the memories of a round that was never committed, as far as possible."""
        with suppress(FedcoreError, OSError):
            files.remove(self.folder(round))
