"""`fedcore pipeline`, without a server."""

import pytest

from fedcore.operations.pipelines import doing
from tests.command import fedcore, works
from tests.pipelines.places import HEAD, INGEST, OPEN, Place, step

AT = ("--at", "2026-01-03T03:00:00Z")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(doing.OwnHands.__init__, "__defaults__", (False,))  # without reports
    made = Place(tmp_path, OPEN + HEAD + INGEST + step("train", deployment="open"))
    made.arrive("one.csv", "a", "bb", "ccc", "dddd")
    made.arrive("bad.csv", content="client,other\na,1\n")
    return made


def test_what_would_be_done_is_said_and_then_done_once(place):
    file = place.folder / "nightly.toml"
    told = works("pipeline", "show", file, *AT, "--json").json["pipelines"]["nightly"]
    assert [row["would"] for row in told] == [
        "make it of 2 files",
        "make run open-20260103T030000Z of the population that the pipeline makes",
    ]
    assert not place.population.exists() and not (place.folder / "runs").exists()
    done = works("pipeline", "run", file, "nightly", "--local", *AT, "--json").json
    assert [record["status"] for record in done["runs"][0]["steps"]] == ["done", "done"]
    again = works("pipeline", "run", file, "nightly", "--local", *AT)
    assert "open-20260103T030000Z is finished" in again.out and "1 file was set aside: bad.csv" in again.err
    assert "pass over 1 that it has; set aside bad.csv" in works("pipeline", "show", file, "nightly").out


def test_steps_that_went_wrong_are_named_and_the_others_made(place):
    file = place.folder / "nightly.toml"
    file.write_text(
        file.read_text() + step("forget", after_days=3) + step("export", deployment="open", to="a/model.npz")
    )
    refused = fedcore("pipeline", "run", file, "nightly", "--local", *AT, "--json")
    assert refused.code == 2 and "StepsFailed: 1 step of" in refused.err and "has no cohorts" in refused.err
    assert (place.folder / "a" / "model.npz").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("nightly", "--at", "soon"), "'soon' is no time"), (("weekly",), "has no pipeline 'weekly'")],
)
def test_what_is_refused(place, arguments, words):
    refused = fedcore("pipeline", "run", place.folder / "nightly.toml", *arguments, "--local")
    assert refused.code == 2 and words in refused.err
