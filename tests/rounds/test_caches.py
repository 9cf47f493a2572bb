"""Blocks and memories that a process keeps: bounded, never those of another run, and without a trace in the result."""

import shutil
import threading
from concurrent.futures import wait
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fedcore.tasks.dask_backend import DaskBackend

from fedcore.errors import ChunkError, PopulationError, Unreachable
from fedcore.methods.histograms import clients as contributions
from fedcore.methods.histograms.config import HistogramsConfig
from fedcore.methods.histograms.method import Histograms
from fedcore.methods.histograms.state import ReleaseMessage
from fedcore.population.copying import copy_population
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.rounds import caches, clients, engine
from fedcore.rounds.caches import BLOCKS, BlockCache, MemoryCache, ReadAhead
from fedcore.rounds.clients import Answer, Source
from fedcore.rounds.engine import InProcessBackend, Training
from fedcore.rounds.method import PublicFacts
from fedcore.rounds.statistics import FloatSum, values
from tests.conftest import small_counts, write_counts
from tests.rounds.test_engine import begin, to_end
from tests.toy import Toy, ToyConfig

MEMORY = {"a": np.arange(6.0), "b": np.arange(4, dtype=np.float32)}  # 64 bytes


@pytest.fixture(autouse=True)
def empty():
    BLOCKS.clear()
    caches.MEMORIES.clear()
    caches.AHEAD.clear()


@pytest.fixture
def read(monkeypatch):
    """Blocks whose memories were read from files."""
    found, real = [], clients.read_memory

    def read_memory(folder, index, clients, digests):
        found.append(index)
        return real(folder, index, clients, digests)

    monkeypatch.setattr(clients, "read_memory", read_memory)
    return found


def test_the_cache_is_bounded_by_bytes_and_keeps_what_it_has(tmp_path):
    cache = BlockCache()
    population = write_counts(tmp_path / "p", small_counts(64))
    size = population.read(0).nbytes
    reads = []

    def get(index, limit):
        return cache.get(index, lambda: (reads.append(index), population.read(index))[1], limit)

    for _ in range(3):
        for index in range(8):
            get(index, int(2.5 * size))
    assert cache.bytes <= 2.5 * size and len(cache.blocks) == 2
    assert reads.count(0) == 1 and reads.count(7) == 3
    cache.clear()
    get(0, 0)
    assert not cache.blocks


def test_memories_are_bounded_and_given_back_once():
    cache = MemoryCache()
    for block in range(5):
        cache.keep(("x", "round 1", block), MEMORY, 200)
    assert sorted(key[2] for key in cache.memories) == [0, 1, 2] and cache.bytes == 192
    assert cache.take(("x", "round 1", 1)).keys() == MEMORY.keys() and cache.bytes == 128
    assert cache.take(("x", "round 1", 1)) is None and cache.take(("y", "round 1", 0)) is None
    cache.keep(("x", "round 2", 1), MEMORY, 200)
    cache.keep(("x", "round 2", 1), MEMORY, 200)  # of a block that is answered twice
    assert cache.bytes == 192
    cache.clear()
    assert not cache.memories and cache.bytes == 0


def test_memories_of_other_trainings_make_way():
    cache = MemoryCache()
    for block in range(3):
        cache.keep(("old", "round 9", block), MEMORY, 200)
    cache.keep(("new", "round 1", 0), MEMORY, 200)
    assert sorted(key[0] for key in cache.memories) == ["new", "old", "old"] and cache.bytes == 192
    cache.keep(("new", "round 1", 1), {"a": np.zeros(100)}, 200)  # too large in any case
    assert [key[2] for key in cache.memories] == [0] and cache.bytes == 64
    cache.keep(("new", "round 1", 2), MEMORY, -5)  # the blocks have taken everything
    assert len(cache.memories) == 1


def test_what_a_process_has_written_it_does_not_read(tmp_path, read):
    training = begin(tmp_path, Toy())
    to_end(training)
    assert read == []
    assert len(caches.MEMORIES.memories) == len(training.blocks), "of the last round alone"


@pytest.mark.slow
@pytest.mark.parametrize("cache_bytes", [0, 6000])
def test_what_does_not_fit_is_read(tmp_path, read, cache_bytes):
    training = begin(tmp_path, Toy(), matrix=small_counts(200))
    training.source = replace(training.source, cache_bytes=cache_bytes)
    to_end(training)
    assert BLOCKS.bytes + caches.MEMORIES.bytes <= cache_bytes
    assert 0 < len(read) <= 2 * len(training.blocks) and (cache_bytes > 0 or len(read) == 2 * len(training.blocks))


