"""Who holds what lies behind a URL: a holder that lives renews its lock, by a thread; one that is dead is outlived;
and whatever happens to the thread, the token decides.
"""

import gc
import json
import os
import threading
import time
from types import SimpleNamespace

import pytest

from fedcore.errors import LeaseLost, RunBusy, Unreachable
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run, load_run
from fedcore.storage import objects as object_storage
from fedcore.storage import remote_lock
from fedcore.storage.files import place
from fedcore.storage.remote_lock import RemoteLock
from fedcore.training.session import abandon, resume
from tests.command import private_population
from tests.conftest import small_counts
from tests.faults.driver import PATIENCE, PROCESSES, Kill
from tests.faults.driver import train as in_a_process
from tests.faults.place import same_result
from tests.faults.test_two_processes import soon
from tests.runs.test_remote_runs import AWS, PRIVATE, begin, request_of, train
from tests.sessions import to_end

pytest.importorskip("upath", reason="universal-pathlib is not installed")

SECONDS = 0.6  # of silence, in these tests


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(remote_lock, "SECONDS", SECONDS)


@pytest.fixture
def elsewhere(monkeypatch):
    """From its call on this process is one on another host."""
    return lambda: monkeypatch.setattr("fedcore.storage.process.this_host", lambda: "elsewhere 1")


@pytest.fixture
def lock(base):
    found = RemoteLock(place(f"{base}/h.json"), "it")
    assert found.take() is False
    yield found
    found.close()


def told(lock) -> dict:
    return json.loads(object_storage.read_bytes(lock.path))


def die(lock) -> None:
    """As if its process were gone."""
    lock._stop.set()
    lock._thread.join()


# --- alive or dead ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_holder_that_only_computes_is_alive(lock, elsewhere):
    """Nobody calls anything of the lock for several times the silence that means death."""
    elsewhere()
    other, before = RemoteLock(lock.path, "it"), told(lock)["renewals"]
    until = time.monotonic() + 4 * SECONDS
    while time.monotonic() < until:
        with pytest.raises(RunBusy, match="is working on it.*--take-over"):
            other.take()
    assert told(lock)["renewals"] >= before + remote_lock.BEATS
    lock.check()


@pytest.mark.slow
def test_a_holder_that_is_dead_is_outlived(lock, elsewhere):
    die(lock)
    elsewhere()
    other, started = RemoteLock(lock.path, "it"), time.monotonic()
    assert other.take() is True
    assert SECONDS <= time.monotonic() - started < 4 * SECONDS
    with pytest.raises(LeaseLost, match="could not renew its lock for"):
        lock.check()
    assert lock._beat() is False, "what was taken is not renewed"
    lock.close()
    other.check()
    other.close()
    assert not object_storage.exists(lock.path) and lock.take() is False


def test_on_its_own_host_the_process_decides(lock):
    with pytest.raises(RunBusy, match="is working on it"):
        RemoteLock(lock.path, "it").take()
    die(lock)
    with pytest.raises(RunBusy, match="is working on it"):  # a dead thread is no dead process
        RemoteLock(lock.path, "it").take()
    remote_lock._own_tokens.discard(lock.token)
    assert RemoteLock(lock.path, "it").take() is True


@pytest.mark.slow
@pytest.mark.parametrize("year", [1999, 2999])
def test_wrong_clocks_change_nothing(memory, elsewhere, monkeypatch, year):
    right = remote_lock.datetime
    wrong = SimpleNamespace(now=lambda zone: right(year, 1, 1, tzinfo=zone))
    lock = RemoteLock(place(f"{memory}/h.json"), "it")
    with monkeypatch.context() as patched:
        patched.setattr(remote_lock, "datetime", wrong)
        lock.take()
        assert told(lock)["renewed"].startswith(str(year))
        patched.setattr("fedcore.storage.process.this_host", lambda: "elsewhere 1")
        with pytest.raises(RunBusy):
            RemoteLock(lock.path, "it").take()
        die(lock)
    elsewhere()
    assert RemoteLock(lock.path, "it").take() is True


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"token": "a", "holder": {"pid": 1}}',
        b'{"token": "a", "holder": {"host": "h", "pid": 1, "started": 1}, "seconds": Infinity}',
    ],
)
def test_an_object_that_says_nothing_is_not_waited_for(memory, content):
    path = place(f"{memory}/h.json")
    object_storage.write_bytes(path, content)
    with pytest.raises(RunBusy, match="does not name the process"):
        RemoteLock(path, "it").take()
    other = RemoteLock(path, "it")
    assert other.take(take_over=True) is True
    other.close()


def test_a_lock_of_the_version_before_is_outlived(memory):
    """It had the time at which it would expire, by its own clock, in place of the seconds of silence."""
    path = place(f"{memory}/h.json")
    object_storage.write_bytes(path, b'{"token": "a", "holder": {"host": "h", "pid": 1, "started": 1}, "expires": 9e9}')
    assert RemoteLock(path, "it").take() is True


