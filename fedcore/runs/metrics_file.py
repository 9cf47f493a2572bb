"""The rows of metrics of a run (`fedcore.runs.store`): one JSON object on a line for each committed round.

In a folder the file is appended to. Behind a URL, where nothing can be appended, the rows are put whole at each commit,
under a name of their writer's own. In both cases the head of the run says what of them is committed: their bytes, and
the name of the file. Longer files hold rows of a round that was never committed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from blake3 import blake3

from fedcore.errors import RunError
from fedcore.runs.run_files import METRICS
from fedcore.storage import digests, files
from fedcore.storage.arrays import writing
from fedcore.storage.files import Place, is_remote
from fedcore.storage.parsing import parse_json


class MetricsFile:
    """The metrics of the run in this folder. `head` is always the run's head as it is now."""

    def __init__(self, folder: Place, run_id: str) -> None:
        self.folder = folder
        self.run_id = run_id
        self._cached: bytes | None = None  # behind a URL: the committed rows, once they were read
        self._hashed = blake3()  # of the first `_length` bytes, which were written or compared by this process
        self._length = 0

    def rows(self, head: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The committed rows. Raises RunError if they are damaged or lost."""
        try:
            return [parse_json(line) for line in self._committed(head).decode().splitlines()]
        except ValueError as error:
            raise self._unreadable(head, error) from error

    def append(
        self, head: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], token: str | None = None
    ) -> dict[str, Any]:
        """Write rows after the committed ones. Returns what the next head has to say of the metrics.

        token: of the lock that this process holds behind a URL
        """
        lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()
        if is_remote(self.folder):
            return self._put(head, lines, token)
        size = head["metrics_bytes"]
        self._hash(head, lines)
        with writing(METRICS), files.opened(self.folder / name_of(head), "ab") as file:
            if file.tell() < size:
                raise self._too_short(head)
            file.truncate(size)
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
            return {"metrics_bytes": os.fstat(file.fileno()).st_size}

    def digest(self) -> str:
        """BLAKE3 of the rows up to those that were appended last."""
        return str(self._hashed.hexdigest())

    def _hash(self, head: Mapping[str, Any], lines: bytes) -> None:
        """Take these rows into the digest, after the committed ones, which are read again only if need be."""
        if self._length != head["metrics_bytes"]:  # another process wrote them, or a round was not committed
            self._hashed, self._length = blake3(self._committed(head)), head["metrics_bytes"]
        self._hashed.update(lines)
        self._length += len(lines)

    def _put(self, head: Mapping[str, Any], lines: bytes, token: str | None) -> dict[str, Any]:
        if self._cached is None or len(self._cached) != head["metrics_bytes"]:
            self._cached = self._committed(head)
        self._hash(head, lines)
        if not lines:
            return {}
        self._cached += lines  # if the round is not committed, the length shows it, and they are read again
        name = METRICS if token is None else f"metrics-{token}.jsonl"
        files.write_whole(self.folder / name, self._cached)
        return {"metrics_bytes": len(self._cached), "metrics_file": name}

    def _committed(self, head: Mapping[str, Any]) -> bytes:
        size = head["metrics_bytes"]
        try:
            content = files.read_bytes(self.folder / name_of(head)) if size else b""
        except OSError as error:
            raise self._unreadable(head, error) from error
        if len(content) < size:
            raise self._too_short(head)
        named = head.get("files")
        if named is not None and digests.of_data(content[:size]) != named["metrics"]:
            raise RunError(
                f"{name_of(head)} of run {self.run_id!r} does not hold the rows that its head names: it was changed.",
                "Restore it from a backup.",
            )
        return content[:size]

    def _unreadable(self, head: Mapping[str, Any], error: Exception) -> RunError:
        return RunError(
            f"{name_of(head)} of run {self.run_id!r} is unreadable ({type(error).__name__}).",
            "Restore it from a backup.",
        )

    def _too_short(self, head: Mapping[str, Any]) -> RunError:
        return RunError(
            f"{name_of(head)} of run {self.run_id!r} is shorter than its head says.", "Restore it from a backup."
        )


def name_of(head: Mapping[str, Any]) -> str:
    """The name of the file that holds the rows which the head counts."""
    return str(head.get("metrics_file", METRICS))
