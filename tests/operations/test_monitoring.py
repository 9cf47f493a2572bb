"""Events on a real Prefect server: who is told what, by whom."""

import json
import os
import re
import shutil
import subprocess
import sys
import time

import pytest
import yaml
from fedcore.flows.server import server

from fedcore.operations.deployment import read_file
from fedcore.privacy.ledger.ledger import default_ledger_url
from fedcore.training.request import Series
from tests import sessions
from tests.command import fedcore, private_population, works
from tests.conftest import small_counts, write_counts
from tests.flows.test_prefect import HERE, ask, first, listening, process


@pytest.fixture(scope="module")
def own_server(tmp_path_factory, prefect_database):
    """A server on loopback; gone with the module."""
    home = tmp_path_factory.mktemp("prefect")
    shutil.copy(prefect_database, home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_HOME", str(home))
        patch.delenv("PREFECT_API_URL", raising=False)
        with server() as base:
            yield base


def events_of(base, *names, **more):
    """What the server keeps of events with these names, oldest first."""
    found = ask(base, "/events/filter", {"filter": {"event": {"name": list(names)}, "order": "ASC", **more}})
    return found["events"]


FILE = """
[notify]
webhook = "WEBHOOK"
events = ["fedcore.budget.low", "fedcore.run.promoted", "fedcore.run.refused"]

[monitoring]
runs_left = 1

[[deployment]]
name = "weekly"
method = "histograms"
population = "people"
config = { clusters = 2, rounds = 1, anyway = true, epsilon = EPSILON }
"""


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.prefect
def test_a_webhook_is_told_that_the_budget_is_low(own_server, tmp_path):
    """Of a deployment whose budget pays one run: by that run; the next one is refused."""
    population, ledger = private_population(tmp_path / "people", small_counts(100), epsilon=1.0)
    budget = ledger.balance(population.id).budget
    with listening() as (webhook, told):
        text = FILE.replace("WEBHOOK", webhook).replace("EPSILON", str(budget.epsilon_of(budget.rho_max / 1.5)))
        (tmp_path / "file.toml").write_text(text)
        environment = {"PREFECT_API_URL": own_server + "/api", "FEDCORE_LEDGER": default_ledger_url()}
        command = [sys.executable, "-m", "fedcore.cli", "deploy", str(tmp_path / "file.toml"), "--json"]
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-3000:]
        (row,) = json.loads(done.stdout)["deployments"]
        worker = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "fedcore"]
        with process(tmp_path / "log", *worker, FEDCORE_LOG="json", **environment):
            for kind in ("budget.charged", "run.refused"):
                ask(own_server, f"/deployments/{row['id']}/create_flow_run", {})
                seen = first(lambda kind=kind: events_of(own_server, f"fedcore.{kind}"), 150)
                assert seen, (tmp_path / "log").read_text()[-3000:]
            first(lambda: len([each for each in told if "event" in each]) == 3, 30)
    about = {each["event"].removeprefix("fedcore."): each for each in told if "event" in each}
    assert sorted(about) == ["budget.low", "run.promoted", "run.refused"], (tmp_path / "log").read_text()[-3000:]
    low = about["budget.low"]
    assert low["text"].startswith("The budget of population people is low. No other run of this cost fits")
    assert (low["payload"]["runs_left"], low["payload"]["threshold"], low["payload"]["deployment"]) == (0, 1, "weekly")
    assert "asks for epsilon" in about["run.refused"]["text"]
    (charged,) = events_of(own_server, "fedcore.budget.charged")
    assert charged["payload"]["rho_charged"] == ledger.balance(population.id).rho_spent
    related = {item["prefect.resource.id"].split(".")[1] for item in charged["related"]}
    assert {"deployment", "flow-run", "run"} <= related
    logged = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if line.startswith("{")]
    assert {"begins", "promoted", "ended"} <= {line.get("event") for line in logged}
    assert any(line["logger"].startswith("prefect.flow_runs.worker") for line in logged)
    assert all(line["run"] and line["deployment"] == "weekly" for line in logged if "event" in line)


