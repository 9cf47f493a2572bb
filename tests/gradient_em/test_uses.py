"""What is made of the method: scores on held-out rows, tables of the paper, outliers from the command line."""

import json

import numpy as np
import pytest
from fedcore.papers import experiment
from fedcore.papers.experiment import Options, Place, reproduce
from fedcore.papers.fedgrem.clusters import FedGrEMPenDigits
from fedcore.papers.fedgrem.simulation.similar_mixtures import simulated_clients
from fedcore.papers.fedgrem.simulations import FedGrEMGaussians

from fedcore.errors import ConfigError, PopulationError
from fedcore.evaluation.evaluate import evaluate_run
from fedcore.methods.gradient_em import scores
from fedcore.population.writer import PopulationWriter
from fedcore.rounds.engine import InProcessBackend
from tests.gradient_em.run_in_memory import block_of
from tests.gradient_em.test_run import FAST, begin, to_end


def population_with_heldout(path, scale=1.0):
    tasks = simulated_clients(0, clients=8, outliers=1, h=1.0)
    train, held = (block_of([scale * rows[part] for rows in tasks.rows]) for part in (slice(0, 120), slice(120, None)))
    with PopulationWriter(path, "rows", 10, dtype="float64", public_for_evaluation="synthetic") as writer:
        writer.write([f"c{k}" for k in range(8)], (train.ptr, train.x), heldout=(held.ptr, held.x))
        return writer.commit()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"preset": "paper"}, {"algorithm": "fedem"}], ids=str)
def test_scores_of_held_out_rows(tmp_path, settings):
    population = population_with_heldout(tmp_path / "p")
    ran = to_end(begin(population, tmp_path, {**FAST, **settings}))
    result = evaluate_run(ran.path, population, keep=True)
    nll = {row["method"]: row["nll"] for row in result["rows"]}
    assert set(nll) == {"this run", "common centres", scores.TRAINED} and result["held_out_rows"] == 240
    assert abs(nll[scores.TRAINED] - nll["this run"]) < 0.15
    # ten unit normals and the entropy of at most five labels; the outlier's rows lie farther out
    assert 14.2 < nll["this run"] < 20.0
    assert nll["this run"] < nll["common centres"] - 0.05 or settings.get("algorithm") == "fedem"
    assert (ran.path / "evaluation.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("standardise", ["none", "columns", "clients"])
def test_scores_are_in_the_units_of_the_data(tmp_path, standardise):
    nll = []
    for name, scale in (("one", 1.0), ("seven", 7.0)):
        population = population_with_heldout(tmp_path / name, scale)
        ran = to_end(begin(population, tmp_path, {**FAST, "standardise": standardise}, run_id=name))
        nll.append(evaluate_run(ran.path, population)["rows"][0]["nll"])
    assert nll[1] - nll[0] == pytest.approx(10 * np.log(7.0), abs=1e-3)


def test_runs_without_scores(tmp_path):
    population = population_with_heldout(tmp_path / "p")
    ran = to_end(begin(population, tmp_path, {**FAST, "algorithm": "tgmm"}))
    assert evaluate_run(ran.path, population)["held_out_rows"] == 240
    other = population_with_heldout(tmp_path / "q")
    with pytest.raises(ConfigError, match="from the training alone"):
        evaluate_run(ran.path, other)
    with pytest.raises(PopulationError, match="held-out"):
        scores.score_table({"sizes": np.zeros(4)})


@pytest.mark.slow
def test_outliers_from_the_command_line(tmp_path, capsys):
    from fedcore.cli.runs import runs_outliers

    population = population_with_heldout(tmp_path / "p")
    ran = to_end(begin(population, tmp_path, {**FAST, "rounds": 20}))
    runs_outliers(str(ran.path), str(population.path), as_json=True)
    found = json.loads(capsys.readouterr().out)["tasks"]
    assert [task["client"] for task in found if task["suspected"]] == ["c7"]
    page = (ran.path / "report.html").read_text()
    assert "above 1 it leaves a client apart" in page


def place(path) -> Place:
    return Place(path, InProcessBackend(), 1 << 20)


class Fewer(FedGrEMGaussians):
    """Two lines of the quick table, fewer beginnings."""

    def lines(self, options):
        return {
            label: {**settings, **FAST}
            for label, settings in super().lines(options).items()
            if label in ("FedGrEM (default)", "FedGrEM (paper)", "FedEM")
        }


def test_the_simulation_table(tmp_path):
    table = reproduce(Fewer(), Options(quick=True, seeds=1), place(tmp_path / "x"))
    rows = {(row["method"], row["h"]): row for row in table.rows}
    assert len(rows) == 9 and rows["FedGrEM (paper)", "0"]["paper, θ"] == "1.13"
    assert float(rows["FedEM", "2"]["θ rms"]) > 2 * float(rows["FedGrEM (default)", "2"]["θ rms"])
    assert any(note.startswith("h = 0: the default relative") for note in table.notes)
    assert (tmp_path / "x" / "figure.png").stat().st_size > 1000


def test_the_table_of_clients_rows(tmp_path, monkeypatch):
    """Pen digits' table on made rows: three clusters, twelve clients."""

    class Made(FedGrEMPenDigits):
        components, clients = 3, 12

        def data(self, options):
            generator = np.random.default_rng(0)
            y = generator.integers(0, 3, 900)
            return 6.0 * np.eye(3, 4)[y] + generator.normal(size=(900, 4)), y, np.repeat(np.arange(12), 75)

        def lines(self, options):
            return {
                label: {**settings, **FAST}
                for label, settings in super().lines(options).items()
                if label in ("FedGrEM (default)", "FedGrEM (paper)", "Local-EM")
            }

        levels = (0, 3, 6, 9)

    table = reproduce(Made(), Options(quick=True, seeds=1), place(tmp_path / "x"))
    rows = {row["method"]: row for row in table.rows}
    assert float(rows["FedGrEM (default)"]["0 %"]) < 5.0 and rows["Local-EM"]["paper, 0 %"] == "13.3"
    assert float(rows["the same, plain loop over tasks"]["rounds' seconds"]) > 0
    monkeypatch.delenv("FEDCORE_DATA", raising=False)
    for name in ("fedgrem-pendigits", "fedgrem-mnist", "fedgrem-fashion"):
        with pytest.raises(ConfigError, match="FEDCORE_DATA|is not there"):
            experiment(name).cells(Options(), place(tmp_path / "y"))
