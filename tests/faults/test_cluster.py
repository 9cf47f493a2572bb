"""SIGKILL of workers, of the scheduler, and of the process of a run on a cluster: the same bits in the end.

The undisturbed runs were made in one process, on a population cut into other blocks.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dask
import psutil
import pytest
from distributed import Nanny
from fedcore.tasks.dask_backend import DaskBackend, dask_client, workerless_seconds

from fedcore.errors import ConfigError, WorkerFailed
from fedcore.runs.store import load_run
from tests.faults.driver import Kill
from tests.faults.place import same_result
from tests.faults.test_two_processes import soon
from tests.sessions import to_end
from tests.tls import certificate, tls_environment, tls_settings

BLOCKS = 25
PATIENT_FOR_3_S = dask.config.collect_env({"DASK_FEDCORE__WORKERLESS_TIMEOUT": "3s"})
ANSWERED = [0]  # blocks that this worker process has answered


@dataclass(frozen=True)
class Deadly:
    """What the workers compute, and the death of one of them, once. Leaves a file when it strikes.

    when: "before" or "after" the work on `block`; or "holding" the sums of `block` blocks.
    """

    function: object
    when: str
    block: int
    struck: Path

    def __call__(self, message, index):
        if self.when == "before" and index == self.block:
            self.strike()
        statistics = self.function(message, index)
        ANSWERED[0] += 1
        if (self.when == "after" and index == self.block) or (self.when == "holding" and ANSWERED[0] >= self.block):
            self.strike()
        return statistics

    def strike(self):
        try:
            self.struck.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Waiting:
    """What the workers compute; `block` says that it is being answered and then takes a long time."""

    function: object
    block: int
    here: Path

    def __call__(self, message, index):
        if index == self.block:
            self.here.touch()
            time.sleep(600)
        return self.function(message, index)


class Disturbed(DaskBackend):
    """disturb: what to make of the function in round `round`, counted in calls of this backend."""

    def __init__(self, client, disturb, round=3):
        super().__init__(client)
        self.disturb, self.left = disturb, round

    def map_blocks(self, function, message, blocks, sizes=None):
        self.left -= 1
        return super().map_blocks(self.disturb(function) if self.left == 0 else function, message, blocks, sizes)


@pytest.fixture(scope="module")
def cluster():
    with dask_client(2, private=True) as client:
        yield client


WORKERS = [
    ("plain", "before", 0),
    ("plain", "holding", 20),
    ("test noise", "after", 0),
    ("test noise", "before", 12),
    ("test noise", "after", BLOCKS - 1),
]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "when", "block"), WORKERS)
def test_a_worker_killed_in_a_round_changes_no_bit(place, undisturbed, cluster, mode, when, block):
    here = place(mode, 16)
    assert len(here.population().blocks) == BLOCKS
    struck = here.folder / "struck"
    to_end(here.start(Disturbed(cluster, lambda function: Deadly(function, when, block, struck))))
    assert struck.exists()
    assert same_result(load_run(here.run_path), undisturbed[mode])
    if here.private:
        here.check_ledger(forfeited=0)


@pytest.mark.slow
def test_workers_killed_in_a_run_with_real_noise(place, cluster):
    here = place("secure", 16)
    struck = here.folder / "struck"
    to_end(here.start(Disturbed(cluster, lambda function: Deadly(function, "after", 12, struck))))
    assert struck.exists()
    here.check_ledger(forfeited=0)
    here.check_state_follows_from_releases()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "point", "forfeited"),
    [
        ("plain", Kill("map", "after", 3), 0),
        pytest.param("test noise", Kill("map", "before", 3), 0, marks=pytest.mark.heavy),
        ("test noise", Kill("draw", "after", 3), 1),
        pytest.param("secure", Kill("publish", "before", 3), 1, marks=pytest.mark.heavy),
        ("secure", Kill("publish", "after", 3), 0),
    ],
    ids=str,
)
def test_the_process_of_a_run_on_a_cluster_killed(place, undisturbed, mode, point, forfeited):
    """Its workers end with it, and the run goes on, on another cluster."""
    here = place(mode, 16)
    on = here.folder / "on"
    child = here.launch(workers=2, wait_at=point, until=on)
    soon(lambda: on.with_suffix(".here").exists())
    workers = psutil.Process(child.pid).children(recursive=True)
    before = here.published()
    child.kill()
    child.join()
    assert workers
    soon(lambda: not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers))
    here.finish(workers=2)
    assert before.items() <= here.published().items()
    if mode != "secure":
        assert same_result(load_run(here.run_path), undisturbed[mode])
    if here.private:
        here.check_ledger(forfeited=forfeited)
        here.check_state_follows_from_releases()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def separate_cluster(folder: Path):
    """A scheduler and two workers in processes of their own, by TLS: (address, scheduler, workers). The certificate is
    made in the folder; this process uses it meanwhile.
    """
    certificate(folder)
    address = f"tls://127.0.0.1:{free_port()}"
    environment = (
        os.environ
        | tls_environment(folder)
        | {"DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "False", "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "False"}
    )
    options = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    port = address.rsplit(":", 1)[1]
    command = [sys.executable, "-m", "dask", "scheduler", "--protocol", "tls", "--host", "127.0.0.1", "--port", port]
    scheduler = subprocess.Popen([*command, "--no-dashboard"], **options)
    workers = subprocess.Popen(
        [sys.executable, "-m", "dask", "worker", address, "--nworkers", "2", "--nthreads", "1", "--no-dashboard"],
        **options,
    )
    try:
        with dask.config.set(tls_settings(folder)):
            yield address, scheduler, workers
    finally:
        for process in (workers, scheduler):
            family = [process, *psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else []
            for member in family:
                member.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["plain", "test noise"])
def test_a_scheduler_killed_in_a_round(place, undisturbed, mode):
    here = place(mode, 16)
    waiting = here.folder / "waiting"
    with separate_cluster(here.folder) as (address, scheduler, _), pytest.raises(WorkerFailed) as caught:
        with dask_client(address=address, private=here.private) as client:
            session = here.start(Disturbed(client, lambda function: Waiting(function, 12, waiting)))

            def kill():
                soon(waiting.exists)
                killed.append(time.monotonic())
                scheduler.send_signal(signal.SIGKILL)

            killed = []
            threading.Thread(target=kill).start()
            to_end(session)
    assert caught.value.remedy and "scheduler" in caught.value.message
    print("named after", time.monotonic() - killed[0])
    run = load_run(here.run_path)
    assert (run.head["status"], run.head["round"]) == ("failed", 2)
    to_end(here.resume())
    assert same_result(load_run(here.run_path), undisturbed[mode])
    if here.private:
        here.check_ledger(forfeited=0)


@pytest.mark.slow
def test_a_cluster_that_lost_all_workers(place, undisturbed):
    """Nobody starts them again: the run ends with a named error and does not wait for ever."""
    here = place("test noise", 16)
    waiting = here.folder / "waiting"
    with separate_cluster(here.folder) as (address, _, workers), dask_client(address=address, private=True) as client:
        session = here.start(Disturbed(client, lambda function: Waiting(function, 12, waiting)))

        def kill():
            soon(waiting.exists)
            for process in [psutil.Process(workers.pid), *psutil.Process(workers.pid).children(recursive=True)]:
                process.kill()

        threading.Thread(target=kill).start()
        with dask.config.set(PATIENT_FOR_3_S), pytest.raises(WorkerFailed, match="no worker for 3 s") as caught:
            to_end(session)
    assert caught.value.remedy
    to_end(here.resume())
    assert same_result(load_run(here.run_path), undisturbed["test noise"])
    here.check_ledger(forfeited=0)


@pytest.mark.slow
def test_workers_that_come_back_slowly(place, undisturbed, monkeypatch):
    """On a busy machine a nanny takes longer to start a process anew than Dask's local cluster waits for it."""
    here, restart, restarted = place("test noise", 16), Nanny.instantiate, []

    async def slow(nanny):
        if nanny.process is not None:  # not at the beginning
            await asyncio.sleep(2.0)
            restarted.append(nanny)
        return await restart(nanny)

    monkeypatch.setattr(Nanny, "instantiate", slow)
    settings = {"distributed.deploy.lost-worker-timeout": "500 ms", "fedcore.workerless-timeout": "30 s"}
    with dask.config.set(settings), dask_client(1, private=True) as client:
        to_end(here.start(Disturbed(client, lambda function: Deadly(function, "after", 12, here.folder / "struck"))))
    assert restarted and (here.folder / "struck").exists()
    assert same_result(load_run(here.run_path), undisturbed["test noise"])
    here.check_ledger(forfeited=0)


def test_how_long_lost_workers_are_waited_for():
    assert workerless_seconds() == 300
    with dask.config.set(PATIENT_FOR_3_S):
        assert workerless_seconds() == 3
    for wrong in ("soon", "0s", "-1s", None, "inf"):
        with dask.config.set({"fedcore.workerless-timeout": wrong}), pytest.raises(ConfigError, match="is no time"):
            workerless_seconds()
