"""`fedcore plan`: what a run would take, before it is made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcore.cli.options import Cache, Json, Ledger, Local, PopulationArgument, Runs, Settings, Share, use_ledger
from fedcore.cli.terminal import parse_bytes, parse_seconds, read_settings, say, table
from fedcore.errors import ConfigError


def plan(
    method: Annotated[str, typer.Argument(help="Name of the method; `fedcore methods` lists them.")],
    population: PopulationArgument,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings.")] = None,
    settings: Settings = None,
    runs: Runs = "runs",
    version: Annotated[int | None, typer.Option(min=1, help="Version of the population; default: the newest.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            min=1,
            max=10_000,
            help="Worker processes; by default 2, and none for at most 8192 clients with at most 32 MiB.",
        ),
    ] = None,
    cluster: Annotated[
        bool,
        typer.Option("--cluster", help="The workers are elsewhere, each with a core and a disk like this machine's."),
    ] = False,
    local: Local = False,
    cache: Cache = "512MiB",
    memory: Annotated[str | None, typer.Option(help="Memory that each process may have, e.g. 2GiB.")] = None,
    deadline: Annotated[
        str | None, typer.Option(help="Time for all rounds, e.g. 90s, 30m or 2h; shows the workers it needs.")
    ] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="Plan for this many clients.")] = None,
    rows_per_client: Annotated[
        int | None, typer.Option(min=1, help="Plan for this many rows of each client (of counts: different tokens).")
    ] = None,
    start_from: Annotated[str | None, typer.Option(metavar="RUN_OR_FILE", help="As for `fedcore train`.")] = None,
    public_start: Annotated[str | None, typer.Option(metavar="REASON", help="As for `fedcore train`.")] = None,
    share: Share = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Keep the plan, for `fedcore report RUN --plan FILE.json`.")
    ] = None,
    calibration: Annotated[float, typer.Option(min=0.1, max=600.0, help="Seconds for trial rounds.")] = 10.0,
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Predict what a run needs: passes, bytes, memory, disk, seconds, workers. Reserves, releases and trains nothing.

    Trial rounds with a few clients in this process measure the time; only times and sizes are kept. For a private
    method these clients are simulated, and the numbers of clients and of their rows are the declared ones.
    """
    from fedcore.planning.run_plan import Resources, plan_run
    from fedcore.training.request import TrainRequest

    use_ledger(ledger)
    request = TrainRequest.read(
        "See `fedcore plan --help`.",
        method=method,
        population=population,
        settings=read_settings(config, settings),
        runs=runs,
        version=version,
        start_from=start_from,
        public_start_because=public_start,
        share=share,
    )
    where = Resources(
        workers=workers,
        prefect=not local,
        cluster=cluster,
        cache_bytes=parse_bytes(cache),
        clients=clients,
        rows=rows_per_client,
        memory_bytes=None if memory is None else parse_bytes(memory),
        deadline=None if deadline is None else parse_seconds(deadline),
    )
    predictions = plan_run(request, where, limit=calibration)
    if save is not None:
        from fedcore.storage.files import write_json

        try:
            write_json(save, predictions)
        except OSError as error:
            raise ConfigError(f"cannot write {str(save)!r}: {error.strerror}.") from None
    if as_json:
        return say(predictions, True)
    show(predictions)


def show(predictions: dict) -> None:
    """The plan for people."""
    phases = [
        {
            "phase": row["phase"],
            "passes": row["passes"],
            "seconds of a pass": row["seconds_per_pass"],
            "seconds of work in it": row["client_seconds"],
        }
        for row in predictions["phases"]
    ]
    clients = f"{predictions['clients']:,} {'nominal ' if predictions['private'] else ''}clients"
    table(f"{predictions['method']} on {predictions['population']}, {clients}", phases)
    for name, value in predictions.items():
        if name not in ("private", "phases", "calibration", "rows_assumed"):
            print(f"{name.replace('_', ' '):<26} {in_units(name, value)}")
    if predictions["rows_assumed"]:
        print(
            f"\nThis plan assumes {predictions['rows_per_client']:g} row (of counts: token) per client, because no "
            "number is declared. Bytes and seconds grow with it: pass --rows-per-client N, or declare it at ingest "
            "with --nominal-rows N."
        )


def in_units(name: str, value) -> str:
    """A value of a plan, by the unit in its name."""
    if value is None:
        return "-"
    if "bytes" in name:
        return f"{value / 2**20:,.1f} MiB"
    if "seconds" in name:
        return f"{value:,.2f} s" if value < 600 else f"{value:,.0f} s ({value / 3600:.2f} h)"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if isinstance(value, float) else str(value)
