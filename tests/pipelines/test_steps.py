"""Pipelines in this process: what is new is ingested once, old clients are forgotten, runs are made and used."""

import json
import os
from contextlib import contextmanager

import pytest

from fedcore.errors import RunBusy
from fedcore.operations.deployment import read_file
from fedcore.operations.pipelines import append as appending
from fedcore.operations.pipelines import doing, journal
from fedcore.operations.pipelines.doing import OwnHands
from fedcore.operations.pipelines.page import pipeline_page
from fedcore.operations.pipelines.running import run_pipeline
from fedcore.population.ingest import parts
from fedcore.population.ingest.sources_table import TableSource
from fedcore.population.store import Population
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run
from fedcore.training.budget import begin_cohorts, ledger_of, set_budget
from fedcore.training.session import start_run
from tests.conftest import small_counts, write_counts
from tests.pipelines.places import HEAD, INGEST, OPEN, PRIVATE, Place, day, step

TRAIN = step("train", deployment="open")


def records(place, number, **more):
    return {record.step: record for record in place.run(number, **more)[-1].steps}


def status(found):
    return [record.status for record in found.values()]


def names(place):
    return [one.name for one in Population.open(place.population).manifest.deliveries]


def test_a_file_is_ingested_once_whatever_it_is_called_and_whenever_it_comes(tmp_path):
    place = Place(tmp_path, OPEN + HEAD + INGEST + TRAIN)
    place.arrive("one.csv", "a", "bb", "ccc")
    place.arrive("copy of one.csv", "a", "bb", "ccc")
    first = records(place, 1)
    assert status(first) == ["done", "done"] and first["ingest"].facts["new_files"] == ["copy of one.csv"]
    (place.arrivals / "copy of one.csv").unlink()
    again = records(place, 2)
    assert status(again) == ["nothing", "done"] and "1 known" in again["ingest"].what
    place.arrive("late.csv", "d", "a")
    third = records(place, 3)
    population = Population.open(place.population)
    assert names(place) == ["copy of one.csv", "late.csv"] and population.n_clients == 4 and population.version == 2
    assert population.manifest.n_rows == sum(1 + number % 3 for clients in (3, 2) for number in range(clients))
    assert third["train-open"].facts["version"] == 2


def test_a_large_table_is_read_by_the_workers_that_the_step_names(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "LEAST_BYTES", 10)
    started = []

    class Several(OwnHands):
        def sharing(self, workers):
            @contextmanager
            def here():
                started.append(workers)
                yield InProcessBackend(), workers

            return here

    place = Place(tmp_path, OPEN + HEAD + INGEST + "workers = 3\n")
    place.arrive("one.csv", *("abcdefgh" * 2))
    assert status(records(place, 1, hands=Several(report=False))) == ["done"] and started == [3]
    place.arrive("two.csv", *("abcdefghi" * 2))
    assert status(records(place, 2)) == ["done"] and started == [3]  # without a server by this process
    assert Population.open(place.population).n_clients == 9


def test_a_corrupt_file_is_set_aside_until_it_is_another_and_the_others_go_on(tmp_path):
    place = Place(tmp_path, OPEN + HEAD + INGEST)
    place.arrive("a.csv", "a", "bb")
    place.arrive("bad.csv", content="client,other\na,1\n")
    place.arrive("z.csv", "zz")
    first = records(place, 1)["ingest"]
    assert (first.status, names(place)) == ("done", ["a.csv", "z.csv"]) and "1 set aside" in first.what
    known = journal.read_journal(tmp_path / "runs", "nightly").aside
    assert list(known) == ["bad.csv"] and "columns" in known["bad.csv"][1]
    assert records(place, 2)["ingest"].status == "nothing"
    place.arrive("bad.csv", "new")
    assert records(place, 3)["ingest"].status == "done" and names(place) == ["a.csv", "z.csv", "bad.csv"]
    assert journal.read_journal(tmp_path / "runs", "nightly").aside == {}


@pytest.mark.parametrize("bad", [False, True])
def test_a_file_that_is_touched_while_it_is_read_waits_and_the_others_come(tmp_path, monkeypatch, bad):
    place = Place(tmp_path, OPEN + HEAD + INGEST)
    touched = place.arrive("a.csv", "a")
    place.arrive("b.csv", "bb")
    if bad:
        place.arrive("bad.csv", content="client,other\na,1\n")
    before, times = TableSource.batches, iter(range(1, 99))

    def batches(source, account, part=None):
        yield from before(source, account, part)
        if part is None and touched in {file.path for file in source.files}:
            os.utime(touched, (0, next(times)))

    monkeypatch.setattr(TableSource, "batches", batches)
    found = records(place, 1)["ingest"]
    assert (found.status, names(place), [*found.facts["aside"]]) == ("done", ["b.csv"], ["bad.csv"] if bad else [])
    monkeypatch.undo()
    assert records(place, 2)["ingest"].status == "done" and names(place) == ["b.csv", "a.csv"]


