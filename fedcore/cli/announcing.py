"""What commands tell the Prefect server that PREFECT_API_URL names; without that, nobody."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedcore.operations.events import Event


def announce(make: Callable[[], list[Event]]) -> None:
    """Send events, which are made only if somebody is there. A server that does not answer is a warning."""
    address = os.environ.get("PREFECT_API_URL")
    if address and (events := make()):
        as_json = import_module("fedcore.tasks.events").as_json
        import_module("fedcore.flows.announce").post([as_json(event) for event in events], address)
