"""The value of a paid release is kept and stored, whatever the database does meanwhile; no draw goes unpaid."""

import itertools
import logging

import numpy as np
import pytest
from sqlalchemy.exc import OperationalError

from fedcore.errors import LeaseLost, LedgerError, LedgerTampered, SensitivityError
from fedcore.privacy.ledger import database, ledger
from fedcore.privacy.ledger.ledger import open_ledger
from tests.privacy import processes
from tests.privacy.conftest import open_books, release, total
from tests.privacy.test_ledger_faults import spawn
from tests.privacy.test_redraws import filled, optional

VALUE = np.array([1, -2, 3])
FIRST = release()


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """What happens in the pauses between attempts, one call after the other; then nothing."""
    planned = []

    def pause(seconds):
        if planned:
            planned.pop(0)()

    monkeypatch.setattr(database, "sleep", pause)
    return planned


def charged(books):
    lease = books.ledger.acquire(books.reserve([FIRST]))
    return lease, books.ledger.charge(lease, FIRST)


class Cut:
    """The connection breaks at the commit of a publication: before the database has it, or before the answer comes."""

    def __init__(self, books, committed, times=1):
        self.dialect, self.committed, self.left = books.ledger._engine.dialect, committed, times
        self.real = self.dialect.do_commit
        self.dialect.do_commit = self

    def __call__(self, connection):
        if not self.left:
            return self.real(connection)
        self.left -= 1
        if self.committed:
            self.real(connection)
        else:
            connection.rollback()
        raise OperationalError("COMMIT", None, RuntimeError("server closed the connection unexpectedly"))


@pytest.mark.parametrize("committed", [True, False])
def test_a_connection_that_breaks_at_the_commit_loses_nothing(books, committed, caplog):
    lease, charge = charged(books)
    Cut(books, committed)
    with caplog.at_level(logging.WARNING):
        assert np.array_equal(books.ledger.publish(lease, charge, VALUE), VALUE)
    assert "Trying again" in caplog.text
    assert books.spent() == (total(FIRST), 0)
    assert np.array_equal(books.ledger.published(lease.run_id, FIRST.name), VALUE)
    kinds = [row["kind"] for row in books.ledger.history(books.population)]
    assert kinds.count("publish") == 1 and "forfeit" not in kinds


@pytest.mark.parametrize("committed", [True, False])
def test_a_process_that_takes_over_in_between_draws_only_what_was_not_published(books, pauses, committed):
    lease, charge = charged(books)
    Cut(books, committed)
    found = []

    def second():
        other = open_ledger(books.url)
        again = other.charge(other.acquire(lease.run_id, take_over=True), FIRST)
        found.append(again.stored if committed else again.attempt)

    pauses.append(second)
    with pytest.raises(LeaseLost):
        books.ledger.publish(lease, charge, VALUE)
    assert np.array_equal(found[0], VALUE) if committed else found == [1]
    assert books.spent() == (total(*[FIRST] * (1 if committed else 2)), 0)


def test_one_value_is_tried_for_minutes_and_then_the_failure_is_told(books, monkeypatch):
    now, pauses = [0.0], []
    monkeypatch.setattr(database, "monotonic", lambda: now[0])

    def pause(seconds):
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(database, "sleep", pause)
    lease, charge = charged(books)
    cut = Cut(books, False, times=10**6)
    with pytest.raises(LedgerError, match="cannot be used"):
        books.ledger.publish(lease, charge, VALUE)
    assert 590 < sum(pauses) <= ledger.PUBLISH_SECONDS and max(pauses) == database.LONGEST_PAUSE
    cut.left = 0
    assert books.spent() == (total(FIRST), 0)
    assert np.array_equal(books.ledger.publish(lease, charge, VALUE), VALUE)  # nobody has drawn meanwhile


def test_what_is_wrong_in_the_ledger_is_not_tried_again(books, monkeypatch):
    lease, charge = charged(books)
    tries = []

    def tampered(*_):
        tries.append(1)
        raise LedgerTampered("edited.")

    monkeypatch.setattr(ledger.Ledger, "_stored", tampered)
    with pytest.raises(LedgerTampered):
        books.ledger.publish(lease, charge, VALUE)
    assert tries == [1]


@pytest.mark.parametrize(
    ("of_database", "error"), [(True, LedgerError), (False, LedgerError), (False, LedgerTampered), (False, LeaseLost)]
)
def test_only_failures_of_the_database_are_tried_again(monkeypatch, of_database, error):
    clock, tries, failure = itertools.count(), [], error("it went wrong.")
    monkeypatch.setattr(database, "monotonic", lambda: next(clock))
    if of_database:
        monkeypatch.setattr(failure, "of_database", True)

    def work():
        tries.append(1)
        raise failure

    with pytest.raises(error):
        database.persist(work, 9.0)
    assert (len(tries) > 1) == of_database


@pytest.mark.slow
@pytest.mark.parametrize("way", ["spare", "extension", "given up"])
@pytest.mark.parametrize("when", ["forfeit", "give up", "extend", "charge", "charged", "publish", "published"])
def test_a_process_killed_while_it_pays_again_leaves_what_was_paid(url, way, when):
    """Every arrow of a second draw: nothing but whole transactions, and each draw that could have begun is paid."""
    books = open_books(url)
    plan = [FIRST, optional(2)]
    if way == "given up":
        run, lease = filled(books, *plan)
    else:
        run = books.reserve(plan, spares=int(way == "spare"))
        lease = books.ledger.acquire(run)
    books.ledger.charge(lease, FIRST)
    if (when, way) in {(kind, other) for kind in ("give up", "extend") for other in ("spare",)} | {
        ("give up", "extension")
    }:
        pytest.skip("this way of paying writes no such record")
    child = spawn.Process(target=processes.pay_again_and_die, args=(books.url, run, FIRST, when))
    child.start()
    child.join(60)
    assert child.exitcode == -9
    paid = when in ("charged", "publish", "published")
    assert books.spent()[0] == total(*[FIRST] * (2 if paid else 1))
    lease = books.ledger.acquire(run)
    again = books.ledger.charge(lease, FIRST) if way != "given up" or when == "published" or not paid else None
    if when == "published":
        assert again.stored.tolist() == [7, 7, 7]
    elif again is not None:
        assert again.attempt == (2 if paid else 1)
    books.ledger.finish(lease, "finished")
    books.spent()


@pytest.mark.parametrize(
    "rows, delta, fits", [(3, 0.0, True), (2, 0.0, False), (2, 1e-12, True), (0, 1e-12, True), (4, 1e-12, False)]
)
def test_only_a_thresholding_step_publishes_fewer_rows_than_planned(books, rows, delta, fits):
    planned = release(shape=(3, 2), delta=delta)
    lease = books.ledger.acquire(books.reserve([planned]))
    charge, value = books.ledger.charge(lease, planned), np.arange(2 * rows).reshape(rows, 2)
    if not fits:
        with pytest.raises(SensitivityError):
            books.ledger.publish(lease, charge, value)
        return
    assert np.array_equal(books.ledger.publish(lease, charge, value), value)
    assert np.array_equal(books.ledger.published(lease.run_id, planned.name), value)
    books.ledger.verify(books.population)
    for wrong in (value[:, :1], value.ravel(), value.astype(float)):
        other = release(shape=(3, 2), delta=delta, name="other")
        lease = books.ledger.acquire(books.reserve([other]))
        with pytest.raises(SensitivityError):
            books.ledger.publish(lease, books.ledger.charge(lease, other), wrong)
