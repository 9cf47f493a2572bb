"""Events of commands that are no flow runs, sent to the server that PREFECT_API_URL names. Prefect is not imported:
that would take longer than most of these commands.
"""

import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from fedcore.flows.server import authorization

PATIENCE = 5.0  # seconds


def post(events: Sequence[Mapping[str, Any]], address: str) -> bool:
    """Whether the server at this address (which ends in /api) took the events. Nothing is raised.

    events: as `fedcore.tasks.events.as_json` has them
    """
    now = datetime.now(UTC).isoformat()
    try:
        ask(address, "/events", [{"id": str(uuid4()), "occurred": now, **event} for event in events])
    except (urllib.error.URLError, OSError, ValueError) as error:
        logging.getLogger(__name__).warning(
            "the Prefect server at %s was not told of %s: %s", address, ", ".join(e["event"] for e in events), error
        )
        return False
    return True


def ask(address: str, path: str, body: Any = None, patience: float = PATIENCE, method: str = "POST") -> Any:
    """What a server answers, as JSON; None if it says nothing. Raises URLError, OSError and ValueError.

    body: as JSON; None: the request has none. patience: seconds for which a server that says 503 is asked again, as one
    does whose SQLite database is busy
    """
    headers = {"content-type": "application/json"} | authorization()
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{address.rstrip('/')}{path}", content, headers, method=method)
    until = time.monotonic() + patience
    while True:
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                said = answer.read()
            return json.loads(said) if said else None
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() >= until:
                raise
            time.sleep(0.2)
