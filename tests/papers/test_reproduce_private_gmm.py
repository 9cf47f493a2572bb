"""`fedcore reproduce private-gmm`: cells, rules of success, the table and the figure."""

import json
from dataclasses import replace

import numpy as np
import pytest
from fedcore.papers import experiment
from fedcore.papers.private_gmm import runs as private_gmm_runs
from fedcore.papers.private_gmm import tables as private_gmm_table
from fedcore.papers.private_gmm.baselines import SETTINGS, Setting
from fedcore.papers.private_gmm.simulation import mixture
from fedcore.papers.private_gmm.tables import recursion_and_growth
from fedcore.papers.table import Options, Place, markdown, reproduce

from fedcore.errors import ConfigError
from fedcore.rounds.engine import InProcessBackend

EASY = Setting(4, 2, 12.0)
PNG = b"\x89PNG"


def here(tmp_path) -> Place:
    return Place(tmp_path / "experiment", InProcessBackend(), 2**24)


# --- cells ----------------------------------------------------------------------------------------------------------


def test_cells_are_named_once_and_are_json(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDCORE_DATA", raising=False)
    table = experiment_of()
    for options in (Options(), Options(quick=True)):
        cells = table.cells(options)
        assert len({cell.key for cell in cells}) == len(cells)
        for cell in cells:
            assert json.loads(json.dumps(cell.arguments)) == cell.arguments
    parts = {cell.arguments["part"] for cell in table.cells(Options())}
    wanted = {"search", "accept", "enough", "em", "rival", "slope", "variant", "nothing", "picture"}
    assert parts == wanted  # "real" is not there: without the data there is nothing to read
    assert set(private_gmm_table.SPEC) == set(SETTINGS)


def experiment_of():
    return experiment("private-gmm")


def test_another_population_is_refused(tmp_path):
    with pytest.raises(ConfigError):
        experiment_of().cells(Options(population="somewhere"))


def test_an_interrupted_table_goes_on_with_its_next_cell(tmp_path, monkeypatch):
    table, place, options = experiment_of(), here(tmp_path), Options(quick=True, seeds=1)
    chosen = {key: one for key, one in table.conditions(options).items() if key in ("picture", "nothing-ring-3")}
    table = replace(table, conditions=lambda options: chosen)
    first = reproduce(table, options, place)
    assert reproduce(replace(table, measure=lambda trial: {}), options, place) == first
    assert (place.folder / "figure.png").read_bytes().startswith(PNG)
    assert any("1 of 1 refused, met" in note for note in first.notes)
    assert first.rows[0]["ours"] == "1/1 refused"


# --- one run --------------------------------------------------------------------------------------------------------


def test_a_run_is_right_wrong_or_refused(monkeypatch):
    truth = EASY.truth(1)
    good = private_gmm_runs.run_once(truth, 4000, 1, 4.0, "t")
    assert good["outcome"] == "right" and good["mean_error"] < 0.5 and good["accuracy"] > 0.999
    assert good == private_gmm_runs.run_once(truth, 4000, 1, 4.0, "t")
    assert good != private_gmm_runs.run_once(truth, 4000, 1, 4.0, "another key")
    few = private_gmm_runs.run_once(truth, 50, 1, 0.5, "t")
    assert few == {
        "outcome": "refused",
        "mean_error": None,
        "accuracy": None,
        "weight_error": None,
        "trace_error": None,
    }
    elsewhere = replace(mixture(4, 2, 12.0, 1), means=truth.means + 100)  # the score's truth is not that of the rows
    scored = private_gmm_runs.simulation.scores
    monkeypatch.setattr(private_gmm_runs.simulation, "scores", lambda _, *a, **k: scored(elsewhere, *a, **k))
    assert private_gmm_runs.run_once(truth, 4000, 1, 4.0, "t")["outcome"] == "wrong"


def run(outcome, error=None):
    return {"outcome": outcome, "mean_error": error, "accuracy": 0.995, "weight_error": 0.01, "trace_error": 0.02}


def test_goals_ask_every_run():
    runs, reached = private_gmm_runs.summary, private_gmm_runs.reached
    near, far = runs([run("right", 0.2), run("right", 0.9)]), runs([run("right", 0.2), run("right", 1.1)])
    assert reached(near, "labels") and reached(near, "means") and reached(far, "labels") and not reached(far, "means")
    assert near["mean_error"] == pytest.approx(0.55) and near["worst_error"] == 0.9
    for other in ("wrong", "refused"):
        assert not reached(runs([run("right", 0.2), run(other, 0.2)]), "labels")
    assert runs([run("refused")])["mean_error"] is None


def test_the_search_stops_at_the_first_n_of_both_goals(monkeypatch):
    errors = {1000: None, 2000: 3.0, 5000: 0.5, 4000: 1.5}
    monkeypatch.setattr(
        private_gmm_runs, "run_once", lambda truth, n, *a: run("refused" if errors[n] is None else "right", errors[n])
    )
    found = private_gmm_runs.smallest(EASY, 1.0, (1, 2))
    assert (found["labels"], found["means"]) == (2000, 5000)
    assert [tried["n"] for tried in found["tried"]] == [1000, 2000, 5000]
    assert found["twice"]["worst_error"] == 1.5
    never = private_gmm_runs.smallest(EASY, 1.0, (1,), grid=(1000,))
    assert (never["labels"], never["means"], never["twice"]) == (None, None, None)


def test_what_has_no_structure_is_refused():
    assert private_gmm_runs.nothing_there("gaussian", 2, (1, 2), features=4, rows=5000) == {"runs": 2, "refused": 2}


def test_the_picture_is_of_the_truth():
    picture = private_gmm_runs.pictured(EASY, 5000, 4.0, 1)
    apart = np.diff(np.array(picture["leaves"])[:, :2], axis=0)
    assert np.linalg.norm(apart) == pytest.approx(12.0, abs=0.5)
    assert len(picture["balls"]) == 2 and picture["radii"][0] > picture["radii"][-1]
    for x, y, radius in picture["balls"]:
        assert min(np.hypot(x - a, y - b) for a, b, _ in picture["leaves"]) < radius
    assert recursion_and_growth(picture, {}).startswith(PNG)
    assert recursion_and_growth(picture, {"ours": ([25, 50], [1000, 2000])}).startswith(PNG)


# --- real rows ------------------------------------------------------------------------------------------------------


def test_real_rows_are_scaled_by_public_bounds_alone(tmp_path, monkeypatch):
    (tmp_path / "tabular").mkdir()
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(20, 2, (3000, 3)), rng.normal(235, 2, (3000, 3))])
    x[0] = -1e6  # cut to the bound
    np.savez(tmp_path / "tabular" / "satellite.npz", x=x, y=np.repeat([0, 1], 3000))
    monkeypatch.setenv("FEDCORE_DATA", str(tmp_path))
    rows, classes = private_gmm_runs.real_rows("satellite")
    assert (rows[0] == -1).all() and np.allclose(rows[1:] * 127.5 + 127.5, x[1:]) and len(classes) == 6000
    found = private_gmm_runs.real("satellite", 2, 4.0, (1,))
    assert found["found"] == [2] and found["ari"][0] > 0.99
    em = pytest.importorskip("sklearn") and private_gmm_runs.real_em("satellite", 2)
    assert em["ari"] > 0.99 and em["nll"] < found["nll"][0] + 1e-6
    assert private_gmm_runs.agreement(None, np.zeros(3)) is None


