"""`Ledger.recount`: an account of zCDP is counted in Gaussian differential privacy, once, and nothing else changes."""

import os
import shutil
import sqlite3
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedcore.errors import BudgetExceeded, BudgetMissing, ConfigError, LedgerTampered, PrivacyError
from fedcore.privacy.accounting import Budget, make_budget, recounted
from fedcore.privacy.gdp import mu_of
from fedcore.privacy.ledger import ledger as ledger_of_runs
from fedcore.privacy.ledger import reservations
from fedcore.privacy.ledger.checkpoint import account_at, state_of
from fedcore.privacy.ledger.ledger import create_ledger, open_ledger
from fedcore.privacy.plan import DISCRETE, ROUNDED, PlannedRelease
from fedcore.privacy.statement import private_statement
from tests.privacy.conftest import Books
from tests.privacy.processes import die_before_statement

OLD = Path(__file__).parent.parent / "golden" / "schema1" / "ledger.sqlite"
VALUE = np.array([1, -2, 3])
ZCDP = make_budget(2.0, 1e-6, currency="zcdp")


def wide(round=1, sigma=20.0, **changes):
    """A release within the limits."""
    return replace(
        PlannedRelease(f"sums-{round}", round, (3,), 2**16, sigma, "docs/privacy/recount.md", "x"), **changes
    )


@pytest.fixture
def law(monkeypatch):
    """Sets the noise that runs reserve and are charged for; discrete noise was that of version 0.1."""

    def set_law(law):
        for module in (reservations, ledger_of_runs):
            monkeypatch.setattr(module, "ROUNDED", law)

    set_law(DISCRETE)
    return set_law


@pytest.fixture
def books(url, law):
    """A population in zCDP, for people, in the days of discrete noise."""
    made = Books(url, create_ledger(url), uuid.uuid4().hex)
    made.ledger.register(made.population)
    made.ledger.set_budget(made.population, ZCDP.epsilon, ZCDP.delta, currency="zcdp")
    return made


def history(books, *plan, end="finished"):
    """A run that has published all but its last release."""
    run = books.reserve([*plan, wide(99, 200.0)])
    lease = books.ledger.acquire(run)
    for planned in plan:
        books.ledger.publish(lease, books.ledger.charge(lease, planned), VALUE)
    if end:
        books.ledger.finish(lease, end)
    return run


# --- what it does -----------------------------------------------------------------------------------------------------


def test_the_promise_stays_and_rho_grows(books):
    history(books, wide())
    before, after = books.ledger.recount(books.population)
    assert before.budget == ZCDP and after.budget == recounted(ZCDP) and after.budget.rho_max > 1.13 * ZCDP.rho_max
    assert replace(before, budget=None, rho_left=0.0) == replace(after, budget=None, rho_left=0.0)
    assert after.epsilon_spent < before.epsilon_spent and after.rho_left > before.rho_left
    assert after == books.ledger.balance(books.population) == books.ledger.verify(books.population)
    record = books.ledger.history(books.population)[-1]
    assert record["kind"] == "recount" and record["before"] == ZCDP.numbers()
    assert record["budget"] == after.budget.numbers() and record["currency"] == "gdp"
    assert 0 < record["caps"]["eta1"] < record["caps"]["eta2"] < 1e-3


def test_the_new_rho_max_is_a_limit_to_the_last_bit(books):
    history(books, wide())
    sigma = (0.5 / ZCDP.rho_max) ** 0.5
    with pytest.raises(BudgetExceeded):
        books.reserve([wide(sigma=sigma)])
    left = books.ledger.recount(books.population)[1].rho_left
    with pytest.raises(BudgetExceeded):
        books.reserve([wide(sigma=(0.5 / left) ** 0.5)])  # its price is rounded up
    books.reserve([wide(sigma=(0.5 / left) ** 0.5 * (1 + 1e-9))])
    assert left > ZCDP.rho_max


