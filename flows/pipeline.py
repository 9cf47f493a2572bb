"""The flow of a pipeline: each step a flow of its own, called as a subflow; and one page that tells what a run did."""

from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

from fedcore.flows.limits import using
from fedcore.flows.names import kept
from fedcore.flows.own_server import flow
from fedcore.flows.states import failed, note_process, run_to_state, without_tracebacks
from fedcore.flows.telling import opened, tell, tell_end
from fedcore.flows.train import go_on, make_run
from fedcore.tasks.artifacts import key, show_population
from fedcore.tasks.backends import backend_for
from fedcore.tasks.dask_backend import sharing
from fedcore.tasks.events import belonging_to
from fedcore.tasks.pipelines import make_step, show_pipeline, show_scores
from prefect import Flow, get_run_logger
from prefect.client.schemas import State
from prefect.runtime import deployment, flow_run
from prefect.states import Completed

from fedcore.errors import FedcoreError, StepsFailed
from fedcore.operations.deployment import Deployment
from fedcore.operations.events import Event, population_appended
from fedcore.operations.monitoring import RunMonitoring
from fedcore.operations.pipelines.doing import as_text, do_step, failure
from fedcore.operations.pipelines.journal import TIME, RunRecord, StepRecord, read_journal
from fedcore.operations.pipelines.law import Ready, checked
from fedcore.operations.pipelines.page import aside_in_words, files_aside, in_words
from fedcore.operations.pipelines.running import run_pipeline
from fedcore.operations.pipelines.steps import Train
from fedcore.operations.schedule import Compute
from fedcore.population.ingest.dealing import Sharing
from fedcore.population.store import Population
from fedcore.storage.files import Place, place
from fedcore.training.request import TrainRequest
from fedcore.training.session import Session

SET_ASIDE = "SetAside"  # the state of a run that did everything, but for files that could not be read
WRITERS = ("ingest", "forget")
_running: ContextVar[Ready] = ContextVar("pipeline")  # its steps' flows show their own parameters only


class FlowHands:
    """Rounds as Prefect tasks, blocks on the workers that a deployment names. sessions: of runs that were begun or gone
    on with.
    """

    def __init__(self, metrics_file: str | None = None):
        self.sessions: list[Session] = []
        self._metrics_file = metrics_file

    def train(self, request: TrainRequest, compute: Compute) -> Place:
        return place(make_run(request, compute, self.sessions, self._metrics_file))

    def resume(self, run: Place, compute: Compute) -> Place:
        return place(go_on(str(run), compute, self.sessions))

    @contextmanager
    def backend(self, population: Population, compute: Compute, private: bool):
        with backend_for(population, compute.workers, compute.dask, private) as backend:
            yield backend

    def sharing(self, workers: int | None) -> Sharing | None:
        return None if workers is None else partial(sharing, workers)


# --- steps ------------------------------------------------------------------------------------------------------------


def _step_name() -> str:
    given = flow_run.parameters
    return f"{given['pipeline']}-{given['step']}-{given['at']}"


def _step_flow(kind: str, about: str) -> Flow:
    """The flow of one kind of step."""

    def step_flow(pipeline: str, step: str, at: str) -> Any:
        note_process()
        ready, when = _running.get(), _time(at)
        trained = _trained_by(ready, step)
        watched = RunMonitoring() if trained is None else _watched(trained)
        hands, before = FlowHands(watched.metrics_file), opened(ready.pipeline.population)

        def work(kept_if_failed: list) -> StepRecord:
            with using(ready.pipeline.population, "writes" if kind in WRITERS else "reads"):
                if kind == "train":  # its own tasks are its rounds, and a run that was interrupted is resumed
                    return do_step(ready, step, when, hands)
                return make_step(ready, step, when, hands)

        result = run_to_state(work, lambda _: f"step {step} of pipeline {pipeline}")
        if trained is not None:
            tell_end(
                result,
                next(iter(hands.sessions), None),
                method=trained.method,
                population=trained.population,
                deployment=lambda: trained.name,
                monitoring=watched,
            )
        elif kind == "ingest" and before is not None:
            tell(lambda: _appended(before))
        return result

    step_flow.__name__ = step_flow.__qualname__ = f"pipeline_{kind}"
    step_flow.__doc__ = f"""{about}

    Args:
        pipeline: name of the pipeline, one of whose steps it is
        step: what the step is called
        at: the time for which the pipeline is run
    """
    return flow(name=f"pipeline-{kind}", flow_run_name=_step_name, persist_result=False, retries=0)(step_flow)


STEPS = {
    "ingest": _step_flow("ingest", "Append what is new."),
    "forget": _step_flow("forget", "Forget clients by age."),
    "train": _step_flow("train", "Train, compare, promote and prune."),
    "evaluate": _step_flow("evaluate", "Score the latest run on public data."),
    "export": _step_flow("export", "Write what the latest run has learnt."),
    "personalise": _step_flow("personalise", "Write each client's own output."),
}


def _trained_by(ready: Ready, called: str) -> Deployment | None:
    """The deployment that the step of this name trains; None if it does something else."""
    step = ready.pipeline.labelled(called)
    return ready.deployment(step.deployment) if isinstance(step, Train) else None


