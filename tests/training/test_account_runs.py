"""What happens to runs whose budget is kept by cohort, by calendar period or in shares: the same stories for each."""

from __future__ import annotations

import shutil
from collections import Counter
from copy import copy
from fractions import Fraction

import pytest

from fedcore.errors import BudgetExceeded, ConfigError, PopulationBranched, Waiting
from fedcore.privacy.accounting import rounded_up
from fedcore.rounds.engine import InProcessBackend
from fedcore.storage.ranges import numbers_in
from fedcore.training.session import resume
from tests.growing import Calendar, Growing, entries, label, price_of, published, ranges_of_run, to_end
from tests.population.contents import ids_of
from tests.toy import Toy

pytestmark = pytest.mark.usefixtures("toy")


class ByCohort(Growing):
    """Cohort 1 of ten clients and cohort 2 of one. Each number has 100 declared clients."""

    share: str | None = None

    def __init__(self, folder):
        super().__init__(folder, founders=10, nominal=10)
        self.people = {1: [f"c{n}" for n in range(10)]}
        self.newcomers()

    def newcomers(self, *known: str) -> None:
        """One more number, while these known clients come again with more."""
        number = len(self.people) + 1
        self.people[number] = [f"n{number}"]
        self.append(f"n{number}", *known, declared=100)

    def again(self, *known: str) -> None:
        """These come with more, and nobody else: a number in which nobody is."""
        self.people[len(self.people) + 1] = []
        self.append(*known)

    def begin(self, **asked):
        return super().begin(**{"share": self.share, **asked})


class ByMonth(Calendar):
    """Months 1 and 2, of which a run reads two, each of the same twelve clients."""

    share = None

    def __init__(self, folder):
        super().__init__(folder, window=2, months=2)
        self.people = {month: self._ids(month) for month in (1, 2)}

    def _ids(self, month: int) -> list[str]:
        return [f"{label(month)}/u{n}" for n in range(12)]

    def newcomers(self, *known: str) -> None:
        self.append(self._rows(known), months=1)
        self.people[self.months] = self._ids(self.months)

    def again(self, *known: str) -> None:
        self.append(self._rows(known))

    @staticmethod
    def _rows(known):
        """Rows of tokens that their clients had not, in the months in which they were."""
        return [row for one in known for row in entries(one[8:], {int(one[5:7]): 29})]


class InShares(ByCohort):
    """The same cohorts; half of each one's budget is share a, which pays, and a quarter is b."""

    share = "a"

    def __init__(self, folder):
        super().__init__(folder)
        self.ledger.divide(self.population.id, {"a": Fraction(1, 2), "b": Fraction(1, 4)})


KINDS = {"cohorts": ByCohort, "periods": ByMonth, "shares": InShares}
EACH = ["cohorts", "periods", pytest.param("shares", marks=pytest.mark.slow)]


@pytest.fixture(params=EACH)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def asked(monkeypatch):
    """Index ranges of the clients that were asked, in order, as the method saw them."""
    found, update = [], Toy.client_update

    def watched(self, message, block, memory):
        found.append((block.first, block.first + block.clients))
        return update(self, message, block, memory)

    monkeypatch.setattr(Toy, "client_update", watched)
    return found


def who(asked, session) -> list[str]:
    ids = ids_of(session.population)
    return sorted(ids[i] for first, stop in asked for i in range(first, stop))


def everybody(world, *numbers: int) -> list[str]:
    return sorted(one for number in numbers for one in world.people[number])


def check_paid(world, sessions) -> None:
    """Of each share each number has paid what the runs that it took part in cost together, and no more than it has."""
    balance = world.ledger.verify(world.population.id)
    assert balance == world.ledger.balance(world.population.id)
    for holder in (balance, *balance.shares):
        paid, share = dict.fromkeys(world.people, Fraction(0)), getattr(holder, "name", ...)
        for session in sessions:
            if share in (..., session.run.info.get("share")):
                for number in numbers_in(ranges_of_run(session)):
                    paid[number] += price_of(session)
        for piece in holder.segments:
            found = {rounded_up(paid[number]) for number in range(piece.first, piece.last + 1)}
            assert found == {piece.rho_spent} and piece.rho_reserved == 0
        assert max(paid.values()) <= Fraction(balance.budget.rho_max) * getattr(holder, "part", 1)


# --- killed and resumed -----------------------------------------------------------------------------------------------


