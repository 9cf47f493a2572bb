"""Memory of `fedcore serve` over many quick runs, one after the other: it shall not grow with them.

A deployment without a schedule is started by hand as soon as its last run has ended, against a Prefect server of its
own. After each run the resident bytes of the serving process and of the server are read. The slope is that of a
line of least squares through the second half of the readings, when caches are full.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from fedcore.flows.server import authorization

from benchmarks.populations import reddit_like
from benchmarks.processes import Server, own_server

CLIENTS = 100
MIB = 2.0**20
PATIENCE = 180.0  # seconds for a run
FILE = """
[[deployment]]
name = "quick"
method = "paper_histograms"
population = "{population}"
runs = "{folder}/runs"
retention = 3
config = {{ clusters = 2, rounds = 2 }}
"""


def measure(options: Any) -> dict[str, Any]:
    """--runs: so many runs."""
    population = reddit_like(options.dir, options.clients)
    with tempfile.TemporaryDirectory() as folder, own_server(Path(folder) / "prefect") as server:
        file = Path(folder) / "serve.toml"
        file.write_text(FILE.format(population=population.path.absolute(), folder=folder))
        with _serving(file) as process:
            deployment = _first(lambda: _ask(server, "/deployments/filter", {}))[0]["id"]
            idle = set(process.children())
            readings = [
                _after_a_run(server, deployment, process, idle, number) for number in range(1, options.runs + 1)
            ]
    rows = [readings[0], readings[len(readings) // 2], readings[-1]]
    half = readings[len(readings) // 2 :]
    rows.append(
        {
            "what": f"slope over the last {len(half)} of {len(readings)} runs",
            "serve_mib_per_run": _slope([row["serve_mib"] for row in half]),
            "server_mib_per_run": _slope([row["server_mib"] for row in half]),
        }
    )
    return {"benchmark": "serve", "rows": rows, "readings": readings}


@contextmanager
def _serving(file: Path) -> Iterator[psutil.Process]:
    environment = {**os.environ, "PREFECT_LOGGING_LEVEL": "WARNING", "PREFECT_RUNNER_POLL_FREQUENCY": "1"}
    command = [sys.executable, "-m", "fedcore.cli", "serve", str(file)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def _after_a_run(
    server: Server, deployment: str, process: psutil.Process, idle: set[psutil.Process], number: int
) -> dict[str, Any]:
    """idle: processes that are there between runs"""
    made = _ask(server, f"/deployments/{deployment}/create_flow_run", {})["id"]
    began = time.monotonic()
    wanted = {
        "flow_runs": {"id": {"any_": [made]}, "state": {"type": {"not_any_": ["SCHEDULED", "PENDING", "RUNNING"]}}}
    }
    (run,) = _first(lambda: _ask(server, "/flow_runs/filter", wanted))
    if run["state_type"] != "COMPLETED":
        raise RuntimeError(f"run {number} is {run['state_name']}: {run['state']['message']}")
    while set(process.children(recursive=True)) - idle:  # the process of the flow
        time.sleep(0.1)
    reading = {
        "what": f"after run {number}",
        "serve_mib": process.memory_info().rss / MIB,
        "server_mib": server.process.memory_info().rss / MIB,
        "start_s": (datetime.fromisoformat(run["start_time"]) - datetime.fromisoformat(run["created"])).total_seconds(),
        "seconds": time.monotonic() - began,
    }
    print(json.dumps(reading), file=sys.stderr, flush=True)
    return reading


def _slope(values: Sequence[float]) -> float | None:
    """By run; None of a single value."""
    return float(np.polyfit(range(len(values)), values, 1)[0]) if len(values) > 1 else None


def _first(look: Any) -> Any:
    """What `look` finds, as soon as it finds something. Raises RuntimeError if that takes too long."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if found := look():
            return found
        time.sleep(0.2)
    raise RuntimeError("no run, or no deployment, came up in time")


def _ask(server: Server, path: str, body: Any) -> Any:
    headers = {"content-type": "application/json"} | authorization()
    request = urllib.request.Request(f"{server.api}{path}", json.dumps(body).encode(), headers)
    until = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except OSError:  # a busy server says 503 when its database is locked
            if time.monotonic() > until:
                raise
            time.sleep(1.0)
