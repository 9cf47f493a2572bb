"""Scheduled training runs served from one process (`fedcore serve FILE`)."""

from collections.abc import Sequence

import prefect
from fedcore.flows.train import FLOWS
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy

from fedcore.errors import ConfigError
from fedcore.operations.deployment import Deployment

# A start that comes while a run of the deployment goes on is left out. If it waited, all the starts that were missed
# while nobody served the deployment would follow one another, and each would spend of the budget.
ONE_AT_A_TIME = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)


def to_deployment(item: Deployment, **where):
    """A Prefect deployment of one entry of the file. where: of its work pool, if it is not served by this process.

    Raises ConfigError for a schedule that Prefect refuses.
    """
    from prefect.schedules import Cron, Interval, RRule

    schedule = None
    try:
        if item.schedule is not None and item.schedule.cron:
            schedule = Cron(item.schedule.cron, timezone=item.schedule.timezone)
        elif item.schedule is not None and item.schedule.interval:
            schedule = Interval(item.schedule.interval)
        elif item.schedule is not None:
            schedule = RRule(item.schedule.rrule, timezone=item.schedule.timezone)
        return FLOWS[item.method].to_deployment(
            name=item.name,
            schedule=schedule,
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
            },
            **where,
        )
    except ValueError as error:
        raise ConfigError(f"deployment {item.name!r}: {error}") from None


def serve(deployments: Sequence[Deployment], limit: int = 1) -> None:
    """Register the deployments and run what the scheduler starts, until interrupted. limit: runs at a time."""
    prefect.serve(*[to_deployment(item) for item in deployments], limit=limit, pause_on_shutdown=True)
