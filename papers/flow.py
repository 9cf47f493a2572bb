"""The reproduction flow: a table of a paper, one task run for each training with its scores."""

from pathlib import Path
from typing import cast
from uuid import UUID

from fedcore.flows.own_server import flow
from fedcore.flows.states import run_to_state
from fedcore.papers import experiment
from fedcore.papers.table import Cell, Experiment, Options, Place, ResultTable, compute, conclude, markdown, open_folder
from fedcore.tasks.artifacts import key
from fedcore.tasks.dask_backend import dask_backend
from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from fedcore.evaluation.figures import data_uri
from fedcore.operations.schedule import Compute


@task(task_run_name="{cell.key}", cache_policy=NO_CACHE, persist_result=False)
def compute_cell(found: Experiment, cell: Cell, options: Options, place: Place) -> dict:
    """Results of one cell; stored ones are used again."""
    return compute(found, cell, options, place)


def _flow_run_name() -> str:
    parameters = flow_run.parameters
    return f"{parameters['name']}-{Path(str(parameters['folder'])).name}"


@flow(name="reproduce", flow_run_name=_flow_run_name, persist_result=False)
def reproduce_flow(
    name: str, options: Options = Options(), folder: str = "reproduce", compute: Compute = Compute()
) -> ResultTable:
    """Rebuild a table of a paper. Nothing in it is private.

    Args:
        name: the experiment
        options: how large, how often, on which data
        folder: where finished cells and the table are kept; the same folder goes on with what is missing
        compute: where the clients are answered
    """

    def work(kept: list) -> ResultTable:
        found, where = experiment(name), Path(folder)
        open_folder(found, options, where)
        progress = cast(  # Prefect types the function as one that may also return a coroutine
            UUID, create_progress_artifact(progress=0.0, key=key("reproduce", name), description=found.title)
        )
        with dask_backend(compute.workers, compute.dask) as backend:
            place = Place(where, backend, compute.cache_bytes)
            cells, results = found.cells(options), {}
            for number, cell in enumerate(cells):
                get_run_logger().info("%s (%d of %d)", cell.title, number + 1, len(cells))
                results[cell.key] = compute_cell(found, cell, options, place)
                kept.append(cell)
                update_progress_artifact(progress, progress=100.0 * (number + 1) / len(cells))
        return _show_table(found, options, results, where)

    return run_to_state(work, lambda kept: f"experiment {name} stopped after {len(kept)} cells, which are kept")


def _show_table(found: Experiment, options: Options, results: dict, where: Path) -> ResultTable:
    """The table, which is also shown as an artifact with its figure."""
    table = conclude(found, options, results, where)
    figure = data_uri((where / "figure.png").read_bytes())
    create_markdown_artifact(
        markdown=f"{markdown(table)}\n![{table.title}]({figure})\n",
        key=key("table", found.name),
        description=table.title,
    )
    return table
