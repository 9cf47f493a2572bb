"""What a run's page says of the run before it: the right one, what differs, and no exact count where one is private."""

import json

import pytest

from fedcore.errors import Unreachable
from fedcore.evaluation import changes
from fedcore.evaluation.changes import NOT_THERE, run_before, since_the_run_before
from fedcore.evaluation.report import markdown_report, write_report
from fedcore.evaluation.run_summary import public_score
from fedcore.operations.series import conclude
from fedcore.population.store import Population
from fedcore.training.record import installed
from fedcore.training.request import Series
from tests.command import works
from tests.conftest import edit_record, small_counts, write_counts
from tests.operations.test_operations import OPEN, PRIVATE, PUBLIC, begin, train


@pytest.fixture
def population(tmp_path):
    return write_counts(tmp_path / "p", small_counts(40))


def told(run) -> dict[str, tuple[str, str]]:
    since = since_the_run_before(run)
    return {f"{change.kind}: {change.what}": (change.before, change.now) for change in since.changes}


@pytest.mark.slow
def test_the_run_before_is_the_newest_finished_one_of_the_deployment(population, tmp_path):
    first = train(population, tmp_path, "a")
    assert run_before(first) is None and since_the_run_before(first) is None
    assert "Since the run before" not in markdown_report(first, {})
    train(population, tmp_path, "b", deployment="weekly")
    train(population, tmp_path, "c", deployment=None)
    begin(population, tmp_path, "d").close()
    last = train(population, tmp_path, "e")
    assert run_before(last).id == "a" and run_before(train(population, tmp_path, "f")).id == "e"
    assert run_before(last).id == "a", "a later run changes nothing"
    by_hand = train(population, tmp_path, "g", deployment=None)
    assert run_before(by_hand).id == "c"
    train(write_counts(tmp_path / "q", small_counts(40)), tmp_path, "h", deployment=None)
    assert run_before(train(population, tmp_path, "i", deployment=None)).id == "g", "of the same population"


@pytest.mark.slow
def test_nothing_changed_is_said(population, tmp_path):
    train(population, tmp_path, "a")
    run = train(population, tmp_path, "b")
    since = since_the_run_before(run)
    assert since.changes == () and "run a" in since.in_words
    assert "No difference in result, data, settings, software, privacy, scores." in since.in_words
    assert since.in_words in write_report(run).read_text()


def named(tmp_path):
    (tmp_path / "v.txt").write_text("w0\nw1\nw2\n")
    return "--format", "csv", "--client", "client", "--vocabulary", tmp_path / "v.txt"


def grown(tmp_path, number: int, *options) -> None:
    """A population of nine clients, or one with another client."""
    clients = [f"c{i},w{i % 3}" for i in range(9)] if number == 0 else [f"new{number},w1"]
    (tmp_path / f"{number}.csv").write_text("\n".join(["client,token", *clients, ""]))
    works("population", "ingest", tmp_path / f"{number}.csv", tmp_path / "p", *options)


def test_what_changed_is_on_both_pages(tmp_path):
    grown(tmp_path, 0, *named(tmp_path))
    train(Population.open(tmp_path / "p"), tmp_path, "a", settings={**OPEN, "clusters": 1})
    grown(tmp_path, 1, "--append")
    edit_record(tmp_path / "runs" / "a", lambda record: record["software"].update(numpy="1.0"))
    run = train(Population.open(tmp_path / "p"), tmp_path, "b", settings={**OPEN, "clusters": 2})
    assert told(run) == {
        "result: Centres: rows": ("1", "2"),
        "result: Centres: centre 0, share": ("1", "0.7"),
        "result: The mean: w1, share": ("0.33333", "0.4"),
        "data: version": ("1", "2"),
        "data: clients": ("9", "10"),
        "data: tokens": ("9", "10"),
        "settings: clusters": ("1", "2"),
        "software: numpy": ("1.0", installed()["numpy"]),
    }
    page, markdown = write_report(run).read_text(), markdown_report(run, {})
    assert "<td>clusters</td><td>1</td><td>2</td>" in page and "| settings | clusters | 1 | 2 |" in markdown


