"""`fedcore budget`: the privacy budget of a population."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from fedcore.cli.budget_text import short_balance, short_history, short_rows, whole_history
from fedcore.cli.help_text import Commands
from fedcore.cli.options import Json, Ledger, PopulationArgument, Runs, Settings, Share, open_population, use_ledger
from fedcore.cli.shared_ids import register
from fedcore.cli.terminal import read_settings, say, table
from fedcore.errors import ConfigError

if TYPE_CHECKING:
    from fedcore.population.store import Population
    from fedcore.privacy.ledger.chain import Balance
    from fedcore.privacy.plan import Relation, Unit

budget_app = typer.Typer(cls=Commands, no_args_is_help=True, help="The privacy budget of a population.")

Epsilon = Annotated[float, typer.Option("--epsilon", help="Total epsilon of everything ever released.")]
Delta = Annotated[float, typer.Option("--delta", help="Total delta; well below 1 / number of clients.")]


@budget_app.command("set")
def budget_set(
    population: PopulationArgument,
    epsilon: Epsilon,
    delta: Delta,
    delta_extra: Annotated[
        float | None, typer.Option(help="Part of delta kept for thresholding steps (none by default).")
    ] = None,
    relation: Annotated[
        str,
        typer.Option(
            help="Against what a client is protected: add_or_remove_one, or replace_one, which costs more noise."
        ),
    ] = "add_or_remove_one",
    unit: Annotated[
        str,
        typer.Option(
            help="Privacy unit: client (all data of one client); record (one row, only for private_gmm and "
            "private_mixture); or client_period (a client's data of one calendar period, for populations made with "
            "--period)."
        ),
    ] = "client",
    window: Annotated[
        int | None,
        typer.Option(
            min=1, help="With client_period: periods that a run may read (1). It bounds a client's whole life."
        ),
    ] = None,
    public_schema: Annotated[
        str | None,
        typer.Option(
            metavar="REASON",
            help="Why the columns or vocabulary, bounds and thresholds that runs use are public, e.g. 'words of a "
            "public dictionary'. If it is missing, you are asked for it. Statements repeat it.",
        ),
    ] = None,
    shared_ids: Annotated[
        str | None,
        typer.Option(
            metavar="REASON",
            help="What you declare of ids that are also in other populations of the ledger, e.g. 'the same patients as "
            "in the weekly export; their losses add up'. Needed if there are many. Statements quote it.",
        ),
    ] = None,
    spent_before: Annotated[
        float | None,
        typer.Option(
            metavar="RHO",
            help="Starting charge: rho that these people have spent in an account that this version does not read; "
            "0: none. Needs --spent-before-reason.",
        ),
    ] = None,
    spent_before_reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Where RHO comes from. Statements quote it.")
    ] = None,
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Set the budget of a population: once, for all runs to come."""
    from fedcore.training import earlier_accounts
    from fedcore.training.budget import ledger_of, set_budget

    use_ledger(ledger)
    store = open_population(population)
    found = ledger_of(store)
    charge = earlier_accounts.spent_before(spent_before, spent_before_reason)
    if charge is None:
        earlier_accounts.require_declaration(store, found)
    compared = register(store, found, new_key=False, budget=True, declaring=shared_ids is not None)
    set_budget(
        store,
        found,
        epsilon,
        delta,
        window=window,
        delta_extra=delta_extra,
        relation=cast("Relation", relation),
        unit=cast("Unit", unit),
        public_schema=asked_schema() if public_schema is None else public_schema,
        shared_ids=shared_ids,
        compared=compared,
        spent_before=charge,
    )
    budget_show(population, None, as_json)


def asked_schema() -> str:
    """Ask at the terminal why the schema is public. Raises ConfigError without an interactive terminal."""
    question = "Why are the columns or vocabulary, bounds and thresholds that runs will use public?"
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError(
            f"a budget needs an answer: {question[0].lower()}{question[1:]} What was made from the data of these "
            "people (a list of their words, the largest value in a column) reveals information about them, and no "
            "noise hides it.",
            "Answer with --public-schema REASON, e.g. 'words of a public dictionary', or 'columns of the published "
            "form, bounds from its manual'. Statements repeat it.",
        )
    return str(typer.prompt(f"{question} They must not come from the data of these people. Statements repeat it"))


