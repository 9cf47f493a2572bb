"""Writing inside one transaction of a ledger: a population's account is locked, and its chain is extended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Table, update

from fedcore.errors import LeaseLost, LedgerTampered
from fedcore.privacy.accounting import Budget
from fedcore.privacy.ledger import tables
from fedcore.privacy.ledger.chain import CHARGED, FORFEITED, PUBLISHED, PURPOSE, RESERVED, RETURNED, Record, link
from fedcore.privacy.ledger.formats import DISCRETE, refusal
from fedcore.privacy.ledger.leases import Lease
from fedcore.privacy.ledger.queries import CHAIN
from fedcore.privacy.ledger.rows import RESTORE, find, refuse_newer
from fedcore.privacy.plan import LAWS

STATES = (RESERVED, CHARGED, PUBLISHED, FORFEITED, RETURNED)


class ChainWriter:
    """Extends the chain of one population inside a transaction, and changes the tables that mirror it.

    account: the population's row of `tables.accounts`, which the transaction has locked
    clock:   seconds since 1970

    Raises LedgerTampered if the newest record of the chain is not the one that the account names.
    """

    def __init__(self, ledger_id: str, clock: Callable[[], float], connection: Connection, account: Row[Any]) -> None:
        self.ledger_id = ledger_id
        self.clock = clock
        self.connection = connection
        self.account = account
        self.population_id = account.population_id
        self.seq, self.hash = account.seq, account.hash
        self._check_last_link()

    def _check_last_link(self) -> None:
        """The newest record is the head that the account names, and its content matches its hash."""
        c = tables.records.c
        mine = c.population_id == self.population_id
        rows = find(self.connection, tables.records, mine, columns=CHAIN, order=c.seq.desc(), limit=1)
        last = Record(*rows[0]) if rows else None
        if last is None or (last.seq, last.hash) != (self.seq, self.hash):
            raise LedgerTampered(
                f"record {self.seq} of population {self.population_id!r} should be the last one of "
                f"its chain in ledger {self.ledger_id}, and is not.",
                RESTORE,
            )
        if last.hash != last.expected_hash(self.ledger_id, self.population_id):
            raise LedgerTampered(
                f"record {last.seq} ({last.kind}) of population {self.population_id!r} in ledger "
                f"{self.ledger_id}: its content does not match its hash.",
                RESTORE,
            )

    def append(self, kind: str, run_id: str | None, payload: dict[str, Any]) -> None:
        """Add a record to the chain; it becomes the head that the account names."""
        timed = {**payload, "at": self.clock()}
        record = link(self.ledger_id, self.population_id, self.seq + 1, kind, run_id, timed, self.hash)
        insert_record(self.connection, self.population_id, record)
        self.seq, self.hash = record.seq, record.hash
        self.set_account(seq=record.seq, hash=record.hash)

    def set_budget(self, budget: Budget) -> None:
        """Mirror the budget."""
        self.set_account(**budget.to_json())

    def set_account(self, **values: Any) -> None:
        mine = tables.accounts.c.population_id == self.population_id
        self.connection.execute(update(tables.accounts).where(mine).values(**values))

    def run(self, run_id: str) -> Row[Any]:
        """The run of this population. Raises LedgerTampered, LedgerError for one that a newer fedcore reserved."""
        rows = find(self.connection, tables.runs, tables.runs.c.run_id == run_id)
        if not rows or rows[0].population_id != self.population_id:
            raise LedgerTampered(f"ledger {self.ledger_id} lacks run {run_id!r}.", RESTORE)
        if rows[0].noise == DISCRETE:
            raise refusal(f"run {run_id!r} in ledger {self.ledger_id}", "one with discrete Gaussian noise")
        known = {"purpose": [PURPOSE], "noise": LAWS}
        kept = ("cohorts",) if self.account.mode is None else ()
        refuse_newer(rows[0], kept, known, f"run {run_id!r} in ledger {self.ledger_id}")
        return rows[0]

    def held_run(self, lease: Lease) -> Row[Any]:
        """The run of a lease that is still good. Raises LeaseLost."""
        run = self.run(lease.run_id)
        if run.token != lease.token or run.holder is None:
            raise LeaseLost(
                f"run {lease.run_id!r} is held by another process now (token {run.token}, this process has "
                f"{lease.token}).",
                "This process stops; the other one continues.",
            )
        return run

    def set_run(self, run_id: str, **values: Any) -> None:
        self.connection.execute(update(tables.runs).where(tables.runs.c.run_id == run_id).values(**values))

    def attempts(self, run_id: str, round: int, name: str) -> list[Row[Any]]:
        """The attempts at a planned release, oldest first; never none."""
        which = release_key(tables.releases, run_id, round, name)
        rows = find(self.connection, tables.releases, which, order=tables.releases.c.attempt)
        if not rows or any(row.state not in STATES for row in rows):
            raise LedgerTampered(
                f"release {name!r} of run {run_id!r} is missing in ledger {self.ledger_id}, or in an unknown state.",
                RESTORE,
            )
        return rows

    def set_state(self, run_id: str, round: int, name: str, attempt: int, state: str) -> None:
        which = release_key(tables.releases, run_id, round, name) & (tables.releases.c.attempt == attempt)
        self.connection.execute(update(tables.releases).where(which).values(state=state))

    def forfeit(self, run_id: str, round: int, name: str, attempt: int) -> None:
        """Record that an attempt was charged and that its value is lost."""
        self.set_state(run_id, round, name, attempt, FORFEITED)
        self.append("forfeit", run_id, {"round": round, "name": name, "attempt": attempt})

    def give_up(self, run_id: str, first: int) -> None:
        """Record that the run ends before round `first`: what it would have released from there on is returned."""
        c = tables.releases.c
        which = (c.run_id == run_id) & (c.round >= first) & (c.state == RESERVED)
        self.connection.execute(update(tables.releases).where(which).values(state=RETURNED))
        self.append("give up", run_id, {"round": first})


def release_key(table: Table, run_id: str, round: int, name: str) -> ColumnElement[bool]:
    return (table.c.run_id == run_id) & (table.c.round == round) & (table.c.name == name)


def insert_record(connection: Connection, population_id: str, record: Record) -> None:
    connection.execute(
        tables.records.insert().values(
            population_id=population_id,
            seq=record.seq,
            kind=record.kind,
            run_id=record.run_id,
            payload=record.payload,
            prev_hash=record.prev_hash,
            hash=record.hash,
        )
    )
