"""What is made of the method: scores on held-out rows, tables of the paper, outliers from the command line."""

import json

import numpy as np
import pytest
from fedcore.papers.fedgrem.simulation import simulated_clients

from fedcore.errors import PopulationError
from fedcore.evaluation.evaluate import evaluate_run
from fedcore.methods.gradient_em import personal
from fedcore.population.writer import PopulationWriter
from tests.gradient_em.run_in_memory import block_of
from tests.gradient_em.test_run import FAST, begin
from tests.sessions import to_end


def population_with_heldout(path, scale=1.0):
    tasks = simulated_clients(0, clients=8, outliers=1, h=1.0)
    train, held = (block_of([scale * rows[part] for rows in tasks.rows]) for part in (slice(0, 120), slice(120, None)))
    with PopulationWriter(path, "rows", 10, dtype="float64", public_for_evaluation="synthetic") as writer:
        writer.write([f"c{k}" for k in range(8)], (train.ptr, train.x), heldout=(held.ptr, held.x))
        return writer.commit()


@pytest.mark.slow
@pytest.mark.parametrize(("method", "settings"), [("gradient_em", {}), ("paper_gradient_em", {"preset": "paper"})])
def test_scores_of_held_out_rows(tmp_path, method, settings):
    population = population_with_heldout(tmp_path / "p")
    ran = to_end(begin(population, tmp_path, settings={**FAST, **settings}, method=method))
    result = evaluate_run(ran.path, population, keep=True)
    nll = {row["method"]: row["nll"] for row in result["rows"]}
    assert set(nll) == {"this run", "common centres", personal.TRAINED} and result["held_out_rows"] == 240
    assert abs(nll[personal.TRAINED] - nll["this run"]) < 0.15
    # ten unit normals and the entropy of at most five labels; the outlier's rows lie farther out
    assert 14.2 < nll["this run"] < 20.0
    assert nll["this run"] < nll["common centres"] - 0.05
    assert (ran.path / "evaluation.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("standardise", ["none", "columns", "clients"])
def test_scores_are_in_the_units_of_the_data(tmp_path, standardise):
    nll = []
    for name, scale in (("one", 1.0), ("seven", 7.0)):
        population = population_with_heldout(tmp_path / name, scale)
        ran = to_end(begin(population, tmp_path, settings={**FAST, "standardise": standardise}, run_id=name))
        nll.append(evaluate_run(ran.path, population)["rows"][0]["nll"])
    assert nll[1] - nll[0] == pytest.approx(10 * np.log(7.0), abs=1e-3)


def test_nothing_held_out_has_no_scores():
    with pytest.raises(PopulationError, match="held-out"):
        personal.score_table({"sizes": np.zeros(4)})


@pytest.mark.slow
def test_outliers_from_the_command_line(tmp_path, capsys):
    from fedcore.cli.runs import runs_outliers

    population = population_with_heldout(tmp_path / "p")
    ran = to_end(begin(population, tmp_path, settings={**FAST, "rounds": 20}))
    runs_outliers(str(ran.path), str(population.path), as_json=True)
    found = json.loads(capsys.readouterr().out)["tasks"]
    assert [task["client"] for task in found if task["suspected"]] == ["c7"]
    page = (ran.path / "report.html").read_text()
    assert "above 1 a client is apart from the others" in page
