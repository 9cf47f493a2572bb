"""`fedcore serve`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer


def serve(file: Annotated[Path, typer.Argument(help="TOML file of deployments.")]) -> None:
    """Serve scheduled training runs until stopped; starts a Prefect server here if PREFECT_API_URL names none."""
    from fedcore.deployment import read_deployments

    deployments = read_deployments(file)
    with import_module("flows.server").server() as base:
        print(f"Prefect UI: {base}", file=sys.stderr)
        import_module("flows.serve").serve(deployments)
