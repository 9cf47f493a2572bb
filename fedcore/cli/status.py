"""`fedcore status`: what is running, what died, what waits, what is late and what was spent, on one screen."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from fedcore.cli.options import Json
from fedcore.cli.terminal import say, table, warn

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
    """Show what needs attention, what ran, waits or is late, the runs and days that budgets still allow, and what
    changed in the results. Prefect is asked at PREFECT_API_URL, or at the server that `fedcore up` started for the
    file.
    """
    from fedcore.operations.overview import folders_of, overview

    file, content, folders = _file(where), None, [where or "runs"]
    if file is not None:
        from fedcore.operations.deployment import read_file

        content = read_file(file)
        folders = folders_of(content)
    facts = overview(folders, content, _prefect(file))
    if as_json:
        return say(facts, True)
    for words in facts["unread"]:
        warn(words)
    _print(facts, folders)


def _print(facts: dict[str, Any], folders: list[str]) -> None:
    """What needs attention first."""
    alerts, prefect = facts["alerts"], facts["prefect"]
    print("Needs attention:" if alerts else "Nothing needs attention.")
    for one in alerts:
        print(f"- {one['what']} {one['remedy']}".rstrip())
    if facts["deployments"]:
        table("Deployments, times in UTC", facts["deployments"])
    states = ", ".join(f"{many} {what}" for what, many in facts["states"].items())
    print(f"Runs in {', '.join(folders)}: {states or 'none'}")
    if facts["runs"]:
        table("Runs that are not at their end", facts["runs"])
    if budgets := [one for one in facts["budgets"] if "error" not in one]:
        table("Budgets", budgets)
    for one in facts["changes"]:
        print(f"{one['deployment']}, run {one['run']}: {one['said']}")
        if one["changes"]:
            table("What changed", one["changes"])
    if page := (prefect or {}).get("page"):
        print(f"Overview: {page}")
    if prefect is None:
        print("Prefect: no server. Set PREFECT_API_URL, or start one with `fedcore up`.")
    elif "error" not in prefect:
        rows = prefect["flow_runs"]
        table(f"Flow runs of {prefect['address']}", rows) if rows else print(f"Prefect: {prefect['address']}, idle")


def _file(where: str | None) -> Path | None:
    """The TOML file that is meant, if one is."""
    path = Path(where or FILE)
    if path.suffix == ".toml":
        return path if where is not None or path.is_file() else None
    return path / FILE if (path / FILE).is_file() else None


def _prefect(file: Path | None) -> dict[str, Any] | None:
    """What Prefect knows; None without a server, with `error` if it does not answer."""
    from fedcore.operations.up_record import standing

    server = import_module("fedcore.flows.server")
    address, more = os.environ.get(server.ADDRESS), {}
    running = None if file is None else standing(file)
    if not address:
        if running is None or not running.ui:
            return None
        address = f"{running.ui}/api"
        more = {server.GIVEN: os.environ.get(server.ASKED_FOR) or server.kept_login()}
    page = {"page": running.page} if running is not None and running.page else {}
    with server.environment(more):
        try:
            return {**import_module("fedcore.flows.overview").seen(address), **page}
        except (OSError, ValueError) as error:
            return {"address": address, "error": str(error)}
