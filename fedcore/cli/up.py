"""`fedcore up` and `fedcore down`: from a file to a private schedule with an open UI, and back."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedcore.cli.options import Json
from fedcore.cli.serving import addresses, login_in_words, refused, serve_file, tell, use_ledger_of
from fedcore.cli.terminal import say, warn
from fedcore.errors import ConfigError, RunBusy

if TYPE_CHECKING:
    from fedcore.operations.deployment import DeploymentFile
    from fedcore.operations.up_record import Standing
    from fedcore.population.ingest.dealing import Sharing

FIX = "Nothing was created. Fix them, and run the command again."
TO_END = 20.0  # seconds that a process has for its end before it is asked once more, then killed
File = Annotated[Path, typer.Argument(metavar="[FILE]", help="TOML file that declares everything.")]


def up(
    file: File = Path("fedcore.toml"),
    check: Annotated[
        bool, typer.Option("--check", help="Check the file and print what would be created; create nothing.")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of the file, for editors; do nothing else.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create the populations and budgets that a file declares and that are missing, then serve its schedules until
    stopped. Run it again after an interruption: it continues where it stopped.
    """
    from fedcore.operations.deployment import json_schema, read_file
    from fedcore.operations.up_record import keep, serving_alone, standing

    if schema:
        return print(json.dumps(json_schema(), indent=2))
    content = read_file(file)
    use_ledger_of(content)
    if check:
        return _check(file, content, as_json)
    if (running := standing(file)) is not None:
        return _tell_of(file, running)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # until Prefect's runner has its own
    try:
        with serving_alone(file):
            _create(file, content)
            kept = content.storage.keep_blocks_bytes
            serve_file(file, content, kept, unchecked=True, served=partial(keep, file))  # because _create has checked
    except RunBusy:
        if (running := standing(file)) is None:
            raise
        _tell_of(file, running)


def down(file: File = Path("fedcore.toml"), as_json: Json = False) -> None:
    """End the process that `fedcore up` started for a file, with its Prefect server. Runs in progress can be
    resumed, and nothing that was created is removed.
    """
    import psutil

    from fedcore.operations.up_record import standing

    running = standing(file)
    pid = None if running is None else running.holder.pid
    if running is not None and pid is not None:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):  # Prefect's runner may want a second one
            if not running.holder.alive(expired=True):
                break
            try:
                os.kill(pid, number)
                psutil.Process(pid).wait(TO_END)
            except (ProcessLookupError, psutil.NoSuchProcess):
                break
            except PermissionError:
                raise ConfigError(f"process {pid} belongs to another user.", "Only that user can end it.") from None
            except psutil.TimeoutExpired:
                continue
    if as_json:
        return say({"file": str(file), "ended": pid}, True)
    print(f"{file.name} is not being served." if pid is None else f"{file.name}: process {pid} ended.")


def _check(file: Path, content: DeploymentFile, as_json: bool) -> None:
    """Print what would be created. Raises NotReady with everything that is wrong."""
    from fedcore.operations.creating import missing
    from fedcore.operations.deployment_checks import check_ready

    check_ready(file.name, [*_problems(file, content), *refused(content)], FIX)
    found = _flat(missing(content, _notes(file)))
    if as_json:
        return say({"file": str(file), "to_create": found}, True)
    print("\n".join(found) if found else "Everything that the file declares is there.")


def _problems(file: Path, content: DeploymentFile) -> list:
    from fedcore.operations.creating import declared_problems, missing
    from fedcore.operations.deployment_checks import problems

    notes = _notes(file)
    return [*declared_problems(content, notes), *problems(content, missing(content, notes))]


def _notes(file: Path) -> Path:
    from fedcore.operations.up_record import folder_of

    return folder_of(file)


def _create(file: Path, content: DeploymentFile) -> None:
    from fedcore.operations.creating import create, missing
    from fedcore.operations.deployment_checks import check_ready, that_pass

    found, wanted = _problems(file, content), _flat(missing(content, _notes(file)))
    passing = that_pass(found, served_before=not wanted)
    check_ready(file.name, [one for one in found if one not in passing], FIX)
    tell([f"to create: {words}" for words in wanted])
    for where, error in passing:
        warn(f"{where}: {type(error).__name__}: {error}")
    create(content, _notes(file), lambda words: tell([words]), _sharing)


def _flat(by_population: Mapping[str, Sequence[str]]) -> list[str]:
    return [words for each in by_population.values() for words in each]


def _sharing(workers: int | None) -> Sharing | None:
    made: Sharing | None = None
    if workers is not None:
        made = partial(import_module("fedcore.tasks.dask_backend").sharing, workers)
    return made


def _tell_of(file: Path, running: Standing) -> None:
    lines = [f"{file.name} is being served by process {running.holder.pid} already; `fedcore down` ends it."]
    if running.ui:
        lines += [
            *addresses(running.ui, running.page),
            *([] if os.environ.get("PREFECT_API_URL") else [login_in_words()]),
        ]
    tell(lines)