def test_one_of_several_that_wait_gets_it(memory, elsewhere):
    lock = RemoteLock(place(f"{memory}/h.json"), "it")
    lock.take()
    die(lock)
    elsewhere()
    outcomes, others = [], [RemoteLock(lock.path, "it") for _ in range(3)]

    def want(other, name):
        other._holder = remote_lock.Holder(f"{name} 1", 1, 1.0)
        try:
            outcomes.append((other.take(), other))
        except RunBusy:
            outcomes.append((None, other))

    waiting = [threading.Thread(target=want, args=(other, f"host{i}")) for i, other in enumerate(others)]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join()
    valid = []
    for took, other in outcomes:
        if took:
            try:
                other.check()
                valid.append(other)
            except LeaseLost:  # memory:// has no puts under a condition: two may believe it, and one finds out
                pass
    assert len(valid) == 1
    valid[0].close()


# --- the thread -------------------------------------------------------------------------------------------------------


def test_a_store_that_fails_for_a_while(lock, monkeypatch, capfd):
    """Missed renewals are made good; nothing is said, and nobody else notices."""
    with monkeypatch.context() as broken:
        broken.setattr(object_storage, "version", lambda path: (_ for _ in ()).throw(Unreachable("secret=hunter2")))
        before = told(lock)
        time.sleep(SECONDS / 2)
        assert told(lock) == before and lock._thread.is_alive()
    soon(lambda: told(lock) != before)
    lock.check()
    lock.close()
    assert capfd.readouterr() == ("", "") and not object_storage.exists(lock.path)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_is_replaced_at_the_next_commit(lock, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(RemoteLock, "_beat", lambda self: 1 / 0)
        soon(lambda: not lock._thread.is_alive())
    before = told(lock)
    lock.keep_renewing()
    soon(lambda: told(lock) != before)


def test_the_thread_ends_with_its_lock(base):
    lock = RemoteLock(place(f"{base}/h.json"), "it")
    lock.take()
    lock.close()
    assert not threading_here(), "closed"
    lock.take()
    object_storage.remove(lock.path)  # somebody cleared it away by hand
    soon(lambda: not threading_here())
    with pytest.raises(LeaseLost):
        lock.check()
    lock = RemoteLock(place(f"{base}/i.json"), "it")
    lock.take()
    del lock
    gc.collect()
    soon(lambda: not threading_here())


def threading_here() -> list:
    return [thread for thread in threading.enumerate() if thread.name == "renews a lock"]


def test_a_late_renewal_does_not_bring_back_what_was_given_back(s3, monkeypatch):
    """It read the object before the end, and its put comes after."""
    lock = RemoteLock(place(f"{s3}/h.json"), "it")
    lock.take()
    read = lock._read()
    lock.close()
    monkeypatch.setattr(lock, "_read", lambda: read)
    assert lock._beat() is False and not object_storage.exists(lock.path)
    other = RemoteLock(lock.path, "it")
    other.take()
    assert lock._beat() is True and told(lock)["token"] == other.token
    other.close()


# --- runs -------------------------------------------------------------------------------------------------------------


def far_away(environment, *arguments, **options):
    """In a process on another host."""
    os.environ.update(environment)
    remote_lock.SECONDS = SECONDS
    remote_lock.this_process.__globals__["this_host"] = lambda: "elsewhere 1"
    in_a_process(*arguments, **options)


@pytest.mark.slow
def test_a_long_round_is_waited_for_and_a_dead_process_is_not(s3, tmp_path):
    """The ledger's lease, which is longer, is not waited for either once the run is ours."""
    population, ledger = private_population(tmp_path / "p", small_counts(40), test=True)
    settings = {"method": "histograms", "test_noise": "a key", "settings": {"clusters": 2, "rounds": 2, "epsilon": 1.0}}
    reference = train(population, tmp_path / "runs", "near", **settings)
    request = request_of(population, f"{s3}/runs", **settings).model_dump()
    until, environment = tmp_path / "until", {name: os.environ[name] for name in AWS}
    child = PROCESSES.Process(
        target=far_away,
        args=(environment, request, environment["FEDCORE_LEDGER"], tmp_path / "tally", tmp_path / "outcome"),
        kwargs={"wait_at": Kill("map", "before", 2), "until": until},
    )
    child.start()
    try:
        soon(lambda: until.with_suffix(".here").exists())
        time.sleep(2 * SECONDS)
        with pytest.raises(RunBusy, match="on elsewhere is working on run 'r'"):
            resume(f"{s3}/runs/r", InProcessBackend())
    finally:
        child.kill()
        child.join(PATIENCE)
    run = to_end(resume(f"{s3}/runs/r", InProcessBackend()))
    assert same_result(load_run(run.path), load_run(reference.path))
    assert ledger.verify(population.id).releases.get("forfeited", 0) == 0
    assert Run.open(f"{s3}/runs/r").head["taken_over"] == 1


def test_what_the_last_holder_held_in_the_ledger_ends_with_the_run(memory, tmp_path, elsewhere):
    population, ledger = private_population(tmp_path / "p", small_counts(40), test=True)
    session = begin(population, f"{memory}/runs", **PRIVATE)
    die(session.run._lock)
    elsewhere()
    assert abandon(f"{memory}/runs/r").status == "abandoned"
    assert ledger.balance(population.id).rho_reserved == 0
