"""Checkpoints: a reservation replays from the newest one, and notices edits of everything that is still open."""

import json
import sqlite3
from fractions import Fraction

import numpy as np
import pytest
from sqlalchemy import event

from fedcore.errors import LedgerTampered
from fedcore.privacy.accounting import exact_sum
from fedcore.privacy.ledger import chain, replay, reservations
from fedcore.privacy.ledger.chain import link
from fedcore.privacy.ledger.checkpoint import account_at, state_of
from tests.privacy.conftest import release, total

VALUE = np.array([1, -2, 3])


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(reservations, "CHECKPOINT_AFTER", 12)


def finished(books, releases=3, lost=0):
    """A run that published its releases and paid for some of them twice."""
    plan = [release(round, 200.0) for round in range(1, releases + 1)]
    run = books.reserve(plan, spares=lost)
    lease = books.ledger.acquire(run)
    for planned in plan[:lost]:
        books.ledger.charge(lease, planned)
    for planned in plan:
        books.ledger.publish(lease, books.ledger.charge(lease, planned), VALUE)
    books.ledger.finish(lease, "finished")
    return run


def opened(books):
    """A run with one release of each state."""
    plan = [release(round, 150.0) for round in range(1, 5)]
    run = books.reserve(plan, spares=3)
    lease = books.ledger.acquire(run)
    books.ledger.publish(lease, books.ledger.charge(lease, plan[0]), VALUE)
    for planned in (plan[1], plan[1], plan[2]):
        books.ledger.charge(lease, planned)
    books.ledger.release(lease)
    return run


def kinds(books):
    return [row["kind"] for row in books.ledger.history(books.population)]


def edit(books, *statements):
    with sqlite3.connect(books.url.removeprefix("sqlite:///")) as connection:
        for statement in statements:
            assert connection.execute(statement).rowcount > 0, statement
    connection.close()


def test_a_checkpoint_is_what_the_records_before_it_add_up_to(books):
    open_run = opened(books)
    for _ in range(6):
        finished(books, lost=1)
        assert books.ledger.verify(books.population) == books.ledger.balance(books.population)
    assert kinds(books).count("checkpoint") >= 3
    whole = books.ledger.account(books.population)
    assert whole.checkpoint == max(i for i, kind in enumerate(kinds(books), 1) if kind == "checkpoint")
    restored = account_at(books.population, json.loads(chain.canonical(state_of(whole))))
    assert list(restored.runs) == [open_run] and restored.runs[open_run] == whole.runs[open_run]
    assert restored.totals() == whole.totals() and restored.balance() == whole.balance()
    assert chain.canonical(state_of(restored)) == chain.canonical(state_of(whole))
    (_, _, ended), *_ = restored.ended.sums.pieces(1)
    assert ended.rho_spent == exact_sum([release(1, 200.0).rho] * 24) > Fraction(0)


def test_a_run_that_was_open_at_a_checkpoint_goes_on(books):
    run = opened(books)
    finished(books)
    finished(books)
    assert "checkpoint" in kinds(books)
    lease = books.ledger.acquire(run, take_over=True)
    last = release(4, 150.0)
    books.ledger.publish(lease, books.ledger.charge(lease, last), VALUE)
    books.ledger.finish(lease, "finished")
    lease = books.ledger.acquire(run)  # an ended one may be looked at again, also after the next checkpoint
    finished(books)
    finished(books)
    books.ledger.finish(books.ledger.acquire(run, take_over=True), "finished")
    finished(books)
    spent = [release(1, 150.0), *[release(2, 150.0)] * 2, release(3, 150.0), last] + [release(1, 200.0)] * 15
    assert books.spent() == (total(*spent), 0)


