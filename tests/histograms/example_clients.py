"""Small populations of counts for the tests, and slow, dense ways to compute what the leaf kernels compute."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st

from fedcore.population.blocks import CountsBlock, counts_block
from fedcore.population.synthetic import RUN, SyntheticSettings, generate, true_centres


def block_of(counts, heldout=None, first: int = 0, leaf: int = 0) -> CountsBlock:
    """A block of dense counts (clients, d)."""
    other = None if heldout is None else sp.csr_matrix(np.asarray(heldout, np.float64))
    return counts_block(first, leaf, sp.csr_matrix(np.asarray(counts, np.float64)), other)


def dense_histograms(block: CountsBlock) -> np.ndarray:
    """(C, d) float64 q_u, zeros for a client without tokens."""
    return block.csr.toarray().astype(np.float64) / np.maximum(block.totals, 1.0)[:, None]


def random_counts(generator: np.random.Generator, clients: int, d: int, tokens: int = 30) -> np.ndarray:
    """Skewed counts; some clients have no token, some one, one has very many."""
    shape = generator.dirichlet(0.3 * np.ones(d), clients)
    sizes = generator.choice([0, 1, tokens, 10 * tokens], clients, p=[0.1, 0.2, 0.6, 0.1])
    counts = np.stack([generator.multinomial(size, row) for size, row in zip(sizes, shape, strict=True)])
    counts[clients // 2] *= 2**25
    return counts


@st.composite
def counts_arrays(draw, max_clients: int = 8, max_features: int = 6):
    """(C, d) int64 counts from 0 to 2**40, with empty, one-token and huge clients."""
    d = draw(st.integers(2, max_features))
    count = st.sampled_from([0, 0, 0, 1, 1, 2, 7, 500, 2**24 + 1, 2**40])
    rows = draw(st.lists(st.lists(count, min_size=d, max_size=d), min_size=1, max_size=max_clients))
    return np.array(rows, np.int64)


def synthetic(settings: SyntheticSettings, seed: int) -> tuple[CountsBlock, np.ndarray]:
    """A synthetic population as one block, and its true centres."""
    parts = [generate(settings, seed, run) for run in range(-(-settings.clients // RUN))]
    empty = [sp.csr_matrix(train.shape) for train, _ in parts]
    heldout = sp.vstack([other if other is not None else none for (_, other), none in zip(parts, empty, strict=True)])
    return counts_block(0, 0, sp.vstack([train for train, _ in parts]), heldout), true_centres(settings, seed)
