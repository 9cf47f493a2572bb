"""What the experiments of FedGrEM share: runs of one block in memory, lines of the tables, a plain loop beside them.

Runs are made by the method's own functions in the engine's order, on one block in this process: the numbers are those
of a stored run, without files for every round.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from fedcore.papers.experiment import Options
from fedcore.papers.fedgrem.paper_gradient_em import PaperGradientEM, PaperGradientEMConfig

from fedcore.methods.gradient_em import central
from fedcore.methods.mixture_models.local_steps import Rows, e_step
from fedcore.population.blocks import RowsBlock, leaves
from fedcore.rounds.method import AnyMethod, Memory, PublicFacts
from fedcore.rounds.statistics import Statistics, merge_all, values

CLIENTS_PER_LEAF = 1024

# label: (name in the paper's tables, settings)
LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "FedGrEM (default)": ("FedGrEM", {}),
    "FedGrEM (paper)": ("FedGrEM", {"preset": "paper"}),
    "FedGrEM (paper, one sweep)": ("FedGrEM", {"preset": "paper", "one_sweep": True}),
    "Local-EM": ("Local-EM", {"algorithm": "local-fit"}),
    "Local-EM, unit covariance": ("", {"algorithm": "local-em"}),
    "Local-GrEM": ("Local-GrEM", {"algorithm": "local-grem", "rounds": 300}),
    "FedEM": ("FedEM", {"algorithm": "fedem"}),
    "TGMM": ("TGMM", {"algorithm": "tgmm"}),
    "FedGMM": ("FedGMM", {"algorithm": "fedgmm"}),
    "Pooled-EM": ("Pooled-EM", {"algorithm": "pooled-em"}),
    "Pooled-GrEM": ("Pooled-GrEM", {"algorithm": "pooled-grem", "rounds": 300}),
}
GAUSSIANS = tuple(label for label in LINES if label != "FedGMM")
REGRESSIONS = tuple(label for label in LINES if label not in ("TGMM", "FedGrEM (paper, one sweep)"))


@dataclass(frozen=True, slots=True)
class Ran:
    """seconds: of the whole run; of_start: of it, before the first round. rounds: that were made."""

    method: AnyMethod
    state: Any
    memory: Memory
    block: RowsBlock
    seconds: float
    of_start: float
    rounds: int


def block_of(rows: Sequence[np.ndarray]) -> RowsBlock:
    """rows: (n_k, d) of each client."""
    ptr = np.concatenate([[0], np.cumsum([len(own) for own in rows])]).astype(np.int64)
    return RowsBlock(0, 0, ptr, np.concatenate(rows))


def fedgrem(settings: Mapping[str, Any]) -> PaperGradientEM:
    """The method of a line of the tables."""
    return PaperGradientEM(PaperGradientEMConfig(**settings))


def run(block: RowsBlock, seed: int, method: AnyMethod) -> Ran:
    """Trains a method on all clients of the block, to its end."""
    facts = PublicFacts("rows", block.features, CLIENTS_PER_LEAF, None, block.clients, None, seed)
    state, begun, of_start = method.init(facts), time.perf_counter(), 0.0
    parts = list(leaves(block, CLIENTS_PER_LEAF))
    memory: Memory = {}
    while (message := method.message(state)) is not None:
        if state.phase == "rounds" and not of_start:
            of_start = time.perf_counter() - begun
        answers = []
        for leaf in parts:
            at = slice(leaf.first - block.first, leaf.first - block.first + leaf.clients)
            mine = {name: value[at] for name, value in memory.items()} if memory else None
            answers.append(method.client_update(message, leaf, mine))
        kept = [own for _, own in answers if own is not None]
        memory = {name: np.concatenate([own[name] for own in kept]) for name in (kept[0] if kept else ())}
        total = merge_all(statistics for statistics, _ in answers)
        state, _ = method.server_update(state, values(cast(Statistics, total)))
    return Ran(method, state, memory, block, time.perf_counter() - begun, of_start, state.round)


def per_task_loop(block: RowsBlock, theta: np.ndarray, w: np.ndarray, rounds: int) -> float:
    """Seconds of Algorithm 1 for Gaussians with the paper's schedule, as a loop over the clients (tasks) in NumPy.

    theta: (K, R, p), w: (K, R) the starts, components in one order
    """
    begun = time.perf_counter()
    n, theta, w = np.diff(block.ptr).astype(np.float64), theta.copy(), w.copy()
    eta, penalty = 0.95 / np.maximum(w, 1e-3), 1.0
    v: np.ndarray | None = None
    for _ in range(rounds):
        sent = np.empty_like(theta)
        for k in range(block.clients):
            own = Rows(block.x[block.ptr[k] : block.ptr[k + 1]], None, np.array([0, int(n[k])]))
            sums = e_step(own, theta[k : k + 1], w[k : k + 1])
            w[k] = sums.mass[0] / n[k]
            sent[k] = theta[k] + eta[k][:, None] * sums.gradient[0] / n[k]
        penalty = central.next_penalty(penalty, 0.1, 2.0, theta.shape[2], block.clients)
        found = central.solve(sent, n, penalty, v)
        v, theta = found.v, found.theta
    return time.perf_counter() - begun


def repetitions(options: Options, quick: int, whole: int) -> range:
    return range(options.seeds or (quick if options.quick else whole))


def mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values))


def with_sd(values: Sequence[float], places: int = 2) -> str:
    """ "1.13 (.47)" """
    if len(values) < 2:
        return f"{mean(values):.{places}f}"
    return f"{mean(values):.{places}f} ({np.std(values, ddof=1):.{places}f})".replace("(0.", "(.")
