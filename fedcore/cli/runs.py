"""`fedcore runs`, and what is made of a run: report, scores, per-client outputs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedcore.cli.help_text import Commands
from fedcore.cli.options import (
    Dask,
    FreeSettings,
    Json,
    Ledger,
    Local,
    PopulationArgument,
    RunArgument,
    Runs,
    SafeCells,
    Workers,
    open_population,
    stamp,
)
from fedcore.cli.terminal import announce, bar, read_settings, say, table, warn
from fedcore.cli.training import show_run

if TYPE_CHECKING:
    from fedcore.population.store import Population
    from fedcore.rounds.engine import Backend

runs_app = typer.Typer(cls=Commands, no_args_is_help=True, help="List, show, promote, prune and give up runs.")


@runs_app.command("list")
def runs_list(runs: Runs = "runs", as_json: Json = False) -> None:
    """The runs of a folder."""
    from fedcore.runs.run_row import summary_row
    from fedcore.runs.store import read_runs

    readable, damaged = read_runs(runs)
    for error in damaged:
        warn(error.message)
    rows = [summary_row(run) | {"run": str(run.path)} for run in readable]
    if as_json:
        return say({"runs": rows}, True)
    table(f"Runs in {runs}", rows) if rows else print(f"no runs in {runs}")


@runs_app.command("show")
def runs_show(
    run: RunArgument,
    as_json: Json = False,
    whole: Annotated[bool, typer.Option("--all", help="The whole privacy statement, with every release.")] = False,
) -> None:
    """One run: status, result, and the first lines of its privacy statement."""
    show_run(run, as_json, result=True, whole=whole)


@runs_app.command("abandon")
def runs_abandon(run: RunArgument, ledger: Ledger = None, as_json: Json = False) -> None:
    """Abandon a run permanently. Budget that it reserved and never charged becomes free again."""
    from fedcore.training.session import abandon

    say({"run": str(abandon(run, ledger_url=ledger).path), "status": "abandoned"}, as_json)


Deployment = Annotated[str | None, typer.Option("--deployment", metavar="NAME", help="Only runs of this deployment.")]


@runs_app.command("latest")
def runs_latest(deployment: Deployment = None, runs: Runs = "runs", as_json: Json = False) -> None:
    """Show the current run of each deployment, which need not be the newest."""
    from fedcore.errors import RunNotFound
    from fedcore.operations.latest_runs import all_latest, latest

    if deployment is None:
        found = all_latest(runs)
    elif (one := latest(runs, deployment)) is not None:
        found = [one]
    else:
        raise RunNotFound(
            f"deployment {deployment!r} has no latest run in {str(runs)!r}.",
            "`fedcore runs promote RUN` makes a finished run its latest one.",
        )
    rows = [
        {
            "deployment": item.deployment,
            "run": str(item.path.parent / item.run),
            "since": item.since,
            "because": item.because,
            "file": str(item.path),
        }
        for item in found
    ]
    if as_json:
        return say({"latest": rows}, True)
    table(f"Latest runs in {runs}", rows) if rows else print(f"no latest runs in {runs}")


@runs_app.command("promote")
def runs_promote(
    run: RunArgument,
    deployment: Annotated[
        str | None, typer.Option("--deployment", metavar="NAME", help="By default the one that made the run.")
    ] = None,
    because: Annotated[str, typer.Option(help="The reason; it is recorded.")] = "promoted by hand",
    as_json: Json = False,
) -> None:
    """Make a finished run the current run of its deployment, regardless of its scores."""
    from fedcore.errors import ConfigError
    from fedcore.operations.events import run_promoted
    from fedcore.operations.latest_runs import promote
    from fedcore.runs.store import Run

    opened = Run.open(run)
    name = deployment or opened.info.get("deployment")
    if name is None:
        raise ConfigError(f"run {opened.id!r} was made by no deployment.", "Name one with --deployment.")
    made = promote(opened, name, because, stamp())
    announce(lambda: [run_promoted(opened, name, because)])
    say({"deployment": name, "run": str(opened.path), "file": str(made.path)}, as_json)


@runs_app.command("prune")
def runs_prune(
    keep: Annotated[int, typer.Option("--keep", min=1, help="Newest finished runs whose model stays.")],
    deployment: Deployment = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be removed; remove nothing.")] = False,
    runs: Runs = "runs",
    as_json: Json = False,
) -> None:
    """Remove the models (states, memories, released values) of older finished runs; metrics, statement and report
    stay. Runs are counted for each deployment separately, and without a deployment by method and population. The
    current run of a deployment stays, and so does every run that has not finished.
    """
    from fedcore.operations.retention import prune

    rows = prune(runs, keep, stamp(), deployment, dry_run=dry_run)
    if as_json:
        return say({"pruned": rows, "dry_run": dry_run}, True)
    title = "Would be removed" if dry_run else "Removed"
    table(f"{title} in {runs}", rows) if rows else print(f"nothing to remove in {runs}")


@runs_app.command("outliers")
def runs_outliers(run: RunArgument, population: PopulationArgument, as_json: Json = False) -> None:
    """Show the clients that differ from all others, and which of them look like outliers; kept for the run's report.
    The output names clients and is not private."""
    from dataclasses import asdict

    from fedcore.evaluation.outliers import diagnose
    from fedcore.evaluation.report import write_report
    from fedcore.runs.store import Run
    from fedcore.storage.files import write_json

    found = [asdict(task) for task in diagnose(run, population)]
    opened = Run.open(run)
    write_json(opened.path / "diagnosis.json", {"privacy": "none", "tasks": found})
    written = write_report(opened)
    if as_json:
        return say({"tasks": found, "report": str(written)}, True)
    shown = [{**task, "score": f"{task['score']:.2f}", "deviation": f"{task['deviation']:.1f}"} for task in found]
    table(f"Clients that are apart in {run}", shown) if shown else print("no client is apart from the others")
    print(f"Also in {written}.")


@runs_app.command("anomalies")
def runs_anomalies(
    run: RunArgument,
    population: PopulationArgument,
    rows: Annotated[int, typer.Option("--rows", min=1, max=100_000, help="How many.")] = 20,
    as_json: Json = False,
) -> None:
    """Show the rows that a run finds least likely, by client. The output names clients and is not private."""
    from dataclasses import asdict
    from math import isfinite

    from fedcore.evaluation.anomalies import unusual_rows

    unusual = unusual_rows(run, population, rows)
    found = [asdict(row) for row in unusual.rows]
    if as_json:  # in which no number is infinite
        told = [{**row, "log_density": row["log_density"] if isfinite(row["log_density"]) else None} for row in found]
        return say({"privacy": "none", "rows": told, "left_out": unusual.left_out}, True)
    shown = [{**row, "log_density": f"{row['log_density']:.4g}"} for row in found]
    table(f"Rows of {population} that {run} finds least likely (not private)", shown) if shown else print("no rows")
    left_out = f"{unusual.left_out} rows are left out: they lack entries without which they have no density."
    warn(left_out if unusual.left_out else "")


def report(
    run: RunArgument,
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            metavar="FILE.json",
            help="File of `fedcore plan --save`: its forecast is shown next to the measurements, here and from now on "
            "in the report.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the run's report.html and result.json again and print where they are."""
    from fedcore.evaluation.report import write_report
    from fedcore.evaluation.result_file import RESULT, keep_result_if_possible
    from fedcore.runs.store import Run
    from fedcore.training.spec import vocabulary_of

    opened = Run.open(run)
    held = {}
    if plan is not None:
        from fedcore.runs.plan_check import keep_plan, read_plan

        held = {"promise": keep_plan(opened, read_plan(plan))}
    names = vocabulary_of(opened)
    written = {"report": str(write_report(opened, names))}
    if missing := keep_result_if_possible(opened, names):
        warn(missing)
    else:
        written["result"] = str(opened.path / RESULT)
    if as_json:
        return say(written | held, True)
    if held:
        table("Promised and measured", held["promise"])
    say(written, False)


