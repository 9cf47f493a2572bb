"""Reading a population's blocks, and writing them, against the same bytes as raw files."""

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from unittest import mock

import numpy as np
from fedcore.papers.histograms import PaperHistograms
from fedcore.papers.histograms.clients import AssignMessage

from benchmarks.measured import in_turns, seconds
from benchmarks.populations import reddit_like
from fedcore.methods.histograms.simplex import assignment_logs
from fedcore.population import arrays, kept_blocks, slots
from fedcore.population.kept_blocks import keeping
from fedcore.population.manifest import Provenance
from fedcore.population.synthetic import settings_of, true_centres
from fedcore.population.writer import PopulationWriter
from fedcore.rounds import clients
from fedcore.rounds.clients import Answer, Source, answer_all, answer_block


def measure(options) -> dict:
    population = reddit_like(options.dir, options.clients)
    numbers = range(len(population.blocks))
    blocks = [population.read(index) for index in numbers]
    decoded = sum(block.nbytes for block in blocks)
    stored = sum(entry.bytes for entry in population.blocks)

    def read_first():
        """As a process that has not seen the population; its files are in the page cache."""
        arrays._open.cache_clear()
        slots._digests.cache_clear()
        read()

    def read():
        for index in numbers:
            population.read(index)

    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw"

        def write_raw():
            with open(raw, "wb") as file:
                for block in blocks:
                    for array in (block.indptr, block.indices, block.data):
                        array.tofile(file)

        def read_raw():
            np.fromfile(raw, np.uint8)

        held = np.zeros(sum(a.nbytes for block in blocks for a in (block.indptr, block.indices, block.data)), np.uint8)

        def read_into():
            """Into memory that is there already: what fresh pages cost depends on the system's state."""
            with open(raw, "rb", buffering=0) as file:
                file.readinto(held)

        def write():
            shutil.rmtree(Path(folder) / "population", ignore_errors=True)
            with PopulationWriter(Path(folder) / "population", "counts", population.features) as writer:
                for block in blocks:
                    names = [str(number) for number in range(block.first, block.first + block.clients)]
                    writer.write(names, block.csr)
                writer.commit(Provenance(sources=("benchmark",)))

        rows = []
        for what, ours, floor in (("write", write, write_raw), ("read", read, read_raw)):
            taken, raw_taken = seconds(ours, options.repeats), seconds(floor, options.repeats)
            rows.append(
                {
                    "what": what,
                    "seconds": taken,
                    "raw_file_s": raw_taken,
                    "ratio": taken.over(raw_taken),
                    "decoded_MB_per_s": taken.map(lambda value: decoded / value / 1e6),
                    "stored_over_decoded": stored / decoded,
                }
            )
        with keeping(2 * decoded):

            def read_kept():
                for index in numbers:
                    kept_blocks.shared(population, index, False, partial(population.read, index))

            read_kept()
            turns = {"first": read_first, "again": read, "kept": read_kept}
            for clock, name, floor in ((perf_counter, "wall", read_raw), (process_time, "CPU", read_into)):
                taken = in_turns({"raw": floor, **turns}, options.repeats, clock)
                for what in turns:
                    rows.append(
                        {
                            "what": f"read {what}, {name}",
                            "seconds": taken[what],
                            "raw_file_s": taken["raw"],
                            "ratio": taken[what].over(taken["raw"]),
                        }
                    )
            rows += rounds(population, options.repeats)
    return {"benchmark": "store", "clients": options.clients, "rows": rows}


def rounds(population, repeats: int) -> list[dict]:
    """A clustering round of this process, every block from the store; the same while a thread reads the next block, as
    is done behind a URL and where a core is left; and with blocks that are kept: seconds that pass, and of the CPU."""
    centres = true_centres(settings_of("reddit-like", {"clients": population.n_clients}), 1)
    message, blocks = AssignMessage(assignment_logs(centres, 1e-6)), range(len(population.blocks))
    source = Source(str(population.path), population.version, cache_bytes=0)
    method = PaperHistograms()

    def kept():
        for index in blocks:
            answer_block(method, source, message, index)

    def one_by_one():
        with mock.patch.dict(os.environ):
            os.environ.pop(kept_blocks.VARIABLE)
            kept()

    def read_ahead():
        with mock.patch.dict(os.environ), mock.patch.object(clients, "worth_reading_ahead", lambda *_: True):
            os.environ.pop(kept_blocks.VARIABLE)
            for _ in answer_all(Answer(method, source), message, blocks):
                pass

    rows = []
    for what, clock in (("wall", perf_counter), ("CPU", process_time)):
        taken = in_turns({"plain": one_by_one, "read ahead": read_ahead, "kept": kept}, repeats, clock)
        for how in ("read ahead", "kept"):
            ratio = taken[how].over(taken["plain"])
            rows.append({"what": f"round, blocks {how}, {what}", "seconds": taken[how], "of_plain": ratio})
    return rows
