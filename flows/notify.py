"""The table `[notify]` of a file: automations of the Prefect server that call a webhook. The server makes the call and
waits for it for a few seconds, so that a receiver that is slow or gone delays no run.
"""

import re
from collections.abc import Iterator, Sequence
from typing import cast
from uuid import UUID

from prefect import get_client
from prefect.blocks.webhook import Webhook
from prefect.events.actions import CallWebhook
from prefect.events.schemas.automations import AutomationCore, EventTrigger
from pydantic import SecretStr

from fedcore.errors import ConfigError
from fedcore.operations.deployment import Notify

MESSAGE = (
    '{"text": {{ (deployment.name ~ ": flow run " ~ flow_run.name ~ " is " ~ flow_run.state.name ~ ". " ~ '
    "flow_run.state.message) | tojson }}}"
)
EVENT = (
    '{"text": {{ event.payload.message | tojson }}, "event": {{ event.event | tojson }}, '
    '"payload": {{ event.payload | tojson }}}'
)


def notify(settings: Notify | None, name: str, deployments: Sequence[str]) -> None:
    """Make an automation of the server that calls a webhook when a run of one of the deployments gets into a bad state,
    and one more for events, if the file names any. What an earlier version of the file has made is removed.

    Args:
        settings: which webhook, which states and events; None: no calls
        name: tells the automations of several files apart; one of the same name is replaced
        deployments: their ids on the server

    Raises ConfigError if the server has no such block.
    """
    wanted: dict[str, AutomationCore | None] = {f"fedcore: {name}": None, f"fedcore: {name}: events": None}
    wanted |= {} if settings is None else {made.name: made for made in _automations(settings, name, deployments)}
    with get_client(sync_client=True) as client:
        for known, made in wanted.items():
            held = [old.id for old in client.read_automations_by_name(known)]
            if made is not None and held:  # in place: what has just happened is not lost
                client.update_automation(held.pop(0), made)
            elif made is not None:
                client.create_automation(made)
            for old in held:
                client.delete_automation(old)


def _automations(settings: Notify, name: str, deployments: Sequence[str]) -> Iterator[AutomationCore]:
    block = _webhook(settings, f"fedcore-{_slug(name)}")
    mine = {
        "prefect.resource.role": "deployment",
        "prefect.resource.id": [f"prefect.deployment.{id}" for id in deployments],
    }
    if settings.states:
        yield AutomationCore(
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
    if settings.events:
        yield AutomationCore(
            name=f"fedcore: {name}: events",
            description="Calls a webhook when one of the events has happened that the file names.",
            trigger=EventTrigger(expect=set(settings.events), match_related=mine, for_each={"prefect.resource.id"}),
            actions=[CallWebhook(block_document_id=block, payload=EVENT)],
        )


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
