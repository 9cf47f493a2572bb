"""The ledger in peace: budgets, reservations, leases, charges, publications."""

import math
import sqlite3

import numpy as np
import pytest

from fedcore.errors import (
    BudgetExceeded,
    BudgetExists,
    BudgetMissing,
    ConfigError,
    LeaseLost,
    LedgerError,
    LedgerMissing,
    PrivacyError,
    RunBusy,
    RunError,
    SensitivityError,
    UnplannedRelease,
)
from fedcore.privacy import leases, ledger_books, ledger_schema
from fedcore.privacy.accounting import ZcdpBudget, epsilon_of
from fedcore.privacy.leases import Holder
from fedcore.privacy.ledger import create_ledger, default_ledger_url, open_ledger
from tests.privacy.conftest import open_books, release, total

VALUE = np.array([1, -2, 3])


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


@pytest.mark.parametrize("url", ["no url", "sqlite://", "sqlite:///:memory:", "postgresql+psycopg://me:***@host/name",
                                 "nosuchdatabase://host/name"])  # fmt: skip
def test_addresses_that_cannot_be_a_ledger_are_refused(url):
    for function in (create_ledger, open_ledger):
        with pytest.raises(LedgerError) as caught:
            function(url)
        assert caught.value.remedy


def test_the_password_is_hidden():
    parsed = ledger_schema.parse_url("postgresql+psycopg://me:secret@host/name")
    assert "secret" not in parsed.render_as_string()


def test_the_default_ledger_is_named_or_the_users_own(monkeypatch):
    monkeypatch.setenv("FEDCORE_LEDGER", "sqlite:////somewhere/x.sqlite")
    assert default_ledger_url() == "sqlite:////somewhere/x.sqlite"
    monkeypatch.delenv("FEDCORE_LEDGER")
    pytest.importorskip("platformdirs")
    assert default_ledger_url().startswith("sqlite:///") and "fedcore" in default_ledger_url()


def test_a_sqlite_ledger_is_durable(file_books):
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
    for call in (lambda: ledger.set_budget("nobody", 1, 1e-9), lambda: ledger.balance("nobody"),
                 lambda: ledger.raise_budget("nobody", 1, 1e-9), lambda: ledger.head("nobody"),
                 lambda: ledger.reserve("nobody", books.run(), [release()], 0, secure=True)):  # fmt: skip
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


@pytest.mark.parametrize(("plan", "spares"), [([], 0), ([release(), release()], 0), ([release()], -1),
                                              ([release()], 1.5), ([release(delta=1.0)], 0),
                                              ([release(name="x" * 129)], 0)])  # fmt: skip
def test_malformed_plans_are_refused(books, plan, spares):
    with pytest.raises(ConfigError):
        books.reserve(plan, spares)


@pytest.mark.parametrize("spares", [0, 1])
def test_the_budget_is_exact_at_the_edge(url, monkeypatch, spares):
    """A plan whose price is rho_max to the last bit fits; one unit in the last place less does not hold it."""
    plan = [release(round, 40.0) for round in range(1, 5 - spares)]
    price = 4 * plan[0].rho  # exact: a power of two
    for rho_max, enough in ((price, True), (math.nextafter(price, 0), False)):
        budget = ZcdpBudget(2, 1e-10, rho_max, 9e-11, 1e-11)
        monkeypatch.setattr(ledger_books, "zcdp_budget", lambda *_, budget=budget: budget)
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
    assert epsilon_of(books.spent()[1], balance.budget.delta_conv) <= needed


def test_deltas_of_thresholds_have_their_own_filter(books):
    extra = books.ledger.balance(books.population).budget.delta_extra
    books.reserve([release(delta=extra / 2)])
    with pytest.raises(BudgetExceeded, match="delta = 7.5e-12 .* has 5e-12 left of 1e-11"):
        books.reserve([release(delta=extra * 0.75)])
    books.reserve([release(delta=extra / 2)])
    balance = books.ledger.verify(books.population)
    assert balance.delta_reserved == extra and balance.delta_left == 0


# --- leases ---------------------------------------------------------------------------------------------------------


def test_a_live_holder_keeps_the_run(books):
    run = books.reserve([release()])
    first = books.ledger.acquire(run)
    with pytest.raises(RunBusy, match="working on run"):
        books.ledger.acquire(run)
    second = books.ledger.acquire(run, take_over=True)
    assert second.token == first.token + 1
    books.ledger.release(first)  # stale: changes nothing
    books.ledger.renew(second)
    books.ledger.release(second)
    assert books.ledger.acquire(run).token == second.token + 1


