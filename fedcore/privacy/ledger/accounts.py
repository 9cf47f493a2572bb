"""The accounts of a ledger: populations, their budgets, their chains. `fedcore.privacy.ledger.ledger` adds the runs."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, get_args

from sqlalchemy import Connection, Engine, Row, select

from fedcore.errors import (
    BudgetExists,
    BudgetMissing,
    ConfigError,
    LedgerError,
    LedgerMissing,
    LedgerRetired,
    LedgerRolledBack,
)
from fedcore.privacy.accounting import CURRENCY, Budget, make_budget
from fedcore.privacy.ledger import database as db
from fedcore.privacy.ledger import tables
from fedcore.privacy.ledger.balances import SpentBefore
from fedcore.privacy.ledger.chain import BY_COHORT, GENESIS, Account, Balance, ChainHead, link
from fedcore.privacy.ledger.chain_writer import ChainWriter, insert_record
from fedcore.privacy.ledger.formats import IN_ZCDP, ZCDP, refusal, refuse_unknown_schema, retired_in
from fedcore.privacy.ledger.queries import compare_tables, read_chain, recent_chain
from fedcore.privacy.ledger.replay import ANCHOR, COHORTS, LOSS, PERIODS, SPENT_BEFORE, replay
from fedcore.privacy.ledger.rows import RESTORE, decoded_object, find, find_all, refuse_newer
from fedcore.privacy.periods import PeriodTerms
from fedcore.privacy.plan import CLIENT_PERIOD, Relation, Unit
from fedcore.storage.plain import plain

LONGEST_NAME = 128
LONGEST_REASON = 2000


class Accounts:
    """The populations of a ledger in a database. No transaction is open between calls.

    id:      the ledger's, never changes
    url:     its address, with the password hidden
    is_test: whether it is for test noise
    clock:   seconds since 1970

    Every method may raise LedgerError, LedgerMissing, LedgerRetired or LedgerTampered.
    """

    def __init__(self, engine: Engine, url: str, id: str, is_test: bool, clock: Callable[[], float]) -> None:
        self._engine = engine
        self.url = url
        self.id = id
        self.is_test = is_test
        self.clock = clock
        weakref.finalize(self, db.close, engine, os.getpid())

    # --- transactions -------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self, write: bool, locks: bool = False) -> Iterator[Connection]:
        with db.transaction(self._engine, self.url, write=write, locks=locks) as connection:
            found = connection.execute(select(tables.ledger_table.c.id, tables.ledger_table.c.schema)).one_or_none()
            if found is None or found.id != self.id:
                raise LedgerMissing(f"{self.url!r} is not ledger {self.id} any more.", RESTORE)
            refuse_unknown_schema(found.schema, self.url)
            yield connection

    @contextmanager
    def _reading(self, population_id: str) -> Iterator[tuple[Connection, Row[Any]]]:
        """A consistent view of one population."""
        with self._transaction(write=False, locks=True) as connection:
            yield connection, self._account_row(connection, population_id, "read")

    @contextmanager
    def _writing(self, population_id: str) -> Iterator[ChainWriter]:
        with self._transaction(write=True) as connection:
            account = self._account_row(connection, population_id, "write")
            yield ChainWriter(self.id, self.clock, connection, account)

    @contextmanager
    def _writing_run(self, run_id: str) -> Iterator[ChainWriter]:
        """The same for the population of a run, which never changes."""
        of_run = select(tables.runs.c.population_id).where(tables.runs.c.run_id == run_id).scalar_subquery()
        with self._transaction(write=True) as connection:
            rows = find(connection, tables.accounts, tables.accounts.c.population_id == of_run, lock="write")
            account = self._known(rows, rows[0].population_id if rows else self._population_of(connection, run_id))
            yield ChainWriter(self.id, self.clock, connection, account)

    def _account_row(self, connection: Connection, population_id: str, lock: str | None) -> Row[Any]:
        """The account, locked where the database has row locks (SQLite locks or freezes the whole file instead)."""
        mine = tables.accounts.c.population_id == population_id
        return self._known(find(connection, tables.accounts, mine, lock=lock), population_id)

    def _known(self, rows: Sequence[Row[Any]], population_id: str) -> Row[Any]:
        """The one row of an account. Raises LedgerError if there is none, or if this version cannot use it."""
        if not rows:
            raise LedgerError(
                f"population {population_id!r} is not registered in ledger {self.id}.",
                "It belongs to another ledger, or was made without one.",
            )
        what = f"population {population_id!r} in ledger {self.id}"
        has_budget = rows[0].rho_max is not None  # before that the currency has no meaning
        if has_budget and rows[0].currency == ZCDP:
            raise refusal(f"the budget of {what}", IN_ZCDP)
        known = {"mode": (None, BY_COHORT), **({"currency": (CURRENCY,)} if has_budget else {})}
        refuse_newer(rows[0], (), known, what)
        return rows[0]

    def _population_of(self, connection: Connection, run_id: str) -> str:
        rows = find(connection, tables.runs, tables.runs.c.run_id == run_id, columns=("population_id",))
        if not rows:
            raise LedgerError(f"ledger {self.id} knows no run {run_id!r}.", "Reserve its plan first.")
        found: str = rows[0].population_id
        return found

    def populations(self) -> list[str]:
        """The ids of all that are registered."""
        with self._transaction(write=False) as connection:
            rows = find(connection, tables.accounts, columns=("population_id",), order=tables.accounts.c.population_id)
        return [row.population_id for row in rows]

    def retired(self) -> str | None:
        """The first population whose account this version refuses (`fedcore.privacy.ledger.formats`); None without."""
        with self._transaction(write=False) as connection:
            return retired_in(connection)

    # --- populations and budgets --------------------------------------------------------------------------------

    def register(self, population_id: str) -> None:
        """Make a population known to the ledger. For one that is known already nothing happens."""
        if not 0 < len(population_id) <= LONGEST_NAME:
            raise ConfigError(f"a population id has 1 to {LONGEST_NAME} characters, not {len(population_id)}.")
        first = link(self.id, population_id, 1, "register", None, {"at": self.clock()}, GENESIS)
        try:
            with self._transaction(write=True) as connection:
                mine = tables.accounts.c.population_id == population_id
                if connection.execute(select(tables.accounts.c.seq).where(mine)).one_or_none() is None:
                    connection.execute(
                        tables.accounts.insert().values(population_id=population_id, seq=1, hash=first.hash)
                    )
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
        public_schema: str | None = None,
        periods: PeriodTerms | None = None,
        calendar: tuple[int, str, str] | None = None,
        spent_before: SpentBefore | None = None,
    ) -> None:
        """Set the population's total budget, once, with its privacy unit and neighbouring relation.

        delta_extra: see `make_budget`. public_schema: why the columns, bounds, vocabulary and thresholds that
        runs on it use are public; None: not declared, which statements show. periods, calendar: for the unit
        client_period only: its terms, and (version, checksum, token of the first period) of the population
        as it is now, from which on the account is kept by period. spent_before: what an earlier account of
        the same people has spent; it is charged first. Raises ConfigError for a bad value, BudgetExists if
        there is a budget.
        """
        if unit not in get_args(Unit) or relation not in get_args(Relation):
            raise ConfigError(
                f"unit {unit!r} with relation {relation!r} is unknown.",
                f"Units: {', '.join(get_args(Unit))}. Relations: {', '.join(get_args(Relation))}.",
            )
        if (unit == CLIENT_PERIOD) != (periods is not None) or (periods is None) != (calendar is None):
            raise ConfigError(
                f"a budget for unit {unit!r} {'needs' if unit == CLIENT_PERIOD else 'has no'} calendar periods.",
                "Entries of client and period need the unit client_period, and it needs them.",
            )
        if periods is not None and delta_extra:
            raise ConfigError(
                "thresholding steps have no privacy cost per client and period: a client has data in several periods, "
                "and what a threshold hides of one it does not hide of several at once.",
                "Leave delta_extra out.",
            )
        budget = make_budget(epsilon, delta, delta_extra if periods is None else 0.0)
        said = None if public_schema is None else checked_reason(public_schema)
        charge = None if spent_before is None else _starting_charge(spent_before, budget, periods is not None)
        with self._writing(population_id) as writer:
            old = self._recent(writer.connection, writer.account).budget
            if old is not None:
                raise BudgetExists(
                    f"population {population_id!r} has a budget: epsilon = {old.epsilon:g}, delta = {old.delta:g}.",
                    "It cannot be set again. `fedcore budget raise` raises it, and is shown permanently.",
                )
            terms = {"unit": unit, "relation": relation, "currency": CURRENCY, "public_schema": said}
            writer.set_account(**terms)
            writer.set_budget(budget)
            record = {"budget": budget.numbers(), **terms}
            if periods is None or calendar is None:
                writer.append("budget set", None, record)
            else:
                writer.append("budget set", None, {**record, "needs": [PERIODS], "periods": plain(periods)})
                version, manifest, token = calendar
                writer.set_account(mode=BY_COHORT)
                writer.append(COHORTS, None, {"founders": version, "manifest": manifest, "token": token})
            if charge is not None:
                writer.append(SPENT_BEFORE, None, plain(charge))

    def say_public_schema(self, population_id: str, reason: str) -> None:
        """Declare why columns, bounds, vocabulary and thresholds are public. Earlier declarations stay in the history.

        Raises BudgetMissing, ConfigError for an empty reason.
        """
        said = checked_reason(reason)
        with self._writing(population_id) as writer:
            self._recent(writer.connection, writer.account).required_budget()
            writer.set_account(public_schema=said)
            writer.append("public schema", None, {"reason": said})

    def raise_budget(self, population_id: str, epsilon: float, delta: float) -> None:
        """Give the population a larger budget, by a record of the chain that is shown permanently.

        delta_extra keeps its share of delta. Raises BudgetMissing, ConfigError, BudgetExists if it is not a raise.
        """
        with self._reading(population_id) as (connection, row):
            old = self._recent(connection, row).budget
        if old is None:
            raise BudgetMissing(f"population {population_id!r} has no budget to raise.", "Set one: fedcore budget set.")
        extra = old.delta_extra if delta == old.delta else max(old.delta_extra, delta * (old.delta_extra / old.delta))
        if epsilon < old.epsilon or delta < old.delta or (epsilon, delta) == (old.epsilon, old.delta):
            raise BudgetExists(
                f"population {population_id!r} has epsilon = {old.epsilon:g}, delta = {old.delta:g}; "
                f"epsilon = {epsilon:g}, delta = {delta:g} is not a raise.",
                "A budget is never lowered or renewed; name larger values.",
            )
        new = make_budget(epsilon, delta, extra)
        new = replace(new, rho_max=max(new.rho_max, old.rho_max))  # equal up to the rounding of the root search
        with self._writing(population_id) as writer:
            if self._recent(writer.connection, writer.account).budget != old:
                raise db.Conflict("another process raised the budget at the same time.", "Look at it, then try again.")
            writer.set_budget(new)
            writer.append("budget raise", None, {"budget": new.numbers(), "before": old.numbers()})

    def balance(self, population_id: str) -> Balance:
        """What of the budget is spent, reserved and left, as the records say from the newest checkpoint on.

        Raises LedgerError for an unregistered population.
        """
        with self._reading(population_id) as (connection, _):
            return replay(self.id, population_id, recent_chain(connection, population_id), part=True).balance()

    def history(self, population_id: str) -> list[dict[str, Any]]:
        """The records in order, for display: seq, kind, run_id, hash and what the record says; `at` in seconds."""
        with self._reading(population_id) as (connection, _):
            chain = read_chain(connection, population_id)
        return [
            {
                **decoded_object(record.payload, f"record {record.seq} of population {population_id!r}"),
                "seq": record.seq,
                "kind": record.kind,
                "run_id": record.run_id,
                "hash": record.hash,
            }
            for record in chain
        ]

    def account(self, population_id: str, *, through: int | None = None) -> Account:
        """The account as the whole chain gives it, or its records up to number `through`. Raises LedgerTampered."""
        with self._reading(population_id) as (connection, _):
            chain = read_chain(connection, population_id)
        return replay(self.id, population_id, [record for record in chain if through is None or record.seq <= through])

    # --- the chain ----------------------------------------------------------------------------------------------

    def head(self, population_id: str) -> ChainHead:
        """The newest record of the population's chain."""
        with self._transaction(write=False) as connection:
            row = self._account_row(connection, population_id, None)
        return ChainHead(self.id, row.seq, row.hash)

    def length(self, population_id: str) -> int:
        """The number of records of the population's chain; 0 if it is not registered."""
        with self._transaction(write=False) as connection:
            mine = tables.accounts.c.population_id == population_id
            rows = find(connection, tables.accounts, mine, columns=("seq",))
        return int(rows[0].seq) if rows else 0

    def lacks(self, population_id: str, heads: Iterable[ChainHead]) -> list[ChainHead]:
        """Those of these heads, seen before, that are in the chain no more."""
        wanted = [head for head in heads if head.ledger_id != self.id or head.seq or head.hash != GENESIS]
        numbers = sorted({head.seq for head in wanted})
        mine, found = tables.records.c.population_id == population_id, set()
        with self._transaction(write=False) as connection:
            for row in find_all(
                connection, tables.records, tables.records.c.seq, numbers, mine, columns=("seq", "hash")
            ):
                found.add((self.id, row.seq, row.hash))
        return [head for head in wanted if (head.ledger_id, head.seq, head.hash) not in found]

    def contains(self, population_id: str, head: ChainHead) -> bool:
        """Whether the record that was the head then is still in the chain."""
        return not self.lacks(population_id, [head])

    def check_not_rolled_back(self, population_id: str, head: ChainHead) -> None:
        """Raises LedgerRolledBack if the chain lacks `head`."""
        if not self.contains(population_id, head):
            raise LedgerRolledBack(
                f"ledger {self.id} does not contain record {head.seq} of population {population_id!r}, which was seen "
                "before: an older copy was put in its place.",
                "Restore the newest copy; what was spent since the older one cannot be forgotten.",
            )

    def accepted(self, population_id: str) -> set[tuple[int, str]]:
        """(number, hash) of the heads that the chain lacks and that its owner gave up."""
        kind = tables.records.c.kind == LOSS
        with self._reading(population_id) as (connection, _):
            losses = read_chain(connection, population_id, kind)
        given_up = set()
        for loss in losses:
            payload = decoded_object(loss.payload, f"record {loss.seq} of population {population_id!r}")
            heads = payload.get("seen")
            for head in heads if isinstance(heads, list) else ():
                if isinstance(head, dict) and head.keys() >= {"seq", "hash"}:
                    given_up.add((head["seq"], head["hash"]))
        return given_up

    def accept_loss(self, population_id: str, reason: str, seen: Iterable[ChainHead]) -> None:
        """Acknowledge lost records of a ledger that was rolled back, or whose witness is gone. The record is shown
        permanently.

        seen: known heads that this ledger lacks. Raises ConfigError for an empty reason.
        """
        lost = [{"seq": head.seq, "hash": head.hash} for head in seen]
        said = checked_reason(reason)
        with self._writing(population_id) as writer:
            self._recent(writer.connection, writer.account)
            writer.append(LOSS, None, {"reason": said, "seen": lost})

    def anchor(self, population_id: str) -> str | None:
        """The place of the population's anchor, as its newest record states it; None without an anchor."""
        mine = tables.accounts.c.population_id == population_id
        with self._transaction(write=False, locks=True) as connection:
            rows = find(connection, tables.accounts, mine, lock="read")
            return self._recent(connection, self._known(rows, population_id)).anchor if rows else None

    def set_anchor(self, population_id: str, place: str | None, reason: str | None = None) -> None:
        """Record the place of the anchor. place: None if the population has no anchor from now on. reason: why it
        changes. Raises ConfigError for an empty reason.
        """
        why = {} if reason is None else {"reason": checked_reason(reason)}
        with self._writing(population_id) as writer:
            self._recent(writer.connection, writer.account)
            writer.append(ANCHOR, None, {"place": place, **why})

    def verify(self, population_id: str) -> Balance:
        """Recompute every hash and the whole balance from the chain, and compare checkpoints, tables and published
        arrays with it.

        Returns the recomputed balance. Raises LedgerTampered naming what does not agree.
        """
        with self._reading(population_id) as (connection, row):
            return self._whole(connection, row, arrays=True).balance()

    def verify_all(self) -> dict[str, ChainHead]:
        """The newest record of each population, whose chain is verified. Accounts that this version refuses by name are
        left out: nothing is known of them. Raises LedgerTampered.
        """
        heads = {}
        for population_id in self.populations():
            with suppress(LedgerRetired):
                self.verify(population_id)
                heads[population_id] = self.head(population_id)
        return heads

    def _whole(self, connection: Connection, row: Row[Any], *, arrays: bool = False) -> Account:
        """The account from its first record on, compared with the tables. Raises LedgerTampered."""
        account = replay(self.id, row.population_id, read_chain(connection, row.population_id))
        compare_tables(connection, self.id, account, row, part=False, arrays=arrays)
        return account

    def _recent(self, connection: Connection, row: Row[Any]) -> Account:
        """The account from its newest checkpoint on, compared with the tables. Raises LedgerTampered."""
        account = replay(self.id, row.population_id, recent_chain(connection, row.population_id), part=True)
        part = account.checkpoint > 0
        compare_tables(connection, self.id, account, row, part=part, arrays=False)
        return account