def export(
    run: RunArgument,
    dest: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="What to make: a folder of all tables as CSV; NAME.csv or NAME.parquet, one table; NAME.json, tables "
            "and statement; NAME.npz or NAME.zarr, arrays; NAME.png, pictures; NAME.joblib or NAME.pkl, a fitted "
            "scikit-learn estimator.",
        ),
    ],
    table_name: Annotated[
        str | None, typer.Option("--table", metavar="TABLE", help="The table of a .csv or .parquet file.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists; a folder never is.")] = False,
    safe_cells: SafeCells = False,
    as_json: Json = False,
) -> None:
    """Write the result of a run for other programs: its tables, arrays, or a fitted estimator.

    For a private run, everything comes from published values. Arrays of other runs may contain what single clients
    sent.
    """
    from fedcore.evaluation.export import export_run
    from fedcore.runs.store import Run

    say(export_run(Run.open(run), dest, table_name, force=force, safe_cells=safe_cells), as_json)


def predict(
    run: RunArgument,
    population: PopulationArgument,
    dest: Annotated[
        str,
        typer.Argument(
            help="What to make, a row for each client: NAME.parquet, NAME.csv, NAME.npz, or a Zarr folder, NAME or "
            "NAME.zarr; of rows that are pictures also NAME.pngs or NAME.videos, a folder of backgrounds and "
            "masks."
        ),
    ],
    settings: FreeSettings = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, max=256, help="Processes that share the blocks; default: this one alone."),
    ] = None,
    safe_cells: SafeCells = False,
    as_json: Json = False,
) -> None:
    """Write each client's own output: sensitive, for that client only, not differentially private.

    With --set, override an output setting of the run, such as prior_tokens or floor. After an interruption, run the
    same command again to continue.
    """
    from fedcore.training.personalise import personalise

    shared = import_module("fedcore.tasks.dask_backend").sharing(workers) if workers else nullcontext((None, 1))
    try:
        with shared as (backend, at_once), bar(f"predict {population}", as_json) as progress:
            given = read_settings(None, settings)
            made = personalise(run, population, dest, progress, given, backend, at_once, safe_cells=safe_cells)
            say(made, as_json)
    except KeyboardInterrupt:
        print("interrupted. Run the same command again to continue; finished parts are kept.", file=sys.stderr)
        raise


