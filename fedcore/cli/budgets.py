"""`fedcore budget`: the privacy budget of a population."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from fedcore.cli.options import Json, Ledger, PopulationArgument, Settings, open_population, use_ledger
from fedcore.cli.terminal import read_settings, say, table

if TYPE_CHECKING:
    from fedcore.privacy.plan import Relation, Unit

budget_app = typer.Typer(no_args_is_help=True, help="The privacy budget of a population.")

Epsilon = Annotated[float, typer.Option("--epsilon", help="Total epsilon of everything ever released.")]
Delta = Annotated[float, typer.Option("--delta", help="Total delta; well below 1 / number of clients.")]


@budget_app.command("set")
def budget_set(
    population: PopulationArgument,
    epsilon: Epsilon,
    delta: Delta,
    delta_extra: Annotated[
        float | None, typer.Option(help="Part of delta kept for thresholding steps (10 % by default).")
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
            help="What is protected: client, everything of one client; or record, one row "
            "of somebody, which only private_gmm can plan for."
        ),
    ] = "client",
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Set the budget of a population: once, for all runs to come."""
    from fedcore.training.budget import ledger_of, remember_head

    use_ledger(ledger)
    store = open_population(population)
    found = ledger_of(store)
    found.register(store.id)  # in case the process that ingested died just before it did
    found.set_budget(
        store.id, epsilon, delta, delta_extra=delta_extra, relation=cast("Relation", relation), unit=cast("Unit", unit)
    )
    remember_head(store, found)
    budget_show(population, None, as_json)


@budget_app.command("raise")
def budget_raise(
    population: PopulationArgument, epsilon: Epsilon, delta: Delta, ledger: Ledger = None, as_json: Json = False
) -> None:
    """Raise the budget; the raise is kept and shown for ever."""
    from fedcore.training.budget import ledger_of, remember_head

    use_ledger(ledger)
    store = open_population(population)
    found = ledger_of(store)
    found.raise_budget(store.id, epsilon, delta)
    remember_head(store, found)
    budget_show(population, None, as_json)


@budget_app.command("show")
def budget_show(population: PopulationArgument, ledger: Ledger = None, as_json: Json = False) -> None:
    """What is spent, reserved and left, with the history; verifies the chain first."""
    from fedcore.training.budget import ledger_of

    use_ledger(ledger)
    store = open_population(population)
    found = ledger_of(store)
    found.verify(store.id)
    balance, history = found.balance(store.id), found.history(store.id)
    if as_json:
        return say({"population": str(population), **balance.to_json(), "history": history}, True)
    say({"population": str(population), **balance.to_json()}, False)
    table(
        "History",
        [
            {"seq": row["seq"], "what": row["kind"], "run": row.get("run_id"), "release": row.get("name")}
            for row in history
        ],
    )


@budget_app.command("plan")
def budget_plan(
    population: PopulationArgument,
    runs: Annotated[int, typer.Option(min=1, help="Equal runs to share what is left.")],
    method: Annotated[
        str | None, typer.Option(help="Name of the method; default: the first that is private for such a population.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="What each run would ask for; default: all that fits.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings.")] = None,
    settings: Settings = None,
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """What each of some equal runs may spend, and what that buys: a run from nothing (cold) and, where the method can,
    one from what the run before released (warm). Made from the budget and public facts: nothing is reserved and no
    data are opened.
    """
    from fedcore.planning.budget_plan import equal_runs, planned_method
    from fedcore.training.budget import ledger_of

    use_ledger(ledger)
    store = open_population(population)
    planner = planned_method(method, read_settings(config, settings), store)
    planned = equal_runs(planner, store, ledger_of(store).balance(store.id), runs, epsilon)
    planned = {"population": str(population), **planned}
    if as_json:
        return say(planned, True)
    sketches = [{"run": name, **planned.pop(name)} for name in ("cold", "warm") if name in planned]
    say(planned, False)
    table("Each run", sketches)
