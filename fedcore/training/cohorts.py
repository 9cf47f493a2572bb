"""Who takes part in a private run, where the budget is kept by cohort (docs/privacy/cohorts.md).

It is decided by what the ledger says of each cohort, by the sizes that the owner declared in public and by settings,
and by nothing else: no exact count, and nothing that a client holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from fedcore.errors import BudgetExceeded, ConfigError, Waiting
from fedcore.population.manifest import Manifest
from fedcore.privacy.accounting import Budget, exact_sum
from fedcore.privacy.cohorts import Participants
from fedcore.privacy.ledger.chain import Balance
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.private_settings import CohortRule
from fedcore.storage.ranges import holds, in_words, ranges_of

if TYPE_CHECKING:
    from fedcore.rounds.method import PublicFacts

    Planned = tuple[tuple[PlannedRelease, ...], PublicFacts]


@dataclass(frozen=True, slots=True)
class CohortAccount:
    """What a cohort has left. `nominal`: declared number of its clients; rho, delta: left, exactly."""

    number: int
    nominal: int | None
    rho: Fraction
    delta: Fraction


@dataclass(frozen=True, slots=True)
class Cost:
    """What is reserved for a run with its spare releases, exactly."""

    rho: Fraction
    delta: Fraction


def cost_of(plan: Sequence[PlannedRelease], spares: int) -> Cost:
    """Each spare costs as much as the most expensive release, as in `Ledger.reserve`."""
    rho = [planned.rho for planned in plan]
    delta = [planned.delta for planned in plan]
    return Cost(exact_sum(rho + [max(rho)] * spares), exact_sum(delta + [max(delta)] * spares))


def runs_fit(plan: Sequence[PlannedRelease], spares: int, runs: int, limit: float) -> bool:
    """Whether this number of runs with this plan fits into the limit, without rounding. All runs but the last return
    their spare releases.
    """
    price = exact_sum(planned.rho for planned in plan)
    return (runs - 1) * price + cost_of(plan, spares).rho <= Fraction(limit)


def cohort_accounts(manifest: Manifest, balance: Balance) -> list[CohortAccount]:
    """One for each cohort of the version, in order. A cohort that the ledger has not heard of has spent nothing."""
    budget = balance.required_budget()
    whole = (Fraction(budget.rho_max), Fraction(budget.delta_extra))
    left = [s.exact_left for s in balance.segments for _ in range(s.first, s.last + 1)]
    left += [whole] * (len(manifest.cohorts) - len(left))
    return [
        CohortAccount(cohort.number, cohort.nominal, rho, delta)
        for cohort, (rho, delta) in zip(manifest.cohorts, left, strict=False)
    ]


def able(accounts: Sequence[CohortAccount], cost: Cost) -> list[CohortAccount]:
    """The accounts with enough budget, in order: those for which the ledger would accept this cost."""
    return [account for account in accounts if account.rho >= cost.rho and account.delta >= cost.delta]


def nominal_of(accounts: Sequence[CohortAccount]) -> int | None:
    """Their declared size together; None if one has none."""
    sizes = [account.nominal for account in accounts]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def in_question(rule: CohortRule, accounts: Sequence[CohortAccount], name: str) -> list[CohortAccount]:
    """The cohorts that may take part, if they have enough budget. Raises ConfigError for numbers that do not exist."""
    if rule.chosen is None:
        return list(accounts if rule.recent is None else accounts[-rule.recent :])
    if rule.chosen[-1][1] > len(accounts):
        raise ConfigError(
            f"population {name!r} has cohorts 1 to {len(accounts)}, and cohorts {in_words(rule.chosen)} are to take "
            "part.",
            "Name cohorts that it has.",
        )
    return [account for account in accounts if holds(rule.chosen, account.number)]


def choose(
    rule: CohortRule,
    name: str,
    accounts: Sequence[CohortAccount],
    budget: Budget,
    least: float,
    planned: Callable[[Sequence[CohortAccount]], Planned],
    spares: int,
    sized: bool,
    window: int | None = None,
    whose: str = "",
) -> tuple[Planned, list[CohortAccount]]:
    """The plan of a run and the cohorts that take part in it, each of which has enough budget for the whole plan.

    least: rho that the run costs at least; planned: the plan for these cohorts; sized: whether the settings state the
    size of the run, so that declared sizes are not needed for its plan; window: largest number of cohorts, the newest
    (calendar periods that a run may read), None: any number; whose: `Balance.whose` of the accounts. Raises ConfigError
    if sizes lack, or more cohorts than the window holds were named, Waiting if too few have enough budget,
    BudgetExceeded if none ever could or a named one does not, and what `planned` raises.
    """
    asked = in_question(rule, accounts, name)
    if window is not None and rule.chosen is not None and len(asked) > window:
        raise ConfigError(
            f"{len(asked)} calendar periods of population {name!r} are to take part, and its budget lets a run read "
            f"{window}.",
            "Name fewer.",
        )
    cost = Cost(Fraction(least), Fraction(0))
    can = able(asked, cost)
    while True:
        chosen = can if window is None else can[-window:]
        _check(rule, name, budget, cost, asked, chosen, sized, whose)
        made = planned(chosen)
        cost = cost_of(made[0], spares)
        poor = {account.number for account in chosen} - {account.number for account in able(chosen, cost)}
        if not poor:
            return made, chosen
        can = [account for account in can if account.number not in poor]


def _check(
    rule: CohortRule,
    name: str,
    budget: Budget,
    cost: Cost,
    asked: Sequence[CohortAccount],
    chosen: Sequence[CohortAccount],
    sized: bool,
    whose: str,
) -> None:
    if cost.rho > budget.rho_max or cost.delta > budget.delta_extra:
        raise BudgetExceeded(
            f"a run on population {name!r} would cost {_in_words(cost)}, which is more than "
            f"{f'{whose}the' if whose else 'the whole'} budget of a client. Nothing was released.",
            "Lower epsilon, or raise the budget.",
        )
    if rule.chosen is not None and len(chosen) < len(asked):
        numbers = {account.number for account in asked} - {account.number for account in chosen}
        raise BudgetExceeded(
            f"of {whose}population {name!r} the cohorts {in_words(ranges_of(numbers))} have too little budget "
            f"left for this run ({_in_words(cost)}). Nothing was released.",
            "Leave them out, or set `cohorts` to able.",
        )
    nominal = nominal_of(chosen)
    if nominal is None and (rule.at_least is not None or not sized):
        undeclared = ranges_of(account.number for account in chosen if account.nominal is None)
        raise ConfigError(
            f"a run on population {name!r} needs the declared sizes of the cohorts that take part, and cohorts "
            f"{in_words(undeclared)} have none.",
            "Pass `--declared-clients` at every append; for this run, leave at_least out and set nominal_clients.",
        )
    if not chosen or (nominal is not None and nominal < (rule.at_least or 1)):
        least = f"cohorts with {rule.at_least:,} declared clients" if rule.at_least else "a cohort"
        found = f"{nominal:,} declared clients" if chosen else "none"
        raise Waiting(
            f"a run on {whose}population {name!r} costs each cohort {_in_words(cost)} and waits until {least} can "
            f"be charged: now {found} can. Nothing was charged.",
            "The next cohort opens with the next append. Budgets are never renewed: without new clients there is no "
            "further run.",
        )


def _in_words(cost: Cost) -> str:
    return f"rho = {float(cost.rho):.6g}" + (f" and delta = {float(cost.delta):.3g}" if cost.delta else "")


def participants(manifest: Manifest, chosen: Sequence[CohortAccount]) -> Participants:
    """These cohorts, with the tokens of all of the version."""
    tokens = tuple(cohort.token for cohort in manifest.cohorts)
    return Participants(ranges_of(account.number for account in chosen), tokens)
