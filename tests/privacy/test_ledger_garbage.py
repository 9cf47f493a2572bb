"""Edited rows of a ledger: whatever stands in whatever column, what comes of it is an answer or a named error."""

import contextlib
import sqlite3

import numpy as np
import pytest

from fedcore.errors import FedcoreError, LedgerError
from fedcore.privacy.id_sketch import Sketch, keyed_names
from fedcore.privacy.ledger import tables
from fedcore.privacy.ledger.ledger import open_ledger
from fedcore.privacy.ledger.sketch_accounts import KeptSketch
from fedcore.privacy.statement import private_statement
from tests.privacy.conftest import open_books, release

GARBAGE = {
    "null": None,
    "text": "x",
    "an empty text": "",
    "a number": 7,
    "zero": 0,
    "a negative number": -1,
    "a large number": 2**62,
    "a fraction": 0.5,
    "infinity": float("inf"),
    "bytes": b"\xff\xfe",
    "text that is not UTF-8": "CAST(x'ff' AS TEXT)",
    "a list": "[]",
    "an object": "{}",
    "half an object": '{"a":',
    "NaN": "NaN",
    "deep JSON": "[" * 100_000,
    "an integer of 5000 digits": "9" * 5000,
    "an object with such an integer": '{"digest": ' + "9" * 5000 + "}",
    "a list of the wrong things": '[1, null, {"round": "x", "name": 3}]',
}
WORST = {name: GARBAGE[name] for name in ("null", "a negative number", "text that is not UTF-8", "deep JSON")}
COLUMNS = [(table.name, column.name) for table in tables.metadata.tables.values() for column in table.c]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The content of a ledger without constraints, with a run that published, one that lost a value, one that ended,
    and a sketch of ids."""
    path = tmp_path_factory.mktemp("garbage") / "ledger.sqlite"
    books = open_books(f"sqlite:///{path}")
    assert books.ledger.keep_sketch(sketch_of(books.population), None)
    books.ledger.note_shared(books.population, ())
    plan, runs = [release(1, 200.0), release(2, 200.0)], []
    for number in range(3):
        run = books.reserve(plan, spares=1)
        lease = books.ledger.acquire(run)
        charge = books.ledger.charge(lease, plan[0])
        if number != 1:
            books.ledger.publish(lease, charge, np.array([1, 2, 3]))
        if number == 2:
            books.ledger.finish(lease, "finished")
        runs.append(run)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA foreign_keys = OFF")
        for table in tables.metadata.tables:
            connection.execute(f"CREATE TABLE copy AS SELECT * FROM {table}")
            connection.execute(f"DROP TABLE {table}")
            connection.execute(f"ALTER TABLE copy RENAME TO {table}")
        connection.commit()
    return path.read_bytes(), books.population, runs


def sketch_of(population, version=1):
    sketch = Sketch.empty(3).with_ids(keyed_names(["a", "b", "c"], bytes(32)))
    return KeptSketch(population, "p", "key", version, "manifest", 3, sketch, frozenset([b"digest of a block"[:16]]))


def everything(url, population, runs):
    """Each operation on a ledger."""
    ledger = open_ledger(url)
    plan = [release(1, 200.0), release(2, 200.0)]
    yield lambda: ledger.balance(population)
    yield lambda: ledger.verify(population)
    yield lambda: ledger.history(population)
    yield lambda: ledger.head(population)
    yield lambda: ledger.length(population)
    yield lambda: ledger.accepted(population)
    yield lambda: private_statement(ledger, population, runs[0]).text()
    for run in runs[:2]:
        yield lambda run=run: ledger.run_status(run)
        yield lambda run=run: ledger.published(run, "sums-1")
        yield lambda run=run: ledger.reserve(population, run, plan, 1, secure=True)
        for planned in plan:
            yield lambda run=run, planned=planned: charged(ledger, run, planned)
        yield lambda run=run: ledger.renew(ledger.acquire(run))
        yield lambda run=run: ledger.finish(ledger.acquire(run, take_over=True), "abandoned")
    yield lambda: ledger.reserve(population, "new", plan, 0, secure=True)
    yield lambda: ledger.say_public_schema(population, "words")
    yield lambda: ledger.raise_budget(population, 9.0, 1e-10)
    yield lambda: ledger.set_budget(population, 9.0, 1e-10)
    yield lambda: ledger.register(population)
    yield lambda: ledger.sketched()
    yield lambda: ledger.note_shared(population, ["another"])
    yield lambda: ledger.keep_sketch(sketch_of(population, 2), ledger.kept_sketch(population))
    yield lambda: ledger.declare_shared_ids(population, "words")


def charged(ledger, run, planned):
    lease = ledger.acquire(run, take_over=True)
    charge = ledger.charge(lease, planned)
    if charge.stored is None:
        ledger.publish(lease, charge, np.array([4, 5, 6]))


def edited(path, table, column, value):
    """Whether the edit was made: SQLite itself refuses some."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        expression, given = (value, ()) if str(value).startswith("CAST") else ("?", (value,))
        try:
            connection.execute(f"UPDATE {table} SET {column} = {expression}", given)
            connection.commit()
        except sqlite3.Error:
            return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("values", [WORST, pytest.param(GARBAGE, marks=pytest.mark.heavy)], ids=["worst", "all"])
@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_every_column_of_every_table_may_hold_anything(original, tmp_path, monkeypatch, table, column, values):
    content, population, runs = original
    path = tmp_path / "ledger.sqlite"
    noticed, made = [], 0
    for name, value in values.items():
        path.write_bytes(content)
        if not edited(path, table, column, value):
            continue
        made += 1
        try:
            attempts = list(everything(f"sqlite:///{path}", population, runs))
        except FedcoreError:
            noticed.append(name)
            continue
        for attempt in attempts:
            try:
                attempt()
            except LedgerError as error:
                assert error.remedy, (name, error)
                noticed.append(name)
            except FedcoreError:
                pass
    assert made >= len(values) / 2
    if table == tables.sketches.name:  # is no part of the chain: only what cannot be a value of a column is noticed
        assert {"null", "text that is not UTF-8"} <= set(noticed)
    # Who holds a run, until when, and the flags of a ledger are no part of the chain; any text is a true flag.
    elif column not in ("holder", "expires", "test", "only", "secure") and (table, column) != (
        "fedcore_ledger",
        "schema",
    ):
        assert len(set(noticed)) >= made - 2, sorted(set(values) - set(noticed))
