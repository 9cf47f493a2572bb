"""What `fedcore up` keeps next to its file, in a folder that only its user can open:

.fedcore/NAME.lock     held by the process that serves the file; a killed process gives it back
.fedcore/NAME.json     which process that is, and the addresses of its UI and of the operator's page
.fedcore/budget-*.json budgets that were begun and are not complete (`fedcore.operations.creating`)
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from fedcore.errors import ConfigError, RunBusy
from fedcore.storage import files
from fedcore.storage.parsing import parse_json
from fedcore.storage.process import Holder, this_process


@dataclass(frozen=True, slots=True)
class Standing:
    """A process that serves a file. ui: address of the Prefect UI, empty until it answers; page: of the operator's page
    in it.
    """

    holder: Holder
    ui: str = ""
    page: str = ""


def folder_of(file: Path) -> Path:
    """The folder of these records. Made if it is not there; raises ConfigError if it cannot be."""
    folder = file.resolve().parent / ".fedcore"
    try:
        files.make_folder(folder, private=True, durable=True)
    except OSError as error:
        raise ConfigError(f"the folder {folder} cannot be made: {error.strerror}.", "Check its permissions.") from None
    return folder


def _record(file: Path) -> Path:
    return folder_of(file) / f"{file.stem}.json"


@contextmanager
def serving_alone(file: Path) -> Iterator[None]:
    """Inside, this process is the one that serves the file, and is recorded as it. Raises RunBusy if another one is."""
    with files.opened(folder_of(file) / f"{file.stem}.lock", "w", private=True) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunBusy(f"{file.name} is being served by another process.", "`fedcore down` ends it.") from None
        keep(file, "")
        try:
            yield
        finally:
            files.remove(_record(file))


def keep(file: Path, ui: str, page: str = "") -> None:
    """Record that this process serves the file, and where its UI and the operator's page are."""
    content = files.json_bytes({"holder": asdict(this_process()), "ui": ui, "page": page})
    files.write_whole(_record(file), content, private=True)


def standing(file: Path) -> Standing | None:
    """The process that serves the file, if it lives and is of this host; None otherwise."""
    try:
        value = parse_json(_record(file).read_bytes())
        found = Standing(Holder(**value["holder"]), str(value["ui"]), str(value.get("page", "")))
        return found if found.holder.alive(expired=True) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
