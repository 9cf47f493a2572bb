"""What binds the files of a run to its head (docs/population-format.md): their digests, and that of the head itself.

The head of a run has `files`, the digests of run.json and of all that was committed, and `digest`, its own.
Where it names a list of files (memories, released values), its digest is that of the pairs of name and digest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedcore.errors import RunError
from fedcore.storage import digests, files, raw_arrays
from fedcore.storage.files import Place

SCHEMA = 2  # of run.json
COHORTS, ARRIVAL, SHARES, STUDY = "cohorts", "arrival", "shares", "study"
KNOWN: frozenset[str] = frozenset({COHORTS, ARRIVAL, SHARES, STUDY})  # names that `needs` may hold
NOTHING: dict[str, None] = dict.fromkeys(("state", "memory", "metrics", "releases", "start"))  # is committed yet
RESTORE = "Restore it from a backup."


def sealed(head: Mapping[str, Any]) -> dict[str, Any]:
    """The head with its digest."""
    content = {name: value for name, value in head.items() if name != "digest"}
    return {**content, "digest": digests.of_document(digests.canonical(json.loads(json.dumps(content))))}


def check_head(path: Place, text: bytes | None, head: Mapping[str, Any] | None) -> None:
    """Raises RunError unless head and run.json belong together. text: run.json as it is stored."""
    if head is None:
        return
    named = head.get("files")
    if not isinstance(named, dict) or head != sealed(head):
        raise RunError(f"the head of run {path.name!r} does not match its own digest: it was changed.", RESTORE)
    if text is None or named.get("run") != digests.of_document(text):
        raise RunError(f"run.json of run {path.name!r} is not the one that its head names: it was changed.", RESTORE)


def check_needs(path: Place, info: Mapping[str, Any]) -> None:
    """Raises RunError for a run that needs what this version does not know."""
    needs = info.get("needs", [])
    unknown = [name for name in needs if name not in KNOWN] if isinstance(needs, list) else [needs]
    if unknown:
        raise RunError(f"run {path.name!r} needs {unknown[0]}, which this fedcore does not know.", "Use a newer one.")


def committed(head: Mapping[str, Any]) -> str:
    """Digest of what the head commits, which later notes in it do not change; the ledger keeps that of an ended run."""
    return digests.of_document(digests.canonical({"round": head["round"], "files": head.get("files")}))


def of_folder(folder: Place) -> dict[str, str]:
    """{name: BLAKE3} of the values stored in a folder. Raises OSError, Unreachable."""
    names = [
        name
        for name in files.listing(folder)
        if name.endswith((".zip", raw_arrays.SUFFIX)) and not name.startswith(".")
    ]
    return {name: of_place(folder / name) for name in names}


def of_place(file: Place) -> str:
    """BLAKE3 of a file. Raises OSError, Unreachable."""
    return digests.of_data(files.read_bytes(file)) if files.is_remote(file) else digests.of_file(file)


def write_list(file: Place, found: Mapping[str, str]) -> None:
    """Keep a list of files, so that it need not be made of their contents again. It need not be durable: `read_list`
    compares it with what the head says. Raises OSError, Unreachable.
    """
    if files.is_remote(file):
        files.write_whole(file, digests.listed(found))
        return
    with files.opened(file) as handle:
        handle.write(digests.listed(found))


def read_list(file: Place, folder: Place, expected: str, what: str) -> dict[str, str]:
    """The files of the folder with their digests, as they were committed. expected: digest of the list.

    From the kept list if that is whole, else from the files. Raises RunError if these are others.
    """
    try:
        content = files.read_bytes(file)
        if digests.of_data(content) == expected:
            return dict(json.loads(content))
    except OSError:
        pass
    found = of_folder(folder)
    if digests.of_files(found) != expected:
        raise RunError(f"{what} are not those that its head names: they were changed, or some are lost.", RESTORE)
    return found
