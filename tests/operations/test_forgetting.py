"""`fedcore population forget` and `compact` from the command line: population, ledger, runs, copies."""

import json

import pytest

from fedcore.errors import ChunkError, RunError
from fedcore.population import conversion
from fedcore.population.store import Population
from fedcore.runs.store import Run
from fedcore.storage import files
from fedcore.training.budget import ledger_of
from fedcore.training.personalise import personalise
from tests.command import fedcore, private_population, works
from tests.conftest import small_counts, write_counts
from tests.population.contents import counts_of, ids_below


@pytest.fixture
def place(tmp_path, monkeypatch, toy):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def leaving(place, *ids):
    (place / "leaving.txt").write_text("\n".join(ids) + "\r\n\n")
    return "leaving.txt"


@pytest.mark.slow
def test_clients_leave_population_ledger_and_runs(place):
    population, ledger = private_population(place / "p", small_counts(), test=True)
    works("train", "toy", "p", "--local", "--run-id", "plain", "--set", "rounds=2")
    before = counts_of(population)
    assert list((place / "runs/plain/memory").iterdir())
    forget = ("population", "forget", "p", "--clients", leaving(place, "c3", "c4", "who"), "--runs", "runs", "--json")
    size = files.size(place / "p")
    told = works(*forget).json
    assert (told["version"], told["forgotten"], told["unknown"], told["runs"]) == (2, 2, 1, ["plain"])
    assert told["bytes_freed"] == size - files.size(place / "p") and told["holes"] == 0.04 and told["hint"] is None
    assert any("predict" in line for line in told["not_reached"])
    said = told["explained"]
    for part in ("of 2 clients", "these runs remembered of their clients: plain", "also after the deletion"):
        assert part in said
    assert "The ledger keeps" in said and "keyed hash of each id" in said and "Answer to the person" in said
    after = Population.open("p")
    assert after.versions() == [2] and ids_below(place / "p") == {"", *before} - {"c3", "c4"}
    assert {one: held for one, held in counts_of(after).items() if one} == {
        one: held for one, held in before.items() if one not in ("c3", "c4")
    }
    assert not (place / "runs/plain/memory").exists()
    (record,) = [row for row in ledger.history(population.id) if row["kind"] == "forget"]
    assert (record["version"], record["list"]) == (2, after.manifest.suppression)
    again = works(*forget).json
    assert (again["version"], again["forgotten"], again["unknown"], again["runs"]) == (2, 0, 3, [])
    works("population", "verify", "p", "--json")
    works("budget", "show", "p")
    shown = works("population", "describe", "p", "--json").json
    assert (shown["clients"], shown["forgotten"], shown["versions"]) == (50, 2, [2])


@pytest.mark.slow
def test_a_run_that_lost_its_memories_says_so(place):
    write_counts(place / "p", small_counts())
    works("train", "toy", "p", "--local", "--run-id", "ended", "--set", "rounds=2")
    gone = leaving(place, "c3", *(f"c{i}" for i in range(8, 16)))
    assert "Not reached:\n" in works("population", "forget", "p", "--clients", gone, "--runs", "runs").out
    assert Population.open("p").blocks[1].void
    with pytest.raises(RunError, match="memories of run 'ended' were removed"):
        personalise("runs/ended", "p", place / "o")
    found = works("verify", "runs/ended", "--json").json
    assert found["ok"] and any("remembered was removed" in line for line in found["remarks"])
    works("runs", "show", "runs/ended")
    works("train", "toy", "p", "--local", "--run-id", "next", "--set", "rounds=2")
    personalise("runs/next", "p", place / "o")
    ids = [json.loads(line) for line in (place / "o/clients.jsonl").read_text().splitlines()]
    assert [i for i, one in enumerate(ids) if one == ""] == [3, *range(8, 16)] and len(ids) == 50


