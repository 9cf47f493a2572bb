"""The second of the two steps in which a run begins, and how it ends: where method, ledger and run store meet.

    start_run(request)   inputs -> resolve -> make the run's folder -> reserve its budget -> first state   -> Session
    resume(path)         recorded spec -> the reservation again -> last committed state           -> Session

The `training` of a session is stepped by the command line (`--local`) or by a flow, inside `concluding`. The order
matters for people's privacy: the plan is made from settings and manifest, the budget is reserved, and only then are
data opened.

A run ends in two steps as well. It is "trained" when all rounds are made, the account is settled and the statement is
written. It is "finished" when the decisions of its series are done too; until then `resume` continues with them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.errors import (
    BudgetExceeded,
    FedcoreError,
    LeaseLost,
    LedgerError,
    LedgerMissing,
    PopulationError,
    RunBusy,
    RunError,
    RunLeft,
    RunNotFound,
    Unreachable,
)
from fedcore.methods.registry import method_of_run
from fedcore.population.store import Population
from fedcore.privacy.ledger.chain import Balance
from fedcore.privacy.ledger.leases import Lease
from fedcore.privacy.statement import PrivacyStatement, no_privacy, private_statement
from fedcore.rounds.clients import DEFAULT_CACHE_BYTES, Answer, Source
from fedcore.rounds.engine import Backend, Publisher, Training
from fedcore.rounds.method import AnyMethod
from fedcore.runs.client_memories import FORGOTTEN
from fedcore.runs.digests import STUDY
from fedcore.runs.store import TRAINED, Run
from fedcore.storage.arrays import writing
from fedcore.storage.files import Place, write_json
from fedcore.storage.ranges import Ranges
from fedcore.training.budget import ledger_of
from fedcore.training.publishing import ONE_PLACE, Publishing
from fedcore.training.request import TrainRequest
from fedcore.training.shared_ids import check_run
from fedcore.training.spec import RunSpec, open_inputs, recorded_request, recorded_spec, resolve
from fedcore.training.vocabulary import runs_behind
from fedcore.training.warm_start import in_words, start_lineage, words_of_arrival
from fedcore.training.witness import check_runs, check_witnesses, remember_head

if TYPE_CHECKING:
    from fedcore.privacy.ledger.ledger import Ledger

ENDED = ("finished", "budget exhausted", "abandoned")  # nothing is left to do

ENOUGH_ROWS = 0.98  # a finished run that has used a smaller share says so on its first page


@dataclass(frozen=True)
class Account:
    """Where a private run is charged, and the right to do so."""

    ledger: Ledger
    lease: Lease

    def release(self) -> None:
        """Let another process charge for the run."""
        # One that cannot be given back is soon one of a dead process, or runs out; the error that matters is another.
        with suppress(LedgerError):
            self.ledger.release(self.lease)


@dataclass(frozen=True)
class Session:
    """A run that this process holds: what the command line or a flow steps through. account: None if the run is not
    private, or trained and its account closed.
    """

    spec: RunSpec
    run: Run
    training: Training
    account: Account | None

    @property
    def method(self) -> AnyMethod:
        return self.spec.method

    @property
    def population(self) -> Population:
        return self.spec.population

    def settle(self, status: str) -> None:
        """Close the account: return what was reserved and never charged, and write the statement.

        status: with which the ledger closes it. Nothing is added the second time.
        """
        if self.account is not None:
            if self.training.publisher is not None:
                self.training.publisher.ending(status)
            self.account.ledger.finish(self.account.lease, status, head=self.run.committed_digest)
            remember_head(self.population, self.account.ledger)
        if status == "finished" and (outcome := self.method.outcome(self.training.state)):
            self.run.add(outcome=outcome)
        if status == "finished" and (used := self.method.rows_used(self.training.state)) is not None:
            share, error = used
            if share < ENOUGH_ROWS and 1 - share >= 2 * error:  # else it may be noise alone
                self.run.add(rows_used=[share, error])
        _write_statement(self.run, self.statement())

    def statement(self) -> PrivacyStatement:
        return statement_of(self.run, self.method, self.spec.ledger, self.population)

    def balance(self) -> Balance | None:
        return None if self.spec.ledger is None else self.spec.ledger.balance(self.population.id)

    def ended(self, status: str) -> Run:
        """The run as it will be, for those who show it: with this status, which its head does not say yet."""
        return Run(self.run.path, self.run.info, {**self.run.head, "status": status})

    def close(self) -> None:
        """Release the run for other processes. Nothing happens if another process has it already."""
        if self.account is not None:
            self.account.release()
        self.run.unlock()


# --- beginning --------------------------------------------------------------------------------------------------------


def start_run(
    request: TrainRequest,
    backend: Backend,
    *,
    stamp: str,
    ledger_url: str | None = None,
    spec: RunSpec | None = None,
    publisher: Publishing = ONE_PLACE,
) -> Session:
    """A new run, reserved and with its first state committed.

    stamp: a time as text, for the run's name. spec: of this request, resolved a moment ago; None: it is resolved here.
    publisher: what a private run reserves and who publishes; of the same study as the spec. Raises what `open_inputs`,
    `resolve` and `check_run` raise, NotWorthIt for a run without useful results, and RunError for a name that is taken
    or another study. If it raises, nothing stays reserved and no run is left behind, unless the ledger failed after it
    had reserved: then the run can be resumed or abandoned.
    """
    if spec is None:
        spec = resolve(request, open_inputs(request, ledger_url))
    elif spec.ledger is not None:  # another copy may have been put in its place since then
        check_witnesses(spec.population, spec.ledger)
    _check_study(spec.study, publisher, "the run that is to start")
    spec.check_worth()
    if spec.ledger is not None:
        check_runs(request.runs, spec.population, spec.ledger)
        check_run(spec.population, spec.ledger)
    _expect(backend, spec)
    run = _create(spec, request, stamp)
    try:
        return _open(spec, run, backend, publisher, new=True)
    except BaseException:
        run.unlock()
        raise


def resume(
    path: str | Place,
    backend: Backend,
    *,
    cache_bytes: int = DEFAULT_CACHE_BYTES,
    take_over: bool = False,
    ledger_url: str | None = None,
    population: str | None = None,
    publisher: Publishing = ONE_PLACE,
) -> Session:
    """Resume a run after its last committed round. A trained run is only concluded.

    population: where the population is now, if it was moved. publisher: as in `start_run`. Raises RunError if the run
    has ended or is of another study, RunBusy, and what `recorded_spec` raises.
    """
    run = Run.open_locked(path, take_over=take_over)
    try:
        check_resumable(run)
        _check_study(run.info.get(STUDY), publisher, f"run {run.id!r}")
        spec = recorded_spec(run, cache_bytes=cache_bytes, ledger_url=ledger_url, population_path=population)
        _expect(backend, spec)
        # The earlier holder may still have some time to live in the ledger, which is not waited for.
        return _open(spec, run, backend, publisher, take_over=take_over or run.taken)
    except BaseException:
        run.unlock()
        raise


def _expect(backend: Backend, spec: RunSpec) -> None:
    """Let a backend that can do so prepare for the rounds while the run begins."""
    if (expect := getattr(backend, "expect", None)) is not None:
        expect(Answer(spec.method, Source.of(spec.population)))


def check_resumable(run: Run) -> None:
    """Raises RunError if the run has ended, or its data are gone because clients were forgotten."""
    if run.status in ENDED:
        raise RunError(f"run {run.id!r} has ended ({run.status}); there is nothing to resume.")
    if FORGOTTEN in run.head:
        raise RunError(
            f"run {run.id!r} cannot be resumed: clients of its population were forgotten on {run.head[FORGOTTEN]}, and "
            "the version that it reads was removed with them.",
            "Train again on the newest version; `fedcore runs abandon` closes this run.",
        )


def _check_study(study: Mapping[str, Any] | None, publisher: Publishing, which: str) -> None:
    """Raises RunError unless the publisher is that of the study, or of one place for a run that belongs to none."""
    if study == publisher.study:
        return
    if study is None:
        raise RunError(f"{which} belongs to no study.", "Start it without one.")
    raise RunError(
        f"{which} belongs to run {study['run']} of a study of several sites.",
        f"Continue or end it with `fedcore site serve` at site {study['site']}.",
    )


def _create(spec: RunSpec, request: TrainRequest, stamp: str) -> Run:
    """The run's folder with its record, held by this process."""
    run_id = request.run_id or f"{spec.method.name}-{spec.population.path.name}-{stamp}-{secrets.token_hex(2)}"
    if spec.ledger is not None and spec.ledger.run_status(run_id) is not None:
        # Its published values would be taken for those of this run.
        raise RunError(
            f"ledger {spec.ledger.id} knows a run named {run_id!r} already.",
            "Choose another name. A run that was interrupted is resumed, not started again.",
        )
    start = None if spec.warm_start is None else spec.warm_start.arrays
    return Run.create(request.runs, spec.record(request, run_id, stamp), start)


