"""The law of budgets by cohort: whatever happens in whatever order, no client loses more than the budget, and the
ledger says what an independent replay says that adds up pairs of (client, run) in fractions.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from fedcore.errors import BudgetExceeded, RunError
from fedcore.privacy.accounting import exact_sum, rounded_up
from fedcore.privacy.ledger import reservations
from fedcore.privacy.ledger.sums import Sums
from fedcore.storage.ranges import numbers_in, ranges_of
from tests.privacy.conftest import open_books, release
from tests.privacy.test_cohorts import VALUE, begin, on, spend, took


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(reservations, "CHECKPOINT_AFTER", 12)


# --- an independent replay ------------------------------------------------------------------------------------------


def replayed(history):
    """(spent, reserved, cohorts or None) of every run, in fractions, from the records alone."""
    runs = {}
    for row in history:
        run = runs.get(row["run_id"])
        match row["kind"]:
            case "reserve":
                waiting = {item["name"]: (item["round"], Fraction(item["rho"])) for item in row["plan"]}
                named = row.get("cohorts")
                cohorts = None if named is None else numbers_in(tuple(map(tuple, named["ranges"])))
                spares = [Fraction(row["spare_rho"])] * row["spares"]
                runs[row["run_id"]] = {"waiting": waiting, "spares": spares, "spent": Fraction(0), "cohorts": cohorts}
                runs[row["run_id"]]["extended"] = False
            case "extend":
                run["extended"] = True
            case "charge":
                run["spent"] += Fraction(row["rho"])
                if run["waiting"].pop(row["name"], None) is None and not run["extended"]:
                    run["spares"].pop()
                run["extended"] = False
            case "give up":
                run["waiting"] = {name: item for name, item in run["waiting"].items() if item[0] < row["round"]}
            case "finish":
                run["waiting"], run["spares"] = {}, []
    return {
        name: (run["spent"], sum((rho for _, rho in run["waiting"].values()), sum(run["spares"], 0)), run["cohorts"])
        for name, run in runs.items()
    }


class People:
    """A population: of each client its cohort and the runs it really took part in."""

    def __init__(self):
        self.cohort, self.took_part, self.cohorts_opened = [1, 1], [[], []], 1

    def come(self, cohort):
        self.cohort += [cohort, cohort]
        self.took_part += [[], []]

    def run(self, name, cohorts):
        for cohort, runs in zip(self.cohort, self.took_part, strict=True):
            if cohorts is None or cohort in cohorts:
                runs.append(name)


def optional(round, sigma):
    return replace(release(round, sigma), optional=True)


PLANS = {  # epsilon = 2 buys rho = 0.0497
    0: ([release(1, 7.0), release(2, 15.0), release(2, 30.0, name="other")], 1),
    1: ([release(1, 10.0), optional(2, 10.0), optional(3, 12.0)], 0),
    2: ([release(1, 9.0)], 0),
}


class World:
    def __init__(self, url):
        self.books, self.people = open_books(url), People()
        self.converted = False
        self.plans, self.leases, self.ended = {}, {}, set()

    def reserve(self, run, plan, chosen):
        if run in self.plans:
            return
        cohorts = None
        if self.converted:
            numbers = [c for c in range(1, self.people.cohorts_opened + 1) if chosen >> (c % 6) & 1]
            cohorts = took(*ranges_of(numbers or [1]), of=self.people.cohorts_opened)
        name, before = f"{self.books.population}-{run}", self.pairs()
        try:
            self.books.reserve(*PLANS[plan], run=name, cohorts=cohorts, bound=on(1))
        except BudgetExceeded:
            releases, spares = PLANS[plan]
            price = exact_sum(p.rho for p in releases) + spares * Fraction(max(p.rho for p in releases))
            payers = [1] if cohorts is None else numbers_in(cohorts.ranges)
            assert max(sum(before[cohort]) for cohort in payers) + price > self.rho_max()
            return
        self.plans[run], self.leases[run] = plan, self.books.ledger.acquire(name)
        self.people.run(name, None if cohorts is None else numbers_in(cohorts.ranges))

    def work(self, run, which, pattern):
        """The releases of a run from number `which` on; the bits of `pattern` say which draws are lost."""
        for planned in PLANS[self.plans[run]][0][which:] if run in self.plans else ():
            for _ in range(3):
                try:
                    charge = self.books.ledger.charge(self.leases[run], planned)
                except BudgetExceeded:
                    break
                except RunError:
                    assert run in self.ended
                    return
                pattern, lost = pattern >> 1, pattern & 1
                if charge is None or charge.stored is not None:
                    break
                if not lost:
                    self.books.ledger.publish(self.leases[run], charge, VALUE)
                    break

    def finish(self, run, _which, _more):
        if run in self.leases and run not in self.ended:
            self.books.ledger.finish(self.leases[run], "abandoned")
            self.leases[run] = self.books.ledger.acquire(self.leases[run].run_id)
            self.ended.add(run)

    def append(self, *_):
        """New clients; before the conversion they are founders."""
        self.people.cohorts_opened += self.converted
        self.people.come(self.people.cohorts_opened)

    def convert(self, *_):
        if not self.converted:
            begin(self.books)
            self.converted = True

    def rho_max(self):
        return Fraction(self.books.ledger.balance(self.books.population).budget.rho_max)

    def pairs(self):
        """(spent, reserved) of each cohort; a run that names none was paid by the founders."""
        runs = replayed(self.books.ledger.history(self.books.population)).values()
        return {
            cohort: tuple(sum((run[i] for run in runs if cohort in (run[2] or [1])), Fraction(0)) for i in (0, 1))
            for cohort in range(1, self.people.cohorts_opened + 1)
        }

    def check(self):
        ledger, population = self.books.ledger, self.books.population
        balance, pairs, rho_max = ledger.verify(population), self.pairs(), self.rho_max()
        assert balance == ledger.balance(population)
        for cohort, (spent, reserved) in pairs.items():
            assert spent + reserved <= rho_max
            held = [s for s in balance.segments if s.first <= cohort <= s.last]
            if held:
                assert (held[0].rho_spent, held[0].rho_reserved) == (rounded_up(spent), rounded_up(reserved))
            elif self.converted:
                assert spent == reserved == 0, "a cohort that no reservation has named"
        most = max(pairs.values())[0]
        assert balance.rho_spent == rounded_up(most)
        prices = replayed(ledger.history(population))
        for cohort, runs in zip(self.people.cohort, self.people.took_part, strict=True):
            lost = sum((prices[run][0] for run in runs), Fraction(0))
            assert lost <= pairs[cohort][0] and (cohort == 1 or lost == pairs[cohort][0])
        assert sum((prices[run][0] for run in self.people.took_part[0]), Fraction(0)) == pairs[1][0]


numbers = st.integers(0, 63)
runs = st.integers(0, 5)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), runs, st.integers(0, 2), numbers),
        st.tuples(st.just("reserve"), runs, st.integers(0, 2), numbers),
        st.tuples(st.just("work"), runs, st.integers(0, 2), numbers),
        st.tuples(st.just("work"), runs, st.just(0), numbers),
        st.tuples(st.just("append"), numbers, numbers, numbers),
        st.tuples(st.just("convert"), numbers, numbers, numbers),
        st.tuples(st.just("finish"), runs, numbers, numbers),
    ),
    min_size=20,
    max_size=40,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return f"sqlite:///{tmp_path_factory.mktemp('cohorts') / 'ledger.sqlite'}"


@given(steps)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_client_loses_more_than_the_budget_and_the_ledger_says_what_pairs_add_up_to(place, sequence):
    world = World(place)
    for step, *details in sequence:
        getattr(world, step)(*details)
    world.check()


@pytest.mark.slow
@given(steps)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_same_after_every_step(place, sequence):
    world = World(place)
    for step, *details in sequence:
        getattr(world, step)(*details)
        world.check()


# --- a schedule that never ends -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_four_years_of_weekly_runs_are_paid_by_who_is_there_and_nobody_loses_more(tmp_path):
    """Each run is paid by the cohorts of the last H appends, at a share of which H fit: none is refused, and a client
    who stayed for H runs has spent all but less than one of them.
    """
    horizon, weeks = 26, 208
    books = open_books(f"sqlite:///{tmp_path / 'ledger.sqlite'}", epsilon=4.0)
    begin(books)
    rho_max = Fraction(books.ledger.balance(books.population).budget.rho_max)
    sigma = float(np.sqrt(0.5 * horizon / float(rho_max))) * (1 + 1e-14)
    plan = [release(1, sigma)]
    assert horizon * Fraction(plan[0].rho) <= rho_max < (horizon + 1) * Fraction(plan[0].rho)
    for week in range(1, weeks + 1):
        spend(books, plan, took((max(1, week - horizon + 1), week), of=week))
    balance = books.ledger.verify(books.population)
    runs = replayed(books.ledger.history(books.population))
    lost = [sum((run[0] for run in runs.values() if cohort in run[2]), Fraction(0)) for cohort in range(1, weeks + 1)]
    assert max(lost) <= rho_max < max(lost) + Fraction(plan[0].rho) and balance.rho_spent == rounded_up(max(lost))
    for segment in balance.segments:
        held = {rounded_up(rho) for rho in lost[segment.first - 1 : segment.last]}
        assert held == {segment.rho_spent}
    last = weeks - horizon + 1
    with pytest.raises(BudgetExceeded, match=f"each of cohorts 1-{last} of population"):
        books.reserve(plan, cohorts=took((last, weeks), of=weeks))


@pytest.mark.slow
def test_verification_does_for_a_cohort_what_it_does_for_a_run(tmp_path, monkeypatch):
    """Sums change where a range begins and where it ends, whatever lies between; there are as many statements."""
    counted, statements = [], []
    real = Sums._step
    monkeypatch.setattr(Sums, "_step", lambda *arguments: counted.append(1) or real(*arguments))
    cost = []
    for by_cohort, weeks in ((False, 20), (True, 20), (True, 40)):
        books = open_books(f"sqlite:///{tmp_path / f'{by_cohort}-{weeks}.sqlite'}", epsilon=4.0)
        if by_cohort:
            begin(books)
        for week in range(1, weeks + 1):
            spend(books, [release(1, 50.0)], took((1, week), of=week) if by_cohort else None)
        event.listen(books.ledger._engine, "before_cursor_execute", lambda *_: statements.append(1))
        counted.clear(), statements.clear()
        balance = books.ledger.verify(books.population)
        assert len(balance.segments) == by_cohort * weeks
        cost.append((len(counted), len(statements)))
    (_, alone), (of_20, first), (of_40, second) = cost
    assert alone == first == second and of_40 == 2 * of_20 == 2 * 2 * 20
