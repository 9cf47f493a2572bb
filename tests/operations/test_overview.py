"""The overview: what needs attention, what ran and comes, what budgets still allow; in `fedcore status` and on the
operator's page from the same facts.
"""

import json
import shutil
from datetime import UTC, datetime, timedelta
from importlib import import_module

import pytest

from fedcore.operations.deployment import read_file
from fedcore.operations.operator_page import operator_page
from fedcore.operations.overview import folders_of, overview
from tests.command import fedcore, private_population, works
from tests.conftest import small_counts
from tests.operations.test_creating import BUDGET, MADE_BY_PIPELINE, made
from tests.pipelines.places import HEAD, INGEST, PRIVATE, Place, step
from tests.sessions import begin, to_end

SETTINGS = {"epsilon": 0.5, "clusters": 2, "rounds": 2, "anyway": True}
NOW = datetime(2026, 1, 3, 3, 10, tzinfo=UTC)


def flow_run(state: str, deployment: str = "nightly", message: str = "", minutes: int = -10) -> dict:
    planned = (NOW + timedelta(minutes=minutes)).isoformat()
    name = f"{deployment}-run"
    return {"deployment": deployment, "flow_run": name, "state": state, "planned": planned, "message": message}


def prefect(*flow_runs: dict, **starts: list[str]) -> dict:
    return {"address": "http://here/api", "flow_runs": list(flow_runs), "starts": starts}


def test_what_runs_what_died_and_what_was_spent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    population, ledger = private_population(tmp_path / "population", small_counts(20, 5))
    ended = to_end(begin(population, tmp_path, settings=SETTINGS, run_id="ended"))
    going_on = begin(population, tmp_path, settings=SETTINGS, run_id="going-on")
    facts = overview([str(tmp_path / "runs")])
    (row,) = facts["runs"]
    assert facts["states"] == {"finished": 1, "running": 1} and facts["unread"] == [] and facts["alerts"] == []
    assert row["run"].endswith("going-on") and row["process"].endswith("lives") and row["next"] == ""
    assert "going-on: running, 0 rounds made" in operator_page(facts, "all").replace("\\", "")
    going_on.run.unlock()  # as its process would by dying
    assert ledger.holder("going-on") is not None and ledger.holder("ended") is None and ledger.holder("never") is None
    value = works("status", "--json").json
    assert value["states"] == {"finished": 1, "interrupted": 1} and value["prefect"] is None
    assert value["runs"][0]["next"] == "Run `fedcore resume`."
    assert "was interrupted after round 0" in value["alerts"][0]["what"]
    (budget,) = value["budgets"]
    assert budget["population"] == str(population.path) and ended.id == "ended"
    assert budget["open_runs"] == 1 and 0 < budget["rho_spent"] < budget["rho_left"]
    printed = works("status").out
    assert printed.startswith("Needs attention:\n- Run ") and "Prefect: no server" in printed


