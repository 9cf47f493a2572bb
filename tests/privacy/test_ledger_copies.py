"""Copies of a ledger: whole while runs charge it, never a way back to a budget that was spent."""

import sqlite3
import stat
from contextlib import closing
from fractions import Fraction

import numpy as np
import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from fedcore.errors import ConfigError, LedgerError, LedgerMissing, LedgerRolledBack, LedgerTampered
from fedcore.privacy.ledger.copies import backup, open_copy, restore
from fedcore.privacy.ledger.ledger import open_ledger
from tests.privacy import processes
from tests.privacy.accounts import spend
from tests.privacy.conftest import SERVER, open_books, release
from tests.privacy.test_ledger_faults import spawn

VALUE = np.array([1, -2, 3])


def used(books):
    """An account with a division, a finished run and an open one with a lost charge; returns the open one."""
    books.ledger.divide(books.population, {"a": Fraction(1, 3)})
    spend(books, [release(1), release(2)], share="a")
    run = books.reserve([release(1), release(2)], spares=1)
    lease = books.ledger.acquire(run)
    books.ledger.publish(lease, books.ledger.charge(lease, release(1)), VALUE)
    books.ledger.charge(lease, release(2))
    books.ledger.release(lease)
    return run


def same(one, other, population):
    assert one.verify(population) == other.verify(population)
    assert (one.id, one.is_test, one.head(population)) == (other.id, other.is_test, other.head(population))
    assert one.history(population) == other.history(population)


def test_a_copy_is_the_ledger_in_one_private_file(books, tmp_path):
    used(books)
    copy = backup(books.ledger, tmp_path / "copy")
    same(copy, books.ledger, books.population)
    assert {path.name for path in tmp_path.iterdir() if path.name != "books"} == {"copy"}
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o600
    with closing(sqlite3.connect(tmp_path / "copy")) as connection:  # so that it needs no log beside it
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert books.population in copy.populations() and copy.populations() == books.ledger.populations()


def test_a_copy_is_replaced_by_a_newer_one_of_the_same_ledger_only(books, tmp_path):
    copy, kept = tmp_path / "copy", tmp_path / "kept"
    backup(books.ledger, copy)
    backup(books.ledger, kept)
    used(books)
    backup(books.ledger, copy)
    same(open_copy(copy), books.ledger, books.population)
    with pytest.raises(LedgerRolledBack):  # an old copy in the ledger's place takes nothing from a newer one
        backup(open_copy(kept), copy)
    same(open_copy(copy), books.ledger, books.population)
    other = open_books(f"sqlite:///{tmp_path / 'other.sqlite'}")
    with pytest.raises(ConfigError, match="holds ledger"):
        backup(other.ledger, copy)
    with pytest.raises(ConfigError, match="is the ledger itself"):
        backup(other.ledger, tmp_path / "other.sqlite")
    (tmp_path / "text").write_text("mine")
    with pytest.raises(ConfigError, match="holds no copy"):
        backup(books.ledger, tmp_path / "text")
    assert (tmp_path / "text").read_text() == "mine"
    with pytest.raises(ConfigError, match="no folder"):
        backup(books.ledger, tmp_path / "nowhere" / "copy")


def test_nothing_is_kept_of_a_ledger_that_does_not_verify(file_books, tmp_path):
    used(file_books)
    before = backup(file_books.ledger, tmp_path / "copy").head(file_books.population)
    spend(file_books, [release(1)])
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as connection:
        connection.execute("UPDATE fedcore_releases SET rho = rho / 2")
        connection.commit()
    for name in ("copy", "new"):
        with pytest.raises(LedgerTampered):
            backup(file_books.ledger, tmp_path / name)
    assert open_copy(tmp_path / "copy").head(file_books.population) == before and not (tmp_path / "new").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
def test_copies_that_are_made_while_a_run_charges_are_each_whole(books, tmp_path):
    stop = spawn.Event()
    worker = spawn.Process(target=processes.charge_until, args=(books.url, books.population, stop))
    worker.start()
    try:
        while books.ledger.length(books.population) < 12:
            assert worker.is_alive()
        heads = []
        for number in range(5):
            copy = backup(books.ledger, tmp_path / f"copy-{number}")
            heads.append(copy.head(books.population))
            assert copy.verify(books.population) == copy.balance(books.population)
    finally:
        stop.set()
        worker.join(60)
    assert worker.exitcode == 0
    assert [head.seq for head in heads] == sorted(head.seq for head in heads) and heads[0].seq < heads[-1].seq
    assert not books.ledger.lacks(books.population, heads)


def test_a_copy_goes_where_no_ledger_is_and_its_runs_go_on(books, tmp_path):
    run = used(books)
    copy = backup(books.ledger, tmp_path / "copy")
    restored = restore(copy, f"sqlite:///{tmp_path / 'new' / 'ledger.sqlite'}")
    same(restored, books.ledger, books.population)
    assert stat.S_IMODE((tmp_path / "new" / "ledger.sqlite").stat().st_mode) == 0o600
    with restored._transaction(write=False) as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    lease = restored.acquire(run, take_over=True)
    assert restored.charge(lease, release(2)).attempt == 1
    restored.finish(lease, "finished")
    assert restored.verify(books.population).of_share("a").rho_left >= 0


