"""The estimate of each client: a base that it shares with others, mixed with its own histogram.

    base      mixture: the client's own weights over all released centres and the mean (default)
              centre:  the centre of its cluster, as in the paper
    estimate  lam_u base + (1 - lam_u) q_u,   lam_u = (a + c m_u) / (a + m_u)

Everything here is a function of released values and of the client's own data, for that client only: it costs no
privacy, however much the client fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import scipy

from fedcore.methods.histograms.clients import assign, inverse_totals
from fedcore.methods.histograms.config import OutputSettings
from fedcore.methods.histograms.simplex import assignment_logs, project
from fedcore.methods.histograms.state import HistogramsState
from fedcore.population.blocks import CountsBlock, segment_sums

ROW_FLOOR = 1e-7  # of a row of the mixture, so that no token is impossible
GATHERED = 2**17  # numbers of 8 bytes that are fitted at once: few enough for a processor's cache
LOCAL_TOKENS = 1500.0  # a around which clients choose their own, if the settings name none
LOCAL_FACTORS = tuple(2.0**power for power in range(-3, 4))  # of that a, from which they choose


def base_weight(totals: float | np.ndarray, a: float | np.ndarray, c: float | np.ndarray = 0.0) -> np.ndarray:
    """lam_u = (a + c m_u) / (a + m_u); 1 without tokens. With c = 0 Lemma 2.2 of Setlur, Feldman, Talwar 2023, a for
    alpha.
    """
    return np.asarray((a + c * totals) / (a + totals))


def weights_used(settings: OutputSettings, state: HistogramsState) -> tuple[float, float]:
    """(a, c): those of the settings, else those of the run, which were released or are its default."""
    if settings.prior_tokens is not None:
        return settings.prior_tokens, settings.floor or 0.0
    return state.prior_tokens, state.floor if settings.floor is None else settings.floor


def clusters_of(centres: np.ndarray, block: CountsBlock, smoothing: float) -> np.ndarray:
    """(C,) int64: argmin_k KL(q_u || P_k); -1 for a client without tokens, which belongs nowhere."""
    return np.where(block.totals > 0, assign(block, assignment_logs(centres, smoothing)), -1)


# --- bases ----------------------------------------------------------------------------------------------------------


def base_of(settings: OutputSettings, state: HistogramsState, block: CountsBlock) -> tuple[np.ndarray, np.ndarray]:
    """(weights (C, r), rows (r, d)): every client's base is weights @ rows. The last row serves clients without tokens.

    rows of the mixture: the centres, the mean F, and the mixture of the centres by their (noisy) counts.
    """
    centres, shares = state.usable_centres()
    blend = shares @ centres  # for clients without tokens
    empty = block.totals == 0
    if not mixes(settings, centres):
        rows = np.vstack([centres, blend])
        weights = np.zeros((block.clients, len(rows)))
        weights[np.arange(block.clients), clusters_of(centres, block, settings.assignment_smoothing)] = 1.0
        return weights, rows
    rows = mixed_rows(settings, state)
    weights = mixture_weights(block, rows, settings.mixture_prior, settings.mixture_steps)
    weights = np.hstack([np.where(empty[:, None], 0.0, weights), empty[:, None]])
    return weights, np.vstack([rows, blend])


def mixed_rows(settings: OutputSettings, state: HistogramsState) -> np.ndarray:
    """(k + 1, d) positive: the centres and the mean, from which mixtures are made."""
    centres, _ = state.usable_centres()
    return project(np.vstack([centres, state.mean]), min(ROW_FLOOR, settings.centre_floor))


def mixes(settings: OutputSettings, centres: np.ndarray) -> bool:
    """Whether a base is a mixture, rather than the nearest centre or the only one."""
    return settings.personalisation == "mixture" and len(centres) > 1


def mixture_weights(block: CountsBlock, rows: np.ndarray, prior: float, steps: int) -> np.ndarray:
    """(C, k): every client's weights over the rows, by EM on its own tokens with a Dirichlet prior.

        W <- W * ((x_u / (W rows)) rows^T) + prior / k,   normalised; from uniform weights

    rows: (k, d) positive. prior: pseudo-tokens in all. Cost: steps * stored entries * k; memory is bounded. A client's
    weights depend on its own counts alone, to the last bit: whom it is fitted with changes nothing.
    Not in the paper; the step is that of a mixture of fixed multinomials (PLSA's fold-in).
    """
    weights = np.empty((block.clients, len(rows)))
    columns = np.ascontiguousarray(rows.T)
    for start, stop in _parts(block.indptr, max(GATHERED // len(rows), 1)):
        weights[start:stop] = _fit(block.slice(start, stop, block.leaf), rows, columns, prior, steps)
    return weights


def _parts(pointers: np.ndarray, entries: int) -> Iterator[tuple[int, int]]:
    """Runs of clients (start, stop) with at most so many stored entries, or of one client."""
    start, last = 0, len(pointers) - 1
    while start < last:
        stop = int(np.searchsorted(pointers, pointers[start] + entries, side="right")) - 1
        stop = min(max(stop, start + 1), last)
        yield start, stop
        start = stop


def _fit(block: CountsBlock, rows: np.ndarray, columns: np.ndarray, prior: float, steps: int) -> np.ndarray:
    """(C, k). columns: rows^T. Sums run over k one after the other and over a client's own entries, in their order."""
    k, lengths = len(rows), np.diff(block.indptr)
    likelihood, counts = rows[:, block.indices], block.data.astype(np.float64)
    weights = np.full((block.clients, k), 1.0 / k)
    ratios = scipy.sparse.csr_matrix((counts, block.indices, block.indptr), shape=(block.clients, block.features))
    for _ in range(steps):
        mixed = np.repeat(weights[:, 0], lengths) * likelihood[0]
        for j in range(1, k):
            mixed += np.repeat(weights[:, j], lengths) * likelihood[j]
        ratios.data = counts / mixed
        weights = weights * (ratios @ columns) + prior / k
        total = weights[:, 0].copy()
        for j in range(1, k):
            total += weights[:, j]
        weights /= total[:, None]
    return weights


# --- values at tokens ----------------------------------------------------------------------------------------------


def values_at(weights: np.ndarray, rows: np.ndarray, client: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """(len(tokens),): (weights @ rows)[client[i], tokens[i]], row after row so that memory stays at a few vectors."""
    total = np.zeros(len(tokens))
    for weight, row in zip(weights.T, rows, strict=True):
        total += weight[client] * row[tokens]
    return total


def own_values(block: CountsBlock, client: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """(len(tokens),) float64: q of client[i] at tokens[i], 0 where it has none. Searches the stored entries."""
    if len(block.indices) == 0:
        return np.zeros(len(tokens))
    keys = block.rows_of_entries().astype(np.int64) * block.features + block.indices
    wanted = client.astype(np.int64) * block.features + tokens
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, block.data[place] * inverse_totals(block)[client], 0.0)


# --- weights --------------------------------------------------------------------------------------------------------


def local_prior_tokens(block: CountsBlock, base: np.ndarray, grid: Sequence[float]) -> np.ndarray:
    """(C,): the a of the grid that predicts the client's own tokens best when each is left out in turn.

        sum_i x_i ln(lam B_i + (1 - lam) (x_i - 1) / (m - 1)),   lam = a / (a + m - 1)

    base: (nnz,) B at the client's stored tokens. The first of the grid for clients with less than two tokens. Nothing
    leaves the client, so its choice costs no privacy; a choice for all clients would.
    """
    rows = block.rows_of_entries()
    counts, rest = block.data.astype(np.float64), np.maximum(block.totals - 1, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        others = np.where(rest[rows] > 0, (counts - 1) / rest[rows], 0.0)
    scores = np.empty((len(grid), block.clients))
    for number, a in enumerate(grid):
        lam = (a / (a + rest))[rows]
        with np.errstate(divide="ignore"):  # what neither has says that this weight is none
            scores[number] = segment_sums(counts * np.log(lam * base + (1 - lam) * others), block.indptr)
    best = np.where(block.totals > 1, scores.argmax(axis=0), 0)
    return np.asarray(grid, np.float64)[best]


def weights_of(
    settings: OutputSettings, state: HistogramsState, block: CountsBlock, weights: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """(C,) lam_u of every client: with the run's a and c, or with each client's own choice of a."""
    if settings.weights == "shared":
        return base_weight(block.totals, *weights_used(settings, state))
    base = np.einsum("ek,ek->e", weights[block.rows_of_entries()], rows.T[block.indices])
    around = settings.prior_tokens or LOCAL_TOKENS
    chosen = local_prior_tokens(block, base, [around * factor for factor in LOCAL_FACTORS])
    return base_weight(block.totals, chosen)


# --- outputs --------------------------------------------------------------------------------------------------------


def personalise(settings: OutputSettings, state: HistogramsState, block: CountsBlock) -> dict[str, np.ndarray]:
    """lam_u base_u + (1 - lam_u) q_u for every client of a leaf.

    Returns estimate (C, d) float32; cluster (C,) int32, the nearest centre, -1 without tokens; weight (C,) float64,
    that of the base; and if k > 1 centres are mixed: mixture (C, k + 1) float32, weights of the centres and the mean,
    0 without tokens. A client without tokens gets the mixture of the centres by their (noisy) counts and weight 1.
    """
    centres, _ = state.usable_centres()
    cells = clusters_of(centres, block, settings.assignment_smoothing)
    weights, rows = base_of(settings, state, block)
    weight = weights_of(settings, state, block, weights, rows)
    estimate = (weights @ rows * weight[:, None]).astype(np.float32)
    own = np.repeat((1.0 - weight) * inverse_totals(block), np.diff(block.indptr)) * block.data
    estimate[block.rows_of_entries(), block.indices] += own.astype(np.float32)
    outputs = {"estimate": estimate, "cluster": cells.astype(np.int32), "weight": weight}
    if mixes(settings, centres):
        outputs["mixture"] = weights[:, :-1].astype(np.float32)
    return outputs