def test_another_training_of_the_run_reads_the_files(tmp_path, read):
    training = begin(tmp_path, Toy())
    training.step()
    for memory in caches.MEMORIES.memories.values():
        memory["asked"] += 100.0  # as those of an earlier run of the same name might be
    resumed = Training(
        training.method, training.run, training.state, training.source, training.blocks, training.backend
    )
    resumed.step()
    assert read == list(training.blocks)
    assert clients.read_values(clients.memory_file(training.run.memories(), 0))["asked"].tolist() == [2.0] * 8


class Oblique(Toy):
    """Remembers a matrix in Fortran's order, and multiplies with it."""

    def client_update(self, message, block, memory):
        counts = np.asarray(block.csr.toarray(), np.float64)
        before = np.zeros_like(counts) if memory is None else memory["matrix"]
        assert before.flags.c_contiguous and before.flags.aligned
        gram = (before + counts) @ np.linspace(0.1, 1.3, counts.shape[1] ** 2).reshape(counts.shape[1], -1)
        return {"mean": FloatSum.at(block.leaf, np.asarray(gram.sum(axis=0)).ravel())}, {
            "matrix": np.asfortranarray(gram / 7.0)
        }


def test_kept_memories_have_the_bits_that_read_ones_have(tmp_path, read):
    found = []
    for cache_bytes in (0, 2**20):
        training = begin(tmp_path, Oblique(ToyConfig(rounds=6)), name=str(cache_bytes), block=40)
        training.source = replace(training.source, cache_bytes=cache_bytes)
        found.append(to_end(training).centre.tobytes())
    assert found[0] == found[1] and len(read) == 5 * len(training.blocks)


# --- reading ahead ----------------------------------------------------------------------------------------------------


@pytest.fixture
def waiting(monkeypatch):
    """As if the populations were behind a URL."""
    monkeypatch.setattr(clients, "worth_reading_ahead", lambda remote, spare: True)


@pytest.mark.parametrize(("cores", "ahead"), [(1, False), (2, True)])
def test_a_process_that_answers_alone_reads_ahead_where_a_core_is_left(tmp_path, reads, monkeypatch, cores, ahead):
    monkeypatch.setattr(engine, "usable_cores", lambda: cores)
    expected = []
    monkeypatch.setattr(caches.AHEAD, "expect", lambda key, read: expected.append(key))
    training = begin(tmp_path, Toy())
    training.source = replace(training.source, cache_bytes=0)
    training.step()
    training.step()
    assert bool(expected) == ahead and {thread for _, thread in reads} == {threading.current_thread().name}


def test_where_no_core_is_left_only_what_is_behind_a_url_is_read_ahead():
    assert clients.worth_reading_ahead(remote=True, spare=False)
    assert not clients.worth_reading_ahead(remote=False, spare=False)


@pytest.fixture
def reads(monkeypatch):
    """(block, name of the thread) of every read of a population."""
    found, real = [], Population.read

    def read(population, index, heldout=False):
        found.append((index, threading.current_thread().name))
        return real(population, index, heldout)

    monkeypatch.setattr(Population, "read", read)
    return found


def begun_before_it_is_needed(monkeypatch):
    """The thread gets its turn for each block that is read ahead."""
    expect = caches.AHEAD.expect

    def begun(key, read):
        started = threading.Event()
        if key not in caches.AHEAD.reading:
            expect(key, lambda: (started.set(), read())[1])
            assert started.wait(10)

    monkeypatch.setattr(caches.AHEAD, "expect", begun)


def test_a_block_is_read_once_and_before_it_is_needed(tmp_path, reads, waiting, monkeypatch):
    """Where the thread gets its turn: what it has not begun when it is needed is not waited for."""
    begun_before_it_is_needed(monkeypatch)
    training = begin(tmp_path, Toy())
    training.source = replace(training.source, cache_bytes=0)
    training.step()
    last = len(training.blocks) - 1
    reads.clear()
    training.step()
    assert sorted(index for index, _ in reads) == list(training.blocks)
    assert [index for index, thread in reads if not thread.startswith("read-ahead")] == [0]
    assert not caches.AHEAD.reading and last > 2, "nothing is read that nobody asks for"


