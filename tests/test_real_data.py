"""Real multi-user text (FEDCORE_DATA): what privacy costs there."""

import os
from pathlib import Path

import pytest

from fedcore.evaluation.evaluate import evaluate_run
from fedcore.population.ingest.ingest import ingest
from fedcore.training.budget import ledger_name, ledger_of
from tests import sessions

FOLDER = os.environ.get("FEDCORE_DATA")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not FOLDER, reason="FEDCORE_DATA names no folder of data sets")]


def scores(tmp_path, population, run_id, **settings) -> dict[str, float]:
    run = sessions.train(population, tmp_path, settings=settings, run_id=run_id)
    rows = evaluate_run(run.path, population)["rows"]
    suffix = {"": "", "validation clients": " chosen", "each client": " own"}
    return {row["method"] + suffix[row["chosen_by"]]: row["kl"] for row in rows}


@pytest.mark.parametrize("name", ["text_blogs", pytest.param("text_blogs_by_post", marks=pytest.mark.heavy)])
def test_private_clusters_beat_the_mean_on_blogs(tmp_path, name):
    source = Path(FOLDER) / "text_blogs" / f"{name}.npz"
    population = ingest(
        source,
        tmp_path / name,
        prefix="train",
        heldout_prefix="test",
        nominal_clients=10_000,
        public_for_evaluation="a published research corpus",
        ledger=ledger_name(),
    )
    ledger = ledger_of(population)
    ledger.register(population.id)
    ledger.set_budget(population.id, 100, 1e-10)
    free = scores(tmp_path, population, "free", algorithm="algorithm2", start="perturbed_mean")
    private = scores(tmp_path, population, "private", epsilon=15.0)
    # Paired over some 7,700 clients the standard error of these differences is below 0.001.
    assert private["FedAvg"] - free["FedAvg"] < 0.003
    assert private["Algorithm 2"] < private["FedAvg"] - 0.02
    assert private["Algorithm 2 + FT chosen"] < private["FedAvg + FT chosen"] - 0.003
    assert private["Algorithm 2"] < free["Algorithm 2"] + 0.02
    # Each client's own mixture beats the mean, with at least half of what it gains without noise.
    assert free["Local mixture + FT chosen"] < free["FedAvg + FT chosen"] - 0.01
    gain = free["FedAvg + FT chosen"] - free["Local mixture + FT chosen"]
    assert private["Local mixture + FT chosen"] < private["FedAvg + FT chosen"] - gain / 2
