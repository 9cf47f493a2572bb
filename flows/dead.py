"""Flow runs whose process has died: found by what each of them notes about its process, and marked as Crashed, so that
the UI does not show them as Running.

A process is dead if it ran on this host, since the host was started, and is gone. A flow run of another host is left as
it is. A process notes itself before it reads anything. So on a server that fedcore started, one of its flow runs that
is still without a note after SILENT seconds was killed while it started.
"""

import logging
import threading
import urllib.error
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from fedcore.flows.announce import ask

from fedcore.methods.names import METHODS
from fedcore.storage.process import Holder, boot_id, this_process

NOTE = "fedcore."  # how the labels begin that a flow run has of its process
PAGE = 200  # things that a server is asked for at once
EVERY = 60.0  # seconds
MISSED = 60.0  # seconds after its time a start that nothing has taken was missed
SILENT = 60.0  # seconds without a note of its process, after which a flow run was killed while it started
GOING_ON = ("RUNNING", "CANCELLING")
FLOWS = ("resume-run", "evaluate", "pipeline")
MORE = ("ingest", "site-run")
STEPS = ("ingest", "forget", "train", "evaluate", "export", "personalise")
LEFT_OUT = "Missed: nothing served it at its time."  # of a start that was cancelled for this


def note(run_count: int) -> dict[str, Any]:
    """The labels of a flow run that this process makes. run_count: as Prefect counts its attempts"""
    facts = {**asdict(this_process()), "boot": boot_id(), "attempt": run_count}
    return {f"{NOTE}{name}": value for name, value in facts.items()}


def noted(flow_run: Mapping[str, Any]) -> Holder | None:
    """The process that a flow run was noted for in its present attempt; None if there is no such note."""
    labels = flow_run.get("labels") or {}
    facts: dict[str, Any] = {name: labels.get(f"{NOTE}{name}") for name in ("host", "pid", "started", "attempt")}
    try:
        if int(facts.pop("attempt")) != flow_run["run_count"]:  # it was started again, and has not noted that yet
            return None
        return Holder(str(facts["host"]), int(facts["pid"]), float(facts["started"]))
    except (TypeError, ValueError, KeyError):
        return None


def process_of(flow_run: Mapping[str, Any]) -> str:
    """What is known of the process of a flow run: "lives", "dead", or "unknown", as on another host."""
    holder = noted(flow_run)
    if holder is None or flow_run["labels"].get(f"{NOTE}boot") != boot_id():
        return "unknown"
    if holder.alive(expired=False):
        return "lives" if holder.host == this_process().host else "unknown"
    return "dead"


def listed(address: str, path: str, wanted: Mapping[str, Any], *, most: int | None = None) -> list[dict[str, Any]]:
    """All that a filter of a server finds, which answers in pages. path: as /flow_runs/filter; most: about so many,
    None for all. Raises URLError, OSError, ValueError.
    """
    found: list[dict[str, Any]] = []
    while True:
        page = ask(address, path, {**wanted, "limit": PAGE, "offset": len(found)})
        found += page
        if len(page) < PAGE or (most is not None and len(found) >= most):
            return found


def flow_names() -> list[str]:
    """The flows that make artifacts."""
    return [*(f"train-{name.replace('_', '-')}" for name in METHODS), *FLOWS, *(f"pipeline-{step}" for step in STEPS)]


def flow_runs(
    address: str,
    types: tuple[str, ...] = GOING_ON,
    deployments: Mapping[str, Any] | None = None,
    *,
    flows: Iterable[str] | None = None,
    most: int | None = None,
    **more: Any,
) -> list[dict[str, Any]]:
    """The flow runs of a server whose states are of these types, newest first. deployments, more: of Prefect's
    filters; flows: names, None for any; most: of them, None for all. Raises URLError, OSError, ValueError.
    """
    wanted = {"flow_runs": {"state": {"type": {"any_": list(types)}}, **more}, "sort": "EXPECTED_START_TIME_DESC"}
    wanted |= {} if deployments is None else {"deployments": deployments}
    wanted |= {} if flows is None else {"flows": {"name": {"any_": list(flows)}}}
    return listed(address, "/flow_runs/filter", wanted, most=most)


