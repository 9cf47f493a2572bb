"""Budgets per client and calendar period: the window, each period's account, and what they bound of a client's life."""

import itertools
import json
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import ConfigError, PopulationBranched, PrivacyError
from fedcore.privacy.accounting import exact_sum, make_budget, rounded_up
from fedcore.privacy.ledger import reservations
from fedcore.privacy.periods import PeriodTerms, bound, bounds, periods_in, so_far
from fedcore.privacy.statement import private_statement
from fedcore.storage.ranges import ranges_of
from tests.privacy.accounts import CALENDAR, kinds, spend, token, took, with_periods
from tests.privacy.conftest import open_books, release


@pytest.fixture
def periods(url):
    return with_periods(url)


def reserve(books, *ranges, of: int, plan=None, **options) -> str:
    return books.reserve(plan or [release()], unit="client_period", cohorts=took(*ranges, of=of), **options)


def ended(books, *ranges, of: int, plan=None) -> str:
    return spend(books, plan or [release()], took(*ranges, of=of), unit="client_period")


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_in_gaussian_differential_privacy():
    """epsilon 1 a month at delta 1e-6: the most that windows of 1 and 3 allow."""
    budget = make_budget(1.0, 1e-6)
    for (window, periods), epsilon in {(1, 12): 3.904, (3, 12): 7.322, (1, 24): 5.789, (3, 24): 11.05}.items():
        life = bound(budget, PeriodTerms("month", window), periods)
        assert life.epsilon == pytest.approx(epsilon, rel=1e-3) and life.delta == 1e-6
        assert Fraction(life.rho) >= window * periods * Fraction(budget.rho_max)
        assert life.mu**2 == pytest.approx(window * periods * 2 * budget.rho_max)


@given(
    window=st.integers(1, 5),
    runs=st.lists(st.tuples(st.sets(st.integers(1, 12), min_size=1, max_size=5), st.integers(1, 9)), max_size=20),
    entries=st.sets(st.integers(1, 12), min_size=1),
)
def test_what_a_client_loses_is_within_the_bound(window, runs, entries):
    """Whatever the runs are, as long as each period's account and the window hold."""
    spent = dict.fromkeys(range(1, 13), Fraction(0))
    lost, limit = Fraction(0), Fraction(20)
    for read, price in runs:
        read = set(sorted(read)[-window:])
        if any(spent[period] + price > limit for period in read):
            continue  # the ledger refuses it
        for period in read:
            spent[period] += price
        lost += len(read & entries) ** 2 * price
    assert lost <= window * len(entries) * limit


def test_terms_that_are_none():
    for unit, window in (("fortnight", 1), ("month", 0), ("month", True), ("month", 1.5)):
        with pytest.raises(ConfigError):
            PeriodTerms(unit, window)
    assert periods_in(((1, 3), (7, 7))) == 4


# --- how such a budget is set -----------------------------------------------------------------------------------------


def test_the_account_is_kept_by_period_from_its_first_record_on(periods):
    assert kinds(periods) == ["register", "budget set", "cohorts"]
    balance = periods.ledger.verify(periods.population)
    assert balance == periods.ledger.balance(periods.population)
    assert (balance.unit, balance.periods) == ("client_period", PeriodTerms("month", 3))
    assert balance.delta_left == balance.budget.delta_extra == 0
    assert periods.ledger.tokens(periods.population) == (token(1),)
    record = periods.ledger.history(periods.population)[1]
    assert record["needs"] == ["periods"] and record["periods"] == {"unit": "month", "window": 3}
    value = balance.to_json()
    assert json.loads(json.dumps(value)) == value and [one["periods"] for one in value["lifetime"]] == [12, 24, None]


def test_unit_and_periods_go_together(url):
    terms = {"periods": PeriodTerms("month", 1), "calendar": CALENDAR}
    for wrong in (
        {"unit": "client_period"},
        {"unit": "client", **terms},
        {"unit": "client_period", **{**terms, "calendar": None}},
    ):
        books = open_books(url, epsilon=None)
        with pytest.raises(ConfigError, match="calendar periods"):
            books.ledger.set_budget(books.population, 2, 1e-10, **wrong)
        assert kinds(books) == ["register"]
    with pytest.raises(ConfigError, match="thresholding steps have no privacy cost per client and period"):
        with_periods(url, delta_extra=1e-11)
    other = open_books(url)
    assert "periods" not in other.ledger.balance(other.population).to_json()


def test_a_raise_keeps_terms_and_leaves_no_delta_for_thresholds(periods):
    periods.ledger.raise_budget(periods.population, 3, 1e-9)
    balance = periods.ledger.verify(periods.population)
    assert balance.periods == PeriodTerms("month", 3) and balance.budget.delta_extra == 0


# --- what a run may read ----------------------------------------------------------------------------------------------


