"""Small populations of counts for the tests, settings to run on them, and slow, dense ways to compute what the kernels
compute."""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st

from fedcore.methods.histograms import HistogramsConfig
from fedcore.methods.histograms.scores import Row, Table
from fedcore.population.blocks import CountsBlock, counts_block
from fedcore.population.synthetic import RUN, SyntheticSettings, generate, true_centres
from fedcore.rounds.method import PublicFacts
from tests.histograms.run_in_memory import facts


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


# --- settings and public facts ----------------------------------------------------------------------------------------

RELATIONS = ("add_or_remove_one", "replace_one")
D = 9
SMALL = HistogramsConfig(clusters=2, rounds=5, overseed=4, merge_after=2)


def warm_start(k: int, d: int = D, seed: int = 0, **more) -> dict[str, np.ndarray]:
    """k random centres."""
    return {"centres": np.random.default_rng(seed).dirichlet(np.ones(d), k), **more}


def public(relation: str = "add_or_remove_one", start: dict | None = None, **given) -> PublicFacts:
    """Of 60 nominal clients with D features and a budget of rho 0.5, start: the warm start."""
    base = facts(D, **{"rho": 0.5, "nominal": 60, **given})
    return dataclasses.replace(base, relation=relation, warm_start=start)


EVERYTHING = {  # each release that there is occurs in one of these
    "usual": (SMALL, None),
    "fewer tokens": (HistogramsConfig(clusters=2, rounds=4, overseed=2, reduction="frequency", keep=4), None),
    "many given": (HistogramsConfig(clusters=2, rounds=3, overseed=2, reduction="frequency", keep=5), warm_start(7)),
    "warm": (HistogramsConfig(clusters=2), warm_start(2, seed=3)),
}


def exact(array) -> list[int]:
    return [int(value) for value in np.asarray(array).ravel()]


def squared_change(one, other) -> int:
    """Squared L2 norm of the difference of two integer arrays, in Python integers."""
    return sum((a - b) ** 2 for a, b in zip(exact(one), exact(other), strict=True))


def two_groups(n: int = 400, d: int = 12, seed: int = 0):
    """(block, truth): clients of two well separated clusters, 60 tokens each."""
    generator = np.random.default_rng(seed)
    truth = np.vstack([np.linspace(1, 4, d), np.linspace(4, 1, d)]) ** 2
    truth /= truth.sum(axis=1, keepdims=True)
    counts = np.vstack([generator.multinomial(60, row, size=n // 2) for row in truth])
    return block_of(counts), truth


def distance(centres, truth) -> float:
    """The largest total variation of a true centre from the nearest found one."""
    return float(np.max(0.5 * np.abs(truth[:, None] - centres[None]).sum(axis=2).min(axis=1)))


def facts_of_two_groups(rho: float = 5.0, **more) -> PublicFacts:
    return dataclasses.replace(facts(12, rho=rho, nominal=400), **more)


# --- scores -----------------------------------------------------------------------------------------------------------


def row_of(table: Table, method: str, **wanted) -> Row:
    """The only row of this method with these fields."""
    (found,) = [r for r in table.rows if r.method == method and all(getattr(r, k) == v for k, v in wanted.items())]
    return found