def _starting_charge(said: SpentBefore, budget: Budget, by_period: bool) -> SpentBefore:
    """As it is recorded. Raises ConfigError."""
    rho = said.rho
    if not (math.isfinite(rho) and rho >= 0):
        raise ConfigError(f"What was spent before must be a finite rho of at least 0, not {rho!r}.")
    if by_period and rho:
        raise ConfigError(
            "A budget per client and period cannot carry a starting charge: what each period has lost is unknown.",
            "Ingest the data without --period, and set a budget per client.",
        )
    if rho > budget.rho_max:
        raise ConfigError(
            f"These people have spent rho = {rho:.6g} (epsilon = {budget.epsilon_of(rho):.4g}), more than the budget "
            f"allows: rho = {budget.rho_max:.6g} (epsilon = {budget.epsilon:g}). No budget was set.",
            "Set a larger budget, if you can justify that to the people in it.",
        )
    return SpentBefore(float(rho), checked_reason(said.reason))


def checked_reason(reason: str) -> str:
    """The reason without space around it. Raises ConfigError if it is empty or long."""
    said = " ".join(reason.split())
    if not 0 < len(said) <= LONGEST_REASON:
        raise ConfigError(f"a reason has 1 to {LONGEST_REASON} characters.", "Write one or two sentences.")
    return said
