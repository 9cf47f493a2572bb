"""Dask by TLS, a Prefect server that wants a password, a ledger in PostgreSQL whose users may do little: what
docs/several-hosts.md says of them, run on loopback.
"""

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from fedcore.tasks.dask_backend import dask_client

from fedcore.errors import ConfigError
from fedcore.runs.store import load_run
from fedcore.training.shared_ids import register
from tests import sessions
from tests.command import private_population
from tests.conftest import small_counts
from tests.faults.month import Server
from tests.faults.test_cluster import free_port
from tests.postgres import NoPostgres, postgres_server
from tests.tls import certificate, tls_environment

SECRET = "operator:correct horse"
TRAIN = ["-c", "from fedcore.cli import main; main()", "train", "paper_histograms"]


@contextmanager
def processes(commands, environment):
    """Runs the commands until the end of the block."""
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for command in commands
    ]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_private_run_over_tls(tmp_path):
    certificate(tmp_path)
    population, _ = private_population(tmp_path / "population", small_counts(200))
    spilling = {f"DASK_DISTRIBUTED__WORKER__MEMORY__{name}": "False" for name in ("SPILL", "TARGET")}
    environment = os.environ | tls_environment(tmp_path) | spilling
    port = free_port()
    address, dask = f"tls://127.0.0.1:{port}", [sys.executable, "-m", "dask"]
    commands = [
        [*dask, "scheduler", "--protocol", "tls", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"],
        [*dask, "worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny"],
    ]
    settings = ["--set", "clusters=2", "--set", "rounds=2", "--set", "epsilon=4"]
    place = ["--local", "--dask", address, "--runs", str(tmp_path / "runs"), "--run-id", "run"]
    with processes(commands, environment):
        done = subprocess.run(
            [sys.executable, *TRAIN[:-1], "histograms", str(population.path), *settings, *place],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        with pytest.raises(ConfigError, match="no Dask scheduler"), dask_client(address=f"tcp://127.0.0.1:{port}"):
            pass
    assert load_run(tmp_path / "runs" / "run").head["status"] == "finished"


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.prefect
def test_a_server_that_wants_a_password(tmp_path):
    """Who does not know it is turned away; it is in no log and no artifact."""
    population, _ = private_population(tmp_path / "population", small_counts(100))
    server = Server(tmp_path / "prefect")
    server.environment["PREFECT_SERVER_API_AUTH_STRING"] = SECRET
    server.start()
    try:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{server.api}/admin/version", timeout=20)
        assert refused.value.code == 401
        settings, told = f"--set clusters=2 --set rounds=2 --workers 1 --runs {tmp_path / 'runs'}".split(), {}
        for name, more in (("knows", {"PREFECT_API_AUTH_STRING": SECRET}), ("does not", {})):
            environment = {key: value for key, value in server.environment.items() if "AUTH_STRING" not in key} | more
            told[name] = subprocess.run(
                [sys.executable, *TRAIN, str(population.path), *settings, "--run-id", name.replace(" ", "-")],
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
            )
    finally:
        time.sleep(1)  # the last lines of log reach the database
        server.kill()
    assert told["knows"].returncode == 0, told["knows"].stderr[-3000:]
    assert told["does not"].returncode != 0 and not (tmp_path / "runs" / "does-not").exists()
    password = SECRET.split(":")[1].encode()
    held = [path for path in tmp_path.rglob("*") if path.is_file() and password in path.read_bytes()]
    assert not held and SECRET not in told["knows"].stdout + told["knows"].stderr


# --- PostgreSQL -------------------------------------------------------------------------------------------------------


@pytest.fixture
def postgres():
    """A PostgreSQL server of its own on loopback: URL of the owner of the database `ledger`, without the role."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with ExitStack() as stack:
        try:
            address = stack.enter_context(postgres_server(free_port()))
        except NoPostgres as error:
            pytest.skip(str(error))
        yield address


def grants() -> list[str]:
    """The statements of the documentation."""
    page = (Path(__file__).parents[2] / "docs/several-hosts.md").read_text()
    return re.findall(r"^GRANT .*;$", page, re.MULTILINE)


@pytest.mark.slow
def test_runs_need_few_rights_in_the_ledger(postgres, tmp_path, monkeypatch):
    import psycopg

    monkeypatch.setenv("FEDCORE_LEDGER", f"postgresql+psycopg://owner@{postgres}")
    population, ledger = private_population(tmp_path / "population", small_counts(200))
    register(population, ledger)  # as `fedcore budget set` does
    with psycopg.connect(f"postgresql://owner@{postgres}", autocommit=True) as owner:
        owner.execute("CREATE ROLE fedcore_runs LOGIN")
        assert len(grants()) == 2
        for statement in grants():
            owner.execute(statement)
    monkeypatch.setenv("FEDCORE_LEDGER", f"postgresql+psycopg://fedcore_runs@{postgres}")
    sessions.train(population, tmp_path, settings={"clusters": 2, "rounds": 2, "epsilon": 4.0}, run_id="run")
    assert load_run(tmp_path / "runs" / "run").head["status"] == "finished"
    assert ledger.verify(population.id).releases["published"] == 4
    with psycopg.connect(f"postgresql://fedcore_runs@{postgres}", autocommit=True) as runs:
        for forbidden in (
            "DELETE FROM fedcore_records",
            "UPDATE fedcore_records SET payload = ''",
            "DROP TABLE fedcore_runs",
            "DELETE FROM fedcore_published",
            "DELETE FROM fedcore_accounts",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                runs.execute(forbidden)
