"""The chain of a population's ledger, as values: records, their hashes, and the account that they add up to.

Nothing here touches a database. `fedcore.privacy.ledger.replay` is the definition of every balance; the tables of
`fedcore.privacy.ledger.tables` hold the same facts for quick look-up, and `Ledger.verify` compares the two.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Any

from fedcore.errors import BudgetMissing
from fedcore.population.cohorts import FOUNDERS
from fedcore.privacy.accounting import Budget, exact_sum, rounded_down, rounded_up
from fedcore.privacy.ledger.sums import EVERYBODY, Sums, Totals
from fedcore.privacy.periods import Lifetime, PeriodTerms, bounds, periods_in, so_far
from fedcore.privacy.plan import DISCRETE, Law, Relation, Unit
from fedcore.storage.ranges import Ranges, in_words

GENESIS = "0" * 64  # the hash before the first record
CURRENCY, PURPOSE = "zcdp", "training"  # of schema 1, which did not say them
NOISE: Law = DISCRETE  # likewise
BY_COHORT = '{"by":"cohort"}'  # how an account is kept; None: as one
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
    """One attempt at a planned release: attempt 0 is the planned one; later ones draw again what was lost.

    noise: the law that it was drawn with, if that is another one than its run has reserved.
    """

    state: str
    rho: float
    delta: float
    digest: str | None = None
    noise: Law | None = None


@dataclass(slots=True)
class RunAccount:
    """What the chain says about one run. noise: the law that it has reserved. attempts: by (round, name, attempt).
    given_up: the round from which on the run's releases were given up to pay for lost ones; None: none was.
    cohorts: ranges of those that take part; None: the run was reserved when there were none.
    """

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
    purpose: str = PURPOSE
    noise: Law = NOISE
    attempts: dict[tuple[int, str, int], Attempt] = field(default_factory=dict)
    given_up: int | None = None
    cohorts: Ranges | None = None

    @property
    def payers(self) -> Ranges:
        """The cohorts that pay for the run. One that names none is from before they began: the founders pay."""
        return EVERYBODY if self.cohorts is None else self.cohorts

    @property
    def spares_left(self) -> int:
        return self.spares - self.used if self.status == OPEN else 0

    def spent(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts.values() if attempt.state in SPENT]

    def law_of(self, attempt: Attempt) -> Law:
        """Of the noise of an attempt."""
        return attempt.noise or self.noise

    def reserved(self) -> list[tuple[float, float]]:
        """(rho, delta) of everything that may still be charged."""
        waiting = [(a.rho, a.delta) for a in self.attempts.values() if a.state == RESERVED]
        return waiting + [(self.spare_rho, self.spare_delta)] * self.spares_left

    def totals(self) -> Totals:
        """What the run costs each of its payers so far, and may cost them still."""
        spent, reserved = self.spent(), self.reserved()
        return Totals(
            exact_sum(attempt.rho for attempt in spent),
            exact_sum(rho for rho, _ in reserved),
            exact_sum(attempt.delta for attempt in spent),
            exact_sum(delta for _, delta in reserved),
        )


def _required(budget: Budget | None, population_id: str) -> Budget:
    if budget is None:
        raise BudgetMissing(
            f"population {population_id!r} has no privacy budget.", "Set one with fedcore budget set; then train again."
        )
    return budget


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive cohorts, first to last, of which each has spent, reserved and left the same.

    Spent and reserved are rounded up, left is rounded down.
    """

    first: int
    last: int
    rho_spent: float
    rho_reserved: float
    rho_left: float
    delta_spent: float
    delta_reserved: float
    delta_left: float

    def __str__(self) -> str:
        return in_words(((self.first, self.last),))


