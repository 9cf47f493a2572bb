"""Which pipelines a file may hold, and which of their steps may follow from what."""

import re

import pytest

from fedcore.errors import ConfigError, PrivacyError
from fedcore.operations.deployment import read_file
from fedcore.operations.pipelines.running import run_pipeline
from tests.pipelines.places import HEAD, INGEST, OPEN, PRIVATE, Place, day, step

PUBLIC = 'files_are_public_because = "they come from a public archive"\n'
REFUSE = INGEST.replace("leave_out", "refuse")
BOTH = OPEN + PRIVATE


def read(folder, text):
    return Place(folder, text).ready


def test_everything_that_can_be_said(tmp_path):
    text = BOTH + HEAD + 'schedule = [{ cron = "0 3 * * *" }, { interval = 60 }]\npaused = true\ndescription = "all"\n'
    text += 'job_variables = { env = { A = "b" } }\n' + INGEST + step("forget", after_days=30)
    text += step("train", deployment="closed") + step("train", deployment="open", when="if_new_files")
    text += step("evaluate", deployment="open", on="public", when="if_promoted")
    text += step("export", deployment="open", to="out/model.parquet", when="if_promoted", of="closed")
    text += step("personalise", deployment="closed", to="personal")
    made = read(tmp_path, text).pipeline
    assert made.labels == [
        *("ingest", "forget", "train-closed", "train-open", "evaluate-open", "export-open", "personalise-closed")
    ]
    assert [len(made.schedules), made.paused, made.schedules_in_words] == [
        2,
        True,
        "0 3 * * * (UTC), every 60 s, paused",
    ]
    assert made.labelled("ingest").files == str(tmp_path / "arrivals/*.csv")
    assert made.labelled("export-open").to == str(tmp_path / "out/model.parquet")
    assert made.labelled("evaluate-open").on == str(tmp_path / "public") and made.runs == str(tmp_path / "runs")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD, "pipeline.0.step"),
        (HEAD + step("dance"), "pipeline.0.step.0"),
        (HEAD + step("forget"), "after_days"),
        (HEAD + step("forget", after_days=1) + step("forget", name="again", after_days=2), "one step 'forget' at most"),
        (HEAD + step("train", deployment="open") * 2, "two steps 'train-open'"),
        (HEAD + step("train", deployment="open", when="if_promoted"), "names another deployment's"),
        (HEAD + step("export", deployment="open", to="a.csv", of="closed"), "`of` goes with"),
        (HEAD + step("export", deployment="open", to="a.csv", colour=1), "colour' is not a setting"),
        (HEAD + INGEST.replace("*.csv", '*.csv"\ndays_back = 3 #'), "days_back goes with a pattern by date"),
        (HEAD + INGEST.replace("client =", "tolerance = 3, client ="), "'tolerance' is not said here"),
        (
            HEAD + step("train", deployment="open") + HEAD + step("train", deployment="open"),
            "two pipelines have the same",
        ),
    ],
)
def test_what_a_file_may_not_say(tmp_path, text, words):
    (tmp_path / "f.toml").write_text(OPEN + text)
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_file(tmp_path / "f.toml")


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (step("train", deployment="missing"), "names the deployment 'missing', which the file does not have"),
        (step("train", deployment="open") + step("train", name="b", deployment="open"), "trains 'open' twice"),
        (step("export", deployment="open", to="a.csv", when="if_promoted"), "which no step before it trains"),
        (step("train", deployment="open", when="if_new_files"), "no step before it ingests any"),
    ],
)
def test_steps_that_cannot_follow_one_another(tmp_path, steps, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        read(tmp_path, BOTH + HEAD + steps)


def test_a_pipeline_has_one_population(tmp_path):
    other = OPEN.replace('"population"', '"another"')
    with pytest.raises(ConfigError, match="on another population"):
        read(tmp_path, other + HEAD + step("train", deployment="open"))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (INGEST + step("train", deployment="closed", when="if_new_files"), "one client's arrival would decide"),
        (
            INGEST
            + step("train", deployment="closed")
            + step("export", deployment="closed", to="a", when="if_new_files"),
            "follow from whether files",
        ),
        (REFUSE + step("train", deployment="closed"), "an invalid row of one client would quarantine its file"),
        (INGEST + 'changed = "append"\n' + step("train", deployment="closed"), "those of all other clients in it"),
    ],
)
def test_what_would_follow_from_one_client_is_refused_until_somebody_says_why_it_tells_nothing(tmp_path, steps, words):
    with pytest.raises(PrivacyError, match=re.escape(words)):
        read(tmp_path, BOTH + HEAD + steps)
    assert read(tmp_path, BOTH + HEAD + PUBLIC + steps).private


@pytest.mark.parametrize("ingest", [REFUSE, INGEST + 'changed = "append"\n'])
def test_one_row_decides_over_no_others_in_a_population_that_somebody_else_trains_on_privately(tmp_path, ingest):
    """By its own schedule, in another pipeline, by hand: cohorts are those of the population."""
    for declared in ("", PUBLIC):
        for steps in ("", step("train", deployment="open")):
            with pytest.raises(PrivacyError, match="which it does not train"):
                read(tmp_path, BOTH + HEAD + declared + ingest + steps)
    elsewhere = PRIVATE.replace('"population"', '"another"')
    assert not read(tmp_path, OPEN + elsewhere + HEAD + ingest + step("train", deployment="open")).private
    assert not read(tmp_path, BOTH + HEAD + INGEST + step("train", deployment="open")).private


def test_no_reason_lets_a_run_that_is_not_private_decide_over_a_private_one(tmp_path):
    steps = step("train", deployment="open") + step("train", deployment="closed", when="if_promoted", of="open")
    for declared in ("", PUBLIC):
        with pytest.raises(PrivacyError, match="may reveal anything about any client"):
            read(tmp_path, BOTH + HEAD + declared + steps)
    other = step("train", deployment="closed") + step("train", deployment="open", when="if_promoted", of="closed")
    assert read(tmp_path, BOTH + HEAD + other).private
    assert not read(tmp_path, OPEN + HEAD + REFUSE + step("train", deployment="open", when="if_new_files")).private


def test_the_law_is_asked_again_when_a_pipeline_is_run(tmp_path):
    """Parameters of a flow can be changed in a form."""
    place = Place(tmp_path, BOTH + HEAD + PUBLIC + REFUSE + step("train", deployment="closed"))
    undeclared = place.ready.pipeline.model_copy(update={"files_are_public_because": None})
    changed = place.ready.model_copy(update={"pipeline": undeclared})
    with pytest.raises(PrivacyError, match="quarantine its file"):
        run_pipeline(changed, day(1))
    assert not (tmp_path / "runs").exists()
