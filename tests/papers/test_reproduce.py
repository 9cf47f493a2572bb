"""Experiments: cells are kept, an interrupted experiment goes on, tables say what they are."""

import json

import numpy as np
import pytest
from fedcore.papers import EXPERIMENTS, experiment
from fedcore.papers.command import reproduce_here
from fedcore.papers.histograms import table1 as histograms_table1
from fedcore.papers.simulation import simulate
from fedcore.papers.table import (
    Condition,
    Experiment,
    Options,
    Place,
    ResultTable,
    Seeds,
    given,
    markdown,
    mean,
    mean_and_interval,
    mean_sd,
    reproduce,
    shown,
    verdict,
)

from fedcore.errors import ConfigError, PrivacyError, RunError
from fedcore.rounds.engine import InProcessBackend
from tests.conftest import small_counts, write_counts


class Squares:
    """Three cells; the third one fails while `broken`."""

    def __init__(self):
        self.computed, self.broken = [], False
        self.declared = Experiment(
            name="squares",
            title="Squares",
            conditions=lambda options: {
                f"square-{i}": Condition(f"{i} squared", {"i": i}, {"cell": i}, once=True) for i in range(3)
            },
            measure=self.measure,
            columns=lambda options: {"square": lambda found, row: found.one(row.of)["square"]},
            notes=lambda found: ["a note"],
            figure=lambda found: b"PNG",
        )

    def measure(self, trial):
        if self.broken and trial["i"] == 2:
            raise KeyboardInterrupt
        self.computed.append(trial["i"])
        return {"square": trial["i"] ** 2}


def here(tmp_path) -> Place:
    return Place(tmp_path / "experiment", InProcessBackend(), 2**20)


def test_an_interrupted_experiment_goes_on_with_the_missing_cell(tmp_path):
    squares = Squares()
    squares.broken = True
    with pytest.raises(KeyboardInterrupt):
        reproduce(squares.declared, Options(), here(tmp_path))
    squares.broken = False
    told = []
    table = reproduce(squares.declared, Options(), here(tmp_path), lambda *what: told.append(what))
    assert squares.computed == [0, 1, 2]
    assert [row["square"] for row in table.rows] == [0, 1, 4]
    assert told[0] == (0, 3, "0 squared") and told[-1][:2] == (3, 3)
    stored = json.loads((tmp_path / "experiment" / "table.json").read_text())
    assert stored["privacy"] == "none" and stored["rows"][2]["square"] == 4
    assert "privacy: none" in (tmp_path / "experiment" / "table.md").read_text()
    assert (tmp_path / "experiment" / "figure.png").read_bytes() == b"PNG"


def test_a_folder_with_other_options_or_files_is_refused(tmp_path):
    place = here(tmp_path)
    reproduce(Squares().declared, Options(), place)
    with pytest.raises(ConfigError, match="other options"):
        reproduce(Squares().declared, Options(quick=True), place)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="not empty"):
        reproduce(Squares().declared, Options(), Place(tmp_path / "mine", InProcessBackend(), 0))


@pytest.mark.parametrize("content", ["{", "[]", '{"arguments": {"i": 7}, "results": {}}', '{"arguments": {"i": 1}}'])
def test_a_damaged_cell_is_an_error_and_not_a_number(tmp_path, content):
    place = here(tmp_path)
    reproduce(Squares().declared, Options(), place)
    (place.folder / "cells" / "square-1.json").write_text(content)
    with pytest.raises(RunError, match="square-1"):
        reproduce(Squares().declared, Options(), place)


def few_and_more(options):
    return {
        "few": Condition("few", {"offset": 1}, {"line": "few"}, {"published": "12"}),
        "more": Condition("more", {"offset": 2}, {"line": "more"}),
    }


def above_20(found):
    return [f"above 20: {verdict(found.mean('more', 'x') > 20)}"]


def repeated(**changes):
    return Experiment(
        name="repeated",
        title="Repeated",
        columns=lambda options: {"mean": mean("x", ".1f"), "sd": mean_sd("x"), "published": given},
        figure=lambda found: b"PNG",
        measure=lambda trial: {"x": 10.0 * trial["offset"] + trial.seed},
        **{"seeds": Seeds(3, quick=1), "conditions": few_and_more, "checks": above_20, **changes},
    )


