"""One round of FedGrEM in one process with all rows in memory, against hand-written NumPy: CPU-seconds, in turns.

150 rows in 10 columns for each client, 5 components, the paper's simulation with h = 0.5 and no outliers; from common
centres that are near. `default` estimates how clients differ and the covariance, `preset` is the paper's schedule. The
floors do the same arithmetic: *loop* one client after the other, *stacked* equally large clients by 256. Second starts
are off: they are no part of most rounds. A ratio of 1 is the floor's speed, 0.5 twice as fast.
"""

from __future__ import annotations

import numpy as np
from fedcore.papers.fedgrem.paper_gradient_em import PaperGradientEM
from fedcore.papers.fedgrem.simulation import CENTRES, simulated_clients
from fedcore.papers.fedgrem.state import PaperGradientEMConfig
from threadpoolctl import threadpool_limits

from benchmarks import floors, machine
from benchmarks.in_memory import InMemory, block_of
from benchmarks.measured import in_turns
from fedcore.randomness import stream

CLIENTS, ROWS, LOOPED, TOGETHER = 10_000, 150, 1000, 256
COMPONENTS, COLUMNS = CENTRES.shape
SETTINGS = {"start": "given", "components": COMPONENTS, "rounds": 1_000_000, "tolerance": 0.0}
KINDS = {
    "default": (PaperGradientEM(PaperGradientEMConfig(**SETTINGS, second_start=0)), floors.EstimatedGradientEM),
    "preset": (PaperGradientEM(PaperGradientEMConfig(**SETTINGS, preset="paper")), floors.GradientEM),
}
FLOPS_OF_COVARIANCE = 4 * COLUMNS**2  # of a row: into units of the covariance, and into the sum of products


def measure(options) -> dict:
    limits = machine.limits()
    rows = []
    for kind, sizes in (("equal", ROWS), ("half to one and a half", ragged(options.clients))):
        data = simulated_clients(1, clients=options.clients, outliers=0, h=0.5, rows=sizes, concentration=20.0).rows
        with threadpool_limits(1):
            rows += [row for name in KINDS for row in _measured(name, kind, data, options.repeats, limits)]
    return {"benchmark": "gradient_em", "clients": options.clients, "rows": rows + limits.rows()}


def ragged(clients: int) -> np.ndarray:
    return stream(1, "benchmark/gradient_em").integers(ROWS // 2, ROWS + ROWS // 2 + 1, clients)


def training(name: str, data) -> InMemory:
    """Ours, at the beginning of its rounds."""
    ours = InMemory(KINDS[name][0], block_of(data), {"centres": CENTRES})
    while ours.state.phase != "rounds":
        ours.step()
    return ours


def _measured(name: str, kind: str, data, repeats: int, limits: machine.Limits) -> list[dict]:
    floor, few = KINDS[name][1], data[:LOOPED]
    functions = {"core": training(name, data).step, "floor, loop": floor(few, CENTRES).round}
    if kind == "equal":
        functions["floor, stacked"] = floor(data, CENTRES, TOGETHER).round
    taken = in_turns(functions, repeats)
    each = {
        what: time.map(lambda value, n=len(few) if what == "floor, loop" else len(data): value / n)
        for what, time in taken.items()
    }
    total = sum(len(own) for own in data)
    flops = total * (4 * COMPONENTS * COLUMNS + (FLOPS_OF_COVARIANCE if name == "default" else 0))
    found = []
    for what, time in each.items():
        ratios = {f"of_{floor.removeprefix('floor, ')}": time.over(each[floor]) for floor in each if floor != "core"}
        found.append(
            {"what": f"{name}, {what}", "rows": kind, "us_per_client": time.map(lambda value: value * 1e6), **ratios}
        )
    found[0] |= limits.shares(float(taken["core"]), 8.0 * total * COLUMNS, flops)
    return found
