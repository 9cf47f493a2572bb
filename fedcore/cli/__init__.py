"""The command line. With its commands the only part of fedcore that loads `flows` and `tasks`, by name and only when a
command needs them, so that `--help` is quick.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated

import typer

from fedcore.cli.budgets import budget_app
from fedcore.cli.experiments import demo, reproduce
from fedcore.cli.help_text import WIDEST, Commands, OfMethod
from fedcore.cli.ledgers import ledger_app
from fedcore.cli.methods import methods
from fedcore.cli.pipelines import pipeline_app
from fedcore.cli.planning import plan
from fedcore.cli.populations import population_app
from fedcore.cli.runs import evaluate, export, predict, report, runs_app
from fedcore.cli.selecting import select
from fedcore.cli.serving import backfill, deploy, serve, watch
from fedcore.cli.sites import site_app, study_app
from fedcore.cli.status import status
from fedcore.cli.terminal import old_names_as_lines
from fedcore.cli.training import resume, train
from fedcore.cli.up import down, up
from fedcore.cli.verifying import verify, verify_statement
from fedcore.errors import ConfigError, FedcoreError, needs

# Names of commands and options before 1.0, without dashes before them. No help shows them.
OLD_NAMES = {"personalise": "predict", "nominal-clients": "declared-clients"}

app = typer.Typer(
    name="fedcore",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": WIDEST, "token_normalize_func": lambda word: OLD_NAMES.get(word, word)},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"fedcore {version('fedcore')}")
        raise typer.Exit()


@app.callback()
def root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Federated, private, unsupervised learning over populations too large for memory."""


app.add_typer(population_app, name="population")
app.add_typer(runs_app, name="runs")
app.add_typer(budget_app, name="budget")
app.add_typer(pipeline_app, name="pipeline")
app.add_typer(ledger_app, name="ledger")
app.add_typer(site_app, name="site")
app.add_typer(study_app, name="study")
for command in (
    methods,
    plan,
    select,
    train,
    resume,
    report,
    export,
    predict,
    evaluate,
    verify,
    up,
    down,
    status,
    serve,
    deploy,
    watch,
    backfill,
    reproduce,
    demo,
):
    app.command(cls=OfMethod if command in (plan, select, train) else None)(command)
app.command("verify-statement")(verify_statement)


def main() -> None:
    """Run the command line. A user's mistake is one message and exit code 2."""
    try:
        if any("\0" in argument for argument in sys.argv):
            raise ConfigError("an argument contains a NUL character.", "No file, setting or name has one.")
        with needs("This command"), old_names_as_lines():
            app(prog_name="fedcore")
    except FedcoreError as error:
        fail(error, "--json" in sys.argv)


def fail(error: FedcoreError, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"error": type(error).__name__, "message": error.message, "remedy": error.remedy}))
    if os.environ.get("FEDCORE_LOG") == "json":
        from fedcore.operations.log_lines import FIELDS
        from fedcore.operations.log_lines import say as say_line

        told = {"event": "failed", "error": type(error).__name__, "remedy": error.remedy}
        say_line(error.message, {FIELDS: told}, "ERROR")
        raise SystemExit(2)
    print(f"{type(error).__name__}: {error.message}", file=sys.stderr)
    if error.remedy:
        print(error.remedy, file=sys.stderr)
    raise SystemExit(2)
