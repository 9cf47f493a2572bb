"""Rows of a ledger, validated on reading, since they may have been edited.

A value of the wrong type, or one that its column cannot have, raises LedgerTampered with the table and column. Values
of a newer version of fedcore are reported as such.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Boolean, Column, ColumnElement, Connection, Double, Integer, LargeBinary, Row, Table, select

from fedcore.errors import LedgerError, LedgerTampered

RESTORE = "Restore the ledger from a backup."
LARGEST = 2**53  # of a count
PIECE = 500  # values in one statement


def find(
    connection: Connection,
    table: Table,
    *where: ColumnElement[bool],
    columns: Sequence[str] | None = None,
    order: ColumnElement[Any] | None = None,
    limit: int | None = None,
    lock: str | None = None,
) -> list[Row[Any]]:
    """The rows of a table, each value checked.

    columns: which; all by default. lock: "read" or "write", where the database has row locks.
    """
    wanted = list(table.c)
    if columns is not None:
        wanted = [column for column in wanted if column.name in columns]
    query = select(*wanted).select_from(table).where(*where)
    query = query if order is None else query.order_by(order)
    query = query if limit is None else query.limit(limit)
    query = query if lock is None else query.with_for_update(read=lock == "read")
    rows = list(connection.execute(query))
    for row in rows:
        for name, value in row._mapping.items():
            _check(table.c[name], value)
    return rows


def find_all(
    connection: Connection,
    table: Table,
    column: ColumnElement[Any],
    values: Iterable[Any],
    *where: ColumnElement[bool],
    columns: Sequence[str] | None = None,
) -> Iterator[Row[Any]]:
    """The rows with one of these values in a column, whatever their number."""
    listed = list(values)
    for start in range(0, len(listed), PIECE):
        some = column.in_(listed[start : start + PIECE])
        yield from find(connection, table, some, *where, columns=columns)


def _check(column: Column[Any], value: Any) -> None:
    if value is None:
        right = bool(column.nullable)
    elif isinstance(column.type, Boolean):
        right = isinstance(value, bool)
    elif isinstance(column.type, Integer):
        right = type(value) is int and 0 <= value < LARGEST
    elif isinstance(column.type, Double):
        right = type(value) is float and math.isfinite(value) and value >= 0
    elif isinstance(column.type, LargeBinary):
        right = isinstance(value, bytes)
    else:
        right = isinstance(value, str)
    if not right:
        raise LedgerTampered(
            f"a row of table {column.table.name} of the ledger holds in column {column.name!r} what cannot stand there "
            f"({type(value).__name__}).",
            RESTORE,
        )


def refuse_newer(row: Row[Any], kept: Sequence[str], known: Mapping[str, Collection[str | None]], what: str) -> None:
    """Raises LedgerError if a row uses what only a newer fedcore knows.

    kept: columns of features that such a row does not have. known: the values that other columns may have.
    """
    for name in kept:
        if getattr(row, name) is not None:
            raise newer(f"{what} has {name}")
    for name, values in known.items():
        if getattr(row, name) not in values:
            raise newer(f"{what} has {name} {getattr(row, name)!r}")


def newer(what: str) -> LedgerError:
    return LedgerError(
        f"{what}, which this version of fedcore does not know: a newer fedcore wrote it.",
        "Use a newer fedcore. Nothing was changed.",
    )


def decoded(text: str, what: str) -> Any:
    """The JSON in a row. what: whose. Raises LedgerTampered if it is none."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise LedgerTampered(f"{what} in the ledger is not JSON that fedcore wrote.", RESTORE) from None


def decoded_object(text: str, what: str) -> dict[str, Any]:
    """The JSON object in a row. Raises LedgerTampered if it is none."""
    value = decoded(text, what)
    if not isinstance(value, dict):
        raise LedgerTampered(f"{what} in the ledger is no JSON object.", RESTORE)
    return value


def decoded_list(text: str, what: str) -> list[Any]:
    """The JSON list in a row. Raises LedgerTampered if it is none."""
    value = decoded(text, what)
    if not isinstance(value, list):
        raise LedgerTampered(f"{what} in the ledger is no JSON list.", RESTORE)
    return value
