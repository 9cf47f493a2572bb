"""`fedcore status`: what is under way, what died, what waits, what is late and what was spent, on one screen."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedcore.cli.options import Json
from fedcore.cli.terminal import say, table, warn

if TYPE_CHECKING:
    from fedcore.operations.deployment import DeploymentFile

FILE = "fedcore.toml"
Where = Annotated[
    str | None,
    typer.Argument(
        metavar="[FOLDER]",
        help=f"Folder of runs; or a TOML file, or a folder with {FILE}, for all runs and populations that it names "
        f"[default: {FILE}, else runs].",
    ),
]


def status(where: Where = None, as_json: Json = False) -> None:
    """Show runs that are under way or died, waiting and late starts of Prefect, and what budgets have spent. Prefect is
    asked at PREFECT_API_URL, or at the server that `fedcore up` started for the file.
    """
    from fedcore.operations.deployment import read_file
    from fedcore.operations.overview import budgets_view, populations_of, runs_view

    file = _file(where)
    content = None if file is None else read_file(file)
    folders = [where or "runs"] if content is None else _folders(content)
    counts, runs, unread = runs_view(folders)
    populations = populations_of(folders) if content is None else _populations(content)
    budgets = list(budgets_view(populations))
    prefect = _prefect(file)
    if as_json:
        return say({"states": counts, "runs": runs, "budgets": budgets, "prefect": prefect, "unread": unread}, True)
    for words in unread:
        warn(words)
    print(f"Runs in {', '.join(folders)}: {', '.join(f'{many} {what}' for what, many in counts.items()) or 'none'}")
    if runs:
        table("Runs that are not at their end", runs)
    if budgets:
        table("Budgets", budgets)
    if prefect is None:
        print("Prefect: no server. Set PREFECT_API_URL, or start one with `fedcore up`.")
    elif "error" in prefect:
        warn(f"the Prefect server at {prefect['address']} does not answer ({prefect['error']}).")
    else:
        rows = prefect["flow_runs"]
        table(f"Flow runs of {prefect['address']}", rows) if rows else print(f"Prefect: {prefect['address']}, idle")


def _file(where: str | None) -> Path | None:
    """The TOML file that is meant, if one is."""
    path = Path(where or FILE)
    if path.suffix == ".toml":
        return path if where is not None or path.is_file() else None
    return path / FILE if (path / FILE).is_file() else None


def _folders(content: DeploymentFile) -> list[str]:
    return list(dict.fromkeys([*(item.runs for item in content.deployment), *(item.runs for item in content.pipeline)]))


def _populations(content: DeploymentFile) -> list[str]:
    named = [item.path for item in content.population] + [item.population for item in content.deployment]
    return list(dict.fromkeys([*named, *(item.population for item in content.pipeline)]))


def _prefect(file: Path | None) -> dict[str, Any] | None:
    """What Prefect knows; None without a server, with `error` if it does not answer."""
    from fedcore.operations.up_record import standing

    server = import_module("fedcore.flows.server")
    address, more = os.environ.get(server.ADDRESS), {}
    if not address:
        running = None if file is None else standing(file)
        if running is None or not running.ui:
            return None
        address = f"{running.ui}/api"
        more = {server.GIVEN: os.environ.get(server.ASKED_FOR) or server.kept_login()}
    with server.environment(more):
        try:
            rows = import_module("fedcore.flows.dead").attention(address)
        except (OSError, ValueError) as error:
            return {"address": address, "error": str(error)}
    return {"address": address, "flow_runs": rows}
