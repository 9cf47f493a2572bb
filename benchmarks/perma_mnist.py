"""PerMA on MNIST as in Table 1 of its paper (path, 100 shared atoms): our seconds, the paper's, and a plain loop's.

Ten clients of 500 images, 100 atoms of 784 numbers, 30 steps of start and 30 rounds, codes of the 20 largest
correlations, as `fedcore reproduce perma-mnist` has it. *run* is the experiment's own, with the clients' memories on
the disk. *loop* is NumPy as one writes it: one client after the other, an SVD for each polar factor; the matching after
the start, once, is ours in both. Without FEDCORE_DATA the images are random ones of the same number and size. One BLAS
thread; seconds that passed, and of the CPU.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
from fedcore.papers.data import data_file
from fedcore.papers.perma import mnist as perma_mnist
from fedcore.papers.table import Place
from threadpoolctl import threadpool_limits

from benchmarks.floors import in_turn, polar_step
from benchmarks.measured import Measured
from fedcore.methods.perma.matching import matched_atoms, path
from fedcore.randomness import stream
from fedcore.rounds.engine import InProcessBackend

SIZE, SPARSITY, LINE, SEED = perma_mnist.FULL, 20, "path", 1
PAPER_SECONDS = perma_mnist.LINES[LINE].paper[-1]


def measure(options) -> dict:
    known = data_file(*perma_mnist.SOURCE) is not None
    samples = perma_mnist.data(SEED, SIZE)[0] if known else synthetic(SIZE.side**2)
    wall, cpu = {"loop": [], "run": []}, {"loop": [], "run": []}
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        place = Place(Path(folder), InProcessBackend(), 2**30)
        for turn in range(options.repeats):
            for what, function in (
                ("loop", lambda: loop(samples)),
                ("run", lambda turn=turn: perma_mnist.LINES[LINE].learn(place, f"{LINE}-{turn}", SIZE, samples, SEED)),
            ):
                began, used = perf_counter(), process_time()
                function()
                wall[what].append(perf_counter() - began)
                cpu[what].append(process_time() - used)
    rows = [
        {
            "what": what,
            "data": "MNIST" if known else "synthetic",
            "seconds": Measured(wall[what]),
            "cpu_s": Measured(cpu[what]),
            "of_loop_cpu": Measured(cpu[what]).over(Measured(cpu["loop"])),
            "of_paper": Measured(wall[what]).over(PAPER_SECONDS),
        }
        for what in wall
    ]
    rows.append({"what": "paper, on its own machine", "seconds": PAPER_SECONDS})
    return {"benchmark": "perma_mnist", "rows": rows}


def synthetic(pixels: int) -> list[np.ndarray]:
    """Images of the same number: combinations of 30 of 200 random patches, which are positive."""
    generator = stream(SEED, "benchmark/perma_mnist")
    patches = np.maximum(generator.normal(size=(200, pixels)), 0)
    weights = generator.random((perma_mnist.CLIENTS, perma_mnist.OWN + perma_mnist.OTHERS, 200))
    weights *= generator.random(weights.shape) < 0.15
    images = weights @ patches
    return list(images / images.max())


def loop(samples: list[np.ndarray]) -> list[np.ndarray]:
    """The dictionary of every client."""
    atoms = []
    for x in samples:
        own = np.linalg.svd(x, full_matrices=False)[2][: perma_mnist.ATOMS]
        for _ in range(SIZE.start_steps):
            own = polar_step(x, own, SPARSITY)
        atoms.append(own)
    found = matched_atoms(atoms, path(atoms, perma_mnist.ATOMS))
    common = _polar(found.mean(axis=0))
    for _ in range(SIZE.rounds):
        total = 0.0
        for x in samples:
            total = total + in_turn(polar_step(x, common, SPARSITY), common)
        common = _polar(total / len(samples))
    return [common] * len(samples)


def _polar(a: np.ndarray) -> np.ndarray:
    left, _, right = np.linalg.svd(a, full_matrices=False)
    return left @ right