@pytest.mark.parametrize("together, cells", [(1, 6), (2, 4), (100, 2)])
def test_every_condition_is_measured_with_every_seed(tmp_path, together, cells):
    """However many seeds a cell holds."""
    table = repeated(seeds=Seeds(3, quick=1, together=together))
    assert len(table.cells(Options())) == cells and len(table.cells(Options(seeds=1))) == 2
    found = reproduce(table, Options(), here(tmp_path))
    assert [dict(row) for row in found.rows] == [
        {"line": "few", "mean": "12.0", "sd": "12.00 (1.00)", "published": "12"},
        {"line": "more", "mean": "22.0", "sd": "22.00 (1.00)", "published": ""},
    ]
    assert found.notes == ["above 20: met"]
    assert reproduce(table, Options(), here(tmp_path)) == found  # from what is stored


def test_a_text_of_no_column_is_an_error():
    few = Condition("few", {"offset": 1}, {"line": "few"}, {"publishd": "12"})
    table = repeated(conditions=lambda options: {"few": few}, checks=lambda found: ())
    with pytest.raises(ValueError, match="publishd"):
        table.table(table.found(Options(seeds=1), {"few-1": {"x": 1.0}}))


def test_a_table_of_some_conditions_holds_their_results_alone():
    found = repeated().found(Options(), {"few-1": {"x": 1.0}, "few-2": {"x": 2.0}, "few-3": {"x": 3.0}, "more-1": {}})
    assert "few" in found and "more" not in found and found.get("more") is None
    assert found.known_median("few", "x") == 2.0 and found.known_median("more", "x") is None


def test_intervals_are_those_of_students_t():
    mean, half = mean_and_interval([1.0, 2.0, 3.0])
    assert mean == 2.0 and half == pytest.approx(4.302653 / np.sqrt(3), rel=1e-6)
    assert mean_and_interval([5.0]) == (5.0, None)
    assert shown([0.9, 0.92]) == "0.910 ±.127" and shown([1.5]) == "1.500" and shown([]) == ""


def test_a_table_as_markdown():
    text = markdown(ResultTable("T", [{"a": 1, "b": "x"}], ["n"]))
    assert "| a | b |" in text and "| 1 | x |" in text and "- n" in text


def test_every_registered_experiment_can_be_made():
    for name in EXPERIMENTS:
        assert experiment(name).name == name and experiment(name).title
    with pytest.raises(ConfigError):
        experiment("table-99")


def test_a_simulation_is_the_same_run_again(tmp_path):
    population = write_counts(tmp_path / "p", small_counts(clients=40), nominal_clients=40)
    settings = {"clusters": 2, "rounds": 2, "overseed": 2}
    states = [
        simulate(here(tmp_path), f"cell-{i}", "histograms", settings, population, seed=3, budget=(50.0, 1e-6))[1]
        for i in (0, 0, 1)
    ]
    np.testing.assert_array_equal(states[0].centres, states[1].centres)
    assert not np.array_equal(states[0].centres, states[2].centres)  # another cell has its own noise


@pytest.mark.heavy
@pytest.mark.slow
def test_table_1_on_a_small_population(tmp_path, monkeypatch):
    monkeypatch.setattr(histograms_table1, "QUICK_CLIENTS", 1500)
    table = reproduce(experiment("histograms-table1"), Options(quick=True, seeds=1), here(tmp_path))
    rows = {row["estimate"]: row for row in table.rows}
    number = {label: float(row["non-private"]) for label, row in rows.items()}
    assert number["Oracle centres"] < number["Algorithm 2, start at the mean"] < number["FedAvg"] < number["Local"]
    assert number["Local mixture + FT"] < number["FedAvg + FT"]
    assert rows["FedAvg"]["paper"] == "1.054" and rows["Algorithm 2"]["paper, private"] == "1.053"
    assert float(rows["FedAvg"]["sound ε 15"]) < float(rows["Algorithm 2"]["faithful, theorem"])
    assert rows["IFCA"]["sound ε 15"] == "" and rows["Local mixture"]["sound ε 1"] != ""
    assert all(row[column] for row in table.rows for column in ("estimate", "non-private"))
    assert (tmp_path / "experiment" / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_population_that_is_not_public_is_refused(tmp_path):
    write_counts(tmp_path / "p", small_counts(), heldout=small_counts(seed=1))
    with pytest.raises(PrivacyError, match="public"):
        reproduce(experiment("histograms-table1"), Options(population=str(tmp_path / "p")), here(tmp_path))


def test_an_experiment_without_a_bar(tmp_path):
    compute = {"workers": None, "dask": None, "cache_bytes": 0}
    told = []
    table = reproduce_here(
        Squares().declared, Options(), tmp_path / "experiment", compute, lambda *one: told.append(one[:2])
    )
    assert len(table.rows) == 3 and told[-1] == (3, 3)
