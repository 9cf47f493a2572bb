"""The ledger in peace: what it is, budgets, reservations. See test_ledger_runs.py for what runs do."""

import math
import sqlite3

import pytest

from fedcore.errors import (
    BudgetExceeded,
    BudgetExists,
    BudgetMissing,
    ConfigError,
    LedgerError,
    LedgerMissing,
    PrivacyError,
)
from fedcore.privacy.accounting import Budget
from fedcore.privacy.ledger import accounts as ledger_books
from fedcore.privacy.ledger import database as ledger_database
from fedcore.privacy.ledger.ledger import create_ledger, default_ledger_url, open_ledger
from tests.privacy.conftest import open_books, release, total

# --- the ledger itself ----------------------------------------------------------------------------------------------


def test_a_ledger_keeps_its_id_and_kind(url):
    first = create_ledger(url)
    assert len(first.id) == 32 and not first.is_test
    assert create_ledger(url).id == first.id == open_ledger(url, expected_id=first.id).id
    with pytest.raises(LedgerError, match="not a test ledger"):
        create_ledger(url, test=True)


def test_a_test_ledger_is_never_a_ledger_for_people(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    assert create_ledger(url, test=True).is_test and open_ledger(url).is_test
    with pytest.raises(LedgerError, match="test ledger, not a ledger for people"):
        create_ledger(url)


def test_opening_never_makes_a_ledger(tmp_path):
    missing = tmp_path / "nothing" / "ledger.sqlite"
    with pytest.raises(LedgerMissing, match="no ledger at"):
        open_ledger(f"sqlite:///{missing}")
    assert not missing.parent.exists()
    empty = tmp_path / "empty.sqlite"
    empty.touch()
    with pytest.raises(LedgerMissing, match="holds no ledger"):
        open_ledger(f"sqlite:///{empty}")
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE something (x)")
    with pytest.raises(LedgerMissing, match="holds no ledger"):
        open_ledger(f"sqlite:///{other}")


def test_another_ledger_is_refused(url):
    create_ledger(url)
    with pytest.raises(LedgerMissing, match="ledger 0000 is needed"):
        open_ledger(url, expected_id="0000")


@pytest.mark.parametrize(
    "url",
    [
        "no url",
        "sqlite://",
        "sqlite:///:memory:",
        "postgresql+psycopg://me:***@host/name",
        "nosuchdatabase://host/name",
    ],
)
def test_addresses_that_cannot_be_a_ledger_are_refused(url):
    for function in (create_ledger, open_ledger):
        with pytest.raises(LedgerError) as caught:
            function(url)
        assert caught.value.remedy


def test_the_password_is_hidden():
    parsed = ledger_database.parse_url("postgresql+psycopg://me:secret@host/name")
    assert "secret" not in parsed.render_as_string()


def test_the_default_ledger_is_named_or_the_users_own(monkeypatch):
    monkeypatch.setenv("FEDCORE_LEDGER", "sqlite:////somewhere/x.sqlite")
    assert default_ledger_url() == "sqlite:////somewhere/x.sqlite"
    monkeypatch.delenv("FEDCORE_LEDGER")
    pytest.importorskip("platformdirs")
    assert default_ledger_url().startswith("sqlite:///") and "fedcore" in default_ledger_url()


def test_a_sqlite_ledger_is_durable(file_books, monkeypatch):
    monkeypatch.setattr(sqlite3, "connect", sqlite3.dbapi2.connect)  # not that of the tests, which waits for no disk
    with file_books.ledger._transaction(write=False) as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL


# --- budgets --------------------------------------------------------------------------------------------------------


def test_registering_twice_changes_nothing(books):
    head = books.ledger.head(books.population)
    books.ledger.register(books.population)
    assert books.ledger.head(books.population) == head
    with pytest.raises(ConfigError):
        books.ledger.register("x" * 129)


def test_an_unregistered_population_is_refused(books):
    ledger = books.ledger
    for call in (
        lambda: ledger.set_budget("nobody", 1, 1e-9),
        lambda: ledger.balance("nobody"),
        lambda: ledger.raise_budget("nobody", 1, 1e-9),
        lambda: ledger.head("nobody"),
        lambda: ledger.reserve("nobody", books.run(), [release()], 0, secure=True),
    ):
        with pytest.raises(LedgerError, match="not registered"):
            call()


def test_a_budget_is_set_once(books):
    before = books.ledger.balance(books.population)
    with pytest.raises(BudgetExists, match="epsilon = 2, delta = 1e-10"):
        books.ledger.set_budget(books.population, 3, 1e-10)
    assert books.ledger.balance(books.population) == before
    assert (before.unit, before.relation) == ("client", "add_or_remove_one")
    assert before.rho_left == before.budget.rho_max and before.epsilon_spent == 0


def test_a_budget_is_only_raised_and_the_raise_is_shown(books):
    ledger, population = books.ledger, books.population
    for epsilon, delta in ((2, 1e-10), (1.9, 1e-10), (1.9, 1e-9), (3, 9e-11)):
        with pytest.raises(BudgetExists, match="not a raise"):
            ledger.raise_budget(population, epsilon, delta)
    ledger.raise_budget(population, 3, 1e-10)
    ledger.raise_budget(population, 3, 1e-9)
    budget = ledger.verify(population).budget
    assert (budget.epsilon, budget.delta) == (3, 1e-9) and budget.delta_extra == pytest.approx(1e-10)
    raises = [row for row in ledger.history(population) if row["kind"] == "budget raise"]
    assert [(row["before"]["epsilon"], row["budget"]["epsilon"]) for row in raises] == [(2, 3), (3, 3)]


def test_a_raise_keeps_what_is_spent(books):
    run = books.reserve([release()])
    lease = books.ledger.acquire(run)
    books.ledger.charge(lease, release())
    books.ledger.raise_budget(books.population, 3, 1e-10)
    assert books.spent() == (total(release()), 0)


def test_bad_budgets_are_refused(url):
    books = open_books(url, epsilon=None)
    with pytest.raises(BudgetMissing):
        books.ledger.raise_budget(books.population, 3, 1e-10)
    for options in ({"unit": "household"}, {"relation": "swap"}, {"delta_extra": 1.0}):
        with pytest.raises(ConfigError):
            books.ledger.set_budget(books.population, 1, 1e-9, **options)
    assert books.ledger.verify(books.population).budget is None


# --- reservations ---------------------------------------------------------------------------------------------------


def test_a_plan_and_its_spares_are_reserved(books):
    cheap, dear = release(1, 20.0), release(2, 10.0)
    books.reserve([cheap, dear], spares=2)
    assert books.spent() == (0, total(cheap, dear, dear, dear))


def test_the_same_reservation_again_changes_nothing(books):
    run = books.reserve([release()], spares=1)
    head = books.ledger.head(books.population)
    books.reserve([release()], spares=1, run=run)
    assert books.ledger.head(books.population) == head
    for plan, spares in (([release(sigma=21.0)], 1), ([release()], 0), ([release(), release(2)], 1)):
        with pytest.raises(PrivacyError, match="another plan"):
            books.reserve(plan, spares, run=run)


def test_without_a_budget_nothing_is_reserved(url):
    books = open_books(url, epsilon=None)
    with pytest.raises(BudgetMissing):
        books.reserve([release()])


@pytest.mark.parametrize("options", [{"relation": "replace_one"}, {"unit": "record"}])
def test_another_unit_or_relation_is_refused_not_converted(books, options):
    with pytest.raises(PrivacyError, match="promises privacy for one client under add_or_remove_one"):
        books.reserve([release()], **options)
    assert books.spent() == (0, 0)


def test_test_noise_is_refused_on_a_ledger_for_people(books, tmp_path):
    with pytest.raises(PrivacyError, match="test noise"):
        books.reserve([release()], secure=False)
    tests = create_ledger(f"sqlite:///{tmp_path / 'tests.sqlite'}", test=True)
    tests.register("p")
    tests.set_budget("p", 2, 1e-10)
    tests.reserve("p", "run", [release()], 0, secure=False)
    assert tests.has_reservation("run")


@pytest.mark.parametrize(
    ("plan", "spares"),
    [
        ([], 0),
        ([release(), release()], 0),
        ([release()], -1),
        ([release()], 1.5),
        ([release(delta=1.0)], 0),
        ([release(name="x" * 129)], 0),
    ],
)
def test_malformed_plans_are_refused(books, plan, spares):
    with pytest.raises(ConfigError):
        books.reserve(plan, spares)


@pytest.mark.parametrize("spares", [0, 1])
def test_the_budget_is_exact_at_the_edge(url, monkeypatch, spares):
    """A plan whose price is rho_max to the last bit fits; one unit in the last place less does not hold it."""
    plan = [release(round, 40.0) for round in range(1, 5 - spares)]
    price = 4 * plan[0].rho  # exact: a power of two
    for rho_max, enough in ((price, True), (math.nextafter(price, 0), False)):
        budget = Budget(2, 1e-10, rho_max, 9e-11, 1e-11)
        monkeypatch.setattr(ledger_books, "make_budget", lambda *_, budget=budget, **__: budget)
        books = open_books(url)
        if not enough:
            with pytest.raises(BudgetExceeded):
                books.reserve(plan, spares)
            assert books.spent() == (0, 0)
            continue
        books.reserve(plan, spares)
        assert books.spent() == (0, price) and books.ledger.balance(books.population).rho_left == 0
        with pytest.raises(BudgetExceeded, match="Nothing is left"):
            books.reserve([release(sigma=1e9)])  # rho = 5e-19


def test_a_refusal_names_the_numbers_and_what_would_fit(books):
    books.reserve([release(sigma=5.0)])
    balance = books.ledger.balance(books.population)
    with pytest.raises(BudgetExceeded) as caught:
        books.reserve([release(sigma=4.0)], spares=1)
    text = str(caught.value)
    for words in ("rho = 0.0625", f"{balance.rho_left:.6g} left of {balance.budget.rho_max:.6g}", "1 spare"):
        assert words in text
    factor = float(text.split("Multiply the noise by ")[1].split(",")[0])
    needed = float(text.split("raise the budget to epsilon = ")[1].split()[0])
    other = open_books(books.url)
    other.reserve([release(sigma=5.0)])
    other.reserve([release(sigma=4.0 * factor)], spares=1)
    books.ledger.raise_budget(books.population, needed, 1e-10)
    books.reserve([release(sigma=4.0)], spares=1)
    assert balance.budget.epsilon_of(books.spent()[1]) <= needed


def test_deltas_of_thresholds_have_their_own_filter(books):
    extra = books.ledger.balance(books.population).budget.delta_extra
    books.reserve([release(delta=extra / 2)])
    with pytest.raises(BudgetExceeded, match="delta = 7.5e-12 .* has 5e-12 left of 1e-11"):
        books.reserve([release(delta=extra * 0.75)])
    books.reserve([release(delta=extra / 2)])
    balance = books.ledger.verify(books.population)
    assert balance.delta_reserved == extra and balance.delta_left == 0
