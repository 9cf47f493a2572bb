"""The chain of a population's ledger, as values: records, their hashes, and the account that they add up to.

Nothing here touches a database. `fedcore.privacy.ledger.replay` is the definition of every balance; the tables of
`fedcore.privacy.ledger.tables` hold the same facts for quick look-up, and `Ledger.verify` compares the two.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections import Counter
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from fedcore.population.cohorts import FOUNDERS
from fedcore.privacy.accounting import Budget, exact_sum, rounded_up
from fedcore.privacy.ledger.balances import Balance as Balance
from fedcore.privacy.ledger.balances import Loss, StartingCharge, required, segment_of, share_balance
from fedcore.privacy.ledger.balances import Segment as Segment
from fedcore.privacy.ledger.balances import ShareBalance as ShareBalance
from fedcore.privacy.ledger.balances import make_balance as make_balance
from fedcore.privacy.ledger.shares import Shares, part_of
from fedcore.privacy.ledger.sums import EVERYBODY, Sums, Totals, side_by_side
from fedcore.privacy.periods import PeriodTerms, periods_in
from fedcore.privacy.plan import ROUNDED, Law, Relation, Unit
from fedcore.storage.parsing import JsonObject
from fedcore.storage.plain import LATER
from fedcore.storage.ranges import Ranges

GENESIS = "0" * 64  # the hash before the first record
PURPOSE = "training"
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
    """The newest record of a population. A stored copy of it later shows whether the ledger was rolled back."""

    ledger_id: str
    seq: int
    hash: str


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
    ledger_id: str, population_id: str, seq: int, kind: str, run_id: str | None, payload: JsonObject, prev_hash: str
) -> Record:
    """The record that follows the one with hash `prev_hash`."""
    record = Record(seq, kind, run_id, canonical(payload), prev_hash, "")
    return Record(seq, kind, run_id, record.payload, prev_hash, record.expected_hash(ledger_id, population_id))


@dataclass(slots=True)
class Attempt:
    """One attempt at a planned release: attempt 0 is the planned one; later ones draw again what was lost."""

    state: str
    rho: float
    delta: float
    digest: str | None = None


@dataclass(slots=True)
class RunAccount:
    """What the chain records about one run. noise: the distribution that it has reserved; attempts: by (round, name,
    attempt); given_up: first round whose releases are skipped to make up for lost ones; None: none is;
    cohorts: ranges of those that take part; None: the run was reserved when there were none;
    share: sub-budget that is charged; None: the undivided part, or all of the budget.
    """

    plan: list[JsonObject]
    plan_digest: str
    spares: int
    spare_rho: float
    spare_delta: float
    secure: bool
    statement: JsonObject | None
    status: str = OPEN
    used: int = 0
    token: int = 0
    purpose: str = PURPOSE
    noise: Law = ROUNDED
    attempts: dict[tuple[int, str, int], Attempt] = field(default_factory=dict)
    given_up: int | None = field(default=None, metadata=LATER)
    cohorts: Ranges | None = field(default=None, metadata=LATER)
    share: str | None = field(default=None, metadata=LATER)

    @property
    def payers(self) -> Ranges:
        """The cohorts that are charged for the run. A run without cohorts is older than they are: cohort 1 is
        charged."""
        return EVERYBODY if self.cohorts is None else self.cohorts

    @property
    def spares_left(self) -> int:
        return self.spares - self.used if self.status == OPEN else 0

    def noise_share(self, key: tuple[int, str, int]) -> JsonObject | None:
        """The share of the noise of a planned release; None where one place adds all of it."""
        if self.noise == ROUNDED:
            return None
        return next((one.get("noise_share") for one in self.plan if (one["round"], one["name"]) == key[:2]), None)

    def spent(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts.values() if attempt.state in SPENT]

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


@dataclass(slots=True)
class Ended:
    """What the runs that ended add up to. It is kept while they end, since there may be thousands of them.

    sums: of all of them; shares: of those that named a share, by its name, where they spent something
    lifetime: of an account by client and period, what they have cost a client with data in every period
    """

    sums: Sums = field(default_factory=Sums)
    shares: dict[str, Sums] = field(default_factory=dict)
    lifetime: Fraction = Fraction(0)
    releases: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Account:
    """The state of a population's budget and runs that the records of its chain add up to.

    runs:          all runs; after a checkpoint those that were open then or came later
    ended:         sums of all runs that ended, those before the checkpoint too
    public_schema: every reason that was given, the newest last
    shared_ids:    every declaration about ids that are also in other populations; after a checkpoint those since
    losses:        every accepted loss, the newest last; after a checkpoint the newest before it and those since
    checkpoint:    number of the newest checkpoint among the records; 0 if there is none
    founders:      version whose clients are the first cohort, and checksum of its manifest; None: one account for all
    tokens:        of the cohorts that a record has named, from number 1 on
    periods:       terms of a budget per client and calendar period, each of which is a cohort; None: of any other
    shares:        named parts of the budget; empty: it is not divided
    anchor:        place of the newest record's copy outside of the ledger; None: there is none
    spent_before:  starting charge that the budget owner declared, with its number and time; None: none
    """

    population_id: str
    budget: Budget | None = None
    unit: Unit | None = None
    relation: Relation | None = None
    public_schema: list[str] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    runs: dict[str, RunAccount] = field(default_factory=dict)
    ended: Ended = field(default_factory=Ended)
    seq: int = 0
    hash: str = GENESIS
    checkpoint: int = 0
    founders: tuple[int, str] | None = None
    tokens: tuple[str, ...] = ()
    periods: PeriodTerms | None = None
    shares: Shares = field(default_factory=dict)
    shared_ids: list[str] = field(default_factory=list)
    anchor: str | None = None
    spent_before: StartingCharge | None = None

    @property
    def mode(self) -> str | None:
        """As the table of accounts has it."""
        return None if self.founders is None else BY_COHORT

    def required_budget(self) -> Budget:
        """The budget. Raises BudgetMissing if none was set."""
        return required(self.budget, self.population_id)

    def sums(self) -> Sums:
        """The exact totals of every cohort. One account is that of the founders."""
        sums = self.ended.sums.copy()
        for run in self._open():
            sums.add(run.payers, run.totals())
        return sums

    def sums_of(self, share: str | None) -> Sums:
        """The exact totals of every cohort, of the runs of one share; None: of those that named none."""
        if share is None:
            sums = self.sums()
            for named in {*self.ended.shares, *(run.share for run in self._open() if run.share is not None)}:
                sums.take_away(self.sums_of(named))
            return sums
        sums = self.ended.shares.get(share, Sums()).copy()
        for price, payers in ((run.totals(), run.payers) for run in self._open() if run.share == share):
            sums.add(payers, price)
        return sums

    def share_left(self, payers: Ranges, share: str | None) -> tuple[Fraction, Fraction]:
        """(rho, delta) of a share that each of these cohorts has not spent or reserved, exactly; below 0 where runs of
        before the division had more than it leaves them. The account's own filter is another question.
        """
        budget, part = self.required_budget(), part_of(self.shares, share)
        rho, delta = self.sums_of(share).most(payers)
        return part * Fraction(budget.rho_max) - rho, part * Fraction(budget.delta_extra) - delta

    def pieces(self) -> list[tuple[int, int, Totals]]:
        """(first, last, totals) of consecutive cohorts that have the same, of all that are known."""
        return list(self.sums().pieces(self.last_cohort))

    @property
    def last_cohort(self) -> int:
        """The newest cohort that a record has named; one account is that of the founders."""
        return max(len(self.tokens), FOUNDERS)

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
        if run.share is not None and run.spent():
            self.ended.shares.setdefault(run.share, Sums()).add(run.payers, run.totals())
        self.ended.lifetime += self._lifetime(run)
        self.ended.releases.update(attempt.state for attempt in run.attempts.values())

    def _lifetime(self, run: RunAccount) -> Fraction:
        """The cost of a run for a client with data in each of the k periods that it read: k^2 times its rho."""
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
        balance = replace(
            balance,
            public_schema=self.public_schema[-1] if self.public_schema else None,
            loss=self.losses[-1] if self.losses else None,
            spent_before=self.spent_before,
            shares=tuple(map(self._share_balance, (*sorted(self.shares), None))) if self.shares else (),
        )
        if self.founders is None:
            return balance
        segments = tuple(segment_of(first, last, self.budget, totals) for first, last, totals in pieces)
        rho_left, delta_left = max(s.rho_left for s in segments), max(s.delta_left for s in segments)
        balance = replace(balance, segments=segments, rho_left=rho_left, delta_left=delta_left)
        return replace(balance, periods=self.periods, lifetime_spent=rounded_up(self.lifetime()))

    def _share_balance(self, name: str | None) -> ShareBalance:
        pieces = side_by_side(self.sums(), self.sums_of(name), self.last_cohort)
        part, by_cohort = part_of(self.shares, name), self.founders is not None
        return share_balance(name, part, self.required_budget(), pieces, by_cohort=by_cohort)
