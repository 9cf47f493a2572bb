"""What the private runs of a series share: one statistic, and its precision.

The field H that a run releases has noise of a variance v in every entry (of D^-1 H), and S + H is an estimate of EM's
next statistic. A run that starts from an earlier one on the same population begins with the statistic that this one
ended with, and moves it by

    gamma = (1 / v) / W,    W grows by 1 / v in every round, before the step

or by the step of the settings, if that is shorter. So the statistic is the inverse-variance mean of the final statistic
of the run before and of all estimates since. Of that run's W, the fraction FORGETTING is kept. Estimates of several
rounds are at several parameters. As the steps become short, these differ less and less, while EM continues.

Source: Cappe and Moulines 2009 (online EM), with rounds in place of observations and noise in place of sampling. All of
it is a function of released arrays and of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedcore.errors import ConfigError

FORGETTING = 0.95  # weight of what was there before a run, against 1 for what the run adds
SERIES_NAMES = ("pooled_weight", "pooled_variance")


@dataclass(frozen=True, slots=True)
class Precision:
    """Of a statistic, entry by entry in units of D.

    weight: W, the sum of the inverse variances of what was released, as far as it is remembered; 0: no series
    variance: of the noise in the statistic, if the responsibilities followed it at once
    """

    weight: float
    variance: float

    @property
    def known(self) -> bool:
        return self.weight > 0

    def forgotten(self) -> Precision:
        """What counts of it in the next run."""
        return Precision(FORGETTING * self.weight, self.variance)

    def step(self, planned: float, noise: float) -> float:
        """gamma of a round whose release has noise of the variance `noise`. planned: the step of the settings."""
        return min(planned, 1.0 / (1.0 + self.weight * noise))

    def after(self, gamma: float, wanted: float, noise: float) -> Precision:
        """That of S + gamma H. wanted: gamma before it was cut back; a release that was used in part counts in part."""
        variance = (1.0 - gamma) ** 2 * self.variance + gamma**2 * noise
        return Precision(self.weight + gamma / wanted / noise, variance)


UNKNOWN = Precision(0.0, 0.0)


def of_first_run(gamma: float, noise: float, rounds: int) -> Precision:
    """What a run leaves that belonged to no series: after many rounds with the step gamma the statistic is a running
    mean of (2 - gamma) / gamma of them, and of fewer rounds it is no better than their mean."""
    rounds_in_mean = min((2.0 - gamma) / gamma, float(rounds))
    if not rounds_in_mean > 0:
        return UNKNOWN
    return Precision(rounds_in_mean / noise, noise / rounds_in_mean)


# --- arrays of warm starts ------------------------------------------------------------------------------------------


def arrays_of(precision: Precision) -> dict[str, np.ndarray]:
    """As arrays of a warm start; none if there is no series."""
    if not precision.known:
        return {}
    return dict(zip(SERIES_NAMES, (np.array([precision.weight]), np.array([precision.variance])), strict=True))


def precision_in(arrays: Mapping[str, np.ndarray] | None) -> Precision:
    """That of the statistic that a warm start's parameters belong to. Raises ConfigError for what no run leaves."""
    named = [name for name in SERIES_NAMES if arrays is not None and name in arrays]
    if not named or arrays is None:
        return UNKNOWN
    values = [np.asarray(arrays.get(name, np.zeros(0)), np.float64) for name in SERIES_NAMES]
    if any(value.shape != (1,) or not (np.isfinite(value[0]) and value[0] > 0) for value in values):
        raise ConfigError(
            f"{' and '.join(SERIES_NAMES)} of the start must be one positive number each.",
            "Start from another run, or from the parameters alone.",
        )
    return Precision(float(values[0][0]), float(values[1][0]))
