"""The evaluation flow: a run scored on held-out data of a public population, baselines beside it."""

from pathlib import Path
from typing import Any

from fedcore.flows.own_server import flow
from fedcore.flows.states import run_to_state
from fedcore.tasks.artifacts import key
from fedcore.tasks.backends import backend_for
from prefect import get_run_logger, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from fedcore.evaluation.evaluate import check_public, evaluate_run
from fedcore.population.store import Population
from fedcore.rounds.engine import Backend
from fedcore.rounds.scores import differences_in_words
from fedcore.runs.store import Run
from fedcore.training.personalise import check_fits


@task(task_run_name="score-clients", cache_policy=NO_CACHE, persist_result=False)
def score_clients(
    run: str, population: Population, backend: Backend, settings: dict[str, Any] | None, least: int
) -> dict:
    """The table of scores; kept in the run's folder and its report, if the settings are those of the run."""
    return evaluate_run(run, population, backend, keep=True, settings=settings, least=least)


def _flow_run_name() -> str:
    parameters = flow_run.parameters
    return f"{_last(parameters['run'])}-on-{_last(parameters['population'])}"


def _last(place: object) -> str:
    return Path(str(place).rstrip("/")).name


@flow(name="evaluate", flow_run_name=_flow_run_name, persist_result=False)
def evaluate_run_flow(
    run: str,
    population: str,
    workers: int | None = None,
    dask: str | None = None,
    settings: dict[str, Any] | None = None,
    least: int = 0,
) -> dict:
    """Score a run on held-out data.

    Args:
        run: folder or URL of the run
        population: folder or URL of a population that its owner declared public for evaluation
        workers: processes of the local cluster; by default 2, and none for a population that could be one block
        dask: address of a running Dask scheduler, instead of a local cluster
        settings: that may be given to a run that was made, given anew; such scores are not kept in the run's folder
        least: only clients with so many tokens (rows, of a population of rows) in both parts are scored
    """

    def work(kept: list) -> dict:
        store = Population.open(population)
        check_public(store)
        check_fits(Run.open(run), store)  # before workers are started
        with backend_for(store, workers, dask) as backend:
            table = score_clients(run, store, backend, settings, least)
        words = [text for text in (table["title"], differences_in_words(table)) if text]
        create_table_artifact(table=table["rows"], key=key("evaluation", table["run"]), description=". ".join(words))
        get_run_logger().info("%s", table["title"])
        if "warning" in table:
            get_run_logger().warning("%s", table["warning"])
        return table

    return run_to_state(work, lambda kept: f"run {_last(run)} was not scored on population {_last(population)}")
