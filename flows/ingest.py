"""The ingest flow: files to a population, or to a new version of one."""

from functools import partial
from pathlib import Path

from fedcore.flows.own_server import flow
from fedcore.flows.states import run_to_state
from fedcore.flows.telling import tell
from fedcore.tasks.artifacts import key_of
from fedcore.tasks.dask_backend import sharing
from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from pydantic import JsonValue

from fedcore.errors import IngestError
from fedcore.evaluation.written import in_markdown
from fedcore.operations.events import population_appended
from fedcore.population.describing import describe
from fedcore.population.ingest.ingest import ingest
from fedcore.population.ingest.request import (
    CalendarPeriods,
    Declarations,
    IngestRequest,
    Limits,
    Reading,
    TableColumns,
)
from fedcore.population.store import Population
from fedcore.training.budget import ledger_name, ledger_of
from fedcore.training.shared_ids import register


@task(cache_policy=NO_CACHE, persist_result=False)
def ingest_files(source: str | list[str], dest: str, request: IngestRequest, append: bool = False) -> int:
    """Make a version of the population `dest`; returns its number. Raises IngestError without what rows hold: it is
    shown to everybody who sees the UI.
    """
    shared = None if request.workers is None else partial(sharing, request.workers)
    ledger = None if append else ledger_name()
    try:
        made = ingest(source, Path(dest), request, append=append, ledger=ledger, sharing=shared)
    except IngestError as error:
        raise error.without_values from None
    get_run_logger().info(
        "population %s: version %d with %d clients in %d blocks",
        made.path.name,
        made.version,
        made.n_clients,
        len(made.blocks),
    )
    return made.version


@flow(name="ingest", flow_run_name="{dest}", persist_result=False)
def ingest_flow(
    source: str | list[str],
    dest: str,
    append: bool = False,
    reading: Reading = Reading(),
    table: TableColumns = TableColumns(),
    periods: CalendarPeriods = CalendarPeriods(),
    declared: Declarations = Declarations(),
    limits: Limits = Limits(),
    options: dict | None = None,
) -> str:
    """Turn files into a population: whole clients in blocks, whatever the order and size of the input. The options are
    those of `fedcore population ingest`.

    Args:
        source: file, folder or pattern to read, or several; with the format sql a query
        dest: folder of the population
        append: add to an existing population as a new version
        reading: how the source is read
        table: columns of a table, their units and public bounds, or the file of a schema
        periods: deals clients to calendar periods
        declared: what the owner says in public of the population
        limits: memory, workers, and bad rows that are left out
        options: any of these options by name, in place of what the groups say
    """

    def work(kept: list) -> str:
        request = IngestRequest.of(reading, table, periods, declared, limits, options or {})
        before = Population.open(dest) if append else None
        ingest_files(source, dest, request, append)
        population = Population.open(dest)
        kept.append(population)
        if before is not None and before.version != population.version:
            tell(lambda: [population_appended(population, before)])
        if population.manifest.ledger is not None:
            register(population, ledger_of(population, to_show=append))
        told = describe(population)
        told.pop("alike_ids")  # for the operator's terminal
        create_markdown_artifact(
            markdown=_table(told), key=key_of(population), description=f"Population {population.path.name}"
        )
        return dest

    return run_to_state(work, lambda kept: f"population {Path(dest).name} was {'made' if kept else 'not changed'}")


def _table(told: dict[str, JsonValue]) -> str:
    """Markdown of what there is to tell."""
    rows = [f"| {name.replace('_', ' ')} | {_cell(value)} |" for name, value in told.items() if value not in (None, [])]
    return "\n".join(["| | |", "|---|---|", *rows])


def _cell(value: JsonValue) -> str:
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {_cell(one)}" for name, one in value.items() if one is not None)
    return in_markdown(value)
