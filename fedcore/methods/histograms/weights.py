"""The release `weights`: which weight of the base serves the clients, asked of two halves of each client's documents.

    lam_u = (a + c m_u) / (a + m_u)        of the base in client u's estimate, m_u its tokens

c is the share of the base that no amount of own tokens takes away: a new document of a client is never like its old
ones. What a and c should be differs between populations by much more than the noise of one release.

Every client fits its base to its first half, and says for each pair (a, c) of a public list by how much its second half
is less likely than under the pair REFERENCE. These losses are clipped, cut to the grid and added up: one release of as
many numbers as there are pairs. Clients with fewer than FEWEST tokens in either half say nothing.

A client's numbers depend on the message and on its own two halves, and on nothing else, to the last bit; entries have
both signs. docs/privacy/histograms.md argues from that. What the server makes of the sum is in `choice.py`.
Not in the paper.
"""

from __future__ import annotations

import numpy as np

from fedcore.methods.histograms.clients import assign_in_float32, inverse_totals
from fedcore.methods.histograms.messages import WeightsMessage
from fedcore.methods.histograms.personal import base_weight, mixture_weights, own_values, values_at
from fedcore.population.blocks import CountsBlock, segment_sums
from fedcore.privacy.grid import bound_norms, grid_step
from fedcore.rounds.statistics import IntegerSum, Statistics

WEIGHTS = "weights"
CLIP = 0.3  # L2, nats
FEWEST = 50  # tokens in either half of a client that counts
REFERENCE = (1000.0, 0.4)
USUAL_TOKENS = 800.0  # at which weights outside of LEAST .. MOST are not worth asking for
LEAST, MOST = 0.15, 0.92


def sensible(a: float | np.ndarray, c: float | np.ndarray) -> bool | np.ndarray:
    """Whether the weight of the base of a usual client is neither next to nothing nor next to all."""
    weight = base_weight(USUAL_TOKENS, a, c)
    return (weight >= LEAST) & (weight <= MOST)


PAIRS = tuple(
    (a, c)
    for a in (62.0, 125.0, 250.0, 500.0, 1000.0, 2000.0, 4000.0)
    for c in (0.0, 0.2, 0.4, 0.6)
    if sensible(a, c) and (a, c) != REFERENCE
)


def client_update(message: WeightsMessage, block: CountsBlock) -> Statistics:
    """The leaf's exact sum on the grid. Zeros for a block without second halves."""
    return {message.release: IntegerSum(contributions(message, block).sum(axis=0).astype(np.int64))}


def contributions(message: WeightsMessage, block: CountsBlock) -> np.ndarray:
    """(C, len(PAIRS)) float64 whole numbers: what each client adds to the release, of a norm of at most 2**16."""
    other = block.heldout
    if other is None or not block.clients:
        return np.zeros((block.clients, len(PAIRS)))
    return on_grid(losses(message, block, other), (block.totals >= FEWEST) & (other.totals >= FEWEST))


def losses(message: WeightsMessage, block: CountsBlock, other: CountsBlock) -> np.ndarray:
    """(C, len(PAIRS)) nats a token of the second half, beyond those of REFERENCE.

    l_u(a, c) = -sum_t q2_ut ln(lam_u base_ut + (1 - lam_u) q1_ut)
    """
    client = other.rows_of_entries()
    share = other.data * inverse_totals(other)[client]
    own = own_values(block, client, other.indices)
    base = values_at(_mixtures(message, block), message.rows, client, other.indices)

    def loss(a: float, c: float) -> np.ndarray:
        weight = base_weight(block.totals, a, c)[client]
        return -segment_sums(share * np.log(weight * base + (1.0 - weight) * own), other.indptr)

    reference = loss(*REFERENCE)
    return np.stack([loss(a, c) - reference for a, c in PAIRS], axis=1)


def on_grid(values: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """(C, p) float64 whole numbers of both signs: rows clipped at CLIP in L2, in grid steps, cut towards zero.

    counted: (C,) bool; the rows of the others are zeros. The bound 2**16 is checked on the whole numbers.
    """
    clients, pairs = values.shape
    rows = np.arange(clients + 1) * pairs
    flat = np.where(counted[:, None], values, 0.0).ravel()
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        squares = segment_sums(flat * flat, rows)
        usable = np.isfinite(squares)
        factors = np.where(usable, np.minimum(1.0, CLIP / np.sqrt(squares)) / grid_step(CLIP), 0.0)
    grid = np.trunc(np.where(np.repeat(usable, pairs), flat, 0.0) * np.repeat(factors, pairs))
    return bound_norms(grid, rows).reshape(clients, pairs)


def _mixtures(message: WeightsMessage, block: CountsBlock) -> np.ndarray:
    """(C, r) weights over message.rows of each client's base, from its first half."""
    if len(message.rows) == 1:
        return np.ones((block.clients, 1))
    if not message.log_centres.size:
        return mixture_weights(block, message.rows, message.mixture_prior, message.mixture_steps)
    weights = np.zeros((block.clients, len(message.rows)))
    weights[np.arange(block.clients), assign_in_float32(block, message.log_centres)] = 1.0
    return weights
