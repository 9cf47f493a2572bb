"""What each client is given: its cluster's centre mixed with its own histogram."""

from __future__ import annotations

import numpy as np

from fedcore.histograms.config import HistogramsConfig
from fedcore.histograms.leaf import assign, inverse_totals
from fedcore.histograms.simplex import assignment_logs
from fedcore.histograms.state import HistogramsState
from fedcore.population.blocks import CountsBlock


def centre_weights(totals: np.ndarray, prior_tokens: float) -> np.ndarray:
    """lam_u = a / (a + m_u), Lemma 2.2 of Setlur, Feldman, Talwar 2023 with a for alpha; 1 without tokens."""
    return prior_tokens / (prior_tokens + totals)


def clusters_of(centres: np.ndarray, block: CountsBlock, smoothing: float) -> np.ndarray:
    """(C,) int64: argmin_k KL(q_u || P_k); -1 for a client without tokens, which belongs nowhere."""
    return np.where(block.totals > 0, assign(block, assignment_logs(centres, smoothing)), -1)


def personalise(config: HistogramsConfig, state: HistogramsState, block: CountsBlock) -> dict[str, np.ndarray]:
    """lam_u P_k(u) + (1 - lam_u) q_u for every client of a leaf.

    Returns estimate (C, d) float32; cluster (C,) int32; weight (C,) float64, the centre's. A client without tokens
    gets the mixture of the centres by their (noised) counts, cluster -1 and weight 1.
    """
    centres, shares = state.usable_centres()
    cells = clusters_of(centres, block, config.assignment_smoothing)
    weight = centre_weights(block.totals, config.prior_tokens)
    rows = np.vstack([centres, shares @ centres]).astype(np.float32)  # row -1: the mixture
    estimate = rows[cells] * weight[:, None].astype(np.float32)
    own = np.repeat((1.0 - weight) * inverse_totals(block), np.diff(block.indptr)) * block.data
    estimate[block.rows_of_entries(), block.indices] += own.astype(np.float32)
    return {"estimate": estimate, "cluster": cells.astype(np.int32), "weight": weight}