def test_counts_that_are_too_many_with_those_of_before_keep_no_other_file_out(tmp_path):
    place = Place(tmp_path, OPEN + HEAD + INGEST)
    place.arrive("one.csv", content=f"client,token,count\nalice,0,{2**53 - 1}\n")
    place.run(1)
    place.arrive("huge.csv", content="client,token,count\nalice,1,2\n")
    place.arrive("z.csv", "new")
    found = records(place, 2)["ingest"]
    assert (found.status, names(place), list(found.facts["aside"])) == ("done", ["one.csv", "z.csv"], ["huge.csv"])
    assert "more than 2**53" in str(found.facts["aside"]) and "alice" not in str(found.facts)


def test_why_a_file_was_set_aside_is_told_without_what_is_in_it(tmp_path):
    """The journal lies with the runs, and the page on the Prefect server: neither is a place for data."""
    place = Place(tmp_path, OPEN + HEAD + INGEST.replace("leave_out", "refuse").replace("features = 5,", ""))
    (tmp_path / "words.txt").write_text("known\n")
    text = (tmp_path / "nightly.toml").read_text().replace("{ client", '{ vocabulary = "words.txt", client')
    (tmp_path / "nightly.toml").write_text(text)
    place.arrive("bad.csv", content="client,token,count\nalice,known,secretvalue\n")
    place.arrive("strange.csv", content="client,token,count\nalice,secretword,1\n")
    place.arrive("headless.csv", content="alice,secretword,1\nalice,secretword,2\n")
    place.arrive("semicolons.csv", content="alice;secretword;1\n")
    run = place.run(1)[-1]
    told = journal.path_of(tmp_path / "runs", "nightly").read_text()
    told += pipeline_page(place.ready.pipeline, journal.read_journal(tmp_path / "runs", "nightly"), run)
    assert "bad.csv, line 2" in told and "None of the 1 tokens" in told and "headless.csv has no column" in told
    assert "secret" not in told and "alice" not in told


@pytest.mark.slow
def test_a_known_name_with_other_content_is_told_or_is_new_by_declared_rule(tmp_path):
    place = Place(tmp_path, OPEN + HEAD + INGEST)
    place.arrive("today.csv", "a")
    place.run(1)
    place.arrive("today.csv", "bb")
    found = records(place, 2)["ingest"]
    assert found.status == "nothing" and found.facts["aside"]["today.csv"][1].startswith("a file of this name was")
    place = Place(tmp_path, OPEN + HEAD + INGEST + 'changed = "append"\n')
    assert records(place, 3)["ingest"].status == "done" and names(place) == ["today.csv", "today.csv"]


def test_two_pipelines_that_find_the_same_file_at_once_ingest_it_once(tmp_path, monkeypatch):
    place = Place(tmp_path, OPEN + HEAD + INGEST)
    place.arrive("one.csv", "a")
    place.run(1)
    place.arrive("two.csv", "bb", "ccc")
    (other,) = read_file(tmp_path / "nightly.toml").pipeline
    whole, came = appending.look, []

    def look(step, pipeline, at, aside):
        found = whole(step, pipeline, at, aside)
        if not came:
            came.append(at)
            appending.append(step, other.model_copy(update={"name": "other"}), at, {})
        return found

    monkeypatch.setattr(appending, "look", look)
    assert records(place, 2)["ingest"].status == "nothing" and names(place) == ["one.csv", "two.csv"]
    population = Population.open(place.population)
    assert (population.version, population.manifest.deliveries[1].pipeline) == (2, "other")


@pytest.mark.slow
def test_patterns_by_date_and_files_that_are_being_written(tmp_path):
    dated = INGEST.replace("arrivals/*.csv", "arrivals/%Y-%m-%d/*.csv").replace("quiet_seconds = 0", "days_back = 2")
    place = Place(tmp_path, OPEN + HEAD + dated)
    for number in range(1, 6):
        os.utime(place.arrive(f"2026-01-0{number}/part.csv", f"client {number}" + "x" * number), (0, 0))
    fresh = place.arrive("2026-01-05/fresh.csv", "fresh")
    assert records(place, 5)["ingest"].what == "3 new files in version 1, 1 being written, left for the next run"
    assert names(place) == ["2026-01-03/part.csv", "2026-01-04/part.csv", "2026-01-05/part.csv"]
    os.utime(fresh, (0, 0))
    place.run(6)
    assert names(place)[3:] == ["2026-01-05/fresh.csv"]


