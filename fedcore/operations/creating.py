"""Creating what a file declares and there is not yet: populations by their first ingest, then their budgets.

Each step leaves something whole behind and is looked for before it is made, so that a process that is killed anywhere
is followed by one that makes the rest. A budget of several steps (set, cohorts, shares) is finished only if a note
next to the file states that it was begun with these very values. Otherwise a budget that is set is compared, and never
changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from fedcore.errors import BudgetExists, BudgetMissing, ConfigError, FedcoreError, IngestError, PopulationNotFound
from fedcore.operations.declared import DeclaredBudget, DeclaredPopulation
from fedcore.operations.deployment import DeploymentFile
from fedcore.operations.pipelines.append import append, existing
from fedcore.operations.pipelines.files import find
from fedcore.operations.pipelines.journal import alone, read_journal
from fedcore.operations.pipelines.law import is_private
from fedcore.operations.pipelines.steps import Ingest, Pipeline
from fedcore.population.ingest.batches import read_vocabulary
from fedcore.population.ingest.dealing import Sharing
from fedcore.population.ingest.ingest import ingest
from fedcore.population.ingest.request import IngestRequest
from fedcore.population.ingest.schema import with_schema
from fedcore.population.ingest.sources import files_of
from fedcore.population.store import Population
from fedcore.privacy.accounting import make_budget
from fedcore.privacy.ledger.balances import Balance
from fedcore.privacy.ledger.shares import in_words
from fedcore.privacy.plan import CLIENT_PERIOD
from fedcore.storage import files
from fedcore.storage.files import is_url
from fedcore.storage.parsing import parse_json
from fedcore.training import earlier_accounts
from fedcore.training.budget import begin_cohorts, ledger_name, ledger_of, remember_head, set_budget
from fedcore.training.shared_ids import register

Report = Callable[[str], object]
SharingFor = Callable[[int | None], Sharing | None]  # who reads large tables in parts, for a number of workers
NO_SOURCE = "Name the files to make it of: source = ..."
Problem = tuple[str, FedcoreError]  # as of `fedcore.operations.deployment_checks`


# --- looking ----------------------------------------------------------------------------------------------------------


def missing(content: DeploymentFile, notes: Path) -> dict[str, list[str]]:
    """What `create` would create, by population: one sentence for each thing. What cannot be opened is left out, and
    is one of the `declared_problems`.
    """
    found: dict[str, list[str]] = {}
    for item in content.population:
        words = []
        try:
            store = existing(item.path)
            if store is None:
                words.append(f"population {item.path}: first ingest, {_from_what(item, _feeding(content, item))}")
            if item.budget is not None and (store is None or _to_set(store, item.budget, notes)):
                words.append(f"budget of {item.path}: {_budget_in_words(item.budget)}")
        except FedcoreError:
            continue
        if words:
            found[item.path] = words
    return found


def declared_problems(content: DeploymentFile, notes: Path) -> list[Problem]:
    """What is wrong with the populations and budgets that a file declares, and what its private deployments lack."""
    found: list[Problem] = []
    declared = {item.path: item for item in content.population}
    for item in content.population:
        where = f"population {item.path!r}"
        found += [(where, error) for error in _caught(partial(_check, content, item, notes))]
    made = {item.path for item in content.population} | {one.population for one in content.pipeline if one.ingests}
    for deployment in content.deployment:
        budget = declared[deployment.population].budget if deployment.population in declared else None
        if deployment.population not in made or not is_private(deployment) or budget is not None:
            continue
        if list(_caught(partial(existing, deployment.population))) or existing(deployment.population) is not None:
            continue  # if it exists, or cannot be opened, other checks report it
        error = BudgetMissing(
            f"the population {deployment.population} is still to be made, and the file declares no budget for it.",
            "Write [population.budget] below its [[population]]: private runs need one.",
        )
        found.append((f"deployment {deployment.name!r}", error))
    return found


def _caught(look: Callable[[], object]) -> Iterator[FedcoreError]:
    try:
        look()
    except FedcoreError as error:
        yield error


def _check(content: DeploymentFile, item: DeclaredPopulation, notes: Path) -> None:
    """Raises what creating it would raise, as far as can be seen without reading its source."""
    store, pipeline = existing(item.path), _feeding(content, item)
    if item.budget is not None:
        make_budget(item.budget.epsilon, item.budget.delta, item.budget.delta_extra)
        if store is not None:
            _to_set(store, item.budget, notes)
    if store is not None:
        return
    if is_url(item.path):
        raise PopulationNotFound(f"There is no population at {item.path}.", "Ingest into a folder, and copy that.")
    if pipeline is not None:
        step = _ingest_of(pipeline)
        there, later = find(step, datetime.now(UTC))
        if not there and not later:
            raise IngestError(f"There is no file yet at {step.files}.", "Put one there: it makes the population.")
        return
    if item.source is None:
        raise PopulationNotFound(f"There is no population at {item.path}.", NO_SOURCE)
    request = IngestRequest.of(item.options)
    if request.format != "sql":
        files_of(item.source)
    if (words := with_schema(request, False).vocabulary) is not None:
        read_vocabulary(words)


def _feeding(content: DeploymentFile, item: DeclaredPopulation) -> Pipeline | None:
    """The pipeline of the file that makes this population."""
    return next((one for one in content.pipeline if one.ingests and one.population == item.path), None)


def _ingest_of(pipeline: Pipeline) -> Ingest:
    return next(step for step in pipeline.step if isinstance(step, Ingest))


def _from_what(item: DeclaredPopulation, pipeline: Pipeline | None) -> str:
    if pipeline is None:
        return f"from {item.source}"
    return f"from {_ingest_of(pipeline).files}, as pipeline {pipeline.name}"


def _budget_in_words(budget: DeclaredBudget) -> str:
    words = f"epsilon = {budget.epsilon:g}, delta = {budget.delta:g}, for one {budget.unit}"
    kept = ", kept by cohort" if budget.cohorts else ""
    return f"{words}{kept}{f', shares {in_words(budget.parts)}' if budget.parts else ''}"


# --- creating ---------------------------------------------------------------------------------------------------------


def create(content: DeploymentFile, notes: Path, report: Report, sharing: SharingFor = lambda workers: None) -> None:
    """Make the populations and budgets of the file that are missing, in its order.

    notes: folder for notes about budgets that were begun. report: is given a sentence about each thing as it is made.
    Raises what an ingest and setting a budget raise; BudgetExists if a budget that is set differs from the file's.
    """
    for item in content.population:
        store = existing(item.path)
        if store is None:
            pipeline = _feeding(content, item)
            store = _made(item, sharing) if pipeline is None else _made_by(pipeline, report, sharing)
            report(f"population {item.path} was made")
        if item.budget is not None and _to_set(store, item.budget, notes):
            _set(store, item.budget, notes)
            report(f"budget of {item.path} was set: {_budget_in_words(item.budget)}")


def _made(item: DeclaredPopulation, sharing: SharingFor) -> Population:
    if item.source is None:
        raise PopulationNotFound(f"There is no population at {item.path}.", NO_SOURCE)
    request = IngestRequest.of(item.options)
    made = ingest(item.source, item.path, request, ledger=ledger_name(), sharing=sharing(request.workers))
    register(made, ledger_of(made, to_show=True))
    return made


def _made_by(pipeline: Pipeline, report: Report, sharing: SharingFor) -> Population:
    """The population of the files that have arrived for a pipeline, by its step. What is still being written to is
    waited for once, if there is nothing else.
    """
    step, until = _ingest_of(pipeline), None
    while True:
        with alone(pipeline.runs, pipeline.name):
            aside = read_journal(pipeline.runs, pipeline.name).set_aside()
            now = datetime.now(UTC).replace(microsecond=0)
            made = append(step, pipeline, now, aside, sharing(step.workers))
        if made.population is not None:
            return made.population
        if not made.files.later or (until is not None and time.monotonic() > until):
            why = "".join(f" {one.name}: {one.because}" for one in made.aside) or " There is none."
            raise IngestError(f"No file at {step.files} could be read.{why}", "Put a file there that can be read.")
        if until is None:
            until = time.monotonic() + step.quiet_seconds + 5
            report(f"{', '.join(made.files.later)}: written to less than {step.quiet_seconds:g} s ago; waiting")
        time.sleep(1.0)


# --- budgets ----------------------------------------------------------------------------------------------------------


def _note(notes: Path, population: Population) -> Path:
    return notes / f"budget-{population.id}.json"


def _to_set(population: Population, declared: DeclaredBudget, notes: Path) -> bool:
    """Whether the budget is to be set, or to be finished. Raises BudgetExists if another one is set."""
    ledger = ledger_of(population, to_show=True)
    if population.id not in ledger.populations():  # its process died before it was made known
        return True
    balance = ledger.balance(population.id)
    if balance.budget is None or _begun(_note(notes, population)) == declared.model_dump(mode="json"):
        return True
    if other := differences(declared, balance, population):
        listed = "; ".join(f"{name} is {ours} in the file, and {theirs} is set" for name, ours, theirs in other)
        raise BudgetExists(
            f"the budget of population {population.path.name!r} is set, and the file declares another one: {listed}.",
            "A file never changes a budget. Write the values that are set, or use the commands of `fedcore budget` to "
            "raise, divide or begin cohorts.",
        )
    return False


def _begun(note: Path) -> object:
    """What a process that did not come to the end has begun with; None if there is no such note."""
    try:
        return parse_json(note.read_bytes())
    except (OSError, ValueError):
        return None


def differences(declared: DeclaredBudget, balance: Balance, population: Population) -> list[tuple[str, object, object]]:
    """(name, in the file, set) of everything that the file names and that is otherwise. balance: has a budget."""
    budget = balance.required_budget()
    made = make_budget(declared.epsilon, declared.delta, declared.delta_extra)
    before = balance.spent_before
    shares = {share.name: share.part for share in balance.shares if share.name is not None}
    pairs = {
        "epsilon": (made.epsilon, budget.epsilon),
        "delta": (declared.delta, budget.delta),
        "delta_extra": (made.delta_extra, budget.delta_extra),
        "public_schema": (declared.public_schema, balance.public_schema),
        "relation": (declared.relation, balance.relation),
        "unit": (declared.unit, balance.unit),
        "window": (declared.window, None if balance.periods is None else balance.periods.window),
        "cohorts": (declared.cohorts, bool(population.manifest.cohorts)),
        "shares": (in_words(declared.parts), in_words(shares)),
        "spent_before": (declared.spent_before, None if before is None else before.rho),
        "spent_before_reason": (declared.spent_before_reason, None if before is None else before.reason),
    }
    return [
        (name, ours, theirs)
        for name, (ours, theirs) in pairs.items()
        if name in declared.model_fields_set and ours != theirs
    ]


def _set(population: Population, declared: DeclaredBudget, notes: Path) -> None:
    ledger, note = ledger_of(population), _note(notes, population)
    ledger.register(population.id)
    balance = ledger.balance(population.id)
    if balance.budget is None:
        charge = earlier_accounts.spent_before(declared.spent_before, declared.spent_before_reason)
        if charge is None:
            earlier_accounts.require_declaration(population, ledger)
        if declared.cohorts and declared.unit == CLIENT_PERIOD:
            raise ConfigError("A budget per client and calendar period is kept by period.", "Leave cohorts out.")
        files.write_whole(note, files.json_bytes(declared.model_dump(mode="json")), private=True)
        set_budget(
            population,
            ledger,
            declared.epsilon,
            declared.delta,
            window=declared.window,
            shared_ids=declared.shared_ids,
            delta_extra=declared.delta_extra,
            relation=declared.relation,
            unit=declared.unit,
            public_schema=declared.public_schema,
            spent_before=charge,
        )
    elif declared.shared_ids is not None and declared.shared_ids not in ledger.account(population.id).shared_ids:
        ledger.declare_shared_ids(population.id, declared.shared_ids)
    if declared.cohorts:
        population = begin_cohorts(population, ledger)
    if declared.parts and not balance.shares:
        ledger.divide(population.id, declared.parts)
    remember_head(population, ledger)
    files.remove(note)