@dataclass(frozen=True, slots=True)
class Balance:
    """Where a population's budget stands. Spent and reserved are rounded up, left is rounded down.

    rho_*: in the budget's currency; delta_*: thresholding steps. releases: number of releases by state. budget is None
    before one is set.
    public_schema: why columns, bounds, vocabulary and thresholds are public, as was said last; None: nobody said.
    loss: the newest record of a ledger that went back and was gone on with; None if it never did.

    segments: of a budget that is kept by cohort, from cohort 1 to the newest that a reservation has named; later ones
    have all of the budget. Empty for one account. With segments, spent, reserved and left are each the largest of any
    cohort.
    periods: terms of a budget per client and calendar period, else None; lifetime_spent: the rho that runs have charged
    to a client with data in every period.
    """

    population_id: str
    budget: Budget | None
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
    public_schema: str | None = None
    loss: Mapping[str, Any] | None = None
    segments: tuple[Segment, ...] = ()
    periods: PeriodTerms | None = None
    lifetime_spent: float = 0.0

    def required_budget(self) -> Budget:
        """The budget. Raises BudgetMissing if none was set."""
        return _required(self.budget, self.population_id)

    @property
    def lifetime(self) -> tuple[Lifetime, ...]:
        """What a client loses at most over several periods, and so far; empty unless they are protected."""
        if self.budget is None or self.periods is None:
            return ()
        return *bounds(self.budget, self.periods), so_far(self.budget, self.lifetime_spent)

    @property
    def epsilon_spent(self) -> float:
        """Epsilon of what was spent, at delta_conv + delta_spent; 0 if nothing was. Computed when asked for."""
        return self.budget.epsilon_of(self.rho_spent) if self.budget is not None else 0.0

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
            "public_schema": self.public_schema,
            "loss": None if self.loss is None else dict(self.loss),
            "segments": [asdict(segment) for segment in self.segments],
            **self._by_period(),
        }

    def _by_period(self) -> dict[str, Any]:
        if self.periods is None:
            return {}
        return {"periods": self.periods.to_json(), "lifetime": [asdict(one) for one in self.lifetime]}


