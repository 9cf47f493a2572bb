"""The page of a pipeline: each step and what it did, files, runs before; text of others cannot break it."""

from fedcore.operations.pipelines.journal import Journal, RunRecord, StepRecord
from fedcore.operations.pipelines.page import in_words, pipeline_page
from fedcore.operations.pipelines.steps import Forget, Pipeline

PIPELINE = Pipeline(
    name="nightly",
    population="/data/people",
    description="Of each night",
    files_are_public_because="an archive",
    step=[Forget(after_days=3)],
)


def record(step, status="done", **more):
    return StepRecord(step=step, does=step.split("-")[0], status=status, **more)


def test_a_page_tells_the_story_of_a_run():
    steps = [
        record("ingest", what="2 new files", seconds=1.25, facts={"new_files": ["a|b.csv", "<b>.csv"]}),
        record("train-open", links={"run": "runs/open"}, facts={"run": "Open"}),
        record("evaluate-open", facts={"title": "Scores", "scores": [{"method": "mean", "kl": 0.5}]}),
        record("forget", "refused", what="ConfigError: no cohorts"),
        record("export", "skipped", what="no new files came"),
    ]
    run = RunRecord(at="2026-01-02T03:00:00Z", began="2026-01-02T03:00:05Z", ended="2026-01-02T03:01:00Z", steps=steps)
    before = RunRecord(at="2026-01-01T03:00:00Z", began="2026-01-01T03:00:05Z")
    journal = Journal(pipeline="nightly", aside={"bad.csv": ("0" * 64, "no column")}, runs=[before, run])
    page = pipeline_page(PIPELINE, journal, run, {"train-open": "/artifacts/key/report-open"})
    for words in (
        r"| ingest | done | 1.2 | 2 new files |",
        r"- a\|b.csv",
        r"- &lt;b&gt;.csv",
        "[Report of train-open](/artifacts/key/report-open)",
        "## Scores",
        "| mean | 0.5 |",
        "- forget: ConfigError: no cohorts",
        "| export | not made | 0 | no new files came |",
        "1 of 5 steps went wrong: forget.",
        "| bad.csv | no column |",
        "Files are declared public: an archive",
        "| 2026-01-01T03:00:00Z | no | It is in progress, or was interrupted. |",
    ):
        assert words in page, words


def test_how_a_run_went_in_words():
    run = RunRecord(at="x", began="x", ended="y", steps=[record("ingest"), record("forget", "nothing")])
    assert in_words(run) == "1 of 2 steps did something; nothing went wrong."
