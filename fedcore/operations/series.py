"""What becomes of the runs of a deployment: which one is the latest, how a new one compares with it, which are kept.

    runs/latest-NAME.json     the run that the deployment NAME stands for; replaced by one rename, or one put
    runs/RUN/comparison.json  how RUN compared with the run that was the latest before it

The latest run of a deployment is the one that others should use; `fedcore.runs.store.load_run` takes the file in place
of a run's folder. It need not be the newest: with promote = "if_better" a run that is worse on public data does not
become it. A run that is pruned loses what a model consists of and keeps what says how it was made and what it cost.

A series takes a run into account once it is finished. One that is "trained" is used by nobody who does not name it, and
is never pruned. `conclude` makes it ready to be finished, and is done again after it was interrupted anywhere.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedcore.errors import (
    ConfigError,
    FedcoreError,
    PopulationError,
    RunBusy,
    RunError,
    RunNotFound,
    Unreachable,
    WorkerFailed,
    WrongKind,
)
from fedcore.evaluation.evaluate import check_public, evaluate_run, keep_scores
from fedcore.methods.registry import explain
from fedcore.population.store import Population
from fedcore.rounds.engine import Backend
from fedcore.rounds.method import Method
from fedcore.runs.run_files import read_json, resolve
from fedcore.runs.store import Run, list_runs
from fedcore.storage import files
from fedcore.storage.arrays import NAME, writing
from fedcore.storage.files import Place, place, shortened, write_json
from fedcore.storage.remote_lock import RemoteLock
from fedcore.training.personalise import trained
from fedcore.training.request import Series
from fedcore.training.session import TRAINED

SCHEMA = 1
LOCK = ".operations.lock"
HOLDER = ".operations.json"  # stands for the lock behind a URL
PATIENCE = 60.0  # for another process that moves pointers or prunes behind a URL, seconds
MODEL = ("state", "memory", "releases", "start.zip")  # what a pruned run loses
NO_DEPLOYMENT = "-"  # in tables


@contextmanager
def _alone(folder: Place) -> Iterator[None]:
    """One process at a time moves pointers or prunes, so that none prunes what another has just promoted.

    Raises RunBusy behind a URL, where it is not waited for a process without end.
    """
    if not isinstance(folder, Path):
        with closing(_waited_for(RemoteLock(folder / HOLDER, f"which runs of {folder} are in use and kept"))):
            yield
        return
    with writing("the lock of the runs folder"):
        file = open(str(folder / LOCK), "w")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _waited_for(lock: RemoteLock) -> RemoteLock:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            lock.take()
            return lock
        except RunBusy:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


# --- the latest run -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Latest:
    """deployment: by name; run: by id, in the same folder; since: when it was promoted, as text; because: why."""

    path: Place
    deployment: str
    run: str
    since: str
    because: str

    def open(self) -> Run:
        """Raises RunNotFound or RunError."""
        return Run.open(self.path.parent / self.run)


def pointer(folder: str | Place, deployment: str) -> Place:
    if not NAME.fullmatch(deployment):
        raise ConfigError(f"{shortened(deployment)!r} cannot be the name of a deployment.")
    return place(folder) / f"latest-{deployment}.json"


def latest(folder: str | Place, deployment: str) -> Latest | None:
    """Which run is the latest of a deployment; None before one is. Raises RunError if its file is damaged."""
    path = pointer(folder, deployment)
    return _read(path) if files.is_file(path) else None


def all_latest(folder: str | Place) -> list[Latest]:
    """The latest run of every deployment of the folder. Raises RunError if a file is damaged."""
    folder = place(folder)
    names = [name for name in files.listing(folder) if name.startswith("latest-") and name.endswith(".json")]
    return [_read(folder / name) for name in names]


def _read(path: Place) -> Latest:
    run = resolve(path).name
    value = read_json(path) or {}
    return Latest(
        path, path.stem.removeprefix("latest-"), run, str(value.get("since", "")), str(value.get("because", ""))
    )


def promote(run: Run, deployment: str, because: str, stamp: str, *, concluding: bool = False) -> Latest:
    """Make a finished run the latest one of a deployment; readers see the old file or the new one.

    concluding: it is the run that is being concluded, which is trained. Raises RunError if the run has not finished or
    its model was removed.
    """
    path = pointer(run.path.parent, deployment)
    with _alone(path.parent):
        now = Run.open(run.path)
        if now.pruned or now.status not in ("finished", TRAINED if concluding else "finished"):
            what = "its model was removed" if now.pruned else f"it is {now.status}"
            remedy = "`fedcore resume` it: that concludes it." if now.status == TRAINED else "Promote a finished run."
            raise RunError(f"run {run.id!r} cannot be the latest of {deployment!r}: {what}.", remedy)
        with writing(path.name):
            write_json(
                path,
                {
                    "schema": SCHEMA,
                    "deployment": deployment,
                    "run": run.path.name,
                    "since": stamp,
                    "because": because,
                    "private": bool(now.info.get("private")),
                },
            )
    return _read(path)


# --- comparison -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Score:
    """loss: "kl" or "nll", nats, lower is better; estimate: the line of the table that says what the run is for."""

    run: str
    loss: str
    estimate: str
    score: float
    standard_error: float


@dataclass(frozen=True, slots=True)
class Decision:
    promoted: bool
    because: str


def public_population(series: Series, method: Method, population: Population) -> Population | None:
    """The population that runs of the deployment are compared on; None if they are not.

    Asked before training, so that no budget is spent on a run that cannot be compared. Raises PrivacyError if its owner
    did not declare it public, WrongKind or ConfigError if a run on `population` could not be scored on it,
    PopulationError if nothing is held out.
    """
    if series.evaluate_on is None:
        return None
    store = Population.open(series.evaluate_on)
    check_public(store)
    if not method.can_be_scored:
        raise ConfigError(f"runs of method {method.name!r} cannot be scored.", "Leave evaluate_on out.")
    if store.kind != method.kind or store.features != population.features:
        raise WrongKind(
            f"evaluate_on: population {store.path.name!r} holds {store.kind} with {store.features} "
            f"features, and runs need {method.kind} with {population.features}.",
            "Ingest it with the same vocabulary or columns.",
        )
    words, theirs = population.vocabulary(), store.vocabulary()
    if words is not None and theirs is not None and words != theirs:
        raise ConfigError(
            f"evaluate_on: population {store.path.name!r} has another vocabulary.",
            "Ingest it with that of the population that is trained on.",
        )
    if not store.has_heldout:
        raise PopulationError(
            f"evaluate_on: population {store.path.name!r} has no held-out part.", "Ingest it with one."
        )
    return store


def score(run: Run, store: Population, backend: Backend | None = None) -> Score:
    """The run's score on a public population. Raises what `evaluate_run` raises, PrivacyError if it is not public."""
    check_public(store)
    return headline(run, trained(run)[0], evaluate_run(run.path, store, backend))