def test_a_block_of_which_nobody_takes_part_is_not_read_ahead(tmp_path, reads, waiting):
    training = begin(tmp_path, Toy())
    training.source = replace(training.source, cache_bytes=0, ranges=((0, 8), (24, 32)))  # blocks of 8 clients
    training.step()
    training.step()
    assert {index for index, _ in reads} == {0, 3}


def test_what_is_cached_is_not_read_ahead(tmp_path, reads, waiting):
    training = begin(tmp_path, Toy())
    to_end(training)
    assert sorted(index for index, _ in reads) == list(training.blocks)


def test_large_blocks_are_read_when_they_are_needed(tmp_path, reads, waiting, monkeypatch):
    monkeypatch.setattr(clients, "AHEAD_BYTES", 10)
    training = begin(tmp_path, Toy())
    training.source = replace(training.source, cache_bytes=0)
    to_end(training)
    assert {thread for _, thread in reads} == {threading.current_thread().name}


def test_a_block_that_was_damaged_while_others_were_answered_is_named(tmp_path, waiting):
    training = begin(tmp_path, Toy())
    training.source = replace(training.source, cache_bytes=0)
    training.step()
    victim = sorted((tmp_path / "p-r" / "blocks").glob("*/train/counts/c/0"))[3]
    content = victim.read_bytes()
    victim.unlink()
    with pytest.raises(ChunkError, match="[Bb]lock 3"):
        training.step()
    victim.write_bytes(content)
    training.step()
    assert training.done == 2


def test_no_more_than_the_next_two_are_kept():
    ahead, gate, read = ReadAhead(), threading.Event(), []

    def reading(index):
        gate.wait(10)
        read.append(index)
        return index

    for index in range(5):
        ahead.expect((index,), lambda index=index: reading(index))
    ahead.expect((4,), lambda: pytest.fail("it is being read already"))
    assert list(ahead.reading) == [(3,), (4,)]
    assert [ahead.take((index,), lambda index=index: -index) for index in (1, 3)] == [-1, -3], "nobody waits for 0"
    gate.set()
    assert abs(ahead.take((4,), lambda: -4)) == 4 and not ahead.reading
    ahead.thread.shutdown()
    assert set(read) <= {0, 4}, "what was not begun is left out"


def test_what_could_not_be_read_ahead_is_read_when_it_is_needed():
    def fail():
        raise Unreachable("the storage is away.", "Try again.")

    ahead = ReadAhead()
    ahead.expect(("x",), fail)
    wait(ahead.reading.values())
    assert ahead.take(("x",), lambda: 7) == 7
    ahead.expect(("x",), fail)
    with pytest.raises(Unreachable):
        ahead.take(("x",), fail)


def test_the_next_block_of_a_group_is_the_first_of_the_next_at_the_same_worker():
    backend = DaskBackend(None)
    backend.pace = 0.125  # two in a group
    homes = [list(range(5)), list(range(5, 10))]
    groups = list(backend._groups(list(range(10)), np.ones(10), ["a", "b"], homes))
    assert groups == [
        ("a", [0, 1], 2),
        ("b", [5, 6], 7),
        ("a", [2, 3], 4),
        ("b", [7, 8], 9),
        ("a", [4], None),
        ("b", [9], None),
    ]


def test_functions_that_expect_nothing_are_called_alike():
    asked = InProcessBackend().map_blocks(lambda message, index: {"a": FloatSum.at(index, np.ones(1))}, None, range(4))
    assert asked["a"].value() == 4.0


def sums_of(population):
    """Of a first round on this version, with whatever the process has kept."""
    method = Toy(ToyConfig(rounds=1))
    source = Source(population.location, population.version, manifest=population.checksum)
    message = method.message(method.init(PublicFacts("counts", population.features, 4, 50, 50, 1.0, 0)))
    answer = Answer(method, source)
    return values(InProcessBackend().map_blocks(answer, message, range(len(population.blocks))))


def test_a_population_that_was_made_anew_at_its_path_is_read_anew(tmp_path):
    first = sums_of(write_counts(tmp_path / "p", small_counts(seed=1)))
    shutil.rmtree(tmp_path / "p")
    again = sums_of(write_counts(tmp_path / "p", small_counts(seed=2)))
    other = sums_of(write_counts(tmp_path / "q", small_counts(seed=2)))
    assert again["mean"].tobytes() == other["mean"].tobytes() != first["mean"].tobytes()


