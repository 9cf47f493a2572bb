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
    """Open a stored population by its manifest. Data are read later, block by block.

    path: folder or URL of the population
    version: number of a version; None: the newest
    Returns the population, whose `n_clients`, `n_rows`, `features` and `kind` come from the manifest.
    Raises PopulationNotFound if there is none, ManifestError if its manifest is damaged.

    >>> import fedcore
    >>> fedcore.open_population("heights").n_clients
    20
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
    """Train a model and return it. The run is stored under `runs` and can be resumed, as by `fedcore train --local`.

    A private run is charged to the population's budget.

    method: name of the method (`fedcore methods` lists them)
    population: an opened population, or its folder or URL
    settings: settings of the method by name; the others take their defaults
    runs: folder or URL of the runs
    run_id: name of the run; None: made of the method, the population and the time
    seed: seed for simulation randomness, 0 or more; privacy noise does not use it
    start_from: run or .npz file with the parameters to start from
    public_start_because: why that start is public, if it is not a private run; the statement quotes it
    share: sub-budget that is charged, where the budget is divided
    ledger: URL of the population's ledger, if it has moved
    backend: computes the client statistics; None: this process. `fedcore.tasks.dask_backend` has one of Dask
    progress: called after each round with the number of finished rounds and the `RoundInfo` of the last one
    report: whether to write report.html
    Returns the trained model, as `load_run` does.
    Raises ConfigError for a request that cannot be trained, BudgetExceeded and other PrivacyErrors, PopulationError,
    RunError.

    >>> import fedcore
    >>> model = fedcore.train("federated_em", "heights", {"components": 2, "algorithm": "em"}, run_id="first")
    >>> model.status, [round(x) for x in sorted(model.columns("means")["A"])]
    ('finished', [-4, -4])
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
    """Continue an interrupted run after its last committed round. The bits are those of an uninterrupted run.

    run: folder or URL of the run, or the model that `load_run` returned
    ledger: URL of the population's ledger, if it has moved
    backend: computes the client statistics; None: this process
    progress: called after each round with the number of finished rounds and the `RoundInfo` of the last one
    Returns the trained model.
    Raises RunError if the run has ended, RunBusy if another process is working on it, and what `train` raises.

    >>> import fedcore
    >>> def interrupt(rounds, info):
    ...     raise KeyboardInterrupt
    >>> try:
    ...     fedcore.train("federated_em", "heights", {"algorithm": "em"}, run_id="first", progress=interrupt)
    ... except KeyboardInterrupt:
    ...     fedcore.resume("runs/first").status
    'finished'
    """
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
    """Estimate what a run would take, as `fedcore plan` does. Reserves and trains nothing.

    method: name of the method
    population: an opened population, or its folder or URL
    settings: settings of the method by name; the others take their defaults
    workers: number of worker processes; 0: this process alone
    seconds: time that the measurement may take, in seconds
    Returns numbers by name, among them "passes" over the data, "bytes_read", "bytes_per_worker", "disk_bytes" and
    "seconds".
    Raises ConfigError for a run that cannot fit.

    >>> import fedcore
    >>> predicted = fedcore.plan("federated_em", "heights", {"algorithm": "em"}, seconds=0.1)
    >>> predicted["clients"], predicted["private"], predicted["seconds"] > 0
    (20, False, True)
    """
    place = str(population.location if isinstance(population, Population) else population)
    request = TrainRequest.read(method=method, population=place, settings=dict(settings or {}))
    return plan_run(request, Resources(workers=workers, prefect=False), limit=seconds)


def budget(population: Population | str | Path, *, ledger: str | None = None) -> Balance:
    """Return the balance of a population's budget, after a check of the ledger's whole chain of records.

    population: an opened population, or its folder or URL
    ledger: URL of the population's ledger, if it has moved
    Returns a `Balance`, which has `budget`, `rho_spent`, `rho_reserved` and `rho_left`.
    Raises LedgerMissing if there is no ledger, LedgerError if it does not know the population, LedgerTampered or
    LedgerRolledBack if the check fails.

    >>> import fedcore
    >>> _ = fedcore.set_budget("heights", 1.0, 1e-6, public_schema="two measures, chosen in advance")
    >>> fedcore.budget("heights").rho_spent
    0.0
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
    """Set the budget of a population, once, for all later runs. The command is `fedcore budget set`.

    population: an opened population, or its folder or URL
    epsilon, delta: the guarantee over all runs; epsilon above 0, delta above 0 and below 1
    public_schema: why the columns or vocabulary, bounds and thresholds that runs use are public; statements quote it
    unit: "client", "record" or "client_period": whose data are protected
    relation: "add_or_remove_one" or "replace_one": what a neighbouring data set is
    delta_extra: part of delta for thresholding steps, 0 or more and below delta; None: 0
    shared_ids: declaration about ids that are also in other populations of the ledger; statements quote it
    spent_before: starting charge, the rho that these people have spent in an account that this version does not read
    spent_before_reason: where that number comes from; statements quote it
    ledger: URL of the population's ledger, if it has moved
    Returns the `Balance`.
    Raises BudgetExists if there is a budget, ConfigError, LedgerMissing; SharedIds if `shared_ids` is needed and
    missing; LedgerRetired if `spent_before` is.

    >>> import fedcore
    >>> balance = fedcore.set_budget("heights", 1.0, 1e-6, public_schema="two measures, chosen in advance")
    >>> balance.budget.epsilon, balance.rho_spent
    (1.0, 0.0)
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
