"""`fedcore budget set` where an account is found that this version refuses: nobody gets a fresh budget unnoticed."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from platformdirs import user_data_path

import fedcore as api
from fedcore.errors import LedgerRetired
from fedcore.privacy.ledger.database import default_ledger_url
from tests.command import fedcore, private_population, works
from tests.conftest import small_counts
from tests.privacy.test_retired_formats import schema_1

WHY = "budget show at commit 6fae4f3"
SET = ("budget", "set", "p", "--epsilon", "4", "--delta", "1e-6", "--public-schema", "made up")
DECLARED = ("--spent-before", "0.01", "--spent-before-reason", WHY)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A population without a budget in a ledger of its own, as one that was ingested again."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'new.sqlite'}")
    population, _ = private_population(tmp_path / "p", small_counts(20), epsilon=None)
    return population


def old_ledger(name="ledger.sqlite") -> Path:
    folder = user_data_path("fedcore")
    folder.mkdir(parents=True, exist_ok=True)
    schema_1(folder / name)
    return folder / name


def refused():
    done = fedcore(*SET)
    assert done.code == 2 and "Traceback" not in done.err
    assert "--spent-before RHO --spent-before-reason TEXT" in done.err and "6fae4f3" in done.err
    assert works("budget", "show", "p", "--json").json["budget"] is None
    return done.err


def test_without_an_old_ledger_nothing_is_asked(place):
    works(*SET)
    assert works("budget", "show", "p", "--json").json["spent_before"] is None


@pytest.mark.parametrize("name", ["ledger.sqlite", "renamed.old"])
def test_a_ledger_of_schema_1_in_the_data_folder_stops_it(place, name):
    """Also one that was renamed, so that a new ledger could be made in its place."""
    old_ledger(name)
    assert "is of schema 1" in refused()
    works(*SET, *DECLARED)
    shown = works("budget", "show", "p", "--json").json
    assert shown["rho_spent"] == 0.01 and shown["spent_before"]["reason"] == WHY
    assert [row["kind"] for row in shown["history"]] == ["register", "budget set", "spent before"]
    assert "spent before" in works("budget", "show", "p").out


def test_zero_is_allowed_with_a_reason(place):
    old_ledger()
    works(*SET, "--spent-before", "0", "--spent-before-reason", "other people")
    shown = works("budget", "show", "p", "--json").json
    assert shown["rho_spent"] == 0 and shown["spent_before"]["reason"] == "other people"


def test_where_the_manifest_says(place, tmp_path, monkeypatch):
    """FEDCORE_LEDGER names where the ledger is now, and an old one stands where the manifest says that it was."""
    (tmp_path / "new.sqlite").rename(tmp_path / "moved.sqlite")
    schema_1(tmp_path / "new.sqlite")
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'moved.sqlite'}")
    assert "is of schema 1" in refused()


def test_an_account_in_zcdp_in_the_same_ledger(place, tmp_path):
    private_population(tmp_path / "old", small_counts(20))
    with closing(sqlite3.connect(tmp_path / "new.sqlite")) as connection, connection:
        connection.execute("UPDATE fedcore_accounts SET currency = 'zcdp' WHERE rho_max IS NOT NULL")
    assert "holds an account in zCDP" in refused()
    works(*SET, *DECLARED)


def test_other_files_are_no_ledgers(place):
    folder = user_data_path("fedcore")
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("SQLite format 3")
    with closing(sqlite3.connect(folder / "cache.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE other (a INTEGER)")
    works(*SET)


@pytest.mark.parametrize("half", [("--spent-before", "0.01"), ("--spent-before-reason", "why")])
def test_rho_and_reason_go_together(place, half):
    done = fedcore(*SET, *half)
    assert done.code == 2 and "Pass both" in done.err


def test_a_second_budget_set_is_refused_as_ever(place):
    works(*SET)
    old_ledger()
    assert "has a budget" in fedcore(*SET).err
    assert "has a budget" in fedcore(*SET, *DECLARED).err


def test_from_python(place):
    old_ledger()
    with pytest.raises(LedgerRetired, match="6fae4f3"):
        api.set_budget("p", 4.0, 1e-6, public_schema="made up")
    given = {"spent_before": 0.01, "spent_before_reason": WHY}
    assert api.set_budget("p", 4.0, 1e-6, public_schema="made up", **given).rho_spent == 0.01


def test_the_default_location_is_the_users_own(place, monkeypatch):
    """So that the tests above look where a user's ledger lies."""
    monkeypatch.delenv("FEDCORE_LEDGER")
    assert default_ledger_url() == f"sqlite:///{user_data_path('fedcore') / 'ledger.sqlite'}"
