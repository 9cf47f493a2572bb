"""Budgets: conversions against published constants and an independent one, the parts of delta, exact sums."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from fedcore.errors import ConfigError
from fedcore.privacy import gdp
from fedcore.privacy.accounting import exact_sum, make_budget, rounded_down, rounded_up
from fedcore.privacy.plan import PlannedRelease
from fedcore.privacy.zcdp import SAFETY, epsilon_of, rho_of


def optimal_epsilon(rho, delta):
    """The same conversion by continuous minimisation over the order a (Canonne, Kamath, Steinke 2020, Cor. 13)."""

    def at(log_distance):
        a = 1 + np.exp(log_distance)
        return rho * a + np.log1p(-1 / a) - np.log(delta * a) / (a - 1)

    return minimize_scalar(at, bounds=(-12, 25), method="bounded", options={"xatol": 1e-10}).fun


def gaussian_epsilon(sigma, delta):
    """Exact epsilon of one continuous Gaussian of noise multiplier sigma (Balle, Wang 2018, Thm 8)."""

    def excess(epsilon):
        upper = norm.cdf(0.5 / sigma - epsilon * sigma)
        return upper - np.exp(epsilon + norm.logcdf(-0.5 / sigma - epsilon * sigma)) - delta

    return brentq(excess, 0, 1e4)


@pytest.mark.parametrize(("epsilon", "rho"), [(15, 2.030), (5, 0.2808), (2, 0.0500), (1, 0.0132)])
def test_the_constants_of_the_specification(epsilon, rho):
    digits = 5e-5 if rho < 1 else 5e-4
    assert rho_of(epsilon, 1e-10) == pytest.approx(rho, abs=digits + 2 * SAFETY * rho)


def test_a_hair_of_the_budget_is_kept_for_other_software():
    assert 0.9998 < epsilon_of(rho_of(1.0, 1e-6), 1e-6) <= 0.9999


@pytest.mark.parametrize("delta", [1e-12, 1e-10, 1e-6, 1e-3])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1, 5, 15, 100])
def test_rho_of_is_just_under_the_requested_epsilon(epsilon, delta):
    rho = rho_of(epsilon, delta)
    assert epsilon_of(rho, delta) <= epsilon * (1 - SAFETY) < epsilon_of(rho * (1 + 1e-7), delta)
    independent = optimal_epsilon(rho, delta)
    assert independent <= epsilon
    assert epsilon_of(rho, delta) == pytest.approx(independent, rel=1e-5)
    assert epsilon_of(rho, delta) >= independent * (1 - 1e-9)  # the grid of orders gives an upper bound


@pytest.mark.parametrize("delta", [1e-12, 9e-11, 1e-6, 1e-3, 0.4])
def test_the_conversion_is_to_the_last_bit_that_with_which_accounts_were_opened(delta):
    from dp_accounting import ZCDpEvent
    from dp_accounting.rdp import RdpAccountant

    for rho in (1e-15, 1e-9, 1.234e-4, 0.01, 0.3, 1.0, 2.03, 17.5, 1e3, 1e6, 1e9):
        orders = 1 + np.sqrt(np.log(1 / delta) / rho) * np.geomspace(1 / 16, 16, 801)
        library = RdpAccountant(orders[orders > 1 + 1e-12]).compose(ZCDpEvent(rho)).get_epsilon(delta)
        assert epsilon_of(rho, delta) == float(library), rho


@pytest.mark.parametrize("sigma", [0.5, 1.0, 5.0, 50.0])
def test_epsilon_is_an_upper_bound_for_the_gaussian(sigma):
    assert gaussian_epsilon(sigma, 1e-10) <= epsilon_of(0.5 / sigma**2, 1e-10) <= 1.1 * gaussian_epsilon(sigma, 1e-10)


@given(st.floats(1e-12, 1e3), st.floats(1.0, 3.0))
@settings(max_examples=40, deadline=None)
def test_epsilon_grows_with_rho(rho, factor):
    assert epsilon_of(rho, 1e-9) <= epsilon_of(rho * factor, 1e-9) * (1 + 1e-5)


def test_nothing_spent_is_epsilon_zero():
    assert epsilon_of(0.0, 1e-10) == 0.0


@given(st.floats(1e-14, 0.5), st.floats(0, 0.99), st.sampled_from(["gdp", "zcdp"]))
@settings(max_examples=15, deadline=None)
def test_the_parts_of_delta_never_exceed_it(delta, share, currency):
    budget = make_budget(1.0, delta, share * delta, currency=currency)
    assert Fraction(budget.delta_conv) + Fraction(budget.delta_extra) <= Fraction(delta)
    conversion = {"gdp": gdp.rho_max, "zcdp": rho_of}[currency]
    assert budget.rho_max == conversion(1.0, budget.delta_conv) == budget.rho_of(1.0)
    assert 0.999 < budget.epsilon_of(budget.rho_max) <= 1.0


def test_nothing_of_delta_is_kept_for_thresholds_unless_the_owner_says_so():
    budget = make_budget(2, 1e-10)
    assert (budget.currency, budget.delta_extra, budget.delta_conv) == ("gdp", 0.0, 1e-10)
    assert make_budget(2, 1e-10, 1e-11).delta_conv == pytest.approx(9e-11)


def test_in_zcdp_ten_per_cent_of_delta_is_kept_by_default():
    budget = make_budget(2, 1e-10, currency="zcdp")
    assert budget.delta_extra == pytest.approx(1e-11) and budget.delta_conv == pytest.approx(9e-11)
    assert make_budget(2, 1e-10, 0.0, currency="zcdp").delta_conv == 1e-10


@pytest.mark.parametrize(("epsilon", "delta", "gain"), [(1.0, 1e-5, 1.19), (1.0, 1e-6, 1.16), (1.0, 1e-8, 1.125)])
def test_the_same_promise_buys_more_than_in_zcdp(epsilon, delta, gain):
    ratio = make_budget(epsilon, delta).rho_max / make_budget(epsilon, delta, currency="zcdp").rho_max
    assert ratio == pytest.approx(gain, abs=0.006)


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
        epsilon_of(rho, 1e-10)
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
