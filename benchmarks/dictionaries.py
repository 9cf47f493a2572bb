"""One round of PerMA in one process with all samples in memory, against hand-written NumPy: CPU-seconds, in turns.

200 samples of 64 numbers for each client, 32 orthonormal atoms of which 16 are shared, codes by a threshold, plain mean
of the clients. The floors do the same arithmetic: *loop* one client after the other with an SVD each, *stacked* 64
clients at once with polar factors by r x r matrices. A ratio of 1 is the floor's speed, 0.5 twice as fast.
"""

from __future__ import annotations

import numpy as np
from fedcore.papers.perma.truth import shared_atoms
from threadpoolctl import threadpool_limits

from benchmarks import floors, machine
from benchmarks.in_memory import InMemory, block_of
from benchmarks.measured import in_turns
from fedcore.methods.perma import Perma, PermaConfig

CLIENTS, SAMPLES, COLUMNS, ATOMS, SHARED = 1000, 200, 64, 32, 16
THRESHOLD, TOGETHER = 0.15, 64
SETTINGS = {
    "profile": "paper",
    "norm": "unit",
    "align": "lsa",
    "atoms": ATOMS,
    "global_atoms": SHARED,
    "threshold": THRESHOLD,
    "start_steps": 2,
    "rounds": 1_000_000,
}


def measure(options) -> dict:
    limits = machine.limits()
    ours, samples = training(options.clients)
    common, own = np.array(ours.state.common), np.array(ours.memory["local"])
    loop = floors.Dictionaries(samples, common, own, THRESHOLD)
    stacked = floors.Dictionaries(samples, common, own, THRESHOLD, TOGETHER)
    functions = {"core": ours.step, "floor, loop": loop.round, "floor, stacked": stacked.round}
    with threadpool_limits(1):
        taken = in_turns(functions, options.repeats)
    rows = [
        {
            "what": what,
            "rounds_per_cpu_s": time.map(lambda value: 1 / value),
            "of_loop": time.over(taken["floor, loop"]),
            "of_stacked": time.over(taken["floor, stacked"]),
        }
        for what, time in taken.items()
    ]
    n = options.clients * SAMPLES
    # Codes, sums of codes and samples, residuals; then the polar factor from the Gram matrix of atoms.
    flops = 6.0 * n * ATOMS * COLUMNS + options.clients * (4 * ATOMS**2 * COLUMNS + 2 * ATOMS**3)
    rows[0] |= limits.shares(float(taken["core"]), 8.0 * n * COLUMNS, flops)
    rows[0]["apart_from_loop"] = float(np.abs(ours.state.common - loop.common).max())
    return {"benchmark": "dictionaries", "clients": options.clients, "rows": rows + limits.rows()}


def training(clients: int) -> tuple[InMemory, np.ndarray]:
    """Ours after its first round, which puts clients' atoms in order; (C, m, d) the samples."""
    truth = shared_atoms(1, clients=clients, features=COLUMNS, common=SHARED, local=ATOMS - SHARED, samples=SAMPLES)
    ours = InMemory(Perma(PermaConfig(**SETTINGS)), block_of(truth.samples), {"global": truth.common})
    with threadpool_limits(1):
        ours.step()
        ours.step()
    return ours, np.stack(truth.samples)
