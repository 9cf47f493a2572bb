"""The column of a population that says how much each row counts.

A weight of 2 stands for the row twice, and 0 for a row that is not there; weights need not be whole numbers. Sums over
rows are weighted, and wherever rows are counted their weights are added up. A row's density does not depend on its
weight.
"""

from __future__ import annotations

import numpy as np

from fedcore.errors import ConfigError, PopulationError
from fedcore.methods.mixture_models.client_sums import row_tiles
from fedcore.methods.mixture_models.validation import some_rows
from fedcore.population.blocks import ClientBlock, CountsBlock, RowsBlock

ROWS_READ = 2**16  # at a time, where they are not in RAM


def check_column(column: int | None, features: int) -> None:
    """Raise ConfigError unless a population with this number of columns has `column` and at least one other."""
    if column is not None and (column >= features or features < 2):
        has = "one column" if features == 1 else f"columns 0 to {features - 1}"
        raise ConfigError(
            f"weight_column = {column}, but the population has {has}.",
            "Columns are counted from 0, and those besides the weights are the rows.",
        )


def row_weights(block: RowsBlock, column: int) -> np.ndarray:
    """(N,) float64. Raises PopulationError that names the client and the row of the first that is no weight."""
    weights = np.empty(block.x.shape[0])
    for rows in row_tiles(len(weights), ROWS_READ):
        weights[rows] = np.asarray(block.x[rows])[:, column]
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        at = int(np.argmax(bad))
        client = int(np.searchsorted(block.ptr, at, "right")) - 1
        what = "negative" if weights[at] < 0 and np.isfinite(weights[at]) else "not finite"
        raise PopulationError(
            f"client {block.first + client}: the weight of row {at - int(block.ptr[client])}, in column {column}, is "
            f"{what}.",
            "Weights are finite numbers of 0 or more; 0 leaves a row out.",
        )
    return weights


def rows_that_count(block: ClientBlock, column: int | None) -> ClientBlock:
    """The block without rows of weight 0. Raises PopulationError for what is no weight."""
    if column is None or isinstance(block, CountsBlock):
        return block
    counts = row_weights(block, column) > 0
    return block if counts.all() else some_rows(block, counts)
