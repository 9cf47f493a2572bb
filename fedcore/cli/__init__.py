"""The command line. With its commands the only part of fedcore that loads `flows` and `tasks`, by name and only when a
command needs them, so that `--help` is quick.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated

import typer

from fedcore.cli.help_text import WIDEST, group_of
from fedcore.cli.later import import_later
from fedcore.cli.terminal import collect_late, old_names_as_lines
from fedcore.errors import ConfigError, FedcoreError, needs

COMMANDS = {  # where each command and each group of commands is
    "methods": "fedcore.cli.methods:methods",
    "plan": "fedcore.cli.planning:plan",
    "select": "fedcore.cli.selecting:select",
    "train": "fedcore.cli.training:train",
    "resume": "fedcore.cli.training:resume",
    "report": "fedcore.cli.runs:report",
    "export": "fedcore.cli.runs:export",
    "predict": "fedcore.cli.runs:predict",
    "evaluate": "fedcore.cli.runs:evaluate",
    "verify": "fedcore.cli.verifying:verify",
    "up": "fedcore.cli.up:up",
    "down": "fedcore.cli.up:down",
    "status": "fedcore.cli.status:status",
    "serve": "fedcore.cli.serving:serve",
    "deploy": "fedcore.cli.serving:deploy",
    "watch": "fedcore.cli.serving:watch",
    "backfill": "fedcore.cli.serving:backfill",
    "reproduce": "fedcore.cli.experiments:reproduce",
    "demo": "fedcore.cli.experiments:demo",
    "verify-statement": "fedcore.cli.verifying:verify_statement",
    "population": "fedcore.cli.populations:population_app",
    "runs": "fedcore.cli.runs:runs_app",
    "budget": "fedcore.cli.budgets:budget_app",
    "pipeline": "fedcore.cli.pipelines:pipeline_app",
    "ledger": "fedcore.cli.ledgers:ledger_app",
    "site": "fedcore.cli.sites:site_app",
    "study": "fedcore.cli.sites:study_app",
}
# Names of commands and options before 1.0, without dashes before them. No help shows them.
OLD_NAMES = {"personalise": "predict", "nominal-clients": "declared-clients"}

app = typer.Typer(
    name="fedcore",
    cls=group_of(COMMANDS),
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


def main() -> None:
    """Run the command line. A user's mistake is one message and exit code 2."""
    import_later()
    collect_late()
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
