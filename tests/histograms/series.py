"""Series of private runs in memory, and the tables of them in docs/notes/privacy-histograms.md.

    FEDCORE_DATA=... python -m tests.histograms.series

Noise is rounded normal. A series is followed twice: with all that a run leaves to the next one ("pooled"), and with the
centres, the mean and the counts alone ("centres alone").
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from fedcore.methods.histograms import Histograms, HistogramsConfig, HistogramsState
from fedcore.methods.histograms.clients import assign, inverse_totals
from fedcore.methods.histograms.scores import SMOOTHING
from fedcore.methods.histograms.simplex import assignment_logs, smooth
from fedcore.methods.histograms.start import NAMES
from fedcore.population.blocks import CountsBlock, counts_block, segment_sums
from fedcore.population.synthetic import SyntheticSettings
from tests.histograms.example_clients import synthetic
from tests.histograms.run_in_memory import facts, rounded_normal, run

FEWEST_TOKENS = 50  # of a client of text_blogs that is scored, in either half
RHO = {"reddit-like": 0.0111, "text_blogs": 0.027}


def series(
    block_of_run: Callable[[int], CountsBlock], rho: float, runs: int, seed: int, *, pooled: bool = True
) -> list[HistogramsState]:
    """The states that equal runs 1 .. `runs` end with, each but the first started from the one before it."""
    method, noise = Histograms(HistogramsConfig()), rounded_normal(np.random.default_rng(seed))
    start, states = None, []
    for number in range(1, runs + 1):
        block = block_of_run(number)
        public = facts(block.features, rho=rho, nominal=block.clients, seed=1000 * seed + number)
        states.append(run(method, block, replace(public, warm_start=start), noise)[0])
        left = method.warm_start_of(states[-1])
        arrays = {name: value for name, value in left.items() if pooled or name in NAMES}
        start = method.checked_warm_start(arrays, "the run before", block.features)
    return states


def loss(state: HistogramsState, block: CountsBlock) -> float:
    """Mean KL(held out || centre of the client's cell) in nats over the clients with FEWEST_TOKENS in both parts."""
    heldout = block.heldout
    scored = (block.totals >= FEWEST_TOKENS) & (heldout.totals >= FEWEST_TOKENS)
    cells = assign(block, assignment_logs(state.centres, 1e-6))
    rows = np.repeat(np.arange(block.clients), np.diff(heldout.indptr))
    test = heldout.data * inverse_totals(heldout)[rows]
    logs = np.log(smooth(state.centres, SMOOTHING))[cells[rows], heldout.indices]
    return float(segment_sums(test * (np.log(test) - logs), heldout.indptr)[scored].mean())


# --- populations ----------------------------------------------------------------------------------------------------


def reddit_like(seed: int, clients: int = 20_000) -> CountsBlock:
    return synthetic(SyntheticSettings(clients=clients), seed)[0]


def half_changed(one: CountsBlock, other: CountsBlock) -> CountsBlock:
    """Every second client is that of `other`."""
    odd = sp.diags_array(np.arange(one.clients) % 2.0).tocsr()
    even = sp.eye_array(one.clients).tocsr() - odd
    train, heldout = (even @ a.csr + odd @ b.csr for a, b in ((one, other), (one.heldout, other.heldout)))
    return counts_block(0, 0, sp.csr_matrix(train), sp.csr_matrix(heldout))


def text_blogs(folder: str) -> CountsBlock:
    arrays = np.load(Path(folder) / "text_blogs" / "text_blogs_by_post.npz")

    def part(name: str) -> sp.csr_matrix:
        data, indices = arrays[f"{name}_data"].astype(np.float32), arrays[f"{name}_indices"].astype(np.int32)
        return sp.csr_matrix((data, indices, arrays[f"{name}_indptr"]), shape=arrays[f"{name}_shape"])

    return counts_block(0, 0, part("train"), part("test"))


# --- tables ---------------------------------------------------------------------------------------------------------


def _line(what: str, losses: list[list[float]], clusters: list[int]) -> str:
    means = np.mean(losses, axis=0)
    return f"| {what} | {' '.join(map(str, clusters))} | " + " | ".join(f"{mean:.3f}" for mean in means) + " |"


def _table(name: str, blocks_of: Callable[[int], Callable[[int], CountsBlock]], rho: float, runs: int) -> None:
    for pooled in (True, False):
        losses = []
        for seed in range(3):
            of = blocks_of(seed)
            states = series(of, rho, runs, seed, pooled=pooled)
            losses.append([loss(state, of(number)) for number, state in enumerate(states, 1)])
        what = f"{name}, {'pooled' if pooled else 'centres alone'}"
        print(_line(what, losses, [len(state.centres) for state in states]), flush=True)


def main() -> None:
    same = {seed: reddit_like(seed) for seed in range(3)}
    _table("reddit-like", lambda seed: lambda number: same[seed], RHO["reddit-like"], 10)
    if folder := os.environ.get("FEDCORE_DATA"):
        blogs = text_blogs(folder)
        _table("text_blogs", lambda seed: lambda number: blogs, RHO["text_blogs"], 10)
    changed = {seed: half_changed(same[seed], reddit_like(seed + 10)) for seed in range(3)}
    _table(
        "half changed", lambda seed: lambda number: same[seed] if number <= 5 else changed[seed], RHO["reddit-like"], 10
    )
    _table("half changed, fresh", lambda seed: lambda number: changed[seed], RHO["reddit-like"], 5)


if __name__ == "__main__":
    main()
