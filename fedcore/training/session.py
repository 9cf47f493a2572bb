"""Starting, resuming and ending a run: where method, population, ledger and run store meet.

`start` and `resume` give a `Session` whose `training` is stepped by the command line (`--local`) or by a flow.
Order matters for people's privacy: the plan is made from the config and the manifest, the budget is reserved, and only
then are data opened.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import fedcore
from fedcore.errors import (
    BudgetExceeded,
    FedcoreError,
    LeaseLost,
    LedgerError,
    PopulationError,
    RunBusy,
    RunError,
    RunNotFound,
    Unreachable,
)
from fedcore.methods.registry import make_method
from fedcore.population.store import Population
from fedcore.privacy.ledger.chain import Balance, ChainHead
from fedcore.privacy.ledger.leases import Lease
from fedcore.privacy.mechanisms import NoiseSource, SecureNoise, TestNoise
from fedcore.privacy.plan import PlannedRelease
from fedcore.privacy.statement import PrivacyStatement, no_privacy, private_statement
from fedcore.rounds.engine import DEFAULT_CACHE_BYTES, Backend, Source, Training
from fedcore.rounds.method import Method
from fedcore.runs.store import Run
from fedcore.storage.arrays import read_values, write_values, writing
from fedcore.storage.files import Place, place, write_json
from fedcore.training.budget import (
    LedgerPublisher,
    check_kind,
    facts,
    ledger_of,
    nominal_clients,
    plan_within_budget,
    remember_head,
    unit_of,
)
from fedcore.training.request import TrainRequest
from fedcore.training.warm_start import digest_of, find_start, in_words

if TYPE_CHECKING:
    from fedcore.privacy.ledger.ledger import Ledger

UNIT = "client"  # of runs that are not private, or were made before run.json named it
USUAL_RELATION = "add_or_remove_one"  # of runs that were made before run.json named it
START_FILE = "start.zip"  # the run's own copy of the arrays that it started from
ASKED = {"method", "config", "kernel", "private", "population", "features", "plan", "rho", "seed", "test_noise"}
ENDED = ("finished", "budget exhausted", "abandoned")


# --- a session ------------------------------------------------------------------------------------------------------


class Session:
    """A run that this process holds: what the command line or a flow steps through."""

    def __init__(
        self,
        method: Method,
        population: Population,
        run: Run,
        training: Training,
        ledger: Ledger | None,
        lease: Lease | None,
    ):
        self.method = method
        self.population = population
        self.run = run
        self.training = training
        self.ledger = ledger
        self.lease = lease

    def finish(self, status: str) -> None:
        """End the run: return what was reserved and never charged, write the statement and the head."""
        if self.ledger is not None:
            self.ledger.finish(self.lease, status)
            remember_head(self.population, self.ledger)
        if status == "finished" and (outcome := self.method.outcome(self.training.state)):
            self.run.note(outcome=outcome)
        statement = self.statement().to_json()
        with writing("statement.json"):
            write_json(self.run.path / "statement.json", statement)
        self.run.finish(status)

    def statement(self) -> PrivacyStatement:
        return statement_of(self.run, self.method, self.ledger, self.population)

    def balance(self) -> Balance | None:
        return None if self.ledger is None else self.ledger.balance(self.population.id)

    def close(self) -> None:
        """Let other processes have the run. Nothing happens if somebody else has it already."""
        if self.ledger is not None:
            _give_back(self.ledger, self.lease)
        self.run.unlock()


def _give_back(ledger: Ledger, lease: Lease) -> None:
    # A lease that cannot be given back is one of a dead process soon, or runs out; the error that matters is another.
    with suppress(LedgerError):
        ledger.release(lease)


def statement_of(run: Run, method: Method, ledger: Ledger | None, population: Population) -> PrivacyStatement:
    """What the run may claim, from its ledger; `none` with the reason if it may claim nothing."""
    if not method.private:
        return no_privacy(method.not_private_because)
    if run.info["test_noise"] is not None:
        return no_privacy("the noise was pseudo-random test noise, which anyone who knows its key can subtract")
    started = run.info.get("start")
    return private_statement(ledger, population.id, run.id, start="" if started is None else in_words(started))


def _noise(test_noise: str | None) -> NoiseSource:
    return SecureNoise() if test_noise is None else TestNoise(test_noise)


def check(request: TrainRequest) -> None:
    """Everything that can be refused before a run is made: settings, population, budget. Raises what `start` raises."""
    _prepare(request, None)


def _prepare(request: TrainRequest, ledger_url: str | None):
    """(method, population, ledger, plan, rho, start) of a new run; opens no data and reserves nothing."""
    method = make_method(request.method, request.settings)
    place(request.runs)  # what a URL cannot be is told before anything is made
    population = Population.open(request.population, version=request.version)
    check_kind(method, population)
    ledger = ledger_of(population, ledger_url) if method.private else None
    start = find_start(
        request.start_from,
        request.public_start_because,
        method=method,
        population=population,
        ledger=ledger,
        private=method.private and request.test_noise is None,
        runs=request.runs,
        deployment=request.deployment,
    )
    given, plan, rho = None if start is None else start.arrays, [], None
    relation, unit = USUAL_RELATION, UNIT
    if ledger is not None:
        plan, rho = plan_within_budget(method, population, ledger, request.seed, given)
        relation, unit = ledger.balance(population.id).relation, unit_of(method, ledger, population)
    # What the method cannot do with this population, budget and start is refused now.
    method.init(facts(method, population, rho, request.seed, relation, given, unit))
    return method, population, ledger, plan, rho, start


def start(request: TrainRequest, backend: Backend, *, stamp: str, ledger_url: str | None = None) -> Session:
    """A new run, reserved and with its first state committed.

    stamp: a time as text, for the run's name. Raises ConfigError, WrongKind, the population's and the ledger's
    errors, BudgetMissing, BudgetExceeded. If it raises, nothing stays reserved and no run is left behind, unless the
    ledger failed after it had reserved: then the run can be resumed or abandoned.
    """
    method, population, ledger, plan, rho, given = _prepare(request, ledger_url)
    run_id = request.run_id or f"{request.method}-{population.path.name}-{stamp}-{secrets.token_hex(2)}"
    if ledger is not None and ledger.run_status(run_id) is not None:
        # Its published values would be taken for those of this run.
        raise RunError(
            f"ledger {ledger.id} knows a run named {run_id!r} already.",
            "Choose another name. A run that was interrupted is resumed, not started again.",
        )
    run = Run.create(
        request.runs,
        {
            "run_id": run_id,
            "method": request.method,
            "config": method.config.model_dump(mode="json"),
            "seed": request.seed,
            "code_version": fedcore.__version__,
            "kernel": method.arithmetic_version,
            "population": {
                "path": population.location,
                "name": population.path.name,
                "id": population.id,
                "version": population.version,
                "clients_per_leaf": population.clients_per_leaf,
            },
            "features": population.features,
            "nominal_clients": nominal_clients(method, population),
            "private": method.private,
            "rho": rho,
            "plan": [planned.to_json() for planned in plan],
            "test_noise": request.test_noise,
            "relation": None if ledger is None else ledger.balance(population.id).relation,
            "unit": None if ledger is None else unit_of(method, ledger, population),
            "start": None if given is None else given.record,
            "deployment": request.deployment,
            "series": None if request.series is None else request.series.model_dump(mode="json"),
            "started": stamp,
        },
    )
    try:
        if given is not None:
            _keep_start(run, given.arrays)
        return _open(method, population, run, backend, request.cache_bytes, ledger, plan, new=True)
    except BaseException:
        run.unlock()
        raise


def _keep_start(run: Run, arrays: dict) -> None:
    try:
        write_values(run.path / START_FILE, arrays)
    except BaseException:
        run.remove()
        raise


def _kept_start(run: Run) -> dict | None:
    """The arrays that the run starts from. Raises RunError if they are not those that it was asked to start from."""
    if run.info.get("start") is None:
        return None
    arrays = read_values(run.path / START_FILE)
    if digest_of(arrays) != run.info["start"].get("sha256"):
        raise RunError(
            f"{START_FILE} of run {run.id!r} does not hold what the run was asked to start from.",
            "Restore it from a backup.",
        )
    return arrays


def _relation(run: Run) -> str:
    return run.info.get("relation") or USUAL_RELATION


def _unit(run: Run) -> str:
    return run.info.get("unit") or UNIT


def resume(
    path: str | Place,
    backend: Backend,
    *,
    cache_bytes: int = DEFAULT_CACHE_BYTES,
    take_over: bool = False,
    ledger_url: str | None = None,
    population: str | None = None,
) -> Session:
    """Go on with a run after its last committed round.

    population: where the population is now, if it was moved. Raises RunError if the run has ended or was made with
    another kernel or leaf size, RunBusy, LedgerRolledBack, and what `start` raises.
    """
    run = Run.open_locked(path, take_over=take_over)
    try:
        check_resumable(run)
        # Whoever held the run until now may still have some time to live in the ledger, which is not waited for.
        return _reopen(run, backend, cache_bytes, take_over or run.taken, ledger_url, population)
    except BaseException:
        run.unlock()
        raise


def _reopen(
    run: Run, backend: Backend, cache_bytes: int, take_over: bool, ledger_url: str | None, population: str | None
) -> Session:
    info = asked(run)
    try:
        config, kernel, private = info["config"], info["kernel"], info["private"]
        path, version, id = (info["population"][name] for name in ("path", "version", "id"))
        clients_per_leaf = info["population"]["clients_per_leaf"]
        plan = [PlannedRelease(**_planned(item)) for item in info["plan"]]
        method = make_method(info["method"], config)
        seen = ChainHead(**run.head["ledger_head"]) if "ledger_head" in run.head else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            f"run.json or head.json of run {run.path.name!r} is damaged ({type(error).__name__}: {error}).",
            "Restore them from a backup.",
        ) from error
    run.metrics()  # damage is told before anything is charged
    store = Population.open(population or path, version=version)
    if store.id != id:
        raise RunError(
            f"run {run.id!r} belongs to another population than {str(store.path)!r}.",
            "Name the right one with --population.",
        )
    if method.arithmetic_version != kernel or store.clients_per_leaf != clients_per_leaf or method.private != private:
        raise RunError(
            f"run {run.id!r} was made with kernel {kernel!r} and leaves of {clients_per_leaf} clients; "
            "going on with others would change its result.",
            "Resume it with the version that started it, or train again.",
        )
    ledger = None
    if method.private:
        ledger = ledger_of(store, ledger_url)
        if seen is not None:
            ledger.check_not_rolled_back(store.id, seen)
    return _open(method, store, run, backend, cache_bytes, ledger, plan, take_over=take_over)


def asked(run: Run) -> dict:
    """What run.json says that was asked. Raises RunError if something is missing."""
    missing = ASKED - run.info.keys()
    if missing:
        raise RunError(f"run.json of run {run.path.name!r} lacks {sorted(missing)[0]!r}.", "Restore it from a backup.")
    return run.info


def check_resumable(run: Run) -> None:
    """Raises RunError if the run has ended."""
    if run.status in ENDED:
        raise RunError(f"run {run.id!r} has ended ({run.status}); there is nothing to resume.")


def vocabulary_of(run: Run) -> list[str] | None:
    """The vocabulary of the population that the run was trained on; None if it has none or is not there any more."""
    try:
        where = asked(run)["population"]
        return Population.open(where["path"], version=where["version"]).vocabulary()
    except PopulationError:
        return None


def _planned(item: dict) -> dict:
    return {**{k: v for k, v in item.items() if k != "rho"}, "shape": tuple(item["shape"])}


def _open(
    method: Method,
    population: Population,
    run: Run,
    backend: Backend,
    cache_bytes: int,
    ledger: Ledger | None,
    plan: Sequence[PlannedRelease],
    *,
    take_over: bool = False,
    new: bool = False,
) -> Session:
    """new: if it raises, what was reserved goes back and the run's folder is removed."""
    lease = None
    try:
        if ledger is not None:
            ledger.reserve(
                population.id,
                run.id,
                plan,
                method.private_settings.spare_releases,
                unit=_unit(run),
                relation=_relation(run),
                secure=run.info["test_noise"] is None,
            )
            lease = ledger.acquire(run.id, take_over=take_over)
            remember_head(population, ledger)
        return _session(method, population, run, backend, cache_bytes, ledger, lease, plan)
    except BaseException as error:
        if not new:
            if lease is not None:
                _give_back(ledger, lease)
        elif lease is not None:
            _undo(run, population, ledger, lease)
        elif ledger is None or _refused(error) or not _may_be_reserved(ledger, run.id):
            run.remove()
        raise


