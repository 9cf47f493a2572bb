"""Scores of dictionary runs on held-out rows."""

import numpy as np
import pytest

from fedcore.aggregation import values
from fedcore.dictionaries import DictionariesConfig, DictionariesState
from fedcore.dictionaries.synthetic import shared_atoms
from fedcore.engine import InProcessBackend
from fedcore.errors import PopulationError, RunError
from fedcore.evaluation.dictionaries import ALONE, PERSONAL, RUN, ZERO, evaluate_block, table
from fedcore.evaluation.evaluate import evaluate_run
from fedcore.evaluation.report import run_figures
from fedcore.population.blocks import RowsBlock
from fedcore.population.writer import PopulationWriter
from fedcore.session import TrainRequest, ending, start

CONFIG = DictionariesConfig(atoms=3, global_atoms=1, code="top_k", sparsity=1)


def block(training, heldout) -> RowsBlock:
    def one(rows, other=None):
        ptr = np.concatenate([[0], np.cumsum([len(own) for own in rows])]).astype(np.int64)
        return RowsBlock(0, 0, ptr, np.concatenate(rows), other)

    return one([np.asarray(r, float) for r in training], one([np.asarray(r, float) for r in heldout]))


def state(common, phase="done") -> DictionariesState:
    common = np.asarray(common, float)
    return DictionariesState(phase, 1, 1, common.shape[1], 2, common=common)


def test_by_hand():
    """Held-out rows along the global atom, along the client's own direction, and neither. One atom a code."""
    training = [[[0, 2.0, 0], [0, 1.0, 0]], [[3.0, 0, 0]], np.zeros((0, 3))]
    heldout = [[[4.0, 0, 0], [0, 5.0, 0]], [[0, 0, 3.0]], [[1.0, 0, 0]]]
    found = table(CONFIG, values(evaluate_block(CONFIG, state([[1.0, 0, 0]]), block(training, heldout))))
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


def test_what_cannot_be_scored():
    rows = [[[1.0, 0, 0]]]
    whole = block(rows, rows)
    with pytest.raises(RunError, match="global dictionary"):
        evaluate_block(CONFIG, state(np.zeros((0, 3)), "start"), whole)
    with pytest.raises(ValueError, match="held-out"):
        evaluate_block(CONFIG, state([[1.0, 0, 0]]), RowsBlock(0, 0, whole.ptr, whole.x))
    with pytest.raises(PopulationError, match="client number 0"):
        evaluate_block(CONFIG, state([[1.0, 0, 0]]), block(rows, [[[np.nan, 0, 0]]]))
    with pytest.raises(PopulationError, match="held-out"):
        table(CONFIG, values(evaluate_block(CONFIG, state([[1.0, 0, 0]]), block(rows, [np.zeros((0, 3))]))))


def test_a_run(tmp_path):
    """Shared atoms beat zero, and own directions added to them beat both; the report shows curves and scores."""
    drawn = shared_atoms(1, 8, samples=120)

    def packed(cut):
        rows = [own[cut] for own in drawn.samples]
        return np.concatenate([[0], np.cumsum([len(own) for own in rows])]), np.concatenate(rows)

    with PopulationWriter(tmp_path / "p", "rows", 6, dtype="float64", public_for_evaluation="drawn") as writer:
        writer.write(range(8), packed(slice(0, 100)), packed(slice(100, None)))
        population = writer.commit()
    request = TrainRequest(method="dictionaries", population=str(population.path), runs=str(tmp_path / "runs"),
                           run_id="r", settings={"rounds": 3, "starts": 1})  # fmt: skip
    with ending(session := start(request, InProcessBackend(), stamp="then")):
        while session.training.step() is not None:
            pass
    result = evaluate_run(session.run.path, population, keep=True)
    mse = {row["method"]: row["mse"] for row in result["rows"]}
    assert mse[PERSONAL] < mse[RUN] < mse[ZERO]
    assert result["clients"] == 8 and result["held_out_rows"] == 160
    assert {"loss", "movement", "distance", "nonzero", "evaluation"} <= set(run_figures(session.run))
    assert result["title"] in (session.run.path / "report.html").read_text()
