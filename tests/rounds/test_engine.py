"""The engine on a toy method: the same bits for every block size; only planned grid values are published."""

import os
import platform
import resource
import subprocess
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from fedcore.errors import ChunkError, MethodError, SensitivityError, UnplannedRelease, WorkerFailed
from fedcore.rounds import engine
from fedcore.rounds.caches import BLOCKS
from fedcore.rounds.clients import Source, checked_answer, memory_file
from fedcore.rounds.engine import InProcessBackend, Training
from fedcore.rounds.method import PublicFacts
from fedcore.rounds.statistics import FloatSum
from fedcore.runs.store import Run
from fedcore.storage.arrays import read_values
from fedcore.storage.process import keep_freed_memory
from tests.conftest import small_counts, write_counts
from tests.toy import Toy, ToyConfig


class Recorder:
    """A publisher without a ledger or noise; remembers what it was asked to release."""

    def __init__(self, stored=None):
        self.stored = stored or {}
        self.released = []

    def published(self, planned):
        return self.stored.get(planned.name)

    def release_round(self, planned, grids):
        self.released += [release.name for release in planned]
        self.stored |= grids
        return grids

    def head(self):
        return {"ledger_id": "x", "seq": len(self.stored), "hash": "0"}


class Clock:
    """The engine's clock, which stands still until a test moves it."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(engine, "time", SimpleNamespace(perf_counter=lambda: self.now))


def begin(tmp_path, method, *, block=8, name="r", publisher=None, matrix=None, population=None):
    matrix = small_counts() if matrix is None else matrix
    population = population or write_counts(tmp_path / f"p-{name}", matrix, block=block)
    public = PublicFacts("counts", matrix.shape[1], 4, 50, None if method.private else 50, 1.0, 0)
    run = Run.create(tmp_path / "runs", {"run_id": name})
    state = method.init(public)
    run.commit(0, state)
    source = Source(str(population.path), population.version)
    plan = method.plan(public)
    return Training(method, run, state, source, range(len(population.blocks)), InProcessBackend(), plan, publisher)


def to_end(training):
    while training.step() is not None:
        pass
    return training.state


@pytest.mark.slow
@pytest.mark.parametrize("block", [4, 12, 64])
def test_the_block_size_changes_no_bit(tmp_path, block):
    reference = to_end(begin(tmp_path, Toy(), block=8, name="reference"))
    assert to_end(begin(tmp_path, Toy(), block=block, name="other")).centre.tobytes() == reference.centre.tobytes()


def test_the_mean_is_the_mean(tmp_path):
    matrix = small_counts()
    dense = matrix.toarray() / np.maximum(matrix.toarray().sum(axis=1, keepdims=True), 1)
    state = to_end(begin(tmp_path, Toy(ToyConfig(rounds=1)), matrix=matrix))
    assert np.allclose(state.centre, dense.mean(axis=0) / 2, rtol=1e-12)


def test_a_run_is_finished_after_its_last_round(tmp_path):
    training, before = begin(tmp_path, Toy()), []
    while not training.finished and len(before) < 9:
        before.append(training.round)
        training.step()
    assert before == [1, 2, 3]
    assert training.finished and training.step() is None


def test_a_round_lasts_from_the_end_of_the_one_before(tmp_path, monkeypatch):
    """What the shell does between two rounds counts, so that the seconds of all rounds add up to those of the run."""
    clock = Clock(monkeypatch)
    training = begin(tmp_path, Toy())
    for seconds in (2.0, 3.0, 5.0):
        clock.now += seconds
        training.step()
    assert [row["seconds_round"] for row in training.run.metrics()] == [2.0, 3.0, 5.0]


def test_memory_moves_with_the_round_and_a_torn_attempt_leaves_no_trace(tmp_path):
    training = begin(tmp_path, Toy())
    training.step()
    training.answer()  # round 2 was answered, and memory 2 written, when the process died
    resumed = Training(
        training.method, training.run, training.state, training.source, training.blocks, training.backend
    )
    assert resumed.round == 2
    to_end(resumed)
    memory = read_values(memory_file(training.run.memory_folder(3), 0))
    assert memory["asked"].tolist() == [3.0] * 8
    assert not training.run.memory_folder(1).exists()


def test_a_published_round_is_not_computed_again(tmp_path, monkeypatch):
    method = Toy(ToyConfig(private=True))
    publisher = Recorder({"mean-1": np.arange(7, dtype=np.int64)})
    training = begin(tmp_path, method, publisher=publisher)
    monkeypatch.setattr(training.backend, "map_blocks", lambda *a: pytest.fail("data were read again"))
    training.step()
    assert publisher.released == [] and training.state.step == 1
    assert (training.run.releases()["mean-1"] == np.arange(7)).all()


def test_a_private_run_publishes_each_planned_release_once(tmp_path):
    publisher = Recorder()
    to_end(begin(tmp_path, Toy(ToyConfig(private=True)), publisher=publisher))
    assert publisher.released == ["mean-1", "mean-2", "mean-3"]


class Spent(Recorder):
    """Cannot pay for the second round any more."""

    def release_round(self, planned, grids):
        return None if planned[0].round == 2 else super().release_round(planned, grids)


def test_a_run_ends_before_the_round_that_was_given_up(tmp_path):
    training = begin(tmp_path, Toy(ToyConfig(private=True)), publisher=Spent())
    assert to_end(training).step == 1 == training.run.round
    assert list(training.run.releases()) == ["mean-1"]


class Greedy(Toy):
    def release_values(self, message, statistics):
        return super().release_values(message, statistics) | {"extra": np.zeros(3, np.int64)}


class Floating(Toy):
    def release_values(self, message, statistics):
        return {name: value.astype(float) for name, value in super().release_values(message, statistics).items()}


class Inexact(Toy):
    def client_update(self, message, block, memory):
        return {"mean": FloatSum.at(block.leaf, np.zeros(7))}, None


class Chatty(Toy):
    def client_update(self, message, block, memory):
        raise ValueError(f"the first client has {block.data[0]} tokens")


class ChattyServer(Toy):
    def release_values(self, message, statistics):
        raise ValueError(f"the sum is {statistics['mean'].value()}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "error"),
    [
        (Greedy, UnplannedRelease),
        (Floating, SensitivityError),
        (Inexact, SensitivityError),
        (Chatty, WorkerFailed),
        (ChattyServer, WorkerFailed),
    ],
)
def test_a_private_method_that_breaks_the_rules_releases_nothing_and_says_no_value(tmp_path, cls, error):
    publisher = Recorder()
    training = begin(tmp_path, cls(ToyConfig(private=True)), publisher=publisher)
    with pytest.raises(error) as caught:
        training.step()
    assert publisher.released == [] and not training.run.releases() and training.run.round == 0
    assert "tokens" not in str(caught.value) and "sum is" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_non_private_method_shows_its_own_errors(tmp_path):
    with pytest.raises(ValueError, match="first client"):
        begin(tmp_path, Chatty()).step()


def test_a_damaged_block_stops_the_round_by_name(tmp_path):
    training = begin(tmp_path, Toy())
    victim = next((tmp_path / "p-r" / "blocks").glob("*/train/counts/c/0"))
    victim.unlink()
    with pytest.raises(ChunkError, match="[Bb]lock"):
        training.step()
    assert training.run.round == 0


def test_cached_and_uncached_runs_agree(tmp_path):
    BLOCKS.clear()
    warm = begin(tmp_path, Toy(), name="warm")
    cold = begin(tmp_path, Toy(), name="cold")
    cold.source = replace(cold.source, cache_bytes=0)
    assert to_end(warm).centre.tobytes() == to_end(cold).centre.tobytes()


class CountsThreads(Toy):
    """Notes how many threads the BLAS may use while the server moves."""

    def server_update(self, state, result):
        threads.append({pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"})
        return super().server_update(state, result)


threads: list[set[int]] = []


def test_the_server_moves_with_one_thread_of_the_blas(tmp_path):
    """As the clients answer, so that the number of cores changes no bit."""
    threads.clear()
    with threadpool_limits(2):  # tests have one
        to_end(begin(tmp_path, CountsThreads()))
    assert threads == [{1}] * 3


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_freed_memory_is_kept():
    """Its pages are not faulted in anew."""
    keep_freed_memory()

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(20):
            np.ones(2**20)  # 2048 pages
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    faults()
    assert faults() < 2048


def test_clients_of_a_private_run_remember_nothing():
    """Exact values would lie in the run's folder, and digests of them in its head and in the ledger."""
    answer = {}, {"seen": np.zeros(3)}
    assert checked_answer(SimpleNamespace(name="m", private=False), answer) == answer
    for nothing in (None, {}):
        checked_answer(SimpleNamespace(name="m", private=True), ({}, nothing))
    with pytest.raises(MethodError, match="which is private, lets clients remember something"):
        checked_answer(SimpleNamespace(name="m", private=True), answer)


