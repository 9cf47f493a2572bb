"""Scheduled training runs served from one process (`fedcore serve FILE`)."""

from collections.abc import Sequence

import prefect

from fedcore.deployment import Deployment
from fedcore.errors import ConfigError
from flows.train import FLOWS


def to_deployment(item: Deployment):
    """A Prefect deployment of one entry of the file. Raises ConfigError for a schedule that Prefect refuses."""
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
            name=item.name, schedule=schedule, tags=[item.method, *item.tags], concurrency_limit=1,
            parameters={"population": item.population, "runs": item.runs, "seed": item.seed, "config": item.config,
                        "compute": item.compute.model_dump(), "start_from": item.start_from,
                        "public_start_because": item.public_start_because},
        )  # fmt: skip
    except ValueError as error:
        raise ConfigError(f"deployment {item.name!r}: {error}") from None


def serve(deployments: Sequence[Deployment], limit: int = 1) -> None:
    """Register the deployments and run what the scheduler starts, until interrupted. limit: runs at a time."""
    prefect.serve(*[to_deployment(item) for item in deployments], limit=limit, pause_on_shutdown=True)
