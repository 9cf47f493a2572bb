"""What a horizon buys: the number of runs that suits the newcomers, and what `fedcore budget plan --horizon` says."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import BudgetMissing, ConfigError
from fedcore.planning.budget_plan import planned_method
from fedcore.planning.horizon import best_horizon, declared_arrivals, horizon_plan, share_able
from fedcore.population.cohorts import Cohort
from fedcore.privacy.accounting import exact_sum
from fedcore.training.budget import begin_cohorts
from tests import sessions
from tests.command import fedcore, private_population, works
from tests.conftest import small_counts


def signal_to_noise(arrivals: float, horizon: int) -> float:
    return share_able(arrivals, horizon) / math.sqrt(horizon)


@given(st.floats(0.002, 0.3))
def test_the_best_horizon_is_the_best(arrivals):
    """Up to how flat it is: the rule is that of small shares."""
    best = max(range(1, 2000), key=lambda horizon: signal_to_noise(arrivals, horizon))
    assert signal_to_noise(arrivals, best_horizon(arrivals)) >= 0.97 * signal_to_noise(arrivals, best)


def test_the_worked_case():
    """Newcomers of 3 %: 42 runs, and 72 % of the clients can pay; from 25 to 69 runs are nearly as good."""
    assert best_horizon(0.03) == 42
    assert share_able(0.03, 42) == pytest.approx(0.72, abs=0.005)
    for horizon in (25, 69):
        assert signal_to_noise(0.03, horizon) >= 0.945 * signal_to_noise(0.03, 42)


def cohorts(*nominal):
    made = [Cohort(number=n, token=f"{n:032x}", nominal=k, opened="2026-01-01") for n, k in enumerate(nominal, 1)]
    return SimpleNamespace(cohorts=tuple(made))


def test_arrivals_from_declared_sizes():
    found = declared_arrivals(cohorts(970, 30, 0, 1000))
    assert found.share == pytest.approx((0.03 + 0 + 0.5) / 3) and found.source == "declared sizes of cohorts 2 to 4"
    assert declared_arrivals(cohorts(1000, *[10] * 60)).source == "declared sizes of cohorts 36 to 61"
    for unknown in ((), (1000,), (1000, None), (1000, 0)):
        assert declared_arrivals(cohorts(*unknown)) is None


@pytest.fixture
def place(tmp_path):
    return private_population(tmp_path / "p", small_counts(), epsilon=4.0, nominal=20_000)


def said(place, horizon=None, arrivals=0.03, beside=(), **settings):
    population, ledger = place
    method = planned_method("histograms", {"clusters": 4, "rounds": 2, **settings}, population)
    return horizon_plan(method, population, ledger.balance(population.id), horizon, arrivals, beside)


def test_what_a_run_of_the_horizon_may_spend(place):
    found = said(place)
    budget = place[1].balance(place[0].id).budget
    assert found["horizon"] == 42 and found["able_clients"] == round(20_000 * found["able_share"])
    assert 42 * Fraction(found["rho_per_run"]) <= Fraction(budget.rho_max) < 43 * Fraction(found["rho_per_run"])
    assert budget.rho_of(found["epsilon_per_run"]) <= found["rho_per_run"]
    assert found["runs_of_the_founders"] == found["runs_until_a_cohort_retires"] == 42
    assert found["without_arrivals"] == "refused after 42 runs" and found["arrivals_from"] == "as given"
    losses = [found["runs"][number]["loss_nats"] for number in ("1", "10", "42")]
    assert losses[0] > losses[1] > losses[2], "runs that learn from each other"


def test_spares_are_set_aside_in_every_run(place):
    none, two = said(place, 10), said(place, 10, spare_releases=2)
    assert two["epsilon_per_run"] < none["epsilon_per_run"] and two["runs_until_a_cohort_retires"] >= 10


def test_schedules_beside_it_share_the_cohorts(place):
    alone = said(place, 20)
    both = said(place, 20, beside=[("other", alone["rho_per_run"])])
    assert both["runs_until_a_cohort_retires"] == both["runs_of_the_founders"] == 10
    assert both["other_schedules"] == {"other": alone["rho_per_run"]} and "after 10 runs" in both["without_arrivals"]


def test_what_was_spent_is_missing(place):
    population, ledger = place
    sessions.train(population, population.path.parent, settings={"epsilon": 2.0, "clusters": 2, "rounds": 2})
    found, balance = said(place, 20), ledger.balance(population.id)
    price = exact_sum([found["rho_per_run"]])
    assert found["runs_of_the_founders"] == int(Fraction(balance.rho_left) // price) < 20
    assert found["runs_until_a_cohort_retires"] == 20


def test_what_cannot_be_planned(place, tmp_path):
    with pytest.raises(ConfigError, match="do not show how many clients come"):
        said(place, arrivals=None)
    for arrivals in (0.0, 1.0, -0.1):
        with pytest.raises(ConfigError, match="between 0 and 1"):
            said(place, arrivals=arrivals)
    with pytest.raises(ConfigError, match="1 to 10000"):
        said(place, 0)
    with pytest.raises(BudgetMissing):
        said(private_population(tmp_path / "q", small_counts(), epsilon=None))
    undeclared = private_population(tmp_path / "r", small_counts(), nominal=None)
    with pytest.raises(ConfigError, match="no declared size"):
        said(undeclared)


def test_the_command(place, tmp_path):
    population, ledger = place
    before = ledger.head(population.id)
    plan = ("budget", "plan", population.path, "--set", "clusters=4", "--set", "rounds=2")
    found = works(*plan, "--horizon", "auto", "--arrivals", 0.03, "--json").json
    assert found["horizon"] == 42 and list(found["runs"]) == ["1", "10", "42"]
    text = works(*plan, "--horizon", 12, "--arrivals", 0.03).out
    assert "refused after 12 runs" in text and "able_share" in text
    file = tmp_path / "schedules.toml"
    entry = '[[deployment]]\nname = "{}"\nmethod = "{}histograms"\npopulation = "p"\n[deployment.config]\n{}\n'
    file.write_text(entry.format("a", "", "horizon = 12") + entry.format("b", "paper_", 'algorithm = "fedavg"'))
    shared = works(*plan, "--horizon", 12, "--arrivals", 0.03, "--beside", file, "--json").json
    assert list(shared["other_schedules"]) == ["a"] and shared["runs_until_a_cohort_retires"] == 6
    begun = begin_cohorts(population, ledger)
    refused = fedcore("budget", "plan", begun.path, "--runs", 3)
    assert refused.code == 2 and "Use --horizon auto instead of --runs" in refused.err
    before = ledger.head(population.id)
    for wrong in (
        (),
        ("--runs", 3, "--horizon", 3),
        ("--runs", 3, "--arrivals", 0.1),
        ("--horizon", "x"),
        ("--horizon", "3", "--epsilon", 1),
    ):
        assert fedcore(*plan, *wrong).code == 2
    assert ledger.head(population.id) == before, "nothing is reserved"
