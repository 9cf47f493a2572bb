"""`fedcore budget`: why a schema is public, accepted losses, and what is shown when something is wrong."""

import io
import json
import shutil
import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from fedcore.cli import budgets
from fedcore.cli.budget_text import short_balance, short_rows
from fedcore.operations.population_page import population_page
from fedcore.privacy.cohorts import Participants
from fedcore.privacy.ledger.ledger import open_ledger
from fedcore.privacy.statement import private_statement
from tests.command import fedcore, private_population, works
from tests.privacy.conftest import release

WITNESS = "ledger-head.json"
SET = ("budget", "set", "p", "--epsilon", "4", "--delta", "1e-6")
TRAIN = ("train", "histograms", "p", "--local", "--set", "clusters=2", "--set", "rounds=2", "--set", "epsilon=1")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A population without a budget."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    monkeypatch.delenv("FEDCORE_ANCHOR", raising=False)
    matrix = np.random.Generator(np.random.Philox(1)).poisson(1.0, (12, 4))
    population, _ = private_population(tmp_path / "p", sp.csr_matrix(matrix), epsilon=None)
    return population


def test_a_budget_needs_a_reason_for_its_schema(place):
    refused = fedcore(*SET)
    assert refused.code == 2 and "--public-schema" in refused.err and "words of a public dictionary" in refused.err
    assert fedcore(*SET, "--public-schema", "  ").code == 2
    assert works("budget", "show", "p", "--json").json["budget"] is None
    shown = works(*SET, "--public-schema", "words of a\n public dictionary", "--json").json
    assert shown["public_schema"] == "words of a public dictionary"
    assert shown["history"][-1]["public_schema"] == "words of a public dictionary"


def test_a_person_at_a_terminal_is_asked(place, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("its columns are those of the form\n"))
    monkeypatch.setattr(budgets.typer, "prompt", lambda text: sys.stdin.readline() if "public" in text else None)
    assert works(*SET, "--json").json["public_schema"] == "its columns are those of the form"


def test_the_statement_repeats_the_reason_or_says_that_there_is_none(place):
    ledger = open_ledger(f"sqlite:///{place.path.parent / 'ledger.sqlite'}")
    ledger.set_budget(place.id, 4.0, 1e-6)
    works(*TRAIN, "--run-id", "r")
    before = json.loads(Path("runs/r/statement.json").read_text())
    assert before["public_schema"] == "" and "no reason was declared why columns" in before["text"]
    works("budget", "public-schema", "p", "words of a public dictionary.")
    shown = works("budget", "public-schema", "p", "words of the dictionary of 1990").out
    assert "words of the dictionary of 1990" in shown and "words of a public dictionary." in shown  # all that was said
    text = private_statement(ledger, place.id, "r").text()
    assert "The budget owner declared why, and this is not verified: words of the dictionary of 1990." in text
    assert ledger.verify(place.id).public_schema == "words of the dictionary of 1990"


def test_segments_of_a_budget_by_cohort_are_shown(place):
    works(*SET, "--public-schema", "made up")
    assert works("budget", "show", "p", "--json").json["segments"] == []
    assert "segments" not in works("budget", "show", "p").out
    ledger, tokens = open_ledger(f"sqlite:///{place.path.parent / 'ledger.sqlite'}"), ("0" * 32, "1" * 32)
    ledger.begin_cohorts(place.id, version=1, manifest="a" * 64, token=tokens[0], chain={1: "a" * 64})
    ledger.reserve(place.id, "r", [release(1, 5.0)], 0, secure=True, cohorts=Participants(((2, 2),), tokens))
    shown = works("budget", "show", "p", "--json").json
    found = [(s["first"], s["last"], s["rho_reserved"]) for s in shown["segments"]]
    assert found == [(1, 1, 0), (2, 2, release(1, 5.0).rho)]
    text = works("budget", "show", "p").out
    title, heads, *rows = text[text.index("Cohorts") : text.index("History")].splitlines()
    assert "segments" not in text and "epsilon spent" in "".join(rows) + heads
    cells = [[cell.strip() for cell in row.split("│")[1:-1]] for row in rows if row.startswith("│")]
    assert [(row[0], row[3]) for row in cells] == [("1", "0"), ("2", "0.020001")]


