"""The privacy ledger: what was promised to the people of a population, and what has been spent of it.

One ledger serves many populations, and outlives every run. A release goes reserved -> charged -> published, or ends as
forfeited (charged, but its value was lost) or returned (never charged). A release is charged durably before its noise
is drawn, and published in one transaction under a unique key, so that at most one noised value of it ever exists
outside the process that drew it. Everything that happens to a population is a record in its hash chain
(`fedcore.privacy.ledger.chain`); no record depends on the data of clients. Described in docs/privacy/ledger.md.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
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
    PrivacyError,
    RunBusy,
    RunError,
    SensitivityError,
    UnplannedRelease,
)
from fedcore.privacy.accounting import exact_sum
from fedcore.privacy.ledger import database as db
from fedcore.privacy.ledger.accounts import LONGEST_NAME, Accounts
from fedcore.privacy.ledger.chain import (
    CHARGED,
    FORFEITED,
    OPEN,
    PUBLISHED,
    RESERVED,
    RETURNED,
    Account,
    Balance,
    ChainHead,
    canonical,
    digest,
)
from fedcore.privacy.ledger.chain_writer import RESTORE, ChainWriter
from fedcore.privacy.ledger.database import default_ledger_url
from fedcore.privacy.ledger.leases import Lease
from fedcore.privacy.ledger.queries import refusal
from fedcore.privacy.plan import PlannedRelease, Relation, Unit
from fedcore.storage.process import Holder, this_process

__all__ = ["Balance", "ChainHead", "Charge", "Lease", "Ledger", "create_ledger", "default_ledger_url", "open_ledger"]

ENDINGS = ("finished", "abandoned", "budget exhausted")
LEASE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Charge:
    """A paid release, whose noise may now be drawn once.

    attempt: 0 for the planned one, 1, 2, ... for spares.
    stored:  the value, if it was published before; then nothing was charged, and nothing is to be drawn.
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
    row = {"only": 1, "id": uuid.uuid4().hex, "schema": db.SCHEMA, "test": test}
    try:
        with db.transaction(engine, where, write=True) as connection:
            if not inspect(connection).has_table(db.ledger_table.name):  # else: never add to one of another schema
                db.metadata.create_all(connection)
            if connection.execute(select(db.ledger_table)).one_or_none() is None:
                connection.execute(db.ledger_table.insert().values(row))
    except db.Conflict:  # another process made it first
        pass
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
        known = inspect(connection).has_table(db.ledger_table.name)
        row = connection.execute(select(db.ledger_table)).one_or_none() if known else None
    if row is None:
        raise LedgerMissing(f"{where!r} holds no ledger.", "Check the address in FEDCORE_LEDGER.")
    if row.schema != db.SCHEMA:
        raise LedgerError(
            f"the ledger {where!r} has schema {row.schema}; this version of fedcore knows {db.SCHEMA}.",
            "Use the version of fedcore that wrote it, or a newer one.",
        )
    if expected_id is not None and row.id != expected_id:
        raise LedgerMissing(
            f"{where!r} is ledger {row.id}, and ledger {expected_id} is needed.",
            "Restore the right one, or say where it is with FEDCORE_LEDGER.",
        )
    return Ledger(engine, where, row.id, row.test, clock)


