"""Work pools: found on the server by name, or made of a type that is asked for.

The packages of workers for containers are for the hosts of those workers. Here a pool is its type and its template, and
job variables are plain values.
"""

import json
from importlib import resources
from typing import Any, cast

from fedcore.flows.deploy import make_pool
from prefect import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectNotFound

from fedcore.errors import ConfigError
from fedcore.operations.pool_sizes import POOL_TYPES, PoolType


def ready_pool(name: str, asked: PoolType | None = None) -> tuple[PoolType, dict[str, Any]]:
    """(type, base job template) of the pool of this name; it is made if there is none, of processes unless another type
    is asked for. Raises ConfigError if it is of a type that is not asked for, or that deployments cannot be made for.
    """
    with get_client(sync_client=True) as client:
        try:
            pool = client.read_work_pool(name)
        except ObjectNotFound:
            if asked in (None, "process"):
                make_pool(name)
            else:
                client.create_work_pool(
                    WorkPoolCreate(name=name, type=cast(str, asked), base_job_template=template_of(asked))
                )
            pool = client.read_work_pool(name)
    if pool.type not in POOL_TYPES:
        raise ConfigError(
            f"work pool {name!r} is of type {pool.type!r}, and deployments are made for pools of the types "
            f"{', '.join(POOL_TYPES)}.",
            "Name another one with --pool.",
        )
    if asked is not None and pool.type != asked:
        raise ConfigError(
            f"work pool {name!r} is of type {pool.type!r}, not {asked!r}.", "Leave --type out, or name another pool."
        )
    return pool.type, pool.base_job_template


def template_of(kind: PoolType) -> dict[str, Any]:
    """The base job template of a pool of containers, as `deployments/KIND.json` has it."""
    file = resources.files("fedcore.deployments").joinpath(f"{kind}.json")
    return cast(dict[str, Any], json.loads(file.read_text(encoding="utf-8")))