def test_a_budget_is_shown_short_and_rounded_so_that_nothing_seems_unspent(place):
    works(*SET, "--public-schema", "made up")
    works(*TRAIN, "--run-id", "r")
    told = works("budget", "show", "p", "--json").json
    short, whole = works("budget", "show", "p").out, works("budget", "show", "p", "--all").out
    values = dict(line.split(None, 1) for line in short.splitlines() if line.startswith(("rho_", "epsilon_")))
    assert told["rho_spent"] <= float(values["rho_spent"]) <= told["rho_spent"] * 1.00001
    assert told["rho_left"] * 0.99999 <= float(values["rho_left"]) <= told["rho_left"]
    assert len(values["rho_left"]) < len(repr(told["rho_left"])) and repr(told["rho_left"]) in whole
    assert "None" not in short and "delta_left" not in short and "delta_left" in whole
    published = told["releases"]["published"]
    assert f"reserve, acquire, {published} charge, {published} publish, finish" in short
    assert short.count("publish") == 2 and whole.count("publish") > published  # once in the table, once above it


@pytest.mark.parametrize("value", [0.9999999999994613, 0.32298916650359577, 9.999999e-05, 123456789.5, 1e-300, 0.1])
def test_spent_is_rounded_up_and_left_down(value):
    spent, left = (short_balance({name: value})[name] for name in ("rho_spent", "rho_left"))
    assert left <= value <= spent and spent - left <= 2.1e-5 * value
    assert float(f"{spent:.6g}") == spent and float(f"{left:.6g}") == left


def test_a_promise_is_never_said_to_be_smaller_and_a_time_stays_itself():
    budget = {"epsilon": 1.23456389, "delta": 1.23456389e-6, "delta_extra": 1.23456389e-7, "rho_max": 0.123456789}
    shown = short_balance({"budget": budget, "loss": {"at": 1763871234.125, "reason": "the disk died"}})
    assert all(shown["budget"][name] >= budget[name] for name in ("epsilon", "delta", "delta_extra"))
    assert shown["budget"]["rho_max"] <= budget["rho_max"] and shown["loss"]["at"] == 1763871234.125


def test_tables_of_a_budget_are_rounded_like_its_numbers():
    row = {"share": "a", "rho": 0.1234567, "rho spent": 0.1234512, "rho reserved": 0.1234512, "rho left": 0.1234567}
    (shown,) = short_rows([row], may_spend=("rho",))
    assert shown == {"share": "a", "rho": 0.12345, "rho spent": 0.12346, "rho reserved": 0.12346, "rho left": 0.12345}
    (shown,) = short_rows([{"data in": "12 months", "rho": 0.1234512, "epsilon": 1.234512}])
    assert shown == {"data in": "12 months", "rho": 0.12346, "epsilon": 1.2346}


def divided(*shares):
    return works("budget", "divide", "p", *(part for share in shares for part in ("--share", share)))


@pytest.mark.slow
def test_a_budget_is_divided_and_runs_are_paid_by_the_share_that_they_name(place):
    works(*SET, "--public-schema", "made up")
    shown = divided("team-a=.5", "team-b=1/4").out
    assert "Shares" in shown and "(undivided)" in shown and "team-a 1/2, team-b 1/4" in shown
    works(*TRAIN, "--run-id", "r", "--share", "team-a")
    shares = {one["name"]: one for one in works("budget", "show", "p", "--json").json["shares"]}
    assert [shares[name]["part"] for name in ("team-a", "team-b", None)] == ["1/2", "1/4", "1/4"]
    assert shares["team-a"]["rho_spent"] > 0 == shares["team-b"]["rho_spent"] == shares[None]["rho_spent"]
    info, statement = (json.loads(Path(f"runs/r/{name}.json").read_text()) for name in ("run", "statement"))
    assert (info["share"], info["needs"]) == ("team-a", ["shares"])
    assert statement["share"] == "team-a" and "share 'team-a'" in statement["text"]
    assert fedcore("verify-statement", "runs/r/statement.json").code == 0
    Path("runs/r/statement.json").write_text(json.dumps(statement | {"share": "team-b"}))
    assert fedcore("verify-statement", "runs/r/statement.json").code == 2
    page = population_page("p", "runs")
    assert "divided the budget into shares" in page and "| team-a | 1/2 |" in page and "still fits" not in page


