"""A ledger on a PostgreSQL server: one connection that is kept, and few answers that are waited for."""

import os
import signal
import time
from collections import Counter
from traceback import format_exception

import numpy as np
import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import SQLAlchemyError

from fedcore.errors import LedgerError
from fedcore.privacy.ledger import database, tables
from fedcore.privacy.ledger.chain_writer import ChainWriter
from fedcore.privacy.ledger.ledger import open_ledger
from tests.postgres import NoPostgres, postgres_server
from tests.privacy.conftest import open_books, release

pytestmark = pytest.mark.slow
psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
PORT = 28431


@pytest.fixture(scope="module")
def server():
    try:
        with postgres_server(PORT) as address:
            yield f"postgresql+psycopg://owner@{address}"
    except NoPostgres as why:
        pytest.skip(str(why))


@pytest.fixture
def books(server):
    return open_books(server)


def session(ledger) -> int:
    """The number of the server's process that serves this ledger's connection."""
    with ledger._transaction(write=False) as connection:
        return connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()


def test_one_connection_serves_all_transactions(books):
    first = session(books.ledger)
    run = books.reserve([release(1)])
    lease = books.ledger.acquire(run)
    books.ledger.renew(lease)
    assert session(books.ledger) == first


def test_a_transaction_that_fails_closes_its_connection(books):
    first = session(books.ledger)
    with pytest.raises(LedgerError):
        books.ledger.balance("unknown")
    assert session(books.ledger) != first
    books.ledger.verify(books.population)


def test_a_connection_that_the_server_has_closed_is_replaced(books, server, monkeypatch):
    first, other = session(books.ledger), open_books(server)
    with other.ledger._transaction(write=False) as connection:
        connection.exec_driver_sql(f"SELECT pg_terminate_backend({first})")
    monkeypatch.setattr(database, "IDLE_SECONDS", 0.1)
    time.sleep(0.2)
    assert session(books.ledger) != first
    books.ledger.verify(books.population)


def test_a_connection_that_breaks_at_the_commit_is_replaced_at_once(books, server):
    first, other, before = session(books.ledger), open_books(server), books.ledger.head(books.population)
    with pytest.raises(LedgerError, match="cannot be used"), books.ledger._writing(books.population) as writer:
        writer.append("charge", None, {})
        with other.ledger._transaction(write=False) as connection:
            connection.exec_driver_sql(f"SELECT pg_terminate_backend({first}, 5000)")
    assert books.ledger.head(books.population) == before and session(books.ledger) != first
    books.ledger.verify(books.population)


def test_a_forked_process_leaves_the_connection_of_its_parent_alone(books):
    first = session(books.ledger)
    if (child := os.fork()) == 0:
        os._exit(0 if session(books.ledger) != first and books.ledger.verify(books.population) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert session(books.ledger) == first


def test_what_fails_when_it_is_committed_leaves_nothing(books):
    """Writes are sent without waiting, so that the last of them may fail only at the end."""
    run = books.reserve([release(1)])
    lease, before = books.ledger.acquire(run), books.ledger.head(books.population)
    for last in (True, False):
        with pytest.raises(database.Conflict), books.ledger._writing_run(run) as writer:
            writer.append("charge", run, {})
            twice = {"only": 1, "id": "x", "schema": 1, "test": False}
            writer.connection.execute(tables.ledger_table.insert().values(twice))
            if not last:
                writer.attempts(run, 1, "sums-1")
    assert books.ledger.head(books.population) == before
    books.ledger.verify(books.population)
    books.ledger.publish(lease, books.ledger.charge(lease, release(1)), np.zeros(3, np.int64))


def test_an_error_in_the_middle_leaves_nothing(books):
    before = books.ledger.head(books.population)
    with pytest.raises(ZeroDivisionError), books.ledger._writing(books.population) as writer:
        assert isinstance(writer, ChainWriter)
        writer.append("charge", None, {})
        _ = 1 / 0
    assert books.ledger.head(books.population) == before
    books.ledger.verify(books.population)


def test_a_release_waits_for_few_answers(books, monkeypatch):
    """A transaction waits for each statement that reads, and once for those that write, with the commit."""
    run = books.reserve([release(1)])
    lease, reads, waits = books.ledger.acquire(run), Counter(), []
    for name in ("sync", "__exit__"):
        wait = getattr(psycopg.Pipeline, name)
        monkeypatch.setattr(psycopg.Pipeline, name, lambda *given, wait=wait: (waits.append(1), wait(*given))[1])

    @event.listens_for(books.ledger._engine, "after_cursor_execute")
    def executed(connection, cursor, statement, given, context, many):
        reads[statement.split()[0]] += 1

    charge = books.ledger.charge(lease, release(1))
    assert reads["SELECT"] == 6, "ledger, account, last record, run, published value, attempts"
    assert len(waits) == 7, "each read; what is written, with the commit"
    books.ledger.publish(lease, charge, np.zeros(3, np.int64))
    assert (reads["SELECT"], len(waits)) == (12, 14)


class Stopped(BaseException):
    """What a handler of a signal raises."""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Stopped])
def test_an_interrupt_is_not_hidden_while_a_release_waits(books, server, kind):
    """Else publishing would try again for minutes."""
    lease = books.ledger.acquire(books.reserve([release(1)]))
    charge = books.ledger.charge(lease, release(1))

    def stop(number, frame):
        raise kind

    earlier = signal.signal(signal.SIGALRM, stop)
    try:
        with open_ledger(server)._writing(books.population), pytest.raises(kind):
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            books.ledger.publish(lease, charge, np.zeros(3, np.int64))
    finally:
        signal.signal(signal.SIGALRM, earlier)
    assert books.ledger.published(lease.run_id, "sums-1") is None
    books.ledger.publish(lease, charge, np.ones(3, np.int64))
    assert books.ledger.published(lease.run_id, "sums-1").tolist() == [1, 1, 1]
    books.ledger.verify(books.population)


def test_what_the_server_has_rolled_back_is_not_reported_as_committed(books):
    """An error that a block catches ends the transaction all the same."""
    before = books.ledger.head(books.population)
    with pytest.raises(LedgerError), books.ledger._writing(books.population) as writer:
        writer.append("charge", None, {})
        with pytest.raises(SQLAlchemyError) as inside:
            writer.connection.execute(text("SELECT unknown + :value"), {"value": 424242})
    assert "424242" not in str(inside.value)
    assert books.ledger.head(books.population) == before


def test_no_statement_is_prepared_for_a_session(books):
    """A connection pooler may serve the next transaction by another session."""
    for _ in range(10):
        books.ledger.balance(books.population)
    with books.ledger._transaction(write=False) as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar_one() == 0


@pytest.mark.parametrize("fault", ["in a statement", "in the block"])
def test_neither_errors_nor_logs_hold_values(books, fault, caplog):
    secret = {
        "run_id": "run",
        "round": 1,
        "name": "sums-1",
        "attempt": 0,
        "shape": "424242",
        "data": None,
        "sha256": "",
    }
    with pytest.raises((LedgerError, ZeroDivisionError)) as raised, books.ledger._writing(books.population) as writer:
        writer.connection.execute(tables.published.insert().values(secret))
        assert fault == "in a statement" or 1 / 0
    assert "424242" not in caplog.text + "".join(format_exception(raised.value))
