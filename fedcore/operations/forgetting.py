"""Clients who leave: the population forgets them, the ledger says so, runs that remember them lose their memories."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedcore.errors import RunBusy
from fedcore.population import erasing
from fedcore.population.erasing import Erased
from fedcore.population.store import Population
from fedcore.runs.client_memories import FORGOTTEN
from fedcore.runs.store import Run, read_runs
from fedcore.storage import files
from fedcore.storage.files import Place, place
from fedcore.training.budget import ledger_of, remember_head
from fedcore.training.session import ENDED
from fedcore.training.shared_ids import register

if TYPE_CHECKING:
    from fedcore.privacy.ledger.ledger import Ledger

Progress = Callable[[int, int], None]
NOT_REACHED = (
    "Published values, models and reports made before stay, and so does what was spent on them.",
    "Outputs of `fedcore predict`, sources, and files that others have made: delete them where they are.",
    "Copies of the population: bring each up to date by `fedcore population copy SOURCE DEST --prune`. A bucket that "
    "keeps versions of its objects keeps the old ones.",
    "Backups and snapshots: files were unlinked, not overwritten. The memory of workers that still run.",
)
EXPLAINED = (
    "Deleted: ids, data and declared sizes of {clients} clients, in every version of this population{memories}. "
    "Models, reports and published values stay. Those of private runs are made of noisy sums over many clients. Their "
    "privacy guarantee limits what they reveal about each person, also after the deletion, so they need no change. "
    "Models of runs without privacy have no such limit: delete them, or train again. The ledger keeps the privacy loss "
    'of earlier runs and a record of this deletion, without ids or data. {trace} Answer to the person: "We have '
    "deleted your data from our training data. Sources, exports, copies and backups: (state when you delete them). "
    "Results that were published under differential privacy stay; their privacy statement limits what they reveal "
    'about you."'
)
TRACE = "A keyed hash of each id stays with the population, so that a client who returns keeps the same budget."
NO_TRACE = "No hash of the ids stays. A client who returns is a new client with a new budget."
RUNS_NOT_REACHED = "What runs that are not private remember of their clients: name the folder of the runs by --runs."


@dataclass(frozen=True, slots=True)
class Forgot:
    """What `forget` did. runs: that lost the memories of their clients; not_reached: where something may be left;
    explained: what is deleted, what stays and why, and what to answer the person, in one paragraph."""

    erased: Erased
    runs: tuple[str, ...]
    not_reached: tuple[str, ...]
    explained: str


def forget(
    population: Population,
    *,
    clients: Collection[str] = (),
    cohorts_to: int | None = None,
    without_trace: bool = False,
    runs: str | Place | None = None,
    stamp: str,
    ledger_url: str | None = None,
    progress: Progress | None = None,
) -> Forgot:
    """`fedcore.population.erasing.forget`, recorded in the ledger.

    runs: folder or URL of runs. Runs on this population that are not private lose their client memory, and cannot be
    resumed any more. This happens also if there is no client left to forget. stamp: a time as text, which they show.

    Raises what `erasing.forget` raises: also if a private run is open, or a process is at work on one of `runs`; and
    what the ledger raises.
    """
    ledger = None if population.manifest.ledger is None else ledger_of(population, ledger_url)

    def record(version: int, listed: str | None) -> None:
        if ledger is not None:
            ledger.forgot(population.id, version=version, list=listed)

    erased = erasing.forget(
        population,
        clients=clients,
        cohorts_to=cohorts_to,
        without_trace=without_trace,
        open_runs=lambda: _open_runs(population, ledger, runs),
        record=record,
        progress=progress,
    )
    if ledger is not None:
        remember_head(erased.population, ledger)
        register(erased.population, ledger)  # its sketch is made again, without them
    stripped = () if runs is None else tuple(_without_memories(run, stamp) for run in _remembering(population, runs))
    damaged = [] if runs is None else [str(error) for error in read_runs(runs)[1]]
    unreached = (*NOT_REACHED, *([RUNS_NOT_REACHED] if runs is None else damaged))
    memories = f", and what these runs remembered of their clients: {', '.join(stripped)}" if stripped else ""
    explained = EXPLAINED.format(
        clients=f"{erased.clients:,}", memories=memories, trace=NO_TRACE if without_trace else TRACE
    )
    return Forgot(erased, stripped, unreached, explained)


def compact(population: Population, *, ledger_url: str | None = None, progress: Progress | None = None) -> Erased:
    """`fedcore.population.erasing.compact`, if no private run is open. Raises what that raises, and the ledger."""
    ledger = None if population.manifest.ledger is None else ledger_of(population, ledger_url, to_show=True)
    return erasing.compact(population, open_runs=lambda: _open_runs(population, ledger, None), progress=progress)


def _open_runs(population: Population, ledger: Ledger | None, runs: str | Place | None) -> Sequence[str]:
    """Names of private runs that are open, and of those in `runs` that a process is at work on."""
    found = [] if ledger is None else [*ledger.balance(population.id).open_runs]
    for run in [] if runs is None else _remembering(population, runs):
        try:
            Run.open_locked(run.path).unlock()
        except RunBusy:
            found.append(run.id)
    return found


def _remembering(population: Population, runs: str | Place) -> list[Run]:
    """Runs on the population that are not private, and have memories or could be resumed."""
    mine = [run for run in read_runs(place(runs))[0] if (run.info.get("population") or {}).get("id") == population.id]
    return [
        run
        for run in mine
        if not run.info.get("private")
        and (files.is_folder(run.client_memories.root) or (run.status not in ENDED and FORGOTTEN not in run.head))
    ]


def _without_memories(run: Run, stamp: str) -> str:
    """The head says so first: the run must never look like a damaged one."""
    mine = Run.open_locked(run.path)
    try:
        if FORGOTTEN not in mine.head:
            mine.note(**{FORGOTTEN: stamp})
        mine.client_memories.remove()
    finally:
        mine.unlock()
    return mine.id
