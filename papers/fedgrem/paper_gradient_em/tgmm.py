"""TGMM (Wang et al. 2021, as Tian, Weng, Feng 2024 use it): a client's M-step draws on the starts of all others.

theta_r <- [ M_r + lam s_r sum_f theta_r^(f)[0] ] / [ s_r (1 + lam F) ]      over the F others that have a start
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from fedcore.papers.fedgrem.paper_gradient_em.config import PaperGradientEMConfig
from fedcore.papers.fedgrem.paper_gradient_em.messages import BaselineMessage, TotalsMessage
from fedcore.papers.fedgrem.paper_gradient_em.state import PaperGradientEMState

from fedcore.methods.gradient_em.coordinates import to_model
from fedcore.methods.mixture_models.alignment import in_common_order
from fedcore.methods.mixture_models.local_steps import Sums
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import Memory, RoundInfo
from fedcore.rounds.statistics import FloatSum, Statistics


def totals(message: TotalsMessage, block: RowsBlock, memory: Memory) -> tuple[Statistics, Memory]:
    """Sum of the aligned starts of the clients that have one, and their number."""
    own = memory["started"].astype(bool)
    memory = in_common_order(memory, message.orders, message.centres, block)
    memory["source"] = np.where(own[:, None, None], memory["theta"], 0.0)
    return {
        "totals": FloatSum.at(block.leaf, memory["source"].sum(axis=0)),
        "sources": FloatSum.at(block.leaf, float(own.sum())),
    }, memory


def after_totals(state: PaperGradientEMState, result: Mapping[str, Any]) -> tuple[PaperGradientEMState, RoundInfo]:
    state = replace(
        state,
        phase="rounds",
        totals=np.asarray(result["totals"]),
        sources=float(result["sources"]),
        orders=state.orders[:0],
    )
    return state, RoundInfo({"sources": state.sources})


def m_step(
    config: PaperGradientEMConfig, message: BaselineMessage, theta: np.ndarray, sums: Sums, source: np.ndarray
) -> np.ndarray:
    """(C, R, p), model's units. source: (C, R, p) the client's own start, zeros if it has none."""
    has = (np.abs(source) > 0).any(axis=(1, 2)).astype(np.float64)
    others = (message.sources - has)[:, None, None]
    total = to_model(config, message.coordinates, message.totals) - source
    mass = np.where(sums.mass > 0, sums.mass, 1.0)[:, :, None]
    own = theta + sums.gradient / mass
    return (own + config.tgmm_penalty * total) / (1.0 + config.tgmm_penalty * others)
