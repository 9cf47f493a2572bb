"""What the Prefect server has scheduled, for the forecast on a population's page."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from prefect import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.sorting import FlowRunSort

MOST = 200  # deployments, and starts, that are asked for


def scheduled_starts(population: str) -> Mapping[str, Sequence[datetime]]:
    """When runs of the deployments on this population start, ascending, by deployment: as many as the server has made.

    population: folder or URL, as the deployments name it
    """
    with get_client(sync_client=True) as client:
        mine = {
            one.id: trained
            for one in client.read_deployments(limit=MOST)
            if not one.paused and (trained := _trained(one.name, one.parameters, population))
        }
        if not mine:
            return {}
        asked = FlowRunFilter(
            deployment_id=FlowRunFilterDeploymentId(any_=list(mine)),
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
        )
        runs = client.read_flow_runs(flow_run_filter=asked, sort=FlowRunSort.EXPECTED_START_TIME_ASC, limit=MOST)
    found: dict[str, list[datetime]] = {}
    for run in runs:
        if run.deployment_id is not None and run.expected_start_time is not None:
            for name in mine[run.deployment_id]:
                found.setdefault(name, []).append(run.expected_start_time)
    return found


def _trained(name: str, parameters: Mapping[str, Any], population: str) -> list[str]:
    """The deployments on this population that a run with these parameters trains: itself, or those of a pipeline."""
    if "ready" not in parameters:
        return [name] if parameters.get("population") == population else []
    pipeline = parameters["ready"]["pipeline"]
    if pipeline["population"] != population:
        return []
    return [step["deployment"] for step in pipeline["step"] if step["do"] == "train"]
