"""The table of private runs on text_blogs in docs/notes/privacy-histograms.md: losses over sizes and budgets.

    FEDCORE_DATA=... python -m tests.histograms.gates [n ...] [epsilon ...]

Mean KL(held out || estimate) in nats over the clients with 50 tokens in both parts, halves by post; the estimate is a
client's own mixture of all centres, mixed with its own histogram, at the run's own weight (a + c m) / (a + m), which is
released where the budget allows it, and in brackets at the best a and c of the grid of that release. The default
configuration, delta = n**-2, the whole budget of the population without spares, rounded normal noise, mean of three
seeds of noise and start, beside the losses of the plain mean without privacy and of the uniform histogram.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from fedcore.methods.histograms import Histograms, HistogramsConfig, HistogramsState, sizes
from fedcore.methods.histograms.clients import inverse_totals
from fedcore.methods.histograms.personal import base_of, own_values, values_at, weights_used
from fedcore.methods.histograms.scores import SMOOTHING
from fedcore.methods.histograms.state import USUAL_WEIGHTS
from fedcore.methods.histograms.weights import PAIRS, REFERENCE
from fedcore.population.blocks import CountsBlock, counts_block, segment_sums
from fedcore.privacy.gdp import mu_max
from fedcore.rounds.method import Worth
from tests.histograms.run_in_memory import facts, rounded_normal, run
from tests.histograms.series import FEWEST_TOKENS, text_blogs

CLIENTS = (500, 2000, 10_000)
EPSILONS = (0.5, 1.0, 2.0, 5.0, 15.0)
SEEDS = 3
GRID = (*PAIRS, REFERENCE)


def some_clients(block: CountsBlock, clients: int) -> CountsBlock:
    """So many of them, the same ones each time, in their order."""
    rows = np.sort(np.random.default_rng(0).permutation(block.clients)[:clients])
    assert block.heldout is not None
    return counts_block(0, 0, sp.csr_matrix(block.csr[rows]), sp.csr_matrix(block.heldout.csr[rows]))


def rho_of(epsilon: float, clients: int) -> float:
    return mu_max(epsilon, float(clients) ** -2) ** 2 / 2


class Scorer:
    """Scores clients of one block by what they held out."""

    def __init__(self, block: CountsBlock):
        assert block.heldout is not None
        self.block, heldout = block, block.heldout
        self.tokens, self.rows = heldout.indices, heldout.rows_of_entries()
        self.pointers = heldout.indptr
        self.scored = (block.totals >= FEWEST_TOKENS) & (heldout.totals >= FEWEST_TOKENS)
        self.test = heldout.data * inverse_totals(heldout)[self.rows]
        self.own = own_values(block, self.rows, self.tokens)
        self.entropy = segment_sums(self.test * np.log(self.test), self.pointers)

    def loss(self, base: np.ndarray | float, a: float, c: float) -> float:
        """base: of the held-out entries; lam = (a + c m) / (a + m) is its weight."""
        m = self.block.totals.astype(np.float64)
        lam = ((a + c * m) / (a + m))[self.rows]
        estimate = (lam * base + (1 - lam) * self.own + SMOOTHING) / (1 + self.block.features * SMOOTHING)
        kl = self.entropy - segment_sums(self.test * np.log(estimate), self.pointers)
        return float(kl[self.scored].mean())

    def best(self, base: np.ndarray) -> tuple[float, tuple[float, float]]:
        return min((self.loss(base, a, c), (a, c)) for a, c in GRID)

    def base(self, config: HistogramsConfig, state: HistogramsState) -> np.ndarray:
        weights, rows = base_of(config.for_vocabulary(self.block.features), state, self.block)
        return values_at(weights, rows, self.rows, self.tokens)

    def of_run(self, epsilon: float, seed: int) -> tuple[Worth, HistogramsState, np.ndarray]:
        """What a run of the default configuration is said to be worth, its last state, and its base."""
        config, n, d = HistogramsConfig(), self.block.clients, self.block.features
        public = replace(facts(d, rho=rho_of(epsilon, n), nominal=n, seed=seed), halves="document")
        state, _ = run(Histograms(config), self.block, public, rounded_normal(np.random.default_rng(seed)))
        return sizes.worth(config, public), state, self.base(config, state)

    def mean(self) -> np.ndarray:
        """Without privacy."""
        used = self.block.totals > 0
        q = sp.diags_array(inverse_totals(self.block)[used]) @ self.block.csr[used]
        return np.asarray(q.mean(axis=0)).ravel()[self.tokens]


def main(arguments: list[str]) -> None:
    clients = [int(word) for word in arguments if float(word) >= 100] or list(CLIENTS)
    epsilons = [float(word) for word in arguments if float(word) < 100] or list(EPSILONS)
    blogs, config = text_blogs(os.environ["FEDCORE_DATA"]), HistogramsConfig()
    for n in clients:
        block = some_clients(blogs, n)
        scorer = Scorer(block)
        uniform = np.full(len(scorer.tokens), 1.0 / block.features)
        mean = scorer.mean()
        print(
            f"n {n}: mean without privacy {scorer.loss(mean, *USUAL_WEIGHTS):.4f} (best {scorer.best(mean)[0]:.4f}), "
            f"uniform base {scorer.loss(uniform, *USUAL_WEIGHTS):.4f} (best {scorer.best(uniform)[0]:.4f})",
            flush=True,
        )
        for epsilon in epsilons:
            began, losses, best, pairs = time.monotonic(), [], [], []
            for seed in range(SEEDS):
                worth, state, base = scorer.of_run(epsilon, seed)
                pair = weights_used(config, state)
                losses.append(scorer.loss(base, *pair))
                best.append(scorer.best(base))
                pairs.append(pair)
            b = sizes.signal_to_noise(n, block.features, rho_of(epsilon, n), config.clip)
            worst = max(loss - least for loss, (least, _) in zip(losses, best, strict=True))
            print(
                f"| {n} | {epsilon:g} | b {b:.2f} {worth.word} K {len(state.centres)} | {np.mean(losses):.4f} "
                f"(best {np.mean([least for least, _ in best]):.4f}, at most {worst:.4f} better) | "
                f"each {np.round(losses, 4).tolist()} at {pairs}, best at {[pair for _, pair in best]} | "
                f"{'released' if state.weights_multiplier else 'usual'} | {time.monotonic() - began:.0f} s |",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
