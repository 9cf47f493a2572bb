"""Runs that release weights: what is read from the store, who may ask for it, and what the run leaves."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from fedcore.interface.model import load_run
from fedcore.methods.histograms import Histograms, clients, weights
from fedcore.methods.histograms.personal import base_weight
from fedcore.methods.histograms.simplex import assignment_logs
from fedcore.methods.histograms.state import ReleaseMessage
from fedcore.population.blocks import counts_block, joined
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.rounds.caches import BLOCKS
from fedcore.runs.store import Run
from fedcore.training.personalise import personalise, trained
from tests import sessions
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


def train(population, folder, **settings) -> Run:
    BLOCKS.clear()
    return sessions.train(population, folder, "histograms", {"epsilon": 5.0, **SETTINGS, **settings})


@pytest.mark.slow
@pytest.mark.parametrize("public", [None, "made up"])
def test_all_rounds_read_both_halves_or_the_last_one_where_they_are_for_evaluation(public, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    population, ledger = made(tmp_path / "p", halves="document", public_for_evaluation=public)
    read, asked = Population.read, []
    monkeypatch.setattr(
        Population, "read", lambda self, index, heldout=False: asked.append(heldout) or read(self, index, heldout)
    )
    run = train(population, tmp_path)
    assert asked == ([True] * 3 if public is None else [False] * 3 + [True] * 3), "blocks are kept in memory"
    _, state = trained(run)
    assert state.one_whole == (public is None)
    assert state.phase == "done" and state.weights_multiplier > 0
    assert [entry["name"] for entry in run.info["plan"]][-1] == "weights"
    assert (state.prior_tokens, state.floor) in weights_of_candidates()
    statement = (run.path / "statement.json").read_text()
    assert "each with both halves of its data" in statement and '"weights"' in statement
    outputs = personalise(run.path, population.path, tmp_path / "out")
    assert "weight" in outputs["outputs"]


def test_clients_are_given_what_all_their_documents_say(halves, tmp_path):
    """But on a population that is public for evaluation, where somebody scores by the second halves."""
    population, _ = halves
    run = train(population, tmp_path)
    method, state = trained(run)
    block = population.read(0, True)
    both = sp.csr_matrix(block.csr + block.heldout.csr)
    of_both, of_first = (method.personalise(state, one, None) for one in (counts_block(0, 0, both), block))
    assert not np.array_equal(of_both["estimate"], of_first["estimate"])
    given = load_run(run.path).predict(population)
    assert np.array_equal(given["estimate"][:8], of_both["estimate"])
    personalise(run.path, population.path, tmp_path / "out.csv")
    rows = list(csv.DictReader(open(tmp_path / "out.csv", newline="")))
    assert [float(row["weight"]) for row in rows[:8]] == of_both["weight"].tolist()
    for number, options in enumerate(({"halves": "document", "public_for_evaluation": "made up"}, {"halves": None})):
        with PopulationWriter(tmp_path / f"other{number}", "counts", block.features, **options) as writer:
            writer.write([f"c{i}" for i in range(8)], block.csr.astype(np.int64), block.heldout.csr.astype(np.int64))
            other = writer.commit(Provenance(sources=("test",)))
        assert np.array_equal(load_run(run.path).predict(other)["estimate"], of_first["estimate"])


def test_two_halves_are_added_up_exactly_whoever_else_is_there():
    one, other = np.array([[2**24 - 1, 0, 3], [0, 0, 0], [5, 1, 0]]), np.array([[2, 0, 0], [0, 7, 0], [0, 0, 0]])
    block = counts_block(4, 2, sp.csr_matrix(one), sp.csr_matrix(other))
    both = joined(block)
    assert (both.csr.toarray() == one + other).all() and (both.first, both.leaf, both.heldout) == (4, 2, None)
    assert both.totals.tolist() == (one + other).sum(axis=1).tolist() and both.data.dtype == np.float64
    assert both.indptr.tolist() == [0, 2, 3, 5] and joined(both) is both
    for client in range(3):
        alone = joined(block.slice(client, client + 1, 2))
        mine = both.slice(client, client + 1, 2)
        assert alone.indices.tolist() == mine.indices.tolist() and alone.data.tobytes() == mine.data.tobytes()


def test_what_a_round_releases_of_both_halves_is_that_of_their_sum():
    """Whoever else is there: also a client whose counts make the block, or the sum, one of double precision."""
    block, generator = bursty(24), np.random.default_rng(1)
    counts, other = block.csr.toarray().astype(np.int64), block.heldout.csr.toarray().astype(np.int64)
    counts[5], other[7] = counts[5] * 2**30, other[7] * 2**30
    block, whole = (
        counts_block(0, 0, sp.csr_matrix(counts), sp.csr_matrix(other)),
        counts_block(0, 0, sp.csr_matrix(counts + other)),
    )
    logs = assignment_logs(generator.dirichlet(np.ones(block.features), 3), 1e-6)
    asked = ReleaseMessage("r", 3, logs, generator.uniform(1.0, 9.0, block.features), 0.5)
    both, one = (replace(asked, one_whole=True), block), (asked, whole)
    assert Histograms.reads_heldout(None, both[0]) and not Histograms.reads_heldout(None, one[0])
    found, expected = (
        {name: value.value() for name, value in clients.client_update(*given).items()} for given in (both, one)
    )
    assert found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in found)
    alone = [clients.client_update(both[0], block.slice(u, u + 1, 0))["r"].value() for u in range(24)]
    assert np.array_equal(sum(alone), found["r"]) and found["r"].any()


def weights_of_candidates():
    from fedcore.methods.histograms.weights import CANDIDATES

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
