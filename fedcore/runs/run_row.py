"""A run in one line of a table."""

from __future__ import annotations

from typing import Any

from fedcore.runs.store import Run

NO_DEPLOYMENT = "-"  # in tables


def summary_row(run: Run) -> dict[str, Any]:
    """A run in one line: what an operator asks first."""
    info, population = run.info, run.info.get("population") or {}
    return {
        "run": run.id,
        "method": info.get("method"),
        "population": population.get("name"),
        "version": population.get("version"),
        "deployment": info.get("deployment") or NO_DEPLOYMENT,
        "status": run.status_now,
        "rounds": max(run.round, 0),
        "private": bool(info.get("private")) and not info.get("test_noise"),
        "started": info.get("started"),
        "model": "removed" if run.pruned else "kept",
    }
