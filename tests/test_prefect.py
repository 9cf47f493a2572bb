"""Guards of the pins in pyproject.toml: the server can be made, and its scheduler makes runs."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest

from fedcore.runs import list_runs, load_run
from tests.conftest import small_counts, write_counts
from tests.federated_em.test_run import rows_population


@pytest.fixture(scope="module")
def prefect_server(tmp_path_factory):
    """A server of its own, on loopback; gone with the module."""
    home = tmp_path_factory.mktemp("prefect")
    before = {name: os.environ.get(name) for name in ("PREFECT_HOME", "PREFECT_API_URL")}
    os.environ["PREFECT_HOME"] = str(home)
    os.environ.pop("PREFECT_API_URL", None)
    import flows  # noqa: F401  makes the settings
    from flows.server import server

    try:
        with server() as base:
            yield base
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def test_the_server_application_can_be_created():
    code = ("from prefect.server.api.server import create_app; app = create_app(ephemeral=True);"
            "print(len(app.routes) > 0)")  # fmt: skip
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert out.stdout.strip().endswith("True"), out.stderr[-2000:]


FILE = """
[[deployment]]
name = "often"
method = "histograms"
population = "population"
runs = "runs"
schedule = { interval = 20 }
tags = ["test"]

[deployment.config]
algorithm = "algorithm2"
clusters = 2
rounds = 3

[deployment.compute]
workers = 1
"""


@pytest.mark.slow
@pytest.mark.prefect
def test_a_served_schedule_makes_a_run_that_finishes(prefect_server, tmp_path):
    """Guards the SQLAlchemy pin too: without it the scheduler makes no run."""
    write_counts(tmp_path / "population", small_counts(200))
    (tmp_path / "deployments.toml").write_text(FILE)
    command = [sys.executable, "-m", "fedcore.cli", "serve", str(tmp_path / "deployments.toml")]
    with open(tmp_path / "log", "w") as log:
        environment = os.environ | {"PREFECT_API_URL": prefect_server + "/api"}
        serving = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            seen = _first(lambda: [run for run in _ask(prefect_server, "/flow_runs/filter", {})
                                   if run["state_type"] == "COMPLETED"], 150)  # fmt: skip
        finally:
            _end(serving)
    assert seen, (tmp_path / "log").read_text()[-3000:]
    assert seen[0]["auto_scheduled"] and "test" in seen[0]["tags"]
    finished = [run for run in list_runs(tmp_path / "runs") if run.status == "finished"]
    assert finished and (finished[0].path / "report.html").exists()
    keys = {item["key"].split("-")[0] for item in _ask(prefect_server, "/artifacts/filter", {})}
    assert {"progress", "metrics", "report"} <= keys


def _end(process):
    """SIGTERM, and again: Prefect's runner may ask for a second one. (SIGINT is ignored by jobs in the background.)"""
    for patience in (20, 40):
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    process.wait()


def _first(look, seconds):
    """What `look` finds, as soon as it finds something."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(1)
    return look()


def _ask(base, path, body):
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{base}/api{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


@pytest.mark.slow
@pytest.mark.prefect
@pytest.mark.parametrize("method", ["histograms", "federated-em"])
def test_a_flow_and_a_local_run_end_in_the_same_bits(prefect_server, tmp_path, method):
    if method == "histograms":
        population = write_counts(tmp_path / "population", small_counts(200))
        settings = ["--set", "algorithm=algorithm2", "--set", "clusters=3", "--set", "rounds=6"]
    else:
        population = rows_population(tmp_path / "population")
        settings = ["--set", "participation=0.5", "--set", "rounds=6"]
    arguments = ["train", method, str(population.path), "--runs", str(tmp_path / "runs"), "--json", *settings]
    environment = os.environ | {"PREFECT_API_URL": prefect_server + "/api"}
    for name, more in (("flow", ["--workers", "2"]), ("local", ["--local"])):
        command = [sys.executable, "-m", "fedcore.cli", *arguments, "--run-id", name, *more]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr[-3000:]
        answer = json.loads(done.stdout)
        assert answer["status"] == "finished" and answer["peak_memory_bytes"]["flow"] > 0
    flow, local = (load_run(tmp_path / "runs" / name).state for name in ("flow", "local"))
    assert flow.keys() == local.keys()
    assert all(np.asarray(flow[name]).tobytes() == np.asarray(local[name]).tobytes() for name in flow)
