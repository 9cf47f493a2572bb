"""`fedcore population ingest` and `sketch`: a population of files."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from fedcore.cli.ingest_options import takes_request
from fedcore.cli.options import Json, Ledger, open_population
from fedcore.cli.populations import register, show
from fedcore.cli.terminal import announce, bar, say
from fedcore.errors import FedcoreError
from fedcore.population.ingest.request import IngestRequest


@takes_request
def population_ingest(
    source: Annotated[str, typer.Argument(help="File, folder or pattern to read; with --format sql a query.")],
    dest: Annotated[str, typer.Argument(help="Folder of the population to make.")],
    request: IngestRequest,
    append: Annotated[bool, typer.Option("--append", help="Add to an existing population: a new version.")] = False,
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Make a population from files. Clients are stored whole, for any order and size of the input."""
    from fedcore.operations import events
    from fedcore.population.ingest.ingest import ingest
    from fedcore.training.budget import ledger_name

    workers = request.workers
    before = None
    if append:
        with suppress(FedcoreError):  # which appending to it then raises
            before = open_population(dest)
    with bar(f"ingest {source}", as_json) as progress:
        made = ingest(
            source,
            dest,
            request,
            append=append,
            ledger=None if append else ledger_name(ledger),
            progress=progress,
            sharing=None if workers is None else lambda: import_module("fedcore.tasks.dask_backend").sharing(workers),
        )
    register(made, ledger)
    if before is not None and before.version != made.version:
        announce(lambda: [events.population_appended(made, before)])
    show(made, as_json)
    if not as_json and made.manifest.nominal_clients is None and not made.manifest.public_for_evaluation:
        unit = "record" if made.manifest.records else "client"
        print(
            f"\nPrivate runs need a declared number of {unit}s, and there is none. Pass --declared-clients N when you "
            f"ingest or append, or set nominal_{unit}s for a run."
        )


def population_sketch(
    source: Annotated[str, typer.Argument(help="File or folder of a table.")],
    out: Annotated[
        Path | None, typer.Argument(metavar="SCHEMA.toml", help="File to write; on the terminal without one.")
    ] = None,
    format: Annotated[str | None, typer.Option(help="csv, parquet, arrow, jsonl or sql; guessed by default.")] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Ask on the terminal for what is open: client, bounds, values.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Draft the schema of a table for `population ingest --schema`, from its first rows, up to 2,000. Bounds and lists
    of values are public facts: the draft asks for them. Counts of what each column holds go to the terminal only.
    """
    from fedcore.cli import sketching
    from fedcore.errors import ConfigError
    from fedcore.population.ingest.sketch import draft_of
    from fedcore.storage.files import write_whole

    if out is not None and out.exists():
        raise ConfigError(f"{str(out)!r} exists already.", "Choose another name, or remove it.")
    draft = draft_of(source, format)
    if interactive or not as_json:
        sketching.show(draft)
    if interactive:
        sketching.ask(draft)
    if out is not None:
        write_whole(out, draft.toml(str(out)).encode())
    if as_json:
        return say(draft.to_json(), True)
    sketching.show_open(draft)
    if out is None:
        print(draft.toml(), end="")
    else:
        print(f"Fill in {out}, then: fedcore population ingest {source} POPULATION --schema {out}")
