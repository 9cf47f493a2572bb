"""Scores of dictionary runs on held-out rows."""

import numpy as np
import pytest
from fedcore.papers.perma.truth import shared_atoms

from fedcore.errors import PopulationError, RunError
from fedcore.evaluation.evaluate import evaluate_run
from fedcore.evaluation.memories import remembered_of
from fedcore.evaluation.report import run_figures
from fedcore.methods.dictionary_learning.scores import ALONE, PERSONAL, RUN, TRAINED, ZERO, table
from fedcore.methods.perma import Perma, PermaConfig, PermaState
from fedcore.population.blocks import RowsBlock
from fedcore.population.ingest.ingest import ingest
from fedcore.population.writer import PopulationWriter
from fedcore.rounds.scores import KnownMemories
from fedcore.rounds.statistics import values
from tests.sessions import train

METHOD = Perma(PermaConfig(atoms=3, global_atoms=1, code="top_k", sparsity=1))


def block(training, heldout) -> RowsBlock:
    def one(rows, other=None):
        ptr = np.concatenate([[0], np.cumsum([len(own) for own in rows])]).astype(np.int64)
        return RowsBlock(0, 0, ptr, np.concatenate(rows), other)

    return one([np.asarray(r, float) for r in training], one([np.asarray(r, float) for r in heldout]))


def state(common, phase="done") -> PermaState:
    common = np.asarray(common, float)
    none = np.zeros((0, 0), np.int64)
    return PermaState(phase, 1, 1, common.shape[1], 2, common, none.ravel(), none)


def evaluate_block(found, block, known=None):
    return METHOD.score_block(found, block, known)


def test_by_hand():
    """Held-out rows along the global atom, along the client's own direction, and neither. One atom a code."""
    training = [[[0, 2.0, 0], [0, 1.0, 0]], [[3.0, 0, 0]], np.zeros((0, 3))]
    heldout = [[[4.0, 0, 0], [0, 5.0, 0]], [[0, 0, 3.0]], [[1.0, 0, 0]]]
    found = table(values(evaluate_block(state([[1.0, 0, 0]]), block(training, heldout))))
    assert (found.clients, found.rows, found.skipped) == (2, 3, 1)
    mse = {line.method: line.loss for line in found.lines}
    assert mse[ZERO] == pytest.approx((16 + 25 + 9) / 9)
    assert mse[RUN] == pytest.approx((25 + 9) / 9)
    assert mse[PERSONAL] == pytest.approx(9 / 9)  # client 1: the rest of its training row is zero
    assert mse[ALONE] == pytest.approx((16 + 9) / 9)
    # ratio estimator over clients: residuals of the sums from the mean times the rows
    sums, m = np.array([25.0, 9.0]) / 3, np.array([2.0, 1.0])
    error = np.sqrt(((sums - mse[RUN] * m) ** 2).sum()) / 3
    assert {line.method: line.standard_error for line in found.lines}[RUN] == pytest.approx(error)
    assert found.to_json("p")["rows"][0]["mse"] == mse[RUN]


def test_own_atoms_as_trained_by_hand():
    """As above; the second client remembers an atom that codes its held-out row, the first one nothing."""
    training = [[[0, 2.0, 0]], [[3.0, 0, 0]], [[0, 1.0, 0]]]
    heldout = [[[4.0, 0, 0], [0, 5.0, 0]], [[0, 0, 3.0]], [[0, 2.0, 0]]]
    memory = {"rank": np.array([0, 2, 1]), "local": np.zeros((3, 2, 3)), "distance": np.zeros(3)}
    memory["local"][1, 0] = [0, 0.6, 0.8]
    kept = KnownMemories(memory, np.array([False, True, True]))
    found = table(values(evaluate_block(state([[1.0, 0, 0]]), block(training, heldout), kept)))
    lines = {line.method: line for line in found.lines}
    assert lines[TRAINED].loss == pytest.approx((9 * (1 - 0.64) + 4) / 2 / 3)  # client 2 has the global atom alone
    assert (lines[TRAINED].clients, lines[TRAINED].rows) == (2, 2)
    assert (found.clients, found.rows, lines[RUN].clients) == (3, 4, None)
    shown = {row["method"]: row for row in found.to_json("p")["rows"]}
    assert (shown[TRAINED]["clients"], shown[TRAINED]["held-out rows"]) == (2, 2)
    assert (shown[RUN]["clients"], shown[RUN]["held-out rows"]) == (3, 4)
    nobody = KnownMemories(memory, np.zeros(3, bool))
    found = table(values(evaluate_block(state([[1.0, 0, 0]]), block(training, heldout), nobody)))
    assert TRAINED not in {line.method for line in found.lines} and "clients" not in found.to_json("p")["rows"][0]


