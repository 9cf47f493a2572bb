"""Hand-written rounds: one process, all data in memory as one SciPy matrix, nothing else in the way."""

import time
from statistics import median

import numpy as np
import scipy.sparse as sp

from fedcore.population.store import Population


def counts_in_memory(population: Population) -> sp.csr_matrix:
    """(n, d) float32 counts of everybody."""
    return sp.vstack([population.read(index).csr for index in range(len(population.blocks))], format="csr")


def clustering(counts: sp.csr_matrix, centres: np.ndarray):
    """A round of Algorithm 2 in KL: returns a function without arguments."""
    totals = np.asarray(counts.sum(axis=1)).ravel()
    q = sp.diags(1 / np.maximum(totals, 1)) @ counts
    q = sp.csr_matrix(q, dtype=np.float32)
    clusters = len(centres)
    rows = np.arange(q.shape[0] + 1)

    def round():
        logs = np.log(centres + 1e-6).T.astype(np.float32)
        cells = (q @ logs).argmax(axis=1)
        one_hot = sp.csr_matrix((np.ones(q.shape[0], np.float32), cells, rows), shape=(q.shape[0], clusters))
        sums = (one_hot.T @ q).toarray()
        return sums / np.maximum(np.bincount(cells, minlength=clusters), 1)[:, None]

    return round


def clustering_by_bincount(counts: sp.csr_matrix, centres: np.ndarray):
    """The same round with float64 sums over (cell, token) keys."""
    totals = np.asarray(counts.sum(axis=1)).ravel()
    q = sp.csr_matrix(sp.diags(1 / np.maximum(totals, 1)) @ counts, dtype=np.float32)
    clusters, d = centres.shape
    lengths = np.diff(q.indptr)

    def round():
        logs = np.log(centres + 1e-6).T.astype(np.float32)
        cells = (q @ logs).argmax(axis=1).astype(np.int32)
        keys = np.repeat(cells * d, lengths) + q.indices
        sums = np.bincount(keys, q.data, clusters * d).reshape(clusters, d)
        return sums / np.maximum(np.bincount(cells, minlength=clusters), 1)[:, None]

    return round


def grid_sums(counts: sp.csr_matrix, centres: np.ndarray, weights: np.ndarray, clip: float = 3.0):
    """The private round: assign, whiten, clip, truncate to the grid, add exactly."""
    totals = np.asarray(counts.sum(axis=1)).ravel()
    q = sp.csr_matrix(sp.diags(1 / np.maximum(totals, 1)) @ counts, dtype=np.float32)
    clusters, d = centres.shape
    lengths = np.diff(q.indptr)
    filled = lengths > 0
    whitening = 1 / np.sqrt(weights)

    def round():
        logs = np.log(centres + 1e-6).T.astype(np.float32)
        cells = (q @ logs).argmax(axis=1).astype(np.int32)
        y = q.data * whitening[q.indices]
        squares = np.zeros(q.shape[0])
        squares[filled] = np.add.reduceat(y * y, q.indptr[:-1][filled])
        scale = np.minimum(1.0, clip / np.sqrt(np.maximum(squares, 1e-300))) * (2**16 / clip)
        z = np.trunc(y * np.repeat(scale, lengths))
        keys = np.repeat(cells * d, lengths) + q.indices
        return np.bincount(keys, z, clusters * d).astype(np.int64).reshape(clusters, d)

    return round


def seconds(function, repeats: int = 7) -> float:
    """Median seconds of a call, after one that does not count."""
    function()
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        taken.append(time.perf_counter() - started)
    return median(taken)
