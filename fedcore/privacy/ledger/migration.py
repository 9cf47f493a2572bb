"""From schema 1 of the ledger to schema 2: columns with defaults, an index and a table, in one transaction. No record
is touched, so that the heads which populations and runs remember stay valid.

A SQLite file is copied beside itself first, and migrated before its first write. The tables of a server belong to
somebody who decides when: `fedcore budget migrate`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Dialect, Engine, select
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable

from fedcore.errors import LedgerError, LedgerMissing
from fedcore.privacy.ledger import database as db
from fedcore.privacy.ledger import tables
from fedcore.storage.files import replace_durably


def migrate(engine: Engine, where: str) -> int:
    """Bring the ledger to the newest schema; returns the one that it had. Nothing happens if it has it already.

    Raises LedgerError if the role may not alter the tables, or the copy cannot be written; nothing is changed then.
    """
    try:
        with db.transaction(engine, where, write=True) as connection:
            query = select(tables.ledger_table.c.schema).with_for_update()
            schema = connection.execute(query).scalar_one_or_none()
            if schema is None:
                raise LedgerMissing(f"{where!r} holds no ledger.", "Restore it from a backup.")
            refuse_unknown_schema(schema, where)
            if schema == tables.SCHEMA:
                tables.sketches.create(connection, checkfirst=True)  # the one table that such a ledger may lack
                return int(schema)
            if (file := db.file_of(engine)) is not None:
                copy_beside(file, schema)  # with the write lock held: what is copied is what is migrated
            for statement in statements(engine.dialect):
                connection.exec_driver_sql(statement)
            connection.execute(tables.ledger_table.update().values(schema=tables.SCHEMA))
            return int(schema)
    except db.NotAllowed:
        if db.file_of(engine) is not None:
            raise
        raise LedgerError(
            f"this role may not alter the tables of the ledger {where!r}.",
            "Their owner runs: fedcore budget migrate. Nothing was changed.",
        ) from None


def refuse_unknown_schema(schema: object, where: str) -> None:
    """Raises LedgerError for a schema that this version cannot read."""
    if schema not in tables.READABLE:
        raise LedgerError(
            f"the ledger {where!r} has schema {schema!s:.20}; this version of fedcore knows {tables.SCHEMA}.",
            "Use the version of fedcore that wrote it, or a newer one.",
        )


def statements(dialect: Dialect) -> Iterator[str]:
    """What turns schema 1 into schema 2, but for the number."""
    for column in tables.ADDED:
        yield f"ALTER TABLE {column.table.name} ADD COLUMN {CreateColumn(column).compile(dialect=dialect)}"
    yield str(CreateIndex(tables.open_runs).compile(dialect=dialect))
    yield str(CreateTable(tables.sketches, if_not_exists=True).compile(dialect=dialect))


def copy_beside(file: Path, schema: int) -> None:
    """NAME.schema1 with the ledger as it is now, whole, readable by its owner only."""
    copy = file.with_name(f"{file.name}.schema{schema}")
    partial = file.with_name(f".{copy.name}.{os.getpid()}.partial")
    try:
        db.make_private_file(partial)
        db.copy_file(file, partial)
        replace_durably(partial, copy)
    except (sqlite3.Error, OSError) as error:
        raise db.named(error, str(copy)) from None
    finally:
        for left in (partial, *(Path(f"{partial}{ending}") for ending in ("-wal", "-shm", "-journal"))):
            left.unlink(missing_ok=True)