def test_what_cannot_be_scored():
    rows = [[[1.0, 0, 0]]]
    whole = block(rows, rows)
    with pytest.raises(RunError, match="global dictionary"):
        evaluate_block(state(np.zeros((0, 3)), "start"), whole)
    with pytest.raises(ValueError, match="held-out"):
        evaluate_block(state([[1.0, 0, 0]]), RowsBlock(0, 0, whole.ptr, whole.x))
    with pytest.raises(PopulationError, match="client number 0"):
        evaluate_block(state([[1.0, 0, 0]]), block(rows, [[[np.nan, 0, 0]]]))
    with pytest.raises(PopulationError, match="held-out"):
        table(values(evaluate_block(state([[1.0, 0, 0]]), block(rows, [np.zeros((0, 3))]))))


def packed(drawn, clients, cut):
    rows = [own[cut] for own in drawn.samples[clients]]
    return np.concatenate([[0], np.cumsum([len(own) for own in rows])]), np.concatenate(rows)


def made(writer, drawn, clients):
    with writer:
        writer.write(
            [f"c{i}" for i in range(8)[clients]],
            packed(drawn, clients, slice(0, 100)),
            packed(drawn, clients, slice(100, None)),
        )
        return writer.commit()


def trained(population, tmp_path):
    return train(population, tmp_path, "perma", {"rounds": 3, "starts": 1})


SIZES = {"dtype": "float64", "public_for_evaluation": "drawn", "clients_per_leaf": 2, "clients_per_block": 4}


@pytest.mark.slow
def test_a_run(tmp_path):
    """Shared atoms beat zero, and own directions added to them beat both; the report shows curves and scores."""
    population = made(PopulationWriter(tmp_path / "p", "rows", 6, **SIZES), shared_atoms(1, 8, samples=120), slice(8))
    run = trained(population, tmp_path)
    result = evaluate_run(run.path, population, keep=True)
    mse = {row["method"]: row["mse"] for row in result["rows"]}
    assert mse[TRAINED] < mse[PERSONAL] < mse[RUN] < mse[ZERO]
    assert result["clients"] == 8 and result["held_out_rows"] == 160 and "clients" not in result["rows"][0]
    assert {"loss", "movement", "distance", "nonzero", "evaluation"} <= set(run_figures(run))
    assert result["title"] in (run.path / "report.html").read_text()
    other = made(PopulationWriter(tmp_path / "q", "rows", 6, **SIZES), shared_atoms(1, 8, samples=120), slice(8))
    refitted = {row["method"]: row["mse"] for row in evaluate_run(run.path, other)["rows"]}
    assert refitted == {name: value for name, value in mse.items() if name != TRAINED}
    next((run.path / "memory" / "000004").iterdir()).unlink()
    with pytest.raises(RunError, match="memories of the clients of block"):
        evaluate_run(run.path, population)


@pytest.mark.slow
def test_clients_that_came_later_have_no_memories(tmp_path):
    """Trained on five clients; three more fill up the last block and begin another. The first five are as trained."""
    drawn = shared_atoms(1, 8, samples=120)
    first = made(PopulationWriter(tmp_path / "p", "rows", 6, **SIZES), drawn, slice(5))
    run = trained(first, tmp_path)
    before = {row["method"]: row for row in evaluate_run(run.path, first)["rows"]}
    for name, cut in (("more", slice(0, 100)), ("held", slice(100, None))):
        ids = np.repeat([f"c{i}" for i in range(5, 8)], len(drawn.samples[0][cut]))
        np.savez(tmp_path / f"{name}.npz", x=packed(drawn, slice(5, None), cut)[1], client=ids)
    later = ingest(
        tmp_path / "more.npz", first.path, heldout=tmp_path / "held.npz", append=True, public_for_evaluation="drawn"
    )
    assert (later.version, later.n_clients, later.id) == (2, 8, first.id)
    result = evaluate_run(run.path, later, keep=True)
    rows = {row["method"]: row for row in result["rows"]}
    assert rows[TRAINED]["mse"] == pytest.approx(before[TRAINED]["mse"]) and rows[TRAINED]["clients"] == 5
    assert rows[RUN]["clients"] == 8 and result["clients"] == 8
    kept = remembered_of(run, later).of(4, 4)
    assert kept.known.tolist() == [True, False, False, False]
    assert kept.part(1, 3).known.tolist() == [False] * 3
    assert remembered_of(run, later).of(6, 2) is None
    longer = trained(later, tmp_path / "again")
    assert remembered_of(longer, first) is None  # trained on a version that came after it
