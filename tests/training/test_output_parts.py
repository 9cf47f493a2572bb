"""Personalised outputs that several processes share, and that go on after a kill: the same bytes as in one go."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import zarr
from fedcore.papers.histograms import PaperHistograms

from fedcore.errors import PopulationError
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.rounds.engine import InProcessBackend
from fedcore.training import output_parts
from fedcore.training.output_parts import Parts, part_file
from fedcore.training.personalise import personalise
from tests.command import works
from tests.conftest import small_counts, write_counts
from tests.training.test_personalise import train

LEARN = {"algorithm": "algorithm2", "clusters": 3, "rounds": 3}
KILLED = """
import os, signal, sys
from fedcore.training import personalise as module
written, write = [], module.write_part
def dies(*arguments):
    write(*arguments)
    written.append(arguments)
    if len(written) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
module.write_part = dies
module.personalise(*sys.argv[1:])
"""


def contents(path: Path) -> dict[str, bytes]:
    """Of all files of this name, and below it."""
    files = [file for top in path.parent.glob(f"{path.stem}.*") for file in (top, *top.rglob("*")) if file.is_file()]
    return {str(file.relative_to(path.parent)): file.read_bytes() for file in files}


@pytest.fixture
def counted(tmp_path):
    population = write_counts(tmp_path / "p", small_counts(), block=8)
    return population, train(population, tmp_path, **LEARN)


@pytest.fixture
def rows(tmp_path):
    """A population of rows in several blocks, with a run."""
    x = np.random.default_rng(0).normal(size=(40, 2))
    with PopulationWriter(tmp_path / "p", "rows", 2, clients_per_leaf=2, clients_per_block=2) as writer:
        writer.write([f"c{i}" for i in range(9)], (np.array([0, 5, 5, 6, 12, 20, 21, 30, 39, 40]), x))
        writer.commit(Provenance())
    population = Population.open(tmp_path / "p")
    return population, train(population, tmp_path, "federated_em", components=2, rounds=3)


def interrupted(monkeypatch, run, population, dest, after: int) -> None:
    """A call that is interrupted in the block after so many."""
    method, original, calls = type(run_method(run)), type(run_method(run)).personalise, []

    def stops(self, state, block, memory):
        if len(calls) == after:
            raise KeyboardInterrupt
        calls.append(block)
        return original(self, state, block, memory)

    with monkeypatch.context() as patch:
        patch.setattr(method, "personalise", stops)
        with pytest.raises(KeyboardInterrupt):
            personalise(run.path, population.path, dest)


def run_method(run):
    from fedcore.training.personalise import trained

    return trained(run)[0]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["csv", "parquet", "zarr"])
def test_who_was_killed_goes_on_to_the_same_bytes(tmp_path, rows, suffix):
    population, run = rows
    whole, cut = tmp_path / "a" / f"out.{suffix}", tmp_path / "b" / f"out.{suffix}"
    whole.parent.mkdir(), cut.parent.mkdir()
    personalise(run.path, population.path, whole)
    code = subprocess.run([sys.executable, "-c", KILLED, str(run.path), str(population.path), str(cut)]).returncode
    assert code == -signal.SIGKILL
    assert not cut.exists() and len(list((cut.parent / f".{cut.name}.parts").glob("*.zip"))) == 3
    assert personalise(run.path, population.path, cut)["blocks_kept"] == 3
    assert contents(cut) == contents(whole) and not list(cut.parent.glob(".*"))


@pytest.mark.slow
def test_two_workers_write_the_same_bytes(tmp_path, rows):
    population, run = rows
    found = []
    for workers in ((), ("--workers", "2")):
        folder = tmp_path / f"made{len(found)}"
        folder.mkdir()
        told = works("predict", run.path, population.path, folder / "out.csv", *workers, "--json").json
        assert told["clients"] == 9 and not list(folder.glob(".*"))
        found.append(contents(folder / "out.csv"))
    assert found[0] == found[1]


class Elsewhere:
    """A backend that answers while this process writes."""

    def __init__(self):
        self.threads = set()

    def map_blocks(self, *asked):
        self.threads.add(threading.get_ident())
        return InProcessBackend().map_blocks(*asked)


def test_who_answers_while_it_is_written_writes_the_same_bytes(tmp_path, counted, monkeypatch):
    """Also after an interruption that left a damaged part."""
    population, run = counted
    personalise(run.path, population.path, tmp_path / "alone.csv")
    for name, kept in (("shared", 0), ("cut", 3)):
        dest, elsewhere = tmp_path / f"{name}.csv", Elsewhere()
        if kept:
            interrupted(monkeypatch, run, population, dest, after=8)  # four blocks
            part_file(tmp_path / f".{name}.csv.parts", 2).write_bytes(b"")
        told = personalise(run.path, population.path, dest, backend=elsewhere, at_once=2)
        assert told.get("blocks_kept", 0) == kept and elsewhere.threads - {threading.get_ident()}
        assert dest.read_bytes() == (tmp_path / "alone.csv").read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_what_was_done_is_not_done_again(tmp_path, counted, monkeypatch):
    population, run = counted
    dest, seen, asked = tmp_path / "out.csv", [], []
    interrupted(monkeypatch, run, population, dest, after=4)  # two blocks of two leaves
    parts = tmp_path / ".out.csv.parts"
    assert parts.stat().st_mode & 0o077 == 0 and all(file.stat().st_mode & 0o077 == 0 for file in parts.iterdir())
    original = PaperHistograms.personalise
    monkeypatch.setattr(
        PaperHistograms,
        "personalise",
        lambda self, state, block, memory: asked.append(block.first) or original(self, state, block, memory),
    )
    told = personalise(run.path, population.path, dest, lambda *at: seen.append(at))
    assert told["blocks_kept"] == 2 and min(asked) == 16 and seen == [(min(8 * done, 50), 50) for done in range(1, 8)]
    assert not parts.exists()
    personalise(run.path, population.path, tmp_path / "again.csv")
    assert dest.read_bytes() == (tmp_path / "again.csv").read_bytes()


def test_other_settings_and_damaged_parts_are_computed_anew(tmp_path, counted, monkeypatch):
    population, run = counted
    dest = tmp_path / "out"
    interrupted(monkeypatch, run, population, dest, after=4)
    told = personalise(run.path, population.path, dest, settings={"prior_tokens": 3.0})
    assert "blocks_kept" not in told and zarr.open_group(dest).attrs["settings"]["prior_tokens"] == 3.0
    dest = tmp_path / "out.csv"
    interrupted(monkeypatch, run, population, dest, after=4)
    file = part_file(tmp_path / ".out.csv.parts", 1)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    personalise(run.path, population.path, dest)
    personalise(run.path, population.path, tmp_path / "again.csv")
    assert dest.read_bytes() == (tmp_path / "again.csv").read_bytes()


def test_two_calls_do_not_mix(tmp_path, counted):
    population, run = counted
    with Parts(tmp_path / "out.csv", {"of": "another"}):
        with pytest.raises(PopulationError, match="another process is writing"):
            personalise(run.path, population.path, tmp_path / "out.csv")
        assert (tmp_path / ".out.csv.parts" / output_parts.OF).exists()
    personalise(run.path, population.path, tmp_path / "out.csv")
    assert not list(tmp_path.glob(".*"))


def test_parts_of_what_is_there_already_go(tmp_path, counted):
    population, run = counted
    personalise(run.path, population.path, tmp_path / "out.csv")
    (tmp_path / ".out.csv.parts").mkdir()
    (tmp_path / ".out.csv.parts" / "000000.zip").write_bytes(b"")
    with pytest.raises(PopulationError, match="exists already"):
        personalise(run.path, population.path, tmp_path / "out.csv")
    assert not list(tmp_path.glob(".*")) and os.path.exists(tmp_path / "out.csv")
