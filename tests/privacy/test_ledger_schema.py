"""Schema 2 of the ledger: what a new ledger is, and what a newer version wrote is refused."""

import os
import sqlite3
import stat
from contextlib import closing

import pytest

from fedcore.errors import LedgerError, LedgerTampered
from fedcore.privacy.ledger.chain import link
from tests.privacy.conftest import open_books, release

FILLED = {"fedcore_accounts": ["currency", "public_schema", "mode", "shares"]}
FILLED["fedcore_runs"] = ["purpose", "noise", "cohorts", "share"]


def sql(path, query):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def test_a_new_ledger_and_its_log_are_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        books = open_books(f"sqlite:///{tmp_path / 'made' / 'ledger.sqlite'}")
        books.reserve([release()])
        with closing(sqlite3.connect(tmp_path / "made" / "ledger.sqlite")) as held:  # keeps the log there
            held.execute("SELECT * FROM fedcore_ledger").fetchall()
            books.reserve([release()])
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "made").iterdir()}
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700
    assert modes == {"ledger.sqlite": 0o600, "ledger.sqlite-wal": 0o600, "ledger.sqlite-shm": 0o600}


# --- what a newer version wrote -------------------------------------------------------------------------------------


def newer_record(books, kind, **payload):
    """A record of the right hash, as another version might write it."""
    path = books.url.removeprefix("sqlite:///")
    seq, before = sql(path, "SELECT seq, hash FROM fedcore_accounts")[0]
    record = link(books.ledger.id, books.population, seq + 1, kind, None, {"at": 0, **payload}, before)
    with sqlite3.connect(path) as connection:
        connection.execute(
            "INSERT INTO fedcore_records VALUES (?, ?, ?, ?, ?, ?, ?)",
            (books.population, record.seq, kind, None, record.payload, before, record.hash),
        )
        connection.execute("UPDATE fedcore_accounts SET seq = ?, hash = ?", (record.seq, record.hash))
    connection.close()


@pytest.mark.parametrize(
    ("kind", "payload", "named"),
    [("share", {}, "share"), ("public schema", {"reason": "a", "needs": ["shares", "moons"]}, "needs moons")],
)
def test_records_of_a_newer_version_are_said_to_be_so(file_books, kind, payload, named):
    newer_record(file_books, kind, **payload)
    for attempt in (
        lambda: file_books.ledger.verify(file_books.population),
        lambda: file_books.ledger.balance(file_books.population),
        lambda: file_books.reserve([release()]),
        lambda: file_books.ledger.raise_budget(file_books.population, 9, 1e-10),
    ):
        with pytest.raises(LedgerError, match=named) as told:
            attempt()
        assert not isinstance(told.value, LedgerTampered) and "a newer fedcore" in str(told.value)


@pytest.mark.parametrize("table", ["fedcore_accounts", "fedcore_runs"])
@pytest.mark.parametrize("which", range(4))
def test_columns_that_only_a_newer_version_fills(file_books, table, which):
    lease = file_books.ledger.acquire(file_books.reserve([release()]))
    name = FILLED[table][which]
    if name in ("public_schema", "shares", "share"):  # a newer version says in `needs` what it means by them
        return
    with sqlite3.connect(file_books.url.removeprefix("sqlite:///")) as connection:
        connection.execute(f"UPDATE {table} SET {name} = 'x'")
    connection.close()
    with pytest.raises(LedgerError, match=f"{name}.*a newer fedcore"):
        file_books.ledger.charge(lease, release())


def test_what_records_state(file_books):
    ledger, population = file_books.ledger, file_books.population
    bound = {"manifest": "a" * 64, "version": 1, "run": "b" * 64}
    run = file_books.reserve([release()], bound=bound)
    ledger.finish(ledger.acquire(run), "finished", head="c" * 64)
    history = {row["kind"]: row for row in ledger.history(population)}
    assert history["budget set"]["currency"] == "gdp" and history["budget set"]["public_schema"] is None
    added = ("needs", "noise", "purpose", "bound")
    assert [history["reserve"][name] for name in added] == [[], "rounded gaussian 1", "training", bound]
    assert history["finish"]["head"] == "c" * 64
    file_books.reserve([release()], run=run, bound={**bound, "run": "d" * 64})  # on a copy: the same plan
    assert len([row for row in ledger.history(population) if row["kind"] == "reserve"]) == 1
    ledger.verify(population)