def _refused(error: BaseException) -> bool:
    """Whether nothing was reserved for sure: the plan was refused, or another process holds a run of this name."""
    return isinstance(error, FedcoreError) and not isinstance(error, LedgerError)


def _may_be_reserved(ledger: Ledger, run_id: str) -> bool:
    try:
        return ledger.has_reservation(run_id)
    except LedgerError:
        return True


def _undo(run: Run, population: Population, ledger: Ledger, lease: Lease) -> None:
    """Take a start back. If the ledger cannot take the reservation back now, the run stays, and can be abandoned."""
    try:
        ledger.finish(lease, "abandoned")
    except (LedgerError, LeaseLost):
        return
    with suppress(PopulationError, LedgerError):  # an older record stays there, which the ledger contains as well
        remember_head(population, ledger)
    run.remove()


def _session(
    method: Method,
    population: Population,
    run: Run,
    backend: Backend,
    cache_bytes: int,
    ledger: Ledger | None,
    lease: Lease | None,
    plan: Sequence[PlannedRelease],
) -> Session:
    publisher = None
    if ledger is not None:
        publisher = LedgerPublisher(ledger, population, run, lease, _noise(run.info["test_noise"]))
    if run.round < 0:
        state = method.init(
            facts(method, population, run.info["rho"], run.info["seed"], _relation(run), _kept_start(run), _unit(run))
        )
        run.commit(0, state)
    else:
        values = run.read_state()
        try:
            state = method.State(**values)
        except TypeError as error:
            raise RunError(
                f"the state of run {run.id!r} is not one of method {method.name!r} ({error}).",
                "Restore it from a backup, or resume with the version that wrote it.",
            ) from error
    if run.status != "running":
        run.finish("running")
    source = Source(population.location, population.version, cache_bytes=cache_bytes)
    training = Training(
        method, run, state, source, range(len(population.blocks)), backend, plan, publisher, population.sizes()
    )
    return Session(method, population, run, training, ledger, lease)


