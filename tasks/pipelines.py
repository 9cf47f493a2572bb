"""The task of a pipeline's step, and what the Prefect UI shows of a pipeline."""

from datetime import datetime

from fedcore.tasks.artifacts import key
from prefect import State, Task, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun

from fedcore.errors import LedgerError, Unreachable
from fedcore.operations.pipelines.doing import Hands, do_step
from fedcore.operations.pipelines.journal import Journal, RunRecord, StepRecord
from fedcore.operations.pipelines.law import Ready
from fedcore.operations.pipelines.page import pipeline_page
from fedcore.operations.pipelines.steps import Pipeline


def _may_pass(task: Task, task_run: TaskRun, state: State) -> bool:
    """Retry what may work the next time: every step but a training finds what it has done, and does the rest."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, Unreachable) or (isinstance(error, LedgerError) and error.of_database)


@task(
    task_run_name="{called}",
    retries=2,
    retry_delay_seconds=20,
    retry_condition_fn=_may_pass,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def make_step(ready: Ready, called: str, at: datetime, hands: Hands) -> StepRecord:
    """One step of a pipeline that is no training."""
    return do_step(ready, called, at, hands)


def show_pipeline(pipeline: Pipeline, journal: Journal, run: RunRecord) -> None:
    """The page of a pipeline: a new version of one artifact."""
    shown = {
        record.step: f"/artifacts/key/{key('report', str(record.facts['run']))}"
        for record in run.steps
        if record.does == "train" and "run" in record.facts
    }
    create_markdown_artifact(
        markdown=pipeline_page(pipeline, journal, run, shown),
        key=key("pipeline", pipeline.name),
        description=f"Pipeline {pipeline.name}: its newest run, step by step",
    )


def show_scores(record: StepRecord) -> None:
    """The scores of an evaluation: a table."""
    create_table_artifact(
        table=record.facts["scores"],
        key=key("evaluation", str(record.facts["run"])),
        description=str(record.facts["title"]),
    )
