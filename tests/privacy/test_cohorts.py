"""Budgets that are kept by cohort: how they begin, who pays, and that one number always means the same people."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import BudgetMissing, LedgerTampered, PopulationBranched, PrivacyError
from fedcore.evaluation.report import spent_by_others
from fedcore.privacy.accounting import exact_sum, rounded_down, rounded_up
from fedcore.privacy.cohorts import Participants, recorded
from fedcore.privacy.gdp import mu_of
from fedcore.privacy.ledger.chain import canonical, digest
from fedcore.privacy.statement import private_statement
from tests.privacy.accounts import (
    CHAIN,
    OTHER_PARTICIPANTS,
    OTHER_RESERVATION,
    VALUE,
    begin,
    edit,
    kinds,
    on,
    segments,
    spend,
    sql_of,
    token,
    took,
)
from tests.privacy.conftest import open_books, release, total

# --- how they begin -------------------------------------------------------------------------------------------------


def test_founders_carry_what_was_spent_and_reserved_and_what_open_runs_spend_still(books):
    planned, more = release(1, 20.0), release(2, 30.0)
    spend(books, [planned], bound=on(1))
    open_run = books.reserve([planned, more], spares=1, bound=on(2))
    before = books.ledger.verify(books.population)
    assert begin(books, 3) == token(1) and books.ledger.tokens(books.population) == (token(1),)
    after = books.ledger.verify(books.population)
    assert replace(after, segments=()) == before and before.segments == ()
    reserved = total(planned, planned, more)
    assert segments(books) == [(1, 1, total(planned), reserved)]
    lease = books.ledger.acquire(open_run)
    books.ledger.publish(lease, books.ledger.charge(lease, planned), VALUE)
    spend(books, [more], took((2, 2), of=2))
    books.ledger.charge(lease, more)
    books.ledger.charge(lease, more)  # the spare
    assert segments(books) == [(1, 1, total(planned, planned, more, more), 0), (2, 2, total(more), 0)]
    books.ledger.finish(lease, "finished")
    assert segments(books) == [(1, 1, total(planned, planned, more, more), 0), (2, 2, total(more), 0)]
    assert books.ledger.participants_of(open_run) is None


def test_they_begin_once_and_again_after_a_kill(books):
    assert begin(books) == token(1)
    head = books.ledger.head(books.population)
    assert begin(books, token=token(7)) == token(1) and books.ledger.head(books.population) == head
    for other in ({"version": 2, "manifest": CHAIN[2]}, {"manifest": "f" * 64}):
        with pytest.raises(PopulationBranched, match="since version 1"):
            begin(books, **other)
    assert books.ledger.head(books.population) == head


def test_they_need_a_budget_and_a_budget_for_clients(url):
    books = open_books(url, epsilon=None)
    with pytest.raises(BudgetMissing):
        begin(books)
    books.ledger.set_budget(books.population, 2, 1e-10, unit="record")
    with pytest.raises(PrivacyError, match="protects one record"):
        begin(books)
    with pytest.raises(ValueError, match="token"):
        begin(books, token="short")
    assert "cohorts" not in kinds(books)


@pytest.mark.parametrize(
    ("bound", "error", "words"),
    [
        (on(2, "f" * 64), PopulationBranched, "version 2 of another copy"),
        (on(3), PopulationBranched, "version 3 of another copy"),  # after the founders' version
        ({**on(1), "version": 9}, PopulationBranched, "version 9"),
        ({**on(1), "version": 2}, PopulationBranched, "version 2"),
        (None, PrivacyError, "states no checksum"),
        ({**on(1), "manifest": None}, PrivacyError, "states no checksum"),
    ],
)
def test_a_run_of_another_copy_stops_them(books, bound, error, words):
    spend(books, [release()], bound=on(1))
    run = books.reserve([release()], bound=bound)
    with pytest.raises(error, match=words) as told:
        begin(books, 2)
    assert run in str(told.value) and told.value.remedy and "cohorts" not in kinds(books)
    lease = books.ledger.acquire(run)
    books.ledger.charge(lease, release())
    books.ledger.finish(lease, "finished")
    with pytest.raises(error):
        begin(books, 2)


def test_a_run_that_ended_and_never_spent_stops_nothing(books):
    run = books.reserve([release()], bound=None)
    books.ledger.finish(books.ledger.acquire(run), "abandoned")
    begin(books)


# --- who pays -------------------------------------------------------------------------------------------------------


def test_only_participants_pay(books):
    begin(books)
    first, second, third = release(1, 20.0), release(1, 25.0), release(1, 30.0)
    spend(books, [first], took((1, 1), of=1))
    run = spend(books, [second], took((2, 3), (5, 5), of=6))
    books.reserve([third], spares=2, cohorts=took((1, 6), of=6))
    reserved = total(third, third, third)
    assert segments(books) == [
        (1, 1, total(first), reserved),
        (2, 3, total(second), reserved),
        (4, 4, 0, reserved),
        (5, 5, total(second), reserved),
        (6, 6, 0, reserved),
    ]
    balance = books.ledger.balance(books.population)
    left = Fraction(balance.budget.rho_max) - exact_sum([third.rho] * 3)
    assert balance.rho_spent == total(first) and balance.rho_left == rounded_down(left)
    assert balance.segments[0].rho_left == rounded_down(left - Fraction(first.rho))
    assert balance.epsilon_spent == balance.budget.epsilon_of(total(first))
    assert balance.to_json()["segments"][1] == {
        "first": 2,
        "last": 3,
        "rho_spent": total(second),
        "rho_reserved": reserved,
        "rho_left": rounded_down(left - Fraction(second.rho)),
        "delta_spent": 0,
        "delta_reserved": 0,
        "delta_left": balance.budget.delta_extra,
    }
    assert books.ledger.participants_of(run) == took((2, 3), (5, 5), of=6)
    assert books.ledger.participants_of("nobody") is None
    account = books.ledger.account(books.population)
    assert [account.totals(cohort).rho_spent for cohort in (1, 3, 4)] == [first.rho, second.rho, 0]
    assert account.runs[run].cohorts == ((2, 3), (5, 5))


# --- redraws --------------------------------------------------------------------------------------------------------


# --- one number, one set of people ----------------------------------------------------------------------------------


def test_cohorts_and_one_account_never_mix(books):
    with pytest.raises(PrivacyError, match="one account for all clients"):
        books.reserve([release()], cohorts=took((1, 1), of=1))
    begin(books)
    with pytest.raises(PrivacyError, match="without cohorts"):
        books.reserve([release()])
    assert kinds(books)[-1] == "cohorts"


def test_a_number_known_under_another_token_is_another_copy(books):
    begin(books)
    books.reserve([release()], cohorts=took((1, 2), of=3))
    for other in (took((1, 1), of=3, copy=1), took((2, 2), of=2, copy=1), took((1, 1), of=1, copy=1)):
        with pytest.raises(PopulationBranched, match=f"cohort {len(other.tokens)} of population"):
            books.reserve([release()], cohorts=other)
    # a participant is not what is asked for: every token of the version is compared
    with pytest.raises(PopulationBranched, match="cohort 3"):
        books.reserve([release()], cohorts=replace(took((1, 1), (4, 4), of=4), tokens=(*map(token, (1, 2, 9, 4)),)))
    books.reserve([release()], cohorts=took((1, 1), of=2))  # an earlier version
    books.reserve([release()], cohorts=took((4, 4), of=4))
    assert books.ledger.tokens(books.population) == tuple(map(token, range(1, 5)))


def test_a_plan_without_cohorts_keeps_its_digest(file_books):
    """Whatever may come: an open run would become another plan."""
    run = file_books.reserve([release()], bound=on(1))
    payload = next(row for row in file_books.ledger.history(file_books.population) if row["kind"] == "reserve")
    assert "cohorts" not in payload and payload["needs"] == []
    before = sql_of(file_books, f"SELECT plan_digest, cohorts FROM fedcore_runs WHERE run_id = '{run}'")
    begin(file_books)
    file_books.reserve([release()], run=run, bound=on(1))
    assert sql_of(file_books, f"SELECT plan_digest, cohorts FROM fedcore_runs WHERE run_id = '{run}'") == before
    parts = ("plan", "spares", "spare_rho", "spare_delta", "unit", "relation", "secure", "statement")
    identity = {**{name: payload[name] for name in parts}, "population_id": file_books.population}
    assert before == [(digest(canonical(identity)), None)]


# --- statements -----------------------------------------------------------------------------------------------------


def test_the_statement_of_a_run_names_its_cohorts_and_the_one_that_has_spent_most(books):
    before = spend(books, [release(1, 25.0)], bound=on(1))
    begin(books)
    run = spend(books, [release(1, 20.0)], took((2, 3), (5, 5), of=5))
    spend(books, [release(1, 30.0)], took((3, 3), of=5))
    statement = private_statement(books.ledger, books.population, run)
    assert (statement.rho, statement.mu) == (total(release(1, 20.0)), mu_of(total(release(1, 20.0))))
    assert statement.cohorts.ranges == ((2, 3), (5, 5)) and statement.cohorts.known == 5
    most = total(release(1, 20.0), release(1, 30.0))
    assert statement.cohorts.most.first == 3 and statement.population.rho_spent == most
    rho_max = books.ledger.balance(books.population).budget.rho_max
    text = statement.text()
    for words in (
        "Privacy cost of this run to a client that took part: mu = 0.05 of",
        "holds for its whole time in the population: at most mu =",
        "which implies epsilon = 2, delta = 1e-10 over all runs",
        "Clients are accounted by cohort: the version of the population that they joined with.",
        "This run used cohorts 2-3, 5; others were not used, and it costs them nothing.",
        f"The cohort that has spent most: 3, mu = {mu_of(most):.6g} of {mu_of(rho_max):.6g} (epsilon = ",
        "When a client joined",
        "under another id",
        "forgotten without trace",
    ):
        assert words in text, words
    value = statement.to_json()
    assert json.loads(json.dumps(value)) == value and value["cohorts"]["named"]
    text = private_statement(books.ledger, books.population, before).text()
    assert "made before there were cohorts. The clients of that time are cohort 1" in text
    alone = private_statement(books.ledger, books.population, spend(books, [release()], took((4, 4), of=5)))
    assert "This run used cohort 4; others" in alone.text()
    assert statement.cohorts.most_of_them == statement.cohorts.most and alone.cohorts.most.first == 3
    assert alone.cohorts.most_of_them.rho_spent == total(release()) and spent_by_others(alone.to_json()) == 0
    assert spent_by_others(value) == pytest.approx(most - statement.rho)


def test_a_statement_of_one_account_does_not_speak_of_cohorts(books):
    statement = private_statement(books.ledger, books.population, spend(books, [release()]))
    assert "cohort" not in statement.text() and statement.to_json()["cohorts"] == {}


# --- forgotten clients ----------------------------------------------------------------------------------------------


def test_that_clients_were_forgotten_is_a_record_and_gives_nothing_back(books):
    begin(books)
    spend(books, [release()], took((1, 2), of=2))
    before = books.ledger.verify(books.population)
    books.ledger.forgot(books.population, version=4, list="d" * 64)
    books.ledger.forgot(books.population, version=4, list="d" * 64)
    books.ledger.forgot(books.population, version=5, list=None)
    rows = [(row["version"], row["list"]) for row in books.ledger.history(books.population) if row["kind"] == "forget"]
    assert rows == [(4, "d" * 64), (5, None)]
    assert books.ledger.verify(books.population) == before == books.ledger.balance(books.population)


# --- checkpoints, and what was edited -------------------------------------------------------------------------------


def test_participants_that_were_edited_everywhere_do_not_have_the_hash_of_their_record(file_books):
    begin(file_books)
    run = file_books.reserve([release()], cohorts=took((1, 2), of=2))
    edit(file_books, OTHER_PARTICIPANTS, OTHER_RESERVATION)
    with pytest.raises(LedgerTampered, match="who takes part"):
        file_books.ledger.participants_of(run)


def test_most_that_was_spent_is_rounded_up(books):
    begin(books)
    plan = [release(1, 21.0), release(2, 23.0), release(3, 29.0)]
    spend(books, plan, took((1, 1), of=1))
    assert segments(books) == [(1, 1, rounded_up(exact_sum(planned.rho for planned in plan)), 0)]


@pytest.mark.parametrize(
    "bad", ["A" * 32, "g" * 32, "a" * 31, "a" * 33, " " + "a" * 31, "a" * 30 + "  ", "é" * 32, "a_" * 16]
)
def test_a_token_has_128_bits_in_hexadecimal(bad):
    assert took((1, 2), of=2).holds(2) and not took((1, 2), of=3).holds(3)
    with pytest.raises(ValueError, match=r"token|hexadecimal"):
        Participants(((1, 1),), (token(1), bad))
    with pytest.raises(ValueError, match="twice"):
        Participants(((1, 1),), (token(1), token(1)))


@given(st.lists(st.integers(0, 6), max_size=5), st.lists(st.integers(0, 6), max_size=7), st.booleans())
def test_tokens_that_were_looked_at_before_are_not_looked_at_again(known, given_tokens, follows):
    """And what is found does not depend on it."""
    looked_at = tuple(token(n) for n in dict.fromkeys(known))
    tokens = (*looked_at, *map(token, given_tokens)) if follows else tuple(map(token, given_tokens))
    value = {"ranges": [[1, 1]], "tokens": list(tokens)}
    try:
        expected = Participants.from_json(value)
    except ValueError:
        with pytest.raises(ValueError):
            recorded(value, looked_at)
    else:
        assert recorded(value, looked_at) == (expected.ranges, expected.tokens)
    for wrong in ("x" * 32, "0" * 31, "A" * 32):
        with pytest.raises(ValueError):
            recorded({"ranges": [[1, 1]], "tokens": [*looked_at, wrong]}, looked_at)
