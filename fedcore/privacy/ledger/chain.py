"""The chain of a population's ledger, as values: records, their hashes, and the account that they add up to.

Nothing here touches a database. `Account.apply` is the definition of every balance; the tables of
`fedcore.privacy.ledger.database` hold the same facts for quick look-up, and `Ledger.verify` compares the two.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

from fedcore.errors import BudgetMissing, LedgerTampered
from fedcore.privacy.accounting import ZcdpBudget, epsilon_of, exact_sum, rounded_down, rounded_up
from fedcore.privacy.plan import Relation, Unit

GENESIS = "0" * 64
OPEN = "open"
RESERVED, CHARGED, PUBLISHED, FORFEITED, RETURNED = "reserved", "charged", "published", "forfeited", "returned"
SPENT = (CHARGED, PUBLISHED, FORFEITED)


def canonical(value: Any) -> str:
    """JSON with one spelling for each value: sorted keys, no spaces, shortest floats that read back exactly."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=operator.index)


def digest(text: str) -> str:
    """SHA-256, hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The newest record of a population: whoever keeps it can tell later whether the ledger was rolled back."""

    ledger_id: str
    seq: int
    hash: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Record:
    """One link. payload: canonical JSON text, exactly as hashed; nothing in it depends on the data of clients."""

    seq: int
    kind: str
    run_id: str | None
    payload: str
    prev_hash: str
    hash: str

    def expected_hash(self, ledger_id: str, population_id: str) -> str:
        link = [ledger_id, population_id, self.seq, self.kind, self.run_id, self.payload, self.prev_hash]
        return digest(canonical(link))


def link(
    ledger_id: str,
    population_id: str,
    seq: int,
    kind: str,
    run_id: str | None,
    payload: Mapping[str, Any],
    prev_hash: str,
) -> Record:
    """The record that follows the one with hash `prev_hash`."""
    record = Record(seq, kind, run_id, canonical(payload), prev_hash, "")
    return Record(seq, kind, run_id, record.payload, prev_hash, record.expected_hash(ledger_id, population_id))


@dataclass(slots=True)
class Attempt:
    """One attempt at a planned release: attempt 0 is the planned one, later ones are paid by spares."""

    state: str
    rho: float
    delta: float
    digest: str | None = None


@dataclass(slots=True)
class RunAccount:
    """What the chain says about one run. attempts: by (round, name, attempt)."""

    plan: list[dict[str, Any]]
    plan_digest: str
    spares: int
    spare_rho: float
    spare_delta: float
    secure: bool
    statement: dict[str, Any] | None
    status: str = OPEN
    used: int = 0
    token: int = 0
    attempts: dict[tuple[int, str, int], Attempt] = field(default_factory=dict)

    @property
    def spares_left(self) -> int:
        return self.spares - self.used if self.status == OPEN else 0

    def spent(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts.values() if attempt.state in SPENT]

    def reserved(self) -> list[tuple[float, float]]:
        """(rho, delta) of everything that may still be charged."""
        waiting = [(a.rho, a.delta) for a in self.attempts.values() if a.state == RESERVED]
        return waiting + [(self.spare_rho, self.spare_delta)] * self.spares_left


@dataclass(frozen=True, slots=True)
class Balance:
    """Where a population's budget stands. Spent and reserved are rounded up, left is rounded down.

    rho_*: zCDP; delta_*: thresholding steps. releases: number of releases by state. budget is None before one is set.
    """

    population_id: str
    budget: ZcdpBudget | None
    unit: Unit | None
    relation: Relation | None
    rho_spent: float
    rho_reserved: float
    rho_left: float
    delta_spent: float
    delta_reserved: float
    delta_left: float
    releases: Mapping[str, int]
    open_runs: tuple[str, ...]

    @property
    def epsilon_spent(self) -> float:
        """Epsilon of what was spent, at delta_conv + delta_spent; 0 if nothing was. Computed when asked for."""
        return epsilon_of(self.rho_spent, self.budget.delta_conv) if self.budget is not None else 0.0

    def to_json(self) -> dict[str, Any]:
        numbers = {
            name: getattr(self, name)
            for name in ("rho_spent", "rho_reserved", "rho_left", "delta_spent", "delta_reserved", "delta_left")
        }
        return {
            "population_id": self.population_id,
            "unit": self.unit,
            "relation": self.relation,
            "budget": None if self.budget is None else self.budget.to_json(),
            "epsilon_spent": self.epsilon_spent,
            **numbers,
            "releases": dict(self.releases),
            "open_runs": list(self.open_runs),
        }