def _watched(deployment: Deployment) -> RunMonitoring:
    return RunMonitoring() if deployment.monitoring is None else deployment.monitoring.of_run(deployment.name)


def _appended(before: Population) -> list[Event]:
    """That the population has a newer version than before, if it has."""
    made = Population.open(before.location)
    return [population_appended(made, before)] if made.version > before.version else []


def _made(ready: Ready, called: str, at: datetime) -> StepRecord:
    """Call the flow of a step; its record, whatever became of it."""
    step = ready.pipeline.labelled(called)
    try:
        value = STEPS[step.do](pipeline=ready.pipeline.name, step=called, at=as_text(at))
    except FedcoreError as error:
        return failure(ready, called, at, error)
    return failure(ready, called, at, value) if isinstance(value, FedcoreError) else cast(StepRecord, value)


# --- the pipeline -----------------------------------------------------------------------------------------------------


def _name() -> str:
    ready = flow_run.parameters["ready"]
    pipeline = ready["pipeline"]["name"] if isinstance(ready, dict) else ready.pipeline.name
    return f"{pipeline}-{as_text(_now(flow_run.parameters.get('at')))}"


def _time(text: str) -> datetime:
    return datetime.strptime(text, TIME).replace(tzinfo=UTC)


def _now(at: str | None) -> datetime:
    """The time for which the pipeline is run: that of its schedule, which stays when a flow run is started anew."""
    if at is not None:
        return _time(at)
    planned = flow_run.scheduled_start_time
    return datetime.fromtimestamp(int(planned.timestamp()), UTC)


@flow(name="pipeline", flow_run_name=kept(_name), persist_result=False, validate_parameters=True, retries=0)
def pipeline_flow(ready: Ready, at: str | None = None) -> Any:
    """Run a pipeline: files in, models out, old data forgotten; each step is done once for its input.

    Args:
        ready: the pipeline with the deployments that its steps name
        at: the time for which it is run, as 2026-03-01T03:00:00Z; that of its schedule by default. With the time of a
            run that was interrupted it is gone on with
    """
    without_tracebacks()
    name, logger = ready.pipeline.name, get_run_logger()

    def told(record: StepRecord) -> None:
        ended(ready, record)
        level = logger.error if record.status in ("refused", "failed") else logger.info
        level("pipeline %s, step %s: %s: %s", name, record.step, record.status, record.what)

    def work(_: list) -> list[RunRecord]:
        checked(ready)
        token = _running.set(ready)
        try:
            with belonging_to(deployment.id, name):
                return run_pipeline(ready, _now(at), do=lambda called, when: _made(ready, called, when), told=told)
        finally:
            _running.reset(token)

    runs = run_to_state(work, lambda _: f"pipeline {name} was not run")
    if isinstance(runs, State):
        return runs
    _show_all(ready, runs[-1], logger.warning)
    return _state(ready, runs)


def ended(ready: Ready, record: StepRecord) -> None:
    """What follows from the end of a step, besides its record."""
    if record.does == "evaluate" and record.status == "done":
        _tried(lambda: show_scores(record))


def _state(ready: Ready, runs: list[RunRecord]) -> State:
    bad = [record for run in runs for record in run.bad]
    if bad:
        words = " ".join(f"{record.step}: {record.what}" for record in bad)
        return failed(
            StepsFailed(
                f"{len(bad)} step{'s' * (len(bad) != 1)} of pipeline {ready.pipeline.name!r} went wrong: {words}"
            ),
            False,
        )
    message = " ".join(f"{run.at}: {in_words(run)}" for run in runs)
    if aside := [name for run in runs for name in files_aside(run)]:
        return Completed(name=SET_ASIDE, message=f"{aside_in_words(aside)}. {message}")
    return Completed(message=message)


def _show_all(ready: Ready, run: RunRecord, warn: Callable[..., object]) -> None:
    """The page of the pipeline, and that of its population. What is shown decides nothing."""
    pipeline = ready.pipeline
    for what in (
        lambda: show_pipeline(pipeline, read_journal(pipeline.runs, pipeline.name), run),
        lambda: show_population(Population.open(pipeline.population), pipeline.runs, pipeline.population),
    ):
        if wrong := _tried(what):
            warn("a page of pipeline %s is not in the Prefect UI: %s", pipeline.name, wrong)


def _tried(show: Callable[[], object]) -> str:
    try:
        show()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def run_here(ready: Ready, at: datetime) -> list[RunRecord]:
    """Run a pipeline by hand, with the server that is known or one of its own. Returns its records, as the journal has
    them. Raises what keeps it from being run; what is wrong with steps stands in their records.
    """
    state = cast(State, pipeline_flow(ready=ready, at=as_text(at), return_state=True))
    if state.is_failed():
        error = state.result(raise_on_failure=False)
        if not isinstance(error, StepsFailed):
            raise error
    run = read_journal(ready.pipeline.runs, ready.pipeline.name).at(as_text(at))
    return [] if run is None else [run]


def page_key(pipeline: str) -> str:
    """Of the artifact that is the page of a pipeline."""
    return key("pipeline", pipeline)
