"""Flow runs whose process died are marked as Crashed; those that may live are not."""

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from fedcore.flows import dead
from fedcore.flows.announce import ask

from fedcore.storage.process import boot_id, this_host
from tests.flows.test_prefect import first, prefect_server

__all__ = ["prefect_server"]
FLOW = """
import sys, time
from fedcore.flows.own_server import flow
from fedcore.flows.states import run_to_state

@flow(name="long", flow_run_name=sys.argv[1])
def long():
    def work(kept):
        print("begun", flush=True)
        time.sleep(600)
    return run_to_state(work, lambda kept: "long")

long()
"""


@pytest.mark.slow
@pytest.mark.prefect
def test_a_killed_flow_run_is_crashed_and_a_live_one_is_not(prefect_server):
    address = f"{prefect_server}/api"
    environment = os.environ | {"PREFECT_API_URL": address}
    made = [
        subprocess.Popen([sys.executable, "-c", FLOW, name], env=environment, stdout=subprocess.PIPE, text=True)
        for name in ("killed", "lives")
    ]
    try:
        assert all(process.stdout.readline() == "begun\n" for process in made)
        made[0].send_signal(signal.SIGKILL)
        made[0].wait()
        assert dead.mark_dead(address) == ["killed"] and dead.mark_dead(address) == []
        (crashed,) = dead.flow_runs(address, ("CRASHED",))
        assert crashed["state"]["name"] == "Crashed" and f"Process {made[0].pid} on" in crashed["state"]["message"]
        (running,) = dead.flow_runs(address)
        assert dead.process_of(running) == "lives"
        # what another host notes, or one that was started anew since, is never taken for dead
        for name, value in (("host", "elsewhere"), ("boot", "earlier")):
            labels = {**running["labels"], f"{dead.NOTE}pid": made[0].pid, f"{dead.NOTE}{name}": value}
            assert dead.process_of({**running, "labels": labels}) == "unknown"
    finally:
        for process in made:
            process.kill()
    assert first(lambda: dead.mark_dead(address) == ["lives"], 10)
    assert ask(address, "/flow_runs/count", {"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}}) == 0


STARTING = """
import sys, time
from fedcore.flows import states
from fedcore.flows.own_server import flow

def wait():
    print("begun", flush=True)
    time.sleep(600)

states.note_process = wait
flow(name=sys.argv[1], flow_run_name=sys.argv[1])(lambda: states.run_to_state(lambda kept: None, lambda kept: ""))()
"""


@pytest.mark.slow
@pytest.mark.prefect
def test_a_flow_run_that_was_killed_while_it_started_is_crashed_after_a_minute(prefect_server):
    address = f"{prefect_server}/api"
    environment = os.environ | {"PREFECT_API_URL": address}
    for name in ("evaluate", "of somebody else"):
        made = subprocess.Popen(
            [sys.executable, "-c", STARTING, name], env=environment, stdout=subprocess.PIPE, text=True
        )
        try:
            assert made.stdout.readline() == "begun\n"
        finally:
            made.kill()
            made.wait()
    flow_id = ask(address, "/flows/", {"name": "pipeline-train"})["id"]
    pending = {"flow_id": flow_id, "name": "pending", "state": {"type": "PENDING"}}
    ask(address, "/flow_runs/", pending)
    assert dead.mark_dead(address, own=True) == []  # they may be about to say so
    later = datetime.now(UTC) + timedelta(seconds=dead.SILENT + 1)
    assert dead.mark_dead(address, now=later) == [], "others may use the server, with flows of the same names"
    assert sorted(dead.mark_dead(address, True, later)) == ["evaluate", "pending"]
    (running,) = dead.flow_runs(address)
    assert running["name"] == "of somebody else" and dead.mark_dead(address, True, later) == []
    assert {run["state"]["message"] for run in dead.flow_runs(address, ("CRASHED",), flows=dead.flow_names())} == {
        "Its process has died while it started. `fedcore resume RUN` continues a run."
    }


def test_a_note_of_an_earlier_attempt_says_nothing():
    note = dead.note(1)
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    labels = {**note, f"{dead.NOTE}pid": int(gone.stdout)}
    assert note[f"{dead.NOTE}boot"] == boot_id() and note[f"{dead.NOTE}host"] == this_host()
    assert dead.process_of({"labels": note, "run_count": 1}) == "lives"
    assert dead.process_of({"labels": labels, "run_count": 1}) == "dead"
    assert dead.process_of({"labels": labels, "run_count": 2}) == "unknown"
    assert dead.process_of({"labels": {}, "run_count": 1}) == "unknown"


def test_starts_that_were_missed_are_left_out_and_those_of_a_person_kept(monkeypatch):
    asked = []
    runs = [
        {"id": "1", "name": "missed", "auto_scheduled": True},
        {"id": "2", "name": "by hand", "auto_scheduled": False},
    ]

    def ask(address, path, body):
        asked.append((path, body))
        return runs if path.endswith("/filter") else {}

    monkeypatch.setattr(dead, "ask", ask)
    now = datetime(2026, 3, 1, 3, 10, tzinfo=UTC)
    assert dead.leave_out_missed("http://here/api", ["nightly"], now) == ["missed"]
    (_, wanted), (path, body) = asked
    assert wanted["deployments"] == {"name": {"any_": ["nightly"]}}
    assert wanted["flow_runs"]["expected_start_time"] == {"before_": "2026-03-01T03:09:00+00:00"}
    assert path == "/flow_runs/1/set_state" and body["state"]["type"] == "CANCELLED"
