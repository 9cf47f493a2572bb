"""The task that ends a run of a deployment: compared with the latest one, promoted or not, old ones pruned."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from fedcore.operations import Conclusion, conclude
from fedcore.runs import Run
from tasks.dask_backend import DaskBackend


@task(task_run_name="compare-promote-prune", cache_policy=NO_CACHE, persist_result=False)
def conclude_series(run: Run, how: Conclusion, stamp: str, backend: DaskBackend) -> dict:
    """What `fedcore.operations.conclude` returns: scores on public data, the decision, what was pruned."""
    return conclude(Run.open(run.path), how.deployment, how.series, how.store, stamp, backend, how.why_not)
