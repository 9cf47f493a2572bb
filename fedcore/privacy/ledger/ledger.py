"""The privacy ledger: the privacy budget of a population, and how much of it was spent.

One ledger serves many populations, and outlives every run. A release goes reserved -> charged -> published, or ends as
forfeited (charged, but its value was lost) or returned (never charged). A release is charged durably before its noise
is drawn, and published in one transaction under a unique key. So at most one noisy value of it ever exists
outside the process that drew it. Everything that happens to a population is a record in its hash chain
(`fedcore.privacy.ledger.replay`); no record depends on the data of clients. Described in docs/privacy/ledger.md.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, inspect, select, update

from fedcore.errors import (
    BudgetExceeded,
    ConfigError,
    LeaseLost,
    LedgerError,
    LedgerMissing,
    LedgerTampered,
    RunBusy,
    RunError,
    SensitivityError,
    UnplannedRelease,
)
from fedcore.privacy.ledger import database as db
from fedcore.privacy.ledger import tables
from fedcore.privacy.ledger.chain import (
    CHARGED,
    FORFEITED,
    OPEN,
    PUBLISHED,
    RESERVED,
    RETURNED,
    Balance,
    ChainHead,
    canonical,
)
from fedcore.privacy.ledger.chain_writer import ChainWriter
from fedcore.privacy.ledger.database import default_ledger_url
from fedcore.privacy.ledger.formats import refuse_unknown_schema
from fedcore.privacy.ledger.leases import Lease
from fedcore.privacy.ledger.redraws import redraw
from fedcore.privacy.ledger.reservations import Reservations
from fedcore.privacy.ledger.rows import RESTORE, decoded, decoded_list, decoded_object, find
from fedcore.privacy.plan import PlannedRelease
from fedcore.storage.plain import plain
from fedcore.storage.process import Holder, this_process

__all__ = ["Balance", "ChainHead", "Charge", "Lease", "Ledger", "create_ledger", "default_ledger_url", "open_ledger"]

ENDINGS = ("finished", "abandoned", "budget exhausted")
LEASE_SECONDS = 120.0
PUBLISH_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Charge:
    """A charged release, whose noise may now be drawn once.

    attempt: 0 for the planned one, 1, 2, ... for redrawn ones.
    stored:  the value, if it was published before; then nothing was charged, and nothing must be drawn.
    """

    run_id: str
    round: int
    name: str
    attempt: int
    stored: np.ndarray | None = None


def create_ledger(url: str, *, test: bool = False, clock: Callable[[], float] = time.time) -> Ledger:
    """The ledger at `url`, made if there is none.

    test: a ledger for test noise; it can never be used for people. Raises LedgerError if the ledger that is there is of
    the other kind, or cannot be written.
    """
    parsed = db.parse_url(url)
    engine, where = db.connect(parsed, create=True), parsed.render_as_string()
    row = {"only": 1, "id": uuid.uuid4().hex, "schema": tables.SCHEMA, "test": test}
    try:
        with db.transaction(engine, where, write=True) as connection:
            if not inspect(connection).has_table(tables.ledger_table.name):  # else: never add to one of another schema
                tables.metadata.create_all(connection)
            if connection.execute(select(tables.ledger_table)).one_or_none() is None:
                connection.execute(tables.ledger_table.insert().values(row))
    except db.Conflict:  # another process made it first
        pass
    engine.dispose()
    ledger = open_ledger(url, clock=clock)
    if ledger.is_test != test:
        kinds = ("a ledger for people", "a test ledger")
        raise LedgerError(f"{where!r} is {kinds[ledger.is_test]}, not {kinds[test]}.", "Use another address.")
    return ledger


def open_ledger(url: str, expected_id: str | None = None, *, clock: Callable[[], float] = time.time) -> Ledger:
    """The ledger at `url`; never makes one.

    expected_id: the id that a population names. Raises LedgerMissing if the database, its tables or this ledger are not
    there, LedgerError if it cannot be used.
    """
    parsed = db.parse_url(url)
    engine, where = db.connect(parsed, create=False), parsed.render_as_string()
    with db.transaction(engine, where, write=False) as connection:
        known = inspect(connection).has_table(tables.ledger_table.name)
        row = connection.execute(select(tables.ledger_table)).one_or_none() if known else None
    if row is None:
        raise LedgerMissing(f"{where!r} holds no ledger.", "Check the address in FEDCORE_LEDGER.")
    refuse_unknown_schema(row.schema, where)
    if not isinstance(row.id, str):
        raise LedgerTampered(f"the id of the ledger {where!r} is none that fedcore gave.", RESTORE)
    if expected_id is not None and row.id != expected_id:
        raise LedgerMissing(
            f"{where!r} is ledger {row.id}, and ledger {expected_id} is needed.",
            "Restore the right one, or set FEDCORE_LEDGER to its place.",
        )
    return Ledger(engine, where, row.id, row.test, clock)


class Ledger(Reservations):
    """A ledger: its accounts (populations, budgets, chains), and how runs reserve, charge and publish.

    Made by `create_ledger` and `open_ledger`. published_as: the lease under which this object published values the last
    time, and the newest record of the chain then. None before that, or once it was taken from here.
    """

    published_as: tuple[Lease, ChainHead] | None = None

    # --- leases -------------------------------------------------------------------------------------------------

    def acquire(self, run_id: str, *, take_over: bool = False, ttl: float = LEASE_SECONDS) -> Lease:
        """The right to charge and publish for a run; every earlier lease of it becomes stale.

        Raises RunBusy if its holder lives: on this host, its process exists; elsewhere, it renewed less than its `ttl`
        seconds ago. take_over: take the run even from a holder that lives.
        """
        with self._writing_run(run_id) as writer:
            run = writer.run(run_id)
            if run.holder is not None and not take_over:
                holder = self._holder(run)
                if holder.alive(expired=self.clock() > (run.expires or 0.0)):
                    raise RunBusy(
                        f"process {holder.pid} on {holder.host.split()[0]} is working on run {run_id!r}.",
                        "Wait for it, or stop it; take the run over only if it is stalled.",
                    )
            token = run.token + 1
            writer.set_run(run_id, token=token, holder=canonical(plain(this_process())), expires=self.clock() + ttl)
            writer.append("acquire", run_id, {"token": token, "take_over": take_over})
        return Lease(run_id, token)

    def _holder(self, run: Row[Any]) -> Holder:
        try:
            holder = Holder(**decoded_object(run.holder, "a holder"))
            if [*map(type, (holder.host, holder.pid, holder.started))] == [str, int, float] and 0 < holder.pid < 2**31:
                return holder
        except (LedgerTampered, TypeError):
            pass
        raise LedgerTampered(
            f"the holder of run {run.run_id!r} in ledger {self.id} is garbled.", f"{RESTORE} Or take the run over."
        )

    def holder(self, run_id: str) -> tuple[Holder, bool] | None:
        """(process, whether its lease has expired) that holds a run; None for a run that none holds, or that never
        reserved. Raises LedgerTampered.
        """
        with self._transaction(write=False) as connection:
            rows = find(connection, tables.runs, tables.runs.c.run_id == run_id)
        if not rows or rows[0].holder is None:
            return None
        return self._holder(rows[0]), self.clock() > (rows[0].expires or 0.0)

    def renew(self, lease: Lease, ttl: float = LEASE_SECONDS) -> ChainHead:
        """Extend the lease by `ttl` seconds from now. Returns the newest record of the chain. Raises LeaseLost."""
        with self._writing_run(lease.run_id) as writer:
            writer.held_run(lease)
            writer.set_run(lease.run_id, expires=self.clock() + ttl)
        return ChainHead(self.id, writer.seq, writer.hash)

    def release(self, lease: Lease) -> None:
        """Give the lease back without ending the run. Nothing happens if it is stale."""
        with self._writing_run(lease.run_id) as writer:
            if writer.run(lease.run_id).token == lease.token:
                writer.set_run(lease.run_id, holder=None, expires=None)

    # --- releases -----------------------------------------------------------------------------------------------

    def charge(self, lease: Lease, planned: PlannedRelease) -> Charge | None:
        """Charge one release: `charge_round` of it alone."""
        charges = self.charge_round(lease, [planned])
        return None if charges is None else charges[0]

    def charge_round(self, lease: Lease, planned: Sequence[PlannedRelease]) -> list[Charge] | None:
        """Charge releases of a round in one transaction, durably, so that the noise of each may be drawn once.

        An earlier attempt that was charged and not published is forfeited, and charged again as
        `fedcore.privacy.ledger.redraws` decides for each. None if a release was given up for that: the run ends before
        its round, and what was charged in it stays charged. An error charges nothing. Raises LeaseLost,
        UnplannedRelease, BudgetExceeded if no budget is left, RunError if the run has ended.
        """
        charges = []
        with self._writing_run(lease.run_id) as writer:
            for release in planned:
                charge = self._charge(writer, lease, release)
                if charge is None:
                    return None
                charges.append(charge)
        return charges

    def _charge(self, writer: ChainWriter, lease: Lease, planned: PlannedRelease) -> Charge | None:
        run_id, round, name = lease.run_id, planned.round, planned.name
        run = writer.held_run(lease)
        plan = decoded_list(run.plan, f"the plan of run {run_id!r}")
        if canonical(planned.to_json()) not in {canonical(item) for item in plan}:
            raise UnplannedRelease(f"run {run_id!r} has not reserved release {name!r} of round {round} like this.")
        stored = self._stored(writer.connection, run_id, name)
        if stored is not None:
            return Charge(run_id, round, name, stored[0], stored[1])
        if run.status != OPEN:
            kind = BudgetExceeded if run.status == "budget exhausted" else RunError
            raise kind(f"run {run_id!r} has ended ({run.status}).", "Start a new run.")
        last = writer.attempts(run_id, round, name)[-1]
        if last.state == RETURNED:
            return None
        if last.state == PUBLISHED:
            raise LedgerTampered(
                f"the published value of release {name!r} of run {run_id!r} is gone from ledger "
                f"{self.id}; it is not drawn a second time.",
                RESTORE,
            )
        if last.state == RESERVED:
            writer.set_state(run_id, round, name, 0, CHARGED)
            attempt = 0
        elif not self._pay_again(writer, run, last):
            return None
        else:
            attempt = last.attempt + 1
        writer.append(
            "charge",
            run_id,
            {
                "round": round,
                "name": name,
                "attempt": attempt,
                "rho": planned.rho,
                "delta": planned.delta,
                "noise": planned.law,
                "token": lease.token,
                **({} if planned.noise_share is None else {"noise_share": plain(planned.noise_share)}),
            },
        )
        return Charge(run_id, round, name, attempt)

    def _pay_again(self, writer: ChainWriter, run: Row[Any], last: Row[Any]) -> bool:
        """Charge one more attempt at a release whose last one was lost; False if the release is skipped instead."""
        run_id, round, name = run.run_id, last.round, last.name
        now = self._account_row(writer.connection, writer.population_id, "write")  # with what this transaction added
        way = redraw(self._recent(writer.connection, now), run_id, round, name)
        if way is None:
            raise BudgetExceeded(
                f"run {run_id!r} was interrupted during release {name!r}. Repeating the release costs another rho = "
                f"{last.rho:.4g}, but there is no spare release, no unreserved budget and no round to skip.",
                "The last published state is usable. Start a new run to continue.",
            )
        if last.state == CHARGED:
            writer.forfeit(run_id, round, name, last.attempt)
        if way.given_up is not None:
            writer.give_up(run_id, way.given_up)
        if way.paid_by is None:
            return False
        again = {"round": round, "name": name, "attempt": last.attempt + 1}
        price = {"rho": last.rho, "delta": last.delta}
        if way.paid_by == "extension":
            writer.append("extend", run_id, {**again, **price})
        else:
            writer.set_run(run_id, used=run.used + 1)
        row = {"run_id": run_id, **again, **price, "state": CHARGED}
        writer.connection.execute(tables.releases.insert().values(row))
        return True

    def publish(self, lease: Lease, charge: Charge, noised: np.ndarray) -> np.ndarray:
        """Store one noisy value: `publish_round` of it alone."""
        return self.publish_round(lease, [charge], [noised])[0]

    def publish_round(self, lease: Lease, charges: Sequence[Charge], noised: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Store the noisy values of a round in one transaction; only then may they leave this process. Returns the
        valid values: int64. The lease is extended, as `renew` does it.

        If another value of a release was published before, the new one is discarded and that one is returned. While
        the database fails, the same arrays are tried again for PUBLISH_SECONDS, because they are charged, and would be
        lost with the process. An error stores nothing. Raises LeaseLost, SensitivityError for another shape or dtype
        than planned.
        """

        def work() -> list[np.ndarray]:
            with self._writing_run(lease.run_id) as writer:
                values = [self._publish(writer, lease, *pair) for pair in zip(charges, noised, strict=True)]
                writer.set_run(lease.run_id, expires=self.clock() + LEASE_SECONDS)
            self.published_as = lease, ChainHead(self.id, writer.seq, writer.hash)
            return values

        return db.persist(work, PUBLISH_SECONDS)

    def _publish(self, writer: ChainWriter, lease: Lease, charge: Charge, noised: np.ndarray) -> np.ndarray:
        run_id, round, name = charge.run_id, charge.round, charge.name
        run = writer.held_run(lease)
        stored = self._stored(writer.connection, run_id, name)
        own = [row for row in writer.attempts(run_id, round, name) if row.attempt == charge.attempt]
        if stored is not None:
            if own and own[0].state == CHARGED:
                writer.forfeit(run_id, round, name, charge.attempt)
            return stored[1]
        if not own or own[0].state != CHARGED:
            raise LeaseLost(
                f"attempt {charge.attempt} at release {name!r} of run {run_id!r} was given up.",
                "Another process draws it again.",
            )
        shape = self._shape(run, round, name, noised)
        which = {"round": round, "name": name, "attempt": charge.attempt}
        data, text = noised.astype("<i8").tobytes(), canonical(list(shape))
        sha256 = hashlib.sha256(text.encode() + data).hexdigest()
        row = {"run_id": run_id, **which, "shape": text, "data": data, "sha256": sha256}
        writer.connection.execute(tables.published.insert().values(row))
        writer.set_state(run_id, round, name, charge.attempt, PUBLISHED)
        writer.append("publish", run_id, {**which, "digest": sha256})
        return noised

    def published(self, run_id: str, name: str) -> np.ndarray | None:
        """The published value, int64 of the planned shape; that of a thresholding step may have fewer rows. None if
        there is none. Needs no lease, costs nothing.
        """
        with self._transaction(write=False) as connection:
            stored = self._stored(connection, run_id, name)
        return None if stored is None else stored[1]

    def published_names(self, run_id: str) -> set[str]:
        """The names of the run's published values."""
        with self._transaction(write=False) as connection:
            rows = find(connection, tables.published, tables.published.c.run_id == run_id, columns=("name",))
        return {row.name for row in rows}

    def recorded(self, run_id: str, kind: str) -> dict[str, Any] | None:
        """What the first record of this kind says of a run; None if there is none."""
        mine = (tables.records.c.run_id == run_id) & (tables.records.c.kind == kind)
        with self._transaction(write=False) as connection:
            rows = find(connection, tables.records, mine, columns=("payload",), order=tables.records.c.seq, limit=1)
        return decoded_object(rows[0].payload, f"a record of run {run_id!r}") if rows else None

    def _shape(self, run: Row[Any], round: int, name: str, noised: np.ndarray) -> tuple[int, ...]:
        """Shape of a noisy value. For a thresholding step the plan states the largest number of rows: how many pass the
        threshold is a part of what is published. Raises SensitivityError if it is not as planned.
        """
        for planned in decoded_list(run.plan, f"the plan of run {run.run_id!r}"):
            if isinstance(planned, dict) and (planned.get("round"), planned.get("name")) == (round, name):
                shape = tuple(planned["shape"])
                if not isinstance(noised, np.ndarray) or noised.dtype != np.int64:
                    found = None
                elif planned["delta"] and noised.ndim == len(shape) and len(noised) <= shape[0]:
                    found = (shape[0], *noised.shape[1:])
                else:
                    found = noised.shape
                if found != shape:
                    raise SensitivityError(f"release {name!r} is not an int64 array of shape {shape}.")
                return noised.shape
        raise LedgerTampered(f"the plan of run {run.run_id!r} in ledger {self.id} lacks release {name!r}.", RESTORE)

    def _stored(self, connection: Connection, run_id: str, name: str) -> tuple[int, np.ndarray] | None:
        """(attempt, value), checked against the chain's digest."""
        mine = tables.published.c.run_id == run_id
        rows = find(connection, tables.published, mine, tables.published.c.name == name, limit=1)
        if not rows:
            return None
        row, kind = rows[0], tables.records.c.kind == "publish"
        found = find(connection, tables.records, tables.records.c.run_id == run_id, kind, columns=("payload",))
        recorded = [decoded_object(record.payload, f"a record of run {run_id!r}") for record in found]
        sha256 = hashlib.sha256(row.shape.encode() + row.data).hexdigest()
        if sha256 not in [item.get("digest") for item in recorded if item.get("name") == name]:
            raise LedgerTampered(
                f"the published value of release {name!r} of run {run_id!r} in ledger {self.id} does "
                "not match its record.",
                RESTORE,
            )
        shape = decoded(row.shape, f"the shape of release {name!r} of run {run_id!r}")
        try:
            return row.attempt, np.frombuffer(row.data, "<i8").astype(np.int64).reshape(shape)
        except (ValueError, TypeError):
            raise LedgerTampered(f"release {name!r} of run {run_id!r} is no array.", RESTORE) from None

    def finish(self, lease: Lease, status: str, *, head: str | None = None) -> None:
        """End the run: return what was never charged, forfeit what was charged and not published, give the lease back.

        status: "finished", "abandoned" or "budget exhausted". head: digest of the run's head, kept in the record. A run
        that has ended stays as it is. Raises LeaseLost.
        """
        if status not in ENDINGS:
            raise ConfigError(f"a run ends as one of {', '.join(ENDINGS)}, not as {status!r}.")
        with self._writing_run(lease.run_id) as writer:
            run = writer.held_run(lease)
            if run.status == OPEN:
                for old, new in ((CHARGED, FORFEITED), (RESERVED, RETURNED)):
                    which = (tables.releases.c.run_id == lease.run_id) & (tables.releases.c.state == old)
                    writer.connection.execute(update(tables.releases).where(which).values(state=new))
                writer.append("finish", lease.run_id, {"status": status, "head": head})
                writer.set_run(lease.run_id, status=status)
            writer.set_run(lease.run_id, holder=None, expires=None)
