"""What Prefect knows of deployments and their flow runs, and the operator's page in its UI. Prefect is asked over HTTP:
importing it takes longer than `fedcore status` does.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from fedcore.flows.announce import ask
from fedcore.flows.dead import GOING_ON, LEFT_OUT, PAGE, flow_runs, listed, process_of, repeating

from fedcore.operations.deployment import DeploymentFile
from fedcore.operations.operator_page import operator_page
from fedcore.operations.overview import folders_of, overview

LATE = timedelta(seconds=15)  # after its time a start counts as late, as in Prefect
EVERY = 30.0  # seconds
STARTS = 20  # of a deployment, that are looked at
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
GOOD = ("Completed", "Cancelled")
TOP: dict[str, Any] = {"parent_task_run_id": {"is_null_": True}}  # flow runs that no other one has called


def seen(address: str, now: datetime | None = None) -> dict[str, Any]:
    """The server's address; a row for each flow run that goes on, is late, was missed, waits for clients or ended badly
    as the newest one of its deployment; and by deployment the next starts. Raises URLError, OSError, ValueError.
    """
    moment = datetime.now(UTC) if now is None else now
    names = {one["id"]: one["name"] for one in listed(address, "/deployments/filter", {})}
    going_on = flow_runs(address, (*GOING_ON, "PENDING"), **TOP)
    planned = flow_runs(address, ("SCHEDULED",), **TOP)
    late = [run for run in planned if _time(run) < moment - LATE]
    starts: dict[str, list[str]] = {}
    for run in reversed(planned):  # they come with the last one first
        if run["deployment_id"] in names and _time(run) >= moment:
            starts.setdefault(names[run["deployment_id"]], []).append(run["expected_start_time"])
    rows = [
        {
            "deployment": names.get(run["deployment_id"]),
            "flow_run": run["name"],
            "state": state,
            "planned": run["expected_start_time"],
            "process": process_of(run) if run in going_on else None,
            "message": message,
        }
        for run, state, message in (
            *((run, run["state_name"], _message(run)) for run in going_on),
            *((run, "Late", "Nothing has started it yet.") for run in late),
            *_ended(address),
        )
    ]
    return {"address": address, "flow_runs": rows, "starts": {name: each[:STARTS] for name, each in starts.items()}}


def _ended(address: str) -> Iterator[tuple[dict[str, Any], str, str]]:
    """(flow run, state, message) of the newest one that ended of each deployment, if it did not end well."""
    newest: dict[str, dict[str, Any]] = {}
    missed: dict[str, list[dict[str, Any]]] = {}
    for run in flow_runs(address, ENDED, most=PAGE, **TOP):
        of = str(run["deployment_id"] or run["id"])
        if of in newest:
            continue
        if run["state_name"] == "Cancelled" and _message(run) == LEFT_OUT:
            missed.setdefault(of, []).append(run)
        elif run["state_name"] != "Cancelled":  # by a person, or because another run of the deployment went on
            newest[of] = run
    for runs in missed.values():
        yield runs[0], "Missed", f"{len(runs)} starts were missed." if len(runs) > 1 else LEFT_OUT
    for run in newest.values():
        if run["state_name"] not in GOOD:
            yield run, run["state_name"], _message(run)


def _time(run: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(run["expected_start_time"])


def _message(run: Mapping[str, Any]) -> str:
    return str((run.get("state") or {}).get("message") or "")


def show(content: DeploymentFile, file: Path, address: str) -> str:
    """Bring the page up to date: one artifact, without older versions. Returns its id. Raises URLError, OSError,
    ValueError.
    """
    facts = overview(folders_of(content), content, seen(address))
    key = import_module("fedcore.tasks.artifacts").key("overview", file.stem)
    page = {
        "data": operator_page(facts, f"Overview of {file.name}", _links(content, address)),
        "description": "What needs attention, what ran and comes, what is left of budgets, what changed",
    }
    known = ask(address, "/artifacts/latest/filter", {"artifacts": {"key": {"any_": [key]}}})
    if known:
        id = str(known[0]["latest_id"])
        ask(address, f"/artifacts/{id}", page, method="PATCH")
    else:
        id = str(ask(address, "/artifacts/", {"key": key, "type": "markdown", **page})["id"])
    return id


def _links(content: DeploymentFile, address: str) -> dict[str, str]:
    """The pages of pipelines and the newest reports that the server has, by what they show."""
    key = import_module("fedcore.tasks.artifacts").key
    wanted = {f"Pipeline {item.name}": key("pipeline", item.name) for item in content.pipeline}
    wanted |= {f"Report of {item.name}": key("report", item.name) for item in content.deployment}
    asked = {"artifacts": {"key": {"any_": list(wanted.values())}}, "limit": PAGE}
    there = {one["key"] for one in ask(address, "/artifacts/latest/filter", asked)}
    return {what: f"/artifacts/key/{one}" for what, one in wanted.items() if one in there}


@contextmanager
def showing(content: DeploymentFile, file: Path, base: str) -> Iterator[str]:
    """Inside, the page is brought up to date every half minute. Gives its address, or "" if it could not be made at
    first. What keeps it from being up to date is a line of log. base: of the UI
    """

    def work() -> str:
        try:
            return f"{base}/artifacts/artifact/{show(content, file, f'{base}/api')}"
        except Exception as error:  # what is shown decides nothing
            logging.getLogger(__name__).warning("the overview in the Prefect UI is not up to date: %s", error)
            return ""

    page = work()
    with repeating(work, EVERY, at_once=False):
        yield page