@contextmanager
def ending(session: Session) -> Iterator[None]:
    """Records how the steps inside ended. A run whose process was interrupted stays "running" and can be resumed."""
    try:
        yield
    except BudgetExceeded:
        session.finish("budget exhausted")
        raise
    except LeaseLost:  # the run belongs to somebody else now
        raise
    except FedcoreError:
        with suppress(RunError):  # a disk that refused the round may refuse this too; the run can still be resumed
            session.run.finish("failed")
        raise
    else:
        session.finish("finished")
    finally:
        session.close()


def abandon(path: str | Place, *, ledger_url: str | None = None) -> Run:
    """Give a run up: what was reserved and never charged goes back to the budget; it cannot be resumed any more.

    A run whose head is lost can be given up too. Raises RunBusy if another process works on it, and RunError if it has
    ended or run.json is damaged.
    """
    try:
        run = Run.open_locked(path)
    except (RunNotFound, RunBusy, Unreachable):
        raise
    except RunError:
        run = Run.open_locked(path, without_head=True)
    try:
        if run.status in ENDED:
            raise RunError(f"run {run.id!r} has ended ({run.status}).")
        info, ledger, population = asked(run), None, None
        method = make_method(info["method"], info["config"])
        if method.private:
            population = Population.open(info["population"]["path"], version=info["population"]["version"])
            ledger = ledger_of(population, ledger_url)
            if ledger.has_reservation(run.id):
                ledger.finish(ledger.acquire(run.id, take_over=run.taken), "abandoned")
                remember_head(population, ledger)
        statement = statement_of(run, method, ledger, population).to_json()
        with writing("statement.json"):
            write_json(run.path / "statement.json", statement)
        run.finish("abandoned")
    finally:
        run.unlock()
    return run
