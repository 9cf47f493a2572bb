"""Runs that release weights: what is read from the store, who may ask for it, and what the run leaves."""

import numpy as np
import pytest
import scipy.sparse as sp

from fedcore.methods.histograms import weights
from fedcore.methods.histograms.personal import base_weight
from fedcore.population.store import Population
from fedcore.rounds.caches import BLOCKS
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run
from fedcore.training.personalise import personalise, trained
from fedcore.training.request import TrainRequest
from fedcore.training.session import concluding, start_run
from tests.command import private_population, works
from tests.histograms.test_weights import bursty

SETTINGS = {"nominal_clients": 10**5, "clusters": 2, "rounds": 2, "overseed": 2}


@pytest.fixture
def halves(tmp_path, monkeypatch):
    """(population of two halves by document, ledger); every second block has no held-out part."""
    monkeypatch.chdir(tmp_path)
    return made(tmp_path / "p", halves="document")


def made(path, **options):
    block = bursty(24)
    other = sp.csr_matrix(block.heldout.csr.multiply((np.arange(24) // 8 % 2 == 0)[:, None]), dtype=np.int64)
    matrix = sp.csr_matrix(block.csr, dtype=np.int64)
    return private_population(path, matrix, heldout=other, epsilon=20.0, **options)


def train(population, folder, name="r", rounds=None, **settings) -> Run:
    request = TrainRequest(
        method="histograms",
        population=str(population.path),
        runs=str(folder / "runs"),
        run_id=name,
        settings={"epsilon": 5.0, **SETTINGS, **settings},
    )
    BLOCKS.clear()
    with concluding(session := start_run(request, InProcessBackend(), stamp="then")):
        while session.training.step() is not None:
            pass
    return session.run


def test_the_last_round_alone_reads_both_halves(halves, tmp_path, monkeypatch):
    population, ledger = halves
    read, asked = Population.read, []
    monkeypatch.setattr(
        Population, "read", lambda self, index, heldout=False: asked.append(heldout) or read(self, index, heldout)
    )
    run = train(population, tmp_path)
    assert asked == [False] * 3 + [True] * 3, "the others are kept in memory"
    _, state = trained(run)
    assert state.phase == "done" and state.weights_multiplier > 0
    assert [entry["name"] for entry in run.info["plan"]][-1] == "weights"
    assert (state.prior_tokens, state.floor) in weights_of_candidates()
    statement = (run.path / "statement.json").read_text()
    assert "each with both halves of its data" in statement and '"weights"' in statement
    outputs = personalise(run.path, population.path, tmp_path / "out")
    assert "weight" in outputs["outputs"]


def weights_of_candidates():
    from fedcore.methods.histograms.choice import CANDIDATES

    return CANDIDATES


def test_what_is_released_is_the_sum_over_both_halves(halves, tmp_path, monkeypatch):
    """The engine's block and leaves against one block in memory."""
    population, _ = halves
    seen = []
    answer = weights.client_update
    monkeypatch.setattr(weights, "client_update", lambda message, block: seen.append(message) or answer(message, block))
    train(population, tmp_path, rounds=2)
    message = seen[0]
    whole = sum(weights.contributions(message, population.read(index, True)).sum(axis=0) for index in range(3))
    parts = sum(
        answer(message, part)["weights"].value()
        for index in range(3)
        for part in [population.read(index, True).slice(0, 4, 2 * index), population.read(index, True).slice(4, 8, 9)]
    )
    assert np.array_equal(whole, parts) and whole.any() and len(seen) == 6


@pytest.mark.parametrize("declared", [None, "entry"])
def test_nothing_is_asked_where_nobody_declared_halves_by_document(declared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    population, _ = made(tmp_path / "p", halves=declared)
    run = train(population, tmp_path)
    assert "weights" not in [entry["name"] for entry in run.info["plan"]]
    state = trained(run)[1]
    assert (state.prior_tokens, state.floor) == (800.0, 0.35)
    block = population.read(0)
    outputs = trained(run)[0].personalise(state, block, None)
    np.testing.assert_allclose(outputs["weight"], base_weight(block.totals, 800.0, 0.35))


def test_the_plan_does_not_look_whether_there_is_a_second_half(tmp_path):
    """It could hang on one client. Declared and without a held-out part, a run releases weights of nobody."""
    matrix = sp.csr_matrix(bursty(24).csr, dtype=np.int64)
    population, _ = private_population(tmp_path / "q", matrix, epsilon=20.0, halves="document")
    run = train(population, tmp_path)
    assert run.info["plan"][-1]["name"] == "weights" and not population.has_heldout


@pytest.mark.slow
def test_commands_say_whether_weights_will_be_released(halves):
    options = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    said = works("plan", "histograms", "p", "--local", "--json", "--calibration", 0.1, *options).json
    assert "weights of the base: released" in said["worth"]
    assert any("weights" in phase["phase"] for phase in said["phases"])
    said = works("budget", "plan", "p", "--runs", 1, "--json").json["cold"]["weights"]
    assert said == "weights of the base: released"