def test_real_data_are_needed(monkeypatch):
    monkeypatch.delenv("FEDCORE_DATA", raising=False)
    with pytest.raises(ConfigError):
        private_gmm_runs.real_rows("shuttle")


# --- the table ------------------------------------------------------------------------------------------------------


def result(n, worst=0.5):
    good = private_gmm_runs.summary([run("right", worst)] * 2)
    return {"labels": n, "means": n, "tried": [{"n": n, **good}], "twice": good}


def test_rows_hold_the_specification_ours_and_the_rival():
    rival = {
        "b": 80,
        "rows": [
            {"epsilon": 1.0, "goal": goal, "b": 80, "m": m, "n": n}
            for goal, m, n in (("labels", 3200, 256_000), ("means", None, None))
        ],
    }
    results = {
        "search-100-5-12-1": result(20_000),
        "rival-100-5-12": rival,
        "nothing-ring-2": {"runs": 3, "refused": 2},
    }
    table = experiment_of().table(experiment_of().found(Options(), results))
    assert len({tuple(row) for row in table.rows}) == 1
    row = table.rows[0]
    assert row["spec"] == "10 000 (1.3)" and row["ours"] == "20 000 (.50, .50)"
    assert row["S&A, spec"] == "256 000 (80 x 3 200)"
    assert row["S&A, labels"] == "256 000 (80 x 3 200)" and row["S&A / ours, labels"] == "13"
    assert row["S&A, means"] == "none" and row["S&A / ours, means"] == ""
    assert any("goal labels: 12.8 times; asked 5, met" in note for note in table.notes)
    assert any("means: not both found" in note for note in table.notes)
    assert any("2 of 3 refused, NOT MET" in note for note in table.notes)
    assert "| smallest n |" in markdown(table)


def test_slopes_are_of_logarithms():
    results = {
        f"slope-{who}-{d}": {"labels": round(100 * d**power), "means": None}
        for who, power in (("ours", 1.0), ("rival", 2.0))
        for d in (25, 50, 100)
    }
    results = experiment_of().found(Options(), results)
    line = private_gmm_table.growth(results, "rival", "labels")
    assert line[0] == [25, 50, 100] and private_gmm_table.slope(line) == pytest.approx(2.0)
    assert private_gmm_table.growth(results, "ours", "means") == ([], [])
    claims = [note for note in private_gmm_table.findings(results) if "log n" in note]
    assert len(claims) == 1 and "slope 1.00, asked at most 1.5, met" in claims[0] and claims[0].endswith("ours, met.")
