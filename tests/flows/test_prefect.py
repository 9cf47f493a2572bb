"""A real Prefect server: guards of the pins in pyproject.toml, schedules that fire, what an operator sees of runs."""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import mkdtemp
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from fedcore.flows import announce
from fedcore.flows.server import server

from fedcore.population.store import Population
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import list_runs, load_run
from fedcore.training.budget import begin_cohorts
from fedcore.training.request import Series, TrainRequest
from fedcore.training.session import concluding, start_run
from tests import sessions
from tests.command import private_population
from tests.conftest import small_counts, write_counts
from tests.federated_em.test_run import rows_population


@pytest.fixture(scope="module")
def prefect_server(tmp_path_factory, prefect_database):
    """A server of its own, on loopback; gone with the module."""
    home = tmp_path_factory.mktemp("prefect")
    shutil.copy(prefect_database, home)
    before = {name: os.environ.get(name) for name in ("PREFECT_HOME", "PREFECT_API_URL")}
    os.environ["PREFECT_HOME"] = str(home)
    os.environ.pop("PREFECT_API_URL", None)

    try:
        with server() as base:
            yield base
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@pytest.mark.slow
@pytest.mark.prefect
def test_the_server_that_is_started_here_wants_its_password(prefect_server, monkeypatch):
    assert ask(prefect_server, "/flow_runs/filter", {}) == []
    for password in ("", "fedcore:guessed"):
        monkeypatch.setenv("PREFECT_API_AUTH_STRING", password)
        for path in ("/flow_runs/filter", "/flows/", f"/deployments/{UUID(int=1)}/create_flow_run"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                ask(prefect_server, path, {"name": "of somebody else"})


SERVING = """
import os, stat, sys
from pathlib import Path
from fedcore.flows.server import server

os.umask(0o022)
home = Path(os.environ["PREFECT_HOME"])
(home / "prefect.db").touch(0o644)
with server(ui=False):
    print({file.name: oct(stat.S_IMODE(file.stat().st_mode)) for file in home.glob("prefect.db*")})
"""


def decoys(folder):
    """Folders that are called as packages are, and hold nothing of them."""
    for name in ("fedcore", "prefect", "uvicorn"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("")
    (folder / "flows").mkdir()


@pytest.mark.slow
@pytest.mark.prefect
def test_a_server_imports_nothing_of_the_working_folder_and_its_database_is_private(tmp_path):
    (tmp_path / "serving.py").write_text(SERVING)
    (tmp_path / "work").mkdir()
    decoys(tmp_path / "work")
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    environment = {name: value for name, value in os.environ.items() if name not in ("PREFECT_API_URL", "PYTHONPATH")}
    out = subprocess.run(
        [sys.executable, str(tmp_path / "serving.py")],
        cwd=tmp_path / "work",
        env=environment | {"PREFECT_HOME": str(home)},
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0, out.stderr[-2000:]
    modes = ast.literal_eval(out.stdout.strip().splitlines()[-1])
    assert modes["prefect.db"] == "0o600" and set(modes.values()) == {"0o600"}


FILE = """
[[deployment]]
name = "often"
method = "paper_histograms"
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


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.prefect
def test_a_served_schedule_makes_a_run_that_finishes(prefect_server, tmp_path):
    """Guards the SQLAlchemy pin too: without it the scheduler makes no run."""
    write_counts(tmp_path / "population", small_counts(200))
    (tmp_path / "deployments.toml").write_text(FILE)
    short = Path(mkdtemp(dir="/tmp"))  # a socket has a path of a hundred characters at most
    command = [
        str(Path(sys.executable).with_name("fedcore")),  # with -m the working folder would be in its path
        "serve",
        str(tmp_path / "deployments.toml"),
        "--keep-blocks",
        "1GiB",
    ]
    with open(tmp_path / "log", "w") as log:
        environment = os.environ | {"PREFECT_API_URL": prefect_server + "/api", "TMPDIR": str(short)}
        (tmp_path / "cwd").mkdir()
        decoys(tmp_path / "cwd")
        serving = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=tmp_path / "cwd")
        try:
            seen = first(
                lambda: [
                    run for run in ask(prefect_server, "/flow_runs/filter", {}) if run["state_type"] == "COMPLETED"
                ],
                150,
            )
            places = [os.readlink(file) for file in Path(f"/proc/{serving.pid}/fd").iterdir()]
        finally:
            end(serving)
    assert seen, (tmp_path / "log").read_text()[-3000:]
    kept = [place for place in places if place.startswith(str(short)) and place.endswith("(deleted)")]
    assert len(kept) == len(Population.open(tmp_path / "population").blocks), "its workers share them"
    assert not list(short.glob("fedcore-blocks-*"))
    shutil.rmtree(short)
    assert seen[0]["auto_scheduled"] and "test" in seen[0]["tags"]
    finished = [run for run in list_runs(tmp_path / "runs") if run.status == "finished"]
    assert finished and (finished[0].path / "report.html").exists()
    keys = {item["key"].split("-")[0] for item in ask(prefect_server, "/artifacts/filter", {})}
    assert {"progress", "metrics", "report"} <= keys


def end(process):
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


def first(look, seconds):
    """What `look` finds, as soon as it finds something."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(1)
    return look()


def ask(base, path, body):
    return announce.ask(f"{base}/api", path, body, patience=60)


DEPLOYED = """
[notify]
webhook = "WEBHOOK"

[[deployment]]
name = "broken"
method = "paper_histograms"
population = "missing \\"one\\""
config = { algorithm = "algorithm2" }

[[deployment]]
name = "recurring"
method = "paper_histograms"
population = "population"
schedule = { interval = 5 }
evaluate_on = "public"
promote = "if_better"
retention = 1
config = { algorithm = "algorithm2", clusters = 2, rounds = 2 }
compute = { workers = 1 }

[[deployment]]
name = "nightly"
method = "histograms"
population = "population"
schedule = { cron = "30 3 * * *", timezone = "Europe/Berlin" }

[[deployment]]
name = "weekly"
method = "histograms"
population = "population"
schedule = { rrule = "FREQ=WEEKLY;BYDAY=MO;BYHOUR=4;BYMINUTE=15;BYSECOND=0" }
"""
HERE = Path(__file__).parents[2]
# One of them is broken, which would be told.
DEPLOY = [sys.executable, "-m", "fedcore.cli", "deploy", "--json", "--pool", "tests", "--unchecked"]


@contextmanager
def listening():
    """(URL, what was sent to it so far)."""
    told = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            told.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{receiver.server_port}/", told
        receiver.shutdown()


@contextmanager
def process(log, *command, **environment):
    with open(log, "w") as file:
        running = subprocess.Popen(
            command, stdout=file, stderr=file, cwd=log.parent, env=os.environ | {"PYTHONPATH": str(HERE), **environment}
        )
        try:
            yield running
        finally:
            end(running)


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.prefect
def test_deployments_of_every_kind_of_schedule_are_run_by_a_worker(prefect_server, tmp_path):
    """interval: seen to fire, twice, so that the second run is compared with the first and the first is pruned. cron
    and rrule: the times that the scheduler has made runs for. By hand: one that is refused, which a webhook is told.
    """
    with listening() as (webhook, told):
        deployments_on_a_worker(prefect_server, tmp_path, webhook, told)


def deployments_on_a_worker(prefect_server, tmp_path, webhook, told):
    write_counts(tmp_path / "population", small_counts(100))
    write_counts(
        tmp_path / "public", small_counts(40), heldout=small_counts(40, seed=2), public_for_evaluation="made up"
    )
    (tmp_path / "deployed.toml").write_text(DEPLOYED.replace("WEBHOOK", webhook))
    server = {"PREFECT_API_URL": prefect_server + "/api"}
    done = subprocess.run(
        [*DEPLOY, str(tmp_path / "deployed.toml")], env=os.environ | server, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ids = {row["deployment"].split("/")[1]: row["id"] for row in json.loads(done.stdout)["deployments"]}

    def runs_of(name, state):
        return ask(
            prefect_server,
            "/flow_runs/filter",
            {
                "deployments": {"id": {"any_": [ids[name]]}},
                "flow_runs": {"state": {"type": {"any_": [state]}}},
                "sort": "EXPECTED_START_TIME_ASC",
            },
        )

    ask(prefect_server, f"/deployments/{ids['broken']}/create_flow_run", {})
    prefect = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "tests"]
    with process(tmp_path / "log", *prefect, **server):
        first(lambda: told and len(runs_of("recurring", "COMPLETED")) > 1, 150)
    completed, log = runs_of("recurring", "COMPLETED"), (tmp_path / "log").read_text()
    assert len(completed) > 1, log[-3000:]
    assert completed[0]["auto_scheduled"] and completed[0]["name"].startswith("histograms-population-")
    assert {"histograms", "population", "not-private"} <= set(completed[0]["tags"])

    assert len(told) == 1 and told[0]["text"].startswith("broken: flow run histograms-missing ")
    assert "is Refused. There is no population at" in told[0]["text"] and 'missing "one"' in told[0]["text"]

    finished = sorted(
        (run for run in list_runs(tmp_path / "runs") if run.status == "finished"), key=lambda run: run.info["started"]
    )
    assert finished[0].pruned
    assert load_run(tmp_path / "runs" / "latest-recurring.json").info["deployment"] == "recurring"
    assert "is now the latest run of deployment recurring, because it is the first one" in log
    assert f"removed the models of 1 older runs of deployment recurring: {finished[0].id}" in log
    artifacts = {item["key"]: item for item in ask(prefect_server, "/artifacts/latest/filter", {"limit": 200})}
    assert finished[1].id in json.dumps(artifacts["comparison-recurring"]["data"])
    page = artifacts[f"population-population-{finished[0].info['population']['id'][:8]}"]["data"]
    assert finished[0].id in page and "| recurring |" in page
    assert "rounds" in artifacts["progress-recurring"]["description"]

    now = datetime.now(UTC)
    for name, zone, clock in (("nightly", "Europe/Berlin", (3, 30)), ("weekly", "UTC", (4, 15))):
        starts = first(lambda name=name: runs_of(name, "SCHEDULED"), 60)
        times = [datetime.fromisoformat(run["expected_start_time"]) for run in starts]
        assert len(times) >= 2 and times[0] > now
        local = [time.astimezone(ZoneInfo(zone)) for time in times]
        assert {(time.hour, time.minute) for time in local} == {clock}
        step = timedelta(days=1 if name == "nightly" else 7)
        assert all(b.date() - a.date() == step for a, b in zip(local, local[1:], strict=False))
        assert name == "nightly" or local[0].weekday() == 0


REFUSED = """
import json, sys
from pathlib import Path
from fedcore.errors import FedcoreError
from fedcore.methods.histograms.config import HistogramsConfig
from fedcore.flows.train import FLOWS

settings = HistogramsConfig(clusters=2, rounds=2, epsilon=0.9, spare_releases=0)
for population in sys.argv[2:]:
    try:
        FLOWS["histograms"](population=population, runs=sys.argv[1], config=settings)
    except FedcoreError as error:
        print(type(error).__name__)

from fedcore.flows.evaluate import evaluate_run_flow
from fedcore.flows.ingest import ingest_flow
from fedcore.papers.flow import reproduce_flow
from fedcore.flows.train import resume_run

here = Path(sys.argv[1]).parent
print(ingest_flow(source=str(here / "one.csv"), dest=str(here / "ingested"), options={"client": "client"}))
for name in ("interrupted", "trained"):
    print(resume_run(run=str(here / "runs" / name)))
for attempt in (lambda: evaluate_run_flow(run=sys.argv[1], population=sys.argv[2]),
                lambda: ingest_flow(source=str(here / "none.csv"), dest=str(here / "not-made")),
                lambda: reproduce_flow(name="nothing", folder=str(here / "not-made")),
                lambda: resume_run(run=str(here / "no-run"))):
    try:
        attempt()
    except FedcoreError as error:
        print(type(error).__name__)
"""


def trained_and_not_concluded(request: TrainRequest) -> None:
    """A run whose process was interrupted after its last round."""

    def dies(_) -> None:
        raise KeyboardInterrupt

    session = start_run(request, InProcessBackend(), stamp="then")
    with pytest.raises(KeyboardInterrupt), concluding(session, dies):
        while session.training.step() is not None:
            pass


@pytest.mark.slow
@pytest.mark.prefect
def test_a_refused_run_says_why_in_its_state(prefect_server, tmp_path):
    spent, _ = private_population(tmp_path / "spent", small_counts(100), epsilon=1.0)
    bare, _ = private_population(tmp_path / "bare", small_counts(100), epsilon=None)
    (tmp_path / "one.csv").write_text("client,a,b\nu,1,2\n")
    open_one = write_counts(tmp_path / "open", small_counts(100))
    settings = {"algorithm": "algorithm2", "clusters": 2, "rounds": 2}
    named = {"run_id": "interrupted", "deployment": "weekly", "series": Series()}
    request = sessions.request_for(open_one, tmp_path, settings=settings, **named)
    start_run(request, InProcessBackend(), stamp="then").close()
    trained_and_not_concluded(request.model_copy(update={"run_id": "trained", "deployment": "yearly"}))
    command = [
        sys.executable,
        "-c",
        REFUSED,
        str(tmp_path / "runs"),
        *[str(population.path) for population in (spent, spent, bare)],
        str(tmp_path / "missing"),
    ]
    environment = os.environ | {"PREFECT_API_URL": prefect_server + "/api", "PYTHONPATH": str(HERE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    made = [str(tmp_path / name) for name in ("ingested", "runs/interrupted", "runs/trained")]
    first, later = "BudgetExceeded BudgetMissing PopulationNotFound", "PrivacyError IngestError ConfigError RunNotFound"
    assert done.stdout.split() == [*first.split(), *made, *later.split()], done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    runs = ask(
        prefect_server,
        "/flow_runs/filter",
        {"flow_runs": {"tags": {"any_": ["spent", "bare", "missing"]}}, "sort": "EXPECTED_START_TIME_ASC"},
    )
    first, again, none, missing = runs
    assert first["state_type"] == "COMPLETED" and "private" in first["tags"]
    assert first["name"].startswith("histograms-spent-")
    for run, words, remedy in (
        (again, "and this run asks for epsilon = 0.9", "or raise the budget"),
        (none, "has no privacy budget", "fedcore budget set"),
        (missing, "no population at", "fedcore population ingest"),
    ):
        assert (run["state_type"], run["state_name"], run["run_count"]) == ("FAILED", "Refused", 1)
        assert words in run["state"]["message"] and remedy in run["state"]["message"]
    assert [run.status for run in list_runs(tmp_path / "runs")] == ["finished"] * 3
    for kind, words in (
        ("evaluate", "--public-for-evaluation"),
        ("ingest", "none.csv"),
        ("reproduce", "nothing"),
        ("resume-run", "no run at"),
    ):
        (ended,) = ask(
            prefect_server,
            "/flow_runs/filter",
            {"flows": {"name": {"any_": [kind]}}, "flow_runs": {"state": {"name": {"any_": ["Refused"]}}}},
        )
        assert words in ended["state"]["message"] and ended["run_count"] == 1
    assert load_run(tmp_path / "runs" / "latest-weekly.json").info["run_id"] == "interrupted"
    assert load_run(tmp_path / "runs" / "latest-yearly.json").info["run_id"] == "trained"
    assert all((tmp_path / "runs" / name / "report.html").exists() for name in ("interrupted", "trained"))
    assert "is now the latest run of deployment weekly" in done.stderr
    assert "is trained after" in done.stderr and "and is concluded" in done.stderr
    artifacts = {item["key"]: item for item in ask(prefect_server, "/artifacts/latest/filter", {"limit": 200})}
    ingested = Population.open(tmp_path / "ingested")
    assert "| clients | 1 |" in artifacts[f"population-ingested-{ingested.id[:8]}"]["data"]
    assert "| spent | 0." in artifacts[f"population-spent-{spent.id[:8]}"]["data"]
    assert "No budget is set" in artifacts[f"population-bare-{bare.id[:8]}"]["data"]


INGESTED = """
import sys
from fedcore.errors import FedcoreError
from fedcore.flows.ingest import ingest_flow

folder = sys.argv[1]
table = {"schema_file": folder + "/t.toml"}  # as a form in the UI gives it
ingest_flow(source=folder + "/t.csv", dest=folder + "/flown", table=table)
try:
    ingest_flow(source=folder + "/t.csv", dest=folder + "/no", table=table, reading={"client": "person"})
except FedcoreError as error:
    print(type(error).__name__)
"""

SCHEMA = """
[table]
client = "person"
nominal_clients = 10
delimiter = ";"
decimal = ","
[columns.age]
unit = "years"
bounds = [0, 40]
[columns.city]
values = ["Bern", "<other>"]
"""


@pytest.mark.slow
@pytest.mark.prefect
def test_the_flow_reads_a_schema(prefect_server, tmp_path):
    (tmp_path / "t.csv").write_text("person;age;city\na;30,5;Bern\nb;41;Wil\n")
    (tmp_path / "t.toml").write_text(SCHEMA)
    environment = os.environ | {"PREFECT_API_URL": prefect_server + "/api", "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-c", INGESTED, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.stdout.split() == ["ConfigError"], done.stderr[-3000:]
    made = Population.open(tmp_path / "flown")
    assert [column.name for column in made.manifest.columns] == ["age", "city=Bern", "city=<other>"]
    artifacts = {item["key"]: item["data"] for item in ask(prefect_server, "/artifacts/latest/filter", {"limit": 200})}
    shown = artifacts[f"population-flown-{made.id[:8]}"]
    assert "| nominal clients | 10 |" in shown and "age \\(years\\) from 0 to 40" in shown and "None" not in shown
    assert not (tmp_path / "no").exists()


WAITS = """
import sys
from fedcore.methods.histograms.config import HistogramsConfig
from fedcore.flows.train import FLOWS

settings = HistogramsConfig(clusters=2, rounds=2, horizon=1)
for _ in range(2):
    ended = FLOWS["histograms"](population=sys.argv[1], runs=sys.argv[2], config=settings)
    print(type(ended).__name__)
"""


@pytest.mark.slow
@pytest.mark.prefect
def test_a_run_that_waits_for_newcomers_is_no_failure(prefect_server, tmp_path):
    population, ledger = private_population(tmp_path / "waits", small_counts(100))
    begin_cohorts(population, ledger)
    command = [sys.executable, "-c", WAITS, str(population.path), str(tmp_path / "runs")]
    environment = os.environ | {"PREFECT_API_URL": prefect_server + "/api", "PYTHONPATH": str(HERE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.stdout.split() == ["str", "Waiting"], done.stderr[-3000:]
    asked = {"flow_runs": {"tags": {"any_": ["waits"]}}, "sort": "EXPECTED_START_TIME_ASC"}
    first, waits = ask(prefect_server, "/flow_runs/filter", asked)
    assert [(run["state_type"], run["state_name"]) for run in (first, waits)] == [
        ("COMPLETED", "Completed"),
        ("COMPLETED", "Waiting"),
    ]
    assert "Nothing was charged. The next cohort opens with the next append" in waits["state"]["message"]
    assert "Traceback" not in done.stderr and len(list_runs(tmp_path / "runs")) == 1
    artifacts = {item["key"]: item for item in ask(prefect_server, "/artifacts/latest/filter", {"limit": 200})}
    assert "is exhausted" in artifacts[f"population-waits-{population.id[:8]}"]["data"]


@pytest.mark.slow
@pytest.mark.prefect
@pytest.mark.parametrize("method", [pytest.param("paper-histograms", marks=pytest.mark.heavy), "federated-em"])
def test_a_flow_and_a_local_run_end_in_the_same_bits(prefect_server, tmp_path, method):
    if method == "paper-histograms":
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
