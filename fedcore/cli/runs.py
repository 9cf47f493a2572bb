"""`fedcore runs`, and what is made of a run: report, scores, personalised outputs."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from fedcore.cli.options import (
    Dask,
    Json,
    Ledger,
    Local,
    PopulationArgument,
    RunArgument,
    Runs,
    Workers,
    open_population,
)
from fedcore.cli.training import show_run
from fedcore.terminal import bar, say, table

runs_app = typer.Typer(no_args_is_help=True, help="List, show and give up runs.")


@runs_app.command("list")
def runs_list(runs: Runs = Path("runs"), as_json: Json = False) -> None:
    """The runs of a folder."""
    from fedcore.runs import list_runs

    rows = []
    for run in list_runs(runs):
        info, population = run.info, run.info.get("population") or {}
        rows.append({"run": str(run.path), "method": info.get("method"), "population": population.get("name"),
                     "version": population.get("version"), "status": run.status, "rounds": max(run.round, 0),
                     "private": bool(info.get("private")) and not info.get("test_noise"),
                     "started": info.get("started")})  # fmt: skip
    if as_json:
        return say({"runs": rows}, True)
    table(f"Runs in {runs}", rows) if rows else print(f"no runs in {runs}")


@runs_app.command("show")
def runs_show(run: RunArgument, as_json: Json = False) -> None:
    """One run: settings, status, last metrics, privacy statement."""
    show_run(run, as_json, whole=True)


@runs_app.command("abandon")
def runs_abandon(run: RunArgument, ledger: Ledger = None, as_json: Json = False) -> None:
    """Give a run up for good: what it reserved and never charged goes back to the budget."""
    from fedcore.session import abandon

    say({"run": str(abandon(run, ledger_url=ledger).path), "status": "abandoned"}, as_json)


def report(run: RunArgument, as_json: Json = False) -> None:
    """Write the run's report.html again and print where it is."""
    from fedcore.evaluation.report import write_report
    from fedcore.runs import Run
    from fedcore.session import vocabulary_of

    opened = Run.open(run)
    say({"report": str(write_report(opened, vocabulary_of(opened)))}, as_json)


def personalise(
    run: RunArgument,
    population: PopulationArgument,
    dest: Annotated[Path, typer.Argument(help="Folder to make; one row for each client.")],
    as_json: Json = False,
) -> None:
    """Write each client's own output: sensitive, for that client only, not differentially private."""
    from fedcore.personalise import personalise as write

    with bar(f"personalise {population}", as_json) as progress:
        written = write(run, population, dest, progress=progress)
    say(written, as_json)


def evaluate(
    run: RunArgument,
    population: PopulationArgument,
    not_private: Annotated[Path | None, typer.Option(metavar="FILE", help="Evaluate a population that is not public; "
                           "the result goes into this file only, marked not private.")] = None,
    workers: Workers = None,
    dask: Dask = None,
    local: Local = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Score a run on held-out data, with the baselines beside it."""
    from fedcore.evaluation.evaluate import check_public, evaluate_run, write_not_private

    store = open_population(population)
    if not_private is not None:
        write_not_private(evaluate_run(run, store), not_private)
        return say({"not_private": str(not_private)}, as_json)  # the scores go into the file and nowhere else
    check_public(store)
    if local:
        result = evaluate_run(run, store, keep=True)
    else:
        flows = import_module("flows.evaluate")
        result = flows.evaluate_run_flow(run=str(run), population=str(population), workers=workers or 2, dask=dask)
    if as_json:
        return say(result, True)
    table(result["title"], result["rows"])