def test_a_run_that_was_killed_keeps_its_participants_whatever_came_meanwhile(tmp_path, asked, kind):
    through, killed = kind(tmp_path / "through"), kind(tmp_path / "killed")
    undisturbed = through.run(run_id="r", rounds=3, horizon=4)
    session = killed.begin(run_id="r", rounds=3, horizon=4)
    session.training.step()
    session.close()
    killed.newcomers(killed.people[1][3])
    meanwhile = killed.run(run_id="meanwhile", horizon=4)
    assert ranges_of_run(meanwhile) == (((2, 3),) if kind is ByMonth else ((1, 3),))
    asked.clear()
    resumed = to_end(resume(session.run.path, InProcessBackend()))
    assert ranges_of_run(resumed) == ranges_of_run(undisturbed) == ((1, 2),) == resumed.spec.participants.ranges
    assert published(resumed) == published(undisturbed) and len(published(resumed)) == 3
    assert who(asked, resumed) == sorted(everybody(killed, 1, 2) * 2), "the clients of its own version, in two rounds"
    check_paid(killed, [resumed, meanwhile])
    kinds = [row["kind"] for row in killed.ledger.history(killed.population.id)]
    assert kinds.count("reserve") == 2


# --- late rows --------------------------------------------------------------------------------------------------------


def test_late_rows_of_those_who_do_not_take_part_are_not_read(tmp_path, asked, kind):
    """Numbers 1 and 2 have spent all that they have, and 3 is out of the window. In the worlds with late rows of all of
    them and without, the same is published to the last bit, as test noise is the same.
    """
    worlds, ends = [kind(tmp_path / name) for name in ("with", "without")], []
    for world, late in zip(worlds, (True, False), strict=True):
        before = world.run(run_id="before", horizon=1)
        world.newcomers()
        early = [one for number in (1, 2, 3) for one in world.people[number][:2]]
        world.newcomers(*(early if late else ()))
        asked.clear()
        after = world.run(run_id="after", horizon=2, recent_cohorts=1)
        assert ranges_of_run(after) == ((4, 4),) and who(asked, after) == everybody(world, 4)
        check_paid(world, [before, after])
        ends.append([published(after), published(world.run(run_id="read", horizon=2, cohorts="3"))])
    (after, read), (other_after, other_read) = ends
    assert after == other_after and read != other_read, "who takes part is read with all that came late"


# --- who takes part ---------------------------------------------------------------------------------------------------

POOR = "population 'p' the cohorts 5 have too little budget left"
WINDOWS = {
    # What is asked of one run after another on five numbers; who takes part, or how it is refused. A run without a
    # horizon takes all that those who take part have left.
    "cohorts": [
        ({"horizon": 9}, ((1, 5),)),
        ({"horizon": 9, "recent_cohorts": 2}, ((4, 5),)),
        ({"horizon": 9, "cohorts": "1,3"}, ((1, 1), (3, 3))),
        ({"horizon": 9, "cohorts": "4-6"}, (ConfigError, "has cohorts 1 to 5")),
        ({"cohorts": "5"}, ((5, 5),)),
        ({"horizon": 9, "recent_cohorts": 3}, ((3, 4),)),
        ({"horizon": 9, "cohorts": "4-5"}, (BudgetExceeded, POOR)),
        ({}, ((1, 4),)),
        ({}, ((1, 2),)),  # the third and the fourth are used up
    ],
    "periods": [
        ({"horizon": 9}, ((4, 5),)),
        ({"horizon": 9, "recent_cohorts": 4}, ((4, 5),)),
        ({"horizon": 9, "recent_cohorts": 1}, ((5, 5),)),
        ({"horizon": 9, "cohorts": "1,3"}, ((1, 1), (3, 3))),
        ({"horizon": 9, "cohorts": "1-3"}, (ConfigError, "3 calendar periods .* lets a run read 2")),
        ({"horizon": 9, "cohorts": "5-6"}, (ConfigError, "has cohorts 1 to 5")),
        ({}, ((4, 5),)),
        ({"horizon": 9, "cohorts": "1,5"}, (BudgetExceeded, POOR)),
        ({}, ((3, 4),)),  # the fifth is used up
        ({"recent_cohorts": 1}, (Waiting, "Nothing was charged")),
    ],
    "shares": [
        ({"horizon": 9, "recent_cohorts": 2}, ((4, 5),)),
        ({"horizon": 9, "cohorts": "1,3"}, ((1, 1), (3, 3))),
        ({"cohorts": "5"}, ((5, 5),)),
        ({"horizon": 9, "cohorts": "4-5"}, (BudgetExceeded, f"share 'a' of {POOR}")),
        ({"horizon": 9}, ((1, 4),)),
    ],
}