class Ledger(Accounts):
    """A ledger: its accounts (populations, budgets, chains), and how runs reserve, charge and publish.

    Made by `create_ledger` and `open_ledger`.
    """

    # --- reservations -------------------------------------------------------------------------------------------

    def reserve(
        self,
        population_id: str,
        run_id: str,
        plan: Sequence[PlannedRelease],
        spares: int,
        *,
        unit: Unit = "client",
        relation: Relation = "add_or_remove_one",
        secure: bool,
        statement: dict[str, Any] | None = None,
    ) -> None:
        """Set aside the price of a plan and of `spares` redraws of its dearest release, before data are opened.

        If the run has reserved the same plan before, nothing happens. secure: whether the noise protects people. Raises
        BudgetMissing, BudgetExceeded with the numbers, PrivacyError for another unit or relation, for test noise on a
        ledger for people, or for another plan under the same run id, ConfigError for a malformed plan.
        """
        if not secure and not self.is_test:
            raise PrivacyError(
                f"run {run_id!r} uses test noise, and ledger {self.id} is for people.",
                "Use a population whose ledger was made for tests.",
            )
        self._check_plan(run_id, plan, spares)
        items = [planned.to_json() for planned in plan]
        payload = {
            "plan": items,
            "spares": spares,
            "spare_rho": max(p.rho for p in plan),
            "spare_delta": max(p.delta for p in plan),
            "unit": unit,
            "relation": relation,
            "secure": secure,
            "statement": statement,
        }
        identity = {**payload, "population_id": population_id, "statement": None}
        payload = json.loads(canonical({**payload, "plan_digest": digest(canonical(identity))}))
        with self._writing(population_id) as writer:
            known = select(db.runs.c.plan_digest).where(db.runs.c.run_id == run_id)
            reserved = writer.connection.execute(known).scalar_one_or_none()
            if reserved == payload["plan_digest"]:
                return
            if reserved is not None:
                raise PrivacyError(f"run {run_id!r} has reserved another plan.", "Give the new run a new name.")
            account = self._verified(writer.connection, writer.account, arrays=False)
            budget = account.required_budget()
            self._check_unit_and_relation(account, run_id, unit, relation)
            rho = exact_sum([p.rho for p in plan]) + spares * Fraction(payload["spare_rho"])
            delta = exact_sum([p.delta for p in plan]) + spares * Fraction(payload["spare_delta"])
            rho_spent, rho_reserved, delta_spent, delta_reserved = account.totals()
            rho_fits = rho_spent + rho_reserved + rho <= Fraction(budget.rho_max)
            fits = rho_fits and delta_spent + delta_reserved + delta <= Fraction(budget.delta_extra)
            if fits:
                self._write_reservation(writer, run_id, payload)
        if not fits:  # composed outside the lock, since it converts to epsilon
            raise BudgetExceeded(*refusal(budget, account.balance(), run_id, rho, delta, spares))

    def _check_plan(self, run_id: str, plan: Sequence[PlannedRelease], spares: int) -> None:
        names = [planned.name for planned in plan]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"the plan of run {run_id!r} is empty, or names a release twice.")
        if max(map(len, [run_id, *names])) > LONGEST_NAME:
            raise ConfigError(f"names of runs and releases have at most {LONGEST_NAME} characters.")
        if type(spares) is not int or spares < 0:
            raise ConfigError(f"the number of spare releases is a whole number from 0, not {spares!r}.")
        if not all(0 <= planned.delta < 1 and math.isfinite(planned.rho) for planned in plan):
            raise ConfigError(f"a price in the plan of run {run_id!r} is infinite, or a delta is not between 0 and 1.")

    def _check_unit_and_relation(self, account: Account, run_id: str, unit: str, relation: str) -> None:
        if (unit, relation) != (account.unit, account.relation):
            raise PrivacyError(
                f"population {account.population_id!r} promises privacy for one {account.unit} under "
                f"{account.relation}; run {run_id!r} is made for one {unit} under {relation}.",
                "A price in one is no price in the other; plan it in the population's.",
            )

    def _write_reservation(self, writer: ChainWriter, run_id: str, payload: dict[str, Any]) -> None:
        writer.append("reserve", run_id, payload)
        writer.connection.execute(
            db.runs.insert().values(
                run_id=run_id,
                population_id=writer.population_id,
                plan=canonical(payload["plan"]),
                plan_digest=payload["plan_digest"],
                spares=payload["spares"],
                used=0,
                spare_rho=payload["spare_rho"],
                spare_delta=payload["spare_delta"],
                secure=payload["secure"],
                status=OPEN,
                token=0,
            )
        )
        rows = [
            {
                "run_id": run_id,
                "round": item["round"],
                "name": item["name"],
                "attempt": 0,
                "state": RESERVED,
                "rho": item["rho"],
                "delta": item["delta"],
            }
            for item in payload["plan"]
        ]
        writer.connection.execute(db.releases.insert(), rows)

    def has_reservation(self, run_id: str) -> bool:
        """Whether the run has reserved its plan and has not ended."""
        return self.run_status(run_id) == OPEN

    def run_status(self, run_id: str) -> str | None:
        """ "open", "finished", "abandoned", "budget exhausted"; None for a run that never reserved."""
        with self._transaction(write=False) as connection:
            query = select(db.runs.c.status).where(db.runs.c.run_id == run_id)
            status: str | None = connection.execute(query).scalar_one_or_none()
        return status

    # --- leases -------------------------------------------------------------------------------------------------

    def acquire(self, run_id: str, *, take_over: bool = False, ttl: float = LEASE_SECONDS) -> Lease:
        """The right to charge and publish for a run; every earlier lease of it becomes stale.

        Raises RunBusy if its holder lives: on this host, its process exists; elsewhere, it renewed less than its `ttl`
        seconds ago. take_over: take the run even from a holder that lives.
        """
        with self._writing_run(run_id) as writer:
            run = writer.run(run_id)
            if run.holder is not None and not take_over:
                try:
                    holder = Holder(**json.loads(run.holder))
                except (ValueError, TypeError):
                    raise LedgerTampered(
                        f"the holder of run {run_id!r} in ledger {self.id} is garbled.",
                        f"{RESTORE} Or take the run over.",
                    ) from None
                if holder.alive(expired=self.clock() > run.expires):
                    raise RunBusy(
                        f"process {holder.pid} on {holder.host.split()[0]} is working on run {run_id!r}.",
                        "Wait for it, or stop it; take the run over only if it hangs.",
                    )
            token = run.token + 1
            writer.set_run(run_id, token=token, holder=canonical(this_process().to_json()), expires=self.clock() + ttl)
            writer.append("acquire", run_id, {"token": token, "take_over": take_over})
        return Lease(run_id, token)

    def renew(self, lease: Lease, ttl: float = LEASE_SECONDS) -> None:
        """Extend the lease by `ttl` seconds from now. Raises LeaseLost."""
        with self._writing_run(lease.run_id) as writer:
            writer.held_run(lease)
            writer.set_run(lease.run_id, expires=self.clock() + ttl)

    def release(self, lease: Lease) -> None:
        """Give the lease back without ending the run. Nothing happens if it is stale."""
        with self._writing_run(lease.run_id) as writer:
            if writer.run(lease.run_id).token == lease.token:
                writer.set_run(lease.run_id, holder=None, expires=None)

    # --- releases -----------------------------------------------------------------------------------------------

    def charge(self, lease: Lease, planned: PlannedRelease) -> Charge:
        """Pay for a release, durably, so that its noise may be drawn once.

        An earlier attempt that was charged and not published is forfeited, and a spare pays. Raises LeaseLost,
        UnplannedRelease, BudgetExceeded if no spare is left, RunError if the run has ended.
        """
        run_id, round, name = lease.run_id, planned.round, planned.name
        with self._writing_run(run_id) as writer:
            run = writer.held_run(lease)
            if canonical(planned.to_json()) not in {canonical(item) for item in json.loads(run.plan)}:
                raise UnplannedRelease(f"run {run_id!r} has not reserved release {name!r} of round {round} like this.")
            stored = self._stored(writer.connection, run_id, name)
            if stored is not None:
                return Charge(run_id, round, name, stored[0], stored[1])
            if run.status != OPEN:
                kind = BudgetExceeded if run.status == "budget exhausted" else RunError
                raise kind(f"run {run_id!r} has ended ({run.status}).", "Start a new run.")
            last = writer.attempts(run_id, round, name)[-1]
            if last.state == PUBLISHED:
                raise LedgerTampered(
                    f"the published value of release {name!r} of run {run_id!r} is gone from ledger "
                    f"{self.id}; it is not drawn a second time.",
                    RESTORE,
                )
            if last.state == RESERVED:
                writer.set_state(run_id, round, name, 0, CHARGED)
                attempt = 0
            else:
                attempt = self._use_spare(writer, run, last)
            writer.append(
                "charge",
                run_id,
                {
                    "round": round,
                    "name": name,
                    "attempt": attempt,
                    "rho": planned.rho,
                    "delta": planned.delta,
                    "token": lease.token,
                },
            )
        return Charge(run_id, round, name, attempt)

    def _use_spare(self, writer: ChainWriter, run: Row[Any], last: Row[Any]) -> int:
        if run.used >= run.spares:
            raise BudgetExceeded(
                f"run {run.run_id!r} was interrupted while release {last.name!r} was drawn, and its "
                f"spare releases are used up ({run.spares} of {run.spares}).",
                "Its last published state is usable. Start a new run for more.",
            )
        if last.state == CHARGED:
            writer.forfeit(run.run_id, last.round, last.name, last.attempt)
        attempt: int = last.attempt + 1
        writer.connection.execute(
            db.releases.insert().values(
                run_id=run.run_id,
                round=last.round,
                name=last.name,
                attempt=attempt,
                state=CHARGED,
                rho=last.rho,
                delta=last.delta,
            )
        )
        writer.set_run(run.run_id, used=run.used + 1)
        return attempt

    def publish(self, lease: Lease, charge: Charge, noised: np.ndarray) -> np.ndarray:
        """Store the noised value, and only now may it leave this process. Returns the value that holds: int64.

        If another value of the same release was published before, `noised` is discarded and that one is returned.
        Raises LeaseLost, SensitivityError for another shape or dtype than planned.
        """
        run_id, round, name = charge.run_id, charge.round, charge.name
        with self._writing_run(run_id) as writer:
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
            shape = next(tuple(p["shape"]) for p in json.loads(run.plan) if (p["round"], p["name"]) == (round, name))
            if not isinstance(noised, np.ndarray) or noised.dtype != np.int64 or noised.shape != shape:
                raise SensitivityError(f"release {name!r} is not an int64 array of shape {shape}.")
            which = {"round": round, "name": name, "attempt": charge.attempt}
            data, text = noised.astype("<i8").tobytes(), canonical(list(shape))
            sha256 = hashlib.sha256(text.encode() + data).hexdigest()
            row = {"run_id": run_id, **which, "shape": text, "data": data, "sha256": sha256}
            writer.connection.execute(db.published.insert().values(row))
            writer.set_state(run_id, round, name, charge.attempt, PUBLISHED)
            writer.append("publish", run_id, {**which, "digest": sha256})
        return noised

    def published(self, run_id: str, name: str) -> np.ndarray | None:
        """The published value, int64 of the planned shape; None if there is none. Needs no lease, costs nothing."""
        with self._transaction(write=False) as connection:
            stored = self._stored(connection, run_id, name)
        return None if stored is None else stored[1]

    def _stored(self, connection: Connection, run_id: str, name: str) -> tuple[int, np.ndarray] | None:
        """(attempt, value), checked against the chain's digest."""
        query = select(db.published).where((db.published.c.run_id == run_id) & (db.published.c.name == name))
        row = connection.execute(query).one_or_none()
        if row is None:
            return None
        mine = (db.records.c.run_id == run_id) & (db.records.c.kind == "publish")
        recorded = [json.loads(text) for text in connection.execute(select(db.records.c.payload).where(mine)).scalars()]
        sha256 = hashlib.sha256(row.shape.encode() + row.data).hexdigest()
        if sha256 not in [item["digest"] for item in recorded if item["name"] == name]:
            raise LedgerTampered(
                f"the published value of release {name!r} of run {run_id!r} in ledger {self.id} does "
                "not match its record.",
                RESTORE,
            )
        return row.attempt, np.frombuffer(row.data, "<i8").astype(np.int64).reshape(json.loads(row.shape))

    def finish(self, lease: Lease, status: str) -> None:
        """End the run: return what was never charged, forfeit what was charged and not published, give the lease back.

        status: "finished", "abandoned" or "budget exhausted". A run that has ended stays as it is. Raises LeaseLost.
        """
        if status not in ENDINGS:
            raise ConfigError(f"a run ends as one of {', '.join(ENDINGS)}, not as {status!r}.")
        with self._writing_run(lease.run_id) as writer:
            run = writer.held_run(lease)
            if run.status == OPEN:
                for old, new in ((CHARGED, FORFEITED), (RESERVED, RETURNED)):
                    which = (db.releases.c.run_id == lease.run_id) & (db.releases.c.state == old)
                    writer.connection.execute(update(db.releases).where(which).values(state=new))
                writer.append("finish", lease.run_id, {"status": status})
                writer.set_run(lease.run_id, status=status)
            writer.set_run(lease.run_id, holder=None, expires=None)
