"""One view of runs, leases and budgets: what is under way, what died, what was spent. Everything is of the run folders
and the ledger, and for operators; nothing is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from fedcore.errors import FedcoreError
from fedcore.evaluation.run_summary import NO_DEPLOYMENT
from fedcore.operations.hanging import committed_at
from fedcore.population.store import Population
from fedcore.runs.store import Run, read_runs
from fedcore.training.budget import ledger_of

UNDER_WAY = ("running", "interrupted", "trained", "failed")  # states of a run that somebody has to see to
NEXT = {
    "interrupted": "fedcore resume",
    "trained": "fedcore resume, unless a process works on it",
    "failed": "fix what the error names, then fedcore resume",
}


def runs_view(folders: Iterable[str]) -> tuple[dict[str, int], list[dict[str, Any]], list[str]]:
    """(number of runs by state, a row for each run that is not at its end, what cannot be read) of these folders."""
    counts: Counter[str] = Counter()
    rows, unread = [], []
    for folder in folders:
        readable, damaged = read_runs(folder)
        unread += [error.message for error in damaged]
        for run in readable:
            status = run.status_now
            counts[status] += 1
            if status in UNDER_WAY:
                rows.append(_row(run, status))
    return dict(sorted(counts.items())), rows, unread


def _row(run: Run, status: str) -> dict[str, Any]:
    committed = committed_at(run)
    since = None if committed is None else datetime.fromtimestamp(committed, UTC).isoformat(timespec="seconds")
    return {
        "run": str(run.path),
        "deployment": run.info.get("deployment") or NO_DEPLOYMENT,
        "status": status,
        "rounds": max(run.round, 0),
        "committed": since,
        "process": _process(run),
        "next": NEXT.get(status, ""),
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


def populations_of(folders: Iterable[str]) -> list[str]:
    """The populations that the runs of these folders were made on, each once."""
    found: dict[str, None] = {}
    for folder in folders:
        for run in read_runs(folder)[0]:
            if path := (run.info.get("population") or {}).get("path"):
                found[str(path)] = None
    return list(found)


def budgets_view(populations: Iterable[str]) -> Iterator[dict[str, Any]]:
    """A row for each population that has a budget, or cannot be read."""
    for path in populations:
        try:
            store = Population.open(path)
            if store.manifest.ledger is None:
                continue
            ledger = ledger_of(store, to_show=True)
            if store.id not in ledger.populations():
                continue
            balance = ledger.balance(store.id)
        except FedcoreError as error:
            yield {"population": path, "error": error.message}
            continue
        if balance.budget is not None:
            yield {
                "population": path,
                "epsilon": balance.budget.epsilon,
                "epsilon_spent": balance.epsilon_spent,
                "rho_spent": balance.rho_spent,
                "rho_reserved": balance.rho_reserved,
                "rho_left": balance.rho_left,
                "cohorts": len(store.manifest.cohorts),
                "open_runs": len(balance.open_runs),
            }
