"""When a budget ends if runs continue as before: how many runs of each deployment still fit, until when, and which
cohorts take part.

Uses the ledger's balance, the plans of the last runs, and when runs began or are scheduled: all of it is public or for
operators. Assumes that a deployment's next runs cost as much as its last one. Nothing is reserved.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from statistics import median
from typing import Any

from fedcore.errors import ConfigError
from fedcore.evaluation.run_summary import method_of
from fedcore.population.manifest import Manifest
from fedcore.privacy.accounting import exact_sum
from fedcore.privacy.ledger.chain import Balance
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.private_settings import CohortRule, cohort_rule
from fedcore.runs.store import Run
from fedcore.storage.ranges import in_words, ranges_of
from fedcore.training.budget import CRUMB
from fedcore.training.cohorts import CohortAccount, Cost, able, cohort_accounts, cost_of, in_question, nominal_of

STAMP = "%Y%m%dT%H%M%S"
RECENT = 10  # runs whose starts say how often a deployment runs
STOPPED = 3  # a deployment without a schedule that has been silent for this many of its intervals has stopped
MOST_STARTS = 20_000  # that are followed
SCHEDULE, PACE, STOPS, UNKNOWN = "the schedule", "the pace of its last runs", "no start is foreseen", "too few runs"


@dataclass(frozen=True, slots=True)
class Payer:
    """A deployment that draws on the budget.

    rho, delta: what a run charges; whole: each takes all that is left; reserved: what must be left when a run begins
    share: sub-budget that is charged, None: the undivided part, or all; rule: which cohorts take part
    starts: known ones, ascending; every: interval of later ones, None: there are none; because: how starts are known
    """

    deployment: str
    rho: Fraction
    delta: Fraction
    reserved: tuple[Fraction, Fraction]
    whole: bool = False
    rule: CohortRule = CohortRule()
    starts: tuple[datetime, ...] = ()
    every: timedelta | None = None
    because: str = UNKNOWN
    share: str | None = None

    def upcoming(self) -> Iterator[datetime]:
        """Its next starts, as far as they are foreseen."""
        yield from self.starts
        if self.every and self.starts:
            try:
                for number in range(1, MOST_STARTS):
                    yield self.starts[-1] + number * self.every
            except OverflowError:  # beyond the calendar
                return


@dataclass(frozen=True, slots=True)
class Outlook:
    """Of one deployment. runs: that still fit; last: start of the last of them; refused: of the first that does not
    fit, None: not foreseen.
    """

    runs: int
    last: datetime | None
    refused: datetime | None


def outlook(
    rho_left: float | Fraction, delta_left: float | Fraction, crumb: float, payers: Sequence[Payer]
) -> dict[str, Outlook]:
    """Predict an account if all deployments continue to draw on it; by deployment.

    rho_left, delta_left: of the account; crumb: rho that is too little for a run that takes all that is left. A
    deployment without foreseen starts draws nothing; its outlook is how many of its runs would fit alone.
    """
    rho, delta = Fraction(rho_left), Fraction(delta_left)
    found = {
        payer.deployment: Outlook(0 if payer.starts else _alone(payer, rho, delta, crumb), None, None)
        for payer in payers
    }
    for start, payer, charged in followed(rho, delta, crumb, payers):
        mine = found[payer.deployment]
        fitted = replace(mine, runs=mine.runs + 1, last=start)
        found[payer.deployment] = replace(mine, refused=start) if charged is None else fitted
    return found


def followed(
    rho: Fraction, delta: Fraction, crumb: float, payers: Sequence[Payer]
) -> Iterator[tuple[datetime, Payer, Fraction | None]]:
    """(start, deployment, rho that it charges) of the runs that are foreseen, in the order of time; None in place of
    the rho of the first run of a deployment that does not fit, after which it is not followed.
    """
    queue: list[tuple[datetime, int, Iterator[datetime]]] = []

    def follow(number: int, upcoming: Iterator[datetime]) -> None:
        if (start := next(upcoming, None)) is not None:
            heapq.heappush(queue, (start, number, upcoming))

    for number, payer in enumerate(payers):
        follow(number, payer.upcoming())
    for _ in range(MOST_STARTS):
        if not queue:
            return
        start, number, upcoming = heapq.heappop(queue)
        payer = payers[number]
        if not _fits(payer, rho, delta, crumb):
            yield start, payer, None
            continue
        charged = rho if payer.whole else payer.rho
        rho, delta = rho - charged, delta - payer.delta
        yield start, payer, charged
        follow(number, upcoming)


def _fits(payer: Payer, rho: Fraction, delta: Fraction, crumb: float) -> bool:
    if payer.whole:
        return rho > Fraction(crumb)
    return payer.reserved[0] <= rho and payer.reserved[1] <= delta


def _alone(payer: Payer, rho: Fraction, delta: Fraction, crumb: float) -> int:
    if not _fits(payer, rho, delta, crumb):
        return 0
    if payer.whole:
        return 1
    pairs = ((rho - payer.reserved[0], payer.rho), (delta - payer.reserved[1], payer.delta))
    return min((int(left // price) for left, price in pairs if price), default=MOST_STARTS) + 1


# --- who draws on it --------------------------------------------------------------------------------------------------


def payers_of(runs: Sequence[Run], starts: Mapping[str, Sequence[datetime]], now: datetime) -> list[Payer]:
    """The deployments among these runs whose newest one was charged, by name.

    runs: on one population, newest first; starts: that are scheduled, by deployment
    """
    series: dict[str, list[Run]] = {}
    for run in runs:
        if run.info.get("deployment"):
            series.setdefault(str(run.info["deployment"]), []).append(run)
    found = [_payer(name, mine, starts.get(name, ()), now) for name, mine in sorted(series.items())]
    return [payer for payer in found if payer is not None]


def _payer(name: str, runs: Sequence[Run], starts: Sequence[datetime], now: datetime) -> Payer | None:
    """None if its newest run charged nothing. One with test noise charges a ledger for tests, like any other."""
    newest, method = runs[0], method_of(runs[0])
    if not newest.info.get("private") or method is None or not method.private:
        return None
    try:
        plan = [PlannedRelease.from_json(planned) for planned in newest.info["plan"]]
    except (KeyError, TypeError, ValueError):
        return None
    if not plan:
        return None
    settings = method.private_settings
    rule = cohort_rule(settings)
    cost = cost_of(plan, settings.spare_releases)
    known, every, because = foreseen([began(run) for run in runs[:RECENT]], starts, now)
    return Payer(
        name,
        exact_sum(planned.rho for planned in plan),
        exact_sum(planned.delta for planned in plan),
        (cost.rho, cost.delta),
        settings.epsilon is None and rule.horizon is None and method.usual_share is None,
        rule,
        known,
        every,
        because,
        newest.info.get("share"),
    )


def foreseen(
    before: Sequence[datetime | None], starts: Sequence[datetime], now: datetime
) -> tuple[tuple[datetime, ...], timedelta | None, str]:
    """(the next starts, the interval of those that follow, how they are known).

    before: when the last runs began, newest first; starts: that are scheduled
    """
    ahead = sorted(start for start in starts if start >= now)
    began_at = [start for start in before if start is not None]
    gaps = [later - earlier for later, earlier in zip(began_at, began_at[1:], strict=False) if later > earlier]
    usual = timedelta(seconds=median(gap.total_seconds() for gap in gaps)) if gaps else None
    if len(ahead) > 1 and ahead[-1] > ahead[0]:
        return tuple(ahead), (ahead[-1] - ahead[0]) / (len(ahead) - 1), SCHEDULE
    if ahead:
        return tuple(ahead), usual, SCHEDULE
    if usual is None:
        return (), None, UNKNOWN
    if now - began_at[0] > STOPPED * usual:
        return (), None, STOPS
    return (max(now, began_at[0] + usual),), usual, PACE


def began(run: Run) -> datetime | None:
    """When a run began; None if its record does not say it as runs do."""
    try:
        return datetime.strptime(str(run.info.get("started")), STAMP).replace(tzinfo=UTC)
    except ValueError:
        return None


# --- one account, or shares of it -------------------------------------------------------------------------------------


def outlooks(balance: Balance, payers: Sequence[Payer]) -> dict[str, Outlook]:
    """By deployment, where one account is kept for all: each draws on the share that it names, if there are any."""
    crumb, found = CRUMB * balance.required_budget().rho_max, dict[str, Outlook]()
    for (rho, delta), drawing in _by_share(balance, payers):
        found |= outlook(rho, delta, crumb, drawing)
    return found


def charges_ahead(balance: Balance, payers: Sequence[Payer]) -> list[tuple[datetime, float]]:
    """(start, rho) of the runs that are foreseen and fit, in the order of time."""
    crumb = CRUMB * balance.required_budget().rho_max
    return sorted(
        (start, float(charged))
        for (rho, delta), drawing in _by_share(balance, payers)
        for start, _, charged in followed(Fraction(rho), Fraction(delta), crumb, drawing)
        if charged is not None
    )


def _by_share(balance: Balance, payers: Sequence[Payer]) -> list[tuple[tuple[float, float], list[Payer]]]:
    """((rho, delta) that are left, which deployments draw on them), for each sub-budget that one names."""
    parts = {part.name: (max(0.0, part.rho_left), max(0.0, part.delta_left)) for part in balance.shares}
    unnamed = (0.0, 0.0) if parts else (balance.rho_left, balance.delta_left)  # a missing share allows nothing
    shares = sorted({payer.share for payer in payers}, key=str)
    return [(parts.get(share, unnamed), [one for one in payers if one.share == share]) for share in shares]


# --- in tables and words ----------------------------------------------------------------------------------------------


def forecast_rows(balance: Balance, payers: Sequence[Payer]) -> list[dict[str, Any]]:
    """One for each deployment, where one account is kept for all."""
    budget = balance.required_budget()
    found = outlooks(balance, payers)
    return [_row(payer, found[payer.deployment], budget.epsilon_of(float(payer.rho))) for payer in payers]


def _row(payer: Payer, mine: Outlook, epsilon: float) -> dict[str, Any]:
    return {
        "deployment": payer.deployment,
        "a run costs epsilon": "all that is left" if payer.whole else epsilon,
        "rho": None if payer.whole else float(payer.rho),
        "runs left": mine.runs,
        "last that fits (UTC)": _minute(mine.last),
        "first refused (UTC)": _minute(mine.refused),
        "by": payer.because,
    }


def in_a_sentence(balance: Balance, payers: Sequence[Payer]) -> str:
    """When the budget ends, where one account is kept for all; empty without a deployment that draws on it."""
    if not payers:
        return ""
    found = outlooks(balance, payers)
    drawing = [payer for payer in payers if payer.starts]
    if not drawing:
        left = ", ".join(f"{mine.runs} of {name}" for name, mine in found.items())
        return f"No start is foreseen. Of runs like the last one of each deployment there would fit, alone: {left}."
    refusals = [(mine.refused, name) for name, mine in found.items() if mine.refused is not None]
    if not refusals:
        return "Runs like the last ones fit for as long as is foreseen."
    first, name = min(refusals)
    runs, last = sum(found[payer.deployment].runs for payer in drawing), _last(found)
    if last is None:
        return f"No run like the last one fits any more: the next one of {name}, on {_date(first)}, is refused."
    more = "1 more run fits" if runs == 1 else f"{runs} more runs fit"
    return (
        f"{_how(drawing)} {more}, the last of them on {_date(last)}. The first that is refused is that of {name} on "
        f"{_date(first)}."
    )


def _how(payers: Sequence[Payer]) -> str:
    return "At the present schedule" if all(one.because == SCHEDULE for one in payers) else "At the present pace"


def _last(found: Mapping[str, Outlook]) -> datetime | None:
    return max((mine.last for mine in found.values() if mine.last is not None), default=None)


def _date(when: datetime) -> str:
    return f"{_minute(when)} UTC"


def _minute(when: datetime | None) -> str | None:
    return None if when is None else f"{when.astimezone(UTC):%Y-%m-%d %H:%M}"


# --- by cohort --------------------------------------------------------------------------------------------------------


def cohort_lines(manifest: Manifest, balance: Balance, payers: Sequence[Payer], name: str) -> list[str]:
    """Which cohorts with enough budget each deployment's next run has, and when the first and the last of them are
    exhausted, if no clients come. A line for each deployment. name: of the population
    """
    if balance.shares:
        return ["The budget is divided into shares: what each cohort has left of each is in the table of shares."]
    accounts, found = cohort_accounts(manifest, balance), cohort_outlooks(manifest, balance, payers, name)
    return [_line(payer, found[payer.deployment], accounts, balance) for payer in payers]


def cohort_outlooks(
    manifest: Manifest, balance: Balance, payers: Sequence[Payer], name: str
) -> dict[str, list[tuple[CohortAccount, Outlook]]]:
    """By deployment: each cohort that its next run asks and that has enough left, with what becomes of it if no
    clients come. name: of the population
    """
    accounts, window = cohort_accounts(manifest, balance), balance.periods.window if balance.periods else None
    asked = {payer.deployment: _able(payer, accounts, name, window) for payer in payers}
    numbers = {deployment: {account.number for account in mine} for deployment, mine in asked.items()}
    crumb, known = CRUMB * balance.required_budget().rho_max, dict[tuple[object, ...], dict[str, Outlook]]()

    def of(account: CohortAccount) -> dict[str, Outlook]:
        drawing = [one for one in payers if account.number in numbers[one.deployment]]
        like = (account.rho, account.delta, tuple(one.deployment for one in drawing))
        if like not in known:
            known[like] = outlook(account.rho, account.delta, crumb, drawing)
        return known[like]

    return {deployment: [(account, of(account)[deployment]) for account in mine] for deployment, mine in asked.items()}


def _able(payer: Payer, accounts: Sequence[CohortAccount], name: str, window: int | None) -> list[CohortAccount]:
    """Of its cohorts, those with enough budget for a run like its last one."""
    try:
        can = able(in_question(payer.rule, accounts, name), _cost(payer))
    except ConfigError:  # cohorts that there are not any more
        return []
    return can if window is None else can[-window:]


def _cost(payer: Payer) -> Cost:
    return Cost(Fraction(0), Fraction(0)) if payer.whole else Cost(*payer.reserved)


def _line(
    payer: Payer, found: Sequence[tuple[CohortAccount, Outlook]], accounts: Sequence[CohortAccount], balance: Balance
) -> str:
    mine = [account for account, _ in found]
    if not mine:
        return (
            f"{payer.deployment}: no cohort has enough budget for a run like its last one. It waits for new clients, "
            "or is refused."
        )
    active = ranges_of(account.number for account in mine)
    others = ranges_of({account.number for account in accounts} - {account.number for account in mine})
    said = f"{payer.deployment}: its next run is charged to cohorts {in_words(active)}{_share(mine, accounts)}"
    said += f"; not to {in_words(others)}." if others else ", which are all."
    if not payer.starts or balance.periods is not None:
        return said
    retires = {one.number: ahead.last for one, ahead in found if ahead.last is not None and ahead.refused is not None}
    if len(retires) < len(mine):
        return said
    first, last = min(retires.values()), max(retires.values())
    going = ranges_of(number for number, when in retires.items() if when == first)
    return (
        f"{said} {_how([payer])} cohort {in_words(going)} takes part for the last time on {_date(first)}, and "
        f"without new clients the last run is that of {_date(last)}."
    )


def _share(mine: Sequence[CohortAccount], accounts: Sequence[CohortAccount]) -> str:
    part, whole = nominal_of(mine), nominal_of(accounts)
    return f" ({part:,} of {whole:,} declared clients)" if part is not None and whole else ""