@pytest.mark.skipif(SERVER is None, reason="FEDCORE_TEST_DATABASE names no server")
def test_a_copy_goes_into_an_empty_database_of_a_server_and_back(tmp_path):
    books = open_books(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    run = used(books)
    copy, name = backup(books.ledger, tmp_path / "copy"), f"restored_{books.population[:12]}"
    server = create_engine(SERVER, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with server.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    try:
        there = server.url.set(database=name).render_as_string(hide_password=False)
        restored = restore(copy, there)
        same(restored, books.ledger, books.population)
        with pytest.raises(ConfigError, match="never overwritten"):
            restore(copy, there)
        restored.finish(restored.acquire(run, take_over=True), "finished")
        same(backup(restored, tmp_path / "again"), restored, books.population)
    finally:
        with server.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")  # ledgers keep their connections


def test_a_ledger_is_never_overwritten(books, tmp_path):
    copy = backup(books.ledger, tmp_path / "copy")
    used(books)
    before = books.ledger.head(books.population)
    with pytest.raises(ConfigError, match="never overwritten"):
        restore(copy, books.url)
    assert books.ledger.head(books.population) == before
    other = open_books(f"sqlite:///{tmp_path / 'other.sqlite'}")
    with pytest.raises(ConfigError, match="never overwritten"):
        restore(copy, other.url)
    other.ledger.verify(other.population)


def test_a_damaged_copy_is_not_restored(books, tmp_path):
    used(books)
    copy = backup(books.ledger, tmp_path / "copy")
    with closing(sqlite3.connect(tmp_path / "copy")) as connection:
        connection.execute(
            "UPDATE fedcore_records SET payload = replace(payload, '20.0', '21.0') WHERE kind = 'reserve'"
        )
        connection.commit()
    with pytest.raises(LedgerTampered):
        restore(copy, f"sqlite:///{tmp_path / 'new.sqlite'}")
    with pytest.raises(LedgerMissing):
        open_ledger(f"sqlite:///{tmp_path / 'new.sqlite'}")


@pytest.mark.slow
@pytest.mark.parametrize("step", ["copied", "verified", "renamed"])
def test_a_backup_that_is_killed_leaves_the_copy_of_before_or_the_new_one(books, tmp_path, step):
    backup(books.ledger, tmp_path / "copy")
    before = open_copy(tmp_path / "copy").head(books.population)
    used(books)
    child = spawn.Process(target=processes.back_up_and_die, args=(books.url, str(tmp_path / "copy"), step))
    child.start()
    child.join(60)
    assert child.exitcode == -9
    found = open_copy(tmp_path / "copy").head(books.population)
    assert found == (books.ledger.head(books.population) if step == "renamed" else before)
    backup(books.ledger, tmp_path / "copy")
    same(open_copy(tmp_path / "copy"), books.ledger, books.population)


@pytest.mark.slow
@pytest.mark.parametrize("inserts", [0, 1, 3, 4])
def test_a_restore_that_is_killed_leaves_no_ledger_and_can_be_repeated(books, tmp_path, inserts):
    used(books)
    copy, place = backup(books.ledger, tmp_path / "copy"), f"sqlite:///{tmp_path / 'new.sqlite'}"
    child = spawn.Process(target=processes.restore_and_die, args=(str(tmp_path / "copy"), place, inserts))
    child.start()
    child.join(60)
    assert child.exitcode == -9
    with pytest.raises(LedgerError):
        open_ledger(place)
    same(restore(copy, place), books.ledger, books.population)


@pytest.mark.parametrize("length", [0, 100, 5000, -4096, -1])
def test_a_copy_that_was_cut_off_is_not_restored(file_books, tmp_path, length):
    used(file_books)
    backup(file_books.ledger, tmp_path / "copy")
    whole = (tmp_path / "copy").read_bytes()
    (tmp_path / "copy").write_bytes(whole[:length])
    with pytest.raises(LedgerError) as refused:
        restore(open_copy(tmp_path / "copy"), f"sqlite:///{tmp_path / 'new.sqlite'}")
    assert refused.value.remedy
    with pytest.raises(LedgerError):
        open_ledger(f"sqlite:///{tmp_path / 'new.sqlite'}")


def test_a_link_in_the_place_of_a_copy_is_not_written_through(file_books, tmp_path):
    """Neither to the ledger itself nor to another file."""
    used(file_books)
    (tmp_path / "to-the-ledger").symlink_to(file_books.ledger.url.removeprefix("sqlite:///"))
    with pytest.raises(ConfigError, match="is the ledger itself"):
        backup(file_books.ledger, tmp_path / "to-the-ledger")
    (tmp_path / "other").write_text("something else")
    (tmp_path / "to-another").symlink_to(tmp_path / "other")
    with pytest.raises(ConfigError, match="holds no copy"):
        backup(file_books.ledger, tmp_path / "to-another")
    (tmp_path / "nowhere").symlink_to(tmp_path / "not-there")
    with pytest.raises(ConfigError, match="holds no copy"):
        backup(file_books.ledger, tmp_path / "nowhere")
    assert (tmp_path / "other").read_text() == "something else" and not (tmp_path / "not-there").exists()
    file_books.ledger.verify(file_books.population)