def headline(run: Run, method: Method, table: dict) -> Score:
    """The line of a table of scores for what the run gives its clients."""
    row, loss = method.headline(table["rows"]), table["loss"]
    return Score(run.id, loss, row["method"], float(row[loss]), float(row["se"]))


def decide(series: Series, mine: Score | None, theirs: Score | None, why_not: str = "") -> Decision:
    """Whether a new run becomes the latest one.

    theirs: of the latest run; None if there is none, or, with `why_not`, if it could not be scored. A run that cannot
    be compared is not promoted: a person decides.
    """
    if series.promote != "if_better":
        return Decision(series.promote == "always", f'promote = "{series.promote}"')
    if why_not:
        return Decision(False, f"it could not be compared with the latest run: {why_not}")
    if theirs is None:
        return Decision(True, "it is the first one")
    if mine is None:
        return Decision(False, "it was not scored")
    if mine.loss != theirs.loss:
        return Decision(False, f"its score is {mine.loss} and that of the latest run {theirs.loss}")
    worse = mine.score - theirs.score
    words = (
        f"{mine.loss} {mine.score:.6g} against {theirs.score:.6g} of run {theirs.run} "
        f"({worse:+.3g}, tolerance {series.tolerance:g})"
    )
    return Decision(worse <= series.tolerance, words)


