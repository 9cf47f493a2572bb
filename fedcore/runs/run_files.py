"""The small files of a run (`fedcore.runs.store`): names, and contents read with care: they may be damaged or lost."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fedcore.errors import RunError
from fedcore.storage import files
from fedcore.storage import objects as object_storage
from fedcore.storage.arrays import NAME, SCHEMA, unknown_schema
from fedcore.storage.files import Place, is_remote
from fedcore.storage.parsing import parse_json

NO_HEAD: dict[str, Any] = {"round": -1, "status": "running", "metrics_bytes": 0}  # before the first state
STATUSES = ("running", "trained", "finished", "failed", "budget exhausted", "abandoned")
HOLDER = "holder.json"
METRICS = "metrics.jsonl"
START_FILE = "start.zip"  # the run's own copy of the arrays that it starts from
BY_ROUND = re.compile(r"[0-9]+(\.zip|\.json)?")
METRICS_NAME = re.compile(r"metrics(-[0-9a-f]+)?\.jsonl")


def resolve(path: Place) -> Place:
    """The run that the file `latest-NAME.json` names (`fedcore.operations.latest_runs`); any other path as it is.

    Raises RunError for a file that names none.
    """
    if path.suffix != ".json" or not files.is_file(path):
        return path
    content = read_json(path) or {}
    if content.get("schema", SCHEMA) != SCHEMA:
        raise unknown_schema(path.name, content["schema"])
    name = content.get("run")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise RunError(f"{path.name} names no run.", "Name the folder of a run, or a file latest-NAME.json.")
    return path.parent / name


def refuse_links(folder: Place, depth: int, run: str) -> None:
    """Raises RunError for a symbolic link in a local folder of this run, at most `depth` levels down."""
    try:
        link = files.find_link(folder, depth)
    except OSError as error:
        raise RunError(f"run {run!r} is unreadable ({error.strerror}).", "Check its permissions.") from error
    if link:
        raise RunError(
            f"{link} in the folder of run {run!r} is a symbolic link. A run never reads, changes or deletes what is "
            "outside its folder.",
            "Replace the link by the file or folder itself.",
        )


def numbered(folder: Place) -> list[Place]:
    """The states in the folder, or the memories with their lists, which are named by their rounds."""
    found: list[Place] = []
    if is_remote(folder):
        found += [folder / name for name in object_storage.listing(folder)]
    else:
        found += folder.glob("[0-9]*")
    return [path for path in found if BY_ROUND.fullmatch(path.name)]


def read_head(path: Place, fetched: Mapping[str, bytes] | None = None) -> dict[str, Any] | None:
    """The head of the run at this path; None if there is none yet. Raises RunError if it is lost or not valid.

    fetched: files of the run that were fetched already
    """
    lost = "Restore head.json from a backup. Without one the run can only be given up: fedcore runs abandon."
    head = read_json(path / "head.json", fetched)
    refuse_unknown_schema(path, head)
    if head is None:
        if any(int(state.stem) > 0 for state in numbered(path / "state")):  # it would begin again over its states
            raise RunError(f"the head of run {path.name!r} is missing.", lost)
        return None
    if (
        not _is_count(head.get("round"), -1)
        or not _is_count(head.get("metrics_bytes"), 0)
        or type(head.get("memories", False)) is not bool
        or head.get("status") not in STATUSES
        or not METRICS_NAME.fullmatch(str(head.get("metrics_file", METRICS)))
    ):
        raise RunError(f"the head of run {path.name!r} is not valid.", lost)
    return head


def refuse_unknown_schema(path: Place, head: dict[str, Any] | None) -> None:
    """Raises RunError for a head of another schema. Heads name none so far: that of run.json counts."""
    if head is not None and head.get("schema", SCHEMA) != SCHEMA:
        raise unknown_schema(f"the head of run {path.name!r}", head["schema"])


def _is_count(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def read_json(path: Place, fetched: Mapping[str, bytes] | None = None) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is no such file. Raises RunError if it holds anything else.

    fetched: files of the same folder that were fetched already
    """
    return read_document(path, fetched)[0]


def read_document(
    path: Place, fetched: Mapping[str, bytes] | None = None
) -> tuple[dict[str, Any] | None, bytes | None]:
    """As `read_json`, and the bytes of the file."""
    try:
        text = files.read_bytes(path) if fetched is None else fetched.get(path.name)
        value = None if text is None else parse_json(text)
    except (FileNotFoundError, NotADirectoryError):
        return None, None
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path.parent.name}/{path.name} is unreadable ({type(error).__name__}).", "Restore it from a backup."
        ) from error
    if text is not None and not isinstance(value, dict):
        raise RunError(f"{path.parent.name}/{path.name} does not hold an object.", "Restore it from a backup.")
    return value, text
