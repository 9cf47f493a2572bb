"""`fedcore serve`, `fedcore deploy`, `fedcore watch` and `fedcore backfill`."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from fedcore.cli.options import Json, use_ledger
from fedcore.cli.terminal import parse_bytes, parse_seconds, say, table
from fedcore.errors import ConfigError, FedcoreError

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
PoolType = Literal["process", "docker", "kubernetes"]  # as `fedcore.operations.pool_sizes`, without its imports


def serve(
    file: File,
    unchecked: Unchecked = False,
    keep_blocks: Annotated[
        str | None,
        typer.Option(
            "--keep-blocks",
            help="Most bytes of decoded client data to keep on this machine's disk for later runs, e.g. 4GiB "
            "[default: as the file says, or none].",
        ),
    ] = None,
) -> None:
    """Serve scheduled trainings and pipelines until stopped; starts a Prefect server here if PREFECT_API_URL names
    none.
    """
    from fedcore.operations.deployment import read_file

    content = read_file(file)
    use_ledger_of(content)
    kept = content.storage.keep_blocks_bytes if keep_blocks is None else parse_bytes(keep_blocks)
    serve_file(file, content, kept, unchecked=unchecked)


def serve_file(
    file: Path,
    content: DeploymentFile,
    keep_blocks: int = 0,
    *,
    unchecked: bool = False,
    served: Callable[[str, str], object] = lambda ui, page: None,
) -> None:
    """Serve what is in a file until this process is stopped.

    keep_blocks: bytes of decoded client data to keep for later runs; 0 for none. served: is given the addresses of the
    Prefect UI and of the operator's page in it. Raises NotReady, and ConfigError if the server does not start.
    """
    from fedcore.operations.deployment import expectations
    from fedcore.population.kept_blocks import keeping

    def ready() -> None:
        _check(file, content, unchecked)
        tell(expectations(content.deployment))

    server = import_module("fedcore.flows.server")
    own = not os.environ.get("PREFECT_API_URL")
    with server.environment(server.SAFE_PATH), server.server(first=ready) as base:  # for the processes of runs, too
        names = [item.name for item in content.deployment] + [item.name for item in content.pipeline]
        # It is asked first: what was missed is left out next, and then counts as a start.
        watching = import_module("fedcore.flows.watch").watching(content, f"{base}/api")
        marking = import_module("fedcore.flows.dead").marking(f"{base}/api", names, own)
        showing = import_module("fedcore.flows.overview").showing(content, file, base)
        with watching, marking, showing as page, keeping(keep_blocks) if keep_blocks else nullcontext():
            served(base, page)
            tell([*addresses(base, page), *([login_in_words()] if own else [])])
            with _pruning(content, base, own):
                import_module("fedcore.flows.serve").serve(content, file.stem, page)


def addresses(ui: str, page: str) -> list[str]:
    """Where a person looks, in lines: the operator's page first, if there is one."""
    return [*([f"Overview: {page}"] if page else []), f"Prefect UI: {ui}"]


def _pruning(content: DeploymentFile, base: str, own: bool) -> AbstractContextManager[None]:
    """Inside, old artifacts are removed, as the file says, or by default on a server of this process."""
    flows = import_module("fedcore.flows.pruning")
    days = content.storage.ui_days or (flows.DAYS if own else None)
    found: AbstractContextManager[None] = nullcontext() if days is None else flows.pruning(f"{base}/api", days)
    return found


def login_in_words() -> str:
    """How to log in to the UI of a server that was started here. The password itself is in it only if what is printed
    cannot be read by other users.
    """
    server = import_module("fedcore.flows.server")
    if os.environ.get(server.ASKED_FOR):
        return f"It asks for the value of {server.ASKED_FOR}."
    where = server.login_file()
    if _read_by_others(sys.stderr):
        return f"Login: the text in {where}, which only you can read; this output is not as private."
    return f"Login: {server.kept_login()} (name:password, kept in {where})"


def _read_by_others(output: TextIO | None) -> bool:
    """Whether what is printed ends in a file that other users can read, or in a log that is collected."""
    from fedcore.operations import log_lines

    if log_lines.wanted() or output is None:
        return True
    try:
        mode = os.fstat(output.fileno()).st_mode
    except (OSError, ValueError):
        return True
    return stat.S_ISSOCK(mode) or (stat.S_ISREG(mode) and bool(mode & 0o044))


