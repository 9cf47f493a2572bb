"""Whole runs of the paper's methods: outputs, results, settings."""

import numpy as np
import pytest
from fedcore.papers.fedgrem.simulation import simulated_clients

from fedcore.errors import ConfigError
from fedcore.evaluation.evaluate import evaluate_run
from fedcore.evaluation.outliers import diagnose
from fedcore.methods.gradient_em import personal
from fedcore.methods.registry import make_method
from tests.gradient_em.test_run import FAST, begin, check_outputs, population_of, tables_of, tasks_of
from tests.gradient_em.test_uses import population_with_heldout
from tests.papers.fedgrem.run_in_memory import block_of, run
from tests.sessions import to_end

METHOD = "paper_gradient_em"


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    ["fedgrem", "local-fit", "local-em", "local-grem", "fedem", "fedem-w", "tgmm", "pooled-em", "pooled-grem"],
)
def test_every_algorithm_gives_outputs_of_every_client(tmp_path, algorithm):
    check_outputs(tmp_path, METHOD, {**FAST, "algorithm": algorithm}, apart=algorithm == "fedgrem")


def test_a_run_shows_its_algorithm_and_baselines_leave_no_client_apart(tmp_path):
    from fedcore.evaluation.run_summary import run_summary

    population = population_of(tmp_path / "p", simulated_clients(3, clients=12, outliers=2, h=1.0))
    fedem = to_end(begin(population, tmp_path, settings={**FAST, "algorithm": "fedem"}, method=METHOD))
    assert run_summary(fedem)["algorithm"] == "fedem"
    with pytest.raises(ConfigError, match="no penalty"):
        diagnose(fedem.path, population.path)


def test_results():
    block = block_of(tasks_of().rows)
    pooled = tables_of(run(block, algorithm="pooled-em", **FAST))
    assert list(pooled) == ["components", "centres"] and sum(pooled["components"]["share"]) == pytest.approx(1.0)
    assert "column 3" in pooled["centres"]["column"]
    assert tables_of(run(block, algorithm="local-em", **FAST)) == {"clients": {"clients": [13], "rows": [773]}}


def test_scores(tmp_path):
    population = population_with_heldout(tmp_path / "p")
    ran = to_end(begin(population, tmp_path, settings={**FAST, "algorithm": "tgmm"}, method=METHOD))
    assert evaluate_run(ran.path, population)["held_out_rows"] == 240
    with pytest.raises(ConfigError, match="from the training alone"):
        evaluate_run(ran.path, population_with_heldout(tmp_path / "q"))


@pytest.mark.slow
def test_scores_of_common_centres(tmp_path):
    population = population_with_heldout(tmp_path / "p")
    ran = to_end(begin(population, tmp_path, settings={**FAST, "algorithm": "fedem"}, method=METHOD))
    nll = {row["method"]: row["nll"] for row in evaluate_run(ran.path, population)["rows"]}
    assert set(nll) == {"this run", "common centres", personal.TRAINED}
    assert nll["this run"] == nll["common centres"] and abs(nll[personal.TRAINED] - nll["this run"]) < 0.15


def test_one_sweep_moves_centres_in_another_way():
    block = block_of(tasks_of().rows)
    found = [run(block, preset="paper", one_sweep=one, **FAST).state.centres for one in (False, True)]
    assert 1e-4 < np.abs(found[0] - found[1]).max() < 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"algorithm": "fedgmm"},
        {"algorithm": "tgmm", "model": "regression"},
        {"algorithm": "fedem", "covariance": "shared"},
        {"algorithm": "fedem", "covariance": "components"},
        {"algorithm": "fedem", "participation": 0.5},
        {"algorithm": "local-fit", "start": "given"},
        {"preset": "paper", "participation": 0.5},
        {"one_sweep": True},
        {"algorithm": "mixed-effects"},
    ],
)
def test_settings_that_do_not_go_together(wrong):
    with pytest.raises(ConfigError):
        make_method(METHOD, wrong)
