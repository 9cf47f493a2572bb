"""`fedcore serve` and `fedcore deploy`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedcore.cli.options import Json
from fedcore.cli.terminal import say, table
from fedcore.errors import ConfigError

if TYPE_CHECKING:
    from fedcore.operations.deployment import DeploymentFile

File = Annotated[Path, typer.Argument(help="TOML file of deployments and pipelines.")]
Unchecked = Annotated[
    bool,
    typer.Option(
        "--unchecked",
        help="Do not look whether populations, columns and budgets are as the first runs need them: where they are out "
        "of reach from here.",
    ),
]


def serve(file: File, unchecked: Unchecked = False) -> None:
    """Serve scheduled trainings and pipelines until stopped; starts a Prefect server here if PREFECT_API_URL names
    none.
    """
    from fedcore.operations.deployment import expectations, read_file

    content = read_file(file)
    if not unchecked:
        _check(file, content)
    _tell(expectations(content.deployment))
    own, chosen = not os.environ.get("PREFECT_API_URL"), os.environ.get("PREFECT_SERVER_API_AUTH_STRING")
    with import_module("fedcore.flows.server").server() as base:
        print(f"Prefect UI: {base}", file=sys.stderr)
        if own and chosen:
            print("It asks for the value of PREFECT_SERVER_API_AUTH_STRING.", file=sys.stderr)
        elif own:
            print(
                "It is closed by a password that nobody is told. To look at it, choose one before you start: "
                "PREFECT_SERVER_API_AUTH_STRING=name:password.",
                file=sys.stderr,
            )
        import_module("fedcore.flows.serve").serve(content)


def deploy(
    file: File,
    pool: Annotated[str, typer.Option(help="Work pool of processes; made if there is none.")] = "fedcore",
    unchecked: Unchecked = False,
    as_json: Json = False,
) -> None:
    """Register scheduled trainings and pipelines with the server that PREFECT_API_URL names, for its workers to run."""
    from fedcore.operations.deployment import expectations, read_file

    content = read_file(file)
    if not os.environ.get("PREFECT_API_URL"):
        raise ConfigError(
            "PREFECT_API_URL names no Prefect server to register deployments with.",
            "Start one that stays (`prefect server start`) and set PREFECT_API_URL to its address and "
            "/api; or use `fedcore serve`, which needs none.",
        )
    import_module("fedcore.flows.server").check_reachable(os.environ["PREFECT_API_URL"])
    if not unchecked:
        _check(file, content)
    flows = import_module("fedcore.flows.deploy")
    rows = flows.deploy(content, pool)
    if content.notify is not None:
        flows.notify(content.notify, file.stem, rows)
    command = f"prefect worker start --pool {pool}"
    _tell(expectations(content.deployment))
    if as_json:
        return say({"deployments": rows, "pool": pool, "worker": command}, True)
    table(f"Deployments in work pool {pool}", rows)
    print(f"They are run by:  {command}")


def _check(file: Path, content: DeploymentFile) -> None:
    """Raises NotReady with all that is wrong, for exit code 2."""
    from fedcore.operations.deployment_checks import check_ready, problems

    check_ready(file.name, [*problems(content), *import_module("fedcore.flows.serve").refused_schedules(content)])


def _tell(lines: Sequence[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr)
