"""Options that commands share, and what most commands do first."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, nothing else.")]
Runs = Annotated[str, typer.Option("--runs", metavar="RUNS", help="Folder or URL of the runs.")]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting; repeatable.")]
FreeSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override an output setting of the run; repeatable. `fedcore methods METHOD` lists them. Costs no privacy "
        "budget, provided the value was not chosen by looking at the data.",
    ),
]
SafeCells = Annotated[
    bool,
    typer.Option(
        "--safe-cells", help="CSV files: put an apostrophe before texts that a spreadsheet would run as formulas."
    ),
]
Cache = Annotated[str, typer.Option("--cache", help="Decoded data that each process may keep, e.g. 512MiB.")]
Ledger = Annotated[
    str | None,
    typer.Option(
        "--ledger", help="URL of the ledger, if it was moved; default: FEDCORE_LEDGER, else as the population states."
    ),
]
PopulationArgument = Annotated[str, typer.Argument(metavar="POPULATION", help="Folder or URL of the population.")]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="Folder or URL of the run, or its deployment's file latest-NAME.json.")
]
Share = Annotated[
    str | None,
    typer.Option(
        "--share", metavar="NAME", help="Share of the population's budget to charge, if the budget is divided."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        max=256,
        help="Dask worker processes; by default 2, and none for at most 8192 clients with at most 32 MiB.",
    ),
]
Dask = Annotated[str | None, typer.Option("--dask", metavar="ADDRESS", help="A running Dask scheduler.")]
Local = Annotated[
    bool,
    typer.Option(
        "--local", help="The same rounds without Prefect; in this process unless --workers or --dask is given."
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics-file",
        metavar="FILE.prom",
        help="Keep numbers about the run in this file, in the text format of Prometheus; else FEDCORE_METRICS_FILE.",
    ),
]


def stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S")


def open_population(path: str, version: int | None = None):
    from fedcore.population.store import Population

    return Population.open(path, version=version)


def use_ledger(url: str | None) -> None:
    """Name the ledger for this process and its children."""
    if url is not None:
        os.environ["FEDCORE_LEDGER"] = url


def use_metrics(file: str | None) -> None:
    """Name the file of metrics for this process and its children."""
    if file is not None:
        os.environ["FEDCORE_METRICS_FILE"] = str(Path(file).absolute())
