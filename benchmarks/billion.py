"""The books of populations of 10 million to --clients clients (a billion, unless another number is given) in 1e3 to 1e6
blocks: what opening, describing, planning, sharing out, forgetting and a round take beside the work of the clients.

A single block is written. All other slots of the manifest stand for its files: by hard links where a command reads
them, and in rounds by reading the files of the first slot for every block. Every row is a process of its own.
Seconds are of the CPU.

    rounds      coordination of a round of `federated_em`: sharing all blocks out, and what a future of the size that
                the clients' pace gives takes of the flow's process, scheduler included, times the futures. FUTURES
                of them are made and compute nothing. work_s: of REAL blocks, times the number of blocks
    append      of one client, to blocks of FEW clients that are all there: an append reads the ids of all clients
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from unittest.mock import patch

import numpy as np
from fedcore.tasks.dask_backend import dask_backend

from benchmarks.measured import Measured
from benchmarks.populations import COLUMNS, ROWS, mixture_means, with_rounds
from benchmarks.processes import taken
from fedcore.methods.registry import make_method
from fedcore.population import cohorts, layout
from fedcore.population import manifest as manifests
from fedcore.population.block_table import Blocks
from fedcore.population.describing import describe
from fedcore.population.erasing import forget
from fedcore.population.ingest.ingest import ingest
from fedcore.population.manifest import PACKED, Provenance
from fedcore.population.sizing import shared_out
from fedcore.population.store import Population
from fedcore.population.synthetic import client_names
from fedcore.population.writer import PopulationWriter
from fedcore.rounds.clients import Answer, Source, peak_memory, population_of
from fedcore.rounds.statistics import IntegerSum
from fedcore.training.budget import public_facts

CLIENTS = 1_000_000_000
BLOCKS = (1000, 10_000, 100_000, 1_000_000)
LEAF, MOST = 1024, 10_240  # clients of a leaf, and of a block at most
WEEKS, HORIZON = 520, 42
WORKERS, FUTURES = 2, 300
REAL = 8  # blocks whose clients answer
SMALL, FEW = (500, 2000), 8  # blocks of populations that are appended to, and clients in each
SETTINGS = {"algorithm": "em", "components": 5, "covariance": "diag", "start": "random", "restarts": 1}


def measure(options) -> dict:
    rows = []
    for blocks in BLOCKS:
        clients = min(options.clients, MOST * blocks)
        path = options.dir / f"billion-{clients}-{blocks}"
        if not path.exists():
            make(path, clients, -(-clients // blocks // LEAF) * LEAF)
        for part in (books, rounds, forgetting):
            rows.append({"what": part.__name__, "clients": clients, "blocks": blocks, **_apart(part, path)})
    rows += [
        {"what": "append", "clients": FEW * blocks, "blocks": blocks, **_apart(appending, options.dir, blocks)}
        for blocks in SMALL
    ]
    return {"benchmark": "billion", "rows": rows}


def _apart(part: Callable, *arguments: object) -> dict:
    """What the function returns in a process of its own."""
    done = taken(["-m", "benchmarks.billion", part.__name__, *map(str, arguments)])
    return {name: Measured([value]) for name, value in json.loads(done.out.splitlines()[-1]).items()}


# --- the population ---------------------------------------------------------------------------------------------------


def make(path: Path, clients: int, each: int) -> None:
    """clients: in all; each: in a block. Its cohorts are WEEKS appends of about the same size."""
    generator, left = np.random.default_rng(1), clients % each or each
    with PopulationWriter(path, "rows", COLUMNS, clients_per_block=each, nominal_clients=clients) as writer:
        for held in (each, left):
            rows = mixture_means()[generator.integers(5, size=held * ROWS)]
            rows = (rows + generator.normal(size=rows.shape)).astype(np.float32)
            writer.write(client_names(writer.clients, held), (ROWS * np.arange(held + 1), rows))
            writer.close_block()
        old = writer.commit(Provenance(sources=("benchmark",))).manifest
    first, last = old.blocks
    blocks = -(-clients // each)
    numbers = {name: np.full(blocks, column[0]) for name, column in old.blocks.numbers.items()}
    for name, column in old.blocks.numbers.items():
        numbers[name][-1] = column[1]
    digests = np.repeat(old.blocks.digests[:1], blocks, axis=0)
    digests[-1] = old.blocks.digests[1]
    names = np.array([f"v000001-{number:06d}".encode() for number in range(blocks)])
    table = Blocks(names, digests, each * np.arange(blocks), numbers)
    weekly = blocks // WEEKS * each
    order = ((1, clients),) if not weekly else (*((week, weekly) for week in range(1, WEEKS)),)
    order = order if not weekly else (*order, (WEEKS, clients - weekly * (WEEKS - 1)))
    made = manifests.build(
        **{
            **{name: getattr(old, name) for name in type(old).model_fields},
            "needs": (*old.needs, manifests.COHORTS, *([PACKED] if table.packable else [])),
            "blocks": table,
            "n_clients": clients,
            "n_rows": clients * ROWS,
            "order": order,
            "cohorts": tuple(cohorts.opened(number, 1) for number, _ in order),
        }
    )
    os.rename(layout.block_folder(path, last.slot), layout.block_folder(path, names[-1].decode()))
    layout.version_file(path, 1).write_bytes(manifests.encode(made))
    for index in {*range(1, max(1, weekly // each)), clients // 2 // each, *range(blocks - REAL, blocks - 1)}:
        shutil.copytree(
            layout.block_folder(path, first.slot),
            layout.block_folder(path, names[index].decode()),
            copy_function=os.link,
            dirs_exist_ok=True,
        )


# --- parts, each in a process of its own ------------------------------------------------------------------------------


def _seconds(function: Callable) -> float:
    began = process_time()
    function()
    return process_time() - began


def books(path: str) -> dict[str, float]:
    before = peak_memory()
    began = process_time()
    population = Population.open(path)
    found = {"open_s": process_time() - began, "open_MiB": (peak_memory() - before) / 2**20}
    sizes = population.sizes()
    ranges = population.participants(((WEEKS - HORIZON + 1, WEEKS),)) if len(population.manifest.cohorts) > 1 else ()
    found["describe_s"] = _seconds(lambda: describe(population))
    found["checksum_s"] = _seconds(lambda: population.checksum)
    found["participants_s"] = _seconds(lambda: population.blocks.overlapping(ranges))
    found |= {f"placement_{n}_s": _seconds(lambda n=n: shared_out(sizes, n)) for n in (2, 256)}
    words = ["plan", "federated_em", path, "--json", "--calibration", "2", "--workers", "64", "--cluster"]
    settings = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    done = taken(["-m", "fedcore.cli", *words, "--runs", f"{path}-runs", *settings])
    return {**found, "plan_s": done.cpu, "peak_MiB": peak_memory() / 2**20}


@dataclass(frozen=True)
class Opened:
    """Every block is looked up in the population as for an answer, and nothing is computed."""

    source: Source

    def __call__(self, message: object, index: int) -> dict:
        return {"n": IntegerSum(np.array([population_of(self.source).blocks[index].clients]))}


@dataclass(frozen=True)
class Shared:
    """What real clients answer, with the files of the first slot as those of every block but the last."""

    answer: Answer

    def __call__(self, message: object, index: int) -> dict | None:
        path, first = Path(self.answer.source.population), "v000001-000000"
        with patch("fedcore.population.layout.block_folder", lambda *_: path / layout.BLOCKS / first):
            return self.answer(message, index)


def rounds(path: str) -> dict[str, float]:
    population = Population.open(path)
    source = Source(population.location, 1, cache_bytes=0, manifest=population.checksum)
    blocks, sizes = range(len(population.blocks)), population.sizes()
    method = make_method("federated_em", with_rounds(SETTINGS, 3))
    message = method.message(method.init(public_facts(method, population, None, 0)))
    answer, some = Shared(Answer(method, source)), range(1, 1 + REAL)
    answer(message, 1)
    seconds = _seconds(lambda: [answer(message, index) for index in some]) / sum(sizes[1 : 1 + REAL])
    with dask_backend(WORKERS) as backend:
        backend.map_blocks(Opened(source), None, [0, 1], sizes[:2])  # workers have started, and opened the population
        backend.pace = seconds
        began, weights = process_time(), np.array(sizes, float)
        homes = shared_out(sizes, WORKERS)
        groups = list(backend._groups(blocks, weights, [""] * WORKERS, homes))
        shared = process_time() - began
        asked = sum(len(group) for _, group, _ in groups[:FUTURES])
        future = _seconds(lambda: backend.map_blocks(Opened(source), None, blocks[:asked], sizes[:asked]))
        future /= min(len(groups), FUTURES)
        work, whole = seconds * sum(sizes), shared + future * len(groups)
        return {
            **{"work_s": work, "us_a_client": 1e6 * work / population.n_clients},
            **{"futures": float(len(groups)), "shared_s": shared, "ms_a_future": 1000 * future},
            **{"round_s": whole, "of_work": whole / work, "us_a_block": 1e6 * whole / len(blocks)},
            "flow_MiB": peak_memory() / 2**20,
            "worker_MiB": max(backend.memory_of_workers()) / 2**20,
        }


def forgetting(path: str) -> dict[str, float]:
    """The first cohort, in a copy whose manifest and files are links."""
    copy = Path(f"{path}-forgotten")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy, copy_function=os.link)
    try:
        population = Population.open(copy)
        if len(population.manifest.cohorts) < 2:
            return {}
        before, began = peak_memory(), process_time()
        after = forget(population, cohorts_to=1)
        found = {"forget_s": process_time() - began, "forget_MiB": (peak_memory() - before) / 2**20}
        return {**found, "forgotten": float(after.clients), "peak_MiB": peak_memory() / 2**20}
    finally:
        shutil.rmtree(copy)


def appending(folder: str, blocks: str) -> dict[str, float]:
    """One client more, of a population whose blocks are small and all there."""
    path, clients = Path(folder) / f"billion-append-{blocks}", int(blocks) * FEW
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    old, new = path / "old.csv", path / "new.csv"
    old.write_text("client,x\n" + "".join(f"{name},0.5\n" for name in client_names(0, clients)))
    new.write_text("client,x\none more,0.5\n")
    ingest(old, path / "p", client="client", clients_per_leaf=FEW, clients_per_block=FEW)
    began = process_time()
    made = ingest(new, path / "p", client="client", append=True)
    assert len(made.blocks) == int(blocks) + 1
    seconds = process_time() - began
    return {"append_s": seconds, "ms_a_block": 1000 * seconds / int(blocks), "peak_MiB": peak_memory() / 2**20}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