def _open(
    spec: RunSpec, run: Run, backend: Backend, publishing: Publishing, *, take_over: bool = False, new: bool = False
) -> Session:
    """Reserve, then the first state or the last one. new: if it raises, what was reserved goes back and the run's
    folder is removed."""
    account = None
    try:
        if spec.ledger is not None and run.status != TRAINED:  # whose account is closed
            _reserve(spec, spec.ledger, run, publishing)
            account = Account(spec.ledger, spec.ledger.acquire(run.id, take_over=take_over))
            remember_head(spec.population, spec.ledger)
        return _session(spec, run, account, backend, publishing)
    except BaseException as error:
        if not new:
            if account is not None:
                account.release()
        elif account is not None:
            _undo(spec, run, account)
        elif spec.ledger is None or _was_refused(error) or not _may_be_reserved(spec.ledger, run.id):
            run.remove()
        raise


def _reserve(spec: RunSpec, ledger: Ledger, run: Run, publishing: Publishing) -> None:
    """Reserve the plan's cost. The same run with the same plan again: nothing is added."""
    ledger.reserve(
        spec.population.id,
        run.id,
        publishing.charged(spec.releases),
        spec.method.private_settings.spare_releases,
        unit=spec.unit,
        relation=spec.public.relation,
        secure=spec.test_noise is None,
        bound=bound_of(spec.population, run),
        cohorts=spec.participants,
        share=spec.share,
    )
    check_bound(ledger, spec.population, run)


