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


def mixture(rows: np.ndarray, weights: np.ndarray, means: np.ndarray, variances: np.ndarray):
    """E-step sums of a Gaussian mixture with diagonal covariances, as one writes it: a function that returns
    s0 (K,), s1 (K, D), s2 (K, D). rows: (N, D) float64, standardised."""

    def round():
        precisions = 1 / variances
        logs = np.log(weights) - 0.5 * (np.log(variances) + means**2 * precisions).sum(axis=1)
        joint = logs + rows @ (means * precisions).T - 0.5 * (rows**2 @ precisions.T)
        r = np.exp(joint - joint.max(axis=1, keepdims=True))
        r /= r.sum(axis=1, keepdims=True)
        return r.sum(axis=0), r.T @ rows, r.T @ rows**2

    return round


def _natural(weights, means, variances):
    """(K, 1 + 2 D): ln pi_g f_g(x) = phi (1, x, x^2) up to a constant."""
    precisions = 1 / variances
    logs = np.log(weights) - 0.5 * (np.log(variances) + means**2 * precisions).sum(axis=1)
    return np.hstack([logs[:, None], means * precisions, -0.5 * precisions])


def _tile(rows: np.ndarray, phi: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Responsibilities (K, n); features are left in z (1 + 2 D, n)."""
    d = rows.shape[1]
    np.copyto(z[1 : 1 + d], rows.T)
    np.multiply(z[1 : 1 + d], z[1 : 1 + d], out=z[1 + d :])
    r = phi @ z
    r -= r.max(axis=0)
    np.exp(r, out=r)
    r /= r.sum(axis=0)
    return r


def mixture_in_tiles(rows: np.ndarray, weights, means, variances, tile: int = 8000):
    """The same sums, (K, 1 + 2 D), as fast as we could write them: tiles that stay in the cache, rows last."""
    z = np.ones((1 + 2 * rows.shape[1], tile))

    def round():
        phi, sums = _natural(weights, means, variances), 0.0
        for low in range(0, len(rows), tile):
            part = rows[low : low + tile]
            features = z[:, : len(part)]
            sums = sums + _tile(part, phi, features) @ features.T
        return sums

    return round


def mixture_by_client(rows: np.ndarray, each: int, weights, means, variances, tile: int = 8000):
    """The mean of every client, (C, K, 1 + 2 D), clients of `each` rows: what a round needs that tells them apart."""
    d, tile = rows.shape[1], tile // each * each
    z, turned = np.ones((1 + 2 * d, tile)), np.empty((tile, 1 + 2 * d))

    def round():
        phi, sums = _natural(weights, means, variances), np.empty((len(rows) // each, len(weights), 1 + 2 * d))
        for low in range(0, len(rows), tile):
            part = rows[low : low + tile]
            features, clients = z[:, : len(part)], len(part) // each
            r = _tile(part, phi, features).reshape(len(weights), clients, each).transpose(1, 0, 2)
            np.copyto(turned[: len(part)], features.T)
            np.matmul(r, turned[: len(part)].reshape(clients, each, -1), out=sums[low // each : low // each + clients])
        sums /= each
        return sums

    return round


def seconds(function, repeats: int = 7, clock=time.perf_counter) -> float:
    """Median seconds of a call, after one that does not count. clock: `time.process_time` for seconds of the CPU."""
    function()
    taken = []
    for _ in range(repeats):
        started = clock()
        function()
        taken.append(clock() - started)
    return median(taken)
