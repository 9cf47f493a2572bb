"""Audits of the ledger by somebody who trusts none of its code: prices are added up again from the records alone, and
compared with other accountants.
"""

import json
import sqlite3
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from fedcore.errors import BudgetExceeded, FedcoreError, PrivacyError
from fedcore.population.ingest.ingest import ingest
from fedcore.population.store import Population
from fedcore.privacy.ledger.ledger import create_ledger, default_ledger_url, open_ledger
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run
from fedcore.training.session import abandon, concluding, resume
from tests import sessions
from tests.command import private_population
from tests.conftest import small_counts
from tests.digests import make as small_runs
from tests.digests.cases import CASES
from tests.sessions import to_end

SMALL = {"clusters": 2, "rounds": 2, "nominal_clients": 1000}
EPSILON, DELTA = 6.0, 1e-6


def begin(population, tmp_path, run_id, **settings):
    return sessions.begin(population, tmp_path, "histograms", {**SMALL, **settings}, run_id=run_id)


def records_of(population) -> list[dict]:
    """The chain as it lies in the database, read without fedcore."""
    path = default_ledger_url().removeprefix("sqlite:///")
    with sqlite3.connect(path) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(fedcore_records)")]
        query = "SELECT * FROM fedcore_records WHERE population_id = ? ORDER BY seq"
        rows = connection.execute(query, (population.id,))
        named = [dict(zip(columns, row, strict=True)) for row in rows]
    return [{**json.loads(row["payload"]), "kind": row["kind"], "run": row["run_id"]} for row in named]


def epsilon_by_hand(rho: float, delta: float) -> float:
    """Of the Gaussian mechanism with mu = sqrt(2 rho), exactly: Balle and Wang 2018, Theorem 8, in 60 digits."""
    with mpmath.workdps(60):
        mu = mpmath.sqrt(2 * mpmath.mpf(rho))

        def excess(epsilon):
            second = mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)
            return mpmath.log((mpmath.ncdf(mu / 2 - epsilon / mu) - second) / mpmath.mpf(delta))

        return float(mpmath.findroot(excess, (mpmath.mpf("1e-6"), mpmath.mpf(100)), solver="anderson", tol=1e-25))


def epsilon_by_others(charges, delta: float) -> tuple[float, float]:
    """(by privacy loss distributions, by Renyi divergences) of charged releases, by dp_accounting. The first rounds
    losses up to a grid; the second is an upper bound."""
    releases = ComposedDpEvent([GaussianDpEvent((2 * record["rho"]) ** -0.5) for record in charges])
    pld, rdp = (one().compose(releases).get_epsilon(delta) for one in (PLDAccountant, RdpAccountant))
    return pld, rdp


@pytest.mark.slow
def test_the_whole_life_of_a_population_adds_up(tmp_path):
    """Runs, an interrupted one that redraws, an abandoned one, appended clients, and a refusal at the end: the charges
    in the chain, added up in fractions, stay within what (epsilon, delta) allows by an independent conversion.
    """
    population, ledger = private_population(tmp_path / "p", small_counts(), epsilon=EPSILON, delta=DELTA)
    to_end(begin(population, tmp_path, "first", epsilon=2.0))
    session = begin(population, tmp_path, "broken", epsilon=1.0)
    draw = session.training.publisher.noise.draw
    session.training.publisher.noise.draw = lambda *arguments: (draw(*arguments), 1 / 0)  # drawn, and then a crash
    with pytest.raises(ZeroDivisionError), concluding(session):
        session.training.step()
    to_end(resume(tmp_path / "runs" / "broken", InProcessBackend()))
    session = begin(population, tmp_path, "given-up", epsilon=1.0)
    session.training.step()
    session.close()
    abandon(tmp_path / "runs" / "given-up")
    np.save(tmp_path / "ids.npy", np.arange(3))
    (tmp_path / "more.csv").write_text("client,token,count\nc1,2,1000000\nnew,3,5\n")
    grown = ingest(tmp_path / "more.csv", population.path, append=True)
    assert grown.id == population.id and grown.version == 2 and grown.n_clients == population.n_clients + 1
    to_end(begin(grown, tmp_path, "second-version", epsilon=3.0))
    with pytest.raises(BudgetExceeded):
        begin(grown, tmp_path, "too-much", epsilon=5.0)
    to_end(begin(grown, tmp_path, "the-rest"))

    records = records_of(population)
    charges = [record for record in records if record["kind"] == "charge"]
    spent = sum((Fraction(record["rho"]) for record in charges), Fraction(0))
    balance = ledger.verify(population.id)
    assert Fraction(balance.rho_spent) - spent < Fraction(1, 10**15) and Fraction(balance.rho_spent) >= spent
    assert balance.rho_reserved == 0
    assert balance.budget.delta_conv == DELTA
    assert epsilon_by_hand(float(spent), DELTA) <= EPSILON * (1 + 1e-12)
    pld, rdp = epsilon_by_others(charges, DELTA)
    assert pld == pytest.approx(epsilon_by_hand(float(spent), DELTA), rel=1e-3) and pld < rdp
    assert len([record for record in charges if record["run"] == "broken"]) == 5, "the lost draw stays paid"
    assert len([record for record in charges if record["run"] == "given-up"]) == 1, "only what was drawn is paid"
    assert not [record for record in records if record["run"] == "too-much"]
    published = [(record["run"], record["name"]) for record in records if record["kind"] == "publish"]
    assert len(published) == len(set(published)) == len(charges) - 1
    paid = [(record["run"], record["round"], record["name"]) for record in charges]
    for number, record in enumerate(records):
        if record["kind"] == "publish":
            before = [
                r
                for r in records[:number]
                if r["kind"] == "charge"
                and r["name"] == record["name"]
                and (r["run"], r["attempt"]) == (record["run"], record["attempt"])
            ]
            assert len(before) == 1, "every publication was charged before, once"
    assert len(paid) == len(set(paid)) + 1


