"""The ingest flow: files to a population, or to a new version of one."""

from pathlib import Path

from fedcore.flows.own_server import flow
from fedcore.flows.states import run_to_state
from fedcore.tasks.artifacts import key_of
from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from fedcore.population.ingest.ingest import describe, ingest
from fedcore.population.store import Population
from fedcore.training.budget import ledger_name, ledger_of


@task(cache_policy=NO_CACHE, persist_result=False)
def ingest_files(source: str, dest: str, options: dict) -> int:
    """Make a version of the population `dest`; returns its number."""
    made = ingest(source, Path(dest), **options)
    get_run_logger().info(
        "population %s: version %d with %d clients in %d blocks",
        made.path.name,
        made.version,
        made.n_clients,
        len(made.blocks),
    )
    return made.version


@flow(name="ingest", flow_run_name="{dest}", persist_result=False)
def ingest_flow(source: str, dest: str, append: bool = False, options: dict | None = None) -> str:
    """Turn files into a population: whole clients in blocks, whatever the order and size of the input.

    Args:
        source: file, folder or pattern to read
        dest: folder of the population
        append: add to an existing population as a new version
        options: as for `fedcore population ingest`, e.g. {"format": "csv", "client": "user"}
    """

    def work(kept: list) -> str:
        chosen = dict(options or {}) | {"append": append}
        if not append:
            chosen["ledger"] = ledger_name()
        ingest_files(source, dest, chosen)
        population = Population.open(dest)
        kept.append(population)
        if not append:
            ledger_of(population).register(population.id)
        rows = "\n".join(f"| {name} | {value} |" for name, value in describe(population).items())
        create_markdown_artifact(
            markdown=f"| | |\n|---|---|\n{rows}",
            key=key_of(population),
            description=f"Population {population.path.name}",
        )
        return dest

    return run_to_state(work, lambda kept: f"population {Path(dest).name} was {'made' if kept else 'not changed'}")