def evaluate(
    run: RunArgument,
    population: PopulationArgument,
    not_private: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Evaluate a population that is not public; the result goes into this file only, marked not private.",
        ),
    ] = None,
    settings: FreeSettings = None,
    least: Annotated[
        int,
        typer.Option(
            "--min-tokens",
            "--min-rows",
            min=0,
            help="Score only clients with at least this many tokens (or rows) in the training and in the held-out "
            "part; 0: all clients with held-out data.",
        ),
    ] = 0,
    workers: Workers = None,
    dask: Dask = None,
    local: Local = False,
    as_json: Json = False,
) -> None:
    """Score a run and the baselines on held-out data. The scores are kept for the report unless settings are given.

    Uses Prefect if it has a server, or for populations of more than 8192 clients or 32 MiB; else runs in this process.
    """
    from fedcore.evaluation.evaluate import check_public, evaluate_run, write_not_private
    from fedcore.rounds.scores import differences_in_words

    store, given = open_population(population), read_settings(None, settings)
    if not_private is not None:
        with _answering(workers, dask, private=True) as backend:
            scores = evaluate_run(run, store, backend, settings=given, least=least)
        write_not_private(scores, not_private)
        return say({"not_private": str(not_private)}, as_json)  # the scores go into the file and nowhere else
    check_public(store)
    if local or (workers is None and dask is None and not _worth_a_server(store)):
        with _answering(workers, dask) as backend:
            result = evaluate_run(run, store, backend, keep=True, settings=given, least=least)
    else:
        flows = import_module("fedcore.flows.evaluate")
        result = flows.evaluate_run_flow(
            run=str(run), population=str(population), workers=workers, dask=dask, settings=given or None, least=least
        )
    warn(result.get("warning", ""))
    if as_json:
        return say(result, True)
    table(result["title"], result["rows"])
    if words := differences_in_words(result):
        print(words)


@contextmanager
def _answering(workers: int | None, dask: str | None, private: bool = False) -> Iterator[Backend | None]:
    """A backend of these workers; None for this process. private: whether data sent to them must stay confidential."""
    if workers is None and dask is None:
        yield None
        return
    cluster = import_module("fedcore.tasks.dask_backend")
    with cluster.dask_backend(workers, dask, private) as backend:
        yield backend


def _worth_a_server(store: Population) -> bool:
    """Whether scores are made in a flow: if there is a server that shows it, or workers would share the work."""
    from fedcore.errors import ExtraMissing, needs
    from fedcore.population.sizing import is_small

    try:
        with needs("A flow"):
            server = import_module("fedcore.flows.own_server")
    except ExtraMissing:
        return False
    return not is_small(store.n_clients, sum(store.sizes())) or bool(server.knows_a_server())
