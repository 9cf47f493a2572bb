"""Training flows: one flow run for each training run, one Dask client for all its rounds."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from fedcore.flows.dead import try_to_mark
from fedcore.flows.limits import using
from fedcore.flows.names import kept
from fedcore.flows.own_server import flow
from fedcore.flows.states import REFUSED, note_process, run_to_state
from fedcore.flows.telling import tell, tell_end
from fedcore.tasks.artifacts import Showcase, show_comparison, show_population
from fedcore.tasks.backends import backend_for
from fedcore.tasks.operations import conclude_series
from fedcore.tasks.training import next_rounds
from prefect import Flow, get_client, get_run_logger
from prefect.client.schemas import State
from prefect.runtime import deployment, flow_run
from prefect.settings import get_current_settings
from pydantic import BaseModel

from fedcore.errors import ConfigError, PopulationError
from fedcore.methods.names import METHODS
from fedcore.methods.registry import make_method, method_class, summary
from fedcore.operations.events import run_promoted
from fedcore.operations.log_lines import fields
from fedcore.operations.metrics import Meter
from fedcore.operations.monitoring import RunMonitoring
from fedcore.operations.schedule import Compute
from fedcore.operations.series import Conclusion, conclusion_of, public_population
from fedcore.population.store import Population
from fedcore.rounds.clients import peak_memory
from fedcore.rounds.engine import Backend
from fedcore.rounds.method import Method
from fedcore.runs.store import TRAINED, Run
from fedcore.training.request import Series, TrainRequest
from fedcore.training.session import Session, concluding, resume, start_run
from fedcore.training.spec import recorded_request


def stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S")


def _last(place: object) -> str:
    """The name of a folder or of what a URL points to."""
    return Path(str(place).rstrip("/")).name


def _namer(method: str) -> Callable[[], str]:
    """Names of flow runs: the name that the run was given, or method, population and time."""

    def name() -> str:
        parameters = flow_run.parameters
        return str(parameters.get("run_id") or f"{method}-{_last(parameters['population'])}-{stamp()}")

    return name


def _resumed() -> str:
    return f"resume-{_last(flow_run.parameters['run'])}-{stamp()}"


def tag(method: str, population: str, private: bool) -> None:
    """Add tags to this flow run, however it was started: lists in the UI are filtered by them."""
    with get_client(sync_client=True) as client:
        mine = client.read_flow_run(flow_run.id)
        tags = {*mine.tags, method, _last(population), "private" if private else "not-private"}
        client.update_flow_run(mine.id, tags=sorted(tags))


@cache
def training_flow(method: str) -> Flow:
    """The training flow of a method; its settings are a form in the UI, because they are the type of `config`."""
    settings = method_class(method).Config

    def train_method(
        population: str,
        config: BaseModel = settings(),
        runs: str = "runs",
        compute: Compute = Compute(),
        seed: int = 0,
        run_id: str | None = None,
        version: int | None = None,
        test_noise: str | None = None,
        start_from: str | None = None,
        public_start_because: str | None = None,
        series: Series | None = None,
        monitoring: RunMonitoring = RunMonitoring(),
        share: str | None = None,
    ) -> str:
        def work(sessions: list[Session]) -> str:
            request = TrainRequest.read(
                method=method,
                population=population,
                settings=config.model_dump(mode="json"),
                runs=runs,
                run_id=run_id,
                version=version,
                seed=seed,
                cache_bytes=compute.cache_bytes,
                test_noise=test_noise,
                start_from=start_from,
                public_start_because=public_start_because,
                deployment=deployment.name,
                series=series,
                share=share,
            )
            with using(population, "reads"):
                return make_run(request, compute, sessions, monitoring.metrics_file)

        return run_and_show(work, method, population, runs, monitoring)

    train_method.__annotations__["config"] = settings  # Prefect makes the form of it
    train_method.__name__ = train_method.__qualname__ = f"train_{method}"
    train_method.__doc__ = f"""{summary(method_class(method))}

    Args:
        population: folder or URL of the population
        config: settings of the method
        runs: folder or URL in which the run's folder is made
        compute: where the clients are answered
        seed: names the streams of simulation randomness; it never protects anybody
        run_id: name of the run; made from method, population and time by default
        version: version of the population; the newest by default
        test_noise: key of pseudo-random noise for tests; such a run is not private
        start_from: folder or URL of a run, or .npz file of arrays, that it starts from; or "previous", the newest
            finished run of the same deployment on the population
        public_start_because: why that start is public, if it is not a private run
        series: of a deployment: what the run is compared on, when it becomes the latest one, how many are kept
        monitoring: when the budget counts as low, where numbers about the run are written
        share: name of the share of the population's budget that pays, where it is divided
    """
    return flow(
        name=f"train-{method.replace('_', '-')}",
        flow_run_name=kept(_namer(method)),
        persist_result=False,
        validate_parameters=True,
        retries=0,
    )(train_method)


def make_run(request: TrainRequest, compute: Compute, sessions: list[Session], metrics_file: str | None = None) -> str:
    """The folder of a new run, made to its end. sessions: is given the run's, as soon as there is one; metrics_file: of
    `fedcore.operations.metrics`
    """
    made = make_method(request.method, request.settings)
    tag(request.method, request.population, made.private and request.test_noise is None)
    store = Population.open(request.population, version=request.version)
    conclusion = _check_series(request, made, store)
    with backend_for(store, compute.workers, compute.dask, made.private) as backend:
        sessions.append(session := start_run(request, backend, stamp=stamp()))
        if session.spec.worth is not None:
            get_run_logger().info("what to expect, by the budget: %s", session.spec.worth.in_words)
        if session.spec.left_out:
            get_run_logger().info(session.spec.left_out)
        train(session, backend, lambda _: conclusion, metrics_file)
    return str(session.run.path)


def go_on(
    run: str, compute: Compute, sessions: list[Session], take_over: bool = False, population: str | None = None
) -> str:
    """The folder of a run that was interrupted, made to its end. Arguments as of `resume_run`; sessions: is given the
    run's.
    """
    info = _open_to_resume(run).info
    tag(info["method"], population or info["population"]["path"], info["private"] and info["test_noise"] is None)
    store = Population.open(population or info["population"]["path"], version=info["population"]["version"])
    with backend_for(store, compute.workers, compute.dask, info["private"]) as backend:
        sessions.append(
            session := resume(run, backend, cache_bytes=compute.cache_bytes, take_over=take_over, population=population)
        )
        train(session, backend, lambda run: conclusion_of(run, session.method, session.population))
    return str(session.run.path)


@flow(name="resume-run", flow_run_name=_resumed, persist_result=False, retries=0)
def resume_run(run: str, compute: Compute = Compute(), take_over: bool = False, population: str | None = None) -> str:
    """Go on with a run after its last committed round, or with what follows its last one; one of a deployment ends as
    if it had not been interrupted.

    Args:
        run: folder or URL of the run
        compute: where the clients are answered
        take_over: take the run from a holder that seems alive
        population: where the population is now, if it was moved
    """
    note_process()
    try_to_mark(str(get_current_settings().api.url))
    opened = run_to_state(lambda _: _open_to_resume(run), lambda _: f"run {_last(run)} cannot be resumed")
    if not isinstance(opened, Run):
        return opened  # the state that says why not
    info = opened.info
    place = population or info["population"]["path"]
    return run_and_show(
        lambda sessions: go_on(run, compute, sessions, take_over, population),
        info["method"],
        place,
        str(opened.path.parent),
    )


def _open_to_resume(path: str) -> Run:
    run = Run.open(path)
    recorded_request(run)
    return run


def train(
    session: Session, backend: Backend, how: Callable[[Run], Conclusion | None], metrics_file: str | None = None
) -> None:
    """Make all rounds that are left, keep the artifacts up to date while they run, conclude the run, and write the
    report.

    how: the trained run is concluded; None: it belongs to no series. metrics_file: of `fedcore.operations.metrics`
    """
    logger, name, run = get_run_logger(), in_a_line(session), session.run
    if run.status == TRAINED:
        words = "%s: is trained after %d rounds, and is concluded; process %d"
        logger.info(words, name, run.round, os.getpid(), extra=fields(session, "concluding", round=run.round))
    else:
        logger.info(
            "%s: begins with round %d of at most %d, process %d, kept in %s",
            name,
            max(run.round, 0) + 1,
            session.method.total_rounds(session.training.state),
            os.getpid(),
            run.path,
            extra=fields(session, "begins", round=max(run.round, 0)),
        )
    show = Showcase(session)
    meter = Meter(session, metrics_file, lambda words: _warn(name, [words]))

    def conclude(_: Run) -> None:
        conclusion = how(run)
        if conclusion is not None:
            _conclude(session, conclusion, backend)

    def report(ended: Run) -> None:
        _warn(name, show.report(ended))

    with closing(meter), concluding(session, conclude, report):
        goes_on, seconds = True, None
        while goes_on:
            before = run.round
            goes_on, seconds = next_rounds(session, seconds)
            meter.rounds()
            _warn(name, show.progress())
            if run.round > before:
                logger.info(
                    "%s: round %d of at most %d, %.2f s each",
                    name,
                    run.round,
                    session.method.total_rounds(session.training.state),
                    seconds,
                    extra=fields(session, "round", round=run.round, seconds=seconds),
                )
        run.note(peak_memory_of_workers=backend.memory_of_workers(), peak_memory_of_flow=peak_memory())
    outcome = f"; {run.head['outcome'].rstrip('.')}" if run.head.get("outcome") else ""
    words = "%s: %s after %d rounds%s; report: %s"
    ended = fields(session, "ended", round=run.round, status=run.status)
    logger.info(words, name, run.status, run.round, outcome, run.path / "report.html", extra=ended)


def _warn(name: str, failures: list[str]) -> None:
    for words in failures:
        get_run_logger().warning("%s: %s", name, words)


def in_a_line(session: Session) -> str:
    """Which run this is, for lines of log that are read one by one."""
    private = session.method.private and session.run.info["test_noise"] is None
    return (
        f"run {session.run.id} ({session.method.name} on population {session.population.path.name} version "
        f"{session.population.version}, {'private' if private else 'not private'})"
    )


# --- around the rounds ----------------------------------------------------------------------------------------------


def run_and_show(
    work: Callable[[list[Session]], str],
    method: str,
    population: str,
    runs: str,
    monitoring: RunMonitoring = RunMonitoring(),
) -> Any:
    """The folder of the run; or, after a named error, the state of the flow run that says what was wrong.

    work: appends its session to the list that it is given, as soon as there is one.

    Events tell what there is to act on, and the page of the population is brought up to date, in either case.
    """
    begun: list[Session] = []

    def noted(sessions: list[Session]) -> str:
        try:
            return work(sessions)
        finally:
            begun.extend(sessions)

    def describe(sessions: list[Session]) -> str:
        return in_a_line(sessions[0]) if sessions else f"nothing was trained on population {_last(population)}"

    result = run_to_state(noted, describe, lambda sessions, event: fields(sessions[0], event) if sessions else None)
    session = begun[0] if begun else None
    tell_end(
        result, session, method=method, population=population, deployment=lambda: deployment.name, monitoring=monitoring
    )
    if isinstance(result, State) and result.name == REFUSED and isinstance(result.data, PopulationError):
        return result
    try:
        show_population(Population.open(population), runs, population)
    except Exception as error:  # what is shown decides nothing: the outcome of the run is what matters
        get_run_logger().warning("the page of population %s was not brought up to date: %s", _last(population), error)
    return result


def _check_series(request: TrainRequest, method: Method, population: Population) -> Conclusion | None:
    """What becomes of the run, with its public population checked before anything is spent; None without a series."""
    if request.series is None:
        return None
    if request.deployment is None:
        raise ConfigError(
            "what becomes of a series of runs was given, and no deployment that they belong to.",
            "Leave `series` out, or start the run from a deployment.",
        )
    store = public_population(request.series, method, population)
    return Conclusion(request.deployment, request.series, store)


def _conclude(session: Session, conclusion: Conclusion, backend: Backend) -> None:
    """Compare, promote and prune; then say what was done in the log and an artifact."""
    logger, name = get_run_logger(), in_a_line(session)
    outcome = conclude_series(session.run, conclusion, stamp(), backend)
    try:
        show_comparison(outcome)
    except Exception as error:  # what is shown decides nothing
        _warn(name, [f"the comparison is not in the Prefect UI ({type(error).__name__}: {error})."])
    if outcome["promoted"]:
        before = outcome["latest_before"]
        tell(lambda: [run_promoted(session.run, conclusion.deployment, outcome["because"], before)])
    decision = "is now the latest run" if outcome["promoted"] else "does not become the latest run"
    told = fields(session, "promoted" if outcome["promoted"] else "not promoted")
    words = "%s: %s of deployment %s, because %s"
    logger.info(words, name, decision, conclusion.deployment, outcome["because"], extra=told)
    if outcome["pruned"]:
        logger.info(
            "%s: removed the models of %d older runs of deployment %s: %s",
            name,
            len(outcome["pruned"]),
            conclusion.deployment,
            ", ".join(outcome["pruned"]),
            extra=fields(session, "pruned", pruned=outcome["pruned"]),
        )


class Flows(Mapping[str, Flow]):
    """The training flow of every method, by name; made when it is asked for, with the method's room."""

    def __getitem__(self, name: str) -> Flow:
        if name not in METHODS:
            raise KeyError(name)
        return training_flow(name)

    def __iter__(self) -> Iterator[str]:
        return iter(METHODS)

    def __len__(self) -> int:
        return len(METHODS)


FLOWS = Flows()


def __getattr__(name: str) -> Flow:
    """`train_METHOD`: where a worker finds the flow of a method, by name."""
    kind, _, method = name.partition("_")
    if kind == "train" and method in METHODS:
        return FLOWS[method]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