@pytest.mark.slow
def test_what_a_share_cannot_pay_is_refused_with_its_numbers_before_anything_is_made(place):
    works(*SET, "--public-schema", "made up")
    divided("team-a=.02")
    refused = fedcore(*TRAIN, "--share", "team-a")
    assert refused.code == 2 and "share 'team-a' of population 'p' has rho" in refused.err
    fits = refused.err.split("Lower epsilon to ")[1].split()[0]
    assert float(works("budget", "plan", "p", "--runs", "1", "--share", "team-a", "--json").json["epsilon_left"]) > 0
    for names, said in ((("--share", "nobody"), "no share 'nobody'"), (("--share", "a b"), "share")):
        refused = fedcore(*TRAIN, *names)
        assert refused.code == 2 and said in refused.err
    assert not Path("runs").exists() and not works("budget", "show", "p", "--json").json["open_runs"]
    works(*TRAIN, "--run-id", "r", "--share", "team-a", "--set", f"epsilon={fits}", "--anyway")
    divided("team-a=1/3", "team-b=2/3")
    refused = fedcore(*TRAIN)
    assert refused.code == 2 and "the run names none" in refused.err and "team-a, team-b" in refused.err
    refused = fedcore("budget", "divide", "p", "--share", "team-a=0")
    assert refused.code == 2 and "the runs of share 'team-a' have spent" in refused.err
    public = ("train", "paper_histograms", "p", "--local", "--set", 'algorithm="algorithm2"', "--share", "team-a")
    refused = fedcore(*public)
    assert refused.code == 2 and "not private" in refused.err


def lose(place):
    """The ledger went back behind a run, and the population's witness is gone."""
    works(*SET, "--public-schema", "made up")
    with sqlite3.connect("ledger.sqlite") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    shutil.copy("ledger.sqlite", "copy")
    works(*TRAIN, "--run-id", "r")
    for left in Path().glob("ledger.sqlite-*"):
        left.unlink()
    shutil.copy("copy", "ledger.sqlite")
    (place.path / WITNESS).unlink()


def test_a_missing_witness_is_shown_loudly_and_refused_by_what_charges(place):
    lose(place)
    shown = works("budget", "show", "p")
    assert "WARNING: ledger-head.json of population 'p' is missing" in shown.err and "rho_left" in shown.out
    assert "is missing" in works("budget", "show", "p", "--json").json["warnings"][0]
    for command in (TRAIN, ("budget", "raise", "p", "--epsilon", "9", "--delta", "1e-6")):
        refused = fedcore(*command)
        assert refused.code == 2 and "LedgerRolledBack" in refused.err and "budget accept-loss" in refused.err


@pytest.mark.slow
def test_an_accepted_loss_is_shown_and_said_for_ever(place):
    lose(place)
    assert fedcore("budget", "accept-loss", "p").code == 2  # --because
    accepted = works("budget", "accept-loss", "p", "--because", "the disk died")
    assert "WARNING: Loss:" in accepted.err and "the disk died" in accepted.err
    works(*TRAIN, "--run-id", "s")
    statement = json.loads(Path("runs/s/statement.json").read_text())
    assert [loss["reason"] for loss in statement["losses"]] == ["the disk died"]
    assert "may be more than the ledger knows" in statement["text"]
    history = works("budget", "show", "p", "--json").json
    assert history["loss"]["reason"] == "the disk died" and len(history["history"][2]["seen"]) == 1
    again = fedcore("budget", "accept-loss", "p", "--because", "once more")
    assert again.code == 2 and "nothing is lost" in again.err


