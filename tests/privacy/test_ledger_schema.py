"""Schema 2 of the ledger: schema 1 is read, migrated once and gone on with; what a newer one wrote is refused."""

import os
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from fedcore.errors import LedgerError, LedgerTampered
from fedcore.privacy.ledger import database as db
from fedcore.privacy.ledger import migration, tables
from fedcore.privacy.ledger.chain import link
from fedcore.privacy.ledger.ledger import create_ledger, open_ledger
from tests.privacy.conftest import SERVER, open_books, release
from tests.privacy.processes import die_before_statement

OLD = Path(__file__).parent.parent / "golden" / "schema1" / "ledger.sqlite"
ADDED = {"fedcore_accounts": ["currency", "public_schema", "mode", "shares"]}
ADDED["fedcore_runs"] = ["purpose", "noise", "cohorts", "share"]


@pytest.fixture
def old(tmp_path):
    """A ledger of schema 1: a budget, a finished run, and an open one with a lost charge."""
    path = tmp_path / "ledger.sqlite"
    shutil.copy(OLD, path)
    path.chmod(0o600)
    return path


def sql(path, query):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def columns(path, table):
    return [row[1] for row in sql(path, f"PRAGMA table_info({table})")]


def population_of(path):
    return sql(path, "SELECT population_id FROM fedcore_accounts")[0][0]


def state(path):
    """(schema, whether the columns and the index of schema 2 are there)."""
    there = {name in columns(path, table) for table, names in ADDED.items() for name in names}
    there.add(bool(sql(path, "SELECT 1 FROM sqlite_master WHERE name = 'ix_fedcore_runs_status'")))
    return sql(path, "SELECT schema FROM fedcore_ledger")[0][0], there


def url(path):
    return f"sqlite:///{path}"


# --- migration ------------------------------------------------------------------------------------------------------


def test_reading_leaves_schema_1_as_it_is(old):
    before, ledger, population = old.read_bytes(), open_ledger(url(old)), population_of(old)
    balance = ledger.verify(population)
    assert ledger.balance(population) == balance
    assert (balance.releases, balance.public_schema) == ({"charged": 1, "published": 5, "reserved": 2}, None)
    assert ledger.run_status("interrupted") == "open" and ledger.published("finished", "nothing") is None
    assert ledger.head(population).seq == len(ledger.history(population))
    assert old.read_bytes() == before and state(old) == (1, {False})
    assert not list(old.parent.glob("*.schema1"))


def test_the_first_write_migrates_and_keeps_a_copy(old):
    ledger, population = open_ledger(url(old)), population_of(old)
    before, head, rows = ledger.verify(population), ledger.head(population), sql(old, "SELECT * FROM fedcore_records")
    ledger.renew(ledger.acquire("interrupted"))
    assert ledger.schema == 2 and state(old) == (2, {True})
    assert ledger.verify(population) == ledger.balance(population) == before  # to the last bit
    assert ledger.contains(population, head) and sql(old, "SELECT * FROM fedcore_records")[: len(rows)] == rows
    copy = old.with_name("ledger.sqlite.schema1")
    assert state(copy) == (1, {False}) and sql(copy, "SELECT * FROM fedcore_records") == rows
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert {path.name for path in old.parent.iterdir() if not path.name.endswith(("-wal", "-shm"))} == {
        "ledger.sqlite",
        "ledger.sqlite.schema1",
    }


def test_a_second_migration_does_nothing(old):
    assert open_ledger(url(old)).migrate() == 1
    head, copy = open_ledger(url(old)).head(population_of(old)), old.with_name("ledger.sqlite.schema1")
    copy.unlink()
    assert open_ledger(url(old)).migrate() == 2
    assert open_ledger(url(old)).head(population_of(old)) == head and not copy.exists()