@dataclass(slots=True)
class Account:
    """The state of a population's budget and runs that the records of its chain add up to."""

    population_id: str
    budget: ZcdpBudget | None = None
    unit: Unit | None = None
    relation: Relation | None = None
    runs: dict[str, RunAccount] = field(default_factory=dict)
    seq: int = 0
    hash: str = GENESIS

    def apply(self, record: Record) -> None:
        """Adds a record. Raises KeyError, TypeError or ValueError if it cannot follow those before it."""
        APPLY[record.kind](self, record.run_id or "", json.loads(record.payload))
        self.seq, self.hash = record.seq, record.hash

    def required_budget(self) -> ZcdpBudget:
        """The budget. Raises BudgetMissing if none was set."""
        if self.budget is None:
            raise BudgetMissing(
                f"population {self.population_id!r} has no privacy budget.",
                "Set one with fedcore budget set; then train again.",
            )
        return self.budget

    def totals(self) -> tuple[Fraction, Fraction, Fraction, Fraction]:
        """Exact (rho spent, rho reserved, delta spent, delta reserved)."""
        spent = [attempt for run in self.runs.values() for attempt in run.spent()]
        reserved = [price for run in self.runs.values() for price in run.reserved()]
        return (
            exact_sum(a.rho for a in spent),
            exact_sum(rho for rho, _ in reserved),
            exact_sum(a.delta for a in spent),
            exact_sum(delta for _, delta in reserved),
        )

    def balance(self) -> Balance:
        states = Counter(attempt.state for run in self.runs.values() for attempt in run.attempts.values())
        open_runs = tuple(run_id for run_id, run in self.runs.items() if run.status == OPEN)
        return make_balance(self.population_id, self.budget, self.unit, self.relation, self.totals(), states, open_runs)


def make_balance(
    population_id: str,
    budget: ZcdpBudget | None,
    unit: Unit | None,
    relation: Relation | None,
    totals: tuple[Fraction, Fraction, Fraction, Fraction],
    states: Mapping[str, int],
    open_runs: Iterable[str],
) -> Balance:
    """totals: exact (rho spent, rho reserved, delta spent, delta reserved); states: number of releases by state."""
    rho_spent, rho_reserved, delta_spent, delta_reserved = totals
    rho_max, delta_max = (0.0, 0.0) if budget is None else (budget.rho_max, budget.delta_extra)
    return Balance(
        population_id,
        budget,
        unit,
        relation,
        rounded_up(rho_spent),
        rounded_up(rho_reserved),
        rounded_down(Fraction(rho_max) - rho_spent - rho_reserved),
        rounded_up(delta_spent),
        rounded_up(delta_reserved),
        rounded_down(Fraction(delta_max) - delta_spent - delta_reserved),
        dict(sorted(states.items())),
        tuple(sorted(open_runs)),
    )


# --- the meaning of each kind of record -----------------------------------------------------------------------------
# run_id is empty for records of the population itself.


def _register(account: Account, run_id: str, payload: dict[str, Any]) -> None:
    if account.seq != 0:
        raise ValueError("registered twice")


def _set_budget(account: Account, run_id: str, payload: dict[str, Any]) -> None:
    if account.budget is not None:
        raise ValueError("a second budget")
    account.budget = ZcdpBudget(**payload["budget"])
    account.unit, account.relation = payload["unit"], payload["relation"]


def _raise_budget(account: Account, run_id: str, payload: dict[str, Any]) -> None:
    new, old = ZcdpBudget(**payload["budget"]), account.budget
    if old is None:
        raise ValueError("a raise of no budget")
    if new.rho_max < old.rho_max or new.delta_extra < old.delta_extra:
        raise ValueError("a lowered budget")
    account.budget = new


