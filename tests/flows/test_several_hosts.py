"""docs/several-hosts.md put together on loopback: hosts that share nothing but an object
store, PostgreSQL, a Dask scheduler and a Prefect server. A host is a home, a working folder and a folder for temporary
files of its own.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedcore.errors import FedcoreError
from fedcore.population.copying import copy_population
from fedcore.population.store import Population
from fedcore.privacy.accounting import exact_sum, rounded_up
from fedcore.privacy.ledger.ledger import open_ledger
from fedcore.runs.store import Run, load_run
from tests import sessions
from tests.command import private_population, works
from tests.conftest import small_counts
from tests.faults.month import Server
from tests.faults.place import same_result
from tests.faults.test_cluster import free_port
from tests.flows.test_secure_hosts import postgres  # noqa: F401  a fixture
from tests.tls import certificate, tls_environment

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0  # for anything that processes of other hosts do, seconds
SHARED = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")
SHARED += ("AWS_EC2_METADATA_DISABLED", "PATH", "OMP_NUM_THREADS")
SETTINGS = {"clusters": 2, "rounds": 3, "epsilon": 2.0}
FILE = """
[[deployment]]
name = "nightly"
method = "histograms"
population = "{store}/pop"
runs = "{store}/runs"
seed = 3

[deployment.config]
clusters = 2
rounds = 3
epsilon = 2.0

[deployment.compute]
dask = "{dask}"
cache_bytes = 0
"""


@dataclass
class Host:
    """A folder that stands for a machine, and the processes that were started there."""

    folder: Path
    stack: ExitStack
    more: dict[str, str]  # of its environment

    def __post_init__(self):
        (self.folder / "tmp").mkdir(parents=True)

    @property
    def environment(self) -> dict[str, str]:
        own = {"HOME": str(self.folder), "TMPDIR": str(self.folder / "tmp"), "PYTHONPATH": str(ROOT)}
        return {name: os.environ[name] for name in SHARED if name in os.environ} | own | self.more

    def runs(self, *command) -> subprocess.Popen:
        """`python -m COMMAND`, until the end of the test."""
        with open(self.folder / f"{command[1]}.log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *map(str, command)],
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.stack.callback(end, process, signal.SIGKILL)
        return process

    def does(self, *command) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *map(str, command)],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def log(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log")))

    def files(self) -> list[str]:
        """What it has of populations and runs."""
        kinds = {".zip", ".npz", ".parquet", ".sqlite"}
        found = [
            path
            for path in self.folder.rglob("*")
            if path.suffix in kinds
            or path.name in ("zarr.json", "head.json", "run.json", "manifest.json", "holder.json")
        ]
        return [str(path.relative_to(self.folder)) for path in found]


def end(process: subprocess.Popen, how: signal.Signals) -> None:
    """With all processes that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, how)
    if how == signal.SIGKILL:
        process.wait()


def ask(api: str, path: str, body: dict | None = None) -> dict:
    request = urllib.request.Request(
        f"{api}/{path}", None if body is None else json.dumps(body).encode(), {"content-type": "application/json"}
    )
    return json.load(urllib.request.urlopen(request, timeout=20))