def test_a_day_without_files_is_fine_and_a_folder_that_is_not_there_is_told(tmp_path):
    place = Place(tmp_path, OPEN + HEAD + INGEST)
    assert records(place, 1)["ingest"].status == "nothing" and not place.population.exists()
    place.arrivals.rmdir()
    assert "is not there" in records(place, 2)["ingest"].what


COHORTS = INGEST + "newcomers = 10\n"


def cohorts_place(folder, text):
    """A population with a budget by cohort."""
    place = Place(folder, text)
    place.arrive("founders.csv", *[f"founder {number}" for number in range(12)])
    place.run(1)
    population = Population.open(place.population)
    ledger = ledger_of(population)
    ledger.set_budget(population.id, 8.0, 1e-6)
    begin_cohorts(population, ledger)
    return place


def test_each_run_opens_one_cohort_whatever_came(tmp_path):
    place = cohorts_place(tmp_path, OPEN + HEAD + COHORTS)
    place.arrive("two.csv", "two")
    place.run(2)
    place.run(3)
    place.arrive("bad.csv", content="client,other\na,1\n")
    place.run(4)
    place.run(4)
    (tmp_path / "runs" / "pipeline-nightly.json").unlink()
    place.arrive("after.csv", "after")
    again = place.run(4)[-1].steps[0]
    assert again.status == "nothing" and "done before" in again.what and names(place) == ["founders.csv", "two.csv"]
    cohorts = Population.open(place.population).manifest.cohorts
    assert [one.opened for one in cohorts[1:]] == ["2026-01-02", "2026-01-03", "2026-01-04"]
    place.run(5)
    assert names(place)[2:] == ["after.csv"] and len(Population.open(place.population).manifest.cohorts) == 5


def test_of_calendar_periods_those_that_have_begun_are_declared_whatever_came(tmp_path):
    """A day without files within a period has nothing to declare, and nothing is wrong with it."""
    options = 'client = "client", period = "month", time = "when", first = "2025-12", through = "2025-12", features = 5'
    place = Place(tmp_path, OPEN + HEAD + INGEST.split("options")[0] + f"options = {{ {options} }}\n")
    place.arrive("old.csv", content="client,when,token,count\na,2025-12-30,1,1\n")
    assert records(place, 1)["ingest"].status == "done"
    found = [records(place, number)["ingest"] for number in (2, 3)]
    assert [one.status for one in found] == ["done", "nothing"], [one.what for one in found]
    place.arrive("new.csv", content="client,when,token,count\na,2026-01-03,1,1\n")
    assert records(place, 4)["ingest"].status == "done"
    assert [one.period for one in Population.open(place.population).manifest.cohorts] == ["2025-12", "2026-01"]


@pytest.mark.slow
def test_months_of_clients_pay_for_what_a_pipeline_trains_and_old_ones_are_forgotten(tmp_path):
    """Of three months the newest two are read; a late row goes to its own month, and no file is read twice."""
    options = 'client = "client", period = "month", time = "when", first = "2025-11", through = "2025-12", features = 5'
    private = PRIVATE.replace("epsilon = 0.5", "horizon = 2")
    ingest = INGEST.split("options")[0] + f"newcomers = 12\noptions = {{ {options}, nominal_clients = 12 }}\n"
    steps = ingest + step("forget", after_days=61) + step("train", deployment="closed", when="always")
    place = Place(tmp_path, private + HEAD + steps)

    def month(name, when, people=12):
        rows = [f"c{number},{when},{number % 5},2" for number in range(people)]
        place.arrive(name, content="\n".join(["client,when,token,count", *rows]) + "\n")

    month("november.csv", "2025-11-20")
    month("december.csv", "2025-12-20")
    first = records(place, 1)  # makes the population, on the first of January
    assert first["ingest"].status == "done" and first["train-closed"].status == "refused", "no budget is set yet"
    population = Population.open(place.population)
    set_budget(population, ledger_of(population), 8.0, 1e-6, unit="client_period", window=2)
    month("january.csv", "2026-01-02")
    month("late.csv", "2025-12-30", people=3)
    third = records(place, 3)
    assert status(third) == ["done", "nothing", "done"]
    assert Run.open(third["train-closed"].links["run"]).info["cohorts"] == [[2, 3]], "December and January"
    assert status(records(place, 4)) == ["nothing", "nothing", "done"], "no file came, and the schedule trains"
    last = records(place, 31)
    assert last["forget"].status == "done" and last["forget"].facts["cohorts_to"] == 1
    made = Population.open(place.population)
    assert {number for number, clients in made.manifest.order if number and clients} == {2, 3} and made.verify().ok
    balance = ledger_of(population).verify(population.id)
    assert balance.unit == "client_period" and all(one.rho_spent <= balance.budget.rho_max for one in balance.segments)


