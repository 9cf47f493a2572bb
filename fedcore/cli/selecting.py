"""`fedcore select`: settings compared on rows that the clients hold back."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from fedcore.cli.options import Cache, Dask, Json, Local, PopulationArgument, Runs, Settings, Workers
from fedcore.cli.terminal import bar, parse_bytes, read_settings, say, table, warn
from fedcore.cli.training import resumed, trained
from fedcore.errors import ConfigError


def select(
    method: Annotated[str, typer.Argument(help="Name of the method; `fedcore methods` lists them.")],
    population: PopulationArgument,
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="KEY=VALUE,VALUE,...",
            help="Values of one setting; repeatable. All combinations are trained. By default what the method "
            "suggests.",
        ),
    ] = None,
    settings: Settings = None,
    share: Annotated[
        float | None,
        typer.Option(
            "--validation",
            min=0.01,
            max=0.5,
            help="Fraction of each client's rows to hold back (default 0.2); of tables, of their cells (0.1).",
        ),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Names of the runs begin with it.")] = "select",
    runs: Runs = "runs",
    version: Annotated[int | None, typer.Option(min=1, help="Version of the population; default: the newest.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed for simulation randomness, the same for all runs.")] = 0,
    workers: Workers = None,
    dask: Dask = None,
    local: Local = False,
    cache: Cache = "512MiB",
    as_json: Json = False,
) -> None:
    """Train every combination of settings on a part of each client's rows, and compare losses on the other rows. Each
    is an ordinary run. After an interruption, run the same command again to continue. Not private."""
    from fedcore.methods.registry import make_method
    from fedcore.operations.selection import compare, requests
    from fedcore.training.request import TrainRequest
    from fedcore.training.spec import open_inputs, resolve

    request = TrainRequest.read(
        "See `fedcore select --help`.",
        method=method,
        population=str(population),
        settings=read_settings(None, settings),
        runs=str(runs),
        version=version,
        seed=seed,
        cache_bytes=parse_bytes(cache),
    )
    asked = make_method(request.method, request.settings)
    tried = _tries(tries) if tries else asked.tries()
    wanted = requests(request, tried, asked.held_back_share if share is None else share, name)
    for _, one in wanted:
        resolve(one, open_inputs(one))  # a mistake is reported before the first run
    with bar(f"select {population}", as_json) as progress:
        found = compare(
            wanted,
            lambda one: str(trained(one, local, workers, dask, True)),
            lambda run: str(resumed(run, local, workers, dask, request.cache_bytes, True)),
            progress,
        )
    best = found[0]
    command = shlex.join(
        ["fedcore", "train", request.method, request.population]
        + [part for pair in _pairs({**request.settings, **best.tried}) for part in ("--set", pair)]
    )
    rows = [one.row() for one in found]
    if as_json:
        return say({"privacy": "none", "candidates": rows, "best": dict(best.tried), "command": command}, True)
    table("Losses of rows that were held back, the smallest first (not private)", [_shown(row) for row in rows])
    print(f"To train the best on all rows:\n  {command}")
    on_the_edge = [key for key, values in tried.items() if len(values) > 2 and best.tried[key] == values[-1]]
    warn(f"the best {' and '.join(on_the_edge)} is the last that was tried: try more." if on_the_edge else "")


def _tries(pairs: list[str]) -> dict[str, list[Any]]:
    tries: dict[str, list[Any]] = {}
    for pair in pairs:
        key, equals, values = pair.partition("=")
        if not equals or not key or key in tries:
            raise ConfigError(f"--try {pair!r} is not of the form key=value,value,..., or {key!r} is there twice.")
        tries[key] = [read_settings(None, [f"{key}={value}"])[key] for value in values.split(",") if value]
    return tries


def _pairs(settings: Mapping[str, Any]) -> list[str]:
    shown = {key: str(value).lower() if isinstance(value, bool) else value for key, value in settings.items()}
    return [f"{key}={value}" for key, value in shown.items()]


def _shown(row: dict[str, Any]) -> dict[str, str]:
    return {
        name: "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
        for name, value in row.items()
    }
