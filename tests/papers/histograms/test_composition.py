"""The multipliers of 50 rounds at delta = 1e-10 against the numbers worked out for the method, at their precision."""

import math

import pytest
from fedcore.papers.histograms.composition import classical_sigma, gdp, gdp_delta, gdp_mu, kov15, kov15_single

from fedcore.errors import ConfigError

DELTA, EPSILONS = 1e-10, (15.0, 5.0, 2.0, 1.0)


def as_printed(value: float, printed: str) -> bool:
    """Whether the value rounds to the printed number."""
    decimals = len(printed.partition(".")[2])
    return abs(value - float(printed)) <= 0.5001 * 10.0**-decimals


@pytest.mark.parametrize(
    "rule, releases, row",
    [
        (kov15, 50, "87.9 246 599 1188"),
        (gdp, 100, "4.79 12.8 30.3 58.7"),
        (gdp, 8, "1.355 3.62 8.56 16.6"),  # the first one is 1.36 by numerical distributions, which round up
        (gdp, 1, ".479 1.281 3.026 5.868"),
    ],
)
def test_every_row_of_the_table(rule, releases, row):
    for epsilon, printed in zip(EPSILONS, row.split(), strict=True):
        assert as_printed(rule(epsilon, DELTA, releases).sigma, printed), (epsilon, printed)


@pytest.mark.parametrize("epsilon, mu", zip(EPSILONS, ["2.0874", ".7808", ".3305", ".1704"], strict=True))
def test_mu_of_a_budget(epsilon, mu):
    assert as_printed(gdp_mu(epsilon, DELTA), mu)
    assert gdp_delta(gdp_mu(epsilon, DELTA), epsilon) == pytest.approx(DELTA, rel=1e-9)


def test_one_gaussian_is_calibrated_exactly_and_the_classical_bound_is_not():
    """Beyond eps = 1 the classical multiplier is no bound: at eps 15 its delta is 14 times what it claims."""
    assert as_printed(classical_sigma(15.0, DELTA), "0.4546")
    assert as_printed(1 / gdp_mu(15.0, DELTA), "0.4791")
    assert gdp_delta(1 / classical_sigma(15.0, DELTA), 15.0) / DELTA == pytest.approx(14, abs=0.5)
    assert gdp_delta(1 / classical_sigma(0.5, DELTA), 0.5) < DELTA


def test_dp_accounting_agrees_on_one_gaussian_and_on_the_sum_of_many():
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent, get_sigma_gaussian, pld

    assert 1 / gdp_mu(15.0, DELTA) == pytest.approx(get_sigma_gaussian(15.0, DELTA), rel=1e-6)
    event = SelfComposedDpEvent(GaussianDpEvent(gdp(15.0, DELTA, 100).sigma), 100)
    epsilon = pld.PLDAccountant().compose(event).get_epsilon(DELTA)
    assert epsilon == pytest.approx(15.0, abs=2e-3)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_epsilon_0_solves_the_formula_as_it_is_written(epsilon):
    multiplier = kov15(epsilon, DELTA, 50)
    x, root = 3 * multiplier.epsilon_0, math.sqrt(2 * 50 * math.log(101 / DELTA))
    assert root * x + 50 * x * (math.exp(x) - 1) / (math.exp(x) + 1) == pytest.approx(epsilon, rel=1e-12)
    assert multiplier.sigma == pytest.approx(math.sqrt(2 * math.log(1.25 * 101 / DELTA)) / multiplier.epsilon_0)


def test_one_round_is_algorithm_3_alone():
    """3 eps_0 = 15 and 2 delta_0 = delta: sqrt(2 ln(2.5e10)) / 5."""
    assert kov15(15.0, DELTA, 1).sigma == pytest.approx(math.sqrt(2 * math.log(2.5e10)) / 5)
    assert kov15(15.0, DELTA, 1).epsilon_0 == 5.0


def test_one_release_a_round_needs_less_noise_than_three():
    for epsilon in EPSILONS:
        assert kov15_single(epsilon, DELTA, 50).sigma < kov15(epsilon, DELTA, 50).sigma / 2.9


@pytest.mark.parametrize(
    "arguments", [(0.0, 1e-5, 3), (math.inf, 1e-5, 3), (1.0, 0.0, 3), (1.0, 1.0, 3), (1.0, 1e-5, 0)]
)
@pytest.mark.parametrize("rule", [kov15, kov15_single, gdp])
def test_budgets_that_are_none_are_refused(rule, arguments):
    with pytest.raises(ConfigError):
        rule(*arguments)
