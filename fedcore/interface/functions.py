"""The functions of `import fedcore`: what the command line does, for programs and notebooks, in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedcore.interface.model import Model, load_run
from fedcore.operations.in_process import stamp, to_the_end
from fedcore.planning.run_plan import Resources, plan_run
from fedcore.population.store import Population
from fedcore.privacy.ledger.chain import Balance
from fedcore.privacy.plan import Relation, Unit
from fedcore.rounds.engine import Backend, InProcessBackend
from fedcore.rounds.method import RoundInfo
from fedcore.storage.files import Place
from fedcore.training import budget as budgets
from fedcore.training.request import TrainRequest
from fedcore.training.session import Session, start_run
from fedcore.training.session import resume as reopened

Progress = Callable[[int, RoundInfo], None]


def open_population(path: str | Path, version: int | None = None) -> Population:
    """The population at a folder or URL, by its manifest; data are opened block by block when they are read.

    version: the newest by default. Raises PopulationNotFound, ManifestError.
    """
    return Population.open(str(path), version=version)


def train(
    method: str,
    population: Population | str | Path,
    settings: Mapping[str, Any] | None = None,
    *,
    runs: str | Path = "runs",
    run_id: str | None = None,
    seed: int = 0,
    start_from: str | None = None,
    public_start_because: str | None = None,
    share: str | None = None,
    ledger: str | None = None,
    backend: Backend | None = None,
    progress: Progress | None = None,
    report: bool = True,
) -> Model:
    """Train a model to its end and read it. The run is stored, can be resumed after an interruption, and is charged to
    the budget of the population if it is private, as by `fedcore train --local`.

    method: its name (`fedcore methods` lists them); settings: of the method, others take their defaults
    population: opened, or its place; runs: folder or URL of the runs; run_id: name of the run
    seed: of simulation randomness, which protects nobody
    start_from, public_start_because, share: as for `fedcore train`
    ledger: where the population's ledger is now, if moved
    backend: computes the clients' answers; in this process by default, `fedcore.tasks.dask_backend` has Dask's
    progress: called with the number of finished rounds and what the last one told
    report: whether the run gets its report.html

    Raises ConfigError for what cannot be trained, BudgetExceeded and other PrivacyErrors, PopulationError, RunError.
    """
    place, version = str(population), None
    if isinstance(population, Population):
        place, version = str(population.location), population.version
    request = TrainRequest.read(
        method=method,
        population=place,
        version=version,
        settings=dict(settings or {}),
        runs=str(runs),
        run_id=run_id,
        seed=seed,
        start_from=start_from,
        public_start_because=public_start_because,
        share=share,
    )
    backend = backend or InProcessBackend()
    session = start_run(request, backend, stamp=stamp(), ledger_url=ledger)
    return load_run(_ended(session, backend, progress, report))


def resume(
    run: str | Place | Model,
    *,
    ledger: str | None = None,
    backend: Backend | None = None,
    progress: Progress | None = None,
) -> Model:
    """Go on with an interrupted run after its last committed round, and read it; the bits are those of a run that was
    never interrupted. Raises RunError if it has ended, RunBusy if somebody else works on it."""
    backend = backend or InProcessBackend()
    session = reopened(run.path if isinstance(run, Model) else run, backend, ledger_url=ledger)
    return load_run(_ended(session, backend, progress))


def plan(
    method: str,
    population: Population | str | Path,
    settings: Mapping[str, Any] | None = None,
    *,
    workers: int = 0,
    seconds: float = 10.0,
) -> dict[str, Any]:
    """What a run would take: passes, bytes, memory, disk, seconds (`fedcore plan`). Reserves and trains nothing.

    workers: 0: this process alone; seconds: that measuring may take. Raises ConfigError for what cannot fit.
    """
    place = str(population.location if isinstance(population, Population) else population)
    request = TrainRequest.read(method=method, population=place, settings=dict(settings or {}))
    return plan_run(request, Resources(workers=workers, prefect=False), limit=seconds)


def budget(population: Population | str | Path, *, ledger: str | None = None) -> Balance:
    """What is spent, reserved and left of the budget of a population; the ledger's chain is verified first.

    Raises LedgerMissing, LedgerTampered, LedgerRolledBack.
    """
    store = population if isinstance(population, Population) else open_population(population)
    return budgets.ledger_of(store, ledger, to_show=True).verify(store.id)


def set_budget(
    population: Population | str | Path,
    epsilon: float,
    delta: float,
    *,
    public_schema: str,
    unit: Unit = "client",
    relation: Relation = "add_or_remove_one",
    delta_extra: float | None = None,
    shared_ids: str | None = None,
    spent_before: float | None = None,
    spent_before_reason: str | None = None,
    ledger: str | None = None,
) -> Balance:
    """Set the budget of a population, once, for all runs to come (`fedcore budget set`).

    public_schema: why the columns or vocabulary, bounds and thresholds that runs use are public; statements repeat it
    unit, relation: who is protected against what; delta_extra: part of delta for thresholding steps
    shared_ids: what you declare of ids that are also in other populations of the ledger; statements repeat it
    spent_before, spent_before_reason: starting charge, a rho that these people have spent in an account that this
        version does not read, and where it comes from; statements quote it
    Raises BudgetExists, ConfigError, LedgerMissing; SharedIds if shared_ids is needed and missing; LedgerRetired if
    spent_before is.
    """
    from fedcore.training import earlier_accounts  # which loads the database

    store = population if isinstance(population, Population) else open_population(population)
    found = budgets.ledger_of(store, ledger)
    charge = earlier_accounts.spent_before(spent_before, spent_before_reason)
    if charge is None:
        earlier_accounts.require_declaration(store, found)
    terms: dict[str, Any] = {"unit": unit, "relation": relation, "delta_extra": delta_extra, "shared_ids": shared_ids}
    terms["spent_before"] = charge
    budgets.set_budget(store, found, epsilon, delta, public_schema=public_schema, **terms)
    return found.balance(store.id)


def _ended(session: Session, backend: Backend, progress: Progress | None, report: bool = True) -> Place:
    def after_round(info: RoundInfo) -> None:
        if progress is not None:
            progress(session.training.done, info)

    return to_the_end(session, backend, after_round, report=report)
