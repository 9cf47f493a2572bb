"""Deployments for a worker (`fedcore deploy FILE`): registered with a server that stays, run by `prefect worker start`.

The worker's host has fedcore installed, and flows are found by the name of their module: no repository and no file of
code is fetched.
"""

import re
from collections.abc import Sequence
from typing import cast
from uuid import UUID

from fedcore.flows.limits import make_limits
from fedcore.flows.serve import all_of, limits_of
from prefect import get_client
from prefect.blocks.webhook import Webhook
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.events.actions import CallWebhook
from prefect.events.schemas.automations import AutomationCore, EventTrigger
from prefect.exceptions import ObjectAlreadyExists
from prefect.workers.process import ProcessWorker
from pydantic import SecretStr

from fedcore.errors import ConfigError
from fedcore.operations.deployment import DeploymentFile, Notify
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


MESSAGE = (
    '{"text": {{ (deployment.name ~ ": flow run " ~ flow_run.name ~ " is " ~ flow_run.state.name ~ ". " ~ '
    "flow_run.state.message) | tojson }}}"
)


EVENT = (
    '{"text": {{ event.payload.message | tojson }}, "event": {{ event.event | tojson }}, '
    '"payload": {{ event.payload | tojson }}}'
)


def notify(settings: Notify, name: str, deployed: Sequence[dict]) -> None:
    """Make an automation of the server that calls a webhook when a run of one of the deployments gets into a bad state,
    and one more for events, if the file names any.

    Args:
        settings: which webhook, which states
        name: tells the automations of several files apart; one of the same name is replaced
        deployed: what `deploy` returned

    Raises ConfigError if the server has no such block.
    """
    block = _webhook(settings, f"fedcore-{_slug(name)}")
    mine = {
        "prefect.resource.role": "deployment",
        "prefect.resource.id": [f"prefect.deployment.{row['id']}" for row in deployed],
    }
    bad = AutomationCore(
        name=f"fedcore: {name}",
        description="Calls a webhook when a scheduled training ends badly.",
        trigger=EventTrigger(
            expect={f"prefect.flow-run.{state}" for state in settings.states},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related=mine,
            for_each={"prefect.resource.id"},
        ),
        actions=[CallWebhook(block_document_id=block, payload=MESSAGE)],
    )
    events = AutomationCore(
        name=f"fedcore: {name}: events",
        description="Calls a webhook when something has happened that somebody asked to be told of.",
        trigger=EventTrigger(expect=set(settings.events), match_related=mine, for_each={"prefect.resource.id"}),
        actions=[CallWebhook(block_document_id=block, payload=EVENT)],
    )
    with get_client(sync_client=True) as client:
        for automation, wanted in ((bad, bool(settings.states)), (events, bool(settings.events))):
            for old in client.read_automations_by_name(automation.name):
                client.delete_automation(old.id)
            if wanted:
                client.create_automation(automation)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "file"


def _webhook(settings: Notify, name: str) -> UUID:
    """The id of the Webhook block: of one of this name that is made for a URL, or of the one that the file names."""
    if settings.webhook is not None:
        return cast(UUID, Webhook(url=SecretStr(settings.webhook)).save(name, overwrite=True))
    assert settings.block is not None, "the file has one of the two"
    try:
        block = cast(Webhook, Webhook.load(settings.block))
    except ValueError:
        raise ConfigError(
            f"the Prefect server has no Webhook block named {settings.block!r}.",
            "Make it in the UI, or give the URL as `webhook`.",
        ) from None
    return cast(UUID, block._block_document_id)  # it has one, because it was loaded