@pytest.mark.parametrize("name", EACH)
def test_the_window_and_the_numbers_that_a_run_names(tmp_path, asked, name):
    world, runs = KINDS[name](tmp_path), []
    for _ in range(3):
        world.newcomers()
    for step, (settings, expected) in enumerate(WINDOWS[name]):
        asked.clear()
        if isinstance(expected[0], type):
            head = world.ledger.head(world.population.id)
            with pytest.raises(expected[0], match=expected[1]) as refused:
                world.run(run_id=f"r{step}", **settings)
            assert refused.type is expected[0], "who names numbers waits for nothing"
            assert world.ledger.head(world.population.id) == head and not asked
            continue
        session = world.run(run_id=f"r{step}", **settings)
        numbers = numbers_in(expected)
        assert ranges_of_run(session) == expected and who(asked, session) == everybody(world, *numbers)
        declared = 100 * len(numbers)
        assert session.run.info["nominal_clients"] == session.spec.public.nominal_clients == declared
        assert session.training.state.clients == declared
        assert session.run.info["needs"][0] == "cohorts", "an older fedcore does not go on with it"
        runs.append(session)
    check_paid(world, runs)


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_waiting_charges_nothing_and_ends_when_newcomers_are_enough(tmp_path, kind):
    """More rows of those who have paid do not end it, nor too few newcomers, nor that another share has spent less."""
    world = kind(tmp_path)
    runs = [world.run(run_id="first", horizon=1)]
    head = world.ledger.head(world.population.id)
    nothing, more = lambda: None, lambda: world.again(world.people[1][0])
    for come, at_least in ((nothing, None), (more, None), (world.newcomers, 200)):
        come()
        with pytest.raises(Waiting, match="Nothing was charged") as waits:
            world.run(run_id="second", horizon=1, at_least=at_least)
        assert isinstance(waits.value, BudgetExceeded) and "without new clients" in waits.value.remedy
        assert world.share is None or f"share '{world.share}' of population" in str(waits.value)
    assert world.ledger.head(world.population.id) == head and not (tmp_path / "runs" / "second").exists()
    if world.share is not None:
        runs.append(world.run(run_id="other", share="b", cohorts="1-2"))
    world.newcomers()
    runs.append(world.run(run_id="second", horizon=1, at_least=200))
    assert ranges_of_run(runs[-1]) == ((3, len(world.people)),)
    check_paid(world, runs)


# --- copies that were appended to ------------------------------------------------------------------------------------


def test_a_copy_that_was_appended_to_by_itself_is_refused(tmp_path, kind):
    """The same person may be in one number of one and another of the other: that would be twice the budget."""
    world = kind(tmp_path)
    other = copy(world)
    other.path, other.people = tmp_path / "copy", dict(world.people)
    shutil.copytree(world.path, other.path)
    for each in (world, other):
        each.newcomers()
    one = world.run(run_id="one", horizon=3)
    head = world.ledger.head(world.population.id)
    for cohorts in ("able", "1"):
        with pytest.raises(PopulationBranched):
            other.run(run_id="other", horizon=3, cohorts=cohorts)
    assert world.ledger.head(world.population.id) == head and not (tmp_path / "runs" / "other").exists()
    other.newcomers()
    with pytest.raises(PopulationBranched):
        other.run(run_id="other", horizon=3)
    check_paid(world, [one])


# --- from week to week ------------------------------------------------------------------------------------------------


def check_series(world, asked, runs: int, horizon: int) -> None:
    """One run and one number more after another; then all is counted again from who was asked in which run."""
    sessions, spent = [], Counter()
    for number in range(runs):
        asked.clear()
        sessions.append(world.run(run_id=f"r{number}", horizon=horizon))
        for client in who(asked, sessions[-1]):
            spent[client] += price_of(sessions[-1])
        first = world.people[1]
        world.newcomers(first[number % len(first)])  # somebody who is there already comes again with more
    balance = world.ledger.verify(world.population.id)
    mine = balance.of_share(world.share)
    limit, most = Fraction(mine.required_budget().rho_max), max(spent.values())
    assert limit - max(map(price_of, sessions)) < most <= limit, "whoever stays is charged the whole promise"
    held = {number: piece.rho_spent for piece in mine.segments for number in range(piece.first, piece.last + 1)}
    for number, people in world.people.items():
        assert {rounded_up(Fraction(spent[one])) for one in people} == {held.get(number, 0)}, "of each what it gave"
    if balance.periods is not None:
        lifetime = sum(len(numbers_in(ranges_of_run(one))) ** 2 * price_of(one) for one in sessions)
        assert balance.lifetime_spent == rounded_up(lifetime)
        assert lifetime <= balance.periods.window * len(world.people) * limit
    assert world.population.verify().problems == ()


@pytest.mark.slow
def test_a_schedule_is_never_refused_and_nobody_pays_more_than_was_promised(tmp_path, asked, kind):
    check_series(kind(tmp_path), asked, runs=12, horizon=2 if kind is ByMonth else 5)


@pytest.mark.heavy
def test_four_years_of_weeks(tmp_path, asked):
    check_series(ByCohort(tmp_path), asked, runs=208, horizon=42)