def bound_of(population: Population, run: Run) -> dict[str, Any]:
    """Digests of the run's inputs and request, by which the ledger can identify it later."""
    return {"manifest": population.checksum, "version": population.version, "run": run.record_digest}


def check_bound(ledger: Ledger, population: Population, run: Run) -> None:
    """Raises RunError unless run.json and the population are those for which the ledger has reserved."""
    reserved = (ledger.recorded(run.id, "reserve") or {}).get("bound") or {}
    if reserved == bound_of(population, run):
        return
    what = "run.json" if reserved.get("run") != run.record_digest else f"version {population.version} of the population"
    raise RunError(
        f"{what} is not the one for which ledger {ledger.id} reserved the budget of run {run.id!r}: it was changed.",
        "Restore it from a backup.",
    )


def _was_refused(error: BaseException) -> bool:
    """Whether nothing was reserved for this run for sure, and no other process has it in the ledger."""
    return isinstance(error, FedcoreError) and not isinstance(error, (LedgerError, RunBusy))


def _may_be_reserved(ledger: Ledger, run_id: str) -> bool:
    try:
        return ledger.has_reservation(run_id)
    except LedgerError:
        return True


def _undo(spec: RunSpec, run: Run, account: Account) -> None:
    """Take a new run back. If the ledger cannot take the reservation back now, the run stays, and can be abandoned.
    It is not taken back from another process that had it meanwhile.
    """
    if account.lease.token > 1:
        account.release()
        return
    try:
        account.ledger.finish(account.lease, "abandoned")
    except (LedgerError, LeaseLost):
        return
    with suppress(PopulationError, LedgerError):  # an older record stays there, which the ledger contains as well
        remember_head(spec.population, account.ledger)
    run.remove(ours=True)  # a process that had continued it would have the lease


