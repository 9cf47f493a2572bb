"""A flow run that is cancelled in the UI: its work stops, also on a cluster that it did not start, and its budget is
consistent.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request

import psutil
import pytest
from distributed import Client

from fedcore.privacy.ledger.ledger import open_ledger
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run, list_runs
from fedcore.training.session import resume
from tests.command import private_population
from tests.conftest import small_counts
from tests.faults.month import Server
from tests.faults.test_cluster import separate_cluster
from tests.sessions import to_end
from tests.tls import tls_environment

ROUNDS = 300
FILE = """
[[deployment]]
name = "long"
method = "histograms"
population = "population"
runs = "runs"
config = {{ clusters = 2, rounds = {rounds}, epsilon = {epsilon} }}
compute = {{ {compute} }}
"""


def ask(api: str, path: str, body: dict):
    request = urllib.request.Request(api + path, json.dumps(body).encode(), {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=20))


def within(seconds: float, look):
    """What `look` finds, as soon as it finds something."""
    until = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.2)
    return found


def held(dask_scheduler=None) -> int:
    """Tasks that the scheduler still knows, and bytes of them on workers."""
    return len(dask_scheduler.tasks) + sum(worker.nbytes for worker in dask_scheduler.workers.values())


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.prefect
def test_a_cancelled_run(tmp_path):
    population, _ = private_population(tmp_path / "population", small_counts(400), epsilon=5.0, leaf=16, block=16)
    server = Server(tmp_path / "prefect")
    server.start()
    try:
        with separate_cluster(tmp_path) as (address, _, _), open(tmp_path / "log", "w") as log:
            (tmp_path / "long.toml").write_text(FILE.format(compute=f'dask = "{address}"', rounds=ROUNDS, epsilon=4.0))
            command = [sys.executable, "-m", "fedcore.cli", "serve", str(tmp_path / "long.toml")]
            environment = server.environment | tls_environment(tmp_path)
            serving = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            try:
                cancel(server.api, tmp_path, address)
            finally:
                family = psutil.Process(serving.pid).children(recursive=True)
                for process in [*family, psutil.Process(serving.pid)]:
                    process.kill()
                serving.wait()
    finally:
        server.kill()
    (run,) = list_runs(tmp_path / "runs")
    ledger = open_ledger(os.environ["FEDCORE_LEDGER"])
    balance = ledger.verify(population.id)
    assert run.status == "running" and 2 <= run.round < ROUNDS
    assert balance.releases["published"] in (run.round, run.round + 1) and balance.rho_reserved > 0
    to_end(resume(run.path, InProcessBackend()))
    after = ledger.verify(population.id)
    assert Run.open(run.path).status == "finished" and after.rho_reserved == 0
    assert after.rho_spent <= after.budget.rho_max and after.releases.get("forfeited", 0) <= 1


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.prefect
def test_what_a_run_started_ends_with_it(tmp_path):
    """The workers of a cluster of its own with the run that is cancelled; all that `fedcore serve` started with it."""
    private_population(tmp_path / "population", small_counts(400), epsilon=5.0, leaf=16, block=16)
    (tmp_path / "long.toml").write_text(FILE.format(compute="workers = 2", rounds=ROUNDS, epsilon=2.0))
    server = Server(tmp_path / "prefect")
    server.start()
    try:
        with open(tmp_path / "log", "w") as log:
            command = [sys.executable, "-m", "fedcore.cli", "serve", str(tmp_path / "long.toml")]
            serving = subprocess.Popen(command, env=server.environment, stdout=log, stderr=log)
            family: list[psutil.Process] = []
            try:
                within(90, lambda: ask(server.api, "/deployments/filter", {}))
                template = psutil.Process(serving.pid).children()  # it forks the runs, and outlives them
                made = started(server.api, tmp_path)
                family = [one for one in psutil.Process(serving.pid).children(recursive=True) if one not in template]
                assert len(family) >= 3, "the process of the flow and two workers"
                cancelled(server.api, made)
                within(30, lambda: not any(map(alive, family)))
                started(server.api, tmp_path, rounds=1)
                family = psutil.Process(serving.pid).children(recursive=True)
                serving.terminate()
                within(60, lambda: serving.poll() is not None)
                within(30, lambda: not any(map(alive, family)))
            finally:
                for process in [*family, psutil.Process(serving.pid)] if serving.poll() is None else family:
                    if alive(process):
                        process.kill()
                serving.wait()
    finally:
        server.kill()


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def started(api: str, folder, rounds: int = 2) -> str:
    """The id of a run of the deployment that is started by hand, once a new run has made so many rounds."""
    before = {run.id for run in list_runs(folder / "runs")}
    found = within(90, lambda: ask(api, "/deployments/filter", {}))
    within(90, lambda: ask(api, "/deployments/filter", {})[0]["status"] == "READY")
    made = ask(api, f"/deployments/{found[0]['id']}/create_flow_run", {})
    within(120, lambda: any(run.round >= rounds for run in list_runs(folder / "runs") if run.id not in before))
    return str(made["id"])


def cancelled(api: str, id: str) -> None:
    """Cancel a run as the UI does, and wait until it is."""
    ask(api, f"/flow_runs/{id}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    asked = {"flow_runs": {"id": {"any_": [id]}}}
    within(90, lambda: ask(api, "/flow_runs/filter", asked)[0]["state_type"] == "CANCELLED")


def cancel(api: str, folder, address: str) -> None:
    """Starts the deployment by hand, cancels it in its rounds, and waits until nothing of it is left on the cluster."""
    cancelled(api, started(api, folder))
    with Client(address, set_as_default=False) as client:
        within(30, lambda: client.run_on_scheduler(held) == 0)
