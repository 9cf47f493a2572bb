"""The runs of a deployment: how a new run compares with the current one, and whether it replaces it.

    runs/RUN/comparison.json  how RUN compared with the run that was the latest before it

A series uses a run once it is finished. A run that is only "trained" is used only by name, and is never pruned.
`conclude` prepares it to be finished, and is repeated after any interruption.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ValidationError

from fedcore.errors import (
    ConfigError,
    FedcoreError,
    PopulationError,
    RunError,
    RunNotFound,
    Unreachable,
    WorkerFailed,
    WrongKind,
)
from fedcore.evaluation.evaluate import check_public, evaluate_run, keep_scores
from fedcore.methods.registry import explain
from fedcore.operations.latest_runs import is_latest, latest, promote
from fedcore.operations.retention import prune
from fedcore.population.store import Population
from fedcore.rounds.engine import Backend
from fedcore.rounds.method import Method
from fedcore.runs.run_files import read_json
from fedcore.runs.store import TRAINED, Run
from fedcore.storage.arrays import writing
from fedcore.storage.files import Place, write_json
from fedcore.training.personalise import trained
from fedcore.training.record import columns_to_record, other_columns
from fedcore.training.request import Series


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
    if other := other_columns({"columns": columns_to_record(population)}, store):
        raise ConfigError(
            f"evaluate_on: population {store.path.name!r} has other columns: {other}.",
            "Ingest it with those of the population that is trained on.",
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
    """How a run of a deployment ends, wherever it is continued; None for a run without a deployment.

    The data of its comparison may be gone by now. That does not prevent finishing a run that was charged. Raises
    RunError if run.json is damaged.
    """
    deployment, settings = run.info.get("deployment"), run.info.get("series")
    if deployment is None or settings is None:
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
    if comparison["promoted"] and not is_latest(run, deployment):
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
    holds = is_latest(run, deployment) or known.get("latest_before") == (None if rival is None else rival.id)
    return known if holds and {"because", "rows"} <= known.keys() else None


def _rival(folder: Place, deployment: str, run: Run) -> Run | None:
    """The latest run of the deployment, if it is there and is another one."""
    found = latest(folder, deployment)
    try:
        return None if found is None or found.run == run.path.name else found.open()
    except RunNotFound:
        return None