@pytest.mark.slow
def test_cohorts_are_forgotten_by_age_and_delivered_files_stay_known(tmp_path):
    place = cohorts_place(tmp_path, OPEN + HEAD + COHORTS + step("forget", after_days=3) + TRAIN)
    for number in range(2, 7):
        place.arrive(f"{number}.csv", f"client {number}" + "x" * number)
        found = records(place, number)
    assert found["forget"].facts["cohorts_to"] == 2 and status(found) == ["done"] * 3
    population = Population.open(place.population)
    left = [number for number, clients in population.manifest.order if number]
    assert left == [3, 4, 5, 6] and len(names(place)) == 6
    assert records(place, 7)["ingest"].facts["new_files"] == []


def test_private_training_goes_on_whatever_became_of_the_files(tmp_path):
    place = cohorts_place(tmp_path, PRIVATE + HEAD + COHORTS + step("train", deployment="closed"))
    for file in place.arrivals.iterdir():
        file.unlink()
    place.arrivals.rmdir()
    found = records(place, 2)
    assert [record.status for record in found.values()] == ["refused", "done"]
    assert Run.open(tmp_path / "runs" / "closed-20260102T030000Z").status == "finished"
    place = Place(tmp_path, PRIVATE + HEAD + COHORTS + step("train", deployment="closed"))
    assert [record.status for record in records(place, 2).values()] == ["done", "done"], "the step that failed is made"
    assert len(list((tmp_path / "runs").glob("closed-*"))) == 1


class Stumbles(OwnHands):
    """Whose runs that are not private meet an error that nobody has thought of."""

    def train(self, request, compute):
        if request.run_id.startswith("open"):
            raise ZeroDivisionError("secret 17")
        return super().train(request, compute)


def test_an_error_that_has_no_name_keeps_no_other_step_from_being_made(tmp_path, monkeypatch):
    steps = step("train", deployment="open") + step("train", deployment="closed")
    place = cohorts_place(tmp_path, PRIVATE + HEAD + COHORTS)
    place = Place(tmp_path, OPEN + PRIVATE + HEAD + COHORTS + steps)
    place.arrive("new.csv", "new")

    def stumble(*_, **__):
        raise KeyError("secret 17")

    monkeypatch.setattr(doing, "append", stumble)
    found = records(place, 2, hands=Stumbles(report=False))
    assert status(found) == ["refused", "refused", "done"] and "KeyError" in found["ingest"].what
    assert "secret" not in journal.path_of(tmp_path / "runs", "nightly").read_text()


def test_a_file_that_cannot_be_read_or_goes_away_keeps_no_other_one_out(tmp_path, monkeypatch):
    place = Place(tmp_path, OPEN + HEAD + INGEST)
    for name in ("a.csv", "closed.csv", "gone.csv", "z.csv"):
        place.arrive(name, name)
    (place.arrivals / "dangling.csv").symlink_to(place.arrivals / "nowhere.csv")
    whole = appending.read

    def read(path, folder):
        if path.name == "gone.csv":
            path.unlink(missing_ok=True)
        if path.name == "closed.csv":
            raise PermissionError(13, "Permission denied", str(path))
        return whole(path, folder)

    with monkeypatch.context() as patched:
        patched.setattr(appending, "read", read)
        found = records(place, 1)["ingest"]
    assert (found.status, names(place), list(found.facts["aside"])) == ("done", ["a.csv", "z.csv"], ["closed.csv"])
    assert records(place, 2)["ingest"].facts["new_files"] == ["closed.csv"]


def test_the_declared_reason_is_in_the_statement_of_what_the_pipeline_trains(tmp_path):
    declared = 'files_are_public_because = "a public archive"\n'
    steps = COHORTS.replace("leave_out", "refuse") + step("train", deployment="closed", when="if_new_files")
    place = cohorts_place(tmp_path, PRIVATE + HEAD + declared + steps)
    assert records(place, 2)["train-closed"].status == "skipped"
    place.arrive("new.csv", "new")
    run = Run.open(records(place, 3)["train-closed"].links["run"])
    assert "a public archive" in json.loads((run.path / "statement.json").read_text())["text"].split("\n")[0]


