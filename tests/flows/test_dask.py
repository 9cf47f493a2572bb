"""Dask: the same bits as in one process, for 1 and 4 workers; a dead worker changes nothing."""

import os
import signal
import threading
import time
from dataclasses import replace

import dask
import pytest
from distributed import LocalCluster
from fedcore.tasks.dask_backend import DaskBackend, _refuse_for_private_runs, dask_backend, dask_client

from fedcore.errors import ChunkError, ConfigError, PrivacyError, WorkerFailed
from tests.conftest import small_counts, write_counts
from tests.rounds.test_engine import Chatty, Recorder, begin, to_end
from tests.toy import Toy, ToyConfig

MATRIX = small_counts(400)


@pytest.fixture(scope="module", params=[1, 4])
def cluster(request):
    with dask_client(request.param) as client:
        yield client


@pytest.mark.slow
def test_the_number_of_workers_changes_no_bit(tmp_path, cluster):
    population = write_counts(tmp_path / "p", MATRIX, block=16)
    reference = to_end(begin(tmp_path, Toy(ToyConfig(rounds=4)), matrix=MATRIX, population=population, name="one"))
    training = begin(tmp_path, Toy(ToyConfig(rounds=4)), matrix=MATRIX, population=population, name="many")
    training.backend = DaskBackend(cluster)
    assert to_end(training).centre.tobytes() == reference.centre.tobytes()
    assert training.backend.pace > 0 and training.backend.memory_of_workers()


@pytest.mark.slow
def test_errors_keep_their_names_and_private_ones_their_silence(tmp_path, cluster):
    population = write_counts(tmp_path / "p", MATRIX, block=16)
    training = begin(
        tmp_path,
        Chatty(ToyConfig(private=True)),
        matrix=MATRIX,
        population=population,
        name="chatty",
        publisher=Recorder(),
    )
    training.backend = DaskBackend(cluster)
    with pytest.raises(WorkerFailed) as caught:
        training.step()
    assert "tokens" not in str(caught.value)
    next((tmp_path / "p" / "blocks").glob("*/train/indices/c/0")).unlink()
    training = begin(tmp_path, Toy(), matrix=MATRIX, population=population, name="torn")
    training.backend = DaskBackend(cluster)
    training.source = replace(training.source, cache_bytes=0)  # a worker may have the block from the run before
    with pytest.raises(ChunkError, match="[Bb]lock"):
        training.step()


class Slow(Toy):
    def client_update(self, message, block, memory):
        time.sleep(0.01)
        return super().client_update(message, block, memory)


class Deadly(Toy):
    def client_update(self, message, block, memory):
        if block.leaf == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().client_update(message, block, memory)


@pytest.mark.slow
def test_a_worker_killed_in_a_round_changes_no_bit(tmp_path):
    population = write_counts(tmp_path / "p", MATRIX, block=16)
    config = ToyConfig(rounds=3)
    reference = to_end(begin(tmp_path, Slow(config), matrix=MATRIX, population=population, name="calm"))
    with dask_client(2) as client:
        training = begin(tmp_path, Slow(config), matrix=MATRIX, population=population, name="killed")
        training.backend = DaskBackend(client)
        training.step()
        victim = list(client.run(os.getpid).values())[0]
        killer = threading.Timer(0.3, os.kill, (victim, signal.SIGKILL))
        killer.start()
        state = to_end(training)
        killer.join()
        assert victim not in client.run(os.getpid).values()
    assert state.centre.tobytes() == reference.centre.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.heavy), 2])
def test_a_block_that_kills_every_worker_is_named(tmp_path, workers):
    population = write_counts(tmp_path / "p", MATRIX, block=16)
    with dask_client(workers) as client:
        training = begin(tmp_path, Deadly(), matrix=MATRIX, population=population, name="deadly")
        training.backend = DaskBackend(client)
        with pytest.raises(WorkerFailed, match="blocks-1"):
            training.step()


def test_private_sums_are_not_sent_in_the_clear_nor_to_whom_anybody_reaches():
    for address in ("tcp://far.example:8786", "tcp://127.0.0.1:8786", "localhost:1", "[::1]:1", "ws://127.0.0.1:1"):
        with pytest.raises(PrivacyError, match="not encrypted") as caught, dask_client(address=address, private=True):
            pass
        assert "tls://" in caught.value.remedy


def test_a_scheduler_by_tls_whose_workers_do_not_encrypt_is_refused():
    with pytest.raises(PrivacyError, match="1 Dask workers do not encrypt .*:2"):
        _refuse_for_private_runs({"tls://127.0.0.1:1": (False, 1), "tcp://127.0.0.1:2": (False, 1)})


def nothing(message, block):
    return None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spill", "threads", "refused"), [(0.7, 1, "may spill"), (False, 2, "several blocks"), (False, 1, "")]
)
def test_a_worker_that_comes_later_is_looked_at_as_well(spill, threads, refused):
    settings = {"distributed.worker.memory.spill": spill, "distributed.worker.memory.target": False}
    with (
        dask.config.set(settings),
        LocalCluster(n_workers=0, threads_per_worker=threads, processes=False, dashboard_address=None) as cluster,
        dask_backend(address=cluster.scheduler_address, private=True) as backend,
    ):
        cluster.scale(1)
        if refused:
            with pytest.raises(PrivacyError, match=refused):
                backend.map_blocks(nothing, None, [0, 1])
            with pytest.raises(PrivacyError, match=refused), dask_client(None, cluster.scheduler_address, private=True):
                pass
        else:
            assert backend.map_blocks(nothing, None, [0, 1]) is None


@pytest.mark.slow
def test_no_scheduler_there():
    with pytest.raises(ConfigError, match="scheduler"), dask_client(address="tcp://127.0.0.1:9"):
        pass
