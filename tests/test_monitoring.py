"""Events on a real Prefect server: who is told what, by whom."""

import json
import os
import subprocess
import sys

import pytest
from fedcore.flows.server import server

from fedcore.privacy.ledger.ledger import default_ledger_url
from tests.command import fedcore, private_population, works
from tests.conftest import small_counts
from tests.test_prefect import ask, first, listening, process


@pytest.fixture(scope="module")
def own_server(tmp_path_factory):
    """A server on loopback; gone with the module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_HOME", str(tmp_path_factory.mktemp("prefect")))
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
        with process(
            tmp_path / "log", *f"{sys.executable} -m prefect worker start --pool fedcore".split(), **environment
        ):
            for kind in ("budget.charged", "run.refused"):
                ask(own_server, f"/deployments/{row['id']}/create_flow_run", {})
                seen = first(lambda kind=kind: events_of(own_server, f"fedcore.{kind}"), 90)
                assert seen, (tmp_path / "log").read_text()[-3000:]
            first(lambda: len([each for each in told if "event" in each]) == 3, 30)
    about = {each["event"].removeprefix("fedcore."): each for each in told if "event" in each}
    assert sorted(about) == ["budget.low", "run.promoted", "run.refused"], (tmp_path / "log").read_text()[-3000:]
    low = about["budget.low"]
    assert low["text"].startswith("The budget of population people is low. No other run at its price fits")
    assert (low["payload"]["runs_left"], low["payload"]["threshold"], low["payload"]["deployment"]) == (0, 1, "weekly")
    assert "asks for epsilon" in about["run.refused"]["text"]
    (charged,) = events_of(own_server, "fedcore.budget.charged")
    assert charged["payload"]["rho_charged"] == ledger.balance(population.id).rho_spent
    related = {item["prefect.resource.id"].split(".")[1] for item in charged["related"]}
    assert {"deployment", "flow-run", "run"} <= related


@pytest.mark.slow
@pytest.mark.prefect
def test_commands_tell_of_what_they_did(own_server, tmp_path, monkeypatch):
    """An append and a damaged block; without PREFECT_API_URL nobody is told."""
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
