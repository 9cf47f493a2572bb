"""docs/verify/replay.py, which an auditor runs without fedcore: it finds what the ledger's own replay finds."""

import importlib.util
import json
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedcore.privacy.ledger.balances import SpentBefore
from fedcore.privacy.ledger.chain import GENESIS, link
from fedcore.privacy.noise_shares import Terms, charged
from fedcore.privacy.statement import private_statement
from tests.privacy.accounts import begin, costing, divide, edit, forged, rho_max, spend, took, with_periods
from tests.privacy.conftest import open_books, release
from tests.privacy.test_ledger_schema import sql
from tests.privacy.test_redraws import filled, optional

SCRIPT = Path(__file__).parents[2] / "docs" / "verify" / "replay.py"
VALUE = np.array([1, -2, 3])


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("replay_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lost_draws(url):
    """A spare pays for one lost draw, the rest of the budget for two more; another run is abandoned."""
    books = open_books(url)
    lease = books.ledger.acquire(books.reserve([release(), release(2)], spares=1))
    for _ in range(4):
        charge = books.ledger.charge(lease, release())
    books.ledger.publish(lease, charge, VALUE)
    books.ledger.finish(lease, "abandoned")
    spend(books, [release(sigma=200.0, delta=1e-12)])
    return books


def given_up(url):
    """Its last rounds pay for the draw that was lost; the run goes on."""
    books = open_books(url)
    run, lease = filled(books, release(), optional(2), optional(3))
    for _ in range(2):
        charge = books.ledger.charge(lease, release())
    books.ledger.publish(lease, charge, VALUE)
    return books


def by_cohort(url):
    books = open_books(url)
    begin(books)
    spend(books, [release()], cohorts=took((2, 4), of=5))
    lease = books.ledger.acquire(books.reserve([release()], cohorts=took((2, 2), of=5)))
    books.ledger.charge(lease, release())
    return books


def by_period(url):
    books = with_periods(url)
    for last in (2, 3, 4):
        spend(books, [costing(rho_max(books) / 8)], cohorts=took((last - 1, last), of=5), unit="client_period")
    return books


def of_shares(url):
    """A starting charge, a raised budget, shares."""
    books = open_books(url, epsilon=None)
    books.ledger.set_budget(books.population, 2.0, 1e-10, spent_before=SpentBefore(0.001, "pilot"))
    books.ledger.raise_budget(books.population, 3.0, 1e-10)
    divide(books, a=".5")
    spend(books, [release()], share="a")
    spend(books, [release()])
    return books


def of_several_sites(url):
    """Noise in shares: of one run against 1 of 3 sites, of another one against 4 of 5."""
    books = open_books(url)
    for sites, collusion in ((3, 1), (5, 4)):
        terms = Terms(sites, collusion, "5" * 64)
        spend(books, [charged(release(sigma=90.0), terms), charged(release(2, 90.0), terms)])
    return books


HISTORIES = (lost_draws, given_up, by_cohort, by_period, of_shares, of_several_sites)


@pytest.mark.parametrize("history", HISTORIES)
def test_the_script_adds_up_what_the_ledger_does(script, url, history):
    books = history(url)
    account = script.replay(script.reader(url), books.population)
    assert account.wrong == []
    whole = books.ledger.account(books.population)
    for cohort, total in account.sums.items():
        assert (total["rho"], total["rho held"], total["delta"], total["delta held"]) == whole.totals(cohort)
    assert account.most > 0 and max(account.sums) <= whole.last_cohort


def stated(books) -> dict:
    """The statement of the last run that published something."""
    runs = [row["run_id"] for row in books.ledger.history(books.population) if row["kind"] == "publish"]
    return json.loads(json.dumps(private_statement(books.ledger, books.population, runs[-1]).to_json()))


@pytest.mark.parametrize("history", HISTORIES)
def test_a_statement_follows_from_the_records_up_to_its_own(script, tmp_path, history):
    """Run as an auditor does: no installed package is within reach."""
    books = history(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    statement, file = stated(books), tmp_path / "statement.json"
    if history is not given_up:  # there nothing is left that could pay
        spend(books, [release(sigma=400.0)], **later(history))
    file.write_text(json.dumps(statement))
    command = [sys.executable, "-I", "-S", SCRIPT, tmp_path / "ledger.sqlite", "--statement", file]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1], done.stderr) == (0, "Everything agrees.", "")