def use_ledger_of(content: DeploymentFile) -> None:
    """Name the file's ledger for this process and its children, unless FEDCORE_LEDGER names one."""
    if content.storage.ledger is not None and not os.environ.get("FEDCORE_LEDGER"):
        use_ledger(content.storage.ledger)


def deploy(
    file: File,
    pool: Annotated[str, typer.Option(help="Work pool; made if there is none.")] = "fedcore",
    pool_type: Annotated[
        PoolType | None,
        typer.Option("--type", help="Type of the pool; of one that there is as the server says, of a new one process."),
    ] = None,
    size_from_plan: Annotated[
        bool, typer.Option("--size-from-plan", help="Size the machine of each deployment by `fedcore plan`.")
    ] = False,
    deadline: Annotated[
        str | None,
        typer.Option(help="With --size-from-plan: time for all rounds of a run, e.g. 30m, for the number of workers."),
    ] = None,
    calibration: Annotated[
        float, typer.Option(min=0.1, max=600.0, help="Seconds for trial rounds of each deployment.")
    ] = 10.0,
    unchecked: Unchecked = False,
    as_json: Json = False,
) -> None:
    """Register scheduled trainings and pipelines with the server that PREFECT_API_URL names, for its workers to run."""
    from fedcore.operations.deployment import expectations, read_file

    content = read_file(file)
    use_ledger_of(content)
    _server("to register deployments with", "; or use `fedcore serve`, which needs none")
    if not unchecked:
        _check(file, content)
    sizing = Sizing(size_from_plan, None if deadline is None else parse_seconds(deadline), calibration)
    content, sizes = _for_the_pool(content, pool, pool_type, sizing)
    rows = import_module("fedcore.flows.deploy").deploy(content, pool)
    notify = import_module("fedcore.flows.notify").notify
    notify(content.notify, file.stem, [row["id"] for row in rows])
    command = f"prefect worker start --pool {pool}"
    tell(expectations(content.deployment))
    if as_json:
        return say({"deployments": rows, "pool": pool, "worker": command, **({"sizes": sizes} if sizes else {})}, True)
    table(f"Deployments in work pool {pool}", rows)
    if sizes:
        table("Sizes, from the plan of the next run of each", sizes)
    print(f"They are run by:  {command}")


def watch(
    file: File,
    every: Annotated[float, typer.Option(min=15, help="Seconds between two checks.")] = 60.0,
    once: Annotated[bool, typer.Option("--once", help="Check once; exit with 3 if a problem was found.")] = False,
    as_json: Json = False,
) -> None:
    """Report missed starts and stalled runs to the Prefect server at PREFECT_API_URL, each once."""
    from fedcore.operations.deployment import read_file

    content = read_file(file)
    address = _server("to watch deployments of", "")
    look = import_module("fedcore.flows.watch").look
    while True:
        try:
            found = look(content, address)
        except (OSError, ValueError) as error:
            if once:
                raise ConfigError(f"the Prefect server at {address} does not answer ({error}).") from None
            tell([f"the Prefect server at {address} does not answer ({error}); it is asked again."])
            found = []
        if as_json and (once or found):
            say({"events": [{"event": event.name, **event.payload} for event in found]}, True)
        elif found:
            print("\n".join(str(event.payload["message"]) for event in found), flush=True)
        if once:
            raise SystemExit(3 if found else 0)
        time.sleep(every)


