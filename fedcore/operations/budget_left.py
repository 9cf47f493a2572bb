"""The remaining budget after a private run: how many more runs of its cost fit, and for how long."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from fractions import Fraction
from typing import Any

from fedcore.operations.forecast import Outlook, Payer, began, cohort_outlooks, foreseen, outlooks
from fedcore.population.store import Population
from fedcore.privacy.accounting import Budget, rounded_up
from fedcore.privacy.ledger.chain import Balance
from fedcore.runs.run_files import read_json
from fedcore.runs.store import Run, list_runs
from fedcore.training.budget import rho_asked
from fedcore.training.cohorts import Cost, cost_of
from fedcore.training.session import Session
from fedcore.training.spec import RunSpec

LAST_RUNS = 10  # whose times say how often a deployment runs
DAY = 86400.0
MOST = 10**6  # largest number of runs that is counted


@dataclass(frozen=True, slots=True)
class BudgetLeft:
    """rho_charged: by the run; rho_spent, rho_left: by all runs, for a budget by cohort the largest of any cohort, and
    for a divided budget those of the run's sub-budget, like rho_max; whose: that sub-budget, for sentences, or empty;
    runs_left: number that fit at the cost of this run, if no clients come; before: the same when the last run of its
    deployment had ended, or without a deployment when this run began, None for the first run of a deployment;
    days_left: how long they last at the pace of the deployment's last runs, None if it has none.
    """

    rho_charged: float
    rho_spent: float
    rho_left: float
    rho_max: float
    epsilon: float
    delta: float
    runs_left: int
    before: int | None
    days_left: float | None
    whose: str = ""

    def falls_to(self, threshold: int) -> bool:
        """Whether this run was the first after which at most `threshold` runs are left.

        Nothing is remembered between runs: the budget left after the run before is read from the ledger. So this is
        true for one run of a deployment, and for another only after the budget was raised or clients have come.
        """
        return self.runs_left <= threshold and (self.before is None or self.before > threshold)

    @property
    def in_words(self) -> str:
        of = f", {self.whose}the budget" if self.whose else ""
        left = f"rho = {self.rho_left:.6g} is left of {self.rho_max:.6g}{of}"
        if self.runs_left == 0:
            return f"No other run of this cost fits: {left}."
        pace = "" if self.days_left is None else f", which last {self.days_left:.1f} days at the present pace"
        more = "1 more run of this cost fits" if self.runs_left == 1 else f"{self.runs_left} more runs of this cost fit"
        return f"{more}{pace}: {left}."

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in ("before", "whose")}


def budget_left(session: Session) -> BudgetLeft | None:
    """What is left after the run of a session; None if it does not draw on a budget.

    Raises what reading the ledger and the folder of runs raises.
    """
    ledger, run, population = session.spec.ledger, session.run, session.population
    if ledger is None or not session.spec.releases:
        return None
    account = ledger.account(population.id)
    if account.budget is None or run.id not in account.runs:
        return None
    share, charged = session.spec.share, account.runs[run.id].totals().rho_spent
    now = _as_seen(account.balance(), share)
    budget = now.required_budget()
    price = _price(session.spec, budget)
    beside = _beside(run)
    if run.info.get("deployment") is None:
        before: int | None = _fitting(now, population, price, extra=charged)
    elif (seq := _last_seq(beside, population)) is None:
        before = None
    else:
        then = _as_seen(ledger.account(population.id, through=seq).balance(), share)
        before = _fitting(then, population, price)
    more = _fitting(now, population, price)
    pace = _pace([run, *beside])
    return BudgetLeft(
        rho_charged=rounded_up(charged),
        rho_spent=now.rho_spent,
        rho_left=_left(now, population)[0],
        rho_max=budget.rho_max,
        epsilon=budget.epsilon,
        delta=budget.delta,
        runs_left=more,
        before=before,
        days_left=None if pace is None else more * pace / DAY,
        whose=now.whose,
    )


def _as_seen(balance: Balance, share: str | None) -> Balance:
    """The balance for a run that is charged to this sub-budget; the account itself if there is, or was, no such one."""
    found = next((one for one in balance.shares if one.name == share), None)
    if found is None:
        return balance
    if found.part:
        return balance.of_share(share)
    nothing = replace(balance.required_budget(), rho_max=0.0, delta_extra=0.0)
    return replace(balance, budget=nothing, rho_left=0.0, delta_left=0.0, segments=(), shares=())


def _left(balance: Balance, population: Population) -> tuple[float, float]:
    """(rho, delta) that some cohort has left; all of them where one account is kept."""
    budget, cohorts = balance.required_budget(), len(population.manifest.cohorts)
    if cohorts and (not balance.segments or balance.segments[-1].last < cohorts):  # the newest have spent nothing
        return budget.rho_max, budget.delta_extra
    return balance.rho_left, balance.delta_left


@dataclass(frozen=True, slots=True)
class Price:
    """needed: what must be left for a run to begin; used: what of it the run takes, if no draw is lost."""

    needed: Cost
    used: Cost


def ahead_of(balance: Balance, population: Population, payers: Sequence[Payer]) -> dict[str, Outlook]:
    """By deployment: how many runs like its last one still fit if no clients come, and until when. Where the budget is
    kept by cohort these are the runs of the cohort that has the most left.
    """
    if not population.manifest.cohorts:
        return outlooks(balance, payers)
    found: dict[str, Outlook] = {}
    for share in {payer.share for payer in payers}:
        seen = _as_seen(balance, share)
        drawing = [payer for payer in payers if payer.share == share]
        each = cohort_outlooks(population.manifest, seen, drawing, population.path.name)
        for deployment, mine in each.items():
            found[deployment] = max((one for _, one in mine), key=lambda one: one.runs, default=Outlook(0, None, None))
    return found


def ahead_of_first(spec: RunSpec, balance: Balance, starts: Sequence[datetime], now: datetime) -> Outlook:
    """The same of a deployment that has made no run yet. spec: of its first run; starts: that are scheduled"""
    runs, (known, every, _) = runs_that_fit(spec, balance), foreseen([], starts, now)
    if not runs or not known or (every is None and runs > len(known)):
        return Outlook(runs, None, None)
    more = runs - len(known)
    try:
        return Outlook(runs, known[runs - 1] if more <= 0 or every is None else known[-1] + more * every, None)
    except OverflowError:  # beyond the calendar
        return Outlook(runs, None, None)


def runs_that_fit(spec: RunSpec, balance: Balance) -> int:
    """How many runs like this one fit into what is left, one after the other."""
    seen = _as_seen(balance, spec.share)
    return 0 if seen.budget is None else _fitting(seen, spec.population, _price(spec, seen.budget))


def _price(spec: RunSpec, budget: Budget) -> Price:
    """Of the next run like this one: its plan with spares, but no less than the share that its settings ask for."""
    plan = spec.releases
    needed = cost_of(plan, spec.method.private_settings.spare_releases)
    share = rho_asked(spec.method, budget) or 0.0
    return Price(Cost(max(needed.rho, Fraction(share)), needed.delta), cost_of(plan, 0))


def _fitting(balance: Balance, population: Population, price: Price, extra: Fraction = Fraction(0)) -> int:
    """Runs of this cost that fit one after the other into what is left, and into `extra` rho in addition."""
    if balance.budget is None:
        return 0
    rho, delta = _left(balance, population)
    return min(
        _runs(Fraction(rho) + extra, price.needed.rho, price.used.rho),
        _runs(Fraction(delta), price.needed.delta, price.used.delta) if price.needed.delta else MOST,
    )


def _runs(left: Fraction, needed: Fraction, used: Fraction) -> int:
    if left < needed:
        return 0
    return min(MOST, 1 + int((left - needed) // used)) if used > 0 else MOST


def _beside(run: Run) -> list[Run]:
    """The other runs of its deployment on its population in the same folder."""
    name, where = run.info.get("deployment"), (run.info.get("population") or {}).get("id")
    if name is None:
        return []
    return [
        other
        for other in list_runs(run.path.parent)
        if other.id != run.id
        and other.info.get("deployment") == name
        and (other.info.get("population") or {}).get("id") == where
    ]


def _last_seq(runs: Sequence[Run], population: Population) -> int | None:
    """The number of the ledger's record with which the newest of these runs ended, as its statement says."""
    found = []
    for run in runs:
        statement = read_json(run.path / "statement.json") or {}
        seq = (statement.get("ledger") or {}).get("seq") if statement.get("population_id") == population.id else None
        if isinstance(seq, int):
            found.append(seq)
    return max(found, default=None)


def _pace(runs: Sequence[Run]) -> float | None:
    """Seconds from one start to the next, in the middle of the last ones."""
    starts = sorted(start for run in runs if (start := began(run)) is not None)[-LAST_RUNS:]
    steps = [(later - earlier).total_seconds() for earlier, later in zip(starts, starts[1:], strict=False)]
    return statistics.median(steps) if steps else None
