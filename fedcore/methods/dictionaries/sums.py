"""Global atoms from sums over the samples of all clients, and from nothing else.

    start    singular vectors of all samples, from sums of their products
    round    X'X and X'Y of codes X and samples Y; every atom moves to its minimum given the others and the codes

Sums of clients are sums of the pooled samples, so the dictionary is the one that a learner of all samples in one place
would have. Matching pursuit codes each sample with a number of atoms that differs between samples and rounds, so that
one dictionary serves all of them. The first rounds code with one atom, then with a few: singular vectors describe
single samples poorly, and codes of one atom find the directions around which samples cluster.

Everything here is a function of arrays; `clients` and `server` call it.

Sources: Mairal, Bach, Ponce, Sapiro 2010, Algorithm 2 (the move); Pati, Rezaiifar, Krishnaprasad 1993 (the codes).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from fedcore.methods.dictionaries.state import SumsMessage
from fedcore.methods.dictionary_learning.operators import normalise
from fedcore.methods.dictionary_learning.sparse_codes import omp_with_errors
from fedcore.randomness import client_uniforms, stream

GOLDEN = (5**0.5 - 1) / 2  # multiples of it fill the unit interval evenly
OCTAVES = 1100  # powers of two of a norm, each way
VOTES_IN_OCTAVE = 4
RANK = 1e-10  # share of the largest, below which an eigenvalue is rounding
WIDE = 2048  # features, beyond which products of all pairs are too many numbers
BINS = 2 * OCTAVES * VOTES_IN_OCTAVE
FIRST_ROUNDS = ((4, 1, 1), (7, 2, 3))  # rounds up to which codes have so few atoms
SETTLING_ROUNDS = 3  # after them, before moves are lengthened
LAST_ROUNDS = 15  # in which no atom is replaced any more, as a new one takes some rounds to find its place
AHEAD = 0.8  # of the last move
LOUD = 3.0  # norms of the median client, beyond which a sample counts as one of that norm
LARGEST_IN_BIN = 2 ** (0.5 / VOTES_IN_OCTAVE)  # over the middle of its bin: so clients of equal sizes count whole
CAP = 3.0  # samples of the median client, beyond which further samples of a client count for nothing
TRIMMED = 4  # the first round in which clients that fit badly count less
ODD = 2.0  # shares of energy left of the median client, beyond which a client fits badly
CLIENT = 1.25  # norms of the median client, to which a client's samples are scaled down if they have more on the whole


# --- samples --------------------------------------------------------------------------------------------------------


def numbers_of_rows(
    seed: int, purpose: str, round: int, first: int, clients: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """(c, m) numbers of [0, 1) for samples of clients, spread evenly over every client's samples.

    clients: (c,) their places after client `first` of the population; rows: (m,) places of the samples in the client.
    A number depends on seed, purpose, round, client and row alone.
    """
    total = int(clients.max(initial=-1)) + 1
    offsets = client_uniforms(seed, purpose, round, first, total)[clients, 0]
    return (offsets[:, None] + GOLDEN * rows) % 1.0


def drawn_sparsity(numbers: np.ndarray, least: int, most: int) -> np.ndarray:
    """int64 k of {least, ..., most}, in the shape of the numbers of [0, 1)."""
    return least + np.minimum((numbers * (most - least + 1)).astype(np.int64), most - least)


@dataclass(frozen=True, slots=True)
class Levelled:
    """Samples of clients, none of them louder than it may be.

    samples: (c, m, d); energy: (c,) sum of their squared norms; nonzero: (c,) samples other than zero; loud: how many
    were scaled down
    """

    samples: np.ndarray
    energy: np.ndarray
    nonzero: np.ndarray
    loud: int


def levelled(samples: np.ndarray, cap: float) -> Levelled:
    """Samples (c, m, d) with those beyond norm `cap` scaled down to cap / LOUD, the norm of the median client's: so the
    louder a sample is, the less it gains by that. As they are if cap is 0 or infinite."""
    squares = np.einsum("cmd,cmd->cm", samples, samples)
    loud = np.zeros(squares.shape, bool) if not 0 < cap < np.inf else squares > cap * cap
    if loud.any():
        factors = np.ones(squares.shape)
        factors[loud] = cap / LOUD / np.sqrt(squares[loud])
        samples = samples * factors[..., None]
        squares = np.where(loud, (cap / LOUD) ** 2, squares)
    return Levelled(samples, squares.sum(1), np.count_nonzero(squares, axis=1), int(np.count_nonzero(loud)))


def client_factors(energy: np.ndarray, nonzero: np.ndarray, cap: float) -> np.ndarray:
    """(c,) at most 1: what a client's levelled samples are multiplied by, so that their root mean square norm is at
    most CLIENT times the median client's. energy, nonzero: as in `Levelled`, of all of its samples."""
    if not 0 < cap < np.inf:
        return np.ones(len(energy))
    most = CLIENT * cap / LOUD
    norms = np.sqrt(energy / np.maximum(nonzero, 1))
    return most / np.maximum(norms, most)


