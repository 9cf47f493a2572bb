"""`fedcore status`: runs that are not at their end, who holds them, what was spent."""

import json

from fedcore.operations.overview import budgets_view, populations_of, runs_view
from tests.command import fedcore, private_population
from tests.conftest import small_counts
from tests.sessions import begin, to_end

SETTINGS = {"epsilon": 0.5, "clusters": 2, "rounds": 2, "anyway": True}


def test_what_runs_what_died_and_what_was_spent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    population, ledger = private_population(tmp_path / "population", small_counts(20, 5))
    ended = to_end(begin(population, tmp_path, settings=SETTINGS, run_id="ended"))
    going_on = begin(population, tmp_path, settings=SETTINGS, run_id="going-on")
    counts, (row,), unread = runs_view([str(tmp_path / "runs")])
    assert counts == {"finished": 1, "running": 1} and unread == []
    assert row["run"].endswith("going-on") and row["process"].endswith("lives") and row["next"] == ""
    assert populations_of([str(tmp_path / "runs")]) == [str(population.path)]
    going_on.run.unlock()  # as its process would by dying
    ledger_row = ledger.holder("going-on")
    assert ledger_row is not None and ledger.holder("ended") is None and ledger.holder("never") is None
    shown = fedcore("status", "--json")
    value = json.loads(shown.out)
    assert shown.code == 0 and value["states"] == {"finished": 1, "interrupted": 1} and value["prefect"] is None
    assert value["runs"][0]["next"] == "fedcore resume"
    (budget,) = value["budgets"]
    assert budget == next(budgets_view([str(population.path)]))
    assert budget["open_runs"] == 1 and 0 < budget["rho_spent"] < budget["rho_left"] and ended.id == "ended"
    printed = fedcore("status")
    assert "1 interrupted" in printed.out and "Prefect: no server" in printed.out


def test_a_file_names_its_runs_and_populations(tmp_path):
    text = '[[deployment]]\nname = "a"\nmethod = "histograms"\npopulation = "none"\nruns = "kept"\n'
    (tmp_path / "fedcore.toml").write_text(text)
    value = json.loads(fedcore("status", tmp_path, "--json").out)
    assert value["states"] == {} and value["budgets"][0]["population"] == str(tmp_path / "none")
    assert "There is no population" in value["budgets"][0]["error"]
