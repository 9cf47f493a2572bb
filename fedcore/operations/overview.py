"""What an operator asks first, from one source: what needs attention, what ran, waits or is late, how many runs and
days the budgets still allow, what changed in the results. `fedcore status` prints it, and the operator's page in the
Prefect UI shows it (`fedcore.operations.operator_page`).

Everything is of the run folders, the ledger, the journals of pipelines and Prefect, and for operators; nothing is
written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fedcore.errors import FedcoreError
from fedcore.evaluation.changes import since_the_run_before
from fedcore.evaluation.written import iso_date
from fedcore.operations.budget_left import DAY, ahead_of, ahead_of_first
from fedcore.operations.forecast import Outlook, began, payers_of
from fedcore.operations.hanging import committed_at, hanging_runs
from fedcore.operations.monitoring import Monitoring
from fedcore.population.store import Population
from fedcore.privacy.ledger.chain import Balance
from fedcore.runs.run_row import NO_DEPLOYMENT
from fedcore.runs.store import Run, read_runs
from fedcore.training.budget import ledger_of
from fedcore.training.spec import open_inputs, resolve

if TYPE_CHECKING:  # without a file there is no pipeline, and no model of either is needed
    from fedcore.operations.deployment import Deployment, DeploymentFile
    from fedcore.operations.pipelines.journal import Journal, StepRecord
    from fedcore.operations.pipelines.steps import Pipeline

UNDER_WAY = ("running", "interrupted", "trained", "failed")  # states of a run that is not at its end
ENDED = ("Failed", "Refused", "Crashed", "TimedOut", "Missed", "SetAside")  # states of a flow run that did not end well
BAD = (*ENDED, "Late")
NEXT = {
    "interrupted": "Run `fedcore resume`.",
    "trained": "Run `fedcore resume`, unless a process works on it.",
    "failed": "Fix what the error names, then run `fedcore resume`.",
}
Facts = dict[str, Any]


def overview(
    folders: Sequence[str],
    content: DeploymentFile | None = None,
    prefect: Facts | None = None,
    now: datetime | None = None,
) -> Facts:
    """The facts as JSON values: alerts, deployments, changes, states, runs, budgets, prefect, unread.

    folders: of runs. content: the file that declares deployments; None: those of the runs. prefect: what
    `fedcore.flows.overview.seen` has found; None without a server
    """
    now = datetime.now(UTC) if now is None else now
    runs, unread = _read(folders)
    runs.sort(key=lambda run: (str(run.info.get("started")), run.id), reverse=True)
    stores = _stores(populations_of(runs) if content is None else _populations(content))
    starts, journals = _starts(content, prefect), _journals(content)
    ahead = _ahead(runs, content, stores, starts, now)
    under_way = [row for run in runs if (row := _row(run, content)) is not None]
    flow_runs = (prefect or {}).get("flow_runs", [])
    return {
        "alerts": [
            *_budget_alerts(content, stores, ahead),
            *_flow_run_alerts(prefect, journals),
            *_run_alerts(runs, under_way, content, now),
            *_pipeline_alerts(journals),
        ],
        "deployments": [*_deployment_rows(runs, content, starts, ahead, journals, flow_runs, now)],
        "changes": [*_changes(runs)],
        "states": dict(sorted(Counter(run.status_now for run in runs).items())),
        "runs": under_way,
        "budgets": [*_budget_rows(stores)],
        "prefect": prefect,
        "unread": unread,
    }


def folders_of(content: DeploymentFile) -> list[str]:
    """The folders of runs that a file names, each once."""
    return list(dict.fromkeys([*(item.runs for item in content.deployment), *(item.runs for item in content.pipeline)]))


def populations_of(runs: Iterable[Run]) -> list[str]:
    """The populations that these runs were made on, each once."""
    found = (run.info.get("population") or {} for run in runs)
    return list(dict.fromkeys(str(one["path"]) for one in found if one.get("path")))


def _populations(content: DeploymentFile) -> list[str]:
    named = [item.path for item in content.population] + [item.population for item in content.deployment]
    return list(dict.fromkeys([*named, *(item.population for item in content.pipeline)]))


def _read(folders: Iterable[str]) -> tuple[list[Run], list[str]]:
    runs: list[Run] = []
    unread: list[str] = []
    for folder in folders:
        try:
            readable, damaged = read_runs(folder)
        except FedcoreError as error:
            unread.append(error.message)
            continue
        runs += readable
        unread += [error.message for error in damaged]
    return runs, unread


# --- runs -------------------------------------------------------------------------------------------------------------


def _row(run: Run, content: DeploymentFile | None) -> Facts | None:
    """Of a run that is not at its end."""
    status, deployment = run.status_now, run.info.get("deployment")
    if status not in UNDER_WAY:
        return None
    committed = committed_at(run)
    trainers = [] if content is None else [one.name for one in content.pipeline if deployment in _trained_by(one)]
    resumed = f"Pipeline {trainers[0]} resumes it before its next run." if trainers and status != "running" else ""
    return {
        "run": str(run.path),
        "deployment": deployment or NO_DEPLOYMENT,
        "status": status,
        "rounds": max(run.round, 0),
        "committed": None
        if committed is None
        else datetime.fromtimestamp(committed, UTC).isoformat(timespec="seconds"),
        "process": _process(run),
        "next": resumed or NEXT.get(status, ""),
    }


def _process(run: Run) -> str | None:
    """Who holds the lease of a private run in the ledger, in words; None without one, or if that cannot be read."""
    if not run.info.get("private"):
        return None
    try:
        held = ledger_of(Population.open(run.info["population"]["path"]), to_show=True).holder(run.id)
    except FedcoreError:
        return None
    if held is None:
        return None
    holder, expired = held
    state = "lives" if holder.alive(expired) else "died"
    return f"{holder.pid} on {holder.host.split()[0]} {state}"


def _run_alerts(
    runs: Sequence[Run], under_way: Sequence[Facts], content: DeploymentFile | None, now: datetime
) -> Iterator[Facts]:
    for row in under_way:
        if row["status"] in ("interrupted", "failed"):
            yield _alert(f"Run {row['run']} {_was(row['status'])} after round {row['rounds']}.", row["next"])
    for item in () if content is None else content.deployment:
        for one in hanging_runs(runs, item.name, item.monitoring or Monitoring(), now.timestamp()):
            if one.held:  # else it is interrupted
                yield _alert(f"Run {one.run.path} has committed nothing for {one.seconds:.0f} s.", one.in_words)


def _was(status: str) -> str:
    return "was interrupted" if status == "interrupted" else status


def _alert(what: str, remedy: str = "") -> Facts:
    return {"what": what, "remedy": remedy}


# --- budgets ----------------------------------------------------------------------------------------------------------

Stores = dict[str, tuple[Population, Balance] | str | None]


def _stores(populations: Iterable[str]) -> Stores:
    """By population: it with its balance; why they cannot be read; None without a budget."""
    found: Stores = {}
    for path in populations:
        try:
            store = Population.open(path)
            ledger = None if store.manifest.ledger is None else ledger_of(store, to_show=True)
            known = ledger is not None and store.id in ledger.populations()
            balance = ledger.balance(store.id) if ledger is not None and known else None
            found[path] = None if balance is None or balance.budget is None else (store, balance)
        except FedcoreError as error:
            found[path] = str(error)
    return found


def _budget_rows(stores: Stores) -> Iterator[Facts]:
    for path, found in stores.items():
        if isinstance(found, str):
            yield {"population": path, "error": found}
        elif found is not None:
            store, balance = found
            yield {
                "population": path,
                "epsilon": balance.required_budget().epsilon,
                "epsilon_spent": balance.epsilon_spent,
                "rho_spent": balance.rho_spent,
                "rho_reserved": balance.rho_reserved,
                "rho_left": balance.rho_left,
                "cohorts": len(store.manifest.cohorts),
                "open_runs": len(balance.open_runs),
            }


def _ahead(
    runs: Sequence[Run],
    content: DeploymentFile | None,
    stores: Stores,
    starts: Mapping[str, Sequence[datetime]],
    now: datetime,
) -> dict[str, Outlook]:
    """By deployment, of those that draw on a budget: how many of its runs still fit, and until when."""
    found: dict[str, Outlook] = {}
    for store, balance in (one for one in stores.values() if isinstance(one, tuple)):
        mine = [run for run in runs if (run.info.get("population") or {}).get("id") == store.id]
        found |= ahead_of(balance, store, payers_of(mine, starts, now))
    begun = {run.info.get("deployment") for run in runs}
    for item in () if content is None else content.deployment:
        known = stores.get(item.population)
        if item.name not in begun and isinstance(known, tuple):
            try:
                spec = resolve(item.request, open_inputs(item.request))
            except FedcoreError:  # its first run is refused, and says why
                continue
            if spec.releases:
                found[item.name] = ahead_of_first(spec, known[1], starts.get(item.name, ()), now)
    return found


def _budget_alerts(content: DeploymentFile | None, stores: Stores, ahead: Mapping[str, Outlook]) -> Iterator[Facts]:
    for found in stores.values():
        if isinstance(found, str):
            yield _alert(found)
    thresholds = (
        {}
        if content is None
        else {item.name: (item.monitoring or Monitoring()).runs_left for item in content.deployment}
    )
    for name, mine in ahead.items():
        if mine.runs == 0:
            yield _alert(
                f"The budget of {name} is exhausted: no run like the last one fits.",
                "A budget does not renew; new cohorts bring their own. `fedcore budget plan` shows what still fits.",
            )
        elif mine.runs <= thresholds.get(name, Monitoring().runs_left):
            left = "1 more run fits" if mine.runs == 1 else f"{mine.runs} more runs fit"
            yield _alert(f"The budget of {name} is low: {left}, if no new clients come.")


# --- deployments ------------------------------------------------------------------------------------------------------


def _deployment_rows(
    runs: Sequence[Run],
    content: DeploymentFile | None,
    starts: Mapping[str, Sequence[datetime]],
    ahead: Mapping[str, Outlook],
    journals: Mapping[str, Journal],
    flow_runs: Sequence[Facts],
    now: datetime,
) -> Iterator[Facts]:
    newest: dict[str, Run] = {}
    for run in runs:
        if run.info.get("deployment"):
            newest.setdefault(str(run.info["deployment"]), run)
    items: list[Deployment | Pipeline] = [] if content is None else [*content.pipeline, *content.deployment]
    for name in dict.fromkeys([*(item.name for item in items), *newest]):
        active = [one["state"] for one in flow_runs if one["deployment"] == name and one["state"] not in ENDED]
        last, state = _last(newest.get(name), journals.get(name), bool(active))
        mine, coming = ahead.get(name), [start for start in starts.get(name, ()) if start >= now]
        yield {
            "deployment": name,
            "last run": last,
            "outcome": state,
            "now": ", ".join(dict.fromkeys(active)),
            "next start": _minute(coming[0]) if coming else None,
            "runs left": None if mine is None else mine.runs,
            "days left": None
            if mine is None or mine.last is None
            else round((mine.last - now).total_seconds() / DAY, 1),
        }


def _last(run: Run | None, journal: Journal | None, active: bool) -> tuple[str | None, str]:
    """(when the newest run began, how it went). active: whether Prefect has a flow run of it that did not end well, or
    is in progress
    """
    if journal is not None:
        from fedcore.operations.pipelines.page import in_words

        record = journal.runs[-1] if journal.runs else None
        if record is None:
            return None, "not run yet"
        at = record.at[:16].replace("T", " ")
        return at, "not at its end" if record.ended is None and active else in_words(record)
    if run is None:
        return None, "not run yet"
    begun = began(run)
    return None if begun is None else _minute(begun), run.status_now


def _minute(when: datetime) -> str:
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M}"


def _trained_by(pipeline: Pipeline) -> list[str]:
    return [step.deployment for step in pipeline.step if step.do == "train"]


def _starts(content: DeploymentFile | None, prefect: Facts | None) -> dict[str, list[datetime]]:
    """Starts that Prefect has scheduled, by deployment, ascending; also of deployments that a pipeline trains."""
    known = (prefect or {}).get("starts", {})
    found = {name: [datetime.fromisoformat(one) for one in each] for name, each in known.items()}
    for pipeline in () if content is None else content.pipeline:
        for name in _trained_by(pipeline):
            found[name] = sorted({*found.get(name, ()), *found.get(pipeline.name, ())})
    return found


def _flow_run_alerts(prefect: Facts | None, journals: Mapping[str, Journal]) -> Iterator[Facts]:
    if prefect and "error" in prefect:
        yield _alert(f"The Prefect server at {prefect['address']} does not answer ({prefect['error']}).")
    for one in (prefect or {}).get("flow_runs", []):
        steps_say_it = one["state"] == "Failed" and _bad_steps(journals.get(one["deployment"]))
        if one["state"] in BAD and not steps_say_it:
            planned = _minute(datetime.fromisoformat(one["planned"]))
            about = one["flow_run"] if one["deployment"] in (None, one["flow_run"]) else f"{one['deployment']}"
            yield _alert(f"{about}: {one['state']}, planned for {planned} UTC.", one["message"] or "")


def _journals(content: DeploymentFile | None) -> dict[str, Journal]:
    found: dict[str, Journal] = {}
    if content is None or not content.pipeline:
        return found
    from fedcore.operations.pipelines.journal import Journal, read_journal

    for pipeline in content.pipeline:
        try:
            found[pipeline.name] = read_journal(pipeline.runs, pipeline.name)
        except FedcoreError:  # its folder cannot be reached: `unread` says so
            found[pipeline.name] = Journal(pipeline=pipeline.name)
    return found


def _bad_steps(journal: Journal | None) -> list[StepRecord]:
    """Those of the newest run that went wrong."""
    return journal.runs[-1].bad if journal is not None and journal.runs else []


def _pipeline_alerts(journals: Mapping[str, Journal]) -> Iterator[Facts]:
    for name, journal in journals.items():
        for record in _bad_steps(journal):
            yield _alert(f"Pipeline {name}, for {journal.runs[-1].at}: {record.step} {record.status}.", record.what)
        for file, (_, why) in sorted(journal.aside.items()):
            yield _alert(
                f"Pipeline {name} has set aside the file {file}: {why}", "It is read again once its content changes."
            )


# --- results ----------------------------------------------------------------------------------------------------------


def _changes(runs: Sequence[Run]) -> Iterator[Facts]:
    """What changed with the newest finished run of each deployment. runs: newest first"""
    seen: set[str] = set()
    for run in runs:
        name = run.info.get("deployment")
        if not name or name in seen or run.status != "finished":
            continue
        seen.add(str(name))
        since = since_the_run_before(run)
        if since is None:
            continue
        found = {"deployment": name, "run": run.id, "started": str(iso_date(run.info.get("started") or ""))}
        if isinstance(since, str):
            yield {**found, "said": since, "changes": []}
        else:
            yield {**found, "said": since.in_words, "changes": [asdict(change) for change in since.changes]}
