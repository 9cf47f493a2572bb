"""CPU-seconds of a whole private histograms run, beside a plain SciPy script with the same releases.

The script is this file: `python benchmarks/plain_histograms.py COUNTS.npz OUT.npz` imports NumPy and SciPy alone. It
has no ledger, no report and no secure noise. It shrinks and floors the released sums where a run denoises them.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import scipy.sparse as sp

CLIENTS, EPSILON, RHO = 10_000, 2.0, 0.0710427  # of epsilon at delta = 1e-8
CLUSTERS = ROUNDS = 7
CLIP, FIRST_CLIP, GRID = 3.0, 0.2, 2**16


def measure(options) -> dict:
    from benchmarks import floors
    from benchmarks.command import children_cpu, train
    from benchmarks.measured import in_turns
    from benchmarks.populations import reddit_like

    population = reddit_like(options.dir, options.clients)
    counts, out = options.dir / "counts.npz", options.dir / "plain.npz"
    sp.save_npz(counts, floors.counts_in_memory(population))
    settings = {"epsilon": EPSILON, "clusters": CLUSTERS, "rounds": ROUNDS}
    script = [sys.executable, __file__, str(counts), str(out)]
    taken = in_turns(
        {
            "fedcore train --local": lambda: train("histograms", population.path, settings, workers=None),
            "plain script": lambda: subprocess.run(script, check=True),
        },
        options.repeats,
        children_cpu,
    )
    plain = taken["plain script"]
    rows = [{"command": name, "cpu_s": cpu, "of_plain": cpu.over(plain)} for name, cpu in taken.items()]
    return {"benchmark": "plain_histograms", "clients": options.clients, "rows": rows}


# --- the script -------------------------------------------------------------------------------------------------------


def fitted(counts: sp.csr_matrix, noise: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Centres (k, d) and the mean (d,) of clients with counts (n, d)."""
    d, lengths = counts.shape[1], np.diff(counts.indptr)
    totals = np.repeat(np.maximum(np.asarray(counts.sum(axis=1)).ravel(), 1), lengths).astype(np.float32)
    q = sp.csr_matrix((counts.data / totals, counts.indices, counts.indptr), counts.shape)

    def clipped(whitening: np.ndarray, clip: float) -> np.ndarray:
        y = q.data * whitening[q.indices]
        squares = np.zeros(len(lengths))
        squares[lengths > 0] = np.add.reduceat(y * y, q.indptr[:-1][lengths > 0])
        return np.trunc(
            y * np.repeat(np.minimum(1, clip / np.sqrt(np.maximum(squares, 1e-300))) * GRID / clip, lengths)
        )

    def released(z: np.ndarray, share: float, cells: np.ndarray | None = None) -> tuple[np.ndarray, float]:
        k, keys = (1, q.indices) if cells is None else (CLUSTERS, np.repeat(cells * d, lengths) + q.indices)
        sigma = np.sqrt(0.5 / (share * RHO))
        sums = np.bincount(keys, z, k * d).reshape(k, d)
        return sums + np.rint(noise.normal(0, sigma * GRID, sums.shape)), sigma

    flat = released(clipped(np.ones(d), FIRST_CLIP), 0.04)[0][0]
    w = _metric(_histograms(flat / flat.sum()))
    mean = released(clipped(1 / np.sqrt(w), CLIP), 0.04)[0][0] * np.sqrt(w)
    mean = _histograms(mean / mean.sum())
    w = _metric(mean)
    z, last = clipped(1 / np.sqrt(w), CLIP), np.zeros((CLUSTERS, d))
    centres = _histograms(mean * np.exp(0.5 * noise.standard_normal((CLUSTERS, d))))
    for t in range(1, ROUNDS + 1):
        cells = (q @ np.log(centres + 1e-6).T.astype(np.float32)).argmax(axis=1).astype(np.int32)
        sums, sigma = released(z, 0.92 / (ROUNDS + 2) * (2 if t > ROUNDS - 2 else 1), cells)
        sums *= CLIP / GRID * np.sqrt(w)
        pooled, last = sums + last if t == ROUNDS else sums, sums
        sizes = pooled.sum(axis=1, keepdims=True)
        rows = pooled / np.maximum(sizes, 1)
        far = ((rows - mean) ** 2 / w).sum(axis=1, keepdims=True)
        kept = np.maximum(0.1, 1 - d * (CLIP * sigma / np.maximum(sizes, 1)) ** 2 / far)
        centres = _histograms(np.where(sizes > 6 * CLIP * sigma, mean + kept * (rows - mean), mean))
    return centres, mean


def _metric(mean: np.ndarray) -> np.ndarray:
    p = np.maximum(mean, 3e-5)
    w = p * np.sqrt(1 / 150 + p)
    return w / w.sum()


def _histograms(rows: np.ndarray) -> np.ndarray:
    rows = np.maximum(rows, 1e-5)
    return rows / rows.sum(axis=-1, keepdims=True)


if __name__ == "__main__":
    made = fitted(sp.load_npz(sys.argv[1]), np.random.default_rng())
    np.savez(sys.argv[2], centres=made[0], mean=made[1])