def backfill(
    file: File,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Deployment of the file.")],
    versions: Annotated[str, typer.Option(metavar="3-7", help="Versions of its population to train on.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be trained on; train nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Train a deployment on older versions of its population that it has missed, one after the other. Such runs are
    never promoted. Refused unless all of them fit into the budget.
    """
    from fedcore.operations.backfill import check_backfill, missing_versions
    from fedcore.operations.deployment import read_file
    from fedcore.storage.ranges import in_words, parsed, ranges_of

    found = [item for item in read_file(file).deployment if item.name == name]
    if not found:
        raise ConfigError(f"{file.name} has no deployment {name!r}.")
    try:
        wanted = parsed(versions)
    except ValueError:
        raise ConfigError(f"--versions {versions!r} is not like 3-7 or 3,5.") from None
    missing = missing_versions(found[0], wanted)
    check_backfill(found[0], missing)
    rows: list[dict] = []
    if missing and not dry_run:
        address = _server("whose workers would train", "")
        try:
            for row in import_module("fedcore.flows.backfill").backfill(found[0], missing, address):
                rows.append(row)
                if not as_json:
                    print(f"version {row['version']}: {row['state']} {row['message']}".rstrip(), flush=True)
        except (OSError, ValueError) as error:
            raise ConfigError(f"the Prefect server at {address} does not answer any more ({error}).") from None
    if as_json:
        say({"missing": missing, "runs": rows, "dry_run": dry_run}, True)
    elif dry_run or not missing:
        print(f"{name} has not been trained on versions: {in_words(ranges_of(missing))}")
    if any(row["state"] != "Completed" for row in rows):
        raise SystemExit(2)


def _server(what: str, otherwise: str) -> str:
    """The server that PREFECT_API_URL names. Raises ConfigError for none, or one that does not answer."""
    address = os.environ.get("PREFECT_API_URL")
    if not address:
        raise ConfigError(
            f"PREFECT_API_URL names no Prefect server {what}.",
            "Start one that stays (`prefect server start`) and set PREFECT_API_URL to its address and "
            f"/api{otherwise}.",
        )
    import_module("fedcore.flows.server").check_reachable(address)
    return address


def _check(file: Path, content: DeploymentFile, unchecked: bool = False) -> None:
    """Raises NotReady with all that is wrong, for exit code 2. unchecked: only schedules that Prefect refuses"""
    from fedcore.operations.deployment_checks import check_ready, problems

    check_ready(file.name, [*([] if unchecked else problems(content)), *refused(content)])


def refused(content: DeploymentFile) -> list[tuple[str, FedcoreError]]:
    """The schedules of a file that Prefect refuses."""
    found: list[tuple[str, FedcoreError]] = import_module("fedcore.flows.serve").refused_schedules(content)
    return found


@dataclass(frozen=True, slots=True)
class Sizing:
    """asked: whether machines are to be sized; deadline: seconds for all rounds; calibration: seconds for each plan."""

    asked: bool
    deadline: float | None
    calibration: float


def _for_the_pool(
    content: DeploymentFile, pool: str, pool_type: PoolType | None, sizing: Sizing
) -> tuple[DeploymentFile, list[dict[str, Any]]]:
    """The file's deployments with job variables for the pool, which is made if there is none; and the sizes as rows.
    Raises ConfigError for a pool of another type, or whose template lacks a variable.
    """
    from fedcore.operations.pool_sizes import for_pool, not_taken, outside_of_containers, planned_size

    if sizing.deadline is not None and not sizing.asked:
        raise ConfigError("--deadline goes with --size-from-plan.", "Pass both, or neither.")
    sizes = [
        planned_size(item, sizing.deadline, sizing.calibration) if sizing.asked else None for item in content.deployment
    ]
    kind, template = import_module("fedcore.flows.pools").ready_pool(pool, pool_type)
    made, rows = [], []
    for item, size in zip(content.deployment, sizes, strict=True):
        made.append(for_pool(item, kind, size))
        if size is not None:
            rows.append({"deployment": item.name, **size.in_words})
        if missing := not_taken(made[-1].job_variables, template):
            raise ConfigError(
                f"the base job template of work pool {pool!r} does not know {', '.join(missing)}, which deployment "
                f"{item.name!r} sets.",
                "Add the variables to the template: `prefect work-pool update --base-job-template FILE.json`.",
            )
    if kind != "process":
        tell(outside_of_containers(made))
    pipelines = [for_pool(item, kind) for item in getattr(content, "pipeline", ())]  # which need the image, too
    return content.model_copy(update={"deployment": made, **({"pipeline": pipelines} if pipelines else {})}), rows


def tell(lines: Sequence[str]) -> None:
    from fedcore.operations.log_lines import say as say_line

    for line in lines:
        say_line(line)
