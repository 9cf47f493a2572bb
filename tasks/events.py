"""Events of `fedcore.operations.events`, handed to Prefect. An event that cannot be sent is nobody's failure: what it
tells is in the ledger and in the records of runs as well.
"""

import logging
from collections.abc import Iterable
from typing import Any

from fedcore.operations.events import Event, Subject

PREFIX = "fedcore"  # of ids of resources: fedcore.population.ID, fedcore.run.ID, fedcore.deployment.NAME


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
            emit_event(**as_json(event))
        except Exception as error:
            logging.getLogger(__name__).debug("event %s was not sent: %s", event.name, error)
