"""The law of shares: whatever is divided, reserved, charged, lost, drawn again, given up or raised in any order, no
share has more than its part, all together have no more than the budget, and what is refused would have been too much.
"""

from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcore.errors import BudgetExceeded, ConfigError, RunError
from fedcore.privacy.accounting import exact_sum, rounded_up
from fedcore.privacy.ledger import reservations
from fedcore.storage.ranges import numbers_in, ranges_of
from tests.privacy.conftest import open_books, release
from tests.privacy.test_cohorts import VALUE, begin, on, took
from tests.privacy.test_cohorts_law import PLANS, optional, replayed

PARTS = [Fraction(0), Fraction(1, 10), Fraction(1, 3), Fraction(1, 2), Fraction(2, 3)]
NAMES = ("a", "b", None)
PLANS = PLANS | {3: ([release(1, 12.0), optional(2, 12.0)], 1)}


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(reservations, "CHECKPOINT_AFTER", 12)


class World:
    """One population; what it should hold is added up from its records alone."""

    def __init__(self, url):
        self.books, self.cohorts = open_books(url), 0
        self.plans, self.leases, self.ended, self.raised = {}, {}, set(), 0
        self.parts = {}

    # --- what may happen ------------------------------------------------------------------------------------------

    def divide(self, name, part, _):
        name, part = ("a", "b")[name % 2], PARTS[part % len(PARTS)]
        new = {key: value for key, value in {**self.parts, name: part}.items() if value}
        used = self.used()
        try:
            self.books.ledger.divide(self.books.population, {name: part})
        except (BudgetExceeded, ConfigError):
            opened = any(share == name and run not in self.ended for run, share in self.shares_of_open())
            too_small = [
                sum(used[share, cohort]) > self.part(new, share) * self.rho_max()
                for share in (("a", "b") if self.cohorts else NAMES)
                for cohort in self.numbers()
            ]
            assert sum(new.values()) > 1 or any(too_small) or (not part and opened)
            return
        self.parts = new

    def reserve(self, run, plan, detail):
        if run in self.plans:
            return
        share, chosen = NAMES[detail % 3], detail // 3
        cohorts = None
        if self.cohorts:
            numbers = [c for c in range(1, self.cohorts + 1) if chosen >> (c % 4) & 1]
            cohorts = took(*ranges_of(numbers or [1]), of=self.cohorts)
        name, used = f"{self.books.population}-{run}", self.used()
        try:
            self.books.reserve(*PLANS[plan], run=name, cohorts=cohorts, bound=on(1), share=share)
        except ConfigError:
            assert share not in self.parts
            return
        except BudgetExceeded:
            releases, spares = PLANS[plan]
            price = exact_sum(p.rho for p in releases) + spares * Fraction(max(p.rho for p in releases))
            payers = [1] if cohorts is None else numbers_in(cohorts.ranges)
            of_account = max(sum(sum(used[other, cohort]) for other in NAMES) for cohort in payers)
            of_share = max(sum(used[share, cohort]) for cohort in payers)
            limit = self.part(self.parts, share) * self.rho_max()
            assert of_account + price > self.rho_max() or of_share + price > limit
            return
        assert share is None or share in self.parts
        self.plans[run], self.leases[run] = plan, self.books.ledger.acquire(name)

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

    def finish(self, run, *_):
        if run in self.leases and run not in self.ended:
            self.books.ledger.finish(self.leases[run], "abandoned")
            self.leases[run] = self.books.ledger.acquire(self.leases[run].run_id)
            self.ended.add(run)

    def larger(self, *_):
        if self.raised < 2:
            self.raised += 1
            self.books.ledger.raise_budget(self.books.population, 2 + self.raised / 4, 1e-10)

    def by_cohort(self, *_):
        if not self.cohorts:
            begin(self.books)
        self.cohorts += 1

    # --- what should be so ----------------------------------------------------------------------------------------

    def rho_max(self):
        return Fraction(self.books.ledger.balance(self.books.population).budget.rho_max)

    def part(self, parts, share):
        return 1 - sum(parts.values()) if share is None else parts.get(share, Fraction(0))

    def numbers(self):
        return range(1, max(self.cohorts, 1) + 1)

    def shares_of_open(self):
        names = {lease.run_id: run for run, lease in self.leases.items()}
        history = self.books.ledger.history(self.books.population)
        return [(names[row["run_id"]], row.get("share")) for row in history if row["kind"] == "reserve"]

    def used(self):
        """(spent, reserved) by share and cohort, in fractions."""
        history = self.books.ledger.history(self.books.population)
        shares = {row["run_id"]: row.get("share") for row in history if row["kind"] == "reserve"}
        found = {(share, cohort): [Fraction(0), Fraction(0)] for share in NAMES for cohort in self.numbers()}
        for run, (spent, reserved, cohorts) in replayed(history).items():
            for cohort in cohorts or [1]:
                found[shares[run], cohort][0] += spent
                found[shares[run], cohort][1] += reserved
        return {key: tuple(pair) for key, pair in found.items()}

    def check(self):
        ledger, population = self.books.ledger, self.books.population
        balance, used, rho_max = ledger.verify(population), self.used(), self.rho_max()
        assert balance == ledger.balance(population)
        assert {share.name: share.part for share in balance.shares if share.name} == self.parts
        for cohort in self.numbers():
            assert sum(sum(used[share, cohort]) for share in NAMES) <= rho_max
            for share in ("a", "b", *(() if self.cohorts else (None,))):
                assert sum(used[share, cohort]) <= self.part(self.parts, share) * rho_max
        for share in balance.shares:
            mine = [used[share.name, cohort] for cohort in self.numbers()]
            assert share.rho_spent == rounded_up(max(spent for spent, _ in mine))
            assert share.rho_reserved == rounded_up(max(reserved for _, reserved in mine))
            for segment in share.segments:
                for cohort in range(segment.first, segment.last + 1):
                    spent, reserved = used[share.name, cohort]
                    assert (segment.rho_spent, segment.rho_reserved) == (rounded_up(spent), rounded_up(reserved))
                    left = self.part(self.parts, share.name) * rho_max - spent - reserved
                    of_account = rho_max - sum(sum(used[other, cohort]) for other in NAMES)
                    assert segment.rho_left <= min(left, of_account) <= segment.rho_left + 1e-15


numbers, runs = st.integers(0, 63), st.integers(0, 6)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("divide"), numbers, numbers, numbers),
        st.tuples(st.just("divide"), numbers, numbers, numbers),
        st.tuples(st.just("reserve"), runs, st.integers(0, 3), numbers),
        st.tuples(st.just("reserve"), runs, st.integers(0, 3), numbers),
        st.tuples(st.just("reserve"), runs, st.integers(0, 3), numbers),
        st.tuples(st.just("work"), runs, st.integers(0, 2), numbers),
        st.tuples(st.just("work"), runs, st.just(0), numbers),
        st.tuples(st.just("finish"), runs, numbers, numbers),
        st.tuples(st.just("larger"), numbers, numbers, numbers),
        st.tuples(st.just("by_cohort"), numbers, numbers, numbers),
    ),
    min_size=15,
    max_size=40,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return f"sqlite:///{tmp_path_factory.mktemp('shares') / 'ledger.sqlite'}"


@given(steps)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_share_is_overspent_and_all_together_spend_no_more_than_the_budget(place, sequence):
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