def test_to_say_what_it_would_be_changes_nothing(books):
    history(books, wide())
    head = books.ledger.head(books.population)
    said = books.ledger.recount(books.population, dry_run=True)
    assert books.ledger.head(books.population) == head and books.ledger.balance(books.population) == said[0]
    assert books.ledger.recount(books.population) == said


def test_a_raise_counts_with_the_same_caps(books):
    history(books, wide())
    books.ledger.recount(books.population)
    for epsilon, delta in ((3.0, ZCDP.delta), (3.0, 1e-5), (8.0, 1e-5)):
        books.ledger.raise_budget(books.population, epsilon, delta)
        budget = books.ledger.balance(books.population).budget
        assert budget.discrete == ZCDP.rho_max
        plain = make_budget(epsilon, delta, budget.delta_extra)
        assert budget.rho_max < plain.rho_max and budget.delta_conv == plain.delta_conv
        assert budget == make_budget(epsilon, delta, budget.delta_extra, discrete=ZCDP.rho_max)
        assert budget.epsilon_of(budget.rho_max) <= epsilon < budget.epsilon_of(plain.rho_max)
    books.ledger.verify(books.population)


def test_a_checkpoint_keeps_the_caps(books, law, monkeypatch):
    monkeypatch.setattr(reservations, "CHECKPOINT_AFTER", 3)
    history(books, wide())
    budget = books.ledger.recount(books.population)[1].budget
    law(ROUNDED)
    history(books, wide(2))
    assert "checkpoint" in [row["kind"] for row in books.ledger.history(books.population)]
    whole = books.ledger.account(books.population)
    assert account_at(books.population, state_of(whole)).budget == budget == whole.budget
    assert books.ledger.balance(books.population).budget == books.ledger.verify(books.population).budget == budget
    books.ledger.raise_budget(books.population, 3.0, ZCDP.delta)
    assert books.ledger.verify(books.population).budget.discrete == ZCDP.rho_max


# --- what is refused --------------------------------------------------------------------------------------------------


def refused(books, error, match):
    head = books.ledger.head(books.population)
    for dry_run in (True, False):
        with pytest.raises(error, match=match):
            books.ledger.recount(books.population, dry_run=dry_run)
    assert books.ledger.head(books.population) == head


def test_it_is_done_once(books):
    books.ledger.recount(books.population)
    refused(books, PrivacyError, "since it was recounted. There is nothing")


def test_an_account_in_gdp_or_without_a_budget_is_not_recounted(books):
    books.population = uuid.uuid4().hex
    books.ledger.register(books.population)
    refused(books, BudgetMissing, "no privacy budget")
    books.ledger.set_budget(books.population, 2.0, 1e-6)
    refused(books, PrivacyError, r"in Gaussian differential privacy\. There is nothing")


def test_open_runs_come_first(books):
    runs = sorted([history(books, wide(), end=None), *(books.reserve([wide(sigma=300.0)]) for _ in range(6))])
    refused(books, PrivacyError, f"open runs: {', '.join(runs[:5])} and 2 more.*runs abandon")
    for run in runs:
        books.ledger.finish(books.ledger.acquire(run, take_over=True), "abandoned")
    books.ledger.recount(books.population)


@pytest.mark.parametrize(
    "beyond", [wide(sensitivity=2**16 - 1), wide(sigma=2.0**-6 * 0.99, shape=(2,)), wide(shape=(2**28 + 1,))]
)
@pytest.mark.parametrize("charged", [True, False])
def test_charged_noise_beyond_the_caps_stops_it(books, beyond, charged):
    books.ledger.raise_budget(books.population, 2990.0, 1e-6)
    lease = books.ledger.acquire(books.reserve([beyond]))
    if charged:
        books.ledger.charge(lease, beyond)
    books.ledger.finish(lease, "abandoned")
    if charged:
        refused(books, PrivacyError, "release 'sums-1' of round 1 has .*stays in zCDP")
    else:
        refused(books, ConfigError, "rho_max")


