"""A ledger on a PostgreSQL server: one connection that is kept, and few answers that are waited for."""

import os
import time
from collections import Counter

import numpy as np
import pytest
from sqlalchemy import event

from fedcore.errors import LedgerError
from fedcore.privacy.ledger import database, tables
from fedcore.privacy.ledger.chain_writer import ChainWriter
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
    with pytest.raises(LedgerError):
        books.ledger.balance("unknown")
    assert session(books.ledger) == first


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
    lease, reads, exits = books.ledger.acquire(run), Counter(), []
    leave = psycopg.Pipeline.__exit__
    monkeypatch.setattr(psycopg.Pipeline, "__exit__", lambda *given: (exits.append(1), leave(*given))[1])

    @event.listens_for(books.ledger._engine, "after_cursor_execute")
    def executed(connection, cursor, statement, given, context, many):
        reads[statement.split()[0]] += 1

    charge = books.ledger.charge(lease, release(1))
    assert reads["SELECT"] == 6, "ledger, account, last record, run, published value, attempts"
    assert len(exits) == 2, "the first read, with what begins the transaction; what is written, with the commit"
    books.ledger.publish(lease, charge, np.zeros(3, np.int64))
    assert (reads["SELECT"], len(exits)) == (12, 4)
