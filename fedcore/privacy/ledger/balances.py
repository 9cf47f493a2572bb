"""Where a population's budget stands, for people and plans: rounded so that nothing looks better than it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from fedcore.errors import BudgetExceeded, BudgetMissing
from fedcore.privacy.accounting import Budget, rounded_down, rounded_up
from fedcore.privacy.ledger.shares import check_named, whose
from fedcore.privacy.ledger.sums import Totals
from fedcore.privacy.periods import Lifetime, PeriodTerms, bounds, so_far
from fedcore.privacy.plan import Relation, Unit
from fedcore.storage.parsing import JsonObject
from fedcore.storage.plain import plain
from fedcore.storage.ranges import in_words

NUMBERS = ("rho_spent", "rho_reserved", "rho_left", "delta_spent", "delta_reserved", "delta_left")
# Entries of a balance as JSON, in their order.
SHOWN: tuple[str, ...] = ("population_id", "unit", "relation", "budget", "epsilon_spent", *NUMBERS, "releases")
SHOWN += ("open_runs", "public_schema", "loss", "spent_before", "segments", "shares")
BY_PERIOD = ("periods", "lifetime")


def required(budget: Budget | None, population_id: str) -> Budget:
    if budget is None:
        raise BudgetMissing(
            f"population {population_id!r} has no privacy budget.", "Set one with fedcore budget set; then train again."
        )
    return budget


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive cohorts, first to last, of which each has spent, reserved and left the same.

    Spent and reserved are rounded up, left is rounded down. exact_left: (rho, delta) left, not rounded, as the ledger
    compares it with a plan.
    """

    first: int
    last: int
    rho_spent: float
    rho_reserved: float
    rho_left: float
    delta_spent: float
    delta_reserved: float
    delta_left: float
    exact_left: tuple[Fraction, Fraction]

    def __str__(self) -> str:
        return in_words(((self.first, self.last),))

    def to_json(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("first", "last", *NUMBERS)}

    @classmethod
    def from_json(cls, value: JsonObject) -> Segment:
        """What is left exactly is then what is left rounded."""
        return cls(**value, exact_left=(Fraction(value["rho_left"]), Fraction(value["delta_left"])))


@dataclass(frozen=True, slots=True)
class ShareBalance:
    """Balance of one sub-budget. Numbers are as in `Balance`; at most what the account has left is left here.

    name: None: the undivided part, which is charged for runs without a sub-budget. part: fraction of the budget,
        exactly.
    rho_max, delta_max: that fraction of them, rounded down. segments: as in `Balance`; empty for one account.
    """

    name: str | None
    part: Fraction
    rho_max: float
    delta_max: float
    rho_spent: float
    rho_reserved: float
    rho_left: float
    delta_spent: float
    delta_reserved: float
    delta_left: float
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True)
class Loss:
    """An accepted loss of records: number and time of its record, why, and the heads that were seen before."""

    seq: int
    at: float
    reason: str
    seen: tuple[JsonObject, ...]


@dataclass(frozen=True, slots=True)
class SpentBefore:
    """The starting charge that the budget owner declared."""

    rho: float
    reason: str


@dataclass(frozen=True, slots=True)
class StartingCharge:
    """The same in an account, with number and time of its record."""

    seq: int
    at: float
    rho: float
    reason: str