def test_copies_that_were_appended_to_separately_are_not_taken_for_each_other(tmp_path):
    """They have the same id and the same versions."""
    made = write_counts(tmp_path / "p", small_counts(16))
    copy_population(made.path, tmp_path / "q")
    grown = []
    for number, name in enumerate(("p", "q")):
        with PopulationWriter.extending(Population.open(tmp_path / name)) as writer:
            for entry in made.blocks:
                writer.keep(entry)
            writer.write([f"new {n}" for n in range(8)], small_counts(8, seed=5 + number))
            grown.append(writer.commit())
    assert grown[0].id == grown[1].id and grown[0].version == grown[1].version
    both = [sums_of(one)["mean"].tobytes() for one in grown]
    for one, kept in zip(reversed(grown), reversed(both), strict=True):
        BLOCKS.clear()
        clients._populations.clear()
        assert sums_of(one)["mean"].tobytes() == kept
    assert both[0] != both[1]


def test_a_version_that_is_another_one_here_is_refused(tmp_path):
    """A host whose folder of this name holds another copy answers nothing."""
    population = write_counts(tmp_path / "p", small_counts())
    source = Source(population.location, 1, manifest="0" * 64)
    method = Toy(ToyConfig(rounds=1))
    message = method.message(method.init(PublicFacts("counts", population.features, 4, 50, 50, 1.0, 0)))
    with pytest.raises(PopulationError, match="not the one that this run reads"):
        Answer(method, source)(message, 0)


# --- beside blocks --------------------------------------------------------------------------------------------------


def test_what_is_kept_beside_blocks_is_bounded_and_of_one_training_and_one_name():
    cache = BlockCache()
    cache.get("block", lambda: SimpleNamespace(nbytes=100), 1000)
    kept, before = cache.aside("block", "training", 1000), cache.bytes
    made = []

    def make(first: float, size: int = 10) -> np.ndarray:
        made.append(first)
        return first + np.arange(size)

    for _ in range(2):
        assert kept.get("name", 0, 10, lambda: make(0.0)).tolist() == list(range(10))
        assert kept.get("name", 10, 20, lambda: make(10.0)).tolist() == list(range(10, 20))
    assert made == [0.0, 10.0] and cache.bytes == before + 80
    kept.get("name", 20, 1020, lambda: make(0.0, 1000))  # no room
    assert cache.bytes == before + 80
    assert kept.get("other name", 0, 10, lambda: make(5.0))[0] == 5.0 and cache.bytes == before + 40
    assert cache.aside("block", "training", 1000) is kept
    assert cache.aside("another block", "training", 1000) is cache.aside("block", "training", 0) is None
    assert cache.aside("block", "", 1000) is None  # of no training
    other = cache.aside("block", "other training", 1000)
    assert cache.bytes == before and other.get("other name", 0, 10, lambda: make(7.0))[0] == 7.0
    cache.clear()
    assert cache.bytes == 0 and cache.aside("block", "other training", 1000) is None


def test_private_rounds_from_what_is_kept_have_the_same_sums(tmp_path, monkeypatch):
    """Clustering rounds with the same clip make it once; another clip or metric is another name."""
    write_counts(tmp_path / "p", small_counts(64))
    generator, cut, real = np.random.default_rng(0), [], contributions.clipped_on_grid
    monkeypatch.setattr(contributions, "clipped_on_grid", lambda *given: (cut.append(1), real(*given))[1])
    method = Histograms(HistogramsConfig())
    plain = Source(str(tmp_path / "p"), 1, cache_bytes=0)
    keeping = replace(plain, cache_bytes=2**20, training="one")
    features = Population.open(tmp_path / "p").features
    metric, calls = np.linspace(1.0, 5.0, features), []
    for whitening, clip in ((metric, 3.0),) * 3 + ((metric, 2.0), (metric + 1, 2.0)):
        logs = np.log(generator.dirichlet(np.ones(features), 4)).T.astype(np.float32)
        message = ReleaseMessage("sums", 4, logs, whitening, clip)
        sums = [values(clients.answer_block(method, source, message, 0))["sums"] for source in (plain, keeping)]
        assert np.array_equal(*sums) and sums[0].any()
        calls.append(len(cut))
    whole = calls[0] // 2  # leaves
    assert np.diff(calls).tolist() == [whole, whole, 2 * whole, 2 * whole]
    assert BLOCKS.bytes <= keeping.cache_bytes and sum(len(aside.held) for aside in BLOCKS.asides.values()) == whole
