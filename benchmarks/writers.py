"""FedGrEM on 44 writers for 1000 rounds, everything around the rounds included, against a loop over the writers.

Pen digits 5 to 9, 80 % of each writer's rows, 16 columns standardised for each writer, if FEDCORE_DATA names a folder
with pendigits/pendigits.npz; otherwise a synthetic set of the same shape. All begin at the same common centres, and
second starts are off. The loop is NumPy as one writes it (`floors.GradientEM`), one process, nothing stored.

    loop                its seconds for all rounds
    in memory           our functions, nothing stored
    run store           a session in this process: clients' memories, states and metrics of every round on the disk
    train --local       the whole command: start of the interpreter, run store, report
    train               the same with Prefect's flow, which starts a server for itself
    train, server       with a Prefect server that runs already, as deployments have one; its own CPU is not counted

The population is one block, which the process of the flow answers: Dask has no part in it.

`of_loop` compares seconds that passed, `of_loop_cpu` CPU-seconds, of all processes of a command; a ratio of 1.2 is what
is asked of the last four.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
from fedcore.papers.data import data_file
from fedcore.papers.fedgrem.simulation import simulated_clients
from fedcore.papers.fedgrem.tables import PEN_DIGITS_BY_WRITER
from threadpoolctl import threadpool_limits

from benchmarks import floors
from benchmarks.command import Trained, train
from benchmarks.in_memory import InMemory, block_of
from benchmarks.measured import Measured, in_turns
from benchmarks.processes import own_server
from fedcore.methods.registry import make_method
from fedcore.population.writer import PopulationWriter
from fedcore.randomness import stream
from fedcore.rounds.engine import InProcessBackend
from fedcore.training.request import TrainRequest
from fedcore.training.session import concluding, start_run

WRITERS, COMPONENTS, COLUMNS, SIZES = 44, 5, 16, (95, 99)  # of the pen digits
ROUNDS, TIMED = 1000, 100  # rounds of a run; rounds of the loop, and of ours in memory, that are timed
KINDS = {
    "default": ("paper_gradient_em", {"second_start": 0}, floors.EstimatedGradientEM),
    "preset": ("paper_gradient_em", {"preset": "paper"}, floors.GradientEM),
}


def measure(options) -> dict:
    rows, centres, source = writers()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        population, given = Path(folder) / "writers", Path(folder) / "centres.npz"
        np.savez(given, centres=centres)
        block = block_of(rows)
        with PopulationWriter(population, "rows", block.features, dtype="float64") as writer:
            writer.write([str(number) for number in range(len(rows))], (block.ptr, block.x))
            writer.commit()
        for name, (method, preset, floor) in KINDS.items():
            settings = settings_of(preset)
            ours = InMemory(make_method(method, settings), block, {"centres": centres})
            ours.step()
            loop = floor(rows, centres)
            timed = {"loop": lambda one=loop: _rounds(one.round), "in memory": lambda one=ours: _rounds(one.step)}
            with threadpool_limits(1):
                wall, cpu = (
                    {
                        what: time.map(lambda value: value * ROUNDS / TIMED)
                        for what, time in in_turns(timed, options.repeats, clock).items()
                    }
                    for clock in (perf_counter, process_time)
                )
                store = [_run_store(method, population, settings, given, folder) for _ in range(options.repeats)]
            command = partial(train, method, population, settings, more=["--start-from", str(given)])
            whole = {
                what: [command(workers=workers) for _ in range(options.repeats)]
                for what, workers in (("train --local", None), ("train", options.workers))
            }
            with own_server(Path(folder) / f"prefect-{name}") as server:
                whole["train, server"] = [
                    command(workers=options.workers, PREFECT_API_URL=server.api) for _ in range(options.repeats)
                ]
            loop = wall["loop"], cpu["loop"]
            found += [_row(name, source, what, wall[what], cpu[what], loop) for what in timed]
            found.append(_row(name, source, "run store", *map(Measured, zip(*store, strict=True)), loop))
            found += [_whole(name, source, what, runs, loop) for what, runs in whole.items()]
    return {"benchmark": "writers", "rounds": ROUNDS, "rows": found}


def writers() -> tuple[list[np.ndarray], np.ndarray, str]:
    """(rows of each writer, common centres to begin at, where they are from)."""
    if data_file("pendigits", "pendigits.npz") is None:
        generator = stream(1, "benchmark/writers")
        centres = generator.normal(0.0, 1.0, (COMPONENTS, COLUMNS))
        data = simulated_clients(
            1,
            clients=WRITERS,
            outliers=0,
            h=0.5,
            rows=generator.integers(*SIZES, WRITERS),
            centres=centres,
            concentration=50.0,
        )
        return data.rows, centres, "synthetic"
    rows, held, labels = PEN_DIGITS_BY_WRITER.split(0, quick=False)
    held, labels = np.concatenate(held), np.concatenate(labels)
    return rows, np.stack([held[labels == digit].mean(axis=0) for digit in range(COMPONENTS)]), "pen digits"


def settings_of(preset: dict) -> dict:
    return {"start": "given", "components": COMPONENTS, "tolerance": 0.0, "rounds": ROUNDS, **preset}


def _rounds(step) -> None:
    for _ in range(TIMED):
        step()


def _run_store(method: str, population: Path, settings: dict, given: Path, folder: str) -> tuple[float, float]:
    """Seconds of the rounds of a session, the start's left out, as in the loop; CPU-seconds with the start's pass."""
    with tempfile.TemporaryDirectory(dir=folder) as runs:
        request = TrainRequest(
            method=method, population=str(population), runs=runs, run_id="r", settings=settings, start_from=str(given)
        )
        session, began = start_run(request, InProcessBackend(), stamp=""), process_time()
        with concluding(session):
            while session.training.step() is not None:
                pass
        return sum(row["seconds_round"] for row in session.run.metrics()[-ROUNDS:]), process_time() - began


def _row(name: str, source: str, what: str, wall: Measured, cpu: Measured, loop: tuple[Measured, Measured]) -> dict:
    return {
        "what": f"{name}, {what}",
        "data": source,
        "seconds": wall,
        "cpu_s": cpu,
        "of_loop": wall.over(loop[0]),
        "of_loop_cpu": cpu.over(loop[1]),
        "ms_per_round": wall.map(lambda value: value / ROUNDS * 1e3),
    }


def _whole(name: str, source: str, what: str, runs: list[Trained], loop: tuple[Measured, Measured]) -> dict:
    row = _row(name, source, what, Measured(run.seconds for run in runs), Measured(run.cpu for run in runs), loop)
    rounds = Measured(sum(row["seconds_round"] for row in run.metrics[-ROUNDS:]) for run in runs)
    return {**row, "rounds_s": rounds, **runs[-1].peaks}
