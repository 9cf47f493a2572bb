"""Scheduled training runs served from one process (`fedcore serve FILE`)."""

from collections.abc import Sequence
from typing import cast

import prefect
from fedcore.flows.train import FLOWS
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.deployments.runner import RunnerDeployment
from prefect.flows import EntrypointType
from prefect.schedules import Cron, Interval, RRule
from prefect.schedules import Schedule as PrefectSchedule

from fedcore.errors import ConfigError
from fedcore.operations.deployment import Deployment
from fedcore.operations.schedule import Schedule

# A start that comes while a run of the deployment goes on is left out. If it waited, all the starts that were missed
# while nobody served the deployment would follow one another, and each would spend from the budget.
ONE_AT_A_TIME = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)


def to_deployment(item: Deployment, pool: str | None = None) -> RunnerDeployment:
    """A Prefect deployment of one entry of the file; its flow is found by the name of the flow's module.

    pool: the work pool whose workers run it; without one it is run by the process that serves it.
    Raises ConfigError for a schedule that Prefect refuses.
    """
    try:
        made = FLOWS[item.method].to_deployment(
            name=item.name,
            schedules=[to_schedule(schedule) for schedule in item.schedules],
            paused=item.paused,
            description=item.description or None,
            work_pool_name=pool,
            job_variables=item.job_variables if pool is not None else None,
            entrypoint_type=EntrypointType.MODULE_PATH,
            tags=[item.method, *item.tags],
            concurrency_limit=ONE_AT_A_TIME,
            parameters={
                "population": item.population,
                "runs": item.runs,
                "seed": item.seed,
                "config": item.config,
                "compute": item.compute.model_dump(),
                "start_from": item.start_from,
                "public_start_because": item.public_start_because,
                "series": item.series.model_dump(),
                **({} if item.monitoring is None else {"monitoring": item.monitoring.of_run().model_dump()}),
            },
        )
    except ValueError as error:
        raise ConfigError(f"deployment {item.name!r}: {error}") from None
    return cast(RunnerDeployment, made)  # Prefect types the method as one that may also return a coroutine


def to_schedule(schedule: Schedule) -> PrefectSchedule:
    """The schedule as Prefect's type. Raises ValueError if Prefect refuses it."""
    if schedule.cron is not None:
        return Cron(schedule.cron, timezone=schedule.timezone)
    if schedule.rrule is not None:
        return RRule(schedule.rrule, timezone=schedule.timezone)
    assert schedule.interval is not None, "a schedule has one of the three"
    return Interval(schedule.interval)


def serve(deployments: Sequence[Deployment], limit: int = 1) -> None:
    """Register the deployments and run what the scheduler starts, until interrupted. limit: how many runs at a time."""
    prefect.serve(*[to_deployment(item) for item in deployments], limit=limit, pause_on_shutdown=True)