def test_thresholds_argued_for_discrete_noise_stop_it(books):
    history(books, wide(delta=1e-12))
    refused(books, PrivacyError, "thresholding step")


@pytest.mark.parametrize(("epsilon", "error"), [(1000.0, PrivacyError), (2990.0, ConfigError)])
def test_a_budget_that_would_lose_is_kept(books, epsilon, error):
    books.ledger.raise_budget(books.population, epsilon, 1e-6)
    refused(books, error, "stays in zCDP")


def test_rounded_noise_is_never_in_the_way(books, law):
    """Of scale 64, and in a run that reserved discrete noise and was charged for the other one."""
    coarse = wide(sensitivity=2**6, sigma=1.0)
    books.ledger.raise_budget(books.population, 8.0, 1e-6)
    run = books.reserve([coarse])
    law(ROUNDED)
    lease = books.ledger.acquire(run)
    books.ledger.publish(lease, books.ledger.charge(lease, coarse), VALUE)
    books.ledger.finish(lease, "finished")
    books.ledger.recount(books.population)
    assert private_statement(books.ledger, books.population, run).mu is not None


def test_discrete_noise_is_refused_afterwards(books, law):
    history(books, wide())
    books.ledger.recount(books.population)
    run = books.reserve([wide()])  # no version does; the ledger does not count on it
    lease, head = books.ledger.acquire(run), books.ledger.head(books.population)
    with pytest.raises(PrivacyError, match="has reserved discrete noise"):
        books.ledger.charge(lease, wide())
    assert books.ledger.head(books.population).seq == head.seq
    law(ROUNDED)
    books.ledger.charge(lease, wide())
    assert books.ledger.verify(books.population).releases["charged"] == 1


# --- the chain --------------------------------------------------------------------------------------------------------


def forge(books, kind, **payload):
    """A record of the right hash, and the account's row to match: what somebody with the database could write."""
    with books.ledger._writing(books.population) as writer:
        writer.set_budget(Budget("gdp", **payload["budget"]))
        writer.append(kind, None, payload)


NEW = recounted(ZCDP)


@pytest.mark.parametrize(
    "changes",
    [
        {"discrete": ZCDP.rho_max / 2},
        {"discrete": 0.0},
        {"epsilon": 3.0},
        {"delta_conv": 1e-6},
        {"rho_max": ZCDP.rho_max * 0.99},
    ],
)
def test_records_that_promise_something_else_are_refused(books, changes):
    forge(books, "recount", budget=replace(NEW, **changes).numbers(), before=ZCDP.numbers(), currency="gdp")
    with pytest.raises(LedgerTampered, match="recount"):
        books.ledger.verify(books.population)


def test_a_recount_below_open_runs_is_refused_by_replay(books):
    books.reserve([wide()])
    forge(books, "recount", budget=NEW.numbers(), before=ZCDP.numbers(), currency="gdp")
    with pytest.raises(LedgerTampered, match="open runs"):
        books.ledger.balance(books.population)


def test_a_second_recount_is_refused_by_replay(books):
    books.ledger.recount(books.population)
    forge(books, "recount", budget=replace(NEW, discrete=NEW.rho_max).numbers(), before=NEW.numbers(), currency="gdp")
    with pytest.raises(LedgerTampered, match="recounted one"):
        books.ledger.balance(books.population)


def test_a_charge_of_discrete_noise_is_refused_by_replay(books):
    books.ledger.recount(books.population)
    run, planned = books.reserve([wide()]), wide()
    with books.ledger._writing(books.population) as writer:
        price = {"round": 1, "name": planned.name, "attempt": 0, "rho": planned.rho, "delta": 0.0}
        writer.append("charge", run, {**price, "token": 1, "noise": DISCRETE})
        writer.set_state(run, 1, planned.name, 0, "charged")
    with pytest.raises(LedgerTampered, match="discrete noise in an account"):
        books.ledger.verify(books.population)