def test_a_file_names_its_runs_and_populations(tmp_path):
    text = '[[deployment]]\nname = "a"\nmethod = "histograms"\npopulation = "none"\nruns = "kept"\n'
    (tmp_path / "fedcore.toml").write_text(text)
    value = json.loads(fedcore("status", tmp_path, "--json").out)
    assert value["states"] == {} and value["budgets"][0]["population"] == str(tmp_path / "none")
    assert "There is no population" in value["budgets"][0]["error"]
    assert value["alerts"] == [{"what": value["budgets"][0]["error"], "remedy": ""}]
    assert value["deployments"][0]["outcome"] == "not run yet"


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A pipeline that ingests and trains, with a budget for 6 runs."""
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    private = PRIVATE.replace("epsilon = 0.5", "epsilon = 1.4")
    budget = BUDGET.replace('cohorts = true\nshares = { a = "1/3" }\n', "")
    text = (
        MADE_BY_PIPELINE
        + budget
        + private
        + HEAD
        + INGEST
        + step("train", deployment="closed", when="always")
        + "[monitoring]\nruns_left = 2\n"
    )
    place = Place(tmp_path, text)
    place.arrive("a.csv", *(f"c{i}" for i in range(12)))
    made(tmp_path / "nightly.toml")
    return place


def looked(place: Place, *flow_runs: dict, **starts: list[str]) -> dict:
    content = read_file(place.folder / "nightly.toml")
    return overview(folders_of(content), content, prefect(*flow_runs, **starts), NOW)


def said(facts: dict) -> str:
    return "\n".join(f"{one['what']} {one['remedy']}" for one in facts["alerts"])


def of(facts: dict, name: str) -> dict:
    return next(row for row in facts["deployments"] if row["deployment"] == name)


def test_runs_and_days_left_before_the_first_run_and_after_it(shop):
    nightly = [f"2026-01-{number:02d}T03:00:00Z" for number in (4, 5, 6)]
    facts = looked(shop, nightly=nightly)
    assert of(facts, "closed") == {
        "deployment": "closed",
        "last run": None,
        "outcome": "not run yet",
        "now": "",
        "next start": "2026-01-04 03:00",
        "runs left": 6,
        "days left": 6.0,  # until the last of them: 5 days and 23:50 h
    }
    assert of(facts, "nightly")["runs left"] is None and facts["alerts"] == [] and facts["changes"] == []
    for number in (1, 2):
        shop.run(number)
    facts = looked(shop, nightly=nightly)
    assert (of(facts, "closed")["runs left"], of(facts, "closed")["outcome"]) == (4, "finished")
    assert of(facts, "closed")["days left"] == 4.0 and of(facts, "nightly")["last run"] == "2026-01-02 03:00"
    (change,) = facts["changes"]
    assert change["deployment"] == "closed" and "Compared with run closed-20260101T030000Z" in change["said"]
    page = operator_page(facts, "Overview", {"Report": "/r"}, NOW)
    assert page.index("## Nothing needs attention") < page.index("## Runs and budget") < page.index("## What changed")
    assert "no new clients come: 4 (4 days)" in page.replace("\\", "") and "[Report](/r)" in page


@pytest.mark.slow
def test_a_budget_that_is_low_and_one_that_is_exhausted(shop):
    for number in range(1, 5):
        shop.run(number)
    assert said(looked(shop)) == "The budget of closed is low: 2 more runs fit, if no new clients come. "
    for number in range(5, 9):
        shop.run(number)
    facts = looked(shop, flow_run("Failed", message="1 step of pipeline 'nightly' went wrong: train-closed"))
    text = said(facts)
    assert text.startswith("The budget of closed is exhausted") and of(facts, "closed")["runs left"] == 0
    assert "Pipeline nightly, for 2026-01-08T03:00:00Z: train-closed refused. " in text
    assert len(facts["alerts"]) == 2, "the flow run says the same as its step"
    page = operator_page(facts, "Overview", now=NOW)
    assert "new cohorts bring their own. `fedcore budget plan` shows what still fits." in page


def test_late_missed_and_refused_starts_files_that_were_set_aside_and_a_population_that_is_gone(shop):
    shop.arrive("b.csv", content="nothing\n1\n")
    shop.run(1)
    facts = looked(
        shop,
        flow_run("Late", message="Nothing has started it yet."),
        flow_run("Refused", message="no budget. Set one."),
        flow_run("Running", minutes=0),
        flow_run("Waiting"),
    )
    text = said(facts)
    assert "nightly: Late, planned for 2026-01-03 03:00 UTC. Nothing has started it yet." in text
    assert "nightly: Refused, planned for 2026-01-03 03:00 UTC. no budget. Set one." in text
    assert "Pipeline nightly has set aside the file b.csv" in text and len(facts["alerts"]) == 3
    assert of(facts, "nightly")["now"] == "Late, Running, Waiting"
    page = operator_page(facts, "Overview", now=NOW).replace("\\", "")
    assert "## 3 things need attention" in page and all(one["what"] in page for one in facts["alerts"])
    shutil.rmtree(shop.population)
    assert said(looked(shop)).startswith("There is no population")
    silent = overview([], None, {"address": "http://here/api", "error": "refused"}, NOW)
    assert "http://here/api does not answer" in said(silent)


def test_a_run_that_a_pipeline_resumes_is_left_to_it(shop):
    shop.run(1)
    session = begin(shop.population, shop.folder, run_id="died", deployment="closed", settings=SETTINGS)
    session.run.unlock()
    (alert,) = looked(shop)["alerts"]
    assert "died was interrupted after round 0" in alert["what"]
    assert alert["remedy"] == "Pipeline nightly resumes it before its next run."


@pytest.mark.slow
def test_what_ends_by_itself_or_is_mended_elsewhere_keeps_nothing_from_being_served_again(shop, monkeypatch):
    """After a restart of the machine, say: the other deployments run, and the page shows what is wrong."""
    served = []
    up = import_module("fedcore.cli.up")
    monkeypatch.setattr(up, "serve_file", lambda file, *given, **named: served.append(file.name))
    for number in range(1, 8):
        shop.run(number)
    shutil.rmtree(shop.arrivals)
    told = works("up", shop.folder / "nightly.toml").err
    assert served == ["nightly.toml"] and "BudgetExceeded" in told and "in which files arrive, is not there" in told
    assert fedcore("up", "--check", shop.folder / "nightly.toml").code == 2, "it is a check"
    file = shop.folder / "nightly.toml"
    file.write_text(file.read_text().replace("epsilon = 4.0", "epsilon = 5.0"))
    assert fedcore("up", file).code == 2 and len(served) == 1, "the file is wrong"
