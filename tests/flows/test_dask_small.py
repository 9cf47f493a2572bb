"""Small rounds: what is asked of the cluster in one, and when answers are no longer waited for."""

import os
import sys
import time
from dataclasses import dataclass

import numpy as np
import pytest
from distributed.comm import CommClosedError
from fedcore.tasks import local_cluster
from fedcore.tasks.dask_backend import DaskBackend, Strayed, Watch, dask_client

from fedcore.errors import WorkerFailed
from fedcore.rounds.statistics import ArgMax, FloatSum, IntegerSum, aligned_arrays
from tests.conftest import small_counts, write_counts
from tests.rounds.test_engine import begin, to_end
from tests.toy import Toy, ToyConfig

ROUNDS = 4


@pytest.fixture(scope="module")
def cluster():
    with dask_client(1) as client:
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("block, late, first, each", [(16, 0.0, 1, 1), (8, 60.0, 4, 1), (8, 0.0, 4, 3)])
def test_small_rounds_are_few_futures_and_the_bits_are_those_of_one_process(
    tmp_path, cluster, monkeypatch, block, late, first, each
):
    """Two blocks are two futures, the message that both need, and their sum. Once it is known how long they take and
    how large their answers are, they are one if that is little, and this process adds up.
    """
    monkeypatch.setattr("fedcore.tasks.dask_backend.LATE_SECONDS", late)
    matrix = small_counts(16)
    population = write_counts(tmp_path / "p", matrix, block=block)
    reference = to_end(begin(tmp_path, Toy(ToyConfig(rounds=ROUNDS)), matrix=matrix, population=population, name="one"))
    submitted, submit = [], cluster.submit
    monkeypatch.setattr(
        cluster, "submit", lambda *given, **options: submitted.append(given[0]) or submit(*given, **options)
    )
    training = begin(tmp_path, Toy(ToyConfig(rounds=ROUNDS)), matrix=matrix, population=population, name="dask")
    training.backend = DaskBackend(cluster)
    assert to_end(training).centre.tobytes() == reference.centre.tobytes()
    assert len(submitted) == first + (ROUNDS - 1) * each


def test_workers_are_not_watched(cluster):
    """Settings reach the workers, which would sample their stacks otherwise."""
    import dask

    def watched():
        return dask.config.get("distributed.worker.profile.enabled"), dask.config.get("distributed.admin.tick.interval")

    assert list(cluster.run(watched).values()) == [(False, "1s")]


@dataclass(frozen=True)
class Noted:
    """Writes down which blocks it was asked for."""

    file: str

    def __call__(self, message, block):
        with open(self.file, "a") as file:
            file.write(f"{block} ")
        return {"blocks": IntegerSum(np.array([block]))}


def held_late(request):
    """As `hold`, when all blocks wait for it already: as over a slow network."""
    time.sleep(0.3)
    return request


@pytest.mark.slow
def test_a_worker_answers_blocks_in_the_order_in_which_it_reads_ahead(tmp_path, cluster, monkeypatch):
    monkeypatch.setattr("fedcore.tasks.dask_backend.hold", held_late)
    backend, file, blocks = DaskBackend(cluster), tmp_path / "asked", list(range(16))
    backend.map_blocks(Noted(str(file)), None, blocks)
    assert [int(block) for block in file.read_text().split()] == blocks


def odd(array):
    """The same numbers at an address that is no multiple of eight."""
    room = np.empty(array.nbytes + 3, np.uint8)
    moved = room[3:].view(array.dtype).reshape(array.shape)
    moved[:] = array
    assert not moved.flags.aligned
    return moved


@dataclass(frozen=True)
class Sent:
    number: int
    centres: np.ndarray
    weights: np.ndarray


def test_what_came_over_a_wire_is_aligned_before_anybody_multiplies_with_it():
    """Products of large matrices have other last bits otherwise."""
    weights = np.arange(4.0)
    message = aligned_arrays(Sent(3, odd(np.arange(12.0).reshape(3, 4)), weights))
    assert message.centres.flags.aligned and message.weights is weights and message.number == 3
    assert message.centres.tolist() == np.arange(12.0).reshape(3, 4).tolist()
    assert aligned_arrays(7) == 7
    nested = Sent(3, {"theta": odd(weights), "means": (odd(weights), [odd(weights)])}, weights)
    found = aligned_arrays(nested)
    assert found.centres["theta"].flags.aligned and found.centres["theta"].tolist() == weights.tolist()
    assert found.centres["means"][0].flags.aligned and found.centres["means"][1][0].flags.aligned
    assert aligned_arrays(found) is found, "nothing is copied twice"
    total = FloatSum({(0, 0): odd(np.arange(5.0))}).value()
    assert total.flags.aligned and total.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert ArgMax(1.0, 2, {"row": odd(weights)}).value().payload["row"].flags.aligned