@pytest.mark.slow
@pytest.mark.prefect
def test_commands_tell_of_what_they_did(own_server, tmp_path, monkeypatch):
    """An append, which the automation of the documentation turns into a flow run, and a damaged block; without
    PREFECT_API_URL nobody is told.
    """
    flow = ask(own_server, "/flows/", {"name": "theirs"})["id"]
    deployment = ask(own_server, "/deployments/", {"name": "theirs", "flow_id": flow})["id"]
    text = re.search(r"```yaml\n(.*?)```", (HERE / "docs/notes/monitoring.md").read_text(), re.DOTALL)[1]
    text = text.replace("00000000-0000-0000-0000-000000000000", deployment).replace("blogs", "p")
    ask(own_server, "/automations/", yaml.safe_load(text))
    (tmp_path / "one.csv").write_text("client,a,b\nu,1,2\nv,1,2\n")
    (tmp_path / "two.csv").write_text("client,a,b\nw,1,2\n")
    works("population", "ingest", tmp_path / "one.csv", tmp_path / "p", "--client", "client")
    monkeypatch.setenv("PREFECT_API_URL", own_server + "/api")
    works("population", "ingest", tmp_path / "two.csv", tmp_path / "p", "--client", "client", "--append")
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
        works("population", "ingest", tmp_path / "two.csv", tmp_path / "p", "--client", "client", "--append")
    for block in (tmp_path / "p").rglob("*"):
        if block.is_file() and block.parent.name == "c":
            block.write_bytes(b"")
    assert fedcore("verify", tmp_path / "p").code == 2
    names = ("fedcore.population.appended", "fedcore.block.damaged")
    appended, *damaged = first(lambda: len(found := events_of(own_server, *names)) > 1 and found, 20)
    assert appended["payload"]["version"] == 2 and appended["payload"]["clients_more"] == 1
    assert damaged[0]["payload"]["reason"].startswith("Block 0")
    assert damaged[0]["resource"]["prefect.resource.id"] == appended["resource"]["prefect.resource.id"]
    assert len(first(lambda: ask(own_server, "/flow_runs/filter", {"flows": {"id": {"any_": [flow]}}}), 20)) == 1


OFTEN = """
[notify]
webhook = "WEBHOOK"
events = ["fedcore.schedule.missed", "fedcore.run.hanging"]

[monitoring]
late = 1
patience = 60

[[deployment]]
name = "often"
method = "paper_histograms"
population = "public"
config = { algorithm = "algorithm2", clusters = 2, rounds = 3 }
schedule = { interval = 2 }

[[pipeline]]
name = "likewise"
population = "public"
schedule = { interval = 2 }

[[pipeline.step]]
do = "train"
deployment = "often"
"""


@pytest.mark.slow
@pytest.mark.prefect
def test_missed_starts_and_runs_that_hang_are_told_once(own_server, tmp_path):
    """A schedule that nobody works, and a run that has committed nothing for an hour."""
    from fedcore.flows.watch import look

    population = write_counts(tmp_path / "public", small_counts(100))
    settings = {"algorithm": "algorithm2", "clusters": 2, "rounds": 3}
    named = {"run_id": "stuck", "deployment": "often", "series": Series()}
    session = sessions.begin(population, tmp_path, settings=settings, **named)
    session.training.step()
    address = own_server + "/api"
    with listening() as (webhook, told):
        file = tmp_path / "often.toml"
        file.write_text(OFTEN.replace("WEBHOOK", webhook))
        environment = os.environ | {"PREFECT_API_URL": address}
        for command, code in ((["deploy", str(file)], 0), (["watch", str(file), "--once", "--json"], 3)):
            begun = [sys.executable, "-m", "fedcore.cli", *command]
            done = subprocess.run(begun, env=environment, capture_output=True, text=True, timeout=120)
            time.sleep(4)
            assert done.returncode == code, done.stderr[-3000:]
        missed, likewise = json.loads(done.stdout)["events"]
        assert likewise["event"] == missed["event"] and likewise["deployment"] == "likewise"
        assert missed["event"] == "fedcore.schedule.missed" and missed["deployment"] == "often"
        assert missed["last"] is None and "nobody has taken its run" in missed["why"]
        first(lambda: len(events_of(own_server, "fedcore.schedule.missed")) == 2, 20)

        content = read_file(file)
        assert look(content, address) == []
        head = session.run.path / "head.json"
        os.utime(head, (time.time() - 3600, time.time() - 3600))
        (hanging,) = look(content, address)
        assert hanging.name == "fedcore.run.hanging" and hanging.payload["held"]
        assert (hanging.payload["run"], hanging.payload["round"]) == ("stuck", 1)
        assert 3500 < hanging.payload["seconds"] < 3700 and hanging.payload["usual_seconds"] < 60
        first(lambda: events_of(own_server, "fedcore.run.hanging"), 20)
        assert look(content, address) == []
        session.training.step()
        assert look(content, address) == []
        os.utime(head, (time.time() - 3600, time.time() - 3600))
        assert [event.payload["round"] for event in look(content, address)] == [2]
        session.close()
        first(lambda: len(told) == 4, 20)
    assert sorted(each["event"] for each in told) == ["fedcore.run.hanging"] * 2 + ["fedcore.schedule.missed"] * 2
    assert any(each["text"].startswith("Deployment often should have started at ") for each in told)
