"""How exact EM of incomplete rows and of tables needs at most ten reads of the data.

imputer   EM converges on the sample of the first pass, and continues over all rows by accelerated steps
tables    a step of EM needs no more than the sum of the observed values of each cell and how often it was seen.
          Both are among the moments of the first pass, so that all steps follow it, and the second pass computes
          the objective
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np

from fedcore.methods.federated_em import models
from fedcore.methods.federated_em.config import AUTO_SHARE, PSEUDO_ROWS, FederatedEMConfig
from fedcore.methods.federated_em.messages import BITS_PER_NUMBER
from fedcore.methods.federated_em.sampled import AnyMixture, Counted, Sample, best_penalty
from fedcore.methods.federated_em.search import FEW_STEPS, LEVEL_GAIN, LEVEL_STEPS, PENALTY_ROWS, Found
from fedcore.methods.federated_em.state import FederatedEMState, pack
from fedcore.methods.mixture_models.contract import Theta
from fedcore.methods.mixture_models.low_rank_tables import LowRankTables

STEPS, GAIN = 100, 1e-5  # of the imputer on level 1 of the sample


def settled(
    model_of: Callable[[float, float], AnyMixture], sample: Sample, theta: Theta, pseudo_rows: float | None
) -> Found:
    """Where EM of the imputer all but converges on the sample. pseudo_rows: None to choose them."""
    counted, nu = Counted(model_of), PSEUDO_ROWS if pseudo_rows is None else pseudo_rows
    first = sample.rows(slice(sample.first))
    if pseudo_rows is None:
        level = int(sample.count * (1 - AUTO_SHARE)) if sample.whole else sample.first
        fresh = sample.rows(slice(level, level + PENALTY_ROWS))
        nu = best_penalty(counted, theta, sample.rows(slice(level)), fresh, FEW_STEPS)
    theta, objective = counted.accelerated(counted.model(first, nu), theta, first, STEPS, GAIN)
    if not sample.whole:
        theta, objective = counted.accelerated(counted.model(sample, nu), theta, sample, LEVEL_STEPS, LEVEL_GAIN)
    return Found(theta, nu, np.array([objective]), counted.row_steps)


def fitted_to_cells(config: FederatedEMConfig, state: FederatedEMState) -> FederatedEMState:
    """The state after all steps of EM of tables, from the given parameters or those that the cells suggest. It knows
    the moments of the cells, by the clients' weights."""
    scaling, tables = state.scaling(), state.rows if config.by_rows else state.clients
    model = cast(LowRankTables, models.model_of(config, scaling))
    theta = state.parameters() or models.initial_parameters(config, scaling, state.seed)
    before, gain, step = np.inf, np.inf, 0
    while step < config.all_rounds and not (config.least_gain and gain < config.least_gain):  # 0: all steps
        s, objective = model.step_of_cells(theta, scaling.mean * scaling.seen, scaling.seen, tables)
        theta, step = model.maximise(s, start=theta, rough=True), step + 1
        gain, before = before - objective, objective
    flat, layout = pack(model.maximise(s, start=theta))
    bits = float(BITS_PER_NUMBER * 3 * (1 + len(scaling.mean))) * state.clients
    return replace(
        state,
        phase="last",
        round=step,
        statistic=s,
        theta=flat,
        previous=flat,
        layout=layout,
        slope=gain,
        expectations=state.rows,
        bits_up=bits,
    )