def test_a_stale_token_can_neither_charge_nor_publish_nor_finish(books):
    ledger, planned = books.ledger, release()
    run = books.reserve([planned], spares=1)
    stale = ledger.acquire(run)
    charge = ledger.charge(stale, planned)
    fresh = ledger.acquire(run, take_over=True)
    for call in (lambda: ledger.charge(stale, planned), lambda: ledger.publish(stale, charge, VALUE),
                 lambda: ledger.finish(stale, "finished"), lambda: ledger.renew(stale)):  # fmt: skip
        with pytest.raises(LeaseLost):
            call()
    assert ledger.published(run, planned.name) is None
    again = ledger.charge(fresh, planned)
    assert again.attempt == 1
    with pytest.raises(LeaseLost, match="given up"):  # the old charge, even in the hands of the new holder
        ledger.publish(fresh, charge, VALUE)
    ledger.publish(fresh, again, VALUE)
    assert books.spent() == (total(planned, planned), 0)


def test_who_counts_as_alive(monkeypatch):
    me = leases.this_process()
    assert me.alive(expired=True)
    assert not Holder(me.host, me.pid, me.started - 100).alive(expired=False)  # the process id was used again
    assert not Holder(me.host, 2**22 + 5, me.started).alive(expired=False)
    elsewhere = Holder("elsewhere", me.pid, me.started)
    assert elsewhere.alive(expired=False) and not elsewhere.alive(expired=True)


def test_a_lease_of_another_host_expires(url, monkeypatch):
    books, now = open_books(url), [1000.0]
    ledger = open_ledger(url, clock=lambda: now[0])
    run = books.reserve([release()])
    with monkeypatch.context() as patch:
        patch.setattr("fedcore.privacy.ledger.this_process", lambda: Holder("elsewhere", 1, 0.0))
        lease = ledger.acquire(run, ttl=60)
    now[0] += 59
    with pytest.raises(RunBusy, match="elsewhere"):
        ledger.acquire(run)
    ledger.renew(lease, ttl=60)
    now[0] += 59
    with pytest.raises(RunBusy):
        ledger.acquire(run)
    now[0] += 2
    assert ledger.acquire(run).token == lease.token + 1


def test_a_run_without_a_reservation_cannot_be_acquired(books):
    with pytest.raises(LedgerError, match="knows no run"):
        books.ledger.acquire("nothing")
    assert books.ledger.run_status("nothing") is None and not books.ledger.has_reservation("nothing")


# --- charges and publications ---------------------------------------------------------------------------------------


def test_a_release_is_charged_then_published(books):
    ledger, first, second = books.ledger, release(1), release(2, 15.0)
    run = books.reserve([first, second], spares=1)
    lease = ledger.acquire(run)
    charge = ledger.charge(lease, first)
    assert (charge.attempt, charge.stored) == (0, None)
    assert books.spent() == (total(first), total(second, second))
    assert ledger.published(run, first.name) is None
    assert np.array_equal(ledger.publish(lease, charge, VALUE), VALUE)
    stored = ledger.published(run, first.name)
    assert np.array_equal(stored, VALUE) and stored.dtype == np.int64 and stored.flags.writeable
    assert books.spent() == (total(first), total(second, second))
    ledger.finish(lease, "finished")
    assert books.spent() == (total(first), 0)
    assert books.ledger.balance(books.population).releases == {"published": 1, "returned": 1}
    assert ledger.run_status(run) == "finished"


def test_a_published_release_is_free_and_never_replaced(books):
    ledger, planned = books.ledger, release()
    run = books.reserve([planned], spares=1)
    lease = ledger.acquire(run)
    charge = ledger.charge(lease, planned)
    ledger.publish(lease, charge, VALUE)
    again = ledger.charge(lease, planned)
    assert np.array_equal(again.stored, VALUE)
    assert np.array_equal(ledger.publish(lease, charge, VALUE + 1), VALUE)
    assert np.array_equal(ledger.published(run, planned.name), VALUE)
    assert books.spent() == (total(planned), total(planned))


@pytest.mark.parametrize("change", [{"sigma": 19.0}, {"shape": (4,)}, {"name": "other"}, {"round": 9}])
def test_a_release_that_differs_from_the_plan_is_refused(books, change):
    run = books.reserve([release()])
    lease = books.ledger.acquire(run)
    with pytest.raises(UnplannedRelease):
        books.ledger.charge(lease, release(**{"name": "sums-1", **change}))
    assert books.spent()[0] == 0


def test_a_ninth_round_with_eight_reserved_is_refused(books):
    run = books.reserve([release(round, 40.0) for round in range(1, 9)])
    lease = books.ledger.acquire(run)
    for round in range(1, 9):
        books.ledger.publish(lease, books.ledger.charge(lease, release(round, 40.0)), VALUE)
    with pytest.raises(UnplannedRelease, match="round 9"):
        books.ledger.charge(lease, release(9, 40.0))


