"""What an attacker gains who sees everything that was published: in odds, and as right guesses. Upper bounds.

Argument: docs/privacy/odds.md. Every number is rounded to the side that promises less.
"""

from __future__ import annotations

import math
from fractions import Fraction

from fedcore.errors import ConfigError
from fedcore.privacy.accounting import rounded_up
from fedcore.privacy.gdp import BITS, rounded

LARGEST = 700.0  # beyond this epsilon e^epsilon is no float, nor a promise


def odds_factor(epsilon: float) -> float:
    """A float >= e^epsilon, and at most a few rounding steps above: by how much odds are multiplied or divided at most,
    but for delta. Infinite for an epsilon above 700. Raises ConfigError unless epsilon >= 0.
    """
    from flint import arb, ctx

    _check(epsilon)
    if epsilon > LARGEST:
        return math.inf
    with ctx.workprec(BITS):
        return rounded(arb(epsilon).exp().upper(), up=True)


def chance_after(chance: float, epsilon: float) -> float:
    """The largest probability of a thing after seeing what was published if it was `chance` before, but for delta:
    e^epsilon c / (1 + (e^epsilon - 1) c), rounded up. Raises ConfigError unless 0 < chance < 1 and epsilon >= 0.
    """
    if not 0 < chance < 1:
        raise ConfigError(f"a chance is between 0 and 1, not {chance!r}.")
    factor = odds_factor(epsilon)
    if math.isinf(factor):
        return 1.0
    prior = Fraction(chance)
    return min(rounded_up(Fraction(factor) * prior / (1 + (Fraction(factor) - 1) * prior)), 1.0)


def best_accuracy(mu: float, thresholds: float = 0.0) -> float:
    """How often, at most, an attacker is right who must decide between two neighbouring populations that are equally
    likely before, from what is mu-GDP: (1 - D) Phi(mu / 2) + D, rounded up.

    thresholds: D, the sum of the deltas of thresholding steps. Raises ConfigError unless mu >= 0 and 0 <= D <= 1.
    """
    from flint import arb, ctx

    _check(mu)
    _check_share(thresholds)
    with ctx.workprec(BITS):
        extra, normal = arb(thresholds), (-arb(mu) / arb(8).sqrt()).erfc() / 2  # Phi(mu / 2)
        return min(rounded(((1 - extra) * normal + extra).upper(), up=True), 1.0)


def best_accuracy_of_dp(epsilon: float, delta: float) -> float:
    """The same from what is (epsilon, delta)-DP and no more is known of it: (e^epsilon + delta) / (1 + e^epsilon),
    rounded up. Raises ConfigError unless epsilon >= 0 and 0 <= delta <= 1.
    """
    _check_share(delta)
    factor = odds_factor(epsilon)
    if math.isinf(factor):
        return 1.0
    return min(rounded_up((Fraction(factor) + Fraction(delta)) / (1 + Fraction(factor))), 1.0)


def _check(value: float) -> None:
    if not (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0):
        raise ConfigError(f"epsilon and mu are finite and not negative, not {value!r}.")


def _check_share(value: float) -> None:
    if not (isinstance(value, (int, float)) and 0 <= value <= 1):
        raise ConfigError(f"a delta is between 0 and 1, not {value!r}.")
