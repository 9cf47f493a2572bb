"""Inside one transaction of a ledger: the locked account of a population, and its chain being extended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, Row, select, update

from fedcore.errors import LeaseLost, LedgerTampered
from fedcore.privacy.accounting import ZcdpBudget
from fedcore.privacy.ledger import schema as db
from fedcore.privacy.ledger.chain import FORFEITED, Record, link
from fedcore.privacy.ledger.leases import Lease

if TYPE_CHECKING:
    from fedcore.privacy.ledger.books import Books

RESTORE = "Restore the ledger from a backup."


class Writer:
    """A locked population inside a transaction; `append` adds a record to its chain."""

    def __init__(self, ledger: Books, connection: Connection, account: Row):
        self.ledger = ledger
        self.connection = connection
        self.account = account
        self.population_id = account.population_id
        self.seq, self.hash = account.seq, account.hash
        self._check_last_link()

    def _check_last_link(self) -> None:
        """The newest record is the head that the account names, and its content matches its hash."""
        newest = select(db.records).where(db.records.c.population_id == self.population_id)
        row = self.connection.execute(newest.order_by(db.records.c.seq.desc()).limit(1)).one_or_none()
        if row is None or (row.seq, row.hash) != (self.seq, self.hash):
            raise LedgerTampered(
                f"record {self.seq} of population {self.population_id!r} should be the last one of "
                f"its chain in ledger {self.ledger.id}, and is not.",
                RESTORE,
            )
        if row.hash != record_of(row).expected_hash(self.ledger.id, self.population_id):
            raise LedgerTampered(
                f"record {row.seq} ({row.kind}) of population {self.population_id!r} in ledger "
                f"{self.ledger.id}: its content does not match its hash.",
                RESTORE,
            )

    def append(self, kind: str, run_id: str | None, payload: dict) -> None:
        timed = {**payload, "at": self.ledger.clock()}
        record = link(self.ledger.id, self.population_id, self.seq + 1, kind, run_id, timed, self.hash)
        insert_record(self.connection, self.population_id, record)
        self.seq, self.hash = record.seq, record.hash
        self.set_account(seq=record.seq, hash=record.hash)

    def set_account(self, **values) -> None:
        mine = db.accounts.c.population_id == self.population_id
        self.connection.execute(update(db.accounts).where(mine).values(**values))

    def run(self, run_id: str) -> Row:
        return self.connection.execute(select(db.runs).where(db.runs.c.run_id == run_id)).one()

    def held_run(self, lease: Lease) -> Row:
        """The run of a lease that is still good. Raises LeaseLost."""
        run = self.run(lease.run_id)
        if run.token != lease.token or run.holder is None:
            raise LeaseLost(
                f"run {lease.run_id!r} is held by another process now (token {run.token}, this process has "
                f"{lease.token}).",
                "This process stops; the other one goes on.",
            )
        return run

    def set_run(self, run_id: str, **values) -> None:
        self.connection.execute(update(db.runs).where(db.runs.c.run_id == run_id).values(**values))

    def attempts(self, run_id: str, round: int, name: str) -> list[Row]:
        """The attempts at a planned release, oldest first; never none."""
        query = select(db.releases).where(release_key(db.releases, run_id, round, name)).order_by(db.releases.c.attempt)
        rows = list(self.connection.execute(query))
        if not rows:
            raise LedgerTampered(f"ledger {self.ledger.id} lacks release {name!r} of run {run_id!r}.", RESTORE)
        return rows

    def set_state(self, run_id: str, round: int, name: str, attempt: int, state: str) -> None:
        which = release_key(db.releases, run_id, round, name) & (db.releases.c.attempt == attempt)
        self.connection.execute(update(db.releases).where(which).values(state=state))

    def forfeit(self, run_id: str, round: int, name: str, attempt: int) -> None:
        self.set_state(run_id, round, name, attempt, FORFEITED)
        self.append("forfeit", run_id, {"round": round, "name": name, "attempt": attempt})


def release_key(table, run_id: str, round: int, name: str):
    return (table.c.run_id == run_id) & (table.c.round == round) & (table.c.name == name)


def record_of(row: Row) -> Record:
    return Record(row.seq, row.kind, row.run_id, row.payload, row.prev_hash, row.hash)


def insert_record(connection: Connection, population_id: str, record: Record) -> None:
    connection.execute(
        db.records.insert().values(
            population_id=population_id,
            seq=record.seq,
            kind=record.kind,
            run_id=record.run_id,
            payload=record.payload,
            prev_hash=record.prev_hash,
            hash=record.hash,
        )
    )


def budget_of(row: Row) -> ZcdpBudget | None:
    if row.rho_max is None:
        return None
    return ZcdpBudget(row.epsilon, row.delta, row.rho_max, row.delta_conv, row.delta_extra)
