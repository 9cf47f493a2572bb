"""How well the mixture of a private_gmm run predicts held-out rows: negative log-likelihood, nats per row.

Beside it stands one normal column by column, with the mean and variance of the released mixture: what the run would say
if it knew nothing of components.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fedcore.errors import PopulationError, RunError
from fedcore.methods.private_gmm.config import PrivateGMMConfig
from fedcore.methods.private_gmm.result import PrivateMixture, result_of
from fedcore.methods.private_gmm.start import start_of
from fedcore.methods.private_gmm.state import PrivateGMMState
from fedcore.population.blocks import ClientBlock, segment_sums
from fedcore.rounds import scores as held_rows
from fedcore.rounds.scores import RUN, Table, held_out
from fedcore.rounds.statistics import Statistics

MOMENTS = "normal columns"


def evaluate_block(config: PrivateGMMConfig, state: PrivateGMMState, block: ClientBlock) -> Statistics:
    """Sums over the clients of one leaf that have held-out rows.

    Raises ValueError if the block has no held-out part, RunError if the run found no mixture, PopulationError for rows
    that are not finite.
    """
    held = held_out(block)
    mixture = result_of(config.covariance, state)
    if not mixture.found:
        raise RunError(f"the run found no mixture: {mixture.reason}.", "There is nothing to score.")
    x, ptr = np.asarray(held.x, np.float64), held.ptr
    if not np.isfinite(x).all():
        raise PopulationError("held-out rows have missing or infinite entries.", "Score a population without them.")
    losses = {RUN: -mixture.log_likelihood(x), MOMENTS: _columns(config, state, mixture, x)}
    return held_rows.sums(block.leaf, np.diff(ptr), {name: segment_sums(loss, ptr) for name, loss in losses.items()})


def _columns(config, state, mixture: PrivateMixture, x: np.ndarray) -> np.ndarray:
    """(n,) loss of one normal for each column; the scale of `start_of` is its standard deviation."""
    start = start_of(config.covariance, state)
    z = (x - start["centre"]) / start["scale"]
    return 0.5 * (z * z).sum(axis=1) + float(np.log(start["scale"]).sum()) + 0.5 * x.shape[1] * math.log(2 * math.pi)


def table(config: PrivateGMMConfig, statistics: Mapping[str, np.ndarray]) -> Table:
    """The table from the finished statistics of all leaves. Raises PopulationError if nothing was held out."""
    return held_rows.table(statistics, (RUN, MOMENTS))