@dataclass(frozen=True, slots=True)
class Conclusion:
    """How a run of a deployment ends. store: what it is compared on, if it is; why_not: why it cannot be."""

    deployment: str
    series: Series
    store: Population | None
    why_not: str = ""


def conclusion_of(run: Run, method: Method, population: Population) -> Conclusion | None:
    """How a run that was begun by a deployment ends, wherever it goes on; None if it was begun by none.

    What it would be compared on may be gone by now: that keeps nobody from finishing a run that was paid for. Raises
    RunError if run.json is damaged.
    """
    deployment, settings = run.info.get("deployment"), run.info.get("series")
    if deployment is None or settings is None:  # or by an earlier version, which did not keep the series
        return None
    try:
        series = Series.model_validate(settings)
    except ValidationError as error:
        raise RunError(
            f"the series in run.json of run {run.id!r} is damaged: {explain(error)}", "Restore it from a backup."
        ) from None
    try:
        return Conclusion(deployment, series, public_population(series, method, population))
    except FedcoreError as error:
        return Conclusion(deployment, series, None, str(error))


def conclude(
    run: Run,
    deployment: str,
    series: Series,
    store: Population | None,
    stamp: str,
    backend: Backend | None = None,
    why_not: str = "",
) -> dict[str, Any]:
    """Compare a trained run with the latest one of its deployment, promote it or not, and prune what is old.

    store: as `public_population` gave it. why_not: why it gave none, though there should be one. Returns what
    comparison.json holds, and "pruned": names of runs. A run that cannot be scored is not promoted: a person decides.
    Raises Unreachable, WorkerFailed and whatever keeps files from being written; then it may be concluded again.

    The decision is written before it is carried out. After an interruption it stands, if the latest run is still the
    one that it speaks of, or this run already.
    """
    folder = run.path.parent
    known = _decided(run, deployment) if run.status == TRAINED else None
    comparison = known or _compared(run, deployment, series, store, backend, why_not)
    if known is None:
        with writing("comparison.json"):
            write_json(run.path / "comparison.json", comparison)
    if comparison["promoted"] and not _is_latest(run, deployment):
        promote(run, deployment, comparison["because"], stamp, concluding=True)
    pruned = [] if series.retention is None else prune(folder, series.retention, stamp, deployment, ending=run)
    return {**comparison, "pruned": [item["run"] for item in pruned if item["removed"]]}


def _compared(
    run: Run, deployment: str, series: Series, store: Population | None, backend: Backend | None, why_not: str
) -> dict[str, Any]:
    """What comparison.json holds. Scores are kept for the report."""
    rival, mine, theirs = _rival(run.path.parent, deployment, run), None, None
    if store is not None:
        check_public(store)
    failed = None
    try:
        table = None if store is None else evaluate_run(run.path, store, backend)
    except (Unreachable, WorkerFailed):  # which may work the next time
        raise
    except FedcoreError as error:  # it found nothing that could be scored, say
        failed, table = Decision(False, f"it could not be scored: {error}"), None
    if store is not None and table is not None:
        keep_scores(run, store, table)
        mine = headline(run, trained(run)[0], table)
    if store is not None and mine is not None and rival is not None:
        try:
            theirs = score(rival, store, backend)
        except FedcoreError as error:
            why_not = str(error)
    rows = [
        {"run": item.run, "is": role, "estimate": item.estimate, item.loss: item.score, "se": item.standard_error}
        for role, item in (("new", mine), ("latest before", theirs))
        if item is not None
    ]
    return {
        "deployment": deployment,
        "run": run.id,
        "latest_before": None if rival is None else rival.id,
        "population": None if store is None else store.path.name,
        "version": None if store is None else store.version,
        "public": None if store is None else store.manifest.public_reason,
        "tolerance": series.tolerance,
        **asdict(failed or decide(series, mine, theirs, why_not)),
        "rows": rows,
    }


def _decided(run: Run, deployment: str) -> dict[str, Any] | None:
    """What was decided about the run before its conclusion was interrupted; None if nothing that still holds."""
    known = read_json(run.path / "comparison.json")
    if known is None or known.get("deployment") != deployment or type(known.get("promoted")) is not bool:
        return None
    rival = _rival(run.path.parent, deployment, run)
    holds = _is_latest(run, deployment) or known.get("latest_before") == (None if rival is None else rival.id)
    return known if holds and {"because", "rows"} <= known.keys() else None