def test_the_page_of_a_population_says_both(place):
    lose(place)
    page = population_page("p", "runs")
    assert "made up" in page and "is missing" in page
    works("budget", "accept-loss", "p", "--because", "the disk died")
    page = population_page("p", "runs")
    assert "the disk died" in page and "is missing" not in page


# --- per client and calendar period ---------------------------------------------------------------------------------

VISITS = "user,when,token\n" + "".join(
    f"u{user},2025-{month:02d}-{day:02d},{(user + day) % 4}\n"
    for month in (1, 2, 3)
    for user in range(6)
    for day in (3, 9)
)
MONTHLY = ("--client", "user", "--period", "month", "--time", "when", "--zone", "Europe/Zurich", "--from", "2025-01")


@pytest.mark.slow
def test_a_budget_per_client_and_month(tmp_path, monkeypatch):
    """From a table to the statement, as docs/series.md says it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    (tmp_path / "visits.csv").write_text(VISITS)
    (tmp_path / "late.csv").write_text("user,when,token\nu1,2025-02-28,1\nu9,2025-04-01,2\n")
    made = ("population", "ingest", "visits.csv", "p", *MONTHLY, "--option", "features=4", "--nominal-clients", 1000)
    refused = fedcore(*made)
    assert refused.code == 2 and "A calendar is declared, and not taken from the data" in refused.err
    told = works(*made, "--through", "2025-03", "--json").json
    assert told["period"] == {"column": "when", "unit": "month", "zone": "Europe/Zurich"}
    assert [(one["period"], one["clients"]) for one in told["cohorts"]] == [(f"2025-0{n}", 6) for n in (1, 2, 3)]
    refused = fedcore(*SET, "--public-schema", "pages of a site")
    assert refused.code == 2 and "--unit client_period" in refused.err
    budget = (*SET, "--public-schema", "pages of a site", "--unit", "client_period", "--window", 2)
    shown = works(*budget, "--json").json
    assert shown["periods"] == {"unit": "month", "window": 2} and shown["unit"] == "client_period"
    assert [one["periods"] for one in shown["lifetime"]] == [12, 24, None] and shown["lifetime"][2]["epsilon"] == 0
    works(f"population ingest late.csv p --client user --append --through 2025-04 --nominal-clients {1000}")
    told = works("population", "open-cohort", "p", "--through", "2025-05", "--json").json
    assert [one["clients"] for one in told["cohorts"]] == [6, 6, 6, 1, 0]
    settings = ("--set", "clusters=2", "--set", "rounds=2", "--set", "horizon=2", "--set", "nominal_clients=1000")
    for asked in (("--horizon", "auto"), ("--runs", 3)):  # one does not send to the other
        refused = fedcore("budget", "plan", "p", *asked)
        assert refused.code == 2 and "Set the horizon to that number: runs a period, times the window" in refused.err
    works("train", "histograms", "p", "--local", *settings, "--cohorts", "3-4", "--run-id", "april")
    statement = json.loads((tmp_path / "runs" / "april" / "statement.json").read_text())
    assert "per client and month" in statement["text"] and statement["periods"]["first"] == "2025-01"
    assert "This run used months 2025-03 to 2025-04; others" in statement["text"]
    assert "A client active for 12 months: at most epsilon = " in statement["text"]
    text = works("budget", "show", "p").out
    assert "A client with data in several periods loses at most" in text and "every month, by the runs so far" in text
    assert "12 months" in text and "24 months" in text and "2025-03 to 2025-04" in text
    assert works("verify", "runs/april").code == 0
    page = population_page("p", "runs")
    assert "Each month of a client is promised epsilon = 4" in page and "A run reads at most 2 of them" in page
    assert "| 12 months |" in page and "Each client" not in page and "founders" not in page
    assert fedcore("budget", "set", "p", "--epsilon", 9, "--delta", "1e-6").code == 2
