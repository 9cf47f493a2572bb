"""`kill -9` of the process of a run, at every step; then the run is resumed to its end.

Runs that are not private, or that draw test noise, end in the same bits as undisturbed ones. Runs with real noise keep
what was published before, publish every planned release once, and pay for exactly what was charged.
"""

from dataclasses import replace

import pytest

from fedcore.errors import RunError, RunNotFound
from fedcore.runs.store import Run, load_run
from fedcore.training.session import abandon
from tests.faults.driver import Kill
from tests.faults.place import PRIVATE_ROUNDS, same_result

# In the order of the steps. A kill before a step is left out where nothing is written since the end of the step before.
START = [
    Kill("create", "before"),
    Kill("create", "after"),
    Kill("rename", "before"),
    Kill("state", "after"),
    Kill("head", "before"),
    Kill("head", "after"),
]
BUDGET = [Kill("reserve", "after"), Kill("acquire", "after"), Kill("witness", "after")]
STEP = [
    Kill("map", "after", 3),
    Kill("rename", "before", 3),
    Kill("state", "after", 3),
    Kill("head", "before", 3),
    Kill("head", "after", 3),
    Kill("commit", "after", 3),
]
RELEASE = [Kill(step, "after", 3) for step in ("charge", "draw", "publish", "keep")]
SETTLE = [Kill("settle", "before"), Kill("settle", "after")]
END = [Kill("statement", "after"), Kill("finish", "before"), Kill("finish", "after")]
FIRST_AND_LAST = [
    Kill("charge", "after", 1),
    Kill("publish", "after", 1),
    Kill("charge", "after", PRIVATE_ROUNDS),
    Kill("publish", "after", PRIVATE_ROUNDS),
    Kill("head", "before", PRIVATE_ROUNDS),
]

PRIVATE = START + BUDGET + STEP + RELEASE + SETTLE + END + FIRST_AND_LAST
# Where the bits could differ: at releases. Elsewhere the runs with real noise below meet the same kills.
CASES = [("plain", kill) for kill in START + STEP + END] + [("test noise", kill) for kill in RELEASE + STEP[-2:]]
LOST = {("charge", "after"), ("draw", "after")}  # charged, never published
BEFORE_THE_FIRST_STATE = START[:5] + BUDGET


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "kill"), CASES, ids=str)
def test_the_same_bits_after_a_kill(place, undisturbed, mode, kill):
    here = place(mode)
    here.kill_at(kill)
    here.finish()
    assert same_result(load_run(here.run_path), undisturbed[mode])
    here.check_no_litter()
    if here.private:
        here.check_ledger(forfeited=(kill.step, kill.when) in LOST)


@pytest.mark.slow
@pytest.mark.parametrize("kill", PRIVATE, ids=str)
def test_what_was_published_stays_and_every_release_is_paid_once(place, kill):
    here = place("secure")
    here.kill_at(kill)
    before = here.published()
    here.finish()
    after = here.published()
    assert {name: after[name] for name in before} == before
    lost = (kill.step, kill.when) in LOST
    here.check_ledger(forfeited=lost)
    here.check_state_follows_from_releases()
    here.check_no_litter()
    tally = here.tally()
    drawn = {r: tally[f"before draw {r}"] for r in range(1, PRIVATE_ROUNDS + 1)}
    if len(before) >= kill.round > 0:  # what is published needs no client any more
        assert tally[f"before map {kill.round}"] == 1
    again = kill.step == "draw"
    assert sum(drawn.values()) <= PRIVATE_ROUNDS + lost and all(drawn.values())
    assert not again or drawn[kill.round] == 2