def check_statement(run: Run, population) -> dict:
    """The statement of a run, whose epsilon other accountants find in the ledger's charges, all of this run."""
    statement = json.loads((run.path / "statement.json").read_text())
    charges = [record for record in records_of(population) if record["kind"] == "charge"]
    rho = sum(record["rho"] for record in charges)
    delta = open_ledger(default_ledger_url()).balance(population.id).budget.delta_conv
    assert charges and statement["rho"] == pytest.approx(rho, rel=1e-12)
    assert statement["epsilon"] == pytest.approx(epsilon_by_hand(rho, delta), rel=1e-9)
    pld, rdp = epsilon_by_others(charges, delta)
    assert pld == pytest.approx(statement["epsilon"], rel=1e-3) and statement["epsilon"] < rdp
    return statement


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 5.0])
def test_other_accountants_agree_with_the_charges_of_a_run(tmp_path, epsilon):
    """And the budget is used, not merely respected."""
    population, _ = private_population(tmp_path / "p", small_counts(), epsilon=epsilon, delta=DELTA)
    run = to_end(begin(population, tmp_path, "run", spare_releases=0))
    assert 0.999 * epsilon < check_statement(run, population)["epsilon"] <= epsilon


OF_EACH_METHOD = ("dictionaries/private", "federated_em/private-full", "private_gmm/diag", "private_mixture/clients")
OF_EACH_METHOD += ("histograms/private-replace-one", "profile/clients")


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_EACH_METHOD)
def test_other_accountants_agree_with_the_charges_of_every_method(tmp_path, name, monkeypatch):
    """With noise that protects: runs of test noise state no guarantee."""
    monkeypatch.setattr(small_runs, "KEY", None)
    monkeypatch.setattr(small_runs, "create_ledger", lambda url, test: create_ledger(url))
    case = CASES[name]
    if case.method == "profile":  # too much noise for so few clients, which changes no account
        case = replace(case, settings={**case.settings, "anyway": True})
    people = small_runs.POPULATIONS[case.population]()
    population = small_runs._population(tmp_path / "p", people, case)
    check_statement(small_runs._run(case, population, tmp_path, "run"), population)


def test_no_data_are_opened_before_the_plan_is_reserved(tmp_path, monkeypatch):
    population, ledger = private_population(tmp_path / "p", small_counts(), epsilon=1.0)
    read, seen = Population.read, []

    def watched(self, index, *arguments, **options):
        seen.append(ledger.run_status("run"))
        return read(self, index, *arguments, **options)

    monkeypatch.setattr(Population, "read", watched)
    with pytest.raises(BudgetExceeded):
        begin(population, tmp_path, "run", epsilon=2.0)
    assert seen == []
    session = begin(population, tmp_path, "run")
    assert seen == []
    to_end(session)
    assert seen and set(seen) == {"open"}


def test_a_budget_for_replacement_is_not_spent_at_the_price_of_presence(tmp_path):
    """Refused; or planned for replacement, and then with the sensitivity that replacement has."""
    ledger = create_ledger(default_ledger_url())
    population, _ = private_population(tmp_path / "p", small_counts(), epsilon=None)
    ledger.set_budget(population.id, EPSILON, DELTA, relation="replace_one")
    try:
        session = begin(population, tmp_path, "run")
    except PrivacyError as refusal:
        assert "replace_one" in str(refusal)
        assert not [record for record in records_of(population) if record["kind"] == "reserve"]
        return
    session.close()
    (reserved,) = [record for record in records_of(population) if record["kind"] == "reserve"]
    assert reserved["relation"] == "replace_one"
    assert all(item["sensitivity"] ** 2 >= 2 * 2**32 for item in reserved["plan"] if item["name"] == "flat_mean")


def test_nothing_is_refunded_because_a_result_was_looked_at(tmp_path):
    """After all rounds, and before the end, the run is given up: everything that was published stays paid."""
    population, ledger = private_population(tmp_path / "p", small_counts(), epsilon=EPSILON, delta=DELTA)
    session = begin(population, tmp_path, "run", epsilon=2.0)
    while session.training.step() is not None:
        pass
    session.close()
    before = ledger.balance(population.id).rho_spent
    abandon(tmp_path / "runs" / "run")
    assert ledger.balance(population.id).rho_spent == before > 0
    with pytest.raises(FedcoreError):
        resume(tmp_path / "runs" / "run", InProcessBackend())
    assert Run.open(tmp_path / "runs" / "run").status == "abandoned"