@budget_app.command("public-schema")
def budget_public_schema(
    population: PopulationArgument,
    reason: Annotated[
        str,
        typer.Argument(
            metavar="REASON", help="Why the columns or vocabulary, bounds and thresholds that runs use are public."
        ),
    ],
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Declare after `budget set` why columns, bounds, vocabulary and thresholds are public. Earlier reasons remain."""
    from fedcore.training.budget import ledger_of, remember_head

    use_ledger(ledger)
    store = open_population(population)
    found = ledger_of(store)
    found.say_public_schema(store.id, reason)
    remember_head(store, found)
    budget_show(population, None, as_json)


@budget_app.command("shared-ids")
def budget_shared_ids(
    population: PopulationArgument,
    reason: Annotated[
        str | None,
        typer.Argument(metavar="[REASON]", help="What you declare of ids that are also in other populations."),
    ] = None,
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Show on this terminal how many ids of a population are also in others of its ledger; with a reason, declare why.

    Statements quote the declaration, and never how many.
    """
    from fedcore.privacy.ledger.accounts import checked_reason
    from fedcore.training.budget import ledger_of, remember_head, required_budget

    use_ledger(ledger)
    store = open_population(population)
    found = ledger_of(store)
    if reason is None:
        register(store, found, budget=True)
    else:  # what would be refused makes no key
        checked_reason(reason)
        found.register(store.id)
        required_budget(store, found.balance(store.id))
        register(store, found, new_key=True, budget=True, declaring=True)
        found.declare_shared_ids(store.id, reason)
        remember_head(store, found)
    budget_show(population, None, as_json)


@budget_app.command("accept-loss")
def budget_accept_loss(
    population: PopulationArgument,
    because: Annotated[str, typer.Option("--because", metavar="REASON", help="What happened; shown permanently.")],
    runs: Runs = "runs",
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Acknowledge lost records, to continue with an older copy of a ledger or without ledger-head.json.

    The ledger has no record of what was spent since that copy. From then on, budget and statements state that more may
    have been spent. If a newer copy exists, restore it instead.
    """
    from fedcore.training.budget import ledger_unchecked
    from fedcore.training.witness import accept_loss

    use_ledger(ledger)
    store = open_population(population)
    accept_loss(store, ledger_unchecked(store), because, runs)
    budget_show(population, None, as_json)


@budget_app.command("cohorts")
def budget_cohorts(population: PopulationArgument, ledger: Ledger = None, as_json: Json = False) -> None:
    """Switch to per-cohort budgets. Each later append starts a cohort with a full budget. Existing clients become
    cohort 1 and keep their spent budget. Irreversible; safe to re-run after an interruption.
    """
    from fedcore.training.budget import begin_cohorts, ledger_of

    use_ledger(ledger)
    store = open_population(population)
    if store.manifest.cohorts and not as_json:
        print(
            f"The budget of {store.path.name} is kept by cohort already; cohorts so far: {len(store.manifest.cohorts)}."
        )
    begin_cohorts(store, ledger_of(store))
    budget_show(population, None, as_json)


@budget_app.command("raise")
def budget_raise(
    population: PopulationArgument, epsilon: Epsilon, delta: Delta, ledger: Ledger = None, as_json: Json = False
) -> None:
    """Raise the budget. The raise is recorded and shown permanently."""
    from fedcore.training.budget import ledger_of, remember_head

    use_ledger(ledger)
    store = open_population(population)
    found = ledger_of(store)
    register(store, found, budget=True)
    found.raise_budget(store.id, epsilon, delta)
    remember_head(store, found)
    budget_show(population, None, as_json)


@budget_app.command("divide")
def budget_divide(
    population: PopulationArgument,
    shares: Annotated[
        list[str],
        typer.Option(
            "--share",
            metavar="NAME=PART",
            help="Fraction of the budget, taken exactly as written: team-a=0.5, team-b=1/3; 0 removes a sub-budget. "
            "Repeatable; other sub-budgets stay.",
        ),
    ],
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Divide the budget into named sub-budgets, or change them. The division is recorded and shown permanently. A run
    with `fedcore train --share NAME` is charged to that sub-budget only, and a run without it to the undivided rest. No
    sub-budget can become smaller than what its runs have spent and reserved.
    """
    from fedcore.privacy.ledger.shares import read_shares
    from fedcore.training.budget import ledger_of, remember_head

    use_ledger(ledger)
    store = open_population(population)
    found = ledger_of(store)
    found.divide(store.id, read_shares(shares))
    remember_head(store, found)
    budget_show(population, None, as_json)


@budget_app.command("show")
def budget_show(
    population: PopulationArgument,
    ledger: Ledger = None,
    as_json: Json = False,
    whole: Annotated[bool, typer.Option("--all", help="Every record of the history, and every digit.")] = False,
) -> None:
    """Show what is spent, reserved and left, with the history; verifies the chain first."""
    from fedcore.training.budget import ledger_of
    from fedcore.training.witness import missing_witness

    use_ledger(ledger)
    store = open_population(population)
    found = ledger_of(store, to_show=True)
    balance, history = found.verify(store.id), found.history(store.id)
    warnings = [missing] if (missing := missing_witness(store, found)) else []
    if losses := [row for row in history if row["kind"] == "accept loss"]:
        from fedcore.privacy.statement import loss_in_words

        warnings += [loss_in_words(row["at"], row["reason"]) for row in losses]
    shown = {"population": str(population), **balance.to_json()}
    if as_json:
        return say({**shown, "warnings": warnings, "history": history}, True)
    for name in ("segments", "lifetime", "shares"):
        shown.pop(name, None)
    say(shown if whole else short_balance(shown), False)
    if balance.segments or balance.shares or balance.periods is not None:
        _show_parts(balance, store)
    for warning in warnings:
        print(f"WARNING: {warning}", file=sys.stderr)
    table("History", whole_history(history) if whole else short_history(history))


def _show_parts(balance: Balance, store: Population) -> None:
    """The accounts of cohorts and shares, and what a client loses at most over all periods."""
    from fedcore.operations.cohort_page import LIFETIME, lifetime_rows, segment_rows, share_rows

    if balance.segments:
        table("Cohorts", short_rows(segment_rows(balance, store.manifest)))
    if balance.shares:
        table("Shares", short_rows(share_rows(balance, store.manifest), may_spend=("rho",)))
    if balance.periods is not None:
        table(LIFETIME, short_rows(lifetime_rows(balance)))


@budget_app.command("plan")
def budget_plan(
    population: PopulationArgument,
    runs: Annotated[int | None, typer.Option(min=1, help="Equal runs to share what is left.")] = None,
    horizon: Annotated[
        str | None,
        typer.Option(
            metavar="auto|RUNS",
            help="Instead of --runs, for a budget by cohort: number of runs that each cohort's budget funds.",
        ),
    ] = None,
    arrivals: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="With --horizon: fraction of new clients at each run; default: follows from the declared sizes.",
        ),
    ] = None,
    beside: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="With --horizon: deployments of other schedules on the population, which draw on the same cohorts.",
        ),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Name of the method; default: the first that is private for such a population.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Budget of each run; default: as much as fits.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings.")] = None,
    settings: Settings = None,
    share: Share = None,
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Show what each of several equal runs may spend, and its expected utility. The table has a run from nothing (cold)
    and, where the method supports it, the second and the last run of a series, each started from earlier releases
    (warm, last). With --horizon: the same for a budget by cohort, where each cohort's budget funds that many runs. With
    auto, fedcore chooses the number that suits new clients best. Uses the budget and public facts only: reserves
    nothing and opens no data.
    """
    from fedcore.planning.budget_plan import equal_runs, planned_method
    from fedcore.planning.horizon import horizon_plan
    from fedcore.training.budget import ledger_of

    use_ledger(ledger)
    store = open_population(population)
    planner = planned_method(method, read_settings(config, settings), store)
    balance = ledger_of(store).balance(store.id)
    if balance.budget is not None:
        balance = balance.of_share(share)
    if (runs is None) == (horizon is None):
        raise ConfigError("a plan of a budget needs --runs or --horizon.", "Name one of the two.")
    if runs is not None:
        if arrivals is not None or beside is not None:
            raise ConfigError("`--arrivals` and `--beside` need `--horizon`.")
        planned = equal_runs(planner, store, balance, runs, epsilon)
        sketches = {name: planned[name] for name in ("cold", "warm", "last") if name in planned}
        shown = {name: value for name, value in planned.items() if name not in sketches}
    else:
        if epsilon is not None:
            raise ConfigError("--horizon and --epsilon exclude each other: each sets the budget of a run.")
        planned = horizon_plan(
            planner, store, balance, _runs_of(horizon), arrivals, _others(beside, store, balance, share)
        )
        sketches = planned["runs"]
        shown = {name: value for name, value in planned.items() if name != "runs"}
    if as_json:
        return say({"population": str(population), **planned}, True)
    say({"population": str(population), **shown}, False)
    table("Each run" if runs is not None else "Run", [{"run": name, **sketch} for name, sketch in sketches.items()])


def _runs_of(horizon: str | None) -> int | None:
    """None for auto."""
    if horizon == "auto":
        return None
    try:
        return int(horizon or "")
    except ValueError:
        raise ConfigError(f"a horizon is auto or a number of runs, not {horizon!r}.") from None


def _others(file: Path | None, store: Population, balance: Balance, share: str | None) -> list[tuple[str, float]]:
    """(name, rho of a run) of the deployments of a file that draw on this population's budget, or this share of it."""
    if file is None or balance.budget is None:
        return []
    from fedcore.operations.deployment import shares_on

    return shares_on(file, store, balance.budget, share)
