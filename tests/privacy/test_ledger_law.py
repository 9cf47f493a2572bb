"""The law of the ledger: whatever happens in whatever order, nothing is spent beyond the budget, and nothing unpaid."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcore.errors import BudgetExceeded, LeaseLost, PrivacyError, RunError
from fedcore.privacy.accounting import exact_sum
from tests.privacy.conftest import open_books, release

PLANS = {  # epsilon = 2 buys rho = 0.0497; these cost 0.0139 and 0.0167, and a spare of them 0.0111 and 0.0056
    0: ([release(1, 7.0), release(2, 15.0), release(2, 30.0, name="other")], 1),
    1: ([release(1, 10.0), release(2, 10.0), release(3, 12.0)], 2),
    2: ([release(1, 9.0)], 0),
}

runs = st.integers(0, 5)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), runs, st.integers(0, 2)),
        st.tuples(st.just("charge"), runs, st.integers(0, 2)),
        st.tuples(st.just("charge"), runs, st.integers(0, 2)),
        st.tuples(st.just("publish"), runs, st.integers(0, 10)),
        st.tuples(st.just("crash"), runs, st.booleans()),
        st.tuples(st.just("finish"), runs, st.sampled_from(["finished", "abandoned", "budget exhausted"])),
    ),
    min_size=8,
    max_size=30,
)


class Model:
    """What the ledger should hold, by counting what it allowed: every charge that was granted, once."""

    def __init__(self, books):
        self.books = books
        self.plans, self.leases, self.charges, self.values, self.ended = {}, {}, {}, {}, set()
        self.paid = []

    def reserve(self, run, plan):
        try:
            self.books.reserve(*PLANS[plan], run=f"{self.books.population}-{run}")
        except BudgetExceeded:
            return
        except PrivacyError:
            assert self.plans[run] != plan
            return
        self.plans.setdefault(run, plan)
        if run not in self.leases:
            self.leases[run] = self.books.ledger.acquire(f"{self.books.population}-{run}")

    def charge(self, run, which):
        if run not in self.plans:
            return
        plan = PLANS[self.plans[run]][0]
        planned = plan[which % len(plan)]
        try:
            charge = self.books.ledger.charge(self.leases[run], planned)
        except BudgetExceeded:
            return
        except (LeaseLost, RunError):
            assert run in self.ended
            return
        assert run not in self.ended
        if charge.stored is not None:
            assert np.array_equal(charge.stored, self.values[run, planned.name])
        else:
            self.paid.append(planned.rho)
            self.charges.setdefault(run, []).append(charge)

    def publish(self, run, which):
        if not self.charges.get(run):
            return
        charge = self.charges[run][which % len(self.charges[run])]
        mine = np.full(3, len(self.paid) * 100 + which)
        try:
            stored = self.books.ledger.publish(self.leases[run], charge, mine)
        except LeaseLost:  # it ended, or this attempt was forfeited
            return
        assert np.array_equal(stored, self.values.setdefault((run, charge.name), stored))

    def crash(self, run, keeps_charges):
        """Another process takes the run over; it may have the charges of the first one, or not."""
        if run in self.leases and run not in self.ended:
            self.leases[run] = self.books.ledger.acquire(self.leases[run].run_id, take_over=True)
            if not keeps_charges:
                self.charges[run] = []

    def finish(self, run, status):
        if run in self.leases and run not in self.ended:
            self.books.ledger.finish(self.leases[run], status)
            self.ended.add(run)

    def check(self):
        balance = self.books.ledger.balance(self.books.population)
        spent, reserved = Fraction(balance.rho_spent), Fraction(balance.rho_reserved)
        assert spent + reserved <= Fraction(balance.budget.rho_max) * (1 + Fraction(1, 10**15))
        assert balance.rho_left >= 0
        assert balance.rho_spent == pytest.approx(float(exact_sum(self.paid)), rel=1e-15)
        assert set(balance.open_runs) == {self.leases[run].run_id for run in self.leases if run not in self.ended}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    return f"sqlite:///{tmp_path_factory.mktemp('law') / 'ledger.sqlite'}"


@pytest.mark.slow
@given(steps)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_nothing_is_spent_beyond_the_budget_and_nothing_unpaid(url, sequence):
    model = Model(open_books(url))
    for step, run, detail in sequence:
        getattr(model, step)(run, detail)
        model.check()
    ledger, population = model.books.ledger, model.books.population
    assert ledger.verify(population) == ledger.balance(population) == ledger.account(population).balance()
    for (run, name), value in model.values.items():
        assert np.array_equal(ledger.published(model.leases[run].run_id, name), value)
    published = ledger.balance(population).releases.get("published", 0)
    assert published == len(model.values)