@dataclass(frozen=True, slots=True)
class Balance:
    """Balance of a population's budget. Spent and reserved are rounded up, left is rounded down.

    rho_*: in the budget's currency; delta_*: thresholding steps. releases: number of releases by state. budget is None
    before one is set.
    public_schema: newest declaration why columns, bounds, vocabulary and thresholds are public; None: not declared.
    loss: the newest acknowledgement of lost records; None if there is none.
    spent_before: the record of a starting charge, which is part of what is spent; None without one.

    segments: of a budget by cohort, from cohort 1 to the newest that a reservation has named; later ones have the full
    budget. Empty for one account. With segments, spent, reserved and left are each the largest of any cohort.
    periods: terms of a budget per client and calendar period, else None; lifetime_spent: the rho that runs have charged
    to a client with data in every period.
    shares: sub-budgets of a divided budget, by name, the undivided part last; else empty. whose: "" for the account;
    in the view of a sub-budget (`of_share`) its name, for sentences.
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
    loss: Loss | None = None
    spent_before: StartingCharge | None = None
    segments: tuple[Segment, ...] = ()
    periods: PeriodTerms | None = None
    lifetime_spent: float = 0.0
    shares: tuple[ShareBalance, ...] = ()
    whose: str = ""

    def required_budget(self) -> Budget:
        """The budget. Raises BudgetMissing if none was set."""
        return required(self.budget, self.population_id)

    def of_share(self, name: str | None) -> Balance:
        """The balance for a run that is charged to this sub-budget: `budget` has its rho_max and delta_extra, and
        converts as the account's does. None: no sub-budget; the account itself if it is not divided.

        Raises ConfigError for an unknown sub-budget, BudgetExceeded if none is named and all is divided.
        """
        shares = {share.name: share for share in self.shares}
        names = sorted(share for share in shares if share is not None)
        check_named(names, name, self.population_id)
        if not shares:
            return self
        found = shares[name]
        if not found.part:
            raise BudgetExceeded(
                f"all of the budget of population {self.population_id!r} is divided into shares, and the run names "
                "none. Nothing was released.",
                f"Name the share to charge, with --share: {', '.join(names)}.",
            )
        budget = replace(self.required_budget(), rho_max=found.rho_max, delta_extra=found.delta_max)
        numbers = {key: getattr(found, key) for key in NUMBERS}
        return replace(self, budget=budget, **numbers, segments=found.segments, shares=(), whose=f"{whose(name)} of ")

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

    def to_json(self) -> dict[str, object]:
        value = {name: plain(getattr(self, name)) for name in SHOWN}
        return value if self.periods is None else value | {name: plain(getattr(self, name)) for name in BY_PERIOD}


Numbers = tuple[float, float, float, float, float, float]  # as NUMBERS


def numbers_of(budget: Budget | None, totals: Totals) -> Numbers:
    """(spent, reserved, left) of rho, then of delta: spent and reserved rounded up, left rounded down."""
    return _rounded(totals, *_left(budget, totals))


def segment_of(first: int, last: int, budget: Budget | None, totals: Totals) -> Segment:
    """The cohorts first to last, each with these totals."""
    left = _left(budget, totals)
    return Segment(first, last, *_rounded(totals, *left), left)


def _left(budget: Budget | None, totals: Totals) -> tuple[Fraction, Fraction]:
    rho_max, delta_max = (0.0, 0.0) if budget is None else (budget.rho_max, budget.delta_extra)
    rho_left = Fraction(rho_max) - totals.rho_spent - totals.rho_reserved
    return rho_left, Fraction(delta_max) - totals.delta_spent - totals.delta_reserved


def _rounded(totals: Totals, rho_left: Fraction, delta_left: Fraction) -> Numbers:
    return (
        rounded_up(totals.rho_spent),
        rounded_up(totals.rho_reserved),
        rounded_down(rho_left),
        rounded_up(totals.delta_spent),
        rounded_up(totals.delta_reserved),
        rounded_down(delta_left),
    )


def share_balance(
    name: str | None,
    part: Fraction,
    budget: Budget,
    pieces: Iterable[tuple[int, int, Totals, Totals]],
    *,
    by_cohort: bool,
) -> ShareBalance:
    """pieces: (first, last, totals of the account, totals of the share) of consecutive cohorts that have the same."""
    rho_max, delta_max = Fraction(budget.rho_max), Fraction(budget.delta_extra)
    segments = []
    for first, last, whole, own in pieces:
        rho = min(part * rho_max - own.rho_spent - own.rho_reserved, rho_max - whole.rho_spent - whole.rho_reserved)
        delta_own = part * delta_max - own.delta_spent - own.delta_reserved
        delta = min(delta_own, delta_max - whole.delta_spent - whole.delta_reserved)
        segments.append(Segment(first, last, *_rounded(own, rho, delta), (rho, delta)))
    most = [max(getattr(segment, key) for segment in segments) for key in NUMBERS]
    rho_spent, rho_reserved, rho_left, delta_spent, delta_reserved, delta_left = most
    limits = rounded_down(part * rho_max), rounded_down(part * delta_max)
    of_rho, of_delta = (rho_spent, rho_reserved, rho_left), (delta_spent, delta_reserved, delta_left)
    return ShareBalance(name, part, *limits, *of_rho, *of_delta, tuple(segments) if by_cohort else ())


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
        *numbers_of(budget, Totals(*totals)),
        dict(sorted(states.items())),
        tuple(sorted(open_runs)),
    )