class Vanishing:
    """A cluster whose only worker is gone when one looks, for the first so many times."""

    def __init__(self, times):
        self.times = times

    def wait_for_workers(self, number, timeout):
        assert timeout > 0

    def scheduler_info(self, n_workers):
        self.times -= 1
        return {"workers": {} if self.times >= 0 else {"tcp://one": {}}}


def test_a_worker_that_vanishes_between_two_looks_is_waited_for(monkeypatch):
    assert DaskBackend(Vanishing(3))._workers() == ["tcp://one"]
    monkeypatch.setattr("fedcore.tasks.dask_backend.FIRST_SECONDS", 0.05)
    with pytest.raises(WorkerFailed, match="no worker"):
        DaskBackend(Vanishing(10**9))._workers()


class Gone:
    """A client whose scheduler has closed its connection, `times` times."""

    status = "running"

    def __init__(self, times):
        self.times = times

    def wait_for_workers(self, number, timeout):
        self.times -= 1
        if self.times >= 0:
            raise CommClosedError("Stream is closed")
        raise KeyError("it answers")


def test_a_scheduler_that_closes_its_connections_is_a_named_error():
    with pytest.raises(WorkerFailed, match="scheduler was lost") as caught:
        DaskBackend(Gone(3)).map_blocks(None, None, [0])
    assert caught.value.remedy
    with pytest.raises(KeyError, match="it answers"):
        DaskBackend(Gone(2)).map_blocks(None, None, [0])


class Reconnecting(Gone):
    """A client that connects again meanwhile."""

    looks = 3

    @property
    def status(self):
        self.looks -= 1
        return "connecting" if self.looks >= 0 else "running"


def test_a_client_that_connects_again_is_waited_for(monkeypatch):
    with pytest.raises(KeyError, match="it answers"):
        DaskBackend(Reconnecting(1)).map_blocks(None, None, [0])
    monkeypatch.setattr("fedcore.tasks.dask_backend.FIRST_SECONDS", 0.0)
    with pytest.raises(WorkerFailed, match="scheduler was lost"):
        DaskBackend(Reconnecting(1)).map_blocks(None, None, [0])


class Dying(local_cluster.ClosedWorker):
    def __init__(self, *arguments, **options):
        os._exit(3)


@pytest.mark.slow
def test_workers_that_die_while_they_start_are_a_named_error(monkeypatch):
    monkeypatch.setattr(local_cluster, "ClosedWorker", Dying)
    with pytest.raises(WorkerFailed, match="did not start") as raised, dask_client(1):
        pass
    assert "--workers" in raised.value.remedy and "--local" in raised.value.remedy


class Workers:
    """A cluster that has these workers."""

    def __init__(self, *names):
        self.names = names

    def scheduler_info(self, n_workers):
        return {"workers": dict.fromkeys(self.names)}


def test_answers_are_waited_for_as_long_as_they_can_come():
    Watch(Workers("a", "c"), ["a", "b"]).look()
    Watch(Workers("c"), []).look()  # for whoever can
    with pytest.raises(Strayed):
        Watch(Workers("c"), ["a", "b"]).look()
    watch = Watch(Workers(), ["a"])
    watch.look()
    watch.seen -= watch.patience + 1
    with pytest.raises(WorkerFailed, match="no worker for 300 s"):
        watch.look()


@pytest.mark.slow
def test_many_blocks_have_few_futures_in_the_first_round(cluster, monkeypatch):
    """The first blocks say how long the others take, and opening the population does not count."""
    backend, keys, submit = DaskBackend(cluster), [], cluster.submit
    monkeypatch.setattr(
        cluster, "submit", lambda *given, **options: keys.append(options.get("key")) or submit(*given, **options)
    )

    def answer(message, block):
        if not hasattr(sys, "opened"):
            sys.opened = True
            time.sleep(3.0)
        return {"n": IntegerSum(np.array([block]))}

    total = backend.map_blocks(answer, None, range(500))
    assert total is not None and total["n"].value().tolist() == [499 * 250]
    assert len([key for key in keys if str(key).startswith("blocks-")]) < 40
