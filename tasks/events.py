"""Events of `fedcore.operations.events`, handed to Prefect. An event that cannot be sent is nobody's failure: what it
tells is in the ledger and in the records of runs as well.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fedcore.operations.events import Event, Subject

PREFIX = "fedcore"  # of ids of resources: fedcore.population.ID, fedcore.run.ID, fedcore.deployment.NAME

_outer: ContextVar[tuple[dict[str, str], ...]] = ContextVar("outer", default=())  # resources of what calls the flow


@contextmanager
def belonging_to(deployment_id: str | None, name: str) -> Iterator[None]:
    """Events within belong to this deployment of the Prefect server as well: subflows have none of their own, and
    automations find events by the deployment. None: to no deployment.
    """
    resource = {
        "prefect.resource.id": f"prefect.deployment.{deployment_id}",
        "prefect.resource.name": name,
        "prefect.resource.role": "deployment",
    }
    token = _outer.set(() if deployment_id is None else (resource,))
    try:
        yield
    finally:
        _outer.reset(token)


def labels(subject: Subject) -> dict[str, str]:
    """Of the resource that stands for the subject on a Prefect server."""
    return {"prefect.resource.id": f"{PREFIX}.{subject.kind}.{subject.id}", "prefect.resource.name": subject.name}


def as_json(event: Event) -> dict[str, Any]:
    """Name, resource, related resources and payload, as Prefect has them."""
    return {
        "event": event.name,
        "resource": labels(event.subject),
        "related": [{**labels(other), "prefect.resource.role": f"{PREFIX}-{other.kind}"} for other in event.related],
        "payload": dict(event.payload),
    }


def emit(events: Iterable[Event]) -> None:
    """Queue the events for Prefect, which sends them in the background, as what is related to this flow run. Nothing is
    raised.
    """
    from prefect.events import emit_event  # not for those who only want to know what events look like

    for event in events:
        try:
            made = as_json(event)
            emit_event(**made | {"related": [*made["related"], *_outer.get()]})
        except Exception as error:
            logging.getLogger(__name__).debug("event %s was not sent: %s", event.name, error)
