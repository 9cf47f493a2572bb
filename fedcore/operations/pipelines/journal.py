"""What a pipeline has done, for people and for continuing after an interruption.

    runs/pipeline-NAME.json   its newest runs with their steps, and files that were set aside; replaced by one rename

Nothing depends on it. The population's manifest states which files were ingested, the folder of runs which runs were
made, and the ledger what was spent. Without the journal, steps that were done are checked again, and found done.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedcore.errors import RunBusy, RunError
from fedcore.operations.pipelines.files import Aside
from fedcore.storage import files
from fedcore.storage.arrays import writing
from fedcore.storage.files import Place, place
from fedcore.storage.parsing import parse_json
from fedcore.storage.remote_lock import RemoteLock

KEPT = 100  # runs
FILE, OUTPUTS = "file", "outputs"  # links to what a step made outside of populations and runs
TIME = "%Y-%m-%dT%H:%M:%SZ"

# done: something was done. nothing: there was nothing to do, or it was done before. skipped: its `when` did not hold.
# waiting, refused, failed: as flow runs are called; begun: the process died, or is at work
Status = Literal["begun", "done", "nothing", "skipped", "waiting", "refused", "failed"]
BAD = ("refused", "failed")


class StepRecord(BaseModel):
    """What a step did. what: a sentence; input: what it was made from, by which a later run knows that it was done;
    facts: numbers and names for those who look further; links: places that it made or read, by what they are
    """

    model_config = ConfigDict(extra="ignore")

    step: str
    does: str
    status: Status = "begun"
    what: str = ""
    input: str = ""
    seconds: float = 0.0
    facts: dict[str, Any] = Field(default_factory=dict)
    links: dict[str, str] = Field(default_factory=dict)


class RunRecord(BaseModel):
    """One run of a pipeline. at: the time for which it was made; began, ended: by the clock, ended None if it was
    interrupted or is still running
    """

    model_config = ConfigDict(extra="ignore")

    at: str
    began: str
    ended: str | None = None
    steps: list[StepRecord] = Field(default_factory=list)

    def of(self, step: str) -> StepRecord | None:
        return next((record for record in self.steps if record.step == step), None)

    @property
    def failed(self) -> bool:
        """Whether a training began and did not come to its end."""
        return any(record.status == "failed" for record in self.steps)

    @property
    def bad(self) -> list[StepRecord]:
        return [record for record in self.steps if record.status in BAD]


class Journal(BaseModel):
    """The newest runs of a pipeline, oldest first, and files that were set aside: name -> (sha256, why)."""

    model_config = ConfigDict(extra="ignore")

    pipeline: str
    aside: dict[str, tuple[str, str]] = Field(default_factory=dict)
    runs: list[RunRecord] = Field(default_factory=list)

    def at(self, at: str) -> RunRecord | None:
        return next((run for run in self.runs if run.at == at), None)

    def interrupted(self, before: str) -> list[RunRecord]:
        """Runs for an earlier time that did not come to their end, or one of whose trainings can be resumed; oldest
        first.
        """
        left = (run for run in self.runs if run.at < before and (run.ended is None or run.failed))
        return sorted(left, key=lambda run: run.at)

    def done_before(self, step: str, input: str) -> StepRecord | None:
        """The newest record of this step that it was done with the same input."""
        records = (record for run in reversed(self.runs) if (record := run.of(step)) is not None)
        return next((one for one in records if one.status == "done" and one.input == input and input), None)

    def set_aside(self) -> dict[str, Aside]:
        return {name: Aside(name, sha256, because) for name, (sha256, because) in self.aside.items()}

    def keep(self, folder: Place) -> None:
        """Write it. Raises RunError if the disk is full, Unreachable."""
        self.runs = sorted(self.runs, key=lambda run: run.at)[-KEPT:]
        if isinstance(folder, Path):
            files.make_folder(folder, durable=True)
        with writing(path_of(folder, self.pipeline).name):
            content = files.json_bytes({"schema": 1, **self.model_dump(mode="json")})
            files.write_whole(path_of(folder, self.pipeline), content, private=True)


def path_of(folder: str | Place, pipeline: str) -> Place:
    return place(folder) / f"pipeline-{pipeline}.json"


def read_journal(folder: str | Place, pipeline: str) -> Journal:
    """The journal of a pipeline; an empty one before its first run, or if the file is damaged, since nothing rests on
    it. Raises Unreachable.
    """
    path = path_of(folder, pipeline)
    if not files.is_file(path):
        return Journal(pipeline=pipeline)
    try:
        return Journal.model_validate(parse_json(files.read_bytes(path)))
    except (OSError, ValueError, ValidationError):
        return Journal(pipeline=pipeline)


def now() -> str:
    return datetime.now(UTC).strftime(TIME)


@contextmanager
def alone(folder: str | Place, pipeline: str) -> Iterator[None]:
    """One process at a time runs a pipeline; a file lock goes with its process. Raises RunBusy, RunError."""
    folder = place(folder)
    what = f"pipeline {pipeline!r}"
    if not isinstance(folder, Path):
        lock = RemoteLock(folder / f".pipeline-{pipeline}.holder.json", what)
        lock.take()
        try:
            yield
        finally:
            lock.close()
        return
    files.make_folder(folder, durable=True)
    try:
        file = open(folder / f".pipeline-{pipeline}.lock", "w")
    except OSError as error:
        raise RunError(f"{what} cannot be locked in {folder}: {error.strerror}.", "Check its permissions.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunBusy(f"{what} is being run by another process.", "Wait until it has ended.") from None
        yield