def test_a_raise_that_forgets_the_caps_is_refused_by_replay(books):
    books.ledger.recount(books.population)
    plain = make_budget(3.0, ZCDP.delta, ZCDP.delta_extra)
    forge(books, "budget raise", budget=plain.numbers(), before=NEW.numbers())
    with pytest.raises(LedgerTampered, match="forgets the discrete noise"):
        books.ledger.balance(books.population)


def test_the_row_follows_the_chain(books):
    books.ledger.recount(books.population)
    with books.ledger._writing(books.population) as writer:
        writer.set_account(currency="zcdp")
    with pytest.raises(LedgerTampered, match="the budget is"):
        books.ledger.verify(books.population)


# --- statements -------------------------------------------------------------------------------------------------------


def test_statements_of_runs_before_and_after(books, law):
    before = history(books, wide())
    alone = private_statement(books.ledger, books.population, before)
    books.ledger.recount(books.population)
    again = private_statement(books.ledger, books.population, before)
    assert (again.epsilon, again.rho, again.mu) == (alone.epsilon, alone.rho, None)
    assert "zero-concentrated" in again.text() and "at most mu" not in again.text()
    assert f"of {NEW.rho_max:.6g} (epsilon = " in again.text()
    law(ROUNDED)
    later = private_statement(books.ledger, books.population, history(books, wide()))
    assert later.mu == mu_of(later.rho) and 0 < later.epsilon < alone.epsilon and later.rho == alone.rho
    assert "of Gaussian differential privacy" in later.text() and "at most mu" not in later.text()
    assert f"of {NEW.rho_max:.6g} (epsilon = " in later.text()


# --- a ledger of version 0.1 ------------------------------------------------------------------------------------------


@pytest.fixture
def old(tmp_path):
    """(file, population) of schema 1, migrated; its open run was given up."""
    path = tmp_path / "ledger.sqlite"
    shutil.copy(OLD, path)
    path.chmod(0o600)
    ledger = open_ledger(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        population = connection.execute("SELECT population_id FROM fedcore_accounts").fetchone()[0]
    ledger.finish(ledger.acquire("interrupted"), "abandoned")
    return path, population


def test_a_migrated_ledger_is_recounted_and_verified(old):
    path, population = old
    ledger = open_ledger(f"sqlite:///{path}")
    before, after = ledger.recount(population)
    assert (before.budget.currency, after.budget.currency) == ("zcdp", "gdp")
    assert after.budget.rho_max > 1.11 * before.budget.rho_max and after.rho_spent == before.rho_spent
    again = open_ledger(f"sqlite:///{path}")
    assert again.verify(population) == again.balance(population) == after
    with closing(sqlite3.connect(path)) as connection:
        row = connection.execute("SELECT currency, rho_max, epsilon FROM fedcore_accounts").fetchone()
    assert row == ("gdp", after.budget.rho_max, 8.0)


@pytest.mark.slow
def test_a_process_killed_at_each_statement_leaves_one_currency_or_the_other(old):
    path, population = old
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content, seen = path.read_bytes(), []
    for number in range(60):
        for file in path.parent.iterdir():
            file.unlink()
        path.write_bytes(content)
        child = os.fork()
        if child == 0:
            recount_and_die(path, population, number)
        _, ended = os.waitpid(child, 0)
        ledger = open_ledger(f"sqlite:///{path}")
        balance = ledger.verify(population)
        assert ledger.balance(population) == balance
        seen.append(balance.budget.currency)
        if balance.budget.currency == "zcdp":
            ledger.recount(population)
        assert ledger.verify(population).budget.discrete > 0
        if not os.WIFSIGNALED(ended):
            break
    assert seen.count("zcdp") > 5 and seen[-1] == "gdp"


def recount_and_die(path, population, number):
    """In a child process: SIGKILL before the statement of this number, or the normal end."""
    try:
        ledger = open_ledger(f"sqlite:///{path}")
        die_before_statement(ledger._engine, number)
        ledger.recount(population)
    finally:
        os._exit(0)