def test_no_run_reads_more_periods_than_the_window_holds(periods):
    reserve(periods, (1, 3), of=9)
    reserve(periods, (1, 1), (5, 5), (9, 9), of=9)  # counted, whether they follow each other or not
    head = periods.ledger.head(periods.population)
    for ranges in (((1, 4),), ((1, 1), (3, 3), (5, 5), (7, 7))):
        with pytest.raises(PrivacyError, match="would read 4 months .* lets a run read 3"):
            reserve(periods, *ranges, of=9)
    with pytest.raises(PrivacyError, match="without cohorts"):
        periods.reserve([release()], unit="client_period")
    with pytest.raises(PrivacyError, match="promises privacy for one client_period"):
        periods.reserve([release()], cohorts=took((1, 1), of=9))
    with pytest.raises(PopulationBranched):
        periods.reserve([release()], unit="client_period", cohorts=took((1, 1), of=9, copy=1))
    assert periods.ledger.head(periods.population) == head


def test_a_threshold_has_no_price(periods):
    with pytest.raises(
        PrivacyError, match="'sums-2' .* is a thresholding step, which has no privacy cost per client and month"
    ):
        reserve(periods, (1, 1), of=1, plan=[release(1), release(2, delta=1e-20)])
    assert kinds(periods)[-1] == "cohorts"


# --- what a client loses over its life --------------------------------------------------------------------------------


def test_the_ledger_says_what_a_client_with_data_in_every_period_has_lost(periods, monkeypatch):
    """Exactly the sum over pairs (entry, run), also after checkpoints, with draws that were lost, and for open runs."""
    monkeypatch.setattr(reservations, "CHECKPOINT_AFTER", 9)
    draw, pairs = random.Random(2), []
    for number in range(12):
        read = set(draw.sample(range(1, 8), draw.randrange(1, 4)))
        plan = [release(1, 60.0 + number), release(2, 70.0)]
        run = reserve(periods, *ranges_of(read), of=7, plan=plan, spares=1)
        lease = periods.ledger.acquire(run)
        price = Fraction(0)
        for planned in plan[: draw.randrange(3)]:
            again = draw.randrange(2)
            for _ in range(1 + again):
                charge = periods.ledger.charge(lease, planned)
                price += Fraction(planned.rho)
            periods.ledger.publish(lease, charge, np.array([1, -2, 3]))
        if number % 3:
            periods.ledger.finish(lease, "finished")
        pairs.append((read, price))
    assert kinds(periods).count("checkpoint") >= 2
    balance, account = periods.ledger.verify(periods.population), periods.ledger.account(periods.population)
    assert balance == periods.ledger.balance(periods.population)
    whole = sum((len(read) ** 2 * price for read, price in pairs), Fraction(0))
    assert account.lifetime() == whole and balance.lifetime_spent == rounded_up(whole)
    for entries in itertools.chain.from_iterable(itertools.combinations(range(1, 8), n) for n in range(8)):
        lost = sum((len(read & {*entries}) ** 2 * price for read, price in pairs), Fraction(0))
        assert lost <= whole and lost <= 3 * len(entries) * Fraction(balance.budget.rho_max)
    assert balance.lifetime[-1] == so_far(balance.budget, rounded_up(whole))


def test_the_statement_says_the_promise_and_the_bounds_of_a_life(periods):
    ended(periods, (1, 1), of=4, plan=[release(1, 30.0)])
    run = ended(periods, (1, 3), of=4, plan=[release(1, 20.0)])
    statement = private_statement(periods.ledger, periods.population, run)
    budget = periods.ledger.balance(periods.population).budget
    first, second = bounds(budget, PeriodTerms("month", 3))
    lost = rounded_up(exact_sum([release(1, 30.0).rho] + [release(1, 20.0).rho] * 9))
    text = statement.text()
    for words in (
        "-differential privacy per client and month (no reason was declared why",
        "Hidden: the presence or absence of one client's data of one calendar period (add_or_remove_one).",
        "Privacy cost of this run to a client for its data of one month: mu = 0.05 of Gaussian",
        "The guarantee holds for each month of a client separately, however long its data are kept: at most mu = ",
        "which implies epsilon = 2, delta = 1e-10 over all runs.",
        "This run used months 1-3; others were not used, and it costs them nothing.",
        "The month that has spent most: 1, mu = ",
        f"A client active for 12 months: at most epsilon = {first.epsilon:.4g}; active for 24 months: at most ",
        f"epsilon = {second.epsilon:.4g}, at delta = 1e-10 (window 3).",
        f"A client with data in every month has lost at most epsilon = {so_far(budget, lost).epsilon:.4g} at delta",
        "a run that read k months cost it k^2 times the run's privacy cost",
        "several periods reveal together",
        "under several ids",
    ):
        assert words in text, words
    assert "When a client joined" not in text
    dated = private_statement(periods.ledger, periods.population, run, first_period="2025-11")
    for words in (
        "Each month of the population's calendar has a separate account.",
        "This run used months 2025-11 to 2026-01; others were not used, and it costs them nothing.",
        "The month that has spent most: 2025-11, mu = ",
    ):
        assert words in dated.text(), words
    assert dated.to_json()["periods"] == {**statement.to_json()["periods"], "first": "2025-11"}
    value = statement.to_json()
    assert json.loads(json.dumps(value)) == value
    assert value["periods"]["window"] == 3 and value["periods"]["lifetime"][0]["epsilon"] == first.epsilon
    other = open_books(periods.url)
    assert private_statement(other.ledger, other.population, spend(other, [release()])).to_json()["periods"] == {}
