"""What runs do with the ledger in peace: leases, charges, publications, endings."""

import numpy as np
import pytest

from fedcore.errors import (
    BudgetExceeded,
    ConfigError,
    LeaseLost,
    LedgerError,
    RunBusy,
    RunError,
    SensitivityError,
    UnplannedRelease,
)
from fedcore.privacy.ledger.ledger import open_ledger
from fedcore.storage.process import Holder, this_process
from tests.privacy.conftest import open_books, release, total

VALUE = np.array([1, -2, 3])


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
    for call in (
        lambda: ledger.charge(stale, planned),
        lambda: ledger.publish(stale, charge, VALUE),
        lambda: ledger.finish(stale, "finished"),
        lambda: ledger.renew(stale),
    ):
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
    me = this_process()
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
        patch.setattr("fedcore.privacy.ledger.ledger.this_process", lambda: Holder("elsewhere", 1, 0.0))
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
