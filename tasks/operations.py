"""The task that ends a run of a deployment: compared with the latest one, promoted or not, old ones pruned."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from fedcore.operations.series import Conclusion, conclude
from fedcore.rounds.engine import Backend
from fedcore.runs.store import Run


@task(task_run_name="compare-promote-prune", cache_policy=NO_CACHE, persist_result=False)
def conclude_series(run: Run, how: Conclusion, stamp: str, backend: Backend) -> dict:
    """What `fedcore.operations.series.conclude` returns: scores on public data, the decision, what was pruned."""
    return conclude(Run.open(run.path), how.deployment, how.series, how.store, stamp, backend, how.why_not)
