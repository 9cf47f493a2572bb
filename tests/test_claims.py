"""Who holds what lies behind a URL: a holder that lives renews its claim, by a thread; one that is dead is outlived;
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
from fedcore.storage import remote_lock as claims
from fedcore.storage.files import place
from fedcore.storage.remote_lock import Claim
from fedcore.training.session import abandon, resume
from tests.command import private_population
from tests.conftest import small_counts
from tests.faults.driver import PATIENCE, PROCESSES, Kill
from tests.faults.driver import train as in_a_process
from tests.faults.place import same_result
from tests.faults.test_two_processes import soon
from tests.test_remote_runs import AWS, begin, request_of, to_end, train

pytest.importorskip("upath", reason="universal-pathlib is not installed")

SECONDS = 0.6  # of silence, in these tests


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(claims, "SECONDS", SECONDS)


@pytest.fixture
def elsewhere(monkeypatch):
    """From its call on this process is one on another host."""
    return lambda: monkeypatch.setattr("fedcore.storage.process.this_host", lambda: "elsewhere 1")


@pytest.fixture
def claim(base):
    found = Claim(place(f"{base}/h.json"), "it")
    assert found.take() is False
    yield found
    found.close()


def told(claim) -> dict:
    return json.loads(object_storage.read_bytes(claim.path))


def die(claim) -> None:
    """As if its process were gone."""
    claim._stop.set()
    claim._thread.join()


# --- alive or dead ----------------------------------------------------------------------------------------------------


def test_a_holder_that_only_computes_is_alive(claim, elsewhere):
    """Nobody calls anything of the claim for several times the silence that means death."""
    elsewhere()
    other, before = Claim(claim.path, "it"), told(claim)["renewals"]
    until = time.monotonic() + 4 * SECONDS
    while time.monotonic() < until:
        with pytest.raises(RunBusy, match="is working on it.*--take-over"):
            other.take()
    assert told(claim)["renewals"] >= before + claims.BEATS
    claim.check()


def test_a_holder_that_is_dead_is_outlived(claim, elsewhere):
    die(claim)
    elsewhere()
    other, started = Claim(claim.path, "it"), time.monotonic()
    assert other.take() is True
    assert SECONDS <= time.monotonic() - started < 4 * SECONDS
    with pytest.raises(LeaseLost, match="could not renew its claim for"):
        claim.check()
    assert claim._beat() is False, "what was taken is not renewed"
    claim.close()
    other.check()
    other.close()
    assert not object_storage.exists(claim.path) and claim.take() is False


def test_on_its_own_host_the_process_decides(claim):
    with pytest.raises(RunBusy, match="is working on it"):
        Claim(claim.path, "it").take()
    die(claim)
    with pytest.raises(RunBusy, match="is working on it"):  # a dead thread is no dead process
        Claim(claim.path, "it").take()
    claims._held.discard(claim.token)
    assert Claim(claim.path, "it").take() is True


@pytest.mark.parametrize("year", [1999, 2999])
def test_wrong_clocks_change_nothing(memory, elsewhere, monkeypatch, year):
    right = claims.datetime
    wrong = SimpleNamespace(now=lambda zone: right(year, 1, 1, tzinfo=zone))
    claim = Claim(place(f"{memory}/h.json"), "it")
    with monkeypatch.context() as patched:
        patched.setattr(claims, "datetime", wrong)
        claim.take()
        assert told(claim)["renewed"].startswith(str(year))
        patched.setattr("fedcore.storage.process.this_host", lambda: "elsewhere 1")
        with pytest.raises(RunBusy):
            Claim(claim.path, "it").take()
        die(claim)
    elsewhere()
    assert Claim(claim.path, "it").take() is True


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
    with pytest.raises(RunBusy, match="does not say who"):
        Claim(path, "it").take()
    other = Claim(path, "it")
    assert other.take(take_over=True) is True
    other.close()


def test_a_claim_of_the_version_before_is_outlived(memory):
    """It had the time at which it would expire, by its own clock, in place of the seconds of silence."""
    path = place(f"{memory}/h.json")
    object_storage.write_bytes(path, b'{"token": "a", "holder": {"host": "h", "pid": 1, "started": 1}, "expires": 9e9}')
    assert Claim(path, "it").take() is True


def test_one_of_several_that_wait_gets_it(memory, elsewhere):
    claim = Claim(place(f"{memory}/h.json"), "it")
    claim.take()
    die(claim)
    elsewhere()
    outcomes, others = [], [Claim(claim.path, "it") for _ in range(3)]

    def want(other, name):
        other._holder = claims.Holder(f"{name} 1", 1, 1.0)
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


def test_a_store_that_fails_for_a_while(claim, monkeypatch, capfd):
    """Missed renewals are made good; nothing is said, and nobody else notices."""
    with monkeypatch.context() as broken:
        broken.setattr(object_storage, "version", lambda path: (_ for _ in ()).throw(Unreachable("secret=hunter2")))
        before = told(claim)
        time.sleep(SECONDS / 2)
        assert told(claim) == before and claim._thread.is_alive()
    soon(lambda: told(claim) != before)
    claim.renew()
    claim.close()
    assert capfd.readouterr() == ("", "") and not object_storage.exists(claim.path)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_is_replaced_at_the_next_commit(claim, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(Claim, "_beat", lambda self: 1 / 0)
        soon(lambda: not claim._thread.is_alive())
    before = told(claim)
    claim.renew()
    soon(lambda: told(claim) != before)


def test_the_thread_ends_with_its_claim(base):
    claim = Claim(place(f"{base}/h.json"), "it")
    claim.take()
    claim.close()
    assert not threading_here(), "closed"
    claim.take()
    object_storage.remove(claim.path)  # somebody cleared it away by hand
    soon(lambda: not threading_here())
    with pytest.raises(LeaseLost):
        claim.renew()
    claim = Claim(place(f"{base}/i.json"), "it")
    claim.take()
    del claim
    gc.collect()
    soon(lambda: not threading_here())


def threading_here() -> list:
    return [thread for thread in threading.enumerate() if thread.name == "renews a claim"]


def test_a_late_renewal_does_not_bring_back_what_was_given_back(s3, monkeypatch):
    """It read the object before the end, and its put comes after."""
    claim = Claim(place(f"{s3}/h.json"), "it")
    claim.take()
    read = claim._read()
    claim.close()
    monkeypatch.setattr(claim, "_read", lambda: read)
    assert claim._beat() is False and not object_storage.exists(claim.path)
    other = Claim(claim.path, "it")
    other.take()
    assert claim._beat() is True and told(claim)["token"] == other.token
    other.close()


# --- runs -------------------------------------------------------------------------------------------------------------


def far_away(environment, *arguments, **options):
    """In a process on another host."""
    os.environ.update(environment)
    claims.SECONDS = SECONDS
    claims.this_process.__globals__["this_host"] = lambda: "elsewhere 1"
    in_a_process(*arguments, **options)


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
    session = begin(
        population,
        f"{memory}/runs",
        method="histograms",
        test_noise="a key",
        settings={"clusters": 2, "rounds": 2, "epsilon": 2.0},
    )
    die(session.run._lock)
    elsewhere()
    assert abandon(f"{memory}/runs/r").status == "abandoned"
    assert ledger.balance(population.id).rho_reserved == 0
