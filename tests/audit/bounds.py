"""From an attacker's guesses to a bound that privacy must respect.

A mechanism is mu-GDP if no test between "the client is absent" and "it is present" beats the test between N(0, 1) and
N(mu, 1): false negative rate >= Phi(Phi^-1(1 - false positive rate) - mu) (Dong, Roth, Su 2022, Def. 2.4). So a pair of
error rates (fpr, fnr) that somebody reaches shows mu >= Phi^-1(1 - fpr) - Phi^-1(fnr). Here both rates are known by
counting, hence replaced by upper confidence bounds (Clopper, Pearson 1934), each at half of 1 - CONFIDENCE: the bound
on mu then exceeds the true mu with probability at most 1 - CONFIDENCE, whatever the attack is.

The claim to compare with is mu = sqrt(2 rho): what is drawn is a normal law and then a rounding, so a release is
sensitivity / s = sqrt(2 rho)-GDP whatever the scale s is (docs/privacy/rounded-gaussian.md). The attacks weigh with the
likelihood ratio of the normal law, which is that of the rounded one up to the grid; s is at least 2**15 grid steps in
every audited release (FINE, asserted), so that no sharper attack is left out. Adaptive releases compose as
sqrt(mu_1**2 + mu_2**2 + ...) (ibid., Corollary 3.3): the claim of a run is sqrt(2 times the sum of its rhos). That is
the sharpest true statement. `epsilon_lower_bound` looks at (epsilon, delta) too, because that is what people are
promised.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import betaincinv
from scipy.stats import norm

CONFIDENCE = 0.999
THRESHOLDS = 200
FINE = 2**15  # least scale, in grid steps, of noise that is compared with the normal law
CAUTION = 1e-9  # wide intervals for the choice of the threshold: otherwise chance in the tails decides it


def upper_rate(errors, trials: int, alpha: float):
    """Clopper-Pearson: a rate that is below the true one with probability at most alpha. errors: one or many counts."""
    errors = np.asarray(errors, float)
    return np.where(errors >= trials, 1.0, betaincinv(errors + 1, np.maximum(trials - errors, 1), 1 - alpha))


def error_rates(absent: np.ndarray, present: np.ndarray, thresholds, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Upper bounds on (fpr, fnr) of the guess "present if the statistic is above the threshold", for each threshold."""
    alarms = len(absent) - np.searchsorted(np.sort(absent), thresholds, "right")
    misses = np.searchsorted(np.sort(present), thresholds, "right")
    return upper_rate(alarms, len(absent), alpha), upper_rate(misses, len(present), alpha)


def mu_of(fpr, fnr):
    return norm.isf(fpr) - norm.ppf(fnr)


def epsilon_of_rates(fpr, fnr, delta: float):
    """What (epsilon, delta)-DP must at least have: 1 - fnr <= e**epsilon fpr + delta, and the same the other way."""
    with np.errstate(divide="ignore"):
        ways = [np.log(np.maximum(1 - delta - miss, 0)) - np.log(alarm) for alarm, miss in ((fpr, fnr), (fnr, fpr))]
    return np.maximum(*ways)


def _lower_bound(absent: np.ndarray, present: np.ndarray, of_rates: Callable, confidence: float) -> float:
    """The threshold is chosen on the first half of the runs, the rates are counted on the second."""
    alpha, n, m = (1 - confidence) / 2, len(absent) // 2, len(present) // 2
    pooled = np.sort(np.concatenate([absent[:n], present[:m]]))
    candidates = np.unique(pooled[np.linspace(0, len(pooled) - 1, THRESHOLDS).astype(int)])
    best = candidates[np.argmax(of_rates(*error_rates(absent[:n], present[:m], candidates, CAUTION)))]
    return float(of_rates(*error_rates(absent[n:], present[m:], best, alpha)))


def mu_lower_bound(absent: np.ndarray, present: np.ndarray, confidence: float = CONFIDENCE) -> float:
    """Lower confidence bound on mu from the statistics of runs without and with the client, (runs,) each.

    It may be negative, when the attack does no better than chance.
    """
    return _lower_bound(absent, present, mu_of, confidence)


def epsilon_lower_bound(absent, present, delta: float, confidence: float = CONFIDENCE) -> float:
    """Lower confidence bound on epsilon at this delta."""
    return _lower_bound(absent, present, lambda fpr, fnr: epsilon_of_rates(fpr, fnr, delta), confidence)
