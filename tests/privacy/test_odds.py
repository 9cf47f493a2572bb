"""What an attacker gains, against mpmath and against all tests on what the worst mechanism says."""

import math
from fractions import Fraction
from itertools import product

import mpmath
import pytest

from fedcore.errors import ConfigError
from fedcore.privacy import gdp, odds

EPSILONS = (0.0, 1e-6, 0.01, 0.5, 1.0, 4.0, 15.0, 300.0)
MUS = (0.0, 1e-9, 0.01, 0.3, 1.0, 2.5, 6.0, 40.0)


def just_above(value, exact):
    """Not below, and at most two floats above: an upper bound that claims no more than it must."""
    return value >= exact and math.nextafter(math.nextafter(value, 0.0), 0.0) <= exact


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_factor_of_odds_is_rounded_up(epsilon):
    with mpmath.workdps(60):
        assert just_above(odds.odds_factor(epsilon), mpmath.exp(mpmath.mpf(epsilon)))
    assert odds.odds_factor(701.0) == math.inf and odds.chance_after(0.1, 701.0) == 1.0


@pytest.mark.parametrize("chance", [1e-9, 0.01, 0.5, 0.999])
def test_a_chance_follows_its_odds(chance):
    for epsilon in EPSILONS:
        with mpmath.workdps(200):
            after = mpmath.mpf(chance) / (1 - mpmath.mpf(chance)) * mpmath.exp(mpmath.mpf(epsilon))
            exact = after / (1 + after)
        found = odds.chance_after(chance, epsilon)
        assert exact <= found <= 1 and found == pytest.approx(float(exact), rel=1e-14)
    assert odds.chance_after(0.5, math.log(3)) == pytest.approx(0.75)


@pytest.mark.parametrize("mu", MUS)
def test_the_best_accuracy_is_that_of_the_best_test(mu):
    """Of all thresholds between N(0, 1) and N(mu, 1) that at mu / 2; the likelihood ratio grows: no test is better."""
    with mpmath.workdps(60):
        exact = mpmath.ncdf(mpmath.mpf(mu) / 2)
        assert odds.best_accuracy(mu) == 1.0 or just_above(odds.best_accuracy(mu), exact)
        thresholds = [mu / 2 + step * mu / 40 for step in range(-60, 61)]
        right = [(mpmath.ncdf(t) + mpmath.ncdf(mpmath.mpf(mu) - t)) / 2 for t in map(mpmath.mpf, thresholds)]
        assert max(right) == pytest.approx(exact) and max(right) <= odds.best_accuracy(mu)


@pytest.mark.parametrize("share", [0.0, 1e-9, 0.01, 0.5, 1.0])
def test_thresholding_steps_may_tell_everything(share):
    for mu in MUS:
        with mpmath.workdps(60):
            exact = (1 - mpmath.mpf(share)) * mpmath.ncdf(mpmath.mpf(mu) / 2) + mpmath.mpf(share)
        assert odds.best_accuracy(mu, share) >= exact
        assert odds.best_accuracy(mu, share) == pytest.approx(float(exact), rel=1e-15)


def informant(factor: Fraction, delta: Fraction) -> list[tuple[Fraction, Fraction]]:
    """(probability in the world with, in the world without) of each thing that she may say."""
    honest, lying = (1 - delta) * factor / (1 + factor), (1 - delta) / (1 + factor)
    return [(delta, Fraction(0)), (honest, lying), (lying, honest), (Fraction(0), delta)]


@pytest.mark.parametrize("factor", [Fraction(1), Fraction(3, 2), Fraction(20)])
@pytest.mark.parametrize("delta", [Fraction(0), Fraction(1, 1000), Fraction(1, 3)])
def test_the_informant_has_the_trade_off_of_epsilon_and_delta(factor, delta):
    """Every test on her words is within (epsilon, delta), and the four corners of the two lines are reached: she is the
    worst that is allowed. The best one is right as often as the formula says."""
    said, right, corners = informant(factor, delta), [], set()
    for decides in product((0, 1), repeat=4):  # whether each thing is taken for "with"
        alpha = sum((q for (_, q), d in zip(said, decides, strict=True) if d), Fraction(0))
        beta = sum((p for (p, _), d in zip(said, decides, strict=True) if not d), Fraction(0))
        bound = max(Fraction(0), 1 - delta - factor * alpha, (1 - delta - alpha) / factor)
        assert beta >= bound
        right.append((1 - alpha + 1 - beta) / 2)
        corners |= {(alpha, beta)} if beta == bound else set()
    lying = (1 - delta) / (1 + factor)
    assert {(Fraction(0), 1 - delta), (lying, lying), (1 - delta, Fraction(0))} <= corners
    assert max(right) == (factor + delta) / (1 + factor)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", [0.0, 1e-12, 0.01, 1.0])
def test_the_accuracy_of_epsilon_and_delta_is_rounded_up(epsilon, delta):
    with mpmath.workdps(200):
        factor = mpmath.exp(mpmath.mpf(epsilon))
        exact = (factor + mpmath.mpf(delta)) / (1 + factor)
    found = odds.best_accuracy_of_dp(epsilon, delta)
    assert exact <= found <= 1 and found == pytest.approx(float(exact), rel=1e-14)


def test_the_exact_curve_never_says_more_than_epsilon_and_delta():
    """mu-GDP is (epsilon, delta)-DP for every epsilon, and knows more."""
    for mu in MUS[1:-1]:
        for epsilon in EPSILONS[:-1]:
            delta = gdp.delta_bounds(mu, epsilon)[1]
            assert odds.best_accuracy(mu) <= odds.best_accuracy_of_dp(epsilon, delta) * (1 + 1e-15)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_bad_numbers_are_refused(bad):
    for function in (odds.odds_factor, odds.best_accuracy, lambda x: odds.best_accuracy_of_dp(x, 0.1)):
        with pytest.raises(ConfigError):
            function(bad)
    for call in (lambda: odds.best_accuracy(1.0, bad), lambda: odds.best_accuracy_of_dp(1.0, bad)):
        with pytest.raises(ConfigError):
            call()
    for chance in (0.0, 1.0, bad):
        with pytest.raises(ConfigError):
            odds.chance_after(chance, 1.0)