@pytest.mark.slow
def test_what_follows_from_a_promotion_and_what_was_done_for_the_same_run(tmp_path):
    write_counts(
        *(tmp_path / "public", small_counts(12, 5)),
        heldout=small_counts(12, 5, seed=1),
        public_for_evaluation="made up",
    )
    series = 'evaluate_on = "public"\npromote = "if_better"\ntolerance = 1e9\n'
    steps = (
        step("export", deployment="open", to="out/model.npz", when="if_promoted")
        + step("evaluate", deployment="open", on="public")
        + step("personalise", deployment="open", to="personal")
    )
    worse = series.replace("1e9", "0")
    place = Place(tmp_path, OPEN + series + HEAD + INGEST + TRAIN + steps)
    place.arrive("one.csv", *"abcdefghij")
    first = records(place, 1)
    assert status(first) == ["done"] * 5 and first["train-open"].facts["promoted"]
    assert (tmp_path / "out" / "model.npz").exists() and (
        tmp_path / "personal" / "open-20260101T030000Z-v1.parquet"
    ).exists()
    unpromoted = Place(
        tmp_path,
        OPEN + worse.replace("if_better", "never").replace("tolerance = 0\n", "") + HEAD + INGEST + TRAIN + steps,
    )
    second = records(unpromoted, 2)
    assert status(second) == ["nothing", "done", "skipped", "nothing", "nothing"]
    assert first["evaluate-open"].facts["scores"] == second["evaluate-open"].facts["scores"]


def test_one_process_at_a_time(tmp_path):
    place = Place(tmp_path, OPEN + HEAD + INGEST)
    with journal.alone(tmp_path / "runs", "nightly"), pytest.raises(RunBusy, match="another process"):
        run_pipeline(place.ready, day(1))


def test_a_run_that_is_done_keeps_the_time_of_its_end(tmp_path, monkeypatch):
    place = Place(tmp_path, OPEN + HEAD + INGEST)
    place.arrive("one.csv", *"abcdefgh")
    (first,) = place.run(1)
    monkeypatch.setattr(journal, "now", lambda: "2099-01-01T00:00:00Z")
    assert place.run(1) == [first]


class Dies(OwnHands):
    """Whose process ends in the middle of a training."""

    def train(self, request, compute):
        session = start_run(request, InProcessBackend(), stamp="then")
        session.training.step()
        session.close()
        raise KeyboardInterrupt


@pytest.mark.slow
def test_the_next_run_first_goes_on_with_the_one_that_was_interrupted(tmp_path):
    place = Place(tmp_path, OPEN + HEAD + INGEST + TRAIN + step("export", deployment="open", to="model.npz"))
    place.arrive("one.csv", *"abcdefgh")
    with pytest.raises(KeyboardInterrupt):
        place.run(1, hands=Dies())
    half = journal.read_journal(tmp_path / "runs", "nightly").runs[-1]
    assert [one.status for one in half.steps] == ["done", "begun"] and half.ended is None
    place.arrive("two.csv", *"ijklmnop")
    earlier, today = place.run(2)
    assert [one.status for one in earlier.steps] == ["done"] * 3 and earlier.at == "2026-01-01T03:00:00Z"
    assert [one.facts["version"] for one in (earlier.of("train-open"), today.of("train-open"))] == [1, 2]
    assert [one.facts["new_files"] for one in (earlier.of("ingest"), today.of("ingest"))] == [["one.csv"], ["two.csv"]]
    assert len(list((tmp_path / "runs").glob("open-*"))) == 2


@pytest.mark.slow
def test_a_training_that_was_refused_is_not_made_up_for_later(tmp_path):
    """Its time has passed. By hand, for the same time, it is."""
    place = cohorts_place(tmp_path, PRIVATE + HEAD + COHORTS + step("train", deployment="closed", when="always"))
    poor = place.ready.deployments[0].model_copy(update={"config": {"epsilon": 90.0}})
    run_pipeline(place.ready.model_copy(update={"deployments": [poor]}), day(2))
    written = journal.read_journal(tmp_path / "runs", "nightly")
    assert [one.status for one in written.at("2026-01-02T03:00:00Z").steps] == ["done", "refused"]
    written.runs[-1].ended = None  # as if the process had died right then
    written.keep(tmp_path / "runs")
    place.run(3)
    assert [path.name for path in (tmp_path / "runs").glob("closed-*")] == ["closed-20260103T030000Z"]
    place.run(2)
    assert len(list((tmp_path / "runs").glob("closed-*"))) == 2
