"""Budgets: the parts of delta, bad values, exact sums."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.errors import ConfigError
from fedcore.privacy import gdp
from fedcore.privacy.accounting import exact_sum, make_budget, rounded_down, rounded_up
from fedcore.privacy.plan import PlannedRelease


@given(st.floats(1e-14, 0.5), st.floats(0, 0.99))
@settings(max_examples=15, deadline=None)
def test_the_parts_of_delta_never_exceed_it(delta, share):
    budget = make_budget(1.0, delta, share * delta)
    assert Fraction(budget.delta_conv) + Fraction(budget.delta_extra) <= Fraction(delta)
    assert budget.rho_max == gdp.rho_max(1.0, budget.delta_conv) == budget.rho_of(1.0)
    assert 0.999 < budget.epsilon_of(budget.rho_max) <= 1.0


def test_nothing_of_delta_is_kept_for_thresholds_unless_the_owner_says_so():
    budget = make_budget(2, 1e-10)
    assert (budget.to_json()["currency"], budget.delta_extra, budget.delta_conv) == ("gdp", 0.0, 1e-10)
    assert make_budget(2, 1e-10, 1e-11).delta_conv == pytest.approx(9e-11)


@pytest.mark.parametrize("epsilon", [0, -1, float("inf"), float("nan"), "2"])
def test_a_bad_epsilon_is_refused(epsilon):
    with pytest.raises(ConfigError, match="epsilon"):
        make_budget(epsilon, 1e-10)


@pytest.mark.parametrize(
    ("delta", "extra"),
    [(0, None), (1, None), (-1e-9, None), (float("nan"), None), (1e-9, 1e-9), (1e-9, -1e-12), (1e-9, float("nan"))],
)
def test_a_bad_delta_is_refused(delta, extra):
    with pytest.raises(ConfigError, match="delta"):
        make_budget(1, delta, extra)


@pytest.mark.parametrize("rho", [-1e-9, float("nan"), float("inf")])
def test_a_bad_rho_is_refused(rho):
    with pytest.raises(ConfigError, match="rho"):
        make_budget(1.0, 1e-10).epsilon_of(rho)


def test_sums_do_not_round():
    """Ten times the float 0.1 is more than 1 (the float lies above one tenth), although floats add up to less."""
    assert sum([0.1] * 10) < 1.0
    assert exact_sum([0.1] * 10) > 1
    assert exact_sum([0.125] * 8) == 1 < exact_sum([0.125] * 8 + [5e-324])
    assert exact_sum([]) == 0


@given(st.lists(st.floats(1e-20, 1e3), max_size=20))
def test_rounded_sums_enclose_the_exact_one(values):
    exact = exact_sum(values)
    assert Fraction(rounded_down(exact)) <= exact <= Fraction(rounded_up(exact))
    assert rounded_up(exact) <= np.nextafter(rounded_down(exact), np.inf)


@given(st.floats(1e-3, 1e6), st.integers(1, 2**40))
def test_the_noise_of_a_planned_release_is_never_less_than_its_price(multiplier, sensitivity):
    planned = PlannedRelease("r", 1, (1,), sensitivity, multiplier, "", "")
    assert Fraction(planned.scale) >= Fraction(multiplier) * sensitivity
    assert Fraction(sensitivity) ** 2 / (2 * Fraction(planned.scale) ** 2) <= Fraction(planned.rho)