def _session(spec: RunSpec, run: Run, account: Account | None, backend: Backend, publishing: Publishing) -> Session:
    publisher = None
    if account is not None:
        publisher = publishing.publisher(spec, run, account.ledger, account.lease)
        _restore_releases(spec, run, publisher)
    state = _state(spec, run)
    if run.status not in ("running", TRAINED):
        run.finish("running")
    population = spec.population
    ranges = _ranges(spec)
    source = Source(
        population.location,
        population.version,
        cache_bytes=spec.cache_bytes,
        ranges=ranges,
        manifest=population.checksum,
    )
    blocks = _blocks(population, ranges)
    of_each = population.sizes()
    sizes = [of_each[index] for index in blocks]
    training = Training(spec.method, run, state, source, blocks, backend, spec.releases, publisher, sizes)
    return Session(spec, run, training, account)


def _ranges(spec: RunSpec) -> Ranges | None:
    """Clients that a round reads: for a private run those who take part, without forgotten clients; else all clients,
    so that every client's memory keeps its place, and a forgotten client has no rows.
    """
    if spec.participants is not None:
        return spec.population.participants(spec.participants.ranges)
    return spec.population.participants() if spec.method.private and spec.population.holes else None


def _blocks(population: Population, ranges: Ranges | None) -> Sequence[int]:
    """The blocks in which a client takes part; if none does, one block, whose answer is that of no clients."""
    if ranges is None:
        return range(len(population.blocks))
    return np.flatnonzero(population.blocks.overlapping(ranges)).tolist() or [0]


def _restore_releases(spec: RunSpec, run: Run, publisher: Publisher) -> None:
    """Restore the run's copies of its published values from the ledger: they may be lost, changed, or have others among
    them."""
    try:
        run.check_releases()
    except RunError:
        for planned in spec.releases:
            value = publisher.published(planned) if planned.round <= run.round else None
            if value is not None:
                run.keep_release(planned.name, value)
        run.remove_unplanned_releases()
        run.check_releases()


def _state(spec: RunSpec, run: Run) -> Any:
    """The last committed state; of a new run the first one, committed."""
    if run.round < 0:
        state = spec.method.init(spec.public)
        run.commit(0, state)
        return state
    try:
        state = spec.method.State(**run.read_state())
    except TypeError as error:
        raise RunError(
            f"the state of run {run.id!r} is not one of method {spec.method.name!r} ({error}).",
            "Restore it from a backup, or resume with the version that wrote it.",
        ) from error
    for name in spec.method.facts_in_state:
        if getattr(state, name) != getattr(spec.public, name):
            raise RunError(
                f"the state of run {run.id!r} states another {name} than the run was reserved with.",
                "Restore the run's folder from a backup.",
            )
    return state


# --- the end ----------------------------------------------------------------------------------------------------------


def _nothing(_: Run) -> None:
    pass


@contextmanager
def concluding(
    session: Session, conclude: Callable[[Run], object] = _nothing, show: Callable[[Run], None] = _nothing
) -> Iterator[None]:
    """Records how the steps inside ended. A run whose process was interrupted stays "running" or "trained" and can be
    resumed.

    conclude: what is decided about the trained run; it may have done a part of that before. show: is given the run as
    it will be, before its head says so. It must not raise: what is shown never decides how a run ends.
    """
    try:
        with _recorded(session, show):
            yield
        if session.run.status != TRAINED:
            session.settle("finished")
            session.run.finish(TRAINED)
        with _saying_what_is_left(session.run):
            conclude(session.run)
            show(session.ended("finished"))
            session.run.finish("finished")
    finally:
        session.close()