def test_an_interrupted_run_is_not_resumed_once_clients_were_forgotten(place):
    from fedcore.rounds.engine import InProcessBackend
    from fedcore.training.request import TrainRequest
    from fedcore.training.session import start_run

    write_counts(place / "p", small_counts())
    request = TrainRequest(method="toy", population="p", settings={"rounds": 3}, runs="runs", run_id="half", seed=1)
    session = start_run(request, InProcessBackend(), stamp="then")
    session.training.step()
    refused = fedcore("population", "forget", "p", "--clients", leaving(place, "c3"), "--runs", "runs")
    assert refused.code == 2 and "half" in refused.err and Population.open("p").version == 1
    session.close()
    assert works("population", "forget", "p", "--clients", "leaving.txt", "--runs", "runs", "--json").json["runs"]
    outcome = fedcore("resume", "runs/half", "--local")
    assert outcome.code == 2 and "clients of its population were forgotten" in outcome.err
    works("runs", "abandon", "runs/half")
    assert Run.open("runs/half").status == "abandoned"


def test_without_the_folder_of_the_runs_their_version_is_gone(place):
    write_counts(place / "p", small_counts())
    works("train", "toy", "p", "--local", "--run-id", "ended", "--set", "rounds=2")
    told = works("population", "forget", "p", "--clients", leaving(place, "c3"), "--json").json
    assert any("--runs" in line for line in told["not_reached"])
    with pytest.raises(RunError, match="version 1 of the population, to whose clients"):
        personalise("runs/ended", "p", place / "o")


def test_a_private_run_that_is_open_keeps_its_data(place):
    from fedcore.rounds.engine import InProcessBackend
    from fedcore.training.request import TrainRequest
    from fedcore.training.session import start_run

    population, _ = private_population(place / "p", small_counts(), test=True)
    settings = {"rounds": 2, "private": True, "epsilon": 1.0, "nominal_clients": 50}
    request = TrainRequest(method="toy", population="p", settings=settings, runs="runs", run_id="open", test_noise="a")
    session = start_run(request, InProcessBackend(), stamp="then")
    session.close()
    for command in (("forget", "p", "--clients", leaving(place, "c3")), ("forget", "p", "--cohorts", "..1")):
        assert fedcore("population", *command).code == 2
    refused = fedcore("population", "forget", "p", "--clients", "leaving.txt")
    assert refused.code == 2 and "open" in refused.err and "abandon" in refused.err
    assert Population.open(place / "p") == population
    works("runs", "abandon", "runs/open")
    works("population", "forget", "p", "--clients", "leaving.txt")
    with pytest.raises(ChunkError, match="removed after it was opened"):
        population.read(0)


def test_old_cohorts_leave_and_the_rest_is_compacted(place):
    population, ledger = private_population(place / "p", small_counts(24), nominal=24)
    conversion.begin_cohorts(population, lambda version, checksum, token: token)
    (place / "more.csv").write_text("client,token,count\n" + "".join(f"d{i},{i % 7},1\n" for i in range(9)))
    ingest = ("population", "ingest", "more.csv", "p", "--append", "--option", "features=7", "--nominal-clients", "33")
    assert [one["clients"] for one in works(*ingest, "--json").json["cohorts"]] == [24, 9]
    assert "Cohorts" in works("population", "describe", "p").out
    told = works("population", "forget", "p", "--cohorts", "..1", "--json").json
    assert told["forgotten"] == 24 and "population compact" in told["hint"]
    before = files.size(place / "p")
    compacted = works("population", "compact", "p", "--json").json
    assert compacted["version"] == told["version"] + 1 and compacted["bytes_freed"] == before - files.size(place / "p")
    shown = works("population", "describe", "p", "--json").json
    assert shown["clients"] == 9 and [one["clients"] for one in shown["cohorts"]] == [0, 9]
    assert [one["nominal_clients"] for one in shown["cohorts"]] == [0, 9] and shown["nominal_clients"] == 9
    opened = works("population", "open-cohort", "p", "--declared-clients", "9", "--json").json
    assert [one["nominal_clients"] for one in opened["cohorts"]] == [0, 9, 0]
    assert ledger_of(Population.open("p")).id == ledger.id


@pytest.mark.parametrize(
    "wrong", [(), ("--cohorts", "3"), ("--cohorts", "..x"), ("--cohorts", "..1", "--clients", "f")]
)
def test_what_is_not_said_clearly_is_refused(place, wrong):
    (place / "f").write_text("c1\n")
    write_counts(place / "p", small_counts())
    outcome = fedcore("population", "forget", "p", *wrong)
    assert outcome.code == 2 and "ConfigError" in outcome.err and Population.open("p").version == 1
