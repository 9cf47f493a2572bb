"""How well the mixture of a private_mixture run predicts held-out rows: negative log-likelihood, nats per row.

The baseline is the one normal distribution that the run's own whitening says, with the same tail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedcore.errors import PopulationError
from fedcore.methods.private_mixture.density import PrivateMixtureModel
from fedcore.population.blocks import RowsBlock, segment_sums
from fedcore.rounds import scores as row_scores
from fedcore.rounds.scores import RUN, Table
from fedcore.rounds.statistics import Statistics

NORMAL = "one normal distribution"


def normal_of(model: PrivateMixtureModel) -> PrivateMixtureModel:
    """One normal distribution with the released mean and covariance of all rows, and all rows' answers."""
    d = len(model.centre)
    weights = np.array([1 - 1e-12, 1e-12])
    everybody = None if model.probabilities is None else np.tile(model.probabilities[-1:], (2, 1))
    return replace(model, weights=weights, means=np.zeros((1, d)), covariances=np.eye(d)[None], probabilities=everybody)


def score_block(model: PrivateMixtureModel, block: RowsBlock) -> Statistics:
    """Sums over the clients of one leaf that have held-out rows.

    Raises ValueError if the block has no held-out part, PopulationError for infinite entries. A row counts by
    what it has, so one without a number has a loss of 0.
    """
    if block.heldout is None:
        raise ValueError("the block has no held-out rows")
    x, ptr = np.asarray(block.heldout.x, np.float64), block.heldout.ptr
    if np.isinf(x).any():
        raise PopulationError("held-out rows have infinite entries.", "Score a population without them.")
    losses = {RUN: -model.log_likelihood(x), NORMAL: -normal_of(model).log_likelihood(x)}
    return row_scores.sums(block.leaf, np.diff(ptr), {name: segment_sums(loss, ptr) for name, loss in losses.items()})


def score_table(statistics: Mapping[str, np.ndarray]) -> Table:
    """The table from the finished statistics of all leaves. Raises PopulationError if nothing was held out."""
    return row_scores.table(statistics, (RUN, NORMAL))
