"""Versions of a population that a deployment has not trained on, to be made up for on purpose."""

from __future__ import annotations

from collections.abc import Sequence

from fedcore.errors import BudgetExceeded, ConfigError
from fedcore.methods.registry import make_method
from fedcore.operations.budget_left import runs_that_fit
from fedcore.operations.deployment import Deployment
from fedcore.population.store import Population
from fedcore.runs.store import list_runs
from fedcore.storage.ranges import Ranges, holds, in_words, ranges_of
from fedcore.training.request import Series
from fedcore.training.spec import open_inputs, resolve
from fedcore.training.warm_start import PREVIOUS

SKIPPED = ("failed", "abandoned")  # runs with which a version does not count as trained on


def missing_versions(item: Deployment, wanted: Ranges) -> list[int]:
    """The wanted versions without a run of the deployment, ascending. Runs that can be resumed count as runs.

    Raises ConfigError for versions that the population does not have, and what reading it and the runs raises.
    """
    known = Population.open(item.population).versions()
    strange = [number for first, last in wanted for number in range(first, last + 1) if number not in known]
    if strange:
        raise ConfigError(
            f"population {item.population!r} has no versions {in_words(ranges_of(strange))}; it has "
            f"{in_words(ranges_of(known))}."
        )
    done = {
        (run.info.get("population") or {}).get("version")
        for run in list_runs(item.runs)
        if run.info.get("deployment") == item.name and run.status not in SKIPPED
    }
    return [number for number in sorted(known) if holds(wanted, number) and number not in done]


def check_backfill(item: Deployment, versions: Sequence[int]) -> None:
    """Raises ConfigError if the deployment's runs start from one another, or are charged by cohort, BudgetExceeded if
    the budget does not have room for all of these runs, and what `resolve` raises for the next run.
    """
    if item.start_from == PREVIOUS:
        raise ConfigError(
            f"the runs of deployment {item.name!r} start from one another, and a run on an older version would "
            "become the start of the next run.",
            "Do not train on it: the newest version contains the later data, and its next run reads them.",
        )
    if not versions or not make_method(item.method, item.config).private:
        return
    if Population.open(item.population).manifest.cohorts:
        raise ConfigError(
            f"the budget of population {item.population!r} is kept by cohort: on an older version other clients would "
            "be charged than the schedule has planned for.",
            "Do not train on it: clients who could not take part keep more budget for later runs.",
        )
    inputs = open_inputs(item.request)
    spec = resolve(item.request, inputs)
    fit = 0 if inputs.balance is None else runs_that_fit(spec, inputs.balance)
    if fit < len(versions):
        raise BudgetExceeded(
            f"{len(versions)} runs of deployment {item.name!r} are missing, and the budget of population "
            f"{spec.population.path.name!r} has room for {fit} of its runs. Nothing was released.",
            "Pass fewer versions." if fit else "Budgets do not renew.",
        )


def series_of(item: Deployment) -> Series:
    """What becomes of such runs: they are compared as the others are, never promoted, and none is pruned for them."""
    return item.series.model_copy(update={"promote": "never", "tolerance": 0.0, "retention": None})
