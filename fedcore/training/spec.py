"""The first of the two steps in which a run begins: everything that decides it is looked up and checked.

    open_inputs(request)     -> Inputs     population, ledger and start, opened and verified once
    resolve(request, inputs) -> RunSpec    pure

`recorded_spec` makes the same for a run that is resumed. The second step, `fedcore.training.session`, opens the
run. No data are open here, and nothing is reserved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

import fedcore
from fedcore.errors import ConfigError, NotWorthIt, PopulationError, RunError
from fedcore.methods.registry import make_method, method_of_run, suited_to
from fedcore.population.store import Population
from fedcore.privacy.cohorts import Participants
from fedcore.privacy.ledger.chain import Balance, ChainHead
from fedcore.privacy.plan import CLIENT_PERIOD, PlannedRelease, Unit
from fedcore.rounds.clients import DEFAULT_CACHE_BYTES
from fedcore.rounds.method import AnyMethod, PublicFacts, Worth
from fedcore.rounds.private_settings import cohort_rule
from fedcore.rounds.results import Features
from fedcore.runs.digests import ARRIVAL, COHORTS, SHARES, STUDY
from fedcore.runs.run_files import START_FILE
from fedcore.runs.store import Run
from fedcore.storage.arrays import read_values
from fedcore.storage.files import place
from fedcore.storage.plain import plain
from fedcore.training.budget import check_kind, ledger_of, plan_within_budget, public_facts
from fedcore.training.record import columns_to_record, installed
from fedcore.training.request import TrainRequest
from fedcore.training.warm_start import WarmStart, digest_of, find_warm_start

if TYPE_CHECKING:  # a run that is not private needs no database
    from fedcore.privacy.ledger.ledger import Ledger

DAMAGED = "Restore it from a backup."
REQUIRED = {"method", "config", "kernel", "private", "population", "features", "plan", "rho", "seed", "test_noise"}


@dataclass(frozen=True)
class RunSpec:
    """Everything that decides what a run does and what it may spend.

    public:     what the method may know: relation, unit, rho and warm start included
    releases:   planned, in order; none if the method is not private
    ledger:     that is charged for them; None if the method is not private
    participants: cohorts that take part and are charged; None: all clients, as one account
    warm_start: arrays and what run.json says of them; None if the run starts from nothing
    test_noise: key of pseudo-random noise; None: the noise protects people
    share: sub-budget that is charged, by name; None: the undivided part
    study: {"digest", "run", "site"} of a run that several sites make together; None: of one place
    """

    method: AnyMethod
    population: Population
    public: PublicFacts
    releases: tuple[PlannedRelease, ...]
    ledger: Ledger | None
    participants: Participants | None
    warm_start: WarmStart | None
    test_noise: str | None
    cache_bytes: int
    share: str | None = None
    study: Mapping[str, Any] | None = None

    @property
    def unit(self) -> Unit:
        """What the budget protects. To a method entries of calendar periods are clients."""
        return self.public.unit if self.population.manifest.period is None else CLIENT_PERIOD

    @property
    def worth(self) -> Worth | None:
        """Expected utility of the run; None if its method cannot predict it."""
        return self.method.worth(self.public) if self.method.private else None

    @property
    def left_out(self) -> str:
        """Which rows the run leaves out without an error, in sentences; empty for none. From declared columns alone."""
        return self.method.left_out(Features(self.population.features, self.population.manifest.column_names))

    @property
    def is_refused(self) -> bool:
        """Whether the expected utility is too low to run without the override `anyway`, and it is not set."""
        worth = self.worth
        return worth is not None and worth.word == "none" and not getattr(self.method.config, "anyway", False)

    def check_worth(self) -> None:
        """Raises NotWorthIt if the expected utility is too low and the override `anyway` is not set. With test noise
        every run is allowed: it has no privacy guarantee and spends nothing.
        """
        worth = self.worth
        if worth is None or not self.is_refused or self.test_noise is not None:
            return
        raise NotWorthIt(
            f"this budget is too small for a run of method {self.method.name!r} on population "
            f"{self.population.path.name!r}: {worth.expect}. Nothing was spent.",
            "Give the run more of the budget, or run it with --anyway (setting anyway = true).",
        )

    def record(self, request: TrainRequest, run_id: str, stamp: str) -> dict[str, Any]:
        """What run.json says of a new run. stamp: when it begins, as text."""
        method, population, private = self.method, self.population, self.ledger is not None
        return {
            "run_id": run_id,
            "method": method.name,
            "config": method.config.model_dump(mode="json"),
            "seed": self.public.seed,
            "code_version": fedcore.__version__,
            "software": installed(),
            "kernel": method.arithmetic_version,
            "population": {
                "path": population.location,
                "name": population.path.name,
                "id": population.id,
                "version": population.version,
                "manifest": population.checksum,
                "clients_per_leaf": population.clients_per_leaf,
            },
            "features": population.features,
            **({} if (columns := columns_to_record(population)) is None else {"columns": columns}),
            **({} if population.manifest.image is None else {"image": list(population.manifest.image)}),
            "nominal_clients": self.public.nominal_clients,
            "private": method.private,
            "rho": self.public.rho,
            "plan": plain(self.releases),
            "test_noise": self.test_noise,
            **self._needing(request),
            "relation": self.public.relation if private else None,
            "unit": self.unit if private else None,
            "start": None if self.warm_start is None else self.warm_start.record,
            "deployment": request.deployment,
            "series": None if request.series is None else request.series.model_dump(mode="json"),
            "started": stamp,
        }

    def _needing(self, request: TrainRequest) -> dict[str, Any]:
        """Features of run.json that a process must know to resume the run. Otherwise it would read all clients, reserve
        another plan, or its statement would omit assumptions.
        """
        said: dict[str, Any] = {}
        if self.participants is not None:
            said[COHORTS] = plain(self.participants.ranges)
        if self.method.private and request.public_arrival_because is not None:
            said[ARRIVAL] = request.public_arrival_because
        if self.study is not None:
            said[STUDY] = dict(self.study)
        needs = list(said)
        if self.share is not None:
            said, needs = {**said, "share": self.share}, [*needs, SHARES]
        return {"needs": needs, **said} if said else {}


@dataclass(frozen=True)
class Inputs:
    """What decides a run besides its request: read once, and verified by `open_inputs`.

    method:     with its settings, and what follows for them from the population's columns
    population: one version
    ledger, balance: of a private run; the ledger contains what its witnesses saw. None if the method is not private
    warm_start: None if the run starts from nothing
    """

    method: AnyMethod
    population: Population
    ledger: Ledger | None
    balance: Balance | None
    warm_start: WarmStart | None


def open_inputs(request: TrainRequest, ledger_url: str | None = None) -> Inputs:
    """Open, each once, what the request names: population, ledger, start; nothing is reserved.

    ledger_url: where the population's ledger is, if it was moved. Raises ConfigError, WrongKind, the population's and
    the ledger's errors, PrivacyError.
    """
    method = make_method(request.method, request.settings)
    place(request.runs)  # an invalid URL is reported before anything is made
    population = Population.open(request.population, version=request.version)
    check_kind(method, population)
    method = suited_to(method, population)
    _refuse_cohorts_of_others(method)
    if request.share is not None and not method.private:
        raise ConfigError(
            f"share {request.share!r} of a budget is named, and this run of {method.name!r} is not private: it costs "
            "none.",
            "Leave the share out.",
        )
    ledger = ledger_of(population, ledger_url) if method.private else None
    warm_start = find_warm_start(
        request.start_from,
        request.public_start_because,
        method=method,
        population=population,
        ledger=ledger,
        private=method.private and request.test_noise is None,
        runs=request.runs,
        deployment=request.deployment,
    )
    return Inputs(method, population, ledger, None if ledger is None else ledger.balance(population.id), warm_start)


def resolve(request: TrainRequest, inputs: Inputs) -> RunSpec:
    """The run that is requested, or the error for which it is refused. Nothing is read: the same arguments give the
    same run. The ledger checks the plan again when it reserves, against its state then.

    inputs: of this request. Raises ConfigError, PrivacyError, BudgetMissing, BudgetExceeded.
    """
    method, population, start = inputs.method, inputs.population, inputs.warm_start
    arrays = None if start is None else start.arrays
    releases: tuple[PlannedRelease, ...] = ()
    participants = None
    if inputs.balance is None:
        public = public_facts(method, population, None, request.seed, start=arrays)
    else:
        releases, public, participants = plan_within_budget(
            method, population, inputs.balance, request.seed, arrays, request.share
        )
    method.init(public)  # what the method cannot do with this population, budget and start is refused now
    return RunSpec(
        method,
        population,
        public,
        releases,
        inputs.ledger,
        participants,
        start,
        request.test_noise,
        request.cache_bytes,
        request.share,
    )


def _refuse_cohorts_of_others(method: AnyMethod) -> None:
    """Raises ConfigError if the settings choose cohorts for a run that reads all clients."""
    if not method.private and (asked := cohort_rule(method.config).asked) is not None:
        raise ConfigError(
            f"{asked} is for private runs, whose budget may be kept by cohort; this run of {method.name!r} is not "
            "private and reads all clients.",
            "Leave it out.",
        )


# --- runs that are resumed --------------------------------------------------------------------------------------------


def recorded_request(run: Run) -> dict[str, Any]:
    """What run.json says was requested. Raises RunError if something is missing."""
    missing = REQUIRED - run.info.keys()
    if missing:
        raise RunError(f"run.json of run {run.path.name!r} lacks {sorted(missing)[0]!r}.", "Restore it from a backup.")
    return run.info


def recorded_spec(
    run: Run,
    *,
    cache_bytes: int = DEFAULT_CACHE_BYTES,
    ledger_url: str | None = None,
    population_path: str | None = None,
) -> RunSpec:
    """The spec of a run that was begun, from its own record.

    population_path: where the population is now, if it was moved. Raises RunError for a damaged record, another
    population, another arithmetic or leaf size; LedgerRolledBack; the population's and the ledger's errors.
    """
    info = recorded_request(run)
    try:
        arithmetic, private = info["kernel"], info["private"]
        path, version, id = (info["population"][name] for name in ("path", "version", "id"))
        clients_per_leaf = info["population"]["clients_per_leaf"]
        releases = tuple(map(PlannedRelease.from_json, info["plan"]))
        method = method_of_run(info)
        seen = ChainHead(**run.head["ledger_head"]) if "ledger_head" in run.head else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            f"run.json or head.json of run {run.path.name!r} is damaged ({type(error).__name__}: {error}).",
            "Restore them from a backup.",
        ) from error
    run.metrics()  # damage is reported before anything is charged
    population = Population.open(population_path or path, version=version)
    if population.id != id:
        raise RunError(
            f"run {run.id!r} belongs to another population than {str(population.path)!r}.",
            "Name the right one with --population.",
        )
    if info["population"].get("manifest") != population.checksum:
        raise RunError(
            f"version {version} of {str(population.path)!r} is not the one that run {run.id!r} read: the population "
            "was changed, or branched.",
            "Restore the population from a backup, or name the right one with --population.",
        )
    same = (method.arithmetic_version, population.clients_per_leaf, method.private)
    if same != (arithmetic, clients_per_leaf, private):
        version = info.get("code_version")
        other = version not in (None, fedcore.__version__)
        which = f"fedcore {version}, the version" if other else f"the version of {method.name}"
        remedy = f"Finish it with {which} that started it: fedcore resume {run.path}"
        if private:
            remedy += f"\nOr give the rest of its budget back here: fedcore runs abandon {run.path}"
        raise RunError(
            f"run {run.id!r} was made with kernel {arithmetic!r} and leaves of {clients_per_leaf} clients; "
            "continuing with others would change its result.",
            remedy,
        )
    ledger = None
    if method.private:
        ledger = ledger_of(population, ledger_url)
        if seen is not None:
            ledger.check_not_rolled_back(population.id, seen)
    participants = None if ledger is None else _recorded_participants(run, population, ledger)
    warm_start = _recorded_warm_start(run)
    public = public_facts(
        method,
        population,
        info["rho"],
        info["seed"],
        info.get("relation") or "add_or_remove_one",
        None if warm_start is None else warm_start.arrays or None,
        info.get("unit") or "client",
        participants,
    )
    if info.get(STUDY) is not None:  # of all its sites
        public = replace(public, nominal_clients=info.get("nominal_clients"))
    return RunSpec(
        method,
        population,
        public,
        releases,
        ledger,
        participants,
        warm_start,
        info["test_noise"],
        cache_bytes,
        info.get("share"),
        info.get(STUDY),
    )


def _recorded_participants(run: Run, population: Population, ledger: Ledger) -> Participants | None:
    """Who takes part in a run that was begun, where the budget is kept by cohort: as the ledger has reserved it. What
    run.json says counts for a run that was interrupted before that. Raises RunError if the two contradict each other.
    """
    manifest, recorded = population.manifest, run.info.get("cohorts")
    if not manifest.cohorts:
        return None
    try:
        tokens = tuple(cohort.token for cohort in manifest.cohorts)
        said = Participants.from_json({"ranges": recorded, "tokens": tokens})
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"the cohorts in run.json of run {run.id!r} are damaged ({error}).", DAMAGED) from error
    reserved = ledger.participants_of(run.id) if ledger.has_reservation(run.id) else said
    if reserved != said:
        raise RunError(
            f"run.json of run {run.id!r} says that cohorts {said} take part, and ledger {ledger.id} has reserved for "
            f"{'everybody' if reserved is None else f'cohorts {reserved}'}.",
            DAMAGED,
        )
    return said


def _recorded_warm_start(run: Run) -> WarmStart | None:
    """What the run started from; read only before its first round. Raises RunError if the arrays are others."""
    record = run.info.get("start")
    if record is None:
        return None
    if run.round >= 0:
        return WarmStart({}, record)
    arrays: dict[str, np.ndarray] = read_values(run.path / START_FILE)
    if digest_of(arrays) != record.get("sha256"):
        raise RunError(
            f"{START_FILE} of run {run.id!r} does not hold what the run was asked to start from.",
            "Restore it from a backup.",
        )
    return WarmStart(arrays, record)


def vocabulary_of(run: Run) -> tuple[str, ...] | None:
    """The vocabulary of the population that the run was trained on; None if it has none or is not there any more."""
    try:
        where = recorded_request(run)["population"]
        return Population.open(where["path"], version=where["version"]).vocabulary()
    except PopulationError:
        return None
