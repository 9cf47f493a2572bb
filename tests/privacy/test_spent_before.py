"""The starting charge of an account: charged first and once, kept by checkpoints and cohorts, stated and verified."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from fedcore.errors import BudgetExceeded, ConfigError, LedgerTampered
from fedcore.privacy.accounting import rounded_up
from fedcore.privacy.gdp import mu_of
from fedcore.privacy.ledger import reservations
from fedcore.privacy.ledger.balances import SpentBefore
from fedcore.privacy.ledger.chain import canonical
from fedcore.privacy.ledger.checkpoint import account_at, state_of
from fedcore.privacy.ledger.replay import replay
from fedcore.privacy.statement import private_statement, spent_before_in_words
from fedcore.privacy.statement_check import differences, own_contradictions, read_statement
from tests.privacy.accounts import begin, on, spend, took, with_periods
from tests.privacy.conftest import open_books, release
from tests.privacy.test_order import ACQUIRED, SET, chain_of, reserved

RHO, WHY = 0.0123, "budget show of the old ledger at commit 6fae4f3"
CHARGE = ("spent before", None, {"rho": RHO, "reason": WHY, "at": 0})


def opened(url, rho=RHO, **more):
    books = open_books(url, epsilon=None)
    books.ledger.set_budget(books.population, 2.0, 1e-10, spent_before=SpentBefore(rho, f"  {WHY} \n"), **more)
    return books


@pytest.mark.parametrize("rho", [RHO, 0.0])
def test_it_is_charged_and_displayed_before_anything_else(url, rho):
    books = opened(url, rho)
    history = books.ledger.history(books.population)
    assert [row["kind"] for row in history] == ["register", "budget set", "spent before"]
    assert (history[-1]["rho"], history[-1]["reason"]) == (rho, WHY)
    balance = books.ledger.verify(books.population)
    assert balance == books.ledger.balance(books.population) and balance.rho_spent == rho
    assert Fraction(balance.rho_left) <= Fraction(balance.budget.rho_max) - Fraction(rho)
    shown = balance.to_json()["spent_before"]
    assert (shown["seq"], shown["rho"], shown["reason"]) == (3, rho, WHY)


def test_what_is_left_is_less_by_it_to_the_last_bit(url):
    books = opened(url, 0.0)
    rho_max = books.ledger.balance(books.population).budget.rho_max
    other = opened(url, rho_max)
    assert other.ledger.verify(other.population).rho_left == 0
    with pytest.raises(BudgetExceeded, match="Nothing was released"):
        other.reserve([release()])
    with pytest.raises(ConfigError, match="more than the budget allows.*No budget was set"):
        opened(url, rho_max * (1 + 1e-15))


def test_a_checkpoint_keeps_it(url, monkeypatch):
    books = opened(url)
    monkeypatch.setattr(reservations, "CHECKPOINT_AFTER", 1)
    spend(books, [release()])
    books.reserve([release()])
    assert any(row["kind"] == "checkpoint" for row in books.ledger.history(books.population))
    balance = books.ledger.verify(books.population)
    assert balance == books.ledger.balance(books.population) and balance.spent_before.rho == RHO
    assert balance.rho_spent == rounded_up(Fraction(RHO) + Fraction(release().rho))
    account = books.ledger.account(books.population)
    state = json.loads(canonical(state_of(account)))
    assert canonical(state_of(account_at(books.population, state))) == canonical(state)


def test_an_account_without_one_has_the_state_that_it_had(books):
    assert "spent_before" not in state_of(books.ledger.account(books.population))


@pytest.mark.parametrize(
    "steps",
    [
        [CHARGE],
        [SET, CHARGE, CHARGE],
        [SET, reserved(release()), CHARGE],
        [SET, reserved(release()), ACQUIRED, ("finish", "run", {"status": "abandoned"}), CHARGE],
        [SET, (*CHARGE[:2], {**CHARGE[2], "rho": -1.0})],
        [SET, (*CHARGE[:2], {"rho": RHO, "at": 0})],
        [SET, ("cohorts", None, {"founders": 1, "manifest": "m", "token": "0" * 32}), CHARGE],
        [SET, (*CHARGE[:2], {**CHARGE[2], "rho": 1e3})],  # more than the budget
    ],
)
def test_records_that_cannot_follow_are_refused(steps):
    assert replay("ledger", "people", chain_of(SET, CHARGE)).spent_before.rho == RHO
    with pytest.raises(LedgerTampered):
        replay("ledger", "people", chain_of(*steps))


def test_the_founders_carry_it_and_later_cohorts_begin_at_zero(url):
    books = opened(url)
    begin(books)
    assert [s.rho_spent for s in books.ledger.verify(books.population).segments] == [RHO]
    spend(books, [release()], took((2, 2), of=2))
    by_cohort = [s.rho_spent for s in books.ledger.verify(books.population).segments]
    assert by_cohort == [RHO, release().rho]


def test_it_is_spent_without_a_share(url):
    books = opened(url)
    with pytest.raises(BudgetExceeded, match="what runs without a share have spent"):
        books.ledger.divide(books.population, {"a": Fraction(1)})
    books.ledger.divide(books.population, {"a": Fraction(1, 2)})
    undivided = books.ledger.verify(books.population).shares[-1]
    assert (undivided.name, undivided.rho_spent) == (None, RHO)


def test_calendar_periods_carry_none(url):
    with pytest.raises(ConfigError, match="per client and period cannot carry a starting charge"):
        with_periods(url, spent_before=SpentBefore(RHO, WHY))
    books = with_periods(url, spent_before=SpentBefore(0.0, WHY))
    kinds = [row["kind"] for row in books.ledger.history(books.population)]
    assert kinds == ["register", "budget set", "cohorts", "spent before"]
    assert books.ledger.verify(books.population).spent_before.rho == 0.0


@pytest.mark.parametrize("rho", [-1e-9, float("nan"), float("inf")])
def test_bad_values_set_no_budget(url, rho):
    with pytest.raises(ConfigError, match="finite rho"):
        opened(url, rho)
    books = open_books(url, epsilon=None)
    with pytest.raises(ConfigError, match="a reason has 1"):
        books.ledger.set_budget(books.population, 2.0, 1e-10, spent_before=SpentBefore(RHO, " "))
    assert books.ledger.balance(books.population).budget is None


# --- statements -------------------------------------------------------------------------------------------------------


def test_a_statement_quotes_it_and_is_checked(url):
    books = opened(url)
    run = spend(books, [release()])
    statement = private_statement(books.ledger, books.population, run)
    assert (statement.spent_before.rho, statement.spent_before.reason) == (RHO, WHY) and statement.rho == release().rho
    assert spent_before_in_words(RHO, WHY) in statement.text().splitlines()
    total = rounded_up(Fraction(RHO) + Fraction(release().rho))
    assert f"spent so far: mu = {mu_of(total):.6g}" in statement.text()
    value = json.loads(json.dumps(statement.to_json()))
    assert own_contradictions(*read_statement(json.dumps(value))) == []
    value["population"]["rho_spent"] = release().rho  # as if nothing had been spent before
    assert any("spent before" in line for line in own_contradictions(*read_statement(json.dumps(value))))
    without = replace(statement, spent_before={})
    assert "spent_before" in differences(without, statement)


def test_the_statement_of_another_cohort_agrees_with_itself(url):
    """Its clients have not paid the charge: the largest account is one of the two, not their sum."""
    books = opened(url)
    begin(books)
    run = spend(books, [release()], took((2, 2), of=2), bound=on(2))
    statement = private_statement(books.ledger, books.population, run)
    assert own_contradictions(*read_statement(json.dumps(statement.to_json()))) == []
    assert private_statement(books.ledger, books.population, run) == statement


def test_an_account_without_one_says_nothing(books):
    run = spend(books, [release()])
    statement = private_statement(books.ledger, books.population, run)
    assert statement.spent_before is None and "Spent before" not in statement.text()
