"""Passes over a trained run's population read as rounds do: ahead, and of blocks that processes share; to the same
bytes."""

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from fedcore.errors import ChunkError
from fedcore.evaluation.evaluate import evaluate_run
from fedcore.interface.functions import load_run
from fedcore.population import kept_blocks
from fedcore.population.store import Population
from fedcore.rounds import caches, clients
from fedcore.training.personalise import personalise
from tests import sessions
from tests.conftest import small_counts, write_counts
from tests.population.test_kept_blocks import PLENTY, settled, temporary  # noqa: F401  a fixture
from tests.rounds.test_caches import begun_before_it_is_needed

BLOCKS = 4


@pytest.fixture
def run(tmp_path):
    """Of 32 clients with held-out parts in four blocks."""
    path = tmp_path / "p"
    population = write_counts(path, small_counts(32), heldout=small_counts(32), leaf=4, block=8)
    assert len(population.blocks) == BLOCKS
    trained = sessions.train(population, tmp_path, settings={"algorithm": "fedavg", "prior_tokens": 6.0})
    caches.BLOCKS.clear()
    caches.AHEAD.clear()
    return trained.path


@pytest.fixture
def reads(monkeypatch):
    """(block, whether it was read ahead) of every read of a population."""
    found, real = [], Population.read

    def read(population, index, heldout=False):
        found.append((index, threading.current_thread().name.startswith("read-ahead")))
        return real(population, index, heldout)

    monkeypatch.setattr(Population, "read", read)
    return found


def ahead(monkeypatch):
    """Blocks are read ahead, and each is begun before it is needed."""
    begun_before_it_is_needed(monkeypatch)
    monkeypatch.setattr(clients, "worth_reading_ahead", lambda remote, spare: True)


def scores(run: Path, place: Path):
    return evaluate_run(run, Population.open(place.parent / "p"))["rows"]


def files(run: Path, place: Path):
    shutil.rmtree(place, ignore_errors=True)
    personalise(run, place.parent / "p", place)
    return {file.relative_to(place): file.read_bytes() for file in place.rglob("*") if file.is_file()}


def outputs(run: Path, place: Path):
    return {name: array.tobytes() for name, array in load_run(run).personalised(str(place.parent / "p")).items()}


PASSES = [scores, files, outputs]


@pytest.mark.parametrize("once", PASSES)
def test_a_pass_reads_each_block_once_and_ahead_to_the_same_bytes(run, tmp_path, reads, monkeypatch, once):
    monkeypatch.setattr(clients, "worth_reading_ahead", lambda remote, spare: False)
    plain = once(run, tmp_path / "out")
    assert reads == [(index, False) for index in range(BLOCKS)]
    reads.clear()
    ahead(monkeypatch)
    assert once(run, tmp_path / "out") == plain
    assert sorted(index for index, _ in reads) == [*range(BLOCKS)]
    assert [index for index, early in reads if not early] == [0] and not caches.AHEAD.reading


@pytest.mark.parametrize("once", PASSES)
def test_a_pass_takes_blocks_that_processes_share(run, tmp_path, reads, once):
    plain = once(run, tmp_path / "out")
    with kept_blocks.keeping(PLENTY) as keeper:
        assert once(run, tmp_path / "out") == plain
        settled(keeper, BLOCKS)
        reads.clear()
        assert once(run, tmp_path / "out") == plain
    assert reads == []


def test_outputs_take_blocks_that_the_training_left_in_this_process(tmp_path, reads):
    population = write_counts(tmp_path / "p", small_counts(32), leaf=4, block=8)
    trained = sessions.train(population, tmp_path, settings={"algorithm": "fedavg"})
    reads.clear()
    outputs(trained.path, tmp_path / "out")
    assert reads == []


@pytest.mark.parametrize("once", PASSES)
def test_a_block_that_is_damaged_is_named(run, tmp_path, monkeypatch, once):
    ahead(monkeypatch)
    sorted((tmp_path / "p" / "blocks").glob("*/train/counts/c/0"))[2].unlink()
    with pytest.raises(ChunkError, match="Block 2"):
        once(run, tmp_path / "out")


def test_blocks_that_are_there_already_are_not_read(run, tmp_path, reads, monkeypatch):
    """After an interruption only the missing blocks are read, each ahead of its turn but the first."""

    def stop(done, of):
        if done == 16:
            raise KeyboardInterrupt

    monkeypatch.setattr(clients, "worth_reading_ahead", lambda remote, spare: False)
    with pytest.raises(KeyboardInterrupt):
        personalise(run, tmp_path / "p", tmp_path / "out", stop)
    reads.clear()
    ahead(monkeypatch)
    assert personalise(run, tmp_path / "p", tmp_path / "out")["blocks_kept"] == 2
    assert sorted(reads) == [(2, False), (3, True)]


def test_threads_that_expect_and_take_blocks_at_once_lose_none():
    found, reading = [], caches.ReadAhead()

    def use():
        for index in range(300):
            reading.expect((index,), lambda index=index: np.full(1, index))
            found.append(int(reading.take((index,), lambda index=index: np.full(1, index))[0]) == index)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reading.thread.shutdown()
    assert found == [True] * 2400


def test_a_pass_that_fails_leaves_no_block_behind(run, tmp_path, reads, monkeypatch):
    ahead(monkeypatch)

    def fails(population, index, heldout=False):
        raise ChunkError(f"block {index}")

    monkeypatch.setattr(Population, "read", fails)
    with pytest.raises(ChunkError):
        scores(run, tmp_path / "out")
    assert not caches.AHEAD.reading


def test_a_block_is_large_with_its_held_out_part(run, tmp_path, monkeypatch):
    population = Population.open(tmp_path / "p")
    monkeypatch.setattr(clients, "worth_reading_ahead", lambda remote, spare: True)
    monkeypatch.setattr(clients, "AHEAD_BYTES", population.decoded_bytes(1))
    clients.expect_block(population, 1, True, True)
    assert not caches.AHEAD.reading
    clients.expect_block(population, 1, False, True)
    assert len(caches.AHEAD.reading) == 1
    caches.AHEAD.clear()