def silent(address: str, now: datetime) -> list[dict[str, Any]]:
    """The flow runs of fedcore that have gone on for SILENT seconds and have no note of their process. Raises URLError,
    OSError, ValueError.

    A start that a schedule has planned is left out while it is Pending: its host may need minutes to make a process.
    """
    before = now - timedelta(seconds=SILENT)
    return [
        run
        for run in flow_runs(address, (*GOING_ON, "PENDING"), flows=[*flow_names(), *MORE])
        if noted(run) is None
        and (run["state_type"] != "PENDING" or run["deployment_id"] is None)
        and datetime.fromisoformat(run["state"]["timestamp"]) < before
    ]


def mark_dead(address: str, own: bool = False, now: datetime | None = None) -> list[str]:
    """Set the flow runs whose process is dead to Crashed. Returns their names. Raises URLError, OSError, ValueError.

    address: of the server, ends in /api; own: whether fedcore started it, so that silent flow runs are its own too
    """
    now = datetime.now(UTC) if now is None else now
    marked = []
    quiet = {run["id"] for run in silent(address, now)} if own else set[str]()
    dead = quiet | {run["id"] for run in flow_runs(address) if process_of(run) == "dead"}
    if not dead:
        return []
    # A process sets the last state before it ends: what still goes on when its process was already gone has crashed.
    for run in flow_runs(address, (*GOING_ON, "PENDING"), id={"any_": sorted(dead)}):
        holder = noted(run)
        if process_of(run) != "dead" and not (holder is None and run["id"] in quiet):
            continue
        who = "Its process" if holder is None else f"Process {holder.pid} on {holder.host.split()[0]}"
        when = " while it started" if holder is None else ""
        message = f"{who} has died{when}. `fedcore resume RUN` continues a run."
        state = {"type": "CRASHED", "name": "Crashed", "message": message}
        ask(address, f"/flow_runs/{run['id']}/set_state", {"state": state, "force": True})
        marked.append(str(run["name"]))
    return marked


def leave_out_missed(address: str, deployments: Sequence[str], now: datetime | None = None) -> list[str]:
    """Cancel the starts of these deployments that schedules planned for a time at which nothing served them, so that
    they do not follow one another now and spend from the budget. Returns their names. Raises URLError, OSError,
    ValueError.
    """
    before = ((datetime.now(UTC) if now is None else now) - timedelta(seconds=MISSED)).isoformat()
    left_out = []
    for run in flow_runs(
        address, ("SCHEDULED",), {"name": {"any_": list(deployments)}}, expected_start_time={"before_": before}
    ):
        if run["auto_scheduled"]:
            state = {"type": "CANCELLED", "name": "Cancelled", "message": LEFT_OUT}
            ask(address, f"/flow_runs/{run['id']}/set_state", {"state": state})
            left_out.append(str(run["name"]))
    return left_out


def try_to_mark(address: str, deployments: Sequence[str] = (), own: bool = False) -> None:
    """Mark dead flow runs, after missed starts of these deployments were left out. A server that does not answer is a
    line of log. own: as for `mark_dead`
    """
    try:
        if deployments:
            leave_out_missed(address, deployments)
        for name in mark_dead(address, own):
            logging.getLogger(__name__).warning("flow run %s: its process has died; marked as Crashed", name)
    except (urllib.error.URLError, OSError, ValueError) as error:
        logging.getLogger(__name__).warning("flow runs whose process has died were not looked for: %s", error)


@contextmanager
def marking(address: str, deployments: Sequence[str], own: bool) -> Iterator[None]:
    """Inside, flow runs whose process has died are marked: at once, every minute, and at the end. Starts of these
    deployments that were missed before are left out. own: as for `mark_dead`
    """
    try_to_mark(address, deployments, own)
    with repeating(lambda: try_to_mark(address, own=own), EVERY, at_once=False):
        yield
    try_to_mark(address, own=own)


@contextmanager
def repeating(work: Callable[[], object], every: float, *, at_once: bool = True) -> Iterator[None]:
    """Inside, another thread works every so many seconds. work: raises nothing"""
    done = threading.Event()

    def repeat() -> None:
        if at_once:
            work()
        while not done.wait(every):
            work()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(every)
