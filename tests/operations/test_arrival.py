"""Runs whose occasion follows from files that arrived: their statements rest on somebody's word, and those of the runs
that start from them.
"""

import json

import pytest

from fedcore.operations.in_process import to_the_end
from fedcore.operations.verify_statement import verify_statement
from fedcore.rounds.engine import InProcessBackend
from fedcore.training.warm_start import lineage_of
from tests import sessions
from tests.command import private_population
from tests.conftest import small_counts

WHY = "files are made of a public calendar."


def made(population, folder, name, **asked):
    backend = InProcessBackend()
    settings = {"clusters": 2, "rounds": 2, "epsilon": 1.0, "anyway": True}
    session = sessions.begin(
        population, folder, settings=settings, backend=backend, runs=str(folder), run_id=name, **asked
    )
    path = to_the_end(session, backend, report=False)
    return path, json.loads((path / "statement.json").read_text())


def test_the_statement_rests_on_the_word_and_so_do_those_of_later_runs(tmp_path):
    population, _ = private_population(tmp_path / "p", small_counts(40))
    path, said = made(population, tmp_path / "runs", "one", public_arrival_because=WHY)
    clause = f"which files arrived when, and were readable, tells nothing about these people because: {WHY}"
    assert said["vouched"] == [clause] and clause in said["text"].split("\n")[0]
    record = json.loads((path / "run.json").read_text())
    assert (record["arrival"], record["needs"]) == (WHY, ["arrival"])
    assert verify_statement(path / "statement.json").verdict == "right"
    later, next_said = made(population, tmp_path / "runs", "two", start_from="previous")
    assert next_said["vouched"] == [clause] and verify_statement(later / "statement.json").verdict == "right"
    again, both = made(population, tmp_path / "runs", "three", start_from="previous", public_arrival_because=WHY)
    assert both["vouched"] == [clause] and verify_statement(again / "statement.json").verdict == "right"
    (again / "statement.json").write_text(json.dumps({**both, "vouched": []}))
    assert verify_statement(again / "statement.json").verdict == "wrong"


def test_a_series_says_the_same_word_once():
    info, record = {"arrival": WHY, "population": {"id": "p"}}, None
    for _ in range(3):
        unprotected, words = lineage_of({**info, "start": record}, True)
        record = {"public_because": None, "private": True, "unprotected": [*unprotected], "vouched": [*words]}
    assert len(record["vouched"]) == 1 and WHY in record["vouched"][0]


def test_a_series_records_the_same_word_once():
    clause = f"which files arrived when, and were readable, tells nothing about these people because: {WHY}"
    start = {"kind": "run", "private": True, "public_because": None, "unprotected": [], "vouched": ["a", clause]}
    info = {"arrival": WHY, "population": {"id": "p"}, "start": start}
    assert lineage_of(info, True) == (frozenset(), ("a", clause))


@pytest.mark.slow
def test_nothing_is_said_of_other_runs(tmp_path):
    population, _ = private_population(tmp_path / "p", small_counts(40))
    path, said = made(population, tmp_path / "runs", "one")
    assert said["vouched"] == [] and "arrival" not in json.loads((path / "run.json").read_text())