@pytest.mark.parametrize("value", [VALUE.astype(float), VALUE.astype(np.int32), np.zeros(4, np.int64), [1, 2, 3]])
def test_another_shape_or_dtype_is_not_published(books, value):
    run = books.reserve([release()])
    lease = books.ledger.acquire(run)
    with pytest.raises(SensitivityError):
        books.ledger.publish(lease, books.ledger.charge(lease, release()), value)
    assert books.ledger.published(run, "sums-1") is None


def test_arrays_come_back_bit_for_bit(books):
    shapes = {"matrix": (3, 4), "scalar": (), "empty": (0, 5)}
    plan = [release(1, 40.0, name=name, shape=shape) for name, shape in shapes.items()]
    run = books.reserve(plan)
    lease = books.ledger.acquire(run)
    for planned in plan:
        value = np.array(np.arange(planned.cells).reshape(planned.shape) - 2**62, order="F")
        books.ledger.publish(lease, books.ledger.charge(lease, planned), value)
        stored = books.ledger.published(run, planned.name)
        assert stored.shape == planned.shape and np.array_equal(stored, value)
    books.spent()


def test_redraws_are_paid_by_spares_until_none_is_left(books):
    ledger, cheap, dear = books.ledger, release(1, 20.0), release(2, 10.0)
    run = books.reserve([cheap, dear], spares=1)
    lease = ledger.acquire(run)
    assert ledger.charge(lease, cheap).attempt == 0  # and its value is lost
    assert ledger.charge(lease, cheap).attempt == 1
    assert books.spent() == (total(cheap, cheap), total(dear))
    assert ledger.balance(books.population).releases == {"charged": 1, "forfeited": 1, "reserved": 1}
    with pytest.raises(BudgetExceeded, match="spare releases are used up"):
        ledger.charge(lease, cheap)
    ledger.finish(lease, "budget exhausted")
    assert books.spent() == (total(cheap, cheap), 0)
    assert ledger.balance(books.population).releases == {"forfeited": 2, "returned": 1}


def test_finishing_returns_only_what_was_never_charged(books):
    ledger = books.ledger
    plan = [release(1), release(2), release(3)]
    run = books.reserve(plan, spares=2)
    lease = ledger.acquire(run)
    ledger.publish(lease, ledger.charge(lease, plan[0]), VALUE)
    ledger.charge(lease, plan[1])
    ledger.finish(lease, "abandoned")
    assert books.spent() == (total(plan[0], plan[1]), 0)
    assert ledger.balance(books.population).releases == {"forfeited": 1, "published": 1, "returned": 1}


def test_a_run_that_has_ended_stays_as_it_is(books):
    """A process that died between the ledger's end of a run and the run store's may end it again, and nothing else."""
    ledger, plan = books.ledger, [release(1), release(2)]
    run = books.reserve(plan)
    lease = ledger.acquire(run)
    ledger.publish(lease, ledger.charge(lease, plan[0]), VALUE)
    ledger.finish(lease, "finished")
    with pytest.raises(LeaseLost):
        ledger.charge(lease, plan[1])
    books.reserve(plan, run=run)
    lease = ledger.acquire(run)
    assert np.array_equal(ledger.charge(lease, plan[0]).stored, VALUE)
    with pytest.raises(RunError, match="has ended"):
        ledger.charge(lease, plan[1])
    ledger.finish(lease, "abandoned")
    assert ledger.run_status(run) == "finished" and books.spent() == (total(plan[0]), 0)


def test_an_exhausted_run_stays_exhausted(books):
    run = books.reserve([release(1), release(2)])
    lease = books.ledger.acquire(run)
    books.ledger.finish(lease, "budget exhausted")
    with pytest.raises(BudgetExceeded, match="budget exhausted"):
        books.ledger.charge(books.ledger.acquire(run), release(1))


def test_only_known_endings(books):
    lease = books.ledger.acquire(books.reserve([release()]))
    with pytest.raises(ConfigError, match="a run ends as"):
        books.ledger.finish(lease, "refunded")


def test_populations_do_not_share_budgets(books):
    other = open_books(books.url)
    other.reserve([release()])
    assert books.spent() == (0, 0) and other.spent()[1] > 0
    assert books.ledger.head(books.population) != other.ledger.head(other.population)


def test_no_record_depends_on_the_published_value_but_by_its_digest(books):
    ledger, planned = books.ledger, release()
    run = books.reserve([planned])
    lease = ledger.acquire(run)
    ledger.publish(lease, ledger.charge(lease, planned), np.array([987654321, 5, 5]))
    history = ledger.history(books.population)
    assert [row["kind"] for row in history] == ["register", "budget set", "reserve", "acquire", "charge", "publish"]
    assert "987654321" not in str(history)
    assert history[-1].keys() == {"seq", "kind", "run_id", "hash", "at", "round", "name", "attempt", "digest"}
