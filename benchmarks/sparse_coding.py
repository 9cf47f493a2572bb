"""Codes by orthogonal matching pursuit, and sums of a round made of them, beside scikit-learn's: CPU-seconds, in turns.

Samples are sparse combinations of random atoms of norm 1, with noise. `sparse_encode` of scikit-learn is given the same
samples and atoms. Codes with 5 to 20 atoms, drawn for each sample, have to be as scikit-learn's with each number; a
round codes with such numbers and adds up codes times codes and codes times samples: *floor* with codes of scikit-learn,
one call for each number of atoms.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.measured import Measured, in_turns
from fedcore.methods.dictionaries.sums import SharedSums
from fedcore.methods.dictionary_learning.sparse_codes import omp

SHAPES = ((5000, 784, 100, 5), (5000, 784, 100, 10), (5000, 784, 100, 20), (5000, 64, 32, 5), (20_000, 64, 256, 10))
LEAST, MOST = 5, 20
STACKS = (100, 40, 64, 32, 5)  # dictionaries, samples of each, d, r, k
NOISE = 0.1


def measure(options) -> dict:
    with threadpool_limits(1):
        return {"benchmark": "sparse_coding", "rows": [row for rows in _rows(options.repeats) for row in rows]}


def _rows(repeats: int) -> Iterator[list[dict]]:
    for n, d, r, k in SHAPES:
        samples, atoms = problem(n, d, r, k)
        yield _compared(f"{n} samples of {d}, {k} of {r} atoms", samples, atoms, k, repeats)
    n, d, r, _ = SHAPES[2]
    samples, atoms = problem(n, d, r, MOST)
    each = np.random.default_rng(2).integers(LEAST, MOST + 1, n)
    yield _compared(f"{n} samples of {d}, {LEAST} to {MOST} of {r} atoms", samples, atoms, each, repeats)
    yield _round(samples, atoms, each, repeats)
    yield _stacks(repeats)


def _compared(what: str, samples: np.ndarray, atoms: np.ndarray, k: int | np.ndarray, repeats: int) -> list[dict]:
    taken = in_turns(
        {"ours": lambda: omp(samples, atoms, k), "theirs": lambda: scikit_learns(samples, atoms, k)}, repeats
    )
    ours, theirs = omp(samples, atoms, k), scikit_learns(samples, atoms, k)
    return [
        {
            "what": what,
            **_beside(taken["ours"], taken["theirs"]),
            "apart": float(np.abs(ours - theirs).max()),
            "other_supports": int(((ours != 0) != (theirs != 0)).any(1).sum()),
        }
    ]


def _round(samples: np.ndarray, atoms: np.ndarray, k: np.ndarray, repeats: int) -> list[dict]:
    def ours() -> float:
        return float(SharedSums.none(*atoms.shape).add(samples, atoms, k).sum())

    def floor() -> float:
        codes = scikit_learns(samples, atoms, k)
        codes.T @ codes, codes.T @ samples  # noqa: B018
        return float(((samples - codes @ atoms) ** 2).sum())

    taken = in_turns({"ours": ours, "theirs": floor}, repeats)
    what = f"sums of a round, {len(samples)} samples, {LEAST} to {MOST} of {len(atoms)} atoms"
    return [{"what": what, **_beside(taken["ours"], taken["theirs"]), "apart": abs(ours() / floor() - 1)}]


def _stacks(repeats: int) -> list[dict]:
    clients, n, d, r, k = STACKS
    made = [problem(n, d, r, k, seed) for seed in range(clients)]
    samples, atoms = (np.stack(each) for each in zip(*made, strict=True))

    def loop() -> np.ndarray:
        return np.stack([scikit_learns(y, each, k) for y, each in zip(samples, atoms, strict=True)])

    taken = in_turns({"ours": lambda: omp(samples, atoms, k), "theirs": loop}, repeats)
    what = f"{clients} clients of {n} samples of {d}, each with {r} atoms of its own, {k} of them"
    apart = float(np.abs(omp(samples, atoms, k) - loop()).max())
    return [{"what": what, **_beside(taken["ours"], taken["theirs"]), "apart": apart}]


def _beside(ours: Measured, theirs: Measured) -> dict:
    row = {"ms": ours, "scikit_learn_ms": theirs}
    return {name: time.map(lambda value: value * 1e3) for name, time in row.items()} | {"of": ours.over(theirs)}


def problem(n: int, d: int, r: int, k: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """(samples (n, d), atoms (r, d) of norm 1)."""
    generator = np.random.default_rng(seed)
    atoms = generator.standard_normal((r, d))
    atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    codes = generator.standard_normal((n, r)) * (generator.random((n, r)).argsort(1) < k)
    return codes @ atoms + NOISE * generator.standard_normal((n, d)), atoms


def scikit_learns(samples: np.ndarray, atoms: np.ndarray, k: int | np.ndarray) -> np.ndarray:
    """(n, r) codes with k atoms, or with those of each sample, (n,)."""
    from sklearn.decomposition import sparse_encode

    if isinstance(k, int):
        return sparse_encode(samples, atoms, algorithm="omp", n_nonzero_coefs=k)
    codes = np.empty((len(samples), len(atoms)))
    for count in np.unique(k):
        mine = k == count
        codes[mine] = sparse_encode(samples[mine], atoms, algorithm="omp", n_nonzero_coefs=int(count))
    return codes
