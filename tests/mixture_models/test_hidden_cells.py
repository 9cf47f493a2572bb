"""Cells that take no part in training: a function of seed, client, row and column, whoever holds them."""

import numpy as np
import pytest

from fedcore.methods.federated_em import FederatedEM
from fedcore.methods.mixture_models.hidden_cells import HiddenCells, hidden_only, without_hidden
from fedcore.population.blocks import RowsBlock, leaves
from fedcore.population.streaming import StoredRows
from tests.federated_em.run_in_memory import block_of, facts, run
from tests.federated_em.varied import Varied

CELLS = HiddenCells(3, 0.3)


def tables(seed=0, clients=30, rows=4, columns=6, missing=0.2):
    random = np.random.default_rng(seed)
    level = np.exp(random.normal(size=(rows, 1)) + random.normal(size=(1, columns)))
    counts = random.poisson(level, size=(clients, rows, columns)).astype(float)
    counts[random.random(counts.shape) < missing] = np.nan
    return list(counts)


def test_every_observed_cell_is_in_one_part():
    block = block_of(tables())
    training, held = without_hidden(block, CELLS).x, hidden_only(block, CELLS).x
    in_training, in_held = np.isfinite(training), np.isfinite(held)
    assert not (in_training & in_held).any()
    assert np.array_equal(in_training | in_held, np.isfinite(block.x))
    assert np.array_equal(np.where(in_training, training, held), block.x, equal_nan=True)
    share, number = in_held.sum() / np.isfinite(block.x).sum(), np.isfinite(block.x).sum()
    assert abs(share - 0.3) < 5 * np.sqrt(0.21 / number)


def test_no_cut_into_leaves_or_pieces_changes_it():
    block = block_of(tables())
    lazy = RowsBlock(0, 0, block.ptr, StoredRows(lambda a, b: block.x[a:b], *block.x.shape, block.x.dtype, 5))
    for of in (without_hidden, hidden_only):
        whole = of(block, CELLS).x
        parts = np.concatenate([of(leaf, CELLS).x for leaf in leaves(block, 7)])
        assert np.array_equal(whole, parts, equal_nan=True)
        read = of(lazy, CELLS).x
        assert np.array_equal(np.asarray(read), whole, equal_nan=True)
        assert np.array_equal(np.asarray(read[5:17]), whole[5:17], equal_nan=True)
        assert np.array_equal(read[np.array([9, 2])], whole[[9, 2]], equal_nan=True)


@pytest.mark.parametrize("model", ["poisson_tables", "gaussian_tables"])
def test_a_run_is_that_of_the_other_cells_alone(model):
    block = block_of(tables())
    settings = {"model": model, "table_rows": 4, "algorithm": "em", "rounds": 3}
    ran = run(Varied(**settings, validation=0.2), block, facts(block, seed=5), clients_per_leaf=4)
    rest = without_hidden(block, HiddenCells(5, 0.2))
    config = Varied(**settings)
    alone = run(config, rest, facts(rest, seed=5), clients_per_leaf=4)
    assert np.array_equal(ran.state.theta, alone.state.theta)
    held = hidden_only(block, HiddenCells(5, 0.2)).x.reshape(30, 4, 6)
    theta = FederatedEM(config).parameters(alone.state)["natural"]
    if model == "gaussian_tables":
        losses = 0.5 * (held - theta) ** 2 + 0.5 * np.log(2 * np.pi)
    else:
        from scipy.special import gammaln

        losses = np.exp(theta) - held * theta + gammaln(held + 1)
    assert ran.column("held_out_loss")[-1] == pytest.approx(np.nanmean(losses), rel=1e-9)
