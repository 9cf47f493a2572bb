"""Whether a population has grown enough, as its operator declares it, for a private training to be made by default.

Each run is charged to the clients who take part, so runs that are more frequent than the population renews itself use
up its budget for nothing. What is compared is public: declared sizes, the budget, and which runs were made. How many
clients or files came decides nothing (docs/privacy/pipelines.md).
"""

from __future__ import annotations

from datetime import datetime
from fractions import Fraction

from fedcore.errors import FedcoreError
from fedcore.methods.registry import make_method
from fedcore.operations.deployment import Deployment
from fedcore.operations.pipelines.doing import run_name
from fedcore.population.store import Population
from fedcore.privacy.accounting import Budget
from fedcore.rounds.private_settings import cohort_rule
from fedcore.runs.digests import COHORTS
from fedcore.runs.store import Run, list_runs
from fedcore.training.budget import ledger_of, rho_asked


def too_little(item: Deployment, at: datetime, coming: int = 0) -> str:
    """Why the private training of this time is left out; "" if it is made. coming: clients that will be declared before
    it, with the next cohort.

    With g clients declared since the last run of the deployment, p declared clients in that run, and a budget that
    funds h runs, it is made if 2 h g >= p. So a schedule whose new clients replace the initial ones within h runs is
    never slowed down: they are at most h g, and so are those who have come since. The first run is always made, and so
    is one that was begun. What cannot be opened leaves nothing out: the training reports it.
    """
    try:
        before = [run for run in list_runs(item.runs) if run.info.get("deployment") == item.name]
        if not before or any(run.id == run_name(item.name, at) for run in before):
            return ""
        last = max(before, key=lambda run: (str(run.info.get("started")), run.id))
        population = Population.open(item.population)
        budget = ledger_of(population).balance(population.id).of_share(item.share).budget
    except FedcoreError:
        return ""
    took_part = last.info.get("nominal_clients")
    if budget is None or not isinstance(took_part, int):
        return ""
    grown, funded = _grown(population, last), _runs_funded(item, budget)
    grown += coming if population.manifest.cohorts and population.manifest.period is None else 0
    if 2 * funded * grown >= took_part:
        return ""
    needed = -(-took_part // (2 * funded))
    return (
        f"{grown} clients were declared since run {last.id}, in which {took_part} took part; a budget for "
        f"{float(funded):.4g} runs allows the next one after {needed}. Declare the clients who come with each append "
        '(newcomers), or set when = "always" to train at each time of the schedule'
    )


def _grown(population: Population, last: Run) -> int:
    """The clients that were declared since a run."""
    ranges = last.info.get(COHORTS)
    if ranges:
        newest = max(high for _, high in ranges)
        return sum(cohort.nominal or 0 for cohort in population.manifest.cohorts if cohort.number > newest)
    return max(0, (population.manifest.nominal_clients or 0) - int(last.info["nominal_clients"]))


def _runs_funded(item: Deployment, budget: Budget) -> Fraction:
    """How many runs of this deployment a whole budget funds; 1 if each takes all that is left."""
    method = make_method(item.method, item.config)
    if (horizon := cohort_rule(method.private_settings).horizon) is not None:
        return Fraction(horizon)
    if (share := rho_asked(method, budget)) is None:
        return Fraction(1)
    return max(Fraction(1), Fraction(budget.rho_max) / Fraction(share))
