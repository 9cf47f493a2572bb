"""Conversions between mu and (epsilon, delta), against mpmath; the float formulas that one would write must fail."""

import math
import re
from fractions import Fraction
from pathlib import Path

import mpmath
import pytest
import scipy.special

from fedcore.errors import ConfigError
from fedcore.privacy import gdp
from fedcore.privacy.accounting import make_budget

EPSILONS = (1e-6, 1e-3, 0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 50.0)
DELTAS = (1e-12, 1e-10, 1e-8, 1e-6, 1e-5, 1e-3, 0.1, 0.5)


def exact_delta(mu, epsilon):
    with mpmath.workprec(600):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def is_the_largest(mu, epsilon, delta):
    """Within delta, and the next float is not."""
    return exact_delta(mu, epsilon) <= delta < exact_delta(math.nextafter(mu, math.inf), epsilon)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_largest_mu_and_back(epsilon):
    for delta in DELTAS:
        mu = gdp.mu_max(epsilon, delta)
        assert is_the_largest(mu, epsilon, delta), (epsilon, delta)
        back = gdp.epsilon_of(Fraction(mu) ** 2, delta)
        assert back <= epsilon and exact_delta(mu, back) <= delta < exact_delta(mu, math.nextafter(back, 0.0))
        rho = gdp.rho_max(epsilon, delta)
        assert Fraction(rho) <= Fraction(mu) ** 2 / 2 < Fraction(math.nextafter(rho, math.inf))
        assert gdp.epsilon_of(2 * Fraction(rho), delta) <= epsilon


def float_mu_max(epsilon, delta):
    """What one would write: a bisection on logarithms of the normal distribution, in floats."""

    def too_large(mu):
        first = scipy.special.log_ndtr(mu / 2 - epsilon / mu)
        return math.exp(first) - math.exp(epsilon + scipy.special.log_ndtr(-mu / 2 - epsilon / mu)) > delta

    low, high = 1e-12, 200.0
    while math.nextafter(low, high) < high:
        middle = (low + high) / 2
        low, high = (low, middle) if too_large(middle) else (middle, high)
    return low


def test_float_formulas_are_optimistic_here_and_there():
    found = [(e, d) for e in EPSILONS for d in DELTAS if exact_delta(float_mu_max(e, d), e) > d]
    assert 5 < len(found) < 90


def test_bounds_enclose_delta_and_are_one_float_wide():
    for mu in (1e-3, 0.3, 1.0, 4.0, 30.0):
        for epsilon in (0.0, 0.1, 1.0, 20.0):
            low, high = gdp.delta_bounds(mu, epsilon)
            assert low <= exact_delta(mu, epsilon) <= high <= math.nextafter(low, math.inf)
    assert gdp.delta_bounds(0.0, 1.0) == (0.0, 0.0)


def test_a_mu_that_is_shown_is_the_smallest_float_above():
    for number in range(1, 300):
        rho = number / 7
        mu = gdp.mu_of(rho)
        assert Fraction(math.nextafter(mu, 0.0)) ** 2 < 2 * Fraction(rho) <= Fraction(mu) ** 2


def test_epsilon_of_nothing_and_of_what_delta_covers_is_zero():
    assert gdp.epsilon_of(Fraction(0), 1e-6) == 0.0
    assert gdp.epsilon_of(Fraction(1e-16), 0.1) == 0.0


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0.0, 0.1), (-1.0, 0.1), (math.inf, 0.1), (math.nan, 0.1), (1.0, 0.0), (1.0, 1.0), ("1", 0.1)],
)
def test_bad_values_are_refused(epsilon, delta):
    with pytest.raises(ConfigError):
        gdp.mu_max(epsilon, delta)
    with pytest.raises(ConfigError):
        gdp.epsilon_of(Fraction(-1), 0.5)


def test_the_table_of_the_page_is_that_of_the_library():
    page = (Path(__file__).parents[2] / "docs" / "privacy" / "gdp.md").read_text()
    rows = [row for row in re.findall(r"^\| ([0-9.]+) \|(.*)\|$", page, re.MULTILINE) if row[0] != "epsilon"]
    assert len(rows) == 6
    for epsilon, cells in rows:
        for delta, cell in zip((1e-5, 1e-6, 1e-8, 1e-10), cells.split("|"), strict=True):
            assert cell.strip() == f"{make_budget(float(epsilon), delta).rho_max:.5g}"
