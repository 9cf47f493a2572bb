"""Builders of accounts of every kind, for tests: one account, accounts by cohort or by calendar period, and shares."""

import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from fractions import Fraction

import numpy as np

from fedcore.privacy.cohorts import Participants
from fedcore.privacy.ledger.chain import link
from fedcore.privacy.periods import PeriodTerms
from fedcore.storage.plain import plain
from tests.privacy.conftest import Books, open_books, release
from tests.privacy.test_ledger_schema import sql

VALUE = np.array([1, -2, 3])
CHAIN = {1: "1" * 64, 2: "2" * 64, 3: "3" * 64}


def sql_of(books, query):
    return sql(books.url.removeprefix("sqlite:///"), query)


def kinds(books):
    return [row["kind"] for row in books.ledger.history(books.population)]


def rho_max(books) -> Fraction:
    return Fraction(books.ledger.balance(books.population).budget.rho_max)


# --- releases and runs ------------------------------------------------------------------------------------------------


def optional(round, sigma):
    return replace(release(round, sigma), optional=True)


def costing(rho, **more):
    """A release that costs at most this rho, and all but a millionth of it."""
    planned = release(sigma=math.sqrt(0.5 / float(rho)) * (1 + 1e-7), **more)
    assert 0.999999 * float(rho) < planned.rho <= rho
    return planned


def spend(books, plan, cohorts=None, **options) -> str:
    """A run that publishes its whole plan and ends."""
    run = books.reserve(plan, cohorts=cohorts, **options)
    lease = books.ledger.acquire(run)
    for planned in plan:
        books.ledger.publish(lease, books.ledger.charge(lease, planned), VALUE)
    books.ledger.finish(lease, "finished")
    return run


# --- cohorts and periods ----------------------------------------------------------------------------------------------


def token(number: int, copy: int = 0) -> str:
    return f"{copy:016x}{number:016x}"


CALENDAR = (1, CHAIN[1], token(1))


def took(*ranges, of: int, copy: int = 0) -> Participants:
    """Cohorts that take part, of a population with `of` cohorts. copy: which copy opened the last of them."""
    return Participants(ranges, (*(token(number) for number in range(1, of)), token(of, copy)))


def on(version: int, manifest: str | None = None):
    return {"manifest": CHAIN[version] if manifest is None else manifest, "version": version, "run": "a" * 64}


def begin(books, version: int = 1, **options) -> str:
    given = {"version": version, "manifest": CHAIN[version], "token": token(1), "chain": CHAIN, **options}
    return books.ledger.begin_cohorts(books.population, **given)


def segments(books):
    """(first, last, rho spent, rho reserved) of each; verified on the way."""
    balance = books.ledger.verify(books.population)
    assert balance == books.ledger.balance(books.population)
    return [(s.first, s.last, s.rho_spent, s.rho_reserved) for s in balance.segments]


def with_periods(url: str, window: int = 3, **options) -> Books:
    books = open_books(url, epsilon=None)
    settings = {"unit": "client_period", "periods": PeriodTerms("month", window), "calendar": CALENDAR, **options}
    books.ledger.set_budget(books.population, 2, 1e-10, **settings)
    return books


# --- shares -----------------------------------------------------------------------------------------------------------


def divide(books, **parts):
    books.ledger.divide(books.population, {name: Fraction(part) for name, part in parts.items()})


# --- what was edited --------------------------------------------------------------------------------------------------


OTHER_PARTICIPANTS = "UPDATE fedcore_runs SET cohorts = '[[2,2]]' WHERE cohorts = '[[1,2]]'"
OTHER_RESERVATION = "UPDATE fedcore_records SET payload = replace(payload, '[[1,2]]', '[[2,2]]') WHERE kind = 'reserve'"


def edit(books, *statements):
    with closing(sqlite3.connect(books.url.removeprefix("sqlite:///"))) as connection, connection:
        for statement in statements:
            assert connection.execute(statement).rowcount > 0, statement


def forged(books, kind, payload, run=None, **row):
    """A record with the right hash, as whoever can write the database can make it. row: also of the account's row."""
    path = books.url.removeprefix("sqlite:///")
    seq, head = sql(path, "SELECT seq, hash FROM fedcore_accounts")[0]
    record = link(books.ledger.id, books.population, seq + 1, kind, run, {"at": 0, **payload}, head)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "INSERT INTO fedcore_records VALUES (?, ?, ?, ?, ?, ?, ?)",
            (books.population, record.seq, kind, run, record.payload, head, record.hash),
        )
        connection.execute("UPDATE fedcore_accounts SET seq = ?, hash = ?", (record.seq, record.hash))
        for name, value in row.items():
            connection.execute(f"UPDATE fedcore_accounts SET {name} = ?", (value,))


def reservation(**changes):
    """The payload of a reservation of one release by cohort 2 of 2, with other values for some names; None: without."""
    item = release().to_json()
    payload = {"plan": [item], "spares": 0, "spare_rho": item["rho"], "spare_delta": 0.0, "secure": True}
    payload |= {"noise": "rounded gaussian 1"}
    payload |= {"plan_digest": "", "statement": None, "needs": ["cohorts"], "cohorts": plain(took((2, 2), of=2))}
    return {name: value for name, value in {**payload, **changes}.items() if value is not None or name == "statement"}


def reserved_before(books) -> dict:
    """The payload of the first reservation."""
    record = next(row for row in books.ledger.history(books.population) if row["kind"] == "reserve")
    return {name: value for name, value in record.items() if name not in ("seq", "kind", "run_id", "hash", "at")}