@contextmanager
def _recorded(session: Session, show: Callable[[Run], None]) -> Iterator[None]:
    try:
        yield
    except (BudgetExceeded, RunLeft) as error:
        status = "budget exhausted" if isinstance(error, BudgetExceeded) else "abandoned"
        session.settle(status)
        show(session.ended(status))
        session.run.finish(status)
        raise
    except LeaseLost:  # the run belongs to another process now
        raise
    except FedcoreError:
        if session.run.status != TRAINED:
            with suppress(RunError):  # a disk that refused the round may refuse this too; the run can still be resumed
                session.run.finish("failed")
        raise


@contextmanager
def _saying_what_is_left(run: Run) -> Iterator[None]:
    try:
        yield
    except LeaseLost:
        raise
    except FedcoreError as error:
        left = f"Run {run.id!r} is trained, and it is not concluded: `fedcore resume {run.path}` does that."
        error.remedy = f"{error.remedy} {left}".strip()
        raise


def abandon(path: str | Place, *, ledger_url: str | None = None) -> Run:
    """Give a run up: what was reserved and never charged goes back to the budget; it cannot be resumed any more.

    A run whose head is lost can be given up too. Raises RunBusy if another process works on it, and RunError if it has
    ended, belongs to a study of several sites, or run.json is damaged.
    """
    try:
        run = Run.open_locked(path)
    except (RunNotFound, RunBusy, Unreachable):
        raise
    except RunError as error:
        if isinstance(error.__cause__, OSError):  # it cannot be read or locked now, which does not mean that it is lost
            raise
        run = Run.open_locked(path, without_head=True)
    try:
        if run.status in ENDED:
            raise RunError(f"run {run.id!r} has ended ({run.status}).")
        _check_study(run.info.get(STUDY), ONE_PLACE, f"run {run.id!r}")
        info, population = recorded_request(run), None
        method, ledger = method_of_run(info), None
        if method.private:
            population = Population.open(info["population"]["path"], version=info["population"]["version"])
            ledger = ledger_of(population, ledger_url)
            if ledger.has_reservation(run.id):
                ledger.finish(ledger.acquire(run.id, take_over=run.taken), "abandoned")
            remember_head(population, ledger)
        _write_statement(run, statement_of(run, method, ledger, population))
        run.finish("abandoned")
    finally:
        run.unlock()
    return run


def statement_of(
    run: Run, method: AnyMethod, ledger: Ledger | None, population: Population | None, through: int | None = None
) -> PrivacyStatement:
    """What the run may claim, from its ledger; `none` with the reason if it may claim nothing. ledger, population: of a
    private run. through: number of the last record of the ledger that counts, None for all
    """
    if not method.private:
        return no_privacy(method.not_private_because)
    if run.info["test_noise"] is not None:
        return no_privacy("the noise was pseudo-random test noise, which anyone who knows its key can subtract")
    if ledger is None or population is None:
        raise LedgerMissing(f"run {run.id!r} is private, and its ledger is not at hand.")
    record, first = run.info.get("start"), population.manifest.first_period
    words, arrival = runs_behind(population, ledger), words_of_arrival(run.info)
    if record is None:
        return private_statement(
            ledger, population.id, run.id, vouched=arrival, first_period=first, vocabulary=words, through=through
        )
    unprotected, vouched = start_lineage(record)
    if population.id in unprotected:  # such a start is refused, unless the record was edited
        return no_privacy("it started from exact values of its own population")
    return private_statement(
        ledger,
        population.id,
        run.id,
        start=in_words(record),
        vouched=tuple(dict.fromkeys((*vouched, *arrival))),
        first_period=first,
        vocabulary=words,
        started_from=record["name"] if record["kind"] == "run" and record["population_id"] == population.id else None,
        through=through,
    )


def _write_statement(run: Run, statement: PrivacyStatement) -> None:
    with writing("statement.json"):
        write_json(run.path / "statement.json", statement.to_json())
