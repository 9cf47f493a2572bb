"""How large a machine the runs of a deployment need, from `fedcore plan`, as settings of a work pool.

A plan's memory is what its processes are likely to reach. Of the runs in docs/notes/capacity.md none reached more than
1.35 times its plan, so a container may take HEADROOM times as much before it is stopped. Swap is disabled where the
pool can do so: exact sums of a private run must not reach a disk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import fedcore
from fedcore.errors import ConfigError, FedcoreError
from fedcore.operations.deployment import Deployment
from fedcore.planning.run_plan import Resources, plan_run
from fedcore.storage.files import is_url

PoolType = Literal["process", "docker", "kubernetes"]
POOL_TYPES: tuple[PoolType, ...] = get_args(PoolType)
IMAGE = f"fedcore:{fedcore.__version__}"  # as deployments/Dockerfile says to name it
HEADROOM = 1.5
STEP = 64 * 2**20  # bytes to which memory is rounded up
# A plan counts a core for each process, so libraries start one thread in each.
THREADS = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


@dataclass(frozen=True, slots=True)
class Size:
    """What a run needs, all its processes together; of one whose workers are elsewhere, the process of the flow alone.

    workers: of the local cluster, 0: none; memory_bytes: likely use; limit_bytes: largest use; disk_bytes: largest use
    at the place of its runs, while it is running; seconds: of all rounds, likely
    """

    workers: int
    cores: int
    memory_bytes: int
    limit_bytes: int
    disk_bytes: int
    seconds: float

    @property
    def in_words(self) -> dict[str, Any]:
        """As a row of a table."""
        mib = {"memory": self.memory_bytes, "memory limit": self.limit_bytes, "disk": self.disk_bytes}
        return {
            "workers": self.workers,
            "cores": self.cores,
            **{name: f"{math.ceil(size / 2**20)} MiB" for name, size in mib.items()},
            "seconds of rounds": round(self.seconds, 1),
        }


def size_of(plan: Mapping[str, Any], elsewhere: bool = False) -> Size:
    """From what `fedcore.planning.run_plan.plan_run` returns. elsewhere: the workers are those of another cluster."""
    workers = 0 if elsewhere else int(plan["workers"])
    memory = plan["bytes_of_flow"] + workers * plan["bytes_per_worker"]
    return Size(
        workers,
        max(1, workers),
        STEP * math.ceil(memory / STEP),
        STEP * math.ceil(HEADROOM * memory / STEP),
        int(plan["disk_bytes_most"]),
        float(plan["seconds"]),
    )


def planned_size(item: Deployment, deadline: float | None, limit: float) -> Size:
    """How large the next run of the deployment would be. Workers are as many as the file says, else as many as a run
    has by default, else as the deadline needs.

    deadline: seconds for all rounds; limit: of the calibration. Raises ConfigError, naming the deployment.
    """
    compute = item.compute
    where = Resources(
        workers=compute.workers, cluster=compute.dask is not None, cache_bytes=compute.cache_bytes, deadline=deadline
    )
    try:
        plan = plan_run(item.request, where, limit=limit, meet_deadline=True)
    except FedcoreError as error:
        raise ConfigError(f"deployment {item.name!r} cannot be sized: {error}") from None
    return size_of(plan, elsewhere=compute.dask is not None)


def for_pool(item: Deployment, pool_type: PoolType, size: Size | None = None) -> Deployment:
    """The deployment with the job variables that its pool takes. What the file says of them stands. size: None: it says
    nothing of memory and cores.
    """
    update: dict[str, Any] = {"job_variables": merged(job_variables(pool_type, size), item.job_variables)}
    if size is not None and size.workers and item.compute.dask is None:
        update["compute"] = item.compute.model_copy(update={"workers": size.workers})
    return item.model_copy(update=update)


def job_variables(pool_type: PoolType, size: Size | None) -> dict[str, Any]:
    """Job variables for a pool of this type. A pool of processes can bound neither memory nor cores."""
    found: dict[str, Any] = {} if pool_type == "process" else {"image": IMAGE}
    if size is None:
        return found
    found["env"] = dict(THREADS)
    if pool_type == "docker":
        found |= {"mem_limit": f"{size.limit_bytes // 2**20}m", "memswap_limit": f"{size.limit_bytes // 2**20}m"}
    if pool_type == "kubernetes":
        found |= {
            "cpu_request": str(size.cores),
            "memory_request": f"{size.memory_bytes // 2**20}Mi",
            "memory_limit": f"{size.limit_bytes // 2**20}Mi",
        }
    return found


def merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """What both say, and theirs where they contradict each other, variable of the environment by variable."""
    env = {**ours.get("env", {}), **theirs.get("env", {})}
    return {**ours, **theirs, **({"env": env} if env else {})}


def not_taken(variables: Mapping[str, Any], template: Mapping[str, Any]) -> list[str]:
    """Names of job variables that a pool's base job template does not know, so that they would be left out unseen."""
    known = (template.get("variables") or {}).get("properties") or {}
    return sorted(variables.keys() - known.keys())


def outside_of_containers(items: Sequence[Deployment]) -> list[str]:
    """A line for each deployment that names folders, which a container sees only if they are mounted."""
    lines = []
    for item in items:
        given = (item.population, item.runs, item.evaluate_on)
        places = [place for place in given if place is not None and not is_url(place)]
        if places and not item.job_variables.keys() & {"volumes", "volume_mounts"}:
            lines.append(
                f"{item.name}: {', '.join(places)}: a container sees folders only where they are mounted (the job "
                "variable volumes); or name them by URL."
            )
    return lines