@pytest.mark.parametrize("kill", BEFORE_THE_FIRST_STATE, ids=str)
@pytest.mark.slow
def test_a_reservation_is_never_lost(place, kill):
    """Killed before its first state, a run can be given up, and the whole budget is there again."""
    here = place("secure")
    population = here.population().id
    left = here.ledger().balance(population).rho_left
    here.kill_at(kill)
    if not (here.run_path / "run.json").exists():
        with pytest.raises(RunNotFound):
            Run.open(here.run_path)
    else:
        abandon(here.run_path, ledger_url=here.url)
        with pytest.raises(RunError, match="abandoned"):
            here.resume()
    balance = here.ledger().verify(population)
    assert (balance.rho_spent, balance.rho_reserved, balance.rho_left) == (0, 0, left)
    assert balance.open_runs == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", [Kill("charge", "after", 4), Kill("draw", "after", 4), Kill("publish", "before", 4)], ids=str
)
def test_two_kills_at_the_same_release_exhaust_a_run_of_the_whole_budget(place, point):
    """The last round pays for one of them: it costs as much as the round before it, and twice an earlier one."""
    here = replace(place("secure"), spares=0, whole=True)
    here.kill_at(point)
    here.kill_at(point, resuming=True)
    before = here.published()
    outcome = here.wait(here.launch(resuming=True))
    assert outcome["error"] == "BudgetExceeded" and outcome["remedy"]
    assert here.published() == before and len(before) == 3
    run = load_run(here.run_path)
    assert (run.head["status"], run.head["round"]) == ("budget exhausted", 3)
    here.check_ledger(forfeited=2, status="budget exhausted")
    here.check_state_follows_from_releases()
    with pytest.raises(RunError, match="budget exhausted"):
        here.resume()


@pytest.mark.slow
def test_two_kills_are_paid_by_two_spares(place):
    here = replace(place("secure"), spares=2)
    here.kill_at(Kill("charge", "after", 3))
    here.kill_at(Kill("publish", "before", 3), resuming=True)
    here.finish()
    here.check_ledger(forfeited=2)
    here.check_state_follows_from_releases()


@pytest.mark.slow
def test_a_kill_is_paid_by_the_last_round_of_a_run_of_the_whole_budget(place):
    here = replace(place("secure"), spares=0, whole=True)
    here.kill_at(Kill("draw", "after", 3))
    here.finish()
    assert load_run(here.run_path).head["round"] == PRIVATE_ROUNDS - 1
    here.check_ledger(forfeited=1)
    here.check_state_follows_from_releases()


@pytest.mark.slow
def test_what_no_run_has_reserved_pays_beyond_the_spares(place):
    here = place("secure")
    here.kill_at(Kill("charge", "after", 3))
    here.kill_at(Kill("publish", "before", 3), resuming=True)
    here.finish()
    here.check_ledger(forfeited=2)
    here.check_state_follows_from_releases()


@pytest.mark.slow
def test_a_kill_while_the_exhausted_run_is_closed(place):
    """Between the ledger's end of the run and the run's own: resuming ends it the same way."""
    here = replace(place("secure"), spares=0, whole=True)
    here.kill_at(Kill("charge", "after", 4))
    here.kill_at(Kill("charge", "after", 4), resuming=True)
    here.kill_at(Kill("settle", "after"), resuming=True)
    assert here.wait(here.launch(resuming=True))["error"] == "BudgetExceeded"
    assert load_run(here.run_path).head["status"] == "budget exhausted"
    here.check_ledger(forfeited=2, status="budget exhausted")


@pytest.mark.slow
def test_a_kill_in_every_round_of_one_run(place, undisturbed):
    """Many deaths of the same run, each one later."""
    here = place("test noise")
    here.kill_at(Kill("publish", "after", 1))
    for number, step in enumerate(["head", "state", "publish", "keep"], start=2):
        here.kill_at(Kill(step, "after", number), resuming=True)
    here.finish()
    assert same_result(load_run(here.run_path), undisturbed["test noise"])
    here.check_ledger(forfeited=0)
    assert all(here.tally()[f"before draw {r}"] == 1 for r in range(1, PRIVATE_ROUNDS + 1))
