"""Runs of a deployment on older versions of its population (`fedcore backfill`), one after the other, by whoever runs
the deployment's flows.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from fedcore.flows.announce import ask

from fedcore.errors import ConfigError
from fedcore.operations.backfill import series_of
from fedcore.operations.deployment import Deployment
from fedcore.operations.pipelines.steps import Pipeline

SECONDS_BETWEEN = 2.0  # from one look at a run to the next
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def deployment_on(item: Deployment | Pipeline, address: str) -> dict[str, Any] | None:
    """The deployment as the server at this address (which ends in /api) knows it; None if it does not."""
    flow = f"train-{item.method.replace('_', '-')}" if isinstance(item, Deployment) else "pipeline"
    wanted = {"deployments": {"name": {"any_": [item.name]}}, "flows": {"name": {"any_": [flow]}}}
    found = ask(address, "/deployments/filter", wanted)
    return found[0] if found else None


def backfill(item: Deployment, versions: Sequence[int], address: str) -> Iterator[dict[str, Any]]:
    """Version, flow run and state of each run when it has ended; after one that is not Completed there is no other.

    Raises ConfigError if the server does not know the deployment, OSError and ValueError if it does not answer.
    """
    known = deployment_on(item, address)
    if known is None:
        raise ConfigError(
            f"the Prefect server at {address} has no deployment {item.name!r} of method {item.method!r}.",
            "Register it first, with `fedcore deploy`.",
        )
    series = series_of(item).model_dump(mode="json")
    for version in versions:
        given = {"name": f"backfill-{item.name}-v{version}", "parameters": {"version": version, "series": series}}
        run = ask(address, f"/deployments/{known['id']}/create_flow_run", given)
        state = run["state"]
        while state["type"] not in ENDED:
            time.sleep(SECONDS_BETWEEN)
            (found,) = ask(address, "/flow_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
            state = found["state"]
        yield {"version": version, "flow run": run["id"], "state": state["name"], "message": state["message"] or ""}
        if state["name"] != "Completed":
            return
