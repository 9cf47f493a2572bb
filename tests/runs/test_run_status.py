"""Whether somebody makes the rounds of a run: told from its lock, by whoever looks, in nobody's way."""

import fcntl
import threading
import time

import pytest

from fedcore.errors import RunBusy
from fedcore.runs import run_lock
from fedcore.runs.store import Run
from fedcore.storage.files import place
from fedcore.storage.remote_lock import RemoteLock


@pytest.fixture
def run(tmp_path):
    made = Run.create(tmp_path, {"run_id": "r"})
    yield made
    made.unlock()


def test_a_run_is_interrupted_when_its_lock_is_given_back(run):
    assert (run.status, run.status_now) == ("running", "running")
    run.unlock()
    assert Run.open(run.path).status_now == "interrupted"
    (run.path / run_lock.LOCK).unlink()
    assert Run.open(run.path).status_now == "interrupted"


def test_who_looks_is_not_in_the_way_of_who_wants_to_work(run):
    run.unlock()
    with open(run.path / run_lock.LOCK, "rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        release = threading.Timer(run_lock.SECONDS_BETWEEN / 2, lambda: fcntl.flock(looking, fcntl.LOCK_UN))
        release.start()
        lock, _ = run_lock.take(run.path)
        release.join()
    began = time.monotonic()
    with pytest.raises(RunBusy):
        run_lock.take(run.path)
    assert time.monotonic() - began < 5
    assert run_lock.is_held(run.path)
    lock.close()
    assert not run_lock.is_held(run.path)


def test_behind_a_url_the_object_of_the_holder_tells():
    pytest.importorskip("upath", reason="universal-pathlib is not installed")
    folder = place("memory://status/r")
    assert not run_lock.is_held(folder)
    lock = RemoteLock(folder / "holder.json", "run 'r'")
    lock.take()
    try:
        assert run_lock.is_held(folder)
    finally:
        lock.close()
    assert not run_lock.is_held(folder)