def later(history) -> dict:
    if history is by_cohort:
        return {"cohorts": took((5, 5), of=5)}
    return {"cohorts": took((5, 5), of=5), "unit": "client_period"} if history is by_period else {}


def rehashed(books, change):
    """The chain as somebody writes it anew who can write the database: change(kind, payload) or None to drop one."""
    path = books.url.removeprefix("sqlite:///")
    rows = sql(path, "SELECT kind, run_id, payload FROM fedcore_records ORDER BY seq")
    before, made = GENESIS, []
    for kind, run, payload in rows:
        if (changed := change(kind, json.loads(payload))) is not None:
            made.append(link(books.ledger.id, books.population, len(made) + 1, kind, run, changed, before))
            before = made[-1].hash
    edit(books, "DELETE FROM fedcore_records")
    with sqlite3.connect(path) as connection:
        for one in made:
            values = (books.population, one.seq, one.kind, one.run_id, one.payload, one.prev_hash, one.hash)
            connection.execute("INSERT INTO fedcore_records VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        connection.execute("UPDATE fedcore_accounts SET seq = ?, hash = ?", (made[-1].seq, made[-1].hash))


def cheaper(kind, payload):
    for item in payload.get("plan", [payload] if kind == "charge" else []):
        item["rho"] /= 2
    return payload


FORGERIES = {
    "an edited price": (
        lambda b: edit(b, "UPDATE fedcore_records SET payload = replace(payload, 'rho', 'rh0') WHERE kind = 'charge'"),
        "the chain is broken",
    ),
    "a removed record": (lambda b: edit(b, "DELETE FROM fedcore_records WHERE kind = 'finish'"), "chain"),
    "another array": (lambda b: edit(b, "UPDATE fedcore_published SET data = zeroblob(24)"), "published arrays"),
    "no array": (lambda b: edit(b, "DELETE FROM fedcore_published"), "published arrays"),
    "another end": (lambda b: edit(b, "UPDATE fedcore_accounts SET seq = seq - 1"), "does not end"),
    "half the price": (lambda b: rehashed(b, cheaper), "less than its noise costs"),
    "a charge left out": (
        lambda b: rehashed(b, lambda kind, payload: None if kind == "charge" else payload),
        "becomes published without being charged",
    ),
    "a larger budget": (
        lambda b: forged(b, "budget raise", {"budget": {**budget_of(b), "rho_max": 9.0}}),
        "more than (epsilon, delta) allow",
    ),
    "a smaller budget": (lambda b: forged(b, "budget raise", {"budget": {**budget_of(b), "rho_max": 1e-9}}), "lowered"),
    "an unknown kind": (lambda b: forged(b, "refund", {}), "unknown"),
}


def budget_of(books) -> dict:
    return books.ledger.balance(books.population).budget.numbers()


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_ledger_is_found(script, file_books, name):
    spend(file_books, [release(), release(2)])
    forge, said = FORGERIES[name]
    assert script.main(file_books.url) == 0
    forge(file_books)
    wrong = script.replay(script.reader(file_books.url), file_books.population).wrong
    assert any(said in sentence for sentence in wrong), wrong
    assert script.main(file_books.url) == 2


def test_spending_before_a_budget_is_found(script, file_books):
    rehashed(file_books, lambda kind, payload: None if kind.startswith("budget") else payload)
    forged(file_books, "spent before", {"rho": 0.1})
    assert script.main(file_books.url) == 2


def test_spending_beyond_the_budget_is_found(script, file_books):
    """Two runs that fit alone; whoever writes the database lets both reserve."""
    spend(file_books, [costing(rho_max(file_books) * 2 / 3)])
    second = replace(costing(rho_max(file_books) / 2), name="more")
    payload = {"plan": [second.to_json()], "spares": 0, "spare_rho": second.rho, "spare_delta": 0.0}
    forged(file_books, "reserve", payload, run="second")
    assert (
        "what is spent and reserved exceeds rho_max"
        in script.replay(script.reader(file_books.url), file_books.population).wrong
    )


SHARES = {
    "a smaller share": lambda payload, one: one["noise_share"].update(scale=one["noise_share"]["scale"] / 1.5),
    "a share below 64 grid units": lambda payload, one: one["noise_share"].update(scale=63.0),
    "fewer that collude": lambda payload, one: one["noise_share"].update(sites=2),
    "more of the noise unknown": lambda payload, one: one.update(noise_multiplier=200.0),
    "a share of more noise": lambda payload, one: one["noise_share"].update(total=1e9),
    "no share": lambda payload, one: one.pop("noise_share"),
    "no law of its own": lambda payload, one: payload.update(noise="rounded gaussian 1"),
}


@pytest.mark.parametrize("name", SHARES)
def test_a_forged_share_of_the_noise_is_found(script, file_books, name):
    spend(file_books, [charged(release(), Terms(3, 1, "5" * 64))])
    assert script.main(file_books.url) == 0

    def forge(kind, payload):
        if kind == "reserve":
            SHARES[name](payload, payload["plan"][0])
        return payload

    rehashed(file_books, forge)
    wrong = script.replay(script.reader(file_books.url), file_books.population).wrong
    assert any("less than its noise costs" in sentence for sentence in wrong), wrong


def test_a_charge_of_another_share_than_reserved_is_found(script, file_books):
    spend(file_books, [charged(release(), Terms(3, 1, "5" * 64))])

    def forge(kind, payload):
        return payload | {"noise_share": payload["noise_share"] | {"scale": 1e6}} if kind == "charge" else payload

    rehashed(file_books, forge)
    wrong = script.replay(script.reader(file_books.url), file_books.population).wrong
    assert any("other noise than planned" in sentence for sentence in wrong), wrong


@pytest.mark.parametrize("lie", [{"epsilon": 0.01}, None])
def test_the_cost_if_all_other_sites_collude_is_checked(script, file_books, tmp_path, lie):
    spend(file_books, [charged(release(), Terms(3, 1, "5" * 64))])
    statement, file = stated(file_books), tmp_path / "statement.json"
    file.write_text(json.dumps(statement))
    assert script.main(file_books.url, file) == 0
    epsilon = statement["epsilon"] if lie is None else lie["epsilon"]
    file.write_text(json.dumps(statement | {"sites": statement["sites"] | {"epsilon": epsilon}}))
    assert script.main(file_books.url, file) == 2


LIES = {
    "a lower rho": lambda s: s | {"rho": s["rho"] / 2},
    "a higher rho": lambda s: s | {"rho": s["rho"] * 1.0000001},
    "a lower epsilon": lambda s: s | {"epsilon": s["epsilon"] * 0.999},
    "a lower delta": lambda s: s | {"delta": s["delta"] / 2},
    "another record": lambda s: s | {"ledger": s["ledger"] | {"hash": "0" * 64}},
    "an older record": lambda s: s | {"ledger": s["ledger"] | {"seq": s["ledger"]["seq"] - 1}},
    "a release less": lambda s: s | {"releases": s["releases"][1:]},
    "one draw more": lambda s: s | {"releases": [s["releases"][0] | {"attempts": 2}, *s["releases"][1:]]},
    "another run": lambda s: s | {"run": "nobody"},
    "less of the budget spent": lambda s: (
        s | {"population": s["population"] | {"rho_spent": 0.0, "epsilon_spent": 0.0}}
    ),
    "a larger budget": lambda s: s | {"population": s["population"] | {"rho_max": 9.0}},
}


@pytest.mark.parametrize("name", LIES)
def test_a_statement_that_says_something_else_is_found(script, file_books, tmp_path, name):
    spend(file_books, [release(), release(2)])
    file = tmp_path / "statement.json"
    file.write_text(json.dumps(LIES[name](stated(file_books))))
    assert script.main(file_books.url, file) == 2
    file.write_text(json.dumps(stated(file_books)))
    assert script.main(file_books.url, file) == 0


def test_the_script_is_short_and_imports_nothing_of_ours():
    text = SCRIPT.read_text()
    assert text.count("\n") <= 200 and "import fedcore" not in text and "from fedcore" not in text
