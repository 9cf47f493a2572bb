"""Scheduled training runs served from one process (`fedcore serve FILE`)."""

from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

import prefect
from fedcore.flows.forking import forking
from fedcore.flows.form import PIPELINE, TRAINING, arrange
from fedcore.flows.limits import make_limits
from fedcore.flows.notify import notify
from fedcore.flows.pipeline import pipeline_flow
from fedcore.flows.train import FLOWS
from prefect import Flow
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.deployments.runner import RunnerDeployment
from prefect.flows import EntrypointType
from prefect.schedules import Cron, Interval, RRule
from prefect.schedules import Schedule as PrefectSchedule

from fedcore.errors import ConfigError, FedcoreError
from fedcore.methods.registry import make_method, method_class
from fedcore.operations import log_lines
from fedcore.operations.deployment import Deployment, DeploymentFile
from fedcore.operations.pipelines.law import Ready, ready
from fedcore.operations.schedule import Schedule, Scheduled
from fedcore.rounds.method import settings_by_place

# A start that comes while a run of the deployment goes on is left out. If it waited, all the starts that were missed
# while nobody served the deployment would follow one another, and each would spend from the budget.
ONE_AT_A_TIME = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)


def to_deployment(item: Deployment, pool: str | None = None) -> RunnerDeployment:
    """A Prefect deployment of one entry of the file; its flow is found by the name of the flow's module.

    pool: the work pool whose workers run it; without one it is run by the process that serves it.
    Raises ConfigError for a schedule that Prefect refuses.
    """
    settings = make_method(item.method, item.config).config  # in the form that the flow's schema of parameters has
    parameters = {
        "population": item.population,
        "runs": item.runs,
        "seed": item.seed,
        "config": settings.model_dump(mode="json", exclude_unset=True),
        "compute": item.compute.model_dump(),
        "start_from": item.start_from,
        "public_start_because": item.public_start_because,
        "series": item.series.model_dump(),
        **({} if item.share is None else {"share": item.share}),  # hosts of before know no shares
        **({} if item.monitoring is None else {"monitoring": item.monitoring.of_run(item.name).model_dump()}),
    }
    what, (main, _) = f"deployment {item.name!r}", settings_by_place(method_class(item.method))
    return _made(what, FLOWS[item.method], item.name, item, parameters, [item.method], pool, TRAINING, main)


def pipeline_deployment(ready: Ready, pool: str | None = None) -> RunnerDeployment:
    """A Prefect deployment of a pipeline; as `to_deployment`."""
    item = ready.pipeline
    parameters = {"ready": ready.model_dump(mode="json", exclude_none=True)}  # hosts of before know no `when` = None
    return _made(f"pipeline {item.name!r}", pipeline_flow, item.name, item, parameters, ["pipeline"], pool, PIPELINE)


def _made(
    what: str,
    flow: Flow,
    name: str,
    item: Scheduled,
    parameters: dict[str, Any],
    tags: Sequence[str],
    pool: str | None,
    shown: Sequence[str],
    main: Sequence[str] = (),
) -> RunnerDeployment:
    """what: in errors; item: how it is scheduled; shown, main: parameters and settings that the form shows"""
    try:
        made = flow.to_deployment(
            name=name,
            schedules=[to_schedule(schedule) for schedule in item.schedules],
            paused=item.paused,
            description=item.description or None,
            work_pool_name=pool,
            job_variables=item.job_variables if pool is not None else None,
            entrypoint_type=EntrypointType.MODULE_PATH,
            tags=[*tags, *item.tags],
            concurrency_limit=ONE_AT_A_TIME,
            parameters=parameters,
        )
    except ValueError as error:
        raise ConfigError(f"{what}: {error}") from None
    made = cast(RunnerDeployment, made)  # Prefect types the method as one that may also return a coroutine
    arrange(made._parameter_openapi_schema, shown, main, parameters.get("config", {}))
    return made


def all_of(content: DeploymentFile, pool: str | None = None) -> list[RunnerDeployment]:
    """What a file holds as Prefect's: its deployments, then its pipelines. Raises ConfigError, PrivacyError."""
    pipelines = [ready(item, content.deployment) for item in content.pipeline]
    return [
        *(to_deployment(item, pool) for item in content.deployment),
        *(pipeline_deployment(item, pool) for item in pipelines),
    ]


def refused_schedules(content: DeploymentFile) -> list[tuple[str, FedcoreError]]:
    """(of what, why) for each deployment and pipeline whose schedule Prefect refuses."""
    found: list[tuple[str, FedcoreError]] = []
    for what, items in (("deployment", content.deployment), ("pipeline", content.pipeline)):
        for item in items:
            for schedule in item.schedules:
                try:
                    to_schedule(schedule)
                except ValueError as error:
                    found.append((f"{what} {item.name!r}", ConfigError(f"schedule {schedule.in_words}: {error}")))
    return found


def limits_of(content: DeploymentFile) -> dict[str, int | None]:
    """How many readers each population of the file may have at once, as far as it says so: the smallest number."""
    found: dict[str, int | None] = {}
    asked = [(item.population, item.readers) for item in content.deployment]
    for population, readers in [*asked, *((item.population, item.readers) for item in content.pipeline)]:
        known = [most for most in (found.get(population), readers) if most is not None]
        found[population] = min(known, default=None)
    return found


def to_schedule(schedule: Schedule) -> PrefectSchedule:
    """The schedule as Prefect's type. Raises ValueError if Prefect refuses it."""
    if schedule.cron is not None:
        return Cron(schedule.cron, timezone=schedule.timezone)
    if schedule.rrule is not None:
        return RRule(schedule.rrule, timezone=schedule.timezone)
    assert schedule.interval is not None, "a schedule has one of the three"
    return Interval(schedule.interval)


def serve(content: DeploymentFile, name: str = "deployments", overview: str = "") -> None:
    """Register what is in a file and run what the scheduler starts, one run at a time, until interrupted.

    name: of the file, for its automations; overview: address of the operator's page, which the descriptions then link.
    Raises ConfigError if the server lacks the block that `[notify]` names.
    """
    made = all_of(content)
    if overview:
        for one in made:
            one.description = "\n\n".join([f"[Overview]({overview})", *filter(None, [one.description])])
    make_limits(limits_of(content))
    notify(content.notify, name, [str(cast(UUID, one.apply())) for one in made])
    with forking():
        prefect.serve(*made, limit=1, pause_on_shutdown=True, print_starting_message=not log_lines.wanted())
