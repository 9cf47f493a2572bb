"""Names and contents of the small files of a run (`fedcore.runs.store`), read with care: they may be damaged or
lost."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fedcore.errors import RunError
from fedcore.storage import files
from fedcore.storage import objects as object_storage
from fedcore.storage.arrays import SCHEMA, unknown_schema
from fedcore.storage.files import Place, is_remote

NO_HEAD = {"round": -1, "status": "running", "metrics_bytes": 0}  # before the first state
STATUSES = ("running", "finished", "failed", "budget exhausted", "abandoned")
HOLDER = "holder.json"
METRICS = "metrics.jsonl"
BY_ROUND = re.compile(r"[0-9]+(\.zip)?")
METRICS_NAME = re.compile(r"metrics(-[0-9a-f]+)?\.jsonl")


def numbered(folder: Place) -> list[Place]:
    """The states or memories in the folder, which are named by their rounds."""
    if is_remote(folder):
        found = [folder / name for name in object_storage.listing(folder)]
    else:
        found = folder.glob("[0-9]*")
    return [path for path in found if BY_ROUND.fullmatch(path.name)]


def read_head(path: Place, there: Mapping[str, bytes] | None = None) -> dict | None:
    """None: there is none yet. Raises RunError if it is lost or not valid."""
    lost = "Restore head.json from a backup. Without one the run can only be given up: fedcore runs abandon."
    head = read_json(path / "head.json", there)
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


def refuse_unknown_schema(path: Place, head: dict | None) -> None:
    """Heads of this version name no schema, that of run.json counts. Raises RunError for one that names another."""
    if head is not None and head.get("schema", SCHEMA) != SCHEMA:
        raise unknown_schema(f"the head of run {path.name!r}", head["schema"])


def _is_count(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def read_json(path: Place, there: Mapping[str, bytes] | None = None) -> dict | None:
    """None if there is no such file. there: files of the folder that were fetched already. Raises RunError."""
    try:
        text = files.read_bytes(path) if there is None else there.get(path.name)
        value = None if text is None else json.loads(text)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path.parent.name}/{path.name} is unreadable ({type(error).__name__}).", "Restore it from a backup."
        ) from error
    if text is not None and not isinstance(value, dict):
        raise RunError(f"{path.parent.name}/{path.name} does not hold an object.", "Restore it from a backup.")
    return value
