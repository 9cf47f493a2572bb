"""`fedcore pipeline`: run a pipeline of a deployment file by hand, or say what a run of it would do."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedcore.cli.help_text import Commands
from fedcore.cli.options import Json, Local
from fedcore.cli.serving import use_ledger_of
from fedcore.cli.terminal import say, table, warn
from fedcore.errors import ConfigError, StepsFailed, needs

if TYPE_CHECKING:
    from fedcore.operations.pipelines.journal import RunRecord
    from fedcore.operations.pipelines.law import Ready

pipeline_app = typer.Typer(cls=Commands, no_args_is_help=True, help="Run pipelines of deployment files manually.")

File = Annotated[Path, typer.Argument(help="TOML file with the pipeline.")]
At = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Time for which it is run, as 2026-03-01T03:00:00Z [default: now]. With the time of an interrupted run, "
        "that run resumes.",
    ),
]


@pipeline_app.command("run")
def pipeline_run(
    file: File,
    name: Annotated[str, typer.Argument(help="Name of the pipeline.")],
    local: Local = False,
    at: At = None,
    as_json: Json = False,
) -> None:
    """Make one run of a pipeline: its steps in their order, each done once for its input; with Prefect by default, in
    this process with --local.
    """
    ready, when = _ready(file, name), _time(at)
    if local:
        from fedcore.operations.pipelines.running import run_pipeline

        runs = run_pipeline(ready, when)
    else:
        with needs("Without --local this command"):
            flows = import_module("fedcore.flows.pipeline")
        runs = flows.run_here(ready, when)
    if as_json:
        say({"pipeline": name, "runs": [run.model_dump(mode="json") for run in runs]}, True)
    else:
        for run in runs:
            _show(name, run)
    if bad := [record for run in runs for record in run.bad]:
        raise StepsFailed(
            f"{len(bad)} step{'s' * (len(bad) != 1)} of pipeline {name!r} went wrong: "
            + " ".join(f"{record.step}: {record.what}" for record in bad),
            "Fix the errors and run it again for the same time (--at); finished steps are not repeated.",
        )


@pipeline_app.command("show")
def pipeline_show(
    file: File,
    name: Annotated[str | None, typer.Argument(help="Name of the pipeline; default: all in the file.")] = None,
    at: At = None,
    as_json: Json = False,
) -> None:
    """Show what a run would do now: new files, old cohorts, and each training under the budget. Writes nothing."""
    from fedcore.operations.pipelines.plan import expected

    names = [name] if name is not None else _names(file)
    found = {one: expected(_ready(file, one), _time(at)) for one in names}
    if as_json:
        return say({"pipelines": found}, True)
    for one, rows in found.items():
        table(f"Pipeline {one}", rows)


def _names(file: Path) -> list[str]:
    from fedcore.operations.deployment import read_file

    return [pipeline.name for pipeline in read_file(file).pipeline]


def _ready(file: Path, name: str) -> Ready:
    from fedcore.operations.deployment import read_file
    from fedcore.operations.pipelines.law import ready

    content = read_file(file)
    use_ledger_of(content)
    for pipeline in content.pipeline:
        if pipeline.name == name:
            return ready(pipeline, content.deployment)
    known = ", ".join(pipeline.name for pipeline in content.pipeline) or "none"
    raise ConfigError(f"{file.name} has no pipeline {name!r}.", f"It has: {known}.")


def _time(text: str | None) -> datetime:
    if text is None:
        return datetime.now(UTC).replace(microsecond=0)
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no time.", "Write it as 2026-03-01T03:00:00Z.") from None
    return (given if given.tzinfo else given.replace(tzinfo=UTC)).replace(microsecond=0)


def _show(name: str, run: RunRecord) -> None:
    from fedcore.operations.pipelines.page import aside_in_words, files_aside

    rows = [{"step": one.step, "state": one.status, "what": one.what, "seconds": one.seconds} for one in run.steps]
    table(f"Pipeline {name} for {run.at}", rows)
    if aside := files_aside(run):
        warn(aside_in_words(aside))
