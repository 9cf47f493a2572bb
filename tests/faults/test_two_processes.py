"""Two processes and one run: one proceeds, the other is told; who lost the run cannot publish."""

import time

import pytest

from fedcore.errors import ConfigError, LeaseLost, PopulationNotFound, RunBusy, RunError
from fedcore.runs.store import Run, load_run
from fedcore.training.session import abandon, concluding
from tests.faults.driver import PATIENCE, Kill
from tests.faults.place import PRIVATE_ROUNDS, same_result
from tests.sessions import to_end


def resume_it(here):
    here.resume()


def abandon_it(here):
    abandon(here.run_path, ledger_url=here.url)


def soon(condition) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "processes"), [("plain", 2), ("test noise", 4)])
def test_of_many_that_resume_exactly_one_proceeds(place, undisturbed, mode, processes):
    here = place(mode)
    here.kill_at(Kill("head", "after", 2))
    on = here.folder / "on"
    racing = [here.launch(resuming=True, wait_at=Kill("map", "before", 4), until=on) for _ in range(processes)]
    soon(lambda: on.with_suffix(".here").exists())
    soon(lambda: sum(child.outcome.exists() for child in racing) == processes - 1)
    on.touch()
    outcomes = [here.wait(child)["error"] for child in racing]
    assert sorted(outcomes, key=str) == [None, *["RunBusy"] * (processes - 1)]
    assert same_result(load_run(here.run_path), undisturbed[mode])
    assert all(here.tally()[f"after commit {r}"] == 1 for r in range(3, PRIVATE_ROUNDS + 1))
    if here.private:
        here.check_ledger(forfeited=0)


def test_a_run_whose_host_died_waits_for_its_lease_or_is_taken_over(place, undisturbed, monkeypatch):
    here = place("test noise")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("fedcore.storage.process.this_host", lambda: "elsewhere 1")
        session = here.start()
        session.training.step()
    session.run.unlock()  # that host is gone; nobody gave the lease back
    with pytest.raises(RunBusy, match="elsewhere"):
        here.resume()
    to_end(here.resume(take_over=True))
    assert same_result(load_run(here.run_path), undisturbed["test noise"])
    here.check_ledger(forfeited=0)


# Where the first process stands when the second takes its run -> releases of it that are lost.
STALE = [
    (Kill("charge", "before", 3), 0),
    (Kill("charge", "after", 3), 1),
    (Kill("draw", "after", 3), 1),
    (Kill("publish", "before", 3), 1),
    (Kill("publish", "after", 3), 0),
    (Kill("keep", "after", 3), 0),
    (Kill("map", "after", 1), 0),
    (Kill("publish", "before", PRIVATE_ROUNDS), 1),
]


@pytest.mark.slow
@pytest.mark.parametrize(("point", "forfeited"), STALE, ids=str)
def test_a_process_that_lost_its_run_cannot_publish(place, point, forfeited):
    """The first process hangs, on a host whose file locks do not reach here; the second takes over and finishes."""
    here = place("secure")
    on = here.folder / "on"
    stale = here.launch(wait_at=point, until=on, locks=False)
    soon(lambda: on.with_suffix(".here").exists())
    before = here.published()
    to_end(here.resume(take_over=True))
    result, values = load_run(here.run_path), here.published()
    assert before.items() <= values.items()
    on.touch()
    assert here.wait(stale)["error"] == LeaseLost.__name__
    assert here.published() == values and same_result(load_run(here.run_path), result)
    here.check_ledger(forfeited=forfeited)
    here.check_state_follows_from_releases()


OPENED = [Kill("charge", "before", 3), Kill("charge", "after", 3), Kill("publish", "before", 3)]


@pytest.mark.slow
@pytest.mark.parametrize("point", OPENED, ids=str)
def test_a_process_that_lost_its_run_cannot_publish_before_the_new_one_does(place, point):
    """The token alone decides: the second process has the run and has done nothing with it yet."""
    here = place("secure")
    on = here.folder / "on"
    stale = here.launch(wait_at=point, until=on, locks=False)
    soon(lambda: on.with_suffix(".here").exists())
    owner, before = here.resume(take_over=True), here.published()
    balance = here.ledger().balance(here.population().id)
    on.touch()
    assert here.wait(stale)["error"] == LeaseLost.__name__
    assert here.published() == before and here.ledger().balance(here.population().id) == balance
    to_end(owner)
    here.check_ledger(forfeited=point.when == "after" or point.step == "publish")
    here.check_state_follows_from_releases()


@pytest.mark.slow
@pytest.mark.parametrize("point", [Kill("commit", "before", 3), Kill("head", "before", 3)], ids=str)
@pytest.mark.parametrize("mode", ["plain", "test noise"])
def test_a_process_that_lost_its_run_cannot_commit(place, undisturbed, mode, point):
    here = place(mode)
    on = here.folder / "on"
    stale = here.launch(wait_at=point, until=on, locks=False)
    soon(lambda: on.with_suffix(".here").exists())
    to_end(here.resume(take_over=True))
    on.touch()
    assert here.wait(stale)["error"] == LeaseLost.__name__
    assert same_result(load_run(here.run_path), undisturbed[mode])
    if here.private:
        here.check_ledger(forfeited=0)


@pytest.mark.parametrize("give_up", [resume_it, abandon_it])
def test_a_run_that_ended_between_opening_and_locking_is_not_begun_again(place, undisturbed, monkeypatch, give_up):
    here = place("test noise")
    session = here.start()
    session.training.step()
    session.close()
    lock = Run.lock

    def late(run, take_over=False):
        monkeypatch.undo()
        to_end(here.resume())  # another process, quicker than this one
        return lock(run, take_over)

    monkeypatch.setattr(Run, "lock", late)
    with pytest.raises(RunError, match="has ended"):
        give_up(here)
    assert same_result(load_run(here.run_path), undisturbed["test noise"])
    here.check_ledger(forfeited=0)


@pytest.mark.parametrize("mode", ["plain", "test noise"])
def test_a_session_that_was_closed_or_failed_can_be_resumed_in_the_same_process(place, undisturbed, mode):
    here = place(mode)
    session = here.start()
    with pytest.raises(ConfigError), concluding(session):
        session.training.step()
        raise ConfigError("for a test")
    assert load_run(here.run_path).head["status"] == "failed"
    with pytest.raises(PopulationNotFound):  # a resumption that is refused keeps nobody out either
        here.resume(population=str(here.folder / "elsewhere"))
    to_end(here.resume())
    assert same_result(load_run(here.run_path), undisturbed[mode])


def test_a_process_that_lost_its_run_drops_none_of_the_other_ones_states(place):
    """It hung between the commit of round 1 and the removal of what that made superfluous."""
    here = place("plain")
    to_end(here.start())
    Run.open(here.run_path)._prune({0, 1})
    assert load_run(here.run_path).head["status"] == "finished"
