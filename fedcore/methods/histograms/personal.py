"""The estimate of each client: a base that it shares with others, mixed with its own histogram.

    base      mixture: the client's own weights over all released centres and the mean (default)
              centre:  the centre of its cluster, as in the paper
    estimate  lam_u base + (1 - lam_u) q_u,   lam_u = a / (a + m_u)

Everything here is a function of released values and of the client's own data, for that client only: it costs no
privacy, however much the client fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fedcore.methods.histograms.clients import assign, inverse_totals
from fedcore.methods.histograms.config import HistogramsConfig
from fedcore.methods.histograms.simplex import assignment_logs, project
from fedcore.methods.histograms.state import HistogramsState
from fedcore.population.blocks import CountsBlock, segment_sums

ROW_FLOOR = 1e-7  # of a row of the mixture, so that no token is impossible
GROUP, GATHERED = 64, 2**22  # clients, and numbers of 8 bytes, fitted at once: bounds the memory of the fit


def centre_weights(totals: np.ndarray, prior_tokens: float | np.ndarray) -> np.ndarray:
    """lam_u = a / (a + m_u), Lemma 2.2 of Setlur, Feldman, Talwar 2023 with a for alpha; 1 without tokens."""
    return prior_tokens / (prior_tokens + totals)


def clusters_of(centres: np.ndarray, block: CountsBlock, smoothing: float) -> np.ndarray:
    """(C,) int64: argmin_k KL(q_u || P_k); -1 for a client without tokens, which belongs nowhere."""
    return np.where(block.totals > 0, assign(block, assignment_logs(centres, smoothing)), -1)


# --- bases ----------------------------------------------------------------------------------------------------------


def base_of(config: HistogramsConfig, state: HistogramsState, block: CountsBlock) -> tuple[np.ndarray, np.ndarray]:
    """(weights (C, r), rows (r, d)): every client's base is weights @ rows. The last row serves clients without tokens.

    rows of the mixture: the centres, the mean F, and the mixture of the centres by their (noised) counts.
    """
    centres, shares = state.usable_centres()
    blend = shares @ centres  # for clients without tokens
    empty = block.totals == 0
    if not _mixes(config, centres):
        rows = np.vstack([centres, blend])
        weights = np.zeros((block.clients, len(rows)))
        weights[np.arange(block.clients), clusters_of(centres, block, config.assignment_smoothing)] = 1.0
        return weights, rows
    rows = project(np.vstack([centres, state.mean]), min(ROW_FLOOR, config.centre_floor))
    weights = mixture_weights(block, rows, config.mixture_prior, config.mixture_steps)
    weights = np.hstack([np.where(empty[:, None], 0.0, weights), empty[:, None]])
    return weights, np.vstack([rows, blend])


def _mixes(config: HistogramsConfig, centres: np.ndarray) -> bool:
    return config.personalisation == "mixture" and len(centres) > 1


def mixture_weights(block: CountsBlock, rows: np.ndarray, prior: float, steps: int) -> np.ndarray:
    """(C, k): every client's weights over the rows, by EM on its own tokens with a Dirichlet prior.

        W <- W * ((x_u / (W rows)) rows^T) + prior / k,   normalised; from uniform weights

    rows: (k, d) positive. prior: pseudo-tokens in all. Cost: steps * stored entries * k; memory is bounded.
    Not in the paper; the step is that of a mixture of fixed multinomials (PLSA's fold-in).
    """
    k, lengths = len(rows), np.diff(block.indptr)
    weights = np.full((block.clients, k), 1.0 / k)
    columns = np.ascontiguousarray(rows.T)
    for group in _of_like_length(lengths, GROUP, max(GATHERED // k, 1)):
        place = np.arange(lengths[group].max())
        stored = place < lengths[group][:, None]  # short clients are padded with tokens that never count
        entries = np.where(stored, block.indptr[group][:, None] + place, 0)
        likelihood = np.where(stored[:, None, :], columns[block.indices[entries]].transpose(0, 2, 1), 1.0)
        counts = np.where(stored, block.data[entries], 0.0)
        weights[group] = _fit(likelihood, counts, prior, steps)
    return weights


def _of_like_length(lengths: np.ndarray, clients: int, entries: int) -> Iterator[np.ndarray]:
    """Clients with tokens, sorted by length, at most `clients` and about `entries` padded entries at a time."""
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 0]
    while len(order):
        take = min(clients, max(1, int(np.sum(np.arange(1, len(order) + 1) * lengths[order] <= entries))))
        yield order[:take]
        order = order[take:]


def _fit(likelihood: np.ndarray, counts: np.ndarray, prior: float, steps: int) -> np.ndarray:
    """likelihood: (C, k, e); counts: (C, e). One matrix product for each client and step."""
    k = likelihood.shape[1]
    weights = np.full((len(likelihood), k), 1.0 / k)
    for _ in range(steps):
        ratio = counts / np.matmul(weights[:, None, :], likelihood)[:, 0]
        weights = weights * np.matmul(likelihood, ratio[:, :, None])[:, :, 0] + prior / k
        weights /= weights.sum(axis=1, keepdims=True)
    return weights


# --- weights --------------------------------------------------------------------------------------------------------


def local_prior_tokens(block: CountsBlock, base: np.ndarray, grid: Sequence[float]) -> np.ndarray:
    """(C,): the a of the grid that predicts the client's own tokens best when each is left out in turn.

        sum_i x_i ln(lam B_i + (1 - lam) (x_i - 1) / (m - 1)),   lam = a / (a + m - 1)

    base: (nnz,) B at the client's stored tokens. The first of the grid for clients with less than two tokens. Nothing
    leaves the client, so a choice of its own costs no privacy; a choice for all clients would.
    """
    rows = block.rows_of_entries()
    counts, rest = block.data.astype(np.float64), np.maximum(block.totals - 1, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        others = np.where(rest[rows] > 0, (counts - 1) / rest[rows], 0.0)
    scores = np.empty((len(grid), block.clients))
    for number, a in enumerate(grid):
        lam = (a / (a + rest))[rows]
        scores[number] = segment_sums(counts * np.log(lam * base + (1 - lam) * others), block.indptr)
    best = np.where(block.totals > 1, scores.argmax(axis=0), 0)
    return np.asarray(grid, np.float64)[best]


def prior_tokens_of(
    config: HistogramsConfig, block: CountsBlock, weights: np.ndarray, rows: np.ndarray
) -> float | np.ndarray:
    """a for every client: the config's, or each client's own choice around it. (C,) or a number."""
    if config.weights == "shared":
        return config.prior_tokens
    base = np.einsum("ek,ek->e", weights[block.rows_of_entries()], rows.T[block.indices])
    return local_prior_tokens(block, base, [config.prior_tokens * factor for factor in config.weight_factors()])


# --- outputs --------------------------------------------------------------------------------------------------------


def personalise(config: HistogramsConfig, state: HistogramsState, block: CountsBlock) -> dict[str, np.ndarray]:
    """lam_u base_u + (1 - lam_u) q_u for every client of a leaf.

    Returns estimate (C, d) float32; cluster (C,) int32, the nearest centre, -1 without tokens; weight (C,) float64,
    that of the base; and if k > 1 centres are mixed: mixture (C, k + 1) float32, weights of the centres and the mean,
    0 without tokens. A client without tokens gets the mixture of the centres by their (noised) counts and weight 1.
    """
    centres, _ = state.usable_centres()
    cells = clusters_of(centres, block, config.assignment_smoothing)
    weights, rows = base_of(config, state, block)
    weight = centre_weights(block.totals, prior_tokens_of(config, block, weights, rows))
    estimate = (weights @ rows * weight[:, None]).astype(np.float32)
    own = np.repeat((1.0 - weight) * inverse_totals(block), np.diff(block.indptr)) * block.data
    estimate[block.rows_of_entries(), block.indices] += own.astype(np.float32)
    outputs = {"estimate": estimate, "cluster": cells.astype(np.int32), "weight": weight}
    if _mixes(config, centres):
        outputs["mixture"] = weights[:, :-1].astype(np.float32)
    return outputs
