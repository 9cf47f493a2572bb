"""Pipelines on a population behind a URL: it is trained on and personalised, and written by nobody."""

import pytest

from fedcore.operations.deployment import read_file
from fedcore.operations.deployment_checks import problems
from fedcore.operations.pipelines.journal import read_journal
from fedcore.population.copying import copy_population
from fedcore.population.store import Population
from fedcore.storage.files import is_file, place
from tests.conftest import small_counts, write_counts
from tests.pipelines.places import HEAD, INGEST, OPEN, Place, step

STEPS = (
    step("train", deployment="open")
    + step("evaluate", deployment="open", on="public")
    + step("export", deployment="open", to="out/model.npz", when="if_promoted")
    + step("personalise", deployment="open", to="personal", ending="csv")
)


def behind(url, text):
    """The same with population and runs there."""
    return text.replace('"population"', f'"{url}/population"').replace(
        "population =", f'runs = "{url}/runs"\npopulation ='
    )


@pytest.mark.slow
def test_what_reads_is_done_and_what_writes_is_refused_by_name(tmp_path, s3):
    heldout = small_counts(12, 5, seed=1)
    write_counts(tmp_path / "public", small_counts(12, 5), heldout=heldout, public_for_evaluation="made up")
    copy_population(write_counts(tmp_path / "folder", small_counts(12, 5)).path, f"{s3}/population")
    reads = Place(tmp_path, behind(s3, OPEN + HEAD + STEPS))
    assert problems(read_file(tmp_path / "nightly.toml")) == []
    (run,) = reads.run(1)
    assert [record.status for record in run.steps] == ["done"] * 4
    assert reads.run(1) == [run] == read_journal(f"{s3}/runs", "nightly").runs, "and is not done again"
    assert (tmp_path / "out" / "model.npz").exists() and len(list((tmp_path / "personal").glob("*.csv"))) == 1
    assert is_file(place(f"{s3}/runs/latest-open.json"))

    writes = Place(tmp_path, behind(s3, OPEN + HEAD + INGEST + step("forget", after_days=3)))
    found = problems(read_file(tmp_path / "nightly.toml"))
    assert [where.split("'")[1] for where, _ in found] == ["ingest", "forget"]
    assert all("is behind a URL, where nothing is appended or forgotten" in str(error) for _, error in found)
    writes.arrive("one.csv", "a")
    (run,) = writes.run(3)
    assert [record.status for record in run.steps] == ["refused"] * 2 and "behind a URL" in run.steps[0].what
    assert Population.open(f"{s3}/population").version == 1
