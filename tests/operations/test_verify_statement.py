"""`fedcore verify-statement`: a true statement is right, and every kind of tampering is seen."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from fedcore.errors import ConfigError
from fedcore.evaluation.privacy_page import statement_in
from fedcore.operations.verify_statement import verify_statement
from fedcore.privacy.statement_check import read_statement
from tests.command import fedcore, private_population, works
from tests.conftest import small_counts

pytestmark = pytest.mark.slow  # the runs that it begins with
SETTINGS = ("--local", "--anyway", "--set", "rounds=2", "--set", "clusters=2")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(folder, a copy of it): two private runs of one population, one after the other, and the ledger before them."""
    folder = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("FEDCORE_LEDGER", f"sqlite:///{folder / 'ledger.sqlite'}")
        private_population(folder / "people", small_counts(60))
        shutil.copy("ledger.sqlite", "before.sqlite")
        for run, epsilon in (("one", 1.0), ("two", 2.0)):
            works("train", "histograms", "people", *SETTINGS, "--set", f"epsilon={epsilon}", "--run-id", run)
    return folder, shutil.copytree(folder, folder.parent / "kept")


@pytest.fixture
def place(made, monkeypatch):
    folder, kept = made
    shutil.rmtree(folder)
    shutil.copytree(kept, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{folder / 'ledger.sqlite'}")
    return folder


def statement(run="one") -> dict:
    return json.loads(Path(f"runs/{run}/statement.json").read_text())


def write(value: dict, anew: bool = False) -> str:
    """As the statement of run `one`. anew: with the text that its numbers give, as somebody careful would."""
    if anew:
        value = read_statement(json.dumps(value))[0].to_json()
    Path("runs/one/statement.json").write_text(json.dumps(value))
    return "runs/one/statement.json"


def sql(*statements):
    with sqlite3.connect("ledger.sqlite") as connection:
        for line in statements:
            assert connection.execute(line).rowcount > 0
    connection.close()


def wrong(file="runs/one/statement.json", **options) -> str:
    found = verify_statement(file, **options)
    assert found.verdict == "wrong" and found.problems
    return " ".join(found.problems)


# --- what is right ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["statement.json", "report.html"])
def test_a_true_statement_is_right_also_when_more_has_happened_since(place, file):
    told = works("verify-statement", f"runs/one/{file}", "--json").json
    assert told["verdict"] == "right" and told["problems"] == told["not_checked"] == []
    assert told["run"] == "one" and len(told["checked"]) == (6 if file == "statement.json" else 7)
    assert any("have spent epsilon" in line for line in told["since"]) and "differential privacy" in told["claims"]
    works("budget", "raise", "people", "--epsilon", "9", "--delta", "1e-6")
    assert any("was raised: epsilon = 9" in line for line in verify_statement(f"runs/one/{file}").since)
    said = works("verify-statement", f"runs/two/{file}").out
    assert said.startswith("The statement is right") and "Checked:" in said and "Wrong" not in said


def test_a_run_stands_for_its_statement(place):
    told = works("verify-statement", "runs/one", "--json").json
    assert told["verdict"] == "right" and told["run"] == "one" and len(told["checked"]) == 6
    assert "cannot read" in fedcore("verify-statement", "runs").err


def test_a_copy_is_compared_with_the_ledger_and_with_the_run_that_is_named(place):
    shutil.copy("runs/one/statement.json", "copy.json")
    found = verify_statement("copy.json")
    assert found.verdict == "not all checked" and any("Pass its run with --run" in line for line in found.not_checked)
    assert any("these charges, costs, totals" in line for line in found.checked)
    assert verify_statement("copy.json", run="runs/one").verdict == "right"
    assert fedcore("verify-statement", "copy.json").code == 3


@pytest.mark.parametrize("lost", ["ledger.sqlite", "people"])
def test_what_is_not_at_hand_is_told_and_is_not_right(place, lost, monkeypatch):
    shutil.move(lost, "elsewhere")
    if lost == "people":
        monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{place / 'none.sqlite'}")
    outcome = fedcore("verify-statement", "runs/one/report.html")
    assert outcome.code == 3 and outcome.out.startswith("Nothing wrong was found, but not everything")
    assert "Could not be checked" in outcome.out and "The ledger, and so whether these charges are all" in outcome.out


def test_a_run_without_privacy_promises_nothing_and_that_is_right(place):
    works("train", "paper_histograms", "people", "--local", "--set", "algorithm=fedavg", "--run-id", "open")
    for file in ("statement.json", "report.html"):
        assert verify_statement(f"runs/open/{file}").verdict == "right"
    write({**statement(), "private": True}, anew=True)
    shutil.copy("runs/one/statement.json", "runs/open/statement.json")
    assert "run.json says that the run has none" in wrong("runs/open/statement.json")


def test_a_statement_that_names_no_record_of_the_ledger_is_refused(place):
    value = {name: item for name, item in statement("one").items() if name != "ledger"}
    with pytest.raises(ConfigError, match="without the ledger record.*6fae4f3"):
        verify_statement(write(value))


# --- what was tampered with -------------------------------------------------------------------------------------------


def test_a_number_of_the_statement_changed(place):
    value = statement()
    said = wrong(write({**value, "epsilon": 0.5}))
    assert "epsilon: the statement says 0.5" in said and "by the ledger" in said and "Its text" in said
    releases = [{**entry, "noise_multiplier": 2 * entry["noise_multiplier"]} for entry in value["releases"]]
    assert "noise_multiplier: the statement says" in wrong(write({**value, "releases": releases}))


def test_a_careful_forgery_agrees_with_itself_and_not_with_the_ledger(place):
    """As if one release had not been: every number and the text follow from the others."""
    from fractions import Fraction

    from fedcore.privacy.accounting import make_budget, rounded_up
    from fedcore.privacy.gdp import mu_of

    value, budget = statement(), make_budget(8.0, 1e-6)
    releases = value["releases"][:-1]
    rho = rounded_up(sum((Fraction(entry["rho"]) for entry in releases), Fraction(0)))
    spent = {"rho_spent": rho, "epsilon_spent": budget.epsilon_of(rho)}
    forged = {**value, "releases": releases, "rho": rho, "mu": mu_of(rho), "epsilon": budget.epsilon_of(rho)}
    file = write({**forged, "population": {**value["population"], **spent}}, anew=True)
    assert verify_statement(file).problems and "Its numbers follow" in verify_statement(file).checked[0]
    assert "the ledger charged it, and the statement leaves it out" in wrong(file)


@pytest.mark.parametrize("anew", [False, True])
def test_another_budget_in_the_statement(place, anew):
    value = statement()
    promised = {**value["population"], "epsilon": 4.0}
    assert "population, epsilon: the statement says 4.0" in wrong(write({**value, "population": promised}, anew))


def test_the_text_changed_and_no_number(place):
    value = statement()
    assert "Its text is not what" in wrong(write({**value, "text": value["text"].replace("client", "record")}))
    assert "not_covered" in wrong(write({**value, "not_covered": value["not_covered"][1:]}, anew=True))


@pytest.mark.parametrize("also_its_id", [False, True])
def test_the_statement_of_another_run(place, also_its_id):
    value = statement("two")
    file = write({**value, "run": "one"}, anew=True) if also_its_id else write(value)
    assert ("It is the statement of run 'two'" in wrong(file)) != also_its_id
    if not also_its_id:
        shutil.copy("runs/two/report.html", "runs/one/report.html")
        assert "It is the statement of run 'two'" in wrong("runs/one/report.html")


def test_a_charge_missing_in_the_ledger(place):
    sql("DELETE FROM fedcore_records WHERE seq = (SELECT min(seq) FROM fedcore_records WHERE kind = 'charge')")
    assert "should stand here" in wrong()
    shutil.copy("runs/one/statement.json", "copy.json")
    assert "should stand here" in wrong("copy.json")


def test_a_charge_made_cheaper_and_a_budget_made_larger_in_the_ledger(place):
    sql("UPDATE fedcore_records SET payload = replace(payload, '\"rho\":0.0', '\"rho\":0.00') WHERE kind = 'charge'")
    assert "does not match its hash" in wrong()


def test_a_budget_made_larger_in_the_ledger(place):
    sql("UPDATE fedcore_accounts SET rho_max = 9")
    assert "the budget is" in wrong()


def test_an_older_ledger_in_its_place(place):
    for name in ("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"):
        Path(name).unlink(missing_ok=True)
    shutil.copy("before.sqlite", "ledger.sqlite")
    assert "does not contain record" in wrong()
    shutil.copy("runs/one/statement.json", "copy.json")
    assert "an older or another ledger was put in the ledger's place" in wrong("copy.json")


def test_a_record_that_the_ledger_never_had(place):
    value = statement()
    file = write({**value, "ledger": {**value["ledger"], "hash": "0" * 64}}, anew=True)
    assert "has no record" in wrong(file)


def test_the_plan_of_the_run_and_its_state_changed(place):
    info = json.loads(Path("runs/one/run.json").read_text())
    info["plan"][0]["noise_multiplier"] *= 2
    Path("runs/one/run.json").write_text(json.dumps(info))
    assert "run.json of run 'one' is not the one that its head names" in wrong()


def test_the_state_of_the_run_changed(place):
    newest = sorted(Path("runs/one/state").glob("*.zip"))[-1]
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    assert "it is not the file that was written" in wrong()


def test_the_words_of_the_report_changed(place):
    report = Path("runs/one/report.html")
    report.write_text(report.read_text().replace("of 100 times", "of 1000 times", 1))
    assert "The first page of the report is not what" in wrong(report)
    shutil.copy(report, "copy.html")
    assert any("The words of the page" in line for line in verify_statement("copy.html").not_checked)


def test_a_page_without_a_statement_and_other_files_are_refused(place):
    Path("page.html").write_text("<html></html>")
    for file, named in (("page.html", "a page without"), ("none.json", "cannot read"), ("runs/one/run.json", "is no")):
        outcome = fedcore("verify-statement", file)
        assert outcome.code == 2 and outcome.err.startswith("ConfigError") and named in outcome.err


def test_the_report_holds_the_statement(place):
    assert json.loads(statement_in(Path("runs/one/report.html").read_text())) == statement()