def wait_for(what, hosts=()):
    """The first true value of what(), asked again and again."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        found = what()
        if found:
            return found
        time.sleep(0.25)
    raise AssertionError("\n".join(host.log() for host in hosts) or "waited in vain")


def committed(url: str) -> int:
    try:
        return Run.open(url).round
    except FedcoreError:
        return -1


@pytest.mark.heavy
@pytest.mark.prefect
def test_hosts_that_share_a_store_and_servers_train_together(postgres, s3, tmp_path, monkeypatch):  # noqa: F811
    """A scheduled private run whose population, ledger, runs, workers and orchestration are each somewhere else, one
    host of which is lost on the way: to the last bit the run of one process, and the budget is exact.
    """
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
    pytest.importorskip("asyncpg", reason="asyncpg is not installed")
    with psycopg.connect(f"postgresql://owner@{postgres}", autocommit=True) as owner:
        owner.execute("CREATE DATABASE prefect")
    ledger_url = f"postgresql+psycopg://owner@{postgres}"
    monkeypatch.setenv("FEDCORE_LEDGER", ledger_url)
    near, _ = private_population(tmp_path / "pop", small_counts(400), test=True, leaf=8, block=32)
    copy_population(near.path, f"{s3}/pop")
    with ExitStack() as stack:
        server = Server(tmp_path / "server")
        database = ledger_url.replace("+psycopg", "+asyncpg").replace("/ledger", "/prefect")
        server.environment["PREFECT_API_DATABASE_CONNECTION_URL"] = database
        server.start()
        stack.callback(server.kill)

        def host(name, **more) -> Host:
            return Host(tmp_path / name, stack, more)

        no_spilling = {f"DASK_DISTRIBUTED__WORKER__MEMORY__{name}": "False" for name in ("SPILL", "TARGET")}
        prefect = {"PREFECT_API_URL": server.api, "DO_NOT_TRACK": "1", "PREFECT_WORKER_QUERY_SECONDS": "1"}
        certificate(tmp_path)
        tls, port = tls_environment(tmp_path), free_port()
        address = f"tls://127.0.0.1:{port}"
        serving = ("scheduler", "--protocol", "tls", "--host", "127.0.0.1", "--port", port, "--no-dashboard")
        host("scheduler", **tls).runs("dask", *serving)
        workers = [host(name, **no_spilling, **tls) for name in ("worker1", "worker2")]
        _, doomed = [each.runs("dask", "worker", address, "--nthreads", 1, "--no-dashboard") for each in workers]
        operator, flows = host("operator", **prefect), host("flows", **prefect, **tls)
        (operator.folder / "nightly.toml").write_text(FILE.format(store=s3, dask=address))
        (deployed,) = json.loads(operator.does("fedcore.cli", "deploy", "nightly.toml", "--json"))["deployments"]
        flows.runs("prefect", "worker", "start", "--pool", "fedcore")
        begun = ask(
            server.api,
            f"deployments/{deployed['id']}/create_flow_run",
            {"parameters": {"run_id": "run", "test_noise": "a key"}},
        )
        every = [*workers, flows]

        url = f"{s3}/runs/run"
        wait_for(lambda: committed(url) >= 1, every)
        end(doomed, signal.SIGSTOP)  # it answers no more, and others wait for it
        time.sleep(0.5)
        end(doomed, signal.SIGKILL)
        assert Run.open(url).status == "running", "it was lost on the way"
        state = wait_for(
            lambda: (
                (now := ask(server.api, f"flow_runs/{begun['id']}")["state"])["type"]
                in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
                and now
            ),
            every,
        )
        assert state["name"] == "Completed", f"{state['message']}\n{flows.log()}"

    # The bits of one process with everything in folders, and a ledger of its own.
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'near.sqlite'}")
    (tmp_path / "alone").mkdir()
    alone, _ = private_population(tmp_path / "alone" / "pop", small_counts(400), test=True, leaf=8, block=32)
    named = {"seed": 3, "run_id": "run", "test_noise": "a key"}
    run = sessions.train(alone, tmp_path / "alone", "histograms", SETTINGS, **named)
    found = load_run(f"{s3}/runs/latest-nightly.json")
    assert found.info["deployment"] == "nightly" and same_result(found, load_run(run.path))

    # The ledger in PostgreSQL, which nobody but the population named.
    monkeypatch.delenv("FEDCORE_LEDGER")
    ledger, population = open_ledger(ledger_url), Population.open(f"{s3}/pop")
    balance, plan = ledger.verify(population.id), found.info["plan"]
    assert balance.releases == {"published": len(plan)}, "none was lost or drawn twice"
    assert balance.rho_spent == rounded_up(exact_sum(item["rho"] for item in plan)) and balance.rho_reserved == 0
    assert ledger.run_status("run") == "finished"
    for name, value in Run.open(found.path).releases().items():
        assert (value == ledger.published("run", name)).all()

    # Nothing of it is on a host's disk; and any host can use the model.
    assert {each.folder.name: each.files() for each in (*every, operator)} == {
        name: [] for name in ("worker1", "worker2", "flows", "operator")
    }
    told = works("predict", f"{s3}/runs/latest-nightly.json", f"{s3}/pop", tmp_path / "personal", "--json").json
    assert told["clients"] == 400
