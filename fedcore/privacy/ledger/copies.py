"""Copies of a whole ledger in one SQLite file. They are made while runs continue, and restored where no ledger is.

A copy is the state of the ledger at one moment: SQLite's backup of a SQLite file, and from a server all tables as one
transaction sees them. It is a ledger of the same id, with one file, readable by its owner only.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, inspect, select
from sqlalchemy.exc import SQLAlchemyError

from fedcore.errors import ConfigError, LedgerError
from fedcore.privacy.ledger import database as db
from fedcore.privacy.ledger import tables
from fedcore.privacy.ledger.ledger import Ledger, open_ledger
from fedcore.storage.files import replace_durably

PIECE = 500  # rows that are held at once
ENDINGS = ("-wal", "-shm", "-journal")


def backup(ledger: Ledger, dest: str | Path) -> Ledger:
    """Copy a ledger to a file as it is now, also while runs charge it. Returns the copy, verified.

    A copy that is there is replaced by a newer one of the same ledger only, and nothing is kept of a ledger that does
    not verify. Accounts that this version refuses by name are copied as they are. Raises ConfigError for a place that
    holds anything else, LedgerTampered, LedgerError.
    """
    path = Path(dest).expanduser().absolute()
    before = _copy_there(ledger, path)
    heads = {} if before is None else before.verify_all()
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        db.make_private_file(partial)
        if (file := db.file_of(ledger._engine)) is not None:
            db.copy_file(file, partial)
            _alone(partial)
        else:
            _copy_server(ledger, partial)
        made = open_copy(partial)
        made.verify_all()
        for population_id, head in heads.items():
            made.check_not_rolled_back(population_id, head)
        replace_durably(partial, path)
    except (sqlite3.Error, OSError) as error:
        raise db.named(error, str(path)) from None
    finally:
        for left in (partial, *(Path(f"{partial}{ending}") for ending in ENDINGS)):
            left.unlink(missing_ok=True)
    return open_copy(path)


def open_copy(path: str | Path) -> Ledger:
    """The ledger in a file. Raises LedgerMissing, LedgerError."""
    return open_ledger(f"sqlite:///{Path(path).expanduser().absolute()}")


def _copy_there(ledger: Ledger, path: Path) -> Ledger | None:
    """The earlier copy of this ledger at a place; None if nothing is there. Raises ConfigError for anything else."""
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {str(path.parent)!r} for the copy of the ledger.", "Make it first.")
    own = db.file_of(ledger._engine)
    if own is not None and path.exists() and path.samefile(own):
        raise ConfigError(f"{str(path)!r} is the ledger itself.", "Name another file for its copy.")
    if not os.path.lexists(path):
        return None
    try:
        found = open_copy(path)
    except LedgerError as error:
        raise ConfigError(f"{str(path)!r} holds no copy of a ledger ({error.message})", "Name another file.") from None
    if found.id != ledger.id:
        raise ConfigError(f"{str(path)!r} holds ledger {found.id}, not {ledger.id}.", "Name another file.")
    return found


def _copy_server(ledger: Ledger, target: Path) -> None:
    """The tables of a server's ledger in a SQLite file, as one transaction sees them."""
    engine = db.connect(db.parse_url(f"sqlite:///{target}"), create=True)
    try:
        with ledger._engine.connect() as opened:
            source = opened.execution_options(isolation_level="REPEATABLE READ", stream_results=True)
            with source.begin(), db.transaction(engine, str(target), write=True) as copy:
                tables.metadata.create_all(copy)
                _copy_rows(source, copy)
    except SQLAlchemyError as error:
        raise db.named(getattr(error, "orig", None) or error, ledger.url) from None
    _alone(target)


def _alone(file: Path) -> None:
    """Make the file readable without a log file, and where nothing may be written."""
    try:
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise db.named(error, str(file)) from None


def _copy_rows(source: Connection, target: Connection) -> None:
    """All rows of all tables."""
    for table in tables.metadata.sorted_tables:
        if table is tables.sketches and not inspect(source).has_table(table.name):
            continue
        found = source.execute(select(table))
        for some in found.mappings().partitions(PIECE):
            target.execute(table.insert(), [dict(row) for row in some])


def restore(copy: Ledger, url: str) -> Ledger:
    """Put a copy where no ledger is. Returns the ledger there, verified.

    What is there is never replaced, be it older, newer or another: it may know of something that was spent. Raises
    ConfigError if a ledger is there, LedgerTampered for a damaged copy, LedgerError.
    """
    heads = copy.verify_all()
    parsed = db.parse_url(url)
    where = parsed.render_as_string()
    engine = db.connect(parsed, create=True)
    with db.transaction(engine, where, write=True) as target:
        _refuse_any(target, where)
        tables.metadata.create_all(target)
        with db.transaction(copy._engine, copy.url, write=False) as source:
            _copy_rows(source, target)
    engine.dispose()
    made = open_ledger(url, expected_id=copy.id)
    made.verify_all()
    for population_id, head in heads.items():
        made.check_not_rolled_back(population_id, head)
    return made


def _refuse_any(target: Connection, where: str) -> None:
    there = inspect(target).has_table(tables.ledger_table.name)
    row = target.execute(select(tables.ledger_table.c.id)).one_or_none() if there else None
    if row is not None:
        raise ConfigError(
            f"{where!r} holds ledger {row.id}: a ledger is never overwritten, since it may know of something that the "
            "copy does not.",
            "If it is damaged for good, move it away first; then restore. Runs notice what was forgotten.",
        )