BLAS_OF_TWO_THREADS = """
import threading
import numpy, scipy.linalg
from threadpoolctl import threadpool_info
from fedcore.rounds.clients import one_blas_thread

def threads():
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}

def other():
    with one_blas_thread():
        inside.set()
        leave.wait()

assert threads() == {2}, threads()
inside, leave = threading.Event(), threading.Event()
first = threading.Thread(target=other)
first.start()
inside.wait()
with one_blas_thread():
    leave.set()
    first.join()
    assert threads() == {1}
"""
BLAS_OF_ONE = """
import numpy, scipy.linalg
from threadpoolctl import threadpool_info, threadpool_limits
from fedcore.rounds.clients import one_blas_thread

def threads():
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}

for _ in range(2):
    with one_blas_thread():
        with one_blas_thread():
            assert threads() == {1}
        assert threads() == {1}
    assert threads() == {2}
"""


def test_one_blas_thread_lasts_until_the_last_thread_leaves():
    """The limit may be one of the whole process."""
    two = os.environ | {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}
    for program in (BLAS_OF_TWO_THREADS, BLAS_OF_ONE):
        subprocess.run([sys.executable, "-c", program], env=two, check=True)


def test_sums_that_are_not_finite_warn_nobody():
    def at(leaf, *values):
        return FloatSum.at(leaf, values)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        total = at(0, np.inf, 1e308).merge(at(1, -np.inf, 1e308)).merge(at(2, np.inf, 1e308)).merge(at(4, 1.0, -np.inf))
        assert np.isnan(total.value()).all()
