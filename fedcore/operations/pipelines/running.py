"""The steps of one run of a pipeline, in their order. A failed step does not prevent the others, because whether a
private training happens must not depend on whether files came or could be read.

An interrupted run is continued, for its own time, before the next one begins. With the same time, steps that were done
are found and not repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from fedcore.operations.pipelines import journal as journals
from fedcore.operations.pipelines.doing import Hands, OwnHands, as_text, tried
from fedcore.operations.pipelines.growth import too_little
from fedcore.operations.pipelines.journal import FILE, OUTPUTS, TIME, Journal, RunRecord, StepRecord
from fedcore.operations.pipelines.law import Ready, checked
from fedcore.operations.pipelines.steps import OfDeployment, Step, Train, label
from fedcore.storage.files import is_file, is_folder, place

Do = Callable[[str, datetime], StepRecord]
DONE = ("done", "nothing", "skipped")
ANSWERED = ("refused", "waiting")  # of a run for an earlier time: its time has passed


def run_pipeline(
    ready: Ready,
    at: datetime,
    *,
    hands: Hands | None = None,
    do: Do | None = None,
    told: Callable[[StepRecord], None] = lambda record: None,
) -> list[RunRecord]:
    """Make the run of a pipeline for this time, after those that were interrupted, or whose training failed and can be
    resumed. Returns their records, this one last.

    at: with a time zone
    hands: who makes rounds; this process by default. do: makes a step, in place of `tried`
    `told`: called with the record of each step as it ends

    Raises RunBusy if another process runs the pipeline, PrivacyError and ConfigError for steps that may not depend on
    what they declare. Errors of a step are in its record.
    """
    checked(ready)
    pipeline, hands = ready.pipeline, hands or OwnHands()
    make = do or (lambda called, when: tried(ready, called, when, hands))
    with journals.alone(pipeline.runs, pipeline.name):
        journal = journals.read_journal(pipeline.runs, pipeline.name)
        left = [datetime.strptime(run.at, TIME).replace(tzinfo=UTC) for run in journal.interrupted(as_text(at))]
        earlier = [_one(ready, journal, when, make, told, (*DONE, *ANSWERED)) for when in left]
        return [*earlier, _one(ready, journal, at, make, told, DONE)]


def _one(
    ready: Ready, journal: Journal, at: datetime, do: Do, told: Callable[[StepRecord], None], final: Sequence[str]
) -> RunRecord:
    """final: what became of a step that is not made once more"""
    pipeline, folder = ready.pipeline, place(ready.pipeline.runs)
    run = journal.at(as_text(at))
    if run is None:
        run = RunRecord(at=as_text(at), began=journals.now())
        journal.runs.append(run)
    known = [record.step for record in run.steps]
    ended, run.ended = run.ended, None
    for called, step in zip(pipeline.labels, pipeline.step, strict=True):
        before = run.of(called)
        if before is not None and before.status in final and _there(before):
            continue
        ended = None
        why_not = skipped_because(ready, step, run)
        began = time.monotonic()
        if why_not:
            record = StepRecord(step=called, does=step.do, status="skipped", what=why_not)
        else:
            _put(run, known, StepRecord(step=called, does=step.do), pipeline.labels)
            journal.keep(folder)
            record = do(called, at)
            record.seconds = round(time.monotonic() - began, 3)
        _put(run, known, record, pipeline.labels)
        if "aside" in record.facts:
            journal.aside = {name: (sha256, because) for name, (sha256, because) in record.facts["aside"].items()}
        journal.keep(folder)
        told(record)
    run.ended = ended or journals.now()
    journal.keep(folder)
    return run


def _there(record: StepRecord) -> bool:
    """Whether the files that the step made are there: its record may have outlived them where power was lost."""
    made = [place(where) for what, where in record.links.items() if what in (FILE, OUTPUTS)]
    return all(is_file(one) or is_folder(one) for one in made)


def _put(run: RunRecord, known: Sequence[str], record: StepRecord, order: Sequence[str]) -> None:
    """The record in its place; those of steps that the file has no more stay at the end."""
    others = [one for one in run.steps if one.step != record.step]
    places = {called: number for number, called in enumerate(order)}
    run.steps = sorted([*others, record], key=lambda one: places.get(one.step, len(places)))


def skipped_because(ready: Ready, step: Step, run: RunRecord) -> str:
    """Why the step is not made, by what those before it have done; "" if it is."""
    when = ready.when(step) if isinstance(step, OfDeployment) else "always"
    if not isinstance(step, OfDeployment) or when == "always":
        return ""
    if when == "if_grown":
        return too_little(ready.deployment(step.deployment), datetime.strptime(run.at, TIME).replace(tzinfo=UTC))
    if when == "if_new_files":
        came = next((one for one in run.steps if one.does == "ingest"), None)
        return "" if came is not None and came.facts.get("new_files") else "no new files came"
    trains = (one for one in ready.pipeline.step if isinstance(one, Train) and one.deployment == step.decider)
    record = next((found for one in trains if (found := run.of(label(one))) is not None), None)
    if record is not None and record.facts.get("promoted"):
        return ""
    return f"no run of {step.decider} became the latest one"