def test_a_ledger_that_was_open_before_goes_on(old):
    early, late = open_ledger(url(old)), open_ledger(url(old))
    late.migrate()
    assert early.schema == 1
    early.say_public_schema(population_of(old), "the words of a public dictionary")
    assert late.balance(population_of(old)).public_schema == "the words of a public dictionary"
    assert early.verify(population_of(old)) == late.balance(population_of(old)) and early.schema == 2


def test_a_migrated_ledger_equals_a_new_one(old, tmp_path):
    open_ledger(url(old)).migrate()
    create_ledger(url(tmp_path / "new.sqlite"))
    for table in tables.metadata.tables:
        facts = f"SELECT name, type, \"notnull\", dflt_value, pk FROM pragma_table_info('{table}')"
        assert sql(old, facts) == sql(tmp_path / "new.sqlite", facts), table


@pytest.mark.slow
def test_migration_killed_at_each_statement_leaves_one_schema_or_the_other(old):
    """A process is killed before each statement in turn; afterwards the ledger is whole, and can be migrated."""
    content, seen = old.read_bytes(), []
    for number in range(100):
        for path in old.parent.iterdir():
            path.unlink()
        old.write_bytes(content)
        child = os.fork()
        if child == 0:
            migrate_and_die(old, number)
        _, ended = os.waitpid(child, 0)
        schema, there = state(old)
        assert there == {schema == 2}
        seen.append(schema)
        ledger = open_ledger(url(old))
        balance = ledger.verify(population_of(old))
        assert balance.releases == {"charged": 1, "published": 5, "reserved": 2}
        ledger.migrate()
        assert state(old) == (2, {True}) and ledger.verify(population_of(old)) == balance
        if not os.WIFSIGNALED(ended):
            break
    assert seen.count(1) > len(tables.ADDED) and seen[-1] == 2


def migrate_and_die(path, number):
    """In a child process: SIGKILL before the statement of this number, or the normal end."""
    try:
        ledger = open_ledger(url(path))
        count_and_die = die_before_statement(ledger._engine, number)
        real = migration.copy_beside
        migration.copy_beside = lambda *arguments: (count_and_die(), real(*arguments), count_and_die())
        ledger.migrate()
    finally:
        os._exit(0)


@pytest.mark.skipif(SERVER is None, reason="FEDCORE_TEST_DATABASE names no server")
def test_the_owner_of_a_servers_ledger_migrates_it():
    books = open_books(SERVER)
    run, engine = books.reserve([release()]), books.ledger._engine
    with engine.begin() as connection:  # schema 1, as far as this version can make it
        connection.exec_driver_sql(f"DROP INDEX {tables.open_runs.name}")
        for column in tables.ADDED:
            connection.exec_driver_sql(f"ALTER TABLE {column.table.name} DROP COLUMN {column.name}")
        connection.exec_driver_sql("UPDATE fedcore_ledger SET schema = 1")
    ledger = open_ledger(SERVER)
    assert ledger.schema == 1 and ledger.run_status(run) == "open"
    with pytest.raises(LedgerError, match="fedcore budget migrate"):
        ledger.acquire(run)
    assert ledger.migrate() == 1 and ledger.migrate() == 2
    ledger.acquire(run)


def test_a_copy_that_cannot_be_written_stops_the_migration(old, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(db, "make_private_file", full)
    with pytest.raises(LedgerError, match="the disk is full"):
        open_ledger(url(old)).acquire("interrupted")
    assert state(old) == (1, {False})


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
    name = ADDED[table][which]
    if name in ("public_schema", "shares", "share"):  # a newer version says in `needs` what it means by them
        return
    with sqlite3.connect(file_books.url.removeprefix("sqlite:///")) as connection:
        connection.execute(f"UPDATE {table} SET {name} = 'x'")
    connection.close()
    with pytest.raises(LedgerError, match=f"{name}.*a newer fedcore"):
        file_books.ledger.charge(lease, release())


def test_what_schema_2_adds_to_the_records(file_books):
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
