"""Starts that a schedule should have made and has not, and runs that hang (`fedcore watch FILE`): looked for from
outside, since whoever should have started them may be the one that is down.

What was told already is asked of the server's own events, so that nothing is remembered here and the command may be
started anew at any time.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from fedcore.flows.announce import ask, post
from fedcore.flows.backfill import deployment_on
from fedcore.flows.dead import EVERY, repeating
from fedcore.tasks.events import as_json, labels
from prefect.server.schemas.schedules import CronSchedule, RRuleSchedule

from fedcore.errors import RunError
from fedcore.operations.deployment import Deployment, DeploymentFile
from fedcore.operations.events import Event, run_hanging, schedule_missed
from fedcore.operations.hanging import hanging_runs
from fedcore.operations.monitoring import Monitoring
from fedcore.operations.pipelines.steps import Pipeline
from fedcore.operations.schedule import Schedule
from fedcore.runs.store import list_runs

# How far back the last time of a schedule is looked for; the next one only if there was none.
SPANS = [timedelta(hours=2), timedelta(days=2), timedelta(days=15), timedelta(days=93), timedelta(days=1100)]
MOST = 500  # times of a schedule in one of them
SLACK = timedelta(seconds=1)


@contextmanager
def watching(content: DeploymentFile, address: str) -> Iterator[None]:
    """Inside, `look` has been called, and is again every minute. What keeps it from that is a line of log."""

    def work() -> None:
        try:
            look(content, address, unknown=False)
        except Exception as error:  # what is reported decides nothing
            logging.getLogger(__name__).warning("missed starts and stalled runs were not looked for: %s", error)

    work()
    with repeating(work, EVERY, at_once=False):
        yield


def look(content: DeploymentFile, address: str, now: datetime | None = None, unknown: bool = True) -> list[Event]:
    """The events that there are to tell now, and that the server was told of.

    content: its deployments and pipelines. address: of the server, ends in /api. unknown: whether one that the server
    does not know has missed its starts; else it is about to be registered. Raises URLError, OSError and
    ValueError if the server does not answer.
    """
    moment = datetime.now(UTC) if now is None else now
    told = []
    watched: list[Deployment | Pipeline] = [*content.deployment, *content.pipeline]
    for item in watched:
        known = deployment_on(item, address)
        if known is None and not unknown:
            continue
        id = None if known is None else known["id"]
        late = _of(item).late if isinstance(item, Deployment) else content.monitoring.late
        hangs = _hanging(item, address, moment) if isinstance(item, Deployment) else ()
        for event in (*_missed(item, late, known, address, moment), *hangs):
            body = as_json(event)
            if id is not None:  # so that automations find it as they find what flow runs tell
                role = {"prefect.resource.id": f"prefect.deployment.{id}", "prefect.resource.role": "deployment"}
                body["related"].append(role | {"prefect.resource.name": item.name})
            if post([body], address):
                told.append(event)
    return told


# --- starts -----------------------------------------------------------------------------------------------------------


def _missed(
    item: Deployment | Pipeline, late: float, known: dict[str, Any] | None, address: str, now: datetime
) -> Iterator[Event]:
    if not item.schedules:
        return
    last = None if known is None else _last_start(known["id"], address)
    latest = now - timedelta(seconds=late)
    begun = last or (None if known is None else datetime.fromisoformat(known["created"]))
    each_due = [_due(schedule, begun, latest) for schedule in item.schedules]
    due = max((one for one in each_due if one is not None and one <= latest), default=None)
    if due is None or (last is not None and last >= due - SLACK):
        return
    if known is not None and datetime.fromisoformat(known["created"]) > due:
        return
    event = schedule_missed(item.name, due, last, _why(known))
    if not any(last is None or datetime.fromisoformat(each["occurred"]) > last for each in _told(event, address)):
        yield event


def _due(schedule: Schedule, begun: datetime | None, latest: datetime) -> datetime | None:
    """The last time of a schedule up to `latest`; of an interval the first time after it was begun."""
    if schedule.interval is None:
        return last_time(schedule, latest)
    return latest if begun is None else begun + timedelta(seconds=schedule.interval)


def last_time(schedule: Schedule, until: datetime) -> datetime | None:
    """The last time of a schedule (not of an interval, which has none by itself) up to a moment; None if there was
    none in three years.
    """
    kind: CronSchedule | RRuleSchedule
    if schedule.cron is not None:
        kind = CronSchedule(cron=schedule.cron, timezone=schedule.timezone)
    else:
        kind = RRuleSchedule(rrule=schedule.rrule or "", timezone=schedule.timezone)
    for span in SPANS:
        times = asyncio.run(kind.get_dates(MOST, until - span, until))
        if times:
            return datetime.fromtimestamp(max(times).timestamp(), UTC)  # Prefect's type loses its zone in sums
    return None


def _last_start(deployment: str, address: str) -> datetime | None:
    """The time for which the newest start was planned that has happened, or was left out for one that went on."""
    wanted = {
        "deployments": {"id": {"any_": [deployment]}},
        "flow_runs": {"state": {"type": {"not_any_": ["SCHEDULED", "PENDING"]}}},
        "sort": "EXPECTED_START_TIME_DESC",
        "limit": 1,
    }
    found = ask(address, "/flow_runs/filter", wanted)
    return datetime.fromisoformat(found[0]["expected_start_time"]) if found else None


def _why(known: dict[str, Any] | None) -> str:
    if known is None:
        return "the server does not know it"
    if known.get("paused") or not any(each["active"] for each in known.get("schedules", ())):
        return "its schedule is paused, as by `fedcore serve` when it ends"
    return "nobody has taken its run"


# --- runs -------------------------------------------------------------------------------------------------------------


def _hanging(item: Deployment, address: str, now: datetime) -> Iterator[Event]:
    try:
        found = list(hanging_runs(list_runs(item.runs), item.name, _of(item), now.timestamp()))
    except RunError:  # the folder cannot be reached from here
        return
    for one in found:
        event = run_hanging(one)
        if not any(each["payload"].get("round") == one.run.round for each in _told(event, address)):
            yield event


def _told(event: Event, address: str) -> list[dict[str, Any]]:
    """The events of this name about this subject that the server knows, newest first."""
    about = {"id": [labels(event.subject)["prefect.resource.id"]]}
    since = (datetime.now(UTC) - timedelta(days=400)).isoformat()
    wanted = {"event": {"name": [event.name]}, "resource": about, "occurred": {"since": since}}
    found: list[dict[str, Any]] = ask(address, "/events/filter", {"filter": wanted, "limit": 50})["events"]
    return found


def _of(item: Deployment) -> Monitoring:
    return item.monitoring or Monitoring()
