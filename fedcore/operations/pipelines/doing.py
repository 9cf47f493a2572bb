"""What each step of a pipeline does. Every one may be done again after it was interrupted anywhere: what was done for
the same input is found and not done again.

A step is made by `Hands`: rounds and blocks in this process, or in the flows and on the workers of `fedcore.flows`.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from fedcore.errors import ConfigError, FedcoreError, IngestError, RunError, RunNotFound, Waiting
from fedcore.evaluation.evaluate import check_public, evaluate_run
from fedcore.evaluation.export import export_run
from fedcore.methods.registry import make_method
from fedcore.operations import in_process
from fedcore.operations.deployment import Deployment
from fedcore.operations.forgetting import forget
from fedcore.operations.latest_runs import latest
from fedcore.operations.pipelines.append import aged, append
from fedcore.operations.pipelines.journal import FILE, OUTPUTS, TIME, Journal, StepRecord, read_journal
from fedcore.operations.pipelines.law import Ready
from fedcore.operations.pipelines.steps import Evaluate, Export, Forget, Ingest, Personalise, Step, Train, label
from fedcore.operations.schedule import Compute
from fedcore.operations.series import public_population
from fedcore.population.ingest.dealing import Sharing
from fedcore.population.store import Population
from fedcore.rounds.engine import Backend, InProcessBackend
from fedcore.runs.run_files import read_json
from fedcore.runs.store import Run
from fedcore.storage import files
from fedcore.storage.files import Place, place
from fedcore.training.output_parts import sweep
from fedcore.training.personalise import check_fits, personalise
from fedcore.training.request import TrainRequest
from fedcore.training.session import ENDED, resume, start_run

# Errors of code that meets values. A training may also meet those of its orchestrator, which end a run of the pipeline
# and let the next one continue it.
UNFORESEEN = (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, OSError, TypeError, ValueError)


class Hands(Protocol):
    """Who makes the rounds of a training, and answers blocks."""

    def train(self, request: TrainRequest, compute: Compute) -> Place:
        """A new run, to its end. Returns its folder."""

    def resume(self, run: Place, compute: Compute) -> Place:
        """A run that was interrupted, to its end."""

    def backend(self, population: Population, compute: Compute, private: bool) -> AbstractContextManager[Backend]:
        """The backend that maps blocks of a population."""

    def sharing(self, workers: int | None) -> Sharing | None:
        """Starts processes that read a table in parts; None: only the process that makes the step reads it."""


class OwnHands:
    """Everything in this process. report: whether runs get one"""

    def __init__(self, report: bool = True):
        self.report = report

    def train(self, request: TrainRequest, compute: Compute) -> Place:
        backend = InProcessBackend()
        session = start_run(request, backend, stamp=in_process.stamp())
        return in_process.to_the_end(session, backend, report=self.report)

    def resume(self, run: Place, compute: Compute) -> Place:
        backend = InProcessBackend()
        session = resume(run, backend, cache_bytes=compute.cache_bytes)
        return in_process.to_the_end(session, backend, report=self.report)

    @contextmanager
    def backend(self, population: Population, compute: Compute, private: bool):
        yield InProcessBackend()

    def sharing(self, workers: int | None) -> Sharing | None:
        return None


def do_step(ready: Ready, called: str, at: datetime, hands: Hands) -> StepRecord:
    """Make one step of a pipeline's run for this time. Raises the error that ends it; `tried` makes a record of it.

    An unforeseen error, which unusual data may cause, becomes a RunError, so that other steps are still made. Its text
    may quote values and is never shown; the log states where in the code it was raised.
    """
    step = ready.pipeline.labelled(called)
    unforeseen = UNFORESEEN if isinstance(step, Train) else (Exception,)
    try:
        return _WORK[type(step)](ready, step, at, hands)
    except FedcoreError:
        raise
    except unforeseen as error:
        where = "".join(traceback.format_tb(error.__traceback__))
        logging.getLogger(__name__).error("step %s: %s\n%s", called, type(error).__name__, where)
        raise RunError(
            f"step {called!r} was ended by an error that has no name in fedcore ({type(error).__name__}).",
            "The log states where; please report it.",
        ) from None


def tried(ready: Ready, called: str, at: datetime, hands: Hands) -> StepRecord:
    """The record of a step, whatever became of it."""
    try:
        return do_step(ready, called, at, hands)
    except FedcoreError as error:
        return failure(ready, called, at, error)


def failure(ready: Ready, called: str, at: datetime, error: FedcoreError) -> StepRecord:
    """The record of a step that a named error has ended."""
    step, status = ready.pipeline.labelled(called), "refused"
    told = error.without_values if isinstance(error, IngestError) else error
    if isinstance(error, Waiting):
        status = "waiting"
    elif isinstance(step, Train) and _run_of(ready.deployment(step.deployment), at) is not None:
        status = "failed"
    return _record(step, status, f"{type(error).__name__}: {told}", facts={"error": type(error).__name__})


def _record(step: Step, status: Any, what: str, **more: Any) -> StepRecord:
    return StepRecord(step=label(step), does=step.do, status=status, what=what, **more)


# --- data -------------------------------------------------------------------------------------------------------------


def _ingest(ready: Ready, step: Ingest, at: datetime, hands: Hands) -> StepRecord:
    journal = read_journal(ready.pipeline.runs, ready.pipeline.name)
    made = append(step, ready.pipeline, at, journal.set_aside(), hands.sharing(step.workers))
    new = len(made.new)
    words = [f"{new} new file{'s' * (new != 1)}{'' if made.version is None else f' in version {made.version}'}"]
    words += [f"{len(made.files.known)} known"] if made.files.known else []
    words += [f"{len(made.aside)} set aside"] if made.aside else []
    words += [f"{len(made.files.later)} being written, left for the next run"] if made.files.later else []
    words += [f"{made.bad_rows} invalid rows left out"] if made.bad_rows else []
    words += [f"cohort {made.cohort} opened"] if made.cohort else []
    words += ["done before"] if made.done_before else []
    facts: dict[str, Any] = {"new_files": list(made.new), "version": made.version, "bad_rows": made.bad_rows}
    if not made.done_before:
        facts["aside"] = {one.name: [one.sha256, one.because] for one in made.aside}
    return _record(
        step,
        "done" if (made.version or made.cohort) and not made.done_before else "nothing",
        ", ".join(words),
        facts=facts,
        links={"population": ready.pipeline.population},
    )


def _forget(ready: Ready, step: Forget, at: datetime, hands: Hands) -> StepRecord:
    population = Population.open(ready.pipeline.population)
    if not population.manifest.cohorts:
        raise ConfigError(
            f"The population {population.path} has no cohorts, so the age of its clients is unknown.",
            "Begin them with `fedcore budget cohorts POPULATION`; or forget clients by id, manually.",
        )
    number, before = aged(population, at, step.after_days), population.version
    links = {"population": ready.pipeline.population}
    if number is None:
        return _record(step, "nothing", f"no cohort is older than {step.after_days} days", links=links)
    folders: list[str | None] = [*dict.fromkeys(item.runs for item in ready.deployments)] or [None]
    stripped: list[str] = []
    clients, freed = 0, 0
    for folder in folders:
        made = forget(population, cohorts_to=number, runs=folder, stamp=in_process.stamp())
        population = made.erased.population
        clients, freed = clients + made.erased.clients, freed + made.erased.freed
        stripped += made.runs
    words = f"cohorts 1 to {number}: {clients} clients forgotten, {freed} bytes freed"
    if stripped:
        words += f"; memories of their clients removed from {len(stripped)} runs"
    facts = {"cohorts_to": number, "clients": clients, "version": population.version, "runs": stripped}
    changed = bool(stripped) or population.version != before
    return _record(step, "done" if changed else "nothing", words, facts=facts, links=links)


# --- training ---------------------------------------------------------------------------------------------------------


def run_name(deployment: str, at: datetime) -> str:
    """Of the run that a pipeline makes of a deployment for this time."""
    return f"{deployment}-{at.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def _run_of(item: Deployment, at: datetime) -> Run | None:
    """The run of a deployment for this time, if it was begun."""
    try:
        return Run.open(place(item.runs) / run_name(item.name, at))
    except RunNotFound:
        return None


def request_of(ready: Ready, item: Deployment, at: datetime) -> TrainRequest:
    """What the run of a deployment for this time is asked to do."""
    return item.request.model_copy(
        update={
            "run_id": run_name(item.name, at),
            "cache_bytes": item.compute.cache_bytes,
            "public_arrival_because": ready.pipeline.files_are_public_because,
        }
    )


def _train(ready: Ready, step: Train, at: datetime, hands: Hands) -> StepRecord:
    item = ready.deployment(step.deployment)
    run, status = _run_of(item, at), "done"
    if run is None:
        population = Population.open(item.population)
        public_population(item.series, make_method(item.method, item.config), population)
        path = hands.train(request_of(ready, item, at), item.compute)
    elif run.status in ENDED:
        path, status = run.path, "nothing"
    else:
        path = hands.resume(run.path, item.compute)
    run = Run.open(path)
    decided = read_json(run.path / "comparison.json") or {}
    promoted = bool(decided.get("promoted")) and decided.get("deployment") == item.name
    words = [f"run {run.id} is {run.status} after {run.round} rounds", *filter(None, [run.head.get("outcome")])]
    if decided:
        decision = "became the latest run" if promoted else "did not become the latest run"
        words.append(f"it {decision} of {item.name}: {decided.get('because', '')}")
    if status == "nothing":
        words.append("made before")
    facts = {"run": run.id, "promoted": promoted, "version": run.info["population"]["version"]}
    links = {"run": files.absolute(run.path), "report": files.absolute(run.path / "report.html")}
    return _record(step, status, "; ".join(words), input=run.id, facts=facts, links=links)


# --- what is made of the latest run -----------------------------------------------------------------------------------


def _latest(item: Deployment) -> Run:
    """Raises RunNotFound before there is one, RunError if it is damaged."""
    found = latest(item.runs, item.name)
    if found is None:
        raise RunNotFound(f"deployment {item.name!r} has no latest run yet.", "Train first, or promote a run manually.")
    return found.open()


def _journal(ready: Ready) -> Journal:
    return read_journal(ready.pipeline.runs, ready.pipeline.name)


def _evaluate(ready: Ready, step: Evaluate, at: datetime, hands: Hands) -> StepRecord:
    item = ready.deployment(step.deployment)
    run, store = _latest(item), Population.open(step.on)
    check_public(store)
    check_fits(run, store)
    made_from = f"run {run.id} on version {store.version} of {store.id}"
    if before := _journal(ready).done_before(label(step), made_from):
        return before.model_copy(update={"status": "nothing", "what": f"{before.what}; scored before"})
    with hands.backend(store, item.compute, False) as backend:
        table = evaluate_run(run.path, store, backend, keep=True)
    links = {"run": files.absolute(run.path), "report": files.absolute(run.path / "report.html")}
    facts = {"run": run.id, "title": table["title"], "scores": table["rows"]}
    return _record(step, "done", f"{table['title']}", input=made_from, facts=facts, links=links)


def _export(ready: Ready, step: Export, at: datetime, hands: Hands) -> StepRecord:
    run = _latest(ready.deployment(step.deployment))
    made_from, links = f"run {run.id}", {"run": files.absolute(run.path), FILE: step.to}
    before = _journal(ready).done_before(label(step), made_from)
    if before is not None and before.links.get(FILE) == step.to and files.is_file(place(step.to)):
        return _record(step, "nothing", f"{step.to} holds run {run.id} already", input=made_from, links=links)
    _make_parent(step.to)
    made = export_run(run, step.to, step.table, force=True)
    what = f"run {run.id} written to {step.to}"
    facts = {"run": run.id, "private": made["private"]}
    return _record(step, "done", what, input=made_from, facts=facts, links=links)


def _personalise(ready: Ready, step: Personalise, at: datetime, hands: Hands) -> StepRecord:
    item = ready.deployment(step.deployment)
    run, population = _latest(item), Population.open(ready.pipeline.population)
    dest = Path(step.to) / f"{run.id}-v{population.version}.{step.ending}"
    made_from = f"run {run.id} and version {population.version}"
    links = {"run": files.absolute(run.path), OUTPUTS: str(dest)}
    if dest.exists():
        sweep(dest)  # what a process left that died after it had put the outputs together
        return _record(step, "nothing", f"{dest.name} is there already", input=made_from, links=links)
    _make_parent(str(dest), private=True)
    private = make_method(item.method, item.config).private
    with hands.backend(population, item.compute, private) as backend:
        made = personalise(run.path, population.location, dest, settings=step.settings or None, backend=backend)
    what = f"outputs of {made['clients']} clients written to {dest.name}, each for its client only"
    return _record(step, "done", what, input=made_from, facts={"run": run.id}, links=links)


def _make_parent(dest: str, private: bool = False) -> None:
    folder = place(dest).parent
    if isinstance(folder, Path):
        try:
            files.make_folder(folder, private, durable=True)
        except OSError as error:
            raise RunError(f"the folder {folder} cannot be made: {error.strerror}.", "Name another one.") from error


_WORK: dict[type, Callable[..., StepRecord]] = {
    Ingest: _ingest,
    Forget: _forget,
    Train: _train,
    Evaluate: _evaluate,
    Export: _export,
    Personalise: _personalise,
}


def as_text(at: datetime) -> str:
    """A time as the journal, manifests and names of runs have it."""
    return at.astimezone(UTC).strftime(TIME)
