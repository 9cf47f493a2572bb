"""Deployments for a worker (`fedcore deploy FILE`): registered with a server that stays, run by `prefect worker start`.

The worker's host has fedcore installed, and flows are found by the name of their module: no repository and no file of
code is fetched.
"""

from typing import cast
from uuid import UUID

from fedcore.flows.limits import make_limits
from fedcore.flows.serve import all_of, limits_of
from prefect import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists
from prefect.workers.process import ProcessWorker

from fedcore.errors import ConfigError
from fedcore.operations.deployment import DeploymentFile
from fedcore.operations.pool_sizes import POOL_TYPES

POOL = "fedcore"


def make_pool(name: str) -> None:
    """Make a pool of processes of this name, unless there is one. Raises ConfigError if that is of a type for which no
    deployments are made.
    """
    with get_client(sync_client=True) as client:
        try:
            client.create_work_pool(
                WorkPoolCreate(
                    name=name, type=ProcessWorker.type, base_job_template=ProcessWorker.get_default_base_job_template()
                )
            )
        except ObjectAlreadyExists:
            pool = client.read_work_pool(name)
            if pool.type not in POOL_TYPES:
                raise ConfigError(
                    f"work pool {name!r} is of type {pool.type!r}, not {' or '.join(map(repr, POOL_TYPES))}.",
                    "Name another one with --pool.",
                ) from None


def deploy(content: DeploymentFile, pool: str = POOL) -> list[dict]:
    """Register what is in a file with its schedules in a pool of processes; what has the same name is replaced.

    Returns name, schedule and id of each. Raises ConfigError for a schedule that Prefect refuses, before anything is
    registered.
    """
    made = all_of(content, pool)
    make_pool(pool)
    make_limits(limits_of(content))
    return [
        {"deployment": ready.full_name, "schedule": item.schedules_in_words, "id": str(cast(UUID, ready.apply()))}
        for item, ready in zip((*content.deployment, *content.pipeline), made, strict=True)
    ]