def client_weights(sizes: np.ndarray, left: np.ndarray, message: SumsMessage) -> np.ndarray:
    """(c,) of [0, 1]: what a client's sums are multiplied by. No client counts for more samples than CAP median clients
    have. From round TRIMMED on, clients whose samples the atoms rebuild far worse than the median client's
    count less, so that few odd clients cannot take atoms from all others.

    sizes: samples of each; left: share of its energy that the last codes left, 0 where that is not known
    """
    weights = np.minimum(1.0, CAP * message.rows / np.maximum(sizes, 1)) if message.rows > 0 else np.ones(len(sizes))
    if message.number >= TRIMMED and message.left > 0:
        most = ODD * message.left
        weights = weights * (most / np.maximum(left, most)) ** 2
    return weights


def vote(norm: np.ndarray) -> np.ndarray:
    """(c,) int64 which bin of a histogram of norms > 0 a client votes for; bins are quarters of octaves."""
    exponent = np.log2(np.maximum(norm, 2.0**-OCTAVES * 2)) + OCTAVES
    return np.clip(exponent * VOTES_IN_OCTAVE, 0, BINS - 1).astype(np.int64)  # cut first: squares may be infinite


def median_of_votes(votes: np.ndarray) -> float:
    """Geometric middle of the bin that contains the median vote, perhaps inf; 0 without votes. votes: (bins,)."""
    total = votes.sum()
    if total <= 0:
        return 0.0
    at = int(np.searchsorted(np.cumsum(votes), total / 2))
    exponent = (at + 0.5) / VOTES_IN_OCTAVE - OCTAVES
    return float(2.0**exponent) if exponent < sys.float_info.max_exp else np.inf


# --- sums of clients ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SharedSums:
    """What samples add up to, for rg atoms of d features.

    xx: (rg, rg) codes times codes; xy: (rg, d) codes times samples; nonzero: number of codes
    """

    xx: np.ndarray
    xy: np.ndarray
    nonzero: float = 0.0

    @classmethod
    def none(cls, atoms: int, features: int) -> SharedSums:
        return cls(np.zeros((atoms, atoms)), np.zeros((atoms, features)))

    def add(self, samples: np.ndarray, common: np.ndarray, sparsity: np.ndarray) -> np.ndarray:
        """Add samples (n, d), coded by atoms (rg, d). sparsity: (n,) atoms of each code. Returns squared residuals
        (n,)."""
        x, errors = omp_with_errors(samples, common, sparsity)
        self.xx += x.T @ x
        self.xy += x.T @ samples
        self.nonzero += float(np.count_nonzero(x))
        return errors

    def include(self, other: SharedSums, factor: float) -> None:
        """Adds sums of samples that are to be multiplied by a factor, as their codes then are."""
        self.xx += factor**2 * other.xx
        self.xy += factor**2 * other.xy
        self.nonzero += other.nonzero


def moments(samples: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(d, d) sum of products of samples (n, d), each scaled to norm 1, so that large ones count no more than others.
    weights: (n,) of the samples."""
    unit = normalise(samples)[0]
    return (unit * weights[:, None]).T @ unit


def prints(samples: np.ndarray) -> np.ndarray:
    """(c,) of samples (c, m, d): sums of the squares of their products with a fixed vector, which no run changes. Other
    samples have other sums, but for their order and their signs, on which no sum of codes depends."""
    d = samples.shape[-1]
    return ((samples @ stream(0, "dictionaries/print").standard_normal(d)) ** 2).sum(1)


def signed_sums(samples: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """(v, d) sums of samples (n, d), each scaled to norm 1, with signs (n, v)."""
    return signs.T @ normalise(samples)[0]


# --- moves of the server --------------------------------------------------------------------------------------------


def sparsity_in(number: int, least: int, most: int) -> tuple[int, int]:
    """(least, most) atoms of a code in round `number`, from 1: one at first, then a few, then as asked for."""
    for rounds, low, high in FIRST_ROUNDS:
        if number <= rounds:
            return min(low, most), min(high, most)
    return least, most


def ahead(common: np.ndarray, previous: np.ndarray, number: int) -> np.ndarray:
    """(rg, d) unit atoms at which samples are coded in round `number`: those that a further part of the last move leads
    to, once codes are of their final length. Rounds of codes and moves in turn go a long way in small steps.
    """
    if number <= FIRST_ROUNDS[-1][0] + SETTLING_ROUNDS or previous.shape != common.shape:
        return common
    atoms, norms = normalise(common + AHEAD * (common - previous))
    return np.where(norms[:, None] > 0, atoms, common)


def singular_atoms(moments: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """(count, d) leading eigenvectors of sums of products (d, d), filled up by random directions."""
    values, vectors = np.linalg.eigh((moments + moments.T) / 2)
    rank = int((values > RANK * max(values[-1], 0.0)).sum())
    found = vectors[:, ::-1][:, : min(count, rank)].T
    largest = np.abs(found).argmax(1)[:, None]
    found = found * np.where(np.take_along_axis(found, largest, 1) < 0, -1.0, 1.0)
    return _filled_up(found, count, generator)


def orthonormal_atoms(sums: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """(v, d) orthonormal atoms that span signed sums (v, d), filled up by random directions."""
    _, values, vectors = np.linalg.svd(sums, full_matrices=False)
    return _filled_up(vectors[values > RANK * max(values[0], 0.0)], len(sums), generator)


def _filled_up(atoms: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    rest = generator.standard_normal((count - len(atoms), atoms.shape[1]))
    return np.concatenate([atoms, normalise(rest)[0]])