def _reserve(account: Account, run_id: str, payload: dict[str, Any]) -> None:
    if run_id in account.runs:
        raise ValueError("a run reserved twice")
    run = RunAccount(
        payload["plan"],
        payload["plan_digest"],
        payload["spares"],
        payload["spare_rho"],
        payload["spare_delta"],
        payload["secure"],
        payload["statement"],
    )
    for planned in run.plan:
        run.attempts[planned["round"], planned["name"], 0] = Attempt(RESERVED, planned["rho"], planned["delta"])
    account.runs[run_id] = run


def _acquire(account: Account, run_id: str, payload: dict[str, Any]) -> None:
    run = account.runs[run_id]
    if payload["token"] != run.token + 1:
        raise ValueError("tokens count by one")
    run.token = payload["token"]


def _charge(account: Account, run_id: str, payload: dict[str, Any]) -> None:
    run, key = account.runs[run_id], (payload["round"], payload["name"], payload["attempt"])
    if run.status != OPEN:
        raise ValueError("a charge to a closed run")
    planned = run.attempts[payload["round"], payload["name"], 0]
    if (payload["rho"], payload["delta"]) != (planned.rho, planned.delta):
        raise ValueError("another price than planned")
    if payload["attempt"] == 0:
        _move(run, key, RESERVED, CHARGED)
        return
    if key in run.attempts or run.spares_left < 1:
        raise ValueError("no spare release left")
    run.used += 1
    run.attempts[key] = Attempt(CHARGED, planned.rho, planned.delta)


def _publish(account: Account, run_id: str, payload: dict[str, Any]) -> None:
    run, key = account.runs[run_id], (payload["round"], payload["name"], payload["attempt"])
    _move(run, key, CHARGED, PUBLISHED)
    run.attempts[key].digest = payload["digest"]


def _forfeit(account: Account, run_id: str, payload: dict[str, Any]) -> None:
    key = (payload["round"], payload["name"], payload["attempt"])
    _move(account.runs[run_id], key, CHARGED, FORFEITED)


def _finish(account: Account, run_id: str, payload: dict[str, Any]) -> None:
    run = account.runs[run_id]
    if run.status != OPEN:
        raise ValueError("finished twice")
    for attempt in run.attempts.values():
        attempt.state = {CHARGED: FORFEITED, RESERVED: RETURNED}.get(attempt.state, attempt.state)
    run.status = payload["status"]


def _move(run: RunAccount, key: tuple[int, str, int], old: str, new: str) -> None:
    if run.attempts[key].state != old:
        raise ValueError(f"{key} is not {old}")
    run.attempts[key].state = new


APPLY: dict[str, Callable[[Account, str, dict[str, Any]], None]] = {
    "register": _register,
    "budget set": _set_budget,
    "budget raise": _raise_budget,
    "reserve": _reserve,
    "acquire": _acquire,
    "charge": _charge,
    "publish": _publish,
    "forfeit": _forfeit,
    "finish": _finish,
}


def replay(ledger_id: str, population_id: str, records: Iterable[Record]) -> Account:
    """The account of a whole chain. Raises LedgerTampered naming the first record that does not verify."""
    account = Account(population_id)
    for record in records:

        def broken(why: str, record: Record = record) -> LedgerTampered:
            return LedgerTampered(
                f"record {record.seq} ({record.kind}) of population {population_id!r} in ledger {ledger_id}: {why}.",
                "Restore the ledger from a backup and find out what was done "
                "to it; nothing more is released until then.",
            )

        if record.seq != account.seq + 1:
            raise broken(f"record {account.seq + 1} should stand here")
        if record.prev_hash != account.hash:
            raise broken("it does not follow the record before it")
        if record.hash != record.expected_hash(ledger_id, population_id):
            raise broken("its content does not match its hash")
        try:
            account.apply(record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise broken(f"it cannot follow the records before it ({error})") from None
    rho_spent, rho_reserved, delta_spent, delta_reserved = account.totals()
    rho_max, delta_max = (account.budget.rho_max, account.budget.delta_extra) if account.budget else (0.0, 0.0)
    if rho_spent + rho_reserved > rho_max or delta_spent + delta_reserved > delta_max:
        raise LedgerTampered(
            f"population {population_id!r} of ledger {ledger_id}: the records up to {account.seq} "
            "spend more than the budget.",
            "Restore the ledger from a backup.",
        )
    return account