@pytest.mark.slow
def test_a_reservation_reads_no_more_after_a_hundred_runs_than_after_ten(books, monkeypatch):
    """Records and rows that are fetched while the account is locked."""
    fetched = []

    def count(connection, cursor, statement, parameters, context, executemany):
        fetched.append(statement.split()[0])

    real = replay.Record.expected_hash
    hashed = []
    monkeypatch.setattr(replay.Record, "expected_hash", lambda *args: hashed.append(1) or real(*args))
    event.listen(books.ledger._engine, "before_cursor_execute", count)

    def cost():
        fetched.clear(), hashed.clear()
        books.reserve([release(1, 2000.0)])
        return len(fetched), len(hashed)

    few = []
    for _ in range(10):
        finished(books)
        few.append(cost())
    for _ in range(40):
        finished(books, releases=1)
    many = []
    for _ in range(10):
        finished(books)
        many.append(cost())
    most = [max(numbers) for numbers in zip(*few, strict=True)]
    assert [max(numbers) for numbers in zip(*many, strict=True)] <= [most[0] + 2, most[1] + 12]


EDITS = {  # of what is still open, after a checkpoint
    "a publication given back": "UPDATE fedcore_releases SET state = 'returned' "
    "WHERE state = 'published' AND run_id = '{open}'",
    "a price lowered": "UPDATE fedcore_releases SET rho = 0 WHERE state = 'published' AND run_id = '{open}'",
    "a release removed": "DELETE FROM fedcore_releases WHERE state = 'reserved' AND run_id = '{open}'",
    "spares added": "UPDATE fedcore_runs SET spares = 9 WHERE run_id = '{open}'",
    "an open run closed": "UPDATE fedcore_runs SET status = 'finished' WHERE run_id = '{open}'",
    "a closed run opened": "UPDATE fedcore_runs SET status = 'open' WHERE run_id = '{ended}'",
    "a published value removed": "DELETE FROM fedcore_published WHERE run_id = '{open}'",
    "the budget raised": "UPDATE fedcore_accounts SET rho_max = 9",
    "another reason": "UPDATE fedcore_accounts SET public_schema = 'a good one'",
    "the checkpoint edited": "UPDATE fedcore_records SET payload = replace(payload, '\"rho\":[', '\"rho\":[1') "
    "WHERE kind = 'checkpoint'",
    "the checkpoint removed": "DELETE FROM fedcore_records WHERE kind = 'checkpoint'",
}


@pytest.mark.parametrize("edited", EDITS)
def test_edits_of_what_is_open_are_noticed_after_a_checkpoint(file_books, edited):
    ended, run = finished(file_books), opened(file_books)
    finished(file_books)
    assert "checkpoint" in kinds(file_books)
    edit(file_books, EDITS[edited].format(open=run, ended=ended))
    with pytest.raises(LedgerTampered):
        file_books.reserve([release(1, 2000.0)])
    with pytest.raises(LedgerTampered):
        file_books.ledger.verify(file_books.population)


def test_edits_of_what_ended_before_the_checkpoint_are_noticed_by_verify(file_books):
    ended = finished(file_books)
    finished(file_books)
    finished(file_books)
    edit(file_books, f"UPDATE fedcore_releases SET rho = 0 WHERE run_id = '{ended}'")
    file_books.reserve([release(1, 2000.0)])
    with pytest.raises(LedgerTampered, match="release 'sums-1'"):
        file_books.ledger.verify(file_books.population)


def test_a_forged_checkpoint_is_noticed_by_verify(file_books):
    """Its hashes are right, as somebody who can write the database can make them; what it says is not."""
    finished(file_books)
    ledger, population = file_books.ledger, file_books.population
    account = ledger.account(population)
    state = {**state_of(account), "rho": [0, 1]}
    forged = link(ledger.id, population, account.seq + 1, "checkpoint", None, {"at": 0, "state": state}, account.hash)
    edit(
        file_books,
        f"INSERT INTO fedcore_records VALUES ('{population}', {forged.seq}, 'checkpoint', NULL, '{forged.payload}', "
        f"'{forged.prev_hash}', '{forged.hash}')",
        f"UPDATE fedcore_accounts SET seq = {forged.seq}, hash = '{forged.hash}'",
    )
    with pytest.raises(LedgerTampered, match="not what the records before it add up to"):
        ledger.verify(population)


def test_records_before_a_checkpoint_cannot_be_left_out(file_books):
    finished(file_books)
    finished(file_books)
    finished(file_books)
    first = kinds(file_books).index("checkpoint") + 1
    edit(file_books, f"DELETE FROM fedcore_records WHERE seq < {first}")
    with pytest.raises(LedgerTampered, match="record 1 should stand here"):
        file_books.ledger.verify(file_books.population)
