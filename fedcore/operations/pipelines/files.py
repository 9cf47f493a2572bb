"""Which files are new to a population, by what its manifest says and by what is in them."""

from __future__ import annotations

import glob
import hashlib
import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path, PurePath
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fedcore.errors import ConfigError, IngestError
from fedcore.operations.pipelines.steps import Ingest
from fedcore.population.deliveries import Delivery

CHANGED = "a file of this name was ingested before, with other content"


@dataclass(frozen=True, slots=True)
class Found:
    """A file that is there. name: its path below the folder that is looked into, as the manifest says it."""

    path: Path
    name: str
    size: int
    sha256: str

    @property
    def facts(self) -> tuple[str, int, str]:
        return self.name, self.size, self.sha256


@dataclass(frozen=True, slots=True)
class Aside:
    """A file that was not ingested, and is not tried again before its content is another."""

    name: str
    sha256: str
    because: str


@dataclass(slots=True)
class Sorted:
    """What became of the files that were found. new: to ingest; known: whose content was ingested before; aside: not
    ingested; later: being written to, left for the next run
    """

    new: list[Found] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    aside: list[Aside] = field(default_factory=list)
    later: list[str] = field(default_factory=list)


def patterns_at(step: Ingest, at: datetime) -> list[str]:
    """The patterns for a run at this time (with a time zone): one, or one for each day that is looked back on. Raises
    ConfigError.
    """
    if not step.by_date:
        return [step.files]
    try:
        day = at.astimezone(ZoneInfo(step.timezone))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(f"there is no time zone {step.timezone!r}.", "Name one as Europe/Zurich, or UTC.") from None
    days = (day - timedelta(days=back) for back in range(step.days_back, -1, -1))
    return list(dict.fromkeys(one.strftime(step.files) for one in days))


def folder_of(files: str) -> Path:
    """The part of a pattern that is the same for all files. Names of files are relative to it."""
    fixed: list[str] = []
    for part in PurePath(files).parts[:-1]:
        if "%" in part or glob.has_magic(part):
            break
        fixed.append(part)
    return Path(*fixed) if fixed else Path()


def find(step: Ingest, at: datetime) -> tuple[list[Path], list[str]]:
    """(files of the patterns, sorted; names of those that are still being written to). Raises IngestError if the folder
    that is looked into is not there: a source that is not mounted is no day without files.
    """
    folder = folder_of(step.files)
    if not folder.is_dir():
        raise IngestError(f"The folder {folder}, in which files arrive, is not there.", "Mount it, or make it.")
    paths = {Path(name) for one in patterns_at(step, at) for name in glob.glob(one, recursive=True)}
    there, later = [], []
    for path in sorted(paths):
        try:
            facts = path.stat()
        except OSError:  # taken away since, or a link to nothing
            continue
        if not stat.S_ISREG(facts.st_mode):
            continue
        if step.quiet_seconds and time.time() - facts.st_mtime < step.quiet_seconds:
            later.append(path.relative_to(folder).as_posix())
        else:
            there.append(path)
    return there, later


def read(path: Path, folder: Path) -> Found:
    """The file with the digest of its content. Raises OSError."""
    with open(path, "rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        size = os.fstat(file.fileno()).st_size
    return Found(path, path.relative_to(folder).as_posix(), size, sha256)


def sort(
    found: Sequence[Found], delivered: Sequence[Delivery], aside: Mapping[str, Aside], may_change: bool = False
) -> Sorted:
    """Which of the files are new.

    delivered: files that were ingested; aside: that were set aside, by name; may_change: whether a file of a known name
    and other content is a new one. Of new files with the same content the first one is.
    """
    contents, names, made = {one.sha256 for one in delivered}, {one.name for one in delivered}, Sorted()
    for file in sorted(found, key=lambda file: file.name):
        before = aside.get(file.name)
        if file.sha256 in contents:
            made.known.append(file.name)
        elif file.name in names and not may_change:
            made.aside.append(Aside(file.name, file.sha256, CHANGED))
        elif before is not None and before.sha256 == file.sha256 and before.because != CHANGED:
            made.aside.append(before)
        else:
            made.new.append(file)
            contents.add(file.sha256)
    return made
