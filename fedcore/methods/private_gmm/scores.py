"""How well the mixture of a private_gmm run predicts held-out rows: negative log-likelihood, nats per row.

The baseline is one normal distribution for each column, with the mean and variance of the released mixture: what the
run would say if it knew nothing of components.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fedcore.errors import PopulationError, RunError
from fedcore.methods.private_gmm.config import PrivateGMMConfig
from fedcore.methods.private_gmm.result import mixture_of
from fedcore.methods.private_gmm.start import warm_start_of
from fedcore.methods.private_gmm.state import PrivateGMMState
from fedcore.population.blocks import RowsBlock, segment_sums
from fedcore.rounds import scores as row_scores
from fedcore.rounds.scores import RUN, Table
from fedcore.rounds.statistics import Statistics

COLUMNS = "normal columns"


def score_block(config: PrivateGMMConfig, state: PrivateGMMState, block: RowsBlock) -> Statistics:
    """Sums over the clients of one leaf that have held-out rows.

    Raises ValueError if the block has no held-out part, RunError if the run found no mixture, PopulationError for rows
    that are not finite.
    """
    if block.heldout is None:
        raise ValueError("the block has no held-out rows")
    mixture = mixture_of(config.covariance, state)
    if not mixture.found:
        raise RunError(f"the run found no mixture: {mixture.reason}.", "There is nothing to score.")
    x, ptr = np.asarray(block.heldout.x, np.float64), block.heldout.ptr
    if not np.isfinite(x).all():
        raise PopulationError("held-out rows have missing or infinite entries.", "Score a population without them.")
    losses = {RUN: -mixture.log_likelihood(x), COLUMNS: _loss_of_columns(config, state, x)}
    return row_scores.sums(block.leaf, np.diff(ptr), {name: segment_sums(loss, ptr) for name, loss in losses.items()})


def _loss_of_columns(config: PrivateGMMConfig, state: PrivateGMMState, x: np.ndarray) -> np.ndarray:
    """(n,). The scale of a warm start is the standard deviation of the mixture."""
    start = warm_start_of(config, state)
    z = (x - start["centre"]) / start["scale"]
    return 0.5 * (z * z).sum(axis=1) + float(np.log(start["scale"]).sum()) + 0.5 * x.shape[1] * math.log(2 * math.pi)


def score_table(statistics: Mapping[str, np.ndarray]) -> Table:
    """The table from the finished statistics of all leaves. Raises PopulationError if nothing was held out."""
    return row_scores.table(statistics, (RUN, COLUMNS))