@dataclass(slots=True)
class Ended:
    """What the runs that ended add up to. It is kept while they end, since there may be thousands of them.

    lifetime: of an account by client and period, what they have cost a client with data in every period
    """

    sums: Sums = field(default_factory=Sums)
    lifetime: Fraction = Fraction(0)
    releases: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Account:
    """The state of a population's budget and runs that the records of its chain add up to.

    runs:          all runs; after a checkpoint those that were open then or came later
    ended:         sums of all runs that ended, those before the checkpoint too
    public_schema: every reason that was given, the newest last
    losses:        every accepted loss, the newest last; after a checkpoint the newest before it and those since
    checkpoint:    number of the newest checkpoint among the records; 0 if there is none
    founders:      version whose clients are the first cohort, and checksum of its manifest; None: one account for all
    tokens:        of the cohorts that a record has named, from number 1 on
    periods:       terms of a budget per client and calendar period, each of which is a cohort; None: of any other
    """

    population_id: str
    budget: Budget | None = None
    unit: Unit | None = None
    relation: Relation | None = None
    public_schema: list[str] = field(default_factory=list)
    losses: list[dict[str, Any]] = field(default_factory=list)
    runs: dict[str, RunAccount] = field(default_factory=dict)
    ended: Ended = field(default_factory=Ended)
    seq: int = 0
    hash: str = GENESIS
    checkpoint: int = 0
    founders: tuple[int, str] | None = None
    tokens: tuple[str, ...] = ()
    periods: PeriodTerms | None = None

    @property
    def mode(self) -> str | None:
        """As the table of accounts has it."""
        return None if self.founders is None else BY_COHORT

    @property
    def currency(self) -> str:
        """That of the budget; before one is set, that of a record which does not say it."""
        return CURRENCY if self.budget is None else self.budget.currency

    def required_budget(self) -> Budget:
        """The budget. Raises BudgetMissing if none was set."""
        return _required(self.budget, self.population_id)

    def sums(self) -> Sums:
        """The exact totals of every cohort. One account is that of the founders."""
        sums = self.ended.sums.copy()
        for run in self._open():
            sums.add(run.payers, run.totals())
        return sums

    def pieces(self) -> list[tuple[int, int, Totals]]:
        """(first, last, totals) of consecutive cohorts that have the same, of all that are known."""
        return list(self.sums().pieces(max(len(self.tokens), FOUNDERS)))

    def totals(self, cohort: int = FOUNDERS) -> Totals:
        """Exact (rho spent, rho reserved, delta spent, delta reserved) of one cohort; one account is the founders'."""
        *_, (_, _, totals) = self.sums().pieces(cohort)
        return totals

    def stranger(self, tokens: tuple[str, ...]) -> int | None:
        """The first cohort that is known under another token than these; None if there is none."""
        if self.tokens[: len(tokens)] == tokens[: len(self.tokens)]:
            return None
        pairs = enumerate(zip(self.tokens, tokens, strict=False), start=FOUNDERS)
        return next((number for number, (known, token) in pairs if known != token), None)

    def learn(self, tokens: tuple[str, ...]) -> None:
        """Remember new cohorts. Raises ValueError if a number is known under another token."""
        if self.stranger(tokens) is not None:
            raise ValueError("a cohort under another token")
        self.tokens += tokens[len(self.tokens) :]

    def states(self) -> Counter[str]:
        """Number of releases by state."""
        return self.ended.releases + Counter(a.state for run in self._open() for a in run.attempts.values())

    def _open(self) -> list[RunAccount]:
        return [run for run in self.runs.values() if run.status == OPEN]

    def close(self, run: RunAccount, status: str) -> None:
        """End an open run: what it spent is spent, nothing of it is reserved any more."""
        run.status = status
        self.ended.sums.add(run.payers, run.totals())
        self.ended.lifetime += self._lifetime(run)
        self.ended.releases.update(attempt.state for attempt in run.attempts.values())

    def _lifetime(self, run: RunAccount) -> Fraction:
        """What a run has cost a client with data in each of the k periods that it read: k^2 times its price."""
        if self.periods is None:
            return Fraction(0)
        return periods_in(run.payers) ** 2 * exact_sum(attempt.rho for attempt in run.spent())

    def lifetime(self) -> Fraction:
        """What all runs have cost a client with data in every period."""
        return self.ended.lifetime + sum(map(self._lifetime, self._open()), Fraction(0))

    def open_runs(self) -> list[str]:
        return sorted(run_id for run_id, run in self.runs.items() if run.status == OPEN)

    def balance(self) -> Balance:
        pieces = self.pieces()
        most = Totals(*map(max, zip(*(totals for _, _, totals in pieces), strict=True)))
        balance = make_balance(
            self.population_id, self.budget, self.unit, self.relation, most, self.states(), self.open_runs()
        )
        said, lost = self.public_schema, self.losses
        balance = replace(balance, public_schema=said[-1] if said else None, loss=lost[-1] if lost else None)
        if self.founders is None:
            return balance
        segments = tuple(Segment(first, last, *_numbers(self.budget, totals)) for first, last, totals in pieces)
        rho_left, delta_left = max(s.rho_left for s in segments), max(s.delta_left for s in segments)
        balance = replace(balance, segments=segments, rho_left=rho_left, delta_left=delta_left)
        return replace(balance, periods=self.periods, lifetime_spent=rounded_up(self.lifetime()))


def _numbers(budget: Budget | None, totals: Totals) -> tuple[float, float, float, float, float, float]:
    """(spent, reserved, left) of rho, then of delta: spent and reserved rounded up, left rounded down."""
    rho_spent, rho_reserved, delta_spent, delta_reserved = totals
    rho_max, delta_max = (0.0, 0.0) if budget is None else (budget.rho_max, budget.delta_extra)
    return (
        rounded_up(rho_spent),
        rounded_up(rho_reserved),
        rounded_down(Fraction(rho_max) - rho_spent - rho_reserved),
        rounded_up(delta_spent),
        rounded_up(delta_reserved),
        rounded_down(Fraction(delta_max) - delta_spent - delta_reserved),
    )


def make_balance(
    population_id: str,
    budget: Budget | None,
    unit: Unit | None,
    relation: Relation | None,
    totals: tuple[Fraction, Fraction, Fraction, Fraction],
    states: Mapping[str, int],
    open_runs: Iterable[str],
) -> Balance:
    """totals: exact (rho spent, rho reserved, delta spent, delta reserved); states: number of releases by state."""
    return Balance(
        population_id,
        budget,
        unit,
        relation,
        *_numbers(budget, Totals(*totals)),
        dict(sorted(states.items())),
        tuple(sorted(open_runs)),
    )
