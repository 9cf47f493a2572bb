"""The budget of a population at work: which ledger it is charged to, what a run may spend.

A population's manifest names its ledger; `fedcore.training.witness` notices one that was restored from an old copy.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.errors import BudgetExceeded, BudgetMissing, ConfigError, LedgerMissing, PrivacyError, WrongKind
from fedcore.population.manifest import Ledger as NamedLedger
from fedcore.population.store import Population
from fedcore.privacy.accounting import Budget, rounded_down
from fedcore.privacy.cohorts import Participants
from fedcore.privacy.ledger.chain import Balance
from fedcore.privacy.periods import PeriodTerms
from fedcore.privacy.plan import CLIENT_PERIOD, PlannedRelease, Relation, Unit
from fedcore.rounds.private_settings import cohort_rule
from fedcore.training import cohorts
from fedcore.training.shared_ids import Comparison, check_declared, register
from fedcore.training.witness import check_witnesses, missing_witness
from fedcore.training.witness import remember_head as remember_head

if TYPE_CHECKING:  # a run that is not private needs no database
    from fedcore.privacy.ledger.ledger import Ledger
    from fedcore.rounds.method import AnyMethod, PublicFacts

CRUMB = 1e-6  # what rounding leaves of a budget that was given to a run whole, as a share of it; it buys noise only
NEARLY = 1 - 1e-6  # the part of its share that a fitted plan costs at least: `fit_plan` goes down in steps of 1e-9


def ledger_name(url: str | None = None) -> dict[str, str]:
    """{"id", "url"} of the ledger that new populations name: `url`, else FEDCORE_LEDGER, else the user's own.

    Made if it does not exist yet. A ledger of test noise is taken as it is.
    """
    from fedcore.privacy.ledger.ledger import create_ledger, default_ledger_url, open_ledger

    url = from_the_root(url or default_ledger_url())
    try:
        ledger = open_ledger(url)
    except LedgerMissing:
        ledger = create_ledger(url)
    return {"id": ledger.id, "url": ledger.url}


def from_the_root(url: str) -> str:
    """A SQLite address with its whole path: populations are used from other folders than the one they were made in."""
    from fedcore.privacy.ledger.database import parse_url

    parsed = parse_url(url)
    if parsed.get_backend_name() != "sqlite":
        return url
    return parsed.set(database=str(Path(parsed.database or "").expanduser().absolute())).render_as_string()


def ledger_of(population: Population, url: str | None = None, *, to_show: bool = False) -> Ledger:
    """The ledger that the population's manifest names; `url` or FEDCORE_LEDGER may say where it now is.

    to_show: nothing will be charged, so a population whose witness is gone is no obstacle. Raises LedgerMissing if it
    is absent or another one, LedgerRolledBack if it lacks a record seen before, or this is unknown.
    """
    ledger = ledger_unchecked(population, url)
    if not (to_show and missing_witness(population, ledger)):
        check_witnesses(population, ledger)
    return ledger


def ledger_unchecked(population: Population, url: str | None = None) -> Ledger:
    """The same, whatever was seen of it before. Raises LedgerMissing."""
    named = population.manifest.ledger
    if named is None:
        raise LedgerMissing(
            f"population {population.path.name!r} has no ledger: it was made without one.",
            "Ingest it again with a ledger.",
        )
    return _find(named, url)


def _find(named: NamedLedger, url: str | None) -> Ledger:
    """The ledger of the manifest at `url`; else at FEDCORE_LEDGER, which may be meant for other populations; else where
    the manifest says. Only the ledger with the manifest's id will do.
    """
    from fedcore.privacy.ledger.ledger import default_ledger_url, open_ledger

    if url is None and os.environ.get("FEDCORE_LEDGER"):
        try:
            return open_ledger(default_ledger_url(), expected_id=named.id)
        except LedgerMissing as elsewhere:
            try:
                return open_ledger(named.url, expected_id=named.id)
            except LedgerMissing:
                raise elsewhere from None
    return open_ledger(url or named.url, expected_id=named.id)


def set_budget(
    population: Population,
    ledger: Ledger,
    epsilon: float,
    delta: float,
    *,
    window: int | None = None,
    shared_ids: str | None = None,
    compared: Comparison | None = None,
    **terms: Any,
) -> None:
    """Set the budget of a population, once: per client or record, or per client and calendar period where its clients
    are entries of such. window: periods that a run may read, then; default 1. shared_ids: what the budget owner
    declares of ids that are also in other populations of the ledger. compared: what `register` has just returned with
    new_key=False; None: not called yet. terms: of `Ledger.set_budget`.

    Raises ConfigError if unit and population do not go together, SharedIds if a declaration is needed and missing, and
    what `Ledger.set_budget` raises.
    """
    from fedcore.privacy.ledger.accounts import checked_reason

    made, unit = population.manifest, terms.get("unit", "client")
    check_periods(population, unit)
    check_records(population, unit)
    if made.period is None:
        if window is not None:
            raise ConfigError("a window is a number of calendar periods; this population has none.", "Leave it out.")
    else:
        terms["periods"] = PeriodTerms(made.period.unit, 1 if window is None else window)
        terms["calendar"] = (population.version, population.checksum, made.cohorts[0].token)
    if shared_ids is not None:
        checked_reason(shared_ids)
    if compared is None:
        compared = register(population, ledger, new_key=False)
    if shared_ids is None and ledger.balance(population.id).budget is None:
        check_declared(population, compared, ledger)
    ledger.set_budget(population.id, epsilon, delta, **terms)
    if compared.lost:  # a budget that is refused makes no key; a run compares if this process dies here
        register(population, ledger, new_key=None if shared_ids is None else True)
    if shared_ids is not None:  # until then the ledger refuses runs, if it is needed
        ledger.declare_shared_ids(population.id, shared_ids)
    remember_head(population, ledger)


def check_periods(population: Population, unit: Unit | None) -> None:
    """Raises ConfigError unless clients that are entries of calendar periods, and only they, have a budget per client
    and period: one per client would be a false promise, since a client may have many entries.
    """
    period, name = population.manifest.period, population.path.name
    if period is not None and unit != CLIENT_PERIOD:
        raise ConfigError(
            f"the clients of population {name!r} are entries of one client and one {period.unit}, and a budget for one "
            f"{unit} would promise too much: a client may have many entries.",
            "Its budget is per client and period: --unit client_period.",
        )
    if period is None and unit == CLIENT_PERIOD:
        raise ConfigError(
            f"population {name!r} does not deal clients to calendar periods, which the unit client_period protects.",
            "Make it with --period, --time, --from and --through; or use the unit client.",
        )


def check_records(population: Population, unit: Unit | None) -> None:
    """Raises ConfigError if no client column was declared, and the unit is not the record: a budget per client would be
    a false guarantee, since a person may have many rows.
    """
    if population.manifest.records and unit != "record":
        raise ConfigError(
            f"population {population.path.name!r} has no client column, so a budget for one {unit} is not "
            "possible: one person may own several rows.",
            "Use --unit record to protect single rows, or ingest again with --client COLUMN to protect people.",
        )


def begin_cohorts(population: Population, ledger: Ledger) -> Population:
    """Switch the population to per-cohort budgets: a new version, in which all clients are in the first cohort.

    After an interruption it continues; nothing happens if it was done before. Raises what
    `fedcore.population.conversion.begin_cohorts` and `Ledger.begin_cohorts` raise.
    """
    from fedcore.population import conversion

    if population.manifest.cohorts:
        return population
    chain = population.checksums()

    def record(version: int, manifest: str, token: str) -> str:
        return ledger.begin_cohorts(population.id, version=version, manifest=manifest, token=token, chain=chain)

    made = conversion.begin_cohorts(population, record)
    remember_head(made, ledger)
    return made


# --- what a run may spend ---------------------------------------------------------------------------------------------


def nominal_clients(method: AnyMethod, population: Population, participants: Participants | None = None) -> int | None:
    """The size that the owner declared: in the settings of the run, else in the manifest, of those who take part."""
    if method.nominal_clients is not None or participants is None:
        return method.nominal_clients or population.manifest.nominal_clients
    sizes = [cohort.nominal for cohort in population.manifest.cohorts if participants.holds(cohort.number)]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def public_facts(
    method: AnyMethod,
    population: Population,
    rho: float | None,
    seed: int,
    relation: Relation = "add_or_remove_one",
    start: Mapping[str, np.ndarray] | None = None,
    unit: Unit = "client",
    participants: Participants | None = None,
) -> PublicFacts:
    """What the method may know; the exact numbers of clients and rows only if it is not private.

    relation, unit: of the population's budget; per client and period an entry is a client to the method. start: public
    arrays that the run starts from. participants: None if all clients take part.
    """
    from fedcore.rounds.method import PublicFacts

    return PublicFacts(
        population.kind,
        population.features,
        population.clients_per_leaf,
        nominal_clients(method, population, participants),
        None if method.private else population.n_clients,
        rho,
        seed,
        relation,
        start,
        "client" if unit == CLIENT_PERIOD else unit,
        population.manifest.halves,
        population.manifest.one_whole,
        None if method.private else population.n_rows,
        population.manifest.image,
    )


def check_kind(method: AnyMethod, population: Population) -> None:
    """Raises WrongKind unless the population holds what the method reads."""
    if population.kind != method.kind:
        raise WrongKind(
            f"method {method.name!r} needs a population of {method.kind}, and {population.path.name!r} holds "
            f"{population.kind}.",
            "Ingest the data as the other kind, or choose another method.",
        )


def checked_unit(method: AnyMethod, unit: Unit | None, population: Population) -> Unit:
    """The unit of the budget, if the method has arguments for it. Raises PrivacyError otherwise."""
    unit = unit or "client"
    check_periods(population, unit)
    check_records(population, unit)
    if ("client" if unit == CLIENT_PERIOD else unit) not in method.units:
        raise PrivacyError(
            f"the budget of population {population.path.name!r} promises privacy for one {unit}, and "
            f"method {method.name!r} has no argument for that unit. Nothing was released.",
            "Choose a method that has; a budget's unit never changes.",
        )
    return unit


def required_budget(population: Population, balance: Balance) -> Budget:
    """The budget of a population. Raises BudgetMissing if none was set."""
    if balance.budget is None:
        raise BudgetMissing(
            f"population {population.path.name!r} has no privacy budget.",
            f"Set one: fedcore budget set {population.path} --epsilon E --delta D --public-schema REASON",
        )
    return balance.budget


def plan_within_budget(
    method: AnyMethod,
    population: Population,
    balance: Balance,
    seed: int,
    start: Mapping[str, np.ndarray] | None = None,
    share: str | None = None,
) -> tuple[tuple[PlannedRelease, ...], PublicFacts, Participants | None]:
    """The plan whose privacy cost, with its reserve releases, is this run's part of the budget; its public facts; and
    the cohorts that take part, None for all clients.

    The part is config.epsilon at the population's delta, or one run's part under config.horizon, or the method's usual
    part, or all that is left; the relation is that of the budget. balance: of the population. share: sub-budget of a
    divided budget, which is then all that the run sees.
    """
    required_budget(population, balance)
    balance = balance.of_share(share)
    budget = balance.required_budget()
    unit = checked_unit(method, balance.unit, population)
    relation = balance.relation or "add_or_remove_one"

    def facts(rho: float, participants: Participants | None = None) -> PublicFacts:
        return public_facts(method, population, rho, seed, relation, start, unit, participants)

    if population.manifest.cohorts:
        return _plan_by_cohort(method, population, balance, budget, facts)
    if (asked := cohort_rule(method.private_settings).asked) is not None:
        raise ConfigError(
            f"population {population.path.name!r} keeps one budget for all its clients, and this run asks for cohorts "
            f"({asked}).",
            f"Leave that out, or begin with cohorts: fedcore budget cohorts {population.path}",
        )
    rho = share_of_all(rho_asked(method, budget), population, balance, budget)
    return *fit_plan(method, facts, rho), None


def rho_asked(method: AnyMethod, budget: Budget) -> float | None:
    """The rho that a run asks for, by its horizon, its epsilon or the usual share of its method; None: all that is
    left."""
    settings = method.private_settings
    if (horizon := cohort_rule(settings).horizon) is not None:
        return rounded_down(Fraction(budget.rho_max) / horizon)
    if settings.epsilon is not None:
        return budget.rho_of(settings.epsilon)
    return None if method.usual_share is None else rounded_down(Fraction(budget.rho_max) * method.usual_share)


def share_of_all(asked: float | None, population: Population, balance: Balance, budget: Budget) -> float:
    """The rho of a run where one account is kept for all clients. asked: rho; None: all that is left.

    Raises BudgetExceeded if it is not left.
    """
    share = balance.rho_left
    if asked is not None:
        share = asked
        if share > balance.rho_left:
            left = epsilon_that_fits(balance)
            raise BudgetExceeded(
                f"{balance.whose}population {population.path.name!r} has rho = {balance.rho_left:.6g} left of "
                f"{budget.rho_max:.6g} (a run of epsilon = {left:.4g}), and this run asks for epsilon = "
                f"{budget.epsilon_of(share):.6g} (rho = {share:.6g}). Nothing was released.",
                f"Lower epsilon to {left:.4g} or less, or raise the budget." if left > 0 else "Raise the budget.",
            )
    elif share <= CRUMB * budget.rho_max:
        left = max(share, 0.0)
        raise BudgetExceeded(
            f"the budget of {balance.whose}population {population.path.name!r} is used up: rho = {left:.3g} left of "
            f"{budget.rho_max:.6g}. Nothing was released.",
            "Raise it with `fedcore budget raise`, if you can justify that to the people in it.",
        )
    return share


def _plan_by_cohort(
    method: AnyMethod,
    population: Population,
    balance: Balance,
    budget: Budget,
    facts: Callable[[float, Participants | None], PublicFacts],
) -> tuple[tuple[PlannedRelease, ...], PublicFacts, Participants]:
    """The same for a per-cohort budget: every cohort that takes part has enough budget for the whole plan."""
    settings, manifest = method.private_settings, population.manifest
    rule, accounts = cohort_rule(settings), cohorts.cohort_accounts(manifest, balance)
    runs, share = 1, rho_asked(method, budget)
    if rule.horizon is not None:
        runs, share = rule.horizon, budget.rho_max
        least = share / runs * NEARLY
    elif share is not None:
        least = share * NEARLY
    else:  # everything that all who are not used up have left
        least = math.nextafter(CRUMB * budget.rho_max, math.inf)

    def planned(chosen: Sequence[cohorts.CohortAccount]) -> cohorts.Planned:
        whole = rounded_down(min(account.rho for account in chosen)) if share is None else share
        taking_part = cohorts.participants(manifest, chosen)
        plan, public = fit_plan(method, lambda rho: facts(rho, taking_part), whole, runs)
        if manifest.period is not None:
            _refuse_thresholds(method, plan)
        return plan, public

    name, spares = population.path.name, settings.spare_releases
    sized, window = settings.nominal_clients is not None, None if balance.periods is None else balance.periods.window
    (plan, public), chosen = cohorts.choose(
        rule, name, accounts, budget, least, planned, spares, sized, window, balance.whose
    )
    return plan, public, cohorts.participants(manifest, chosen)


def _refuse_thresholds(method: AnyMethod, plan: Sequence[PlannedRelease]) -> None:
    """What the ledger would refuse of a budget per client and period, said of the method."""
    if named := next((planned.name for planned in plan if planned.delta), None):
        raise PrivacyError(
            f"method {method.name!r} with these settings thresholds (release {named!r}), and a threshold has no "
            "privacy cost per client and period. Nothing was released.",
            "Choose settings, or a method, without thresholds.",
        )


def epsilon_that_fits(balance: Balance) -> float:
    """What a run may ask for at most, at the budget's delta; 0 if nothing is left that buys more than noise."""
    if balance.budget is None or balance.rho_left <= CRUMB * balance.budget.rho_max:
        return 0.0
    left = balance.budget.epsilon_of(balance.rho_left)
    return left * (1 - 5e-4)  # four digits are shown, and what they say must fit


def fit_plan(
    method: AnyMethod, facts_for: Callable[[float], PublicFacts], share: float, runs: int = 1
) -> tuple[tuple[PlannedRelease, ...], PublicFacts]:
    """The plan whose privacy cost, with reserve releases, is at most `share`, and the public facts that it was made
    from.

    facts_for: public facts with this rho. runs: number of runs with this plan that `share` must fund, one after the
    other; all but the last return their reserve releases. Raises ConfigError if no plan is found.
    """
    spares, rho = method.private_settings.spare_releases, rounded_down(Fraction(share) / runs)
    for _ in range(60):
        public = facts_for(rho)
        plan = tuple(method.plan(public))
        if cohorts.runs_fit(plan, spares, runs, share):
            return plan, public
        prices = [planned.rho for planned in plan]
        before = (runs - 1) * sum(prices)
        prices += [max(prices)] * spares
        rho *= min(share / (before + sum(prices)), 1.0) * (1 - 1e-9)
    raise ConfigError(
        "no plan of this configuration fits into the budget.",
        "Set rounds and clusters instead of leaving them automatic.",
    )
