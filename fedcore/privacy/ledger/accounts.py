"""The accounts of a ledger: populations, their budgets, their chains. `fedcore.privacy.ledger.ledger` adds the runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, get_args

from sqlalchemy import Connection, Engine, Row, select

from fedcore.errors import BudgetExists, BudgetMissing, ConfigError, LedgerError, LedgerMissing, LedgerRolledBack
from fedcore.privacy.accounting import zcdp_budget
from fedcore.privacy.ledger import database as db
from fedcore.privacy.ledger.chain import GENESIS, Account, Balance, ChainHead, link, replay
from fedcore.privacy.ledger.chain_writer import ChainWriter, insert_record
from fedcore.privacy.ledger.queries import budget_of, compare_tables, read_chain, table_balance
from fedcore.privacy.plan import Relation, Unit

LONGEST_NAME = 128


class Accounts:
    """The populations of a ledger in a database. No connection is held between calls.

    id:      the ledger's own, for ever
    url:     its address, with the password hidden
    is_test: whether it is for test noise
    clock:   seconds since 1970

    Every method may raise LedgerError, LedgerMissing or LedgerTampered.
    """

    def __init__(self, engine: Engine, url: str, id: str, is_test: bool, clock: Callable[[], float]) -> None:
        self._engine = engine
        self.url = url
        self.id = id
        self.is_test = is_test
        self.clock = clock

    # --- transactions -------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self, write: bool) -> Iterator[Connection]:
        with db.transaction(self._engine, self.url, write=write) as connection:
            found = connection.execute(select(db.ledger_table.c.id)).scalar_one_or_none()
            if found != self.id:
                raise LedgerMissing(f"{self.url!r} is not ledger {self.id} any more.", "Restore it from a backup.")
            yield connection

    @contextmanager
    def _reading(self, population_id: str) -> Iterator[tuple[Connection, Row[Any]]]:
        """A consistent view of one population."""
        with self._transaction(write=False) as connection:
            yield connection, self._account_row(connection, population_id, read=True)

    @contextmanager
    def _writing(self, population_id: str) -> Iterator[ChainWriter]:
        with self._transaction(write=True) as connection:
            yield ChainWriter(self.id, self.clock, connection, self._account_row(connection, population_id, read=False))

    @contextmanager
    def _writing_run(self, run_id: str) -> Iterator[ChainWriter]:
        with self._writing(self._population_of(run_id)) as writer:
            yield writer

    def _account_row(self, connection: Connection, population_id: str, *, read: bool) -> Row[Any]:
        """The account, locked where the database has row locks (SQLite locks or freezes the whole file instead)."""
        query = select(db.accounts).where(db.accounts.c.population_id == population_id).with_for_update(read=read)
        row = connection.execute(query).one_or_none()
        if row is None:
            raise LedgerError(
                f"population {population_id!r} is not registered in ledger {self.id}.",
                "It belongs to another ledger, or was made without one.",
            )
        return row

    def _population_of(self, run_id: str) -> str:
        with self._transaction(write=False) as connection:
            query = select(db.runs.c.population_id).where(db.runs.c.run_id == run_id)
            found: str | None = connection.execute(query).scalar()
        if found is None:
            raise LedgerError(f"ledger {self.id} knows no run {run_id!r}.", "Reserve its plan first.")
        return found

    # --- populations and budgets --------------------------------------------------------------------------------

    def register(self, population_id: str) -> None:
        """Make a population known to the ledger. For one that is known already nothing happens."""
        if not 0 < len(population_id) <= LONGEST_NAME:
            raise ConfigError(f"a population id has 1 to {LONGEST_NAME} characters, not {len(population_id)}.")
        first = link(self.id, population_id, 1, "register", None, {"at": self.clock()}, GENESIS)
        try:
            with self._transaction(write=True) as connection:
                mine = db.accounts.c.population_id == population_id
                if connection.execute(select(db.accounts.c.seq).where(mine)).one_or_none() is None:
                    connection.execute(db.accounts.insert().values(population_id=population_id, seq=1, hash=first.hash))
                    insert_record(connection, population_id, first)
        except db.Conflict:  # another process registered it at the same time
            pass

    def set_budget(
        self,
        population_id: str,
        epsilon: float,
        delta: float,
        *,
        delta_extra: float | None = None,
        unit: Unit = "client",
        relation: Relation = "add_or_remove_one",
    ) -> None:
        """Say once what the population may lose in total, for whom (unit) and against what (relation).

        Raises ConfigError for a bad value, BudgetExists if there is a budget.
        """
        if unit not in get_args(Unit) or relation not in get_args(Relation):
            raise ConfigError(
                f"unit {unit!r} with relation {relation!r} is unknown.",
                f"Units: {', '.join(get_args(Unit))}. Relations: {', '.join(get_args(Relation))}.",
            )
        budget = zcdp_budget(epsilon, delta, delta_extra)
        with self._writing(population_id) as writer:
            if writer.account.rho_max is not None:
                raise BudgetExists(
                    f"population {population_id!r} has a budget: epsilon = {writer.account.epsilon:g}, "
                    f"delta = {writer.account.delta:g}.",
                    "It cannot be set again; fedcore budget raise raises it, and is shown for ever.",
                )
            writer.set_account(unit=unit, relation=relation, **budget.to_json())
            writer.append("budget set", None, {"budget": budget.to_json(), "unit": unit, "relation": relation})

    def raise_budget(self, population_id: str, epsilon: float, delta: float) -> None:
        """Give the population a larger budget, by a record of the chain that is shown for ever.

        delta_extra keeps its share of delta. Raises BudgetMissing, ConfigError, BudgetExists if it is not a raise.
        """
        with self._reading(population_id) as (_, row):
            old = budget_of(row)
        if old is None:
            raise BudgetMissing(f"population {population_id!r} has no budget to raise.", "Set one: fedcore budget set.")
        extra = old.delta_extra if delta == old.delta else max(old.delta_extra, delta * (old.delta_extra / old.delta))
        if epsilon < old.epsilon or delta < old.delta or (epsilon, delta) == (old.epsilon, old.delta):
            raise BudgetExists(
                f"population {population_id!r} has epsilon = {old.epsilon:g}, delta = {old.delta:g}; "
                f"epsilon = {epsilon:g}, delta = {delta:g} is not a raise.",
                "A budget is never lowered or renewed; name larger values.",
            )
        new = zcdp_budget(epsilon, delta, extra)
        new = replace(new, rho_max=max(new.rho_max, old.rho_max))  # equal up to the rounding of the root search
        with self._writing(population_id) as writer:
            if budget_of(writer.account) != old:
                raise db.Conflict("another process raised the budget at the same time.", "Look at it, then try again.")
            writer.set_account(**new.to_json())
            writer.append("budget raise", None, {"budget": new.to_json(), "before": old.to_json()})

    def balance(self, population_id: str) -> Balance:
        """What of the budget is spent, reserved and left. Raises LedgerError for an unregistered population."""
        with self._reading(population_id) as (connection, row):
            return table_balance(connection, row, budget_of(row))

    def history(self, population_id: str) -> list[dict[str, Any]]:
        """The records in order, for display: seq, kind, run_id, hash and what the record says; `at` in seconds."""
        with self._reading(population_id) as (connection, _):
            chain = read_chain(connection, population_id)
        return [
            {
                **json.loads(record.payload),
                "seq": record.seq,
                "kind": record.kind,
                "run_id": record.run_id,
                "hash": record.hash,
            }
            for record in chain
        ]

    def account(self, population_id: str) -> Account:
        """The account as the chain alone gives it. Raises LedgerTampered."""
        with self._reading(population_id) as (connection, _):
            return replay(self.id, population_id, read_chain(connection, population_id))

    # --- the chain ----------------------------------------------------------------------------------------------

    def head(self, population_id: str) -> ChainHead:
        """The newest record of the population's chain."""
        with self._reading(population_id) as (_, row):
            return ChainHead(self.id, row.seq, row.hash)

    def contains(self, population_id: str, head: ChainHead) -> bool:
        """Whether the record that was the head then is still in the chain."""
        at = (db.records.c.population_id == population_id) & (db.records.c.seq == head.seq)
        with self._transaction(write=False) as connection:
            found = connection.execute(select(db.records.c.hash).where(at)).scalar_one_or_none()
        return head.ledger_id == self.id and found == head.hash

    def check_not_rolled_back(self, population_id: str, head: ChainHead) -> None:
        """Raises LedgerRolledBack if the chain lacks `head`."""
        if not self.contains(population_id, head):
            raise LedgerRolledBack(
                f"ledger {self.id} does not contain record {head.seq} of population {population_id!r}, which was seen "
                "before: an older copy was put in its place.",
                "Restore the newest copy; what was spent since the older one cannot be forgotten.",
            )

    def verify(self, population_id: str) -> Balance:
        """Recompute every hash and the whole balance from the chain, and compare tables and published arrays with it.

        Returns the recomputed balance. Raises LedgerTampered naming what does not agree.
        """
        with self._reading(population_id) as (connection, row):
            return self._verified(connection, row, arrays=True).balance()

    def _verified(self, connection: Connection, row: Row[Any], *, arrays: bool) -> Account:
        account = replay(self.id, row.population_id, read_chain(connection, row.population_id))
        compare_tables(connection, self.id, account, row, budget_of(row), arrays=arrays)
        return account
