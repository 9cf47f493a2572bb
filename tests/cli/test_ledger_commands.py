"""`fedcore ledger`: a copy is made, its worth is said before it is needed, and it never takes a ledger's place."""

import sqlite3
from pathlib import Path

import pytest

from fedcore.privacy.ledger.ledger import open_ledger
from tests.cli.test_budget_commands import SET, TRAIN
from tests.cli.test_budget_commands import place as place  # noqa: PLC0414 - a fixture
from tests.command import fedcore, works
from tests.privacy.conftest import release

CHECK = ("ledger", "restore", "copy", "--check", "--runs", "runs", "--json")


@pytest.fixture
def copied(place):
    """A run that is finished, and a copy of the ledger."""
    works(*SET, "--public-schema", "made up")
    works(*TRAIN, "--run-id", "before")
    said = works("ledger", "backup", "copy", "--json").json
    assert said["verified"] and said["records"] == {place.id: open_ledger(said["url"]).length(place.id)}
    return place


def drilled(code):
    found = fedcore(*CHECK)
    assert found.code == code, found.err
    return found.json


def test_a_fresh_copy_is_whole(copied):
    found = drilled(0)
    assert found["verdict"] == "whole" and not (found["lost"] or found["runs"] or found["places"] or found["remarks"])
    (one,) = found["populations"]
    assert one["population_id"] == copied.id and one["budget"] == {"epsilon": 4.0, "delta": 1e-6}
    assert one["rho_spent"] > 0 and not one["open_runs"]
    assert "nothing that is known would be lost" in works("ledger", "restore", "copy", "--check", "--runs", "runs").out
    (remark,) = works("ledger", "restore", "copy", "--check", "--json").json["remarks"]
    assert "No runs were named" in remark


def test_an_older_copy_says_what_would_be_lost_and_does_not_take_the_ledgers_place(copied):
    works(*TRAIN, "--run-id", "after")
    found = drilled(3)
    assert found["verdict"] == "older" and found["restored"] is None
    (since,) = found["lost"]
    assert since["kinds"]["charge"] >= 2 and since["rho_charged"] > 0 and since["runs"] == ["after"]
    assert [Path(run["run"]).name for run in found["runs"]] == ["after"]
    assert [place["population_id"] for place in found["places"]] == [copied.id]
    text = fedcore(*CHECK[:-1]).out
    assert "Runs that saw a record which it lacks" in text and "accept-loss" in text
    refused = fedcore("ledger", "restore", "copy", "--runs", "runs")
    assert refused.code == 2 and "never overwritten" in refused.err
    assert works("budget", "show", "p", "--json").json["rho_spent"] > found["populations"][0]["rho_spent"]


def test_a_copy_that_went_another_way_than_the_ledger_lacks_what_that_has(copied):
    """Both went on from one record, the copy further: neither holds all that was spent."""
    for file, runs in (("ledger.sqlite", ["here"]), ("copy", ["there", "there-too"])):
        ledger = open_ledger(f"sqlite:///{Path(file).absolute()}")
        for run in runs:
            ledger.reserve(copied.id, run, [release(1)], 0, secure=True)
    found = drilled(3)
    (since,) = found["lost"]
    assert found["verdict"] == "older" and since["runs"] == ["here"] and since["records"] == 1
    assert "it went back" in found["remarks"][0]


@pytest.mark.slow
def test_a_lost_ledger_is_restored_and_what_it_forgot_is_noticed(copied):
    for file in Path().glob("ledger.sqlite*"):
        file.unlink()
    restored = works("ledger", "restore", "copy", "--runs", "runs", "--json").json
    assert restored["verdict"] == "whole" and restored["restored"].endswith("ledger.sqlite")
    works(*TRAIN, "--run-id", "after")
    for file in Path().glob("ledger.sqlite*"):
        file.unlink()
    restored = fedcore("ledger", "restore", "copy", "--runs", "runs", "--json")
    assert restored.code == 3 and restored.json["restored"] and "not at hand" in restored.json["remarks"][0]
    refused = fedcore(*TRAIN, "--run-id", "more")
    assert refused.code == 2 and "LedgerRolledBack" in refused.err


@pytest.mark.slow
def test_a_damaged_copy_is_said_to_be_so(copied):
    with sqlite3.connect("copy") as connection:
        connection.execute("UPDATE fedcore_accounts SET rho_max = rho_max * 2")
    connection.close()
    found = drilled(2)
    assert found["verdict"] == "damaged" and "the budget is" in found["problems"][0]
    for file in Path().glob("ledger.sqlite*"):
        file.unlink()
    assert fedcore("ledger", "restore", "copy").code == 2 and not list(Path().glob("ledger.sqlite*"))
    refused = fedcore("ledger", "restore", "nothing", "--check")
    assert refused.code == 2 and "there is no ledger at" in refused.err
