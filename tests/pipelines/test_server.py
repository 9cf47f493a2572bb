"""A pipeline on a real Prefect server: its schedule starts it, its steps are subflows, its page tells the story."""

import json
import os
import subprocess
import sys

import pytest

from fedcore.operations.pipelines.journal import read_journal
from fedcore.population.store import Population
from fedcore.runs.store import Run
from tests.flows.test_prefect import HERE, ask, end, first, prefect_server
from tests.pipelines.places import HEAD, INGEST, OPEN, Place, step

__all__ = ["prefect_server"]
SCHEDULE = 'description = "All that has come"\nschedule = [{ interval = 20 }, { cron = "0 3 1 1 *" }]\n'


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.prefect
def test_a_served_pipeline_tells_its_story(prefect_server, tmp_path):
    steps = INGEST + step("train", deployment="open") + step("export", deployment="open", to="model.npz")
    place = Place(tmp_path, OPEN + HEAD + SCHEDULE + steps)
    place.arrive("one.csv", *"abcdefgh")
    place.arrive("damaged.csv", content="client,other\na,1\n")
    command = [sys.executable, "-m", "fedcore.cli", "serve", str(tmp_path / "nightly.toml")]
    with open(tmp_path / "log", "w") as log:
        given = {"PREFECT_API_URL": prefect_server + "/api", "PYTHONPATH": str(HERE)}
        serving = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | given, cwd=tmp_path)
        try:
            seen = first(
                lambda: [run for run in runs_of(prefect_server, "pipeline") if run["state_type"] == "COMPLETED"], 240
            )
        finally:
            end(serving)
    assert seen, (tmp_path / "log").read_text()[-3000:]
    run = seen[0]
    assert run["auto_scheduled"] and run["state_name"] == "SetAside" and "damaged.csv" in run["state"]["message"]
    at = run["expected_start_time"][:19] + "Z"
    assert run["name"] == f"nightly-{at}"
    recorded = read_journal(tmp_path / "runs", "nightly").at(at)
    assert [record.status for record in recorded.steps] == ["done"] * 3
    assert Run.open(recorded.of("train-open").links["run"]).status == "finished"
    assert [one.at for one in Population.open(place.population).manifest.deliveries] == [at]
    names = {
        one["name"] for kind in ("ingest", "train", "export") for one in runs_of(prefect_server, f"pipeline-{kind}")
    }
    assert {f"nightly-ingest-{at}", f"nightly-train-open-{at}", f"nightly-export-open-{at}"} <= names
    artifacts = {item["key"]: item for item in ask(prefect_server, "/artifacts/latest/filter", {"limit": 200})}
    page = artifacts["pipeline-nightly"]["data"]
    assert "All that has come" in page and "damaged.csv" in page and "/artifacts/key/report-open-" in page
    limits = ask(prefect_server, "/v2/concurrency_limits/filter", {})
    assert [one["limit"] for one in limits if one["name"].startswith("fedcore-writes-population-")] == [1]
    asked = {"filter": {"event": {"name": ["fedcore.run.promoted"]}, "order": "ASC"}}
    promoted, *_ = ask(prefect_server, "/events/filter", asked)["events"]
    assert promoted["payload"]["deployment"] == "open"
    of = {one["prefect.resource.id"] for one in promoted["related"] if one["prefect.resource.role"] == "deployment"}
    assert of == {f"prefect.deployment.{run['deployment_id']}"}, "so that automations of the file find it"


def ended(server):
    return [run for run in runs_of(server, "pipeline") if run["state_type"] == "COMPLETED"]


def runs_of(server, flow):
    return ask(server, "/flow_runs/filter", {"flows": {"name": {"any_": [flow]}}, "sort": "EXPECTED_START_TIME_ASC"})


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.prefect
def test_a_step_that_is_refused_is_told_and_the_others_made(prefect_server, tmp_path):
    """By hand, from a process that knows the server."""
    place = Place(tmp_path, OPEN + HEAD + INGEST + step("forget", after_days=3))
    place.arrive("one.csv", *"abcdefgh")
    code = (
        "import sys; from fedcore.flows.pipeline import run_here; from tests.pipelines.places import Place, day;"
        "from pathlib import Path; from fedcore.operations.deployment import read_file;"
        "from fedcore.operations.pipelines.law import ready; content = read_file(sys.argv[1]);"
        "print(run_here(ready(content.pipeline[0], content.deployment), day(3))[0].model_dump_json())"
    )
    given = {"PREFECT_API_URL": prefect_server + "/api", "PYTHONPATH": str(HERE)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(place.folder / "nightly.toml")],
        env=os.environ | given,
        capture_output=True,
        text=True,
        timeout=300,
    )
    steps = json.loads(done.stdout.splitlines()[-1])["steps"]
    assert [one["status"] for one in steps] == ["done", "refused"] and "has no cohorts" in steps[1]["what"]
    (mine,) = [run for run in runs_of(prefect_server, "pipeline") if run["name"].endswith("2026-01-03T03:00:00Z")]
    assert (mine["state_name"], mine["state_type"]) == ("Failed", "FAILED") and "forget" in mine["state"]["message"]
    (forgot,) = runs_of(prefect_server, "pipeline-forget")
    assert forgot["state_name"] == "Refused"
