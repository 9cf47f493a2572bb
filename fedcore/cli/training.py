"""`fedcore train` and `fedcore resume`, with Prefect or in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedcore.cli.options import (
    Cache,
    Dask,
    Json,
    Ledger,
    Local,
    Metrics,
    PopulationArgument,
    RunArgument,
    Runs,
    Settings,
    Share,
    Workers,
    stamp,
    use_ledger,
    use_metrics,
)
from fedcore.cli.terminal import parse_bytes, read_settings, say, show_table, warn
from fedcore.errors import FedcoreError, Waiting, needs
from fedcore.storage import objects as object_storage
from fedcore.storage.files import Place, listing, place

if TYPE_CHECKING:
    from fedcore.rounds.results import Table
    from fedcore.runs.store import Run
    from fedcore.training.request import TrainRequest
    from fedcore.training.spec import RunSpec


def train(
    method: Annotated[str, typer.Argument(help="Name of the method; `fedcore methods` lists them.")],
    population: PopulationArgument,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings.")] = None,
    settings: Settings = None,
    runs: Runs = "runs",
    run_id: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    version: Annotated[int | None, typer.Option(min=1, help="Version of the population; default: the newest.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed for simulation randomness; not used by privacy noise.")] = 0,
    workers: Workers = None,
    dask: Dask = None,
    local: Local = False,
    cache: Cache = "512MiB",
    ledger: Ledger = None,
    test_noise: Annotated[
        str | None,
        typer.Option(help="Key of pseudo-random noise, for tests with a test ledger; the run is not private."),
    ] = None,
    start_from: Annotated[
        str | None,
        typer.Option(
            metavar="RUN_OR_FILE",
            help="Start from the centres of a run, of an .npz file, or of the 'previous' run on this population.",
        ),
    ] = None,
    public_start: Annotated[
        str | None, typer.Option(metavar="REASON", help="Why that start is public, if it is not a private run.")
    ] = None,
    cohorts: Annotated[
        str | None,
        typer.Option(
            metavar="able|1-27", help="Cohorts to train on: able (default; all with enough budget), or a range."
        ),
    ] = None,
    share: Share = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Run even if the budget is too small for a useful result.")
    ] = False,
    metrics_file: Metrics = None,
    as_json: Json = False,
) -> None:
    """Train a model; with Prefect and Dask by default, in this process with --local."""
    from fedcore.training.request import TrainRequest
    from fedcore.training.spec import open_inputs, resolve

    use_ledger(ledger)
    use_metrics(metrics_file)
    request = TrainRequest.read(
        "See `fedcore train --help`.",
        method=method,
        population=str(population),
        settings=read_settings(config, settings)
        | ({} if cohorts is None else {"cohorts": cohorts})
        | ({"anyway": True} if anyway else {}),
        runs=str(runs),
        run_id=run_id,
        version=version,
        seed=seed,
        cache_bytes=parse_bytes(cache),
        test_noise=test_noise,
        start_from=start_from,
        public_start_because=public_start,
        share=share,
    )
    spec = resolve(request, open_inputs(request))  # a mistake is reported at once, not after a server has started
    spec.check_worth()
    if spec.worth is not None and not as_json:
        print(f"what to expect, by the budget: {spec.worth.in_words}", file=sys.stderr)
    if spec.left_out and not as_json:
        print(f"missing values: {spec.left_out}", file=sys.stderr)
    show_run(str(trained(request, local, workers, dask, as_json, spec)), as_json)


def trained(
    request: TrainRequest, local: bool, workers: int | None, dask: str | None, quiet: bool, spec: RunSpec | None = None
) -> Place:
    """The folder of the run that was made of the request, with Prefect or in this process. spec: of the request; a flow
    resolves it when its cluster has started, against what is left of the budget then."""
    from fedcore.methods.registry import make_method
    from fedcore.training.session import start_run

    method = make_method(request.method, request.settings)
    if local:
        return in_process(
            lambda backend: start_run(request, backend, stamp=stamp(), spec=spec), workers, dask, method.private, quiet
        )
    with needs("Without --local this command"):
        flows = import_module("fedcore.flows.train")
    with saying_how_to_go_on(None, request.runs):
        path: Place | Waiting = flows.FLOWS[request.method](
            population=request.population,
            config=method.config,
            runs=request.runs,
            compute=flows.Compute(workers=workers, dask=dask, cache_bytes=request.cache_bytes),
            seed=request.seed,
            run_id=request.run_id,
            version=request.version,
            test_noise=request.test_noise,
            start_from=request.start_from,
            public_start_because=request.public_start_because,
            share=request.share,
        )
    if isinstance(path, Waiting):  # another run has spent what was left a moment ago
        raise path
    return path


def resume(
    run: RunArgument,
    workers: Workers = None,
    dask: Dask = None,
    local: Local = False,
    cache: Cache = "512MiB",
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take the run over from a process that seems alive.")
    ] = False,
    population: Annotated[str | None, typer.Option(help="Where the population is now, if it was moved.")] = None,
    ledger: Ledger = None,
    metrics_file: Metrics = None,
    as_json: Json = False,
) -> None:
    """Resume a run after its last committed round. If all rounds are done, complete its remaining steps."""
    from fedcore.runs.store import Run
    from fedcore.training.session import check_resumable
    from fedcore.training.spec import recorded_request

    use_ledger(ledger)
    use_metrics(metrics_file)
    opened = Run.open(run)
    check_resumable(opened)
    recorded_request(opened)
    moved = None if population is None else str(population)
    show_run(str(resumed(run, local, workers, dask, parse_bytes(cache), as_json, take_over, moved)), as_json)


def resumed(
    run: str,
    local: bool,
    workers: int | None,
    dask: str | None,
    cache_bytes: int,
    quiet: bool,
    take_over: bool = False,
    population: str | None = None,
) -> Place:
    """Resume a run to its end, with Prefect or in this process, and return its folder."""
    from fedcore.runs.store import Run
    from fedcore.training.session import resume as reopen
    from fedcore.training.spec import recorded_request

    if local:
        return in_process(
            lambda backend: reopen(run, backend, cache_bytes=cache_bytes, take_over=take_over, population=population),
            workers,
            dask,
            recorded_request(Run.open(run))["private"],
            quiet,
        )
    with needs("Without --local this command"):
        flows = import_module("fedcore.flows.train")
    compute = flows.Compute(workers=workers, dask=dask, cache_bytes=cache_bytes)
    with saying_how_to_go_on(place(run)):
        path: Place = flows.resume_run(run=str(run), compute=compute, take_over=take_over, population=population)
    return path


def in_process(begin, workers: int | None, dask: str | None, private: bool, quiet: bool) -> Place:
    """Rounds without Prefect; on a Dask cluster if workers or an address were given."""
    from fedcore.rounds.engine import InProcessBackend

    if workers is None and dask is None:
        backend = InProcessBackend()
        return _rounds(begin(backend), backend, quiet)
    cluster = import_module("fedcore.tasks.dask_backend")
    with cluster.dask_backend(workers, dask, private) as backend:
        return _rounds(begin(backend), backend, quiet)


def _rounds(session, backend, quiet: bool) -> Place:
    from rich.console import Console
    from rich.progress import Progress

    from fedcore.operations import log_lines
    from fedcore.operations.in_process import to_the_end

    training, method = session.training, session.method
    bar = Progress(console=Console(stderr=True), disable=quiet or log_lines.wanted())
    with saying_how_to_go_on(session.run.path), bar as progress:
        total = method.total_rounds(training.state)
        shown = progress.add_task(f"run {session.run.id}", total=total, completed=session.run.round)

        def after_round(info) -> None:
            progress.update(shown, completed=training.done, total=method.total_rounds(training.state))
            if log_lines.wanted():
                words = f"run {session.run.id}: round {training.done}"
                log_lines.say(words, log_lines.fields(session, "round", round=training.done))
            elif info.note:
                progress.console.print(f"round {training.done}: {info.note}")

        path = to_the_end(session, backend, after_round, warn)
        progress.update(shown, completed=session.run.round, total=session.run.round)
    return path


@contextmanager
def saying_how_to_go_on(run: Place | None, runs: str | None = None) -> Iterator[None]:
    """On a keyboard interrupt, print how to resume the run. runs: folder in which new runs are looked for, if the name
    of the run is not known yet."""
    before = _names(runs)
    try:
        yield
    except KeyboardInterrupt:
        begun = [place(str(runs)) / name for name in sorted(_names(runs) - before)]
        for path in [run] if run is not None else begun:
            print(f"interrupted. Continue with: fedcore resume {path}", file=sys.stderr)
        raise


def _names(runs: str | None) -> set[str]:
    return set() if runs is None else set(listing(place(runs)))


@object_storage.reading_once()
def show_run(path: str, as_json: bool, result: bool = False, whole: bool = False) -> None:
    """A run and its privacy statement; with its result, if that is asked for; the whole statement with every release,
    or its first lines."""
    from fedcore.evaluation.run_summary import run_summary
    from fedcore.evaluation.written import shown_tables
    from fedcore.runs.store import Run

    run = Run.open(path)
    value = run_summary(run) | {"run": str(path)}
    tables = _tables_of(run) if result or as_json else ()
    if as_json:
        return say(value | {"result": [each.to_json() for each in tables]}, True)
    statement = value.pop("privacy", None) or {}
    value.pop("metrics", None)
    if statement.get("pending"):
        value["private"] = "not stated yet"  # "False" would say that the method is not private
    say(value, False)
    for each in shown_tables(tables):
        print()
        show_table(each)
    text = statement.get("text", "")
    print("\n" + (text if whole else text.split("\nReleases")[0]))
    if result and not whole and statement.get("private"):
        many = len(statement.get("releases", ()))
        print(f"What is not covered, and all {many} releases: fedcore runs show {path} --all")


def _tables_of(run: Run) -> tuple[Table, ...]:
    """Of the result; none, and a warning, if the model cannot be read: the rest of a run can be seen without it."""
    from fedcore.evaluation.run_summary import result_of

    try:
        return result_of(run).tables
    except FedcoreError as error:
        warn(f"the result of this run cannot be shown: {error.message}")
        return ()