def _is_latest(run: Run, deployment: str) -> bool:
    found = latest(run.path.parent, deployment)
    return found is not None and found.run == run.path.name


def _rival(folder: Place, deployment: str, run: Run) -> Run | None:
    """The latest run of the deployment, if it is there and is another one."""
    found = latest(folder, deployment)
    try:
        return None if found is None or found.run == run.path.name else found.open()
    except RunNotFound:
        return None


# --- retention ------------------------------------------------------------------------------------------------------


def prune(
    folder: str | Place,
    keep: int,
    stamp: str,
    deployment: str | None = None,
    *,
    dry_run: bool = False,
    ending: Run | None = None,
) -> list[dict[str, Any]]:
    """Remove the models of all but the newest `keep` finished runs of a deployment; oldest first.

    deployment: by name; None: of every deployment, and of the runs that none made, by method and population.
    A run loses its states, the memories of its clients, its copies of released values and of its start. It keeps
    run.json, head.json, metrics, privacy statement, scores and report: what was asked, what it cost, what came out.
    A run that has not finished is never touched, nor one that is the latest of any deployment, nor one that another
    process holds. ending: a trained run that is being concluded: it counts as finished, and stays. Returns one dict for
    each run that was or would be pruned: run, deployment, bytes, removed (False in a dry run, or if it is held). Raises
    ConfigError if keep < 1, RunError if a file latest-NAME.json is damaged.
    """
    folder = place(folder)
    if keep < 1:
        raise ConfigError(f"at least one run is kept, not {keep}.")
    if not files.is_folder(folder):
        return []
    with _alone(folder):
        protected = {item.run for item in all_latest(folder)} | ({ending.path.name} if ending is not None else set())
        old = [run for series in _series(folder, deployment, ending) for run in series[:-keep]]
        old = [run for run in old if run.path.name not in protected and set(MODEL) & files.listing(run.path).keys()]
        return [
            {
                "run": run.id,
                "deployment": run.info.get("deployment") or NO_DEPLOYMENT,
                "bytes": _bytes(run),
                "removed": not dry_run and _remove_model(run, stamp),
            }
            for run in old
        ]


def _series(folder: Place, deployment: str | None, ending: Run | None = None) -> list[list[Run]]:
    """Finished runs that follow one another, oldest first; ending: counts as one of them."""
    found: dict[tuple, list[Run]] = {}
    for run in list_runs(folder):
        name, where = run.info.get("deployment"), run.info.get("population") or {}
        done = run.status == "finished" or (ending is not None and run.path.name == ending.path.name)
        if done and (deployment is None or name == deployment):
            key = (name,) if name else (None, run.info.get("method"), where.get("id"))
            found.setdefault(key, []).append(run)
    return [sorted(runs, key=lambda run: (str(run.info.get("started")), run.id)) for runs in found.values()]


def _bytes(run: Run) -> int:
    return sum(files.size(run.path / name) for name in MODEL)


def _remove_model(run: Run, stamp: str) -> bool:
    """The head says so first: a run without a model must never look like a damaged one."""
    try:
        mine = Run.open_locked(run.path)
    except RunBusy:
        return False
    try:
        if mine.status != "finished":
            return False
        if not mine.pruned:
            mine.note(pruned=stamp)
        with writing("what is to be removed"):
            for name in MODEL:
                files.remove(mine.path / name)
    finally:
        mine.unlock()
    return True


def summary_row(run: Run) -> dict[str, Any]:
    """A run in one line: what an operator asks first."""
    info, population = run.info, run.info.get("population") or {}
    return {
        "run": run.id,
        "method": info.get("method"),
        "population": population.get("name"),
        "version": population.get("version"),
        "deployment": info.get("deployment") or NO_DEPLOYMENT,
        "status": run.status,
        "rounds": max(run.round, 0),
        "private": bool(info.get("private")) and not info.get("test_noise"),
        "started": info.get("started"),
        "model": "removed" if run.pruned else "kept",
    }
