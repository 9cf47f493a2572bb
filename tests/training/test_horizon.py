"""What a cohort pays for: shares of a horizon, and who can pay."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedcore.errors import BudgetExceeded, ConfigError, Waiting
from fedcore.methods.registry import make_method
from fedcore.population.cohorts import Cohort
from fedcore.privacy.accounting import exact_sum, make_budget, rounded_down, rounded_up
from fedcore.rounds.method import PublicFacts
from fedcore.rounds.private_settings import CohortRule, cohort_rule
from fedcore.storage.ranges import ranges_of
from fedcore.training.budget import fit_plan, plan_within_budget
from fedcore.training.cohorts import CohortAccount, Cost, able, cohort_accounts, cost_of
from tests.toy import Toy, ToyConfig

SIZES = {"clusters": 2, "rounds": 2, "overseed": 2}
BUDGET = make_budget(4.0, 1e-6)


def facts(rho: float) -> PublicFacts:
    return PublicFacts("counts", 30, 64, 1000, None, rho, 0)


def price(plan) -> Fraction:
    return exact_sum(planned.rho for planned in plan)


def spare(plan) -> Fraction:
    return Fraction(max(planned.rho for planned in plan))


# --- the share of a horizon -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spares", [0, 1, 3])
def test_so_many_runs_fit_exactly_and_one_more_does_not(spares):
    """In floats rho_max / H, H times, exceeds rho_max for many of these horizons: the last run would be lost."""
    limit, lost = Fraction(BUDGET.rho_max), 0
    for runs in range(1, 301):
        method = Toy(ToyConfig(private=True, spare_releases=spares))
        plan, _ = fit_plan(method, facts, BUDGET.rho_max, runs)
        assert runs * price(plan) + spares * spare(plan) <= limit
        assert (runs + 1) * price(plan) > limit * Fraction(1 + 1e-9) - spares * spare(plan)
        lost += runs * (Fraction(BUDGET.rho_max / runs)) > limit
    assert lost > 100


@settings(max_examples=25, deadline=None)
@given(st.floats(0.05, 40.0), st.integers(1, 300), st.integers(0, 3), st.sampled_from([{}, SIZES]))
def test_so_many_runs_of_histograms_fit(epsilon, runs, spares, sizes):
    budget = make_budget(epsilon, 1e-6)
    method = make_method("histograms", {"spare_releases": spares, **sizes})
    try:
        plan, _ = fit_plan(method, facts, budget.rho_max, runs)
    except ConfigError:
        return  # noise as wide as no sum is
    whole = runs * price(plan) + spares * spare(plan)
    assert whole <= Fraction(budget.rho_max)
    if sizes:
        assert whole >= Fraction(budget.rho_max) * Fraction(1 - 1e-6)


def test_one_run_is_planned_as_without_a_horizon():
    method = Toy(ToyConfig(private=True, spare_releases=2))
    assert fit_plan(method, facts, 0.3, 1) == fit_plan(method, facts, 0.3)


@pytest.mark.parametrize("name", ["histograms", "private_gmm", "private_mixture", "federated_em", "dictionaries"])
def test_settings_of_every_private_method(name):
    private = {"algorithm": "private"} if name == "federated_em" else {}
    rule = cohort_rule(make_method(name, private).private_settings)
    assert rule == CohortRule() and rule.asked is None
    given = private | {"horizon": 42, "at_least": 5000, "recent_cohorts": 7, "cohorts": "1-27,30"}
    assert cohort_rule(make_method(name, given).private_settings) == CohortRule(42, 5000, 7, ((1, 27), (30, 30)))
    with pytest.raises(ConfigError, match="horizon and epsilon exclude each other"):
        make_method(name, private | {"horizon": 42, "epsilon": 1.0})
    for wrong in ({"horizon": 0}, {"at_least": 0}, {"recent_cohorts": 0}, {"cohorts": "0-3"}, {"cohorts": "all"}):
        with pytest.raises(ConfigError):
            make_method(name, private | wrong)


def test_a_method_without_these_settings_takes_all_who_can_pay():
    assert cohort_rule(SimpleNamespace(epsilon=1.0)) == CohortRule()


# --- who takes part ---------------------------------------------------------------------------------------------------


class Paper:
    """A population and its ledger for planning only: what each cohort has spent, in Fractions."""

    def __init__(self, nominal, budget=BUDGET, known=None):
        self.spent = [Fraction(0)] * len(nominal)
        self.nominal, self.budget, self.known = list(nominal), budget, known

    def open(self, nominal) -> None:
        self.nominal.append(nominal)
        self.spent.append(Fraction(0))

    @property
    def population(self):
        cohorts = tuple(
            Cohort(number=i + 1, token=f"{i:032x}", nominal=nominal, opened="2026-01-01")
            for i, nominal in enumerate(self.nominal)
        )
        manifest = SimpleNamespace(
            nominal_clients=None, cohorts=cohorts, period=None, halves=None, records=False, one_whole=False, image=None
        )
        return SimpleNamespace(
            path=Path("p"), id="p", kind="counts", features=30, clients_per_leaf=64, n_clients=0, manifest=manifest
        )

    def balance(self):
        segments = tuple(
            SimpleNamespace(
                first=i + 1,
                last=i + 1,
                exact_left=(Fraction(self.budget.rho_max) - spent, Fraction(self.budget.delta_extra)),
            )
            for i, spent in enumerate(self.spent[: self.known])
        )
        balance = SimpleNamespace(
            budget=self.budget,
            required_budget=lambda: self.budget,
            unit="client",
            relation="add_or_remove_one",
            segments=segments,
            periods=None,
            whose="",
        )
        balance.of_share = {None: balance}.__getitem__
        return balance

    def plan(self, **given):
        return plan_within_budget(make_method("histograms", {**SIZES, **given}), self.population, self.balance(), 0)

    def pay(self, plan, taking_part) -> None:
        for i in range(len(self.spent)):
            if taking_part.holds(i + 1):
                self.spent[i] += price(plan)


def chosen(made) -> tuple:
    return made[2].ranges


@pytest.mark.parametrize("spares", [0, 2])
@pytest.mark.parametrize("horizon", [1, 3, 7, 26])
def test_every_cohort_pays_for_exactly_its_horizon(horizon, spares):
    paper = Paper([1000])
    paid = [0]
    for week in range(40):
        plan, public, taking_part = paper.plan(horizon=horizon, spare_releases=spares)
        assert public.nominal_clients == 1000 * sum(taking_part.holds(n + 1) for n in range(len(paid)))
        paper.pay(plan, taking_part)
        for i in range(len(paid)):
            paid[i] += taking_part.holds(i + 1)
        assert all(spent <= Fraction(BUDGET.rho_max) for spent in paper.spent)
        assert paid == [min(horizon, week + 1 - i) for i in range(len(paid))], "the oldest retire, in order"
        paper.open(1000)
        paid.append(0)


def test_without_newcomers_it_waits_after_the_horizon():
    paper = Paper([1000, 500])
    for _ in range(5):
        plan, _, taking_part = paper.plan(horizon=5)
        paper.pay(plan, taking_part)
    with pytest.raises(Waiting, match="now none can. Nothing was charged. The next cohort .* without new clients"):
        paper.plan(horizon=5)
    paper.open(200)
    waits = "until cohorts with 1,000 declared clients can be charged: now 200 declared clients can"
    with pytest.raises(Waiting, match=waits):
        paper.plan(horizon=5, at_least=1000)
    assert chosen(paper.plan(horizon=5, at_least=200)) == ((3, 3),)


def test_as_much_as_a_share_is_left_is_enough():
    """The boundary: a cohort that has exactly the cost left takes part."""
    paper = Paper([100, 100])
    share = BUDGET.rho_of(1.0)
    paper.spent = [Fraction(BUDGET.rho_max) - Fraction(share), Fraction(BUDGET.rho_max) - Fraction(share) * 999 / 1000]
    assert chosen(paper.plan(epsilon=1.0)) == ((1, 1),)


def test_delta_has_to_be_left_too():
    """Thresholding steps cost delta."""
    extra = Fraction(1e-8)
    accounts = [CohortAccount(1, 100, Fraction(1), extra), CohortAccount(2, 100, Fraction(1), extra * 9 / 10)]
    half = Fraction(1, 2)
    assert able(accounts, Cost(half, extra)) == accounts[:1] and able(accounts, Cost(half, Fraction(0))) == accounts


def test_without_a_share_it_takes_what_all_who_are_not_used_up_have_left():
    paper = Paper([100] * 3)
    paper.spent = [Fraction(BUDGET.rho_max) * Fraction(1 - 1e-9), Fraction(BUDGET.rho_max) / 2, Fraction(0)]
    plan, _, taking_part = paper.plan()
    assert taking_part.ranges == ((2, 3),)
    assert Fraction(BUDGET.rho_max) / 2 >= price(plan) >= Fraction(BUDGET.rho_max) * Fraction(0.4999999)
    paper.pay(plan, taking_part)
    assert chosen(paper.plan()) == ((3, 3),)


def test_cohorts_that_the_ledger_has_not_heard_of_have_spent_nothing():
    paper = Paper([100] * 4, known=2)
    paper.spent[:2] = [Fraction(BUDGET.rho_max)] * 2
    assert chosen(paper.plan(horizon=3)) == ((3, 4),)


def test_sizes_that_nobody_declared():
    paper = Paper([100, None])
    with pytest.raises(ConfigError, match="and cohorts 2 have none"):
        paper.plan(horizon=3, at_least=50)
    _, public, _ = paper.plan(horizon=3, nominal_clients=77)
    assert public.nominal_clients == 77
    with pytest.raises(ConfigError, match="cohorts 2 have none.*at every append"):
        paper.plan(horizon=3)


def test_more_than_the_whole_budget_is_never_waited_for():
    with pytest.raises(BudgetExceeded, match="more than the whole budget of a client") as refused:
        Paper([100]).plan(epsilon=4.1)
    assert not isinstance(refused.value, Waiting)


def test_a_population_without_cohorts_refuses_to_be_asked_for_them():
    paper = Paper([100])
    population = paper.population
    population.manifest = SimpleNamespace(
        nominal_clients=100, cohorts=(), period=None, halves=None, records=False, one_whole=False, image=None
    )
    for asked in ({"horizon": 3}, {"at_least": 3}, {"recent_cohorts": 2}, {"cohorts": "1"}):
        with pytest.raises(ConfigError, match=rf"one budget for all.*{next(iter(asked))}.*fedcore budget cohorts"):
            plan_within_budget(make_method("histograms", {**SIZES, **asked}), population, paper.balance(), 0)


ALMOST_ALL = math.nextafter(1.0, 0.0)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.integers(1, 40), st.integers(0, 2))
@example([0.0, 2.2250738585e-313], 1, 1)  # the second cohort has less than a whole share left, and can pay the plan
@example([2.2250738585e-313], 1, 0)  # without spares too: what is left lies between two floats
@example([0.0, ALMOST_ALL, 1.0], 40, 2)
def test_those_who_take_part_are_those_who_can_pay_all_of_it(spent, horizon, spares):
    """Exactly those for which the ledger would accept the reservation: spent + cost <= rho_max, in fractions."""
    paper, limit = Paper([100] * len(spent)), Fraction(BUDGET.rho_max)
    paper.spent = [limit * Fraction(share) for share in spent]
    try:
        plan, _, taking_part = paper.plan(horizon=horizon, spare_releases=spares)
    except Waiting:
        plan, _, taking_part = Paper([100]).plan(horizon=horizon, spare_releases=spares)
        assert all(s + price(plan) + spares * spare(plan) > limit for s in paper.spent)
        return
    whole = price(plan) + spares * spare(plan)
    can = [number for number, s in enumerate(paper.spent, 1) if s + whole <= limit]
    assert taking_part.ranges == ranges_of(can)


def test_a_cohort_pays_where_what_is_left_and_the_cost_lie_between_the_same_floats():
    """The ledger compares fractions. Rounded, what is left would be less than the cost."""
    left, cost = Fraction(1) - Fraction(1, 2**60), Fraction(1) - Fraction(1, 2**59)
    assert rounded_down(left) < rounded_up(cost)
    paper = Paper([100])
    paper.spent = [Fraction(BUDGET.rho_max) - left]
    (account,) = cohort_accounts(paper.population.manifest, paper.balance())
    assert able([account], Cost(cost, Fraction(0))) == [account]
    assert able([account], Cost(left, Fraction(0))) == [account]
    assert able([account], Cost(left + Fraction(1, 2**99), Fraction(0))) == []


def test_the_cost_is_what_the_ledger_would_reserve():
    plan = [SimpleNamespace(rho=1.0, delta=0.0), SimpleNamespace(rho=2.0**-60, delta=1e-9)]
    assert cost_of(plan, 2) == Cost(3 + Fraction(1, 2**60), 3 * Fraction(1e-9))