def test_a_private_run_tells_declared_sizes_and_no_exact_count(tmp_path):
    """Also beside a run that is not private, and although clients came in between."""
    grown(tmp_path, 0, *named(tmp_path), "--nominal-clients", "100")
    works("budget", "set", tmp_path / "p", "--epsilon", "8", "--delta", "1e-6", "--public-schema", "made up")
    train(Population.open(tmp_path / "p"), tmp_path, "a")
    grown(tmp_path, 1, "--append")
    second = train(Population.open(tmp_path / "p"), tmp_path, "b", settings={**PRIVATE, "nominal_clients": 90})
    grown(tmp_path, 2, "--append")
    changed = {**PRIVATE, "nominal_clients": 80, "epsilon": 0.5}
    third = train(Population.open(tmp_path / "p"), tmp_path, "c", settings=changed)
    assert told(second)["data: version"] == ("1", "2") and told(third)["data: version"] == ("2", "3")
    for run in (second, third, train(Population.open(tmp_path / "p"), tmp_path, "d")):
        assert not {"data: clients", "data: tokens"} & told(run).keys()
    assert told(second)["privacy: privacy"] == ("none", "differential")
    assert told(second)["privacy: epsilon"][0] == NOT_THERE
    found = told(third)
    assert found["data: declared clients"] == ("90", "80") and found["settings: epsilon"] == ("1", "0.5")
    assert float(found["privacy: epsilon"][1]) <= 0.5 < float(found["privacy: epsilon"][0])


@pytest.mark.slow
def test_scores_are_compared_on_the_same_public_data(population, tmp_path):
    public = write_counts(tmp_path / "public", small_counts(40, seed=2), heldout=small_counts(40, seed=3), **PUBLIC)
    for name, rounds in (("a", 1), ("b", 2)):
        run = train(population, tmp_path, name, settings={**OPEN, "rounds": rounds})
        conclude(run, "nightly", Series(evaluate_on=str(public.path)), public, name)
    before, now = (public_score(run_before(run)), public_score(run))
    since = since_the_run_before(run)
    (change,) = [change for change in since.changes if change.kind == "scores"]
    assert change.what == "kl on public, version 1" and change.note.split()[0] in ("better", "worse")
    assert (now.score < before.score) == change.note.startswith("better")
    table = json.loads((run.path / "evaluation.json").read_text())
    (run.path / "evaluation.json").write_text(json.dumps({**table, "version": 2}))
    (change,) = [change for change in since_the_run_before(run).changes if change.kind == "scores"]
    assert "version 1" in change.before and "version 2" in change.now and not change.note
    (run.path / "evaluation.json").unlink()
    assert told(run)["scores: score"][1] == "not scored"


def test_values_that_look_alike_are_told_apart():
    (one,) = changes._differences("settings", {"a": 0.1234567, "b": [1] * 99}, {"a": 0.1234568, "b": [1] * 99})
    assert (one.before, one.now) == ("0.1234567", "0.1234568")
    (one,) = changes._differences("settings", {"b": [1] * 99}, {"b": [1] * 98 + [2]})
    assert one.before != one.now and len(one.before) <= changes.LONGEST
    (one,) = changes._differences("settings", {}, {"a_b": None})
    assert (one.what, one.before, one.now) == ("a b", NOT_THERE, "None")


@pytest.mark.slow
def test_runs_of_earlier_versions_do_not_name_their_packages(population, tmp_path):
    train(population, tmp_path, "a")
    edit_record(tmp_path / "runs" / "a", lambda record: record.pop("software"))
    assert told(train(population, tmp_path, "b")) == {}


@pytest.mark.slow
def test_what_cannot_be_compared_is_said_and_the_report_written(population, tmp_path, monkeypatch):
    train(population, tmp_path, "a")
    run = train(population, tmp_path, "b")

    def fails(folder):
        raise Unreachable("the store does not answer.")

    monkeypatch.setattr(changes, "list_runs", fails)
    assert "the store does not answer" in write_report(run).read_text()
    assert "the store does not answer" in markdown_report(run, {})
