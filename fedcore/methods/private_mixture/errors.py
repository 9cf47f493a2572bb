"""Standard errors of a run's numbers, due to privacy noise only, and why a number has none.

For a run that began from nothing they come from `fedcore.methods.private_mixture.renoised`. For one that continues a
series they follow from the variances that the series keeps (`series.Pool.known`). Either holds only where density dips
separate all components. Where some overlap, several mixtures explain the rows about as well, and with other noise the
run could have found another one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy

from fedcore.methods.private_mixture.answers import slices
from fedcore.methods.private_mixture.config import PrivateMixtureConfig
from fedcore.methods.private_mixture.density import PrivateMixtureModel
from fedcore.methods.private_mixture.renoised import MOST_WORK, is_normal, renoised
from fedcore.methods.private_mixture.series import MEANS, SCALES, SHAPES, SHARES
from fedcore.methods.private_mixture.state import MixedState, PrivateMixtureState

LEAST_FOUND = 0.9  # of the repeated runs, that have to find a component again
TOO_LARGE = "These numbers have no error bars: with this many columns and components, computing them takes too long."
SET = "The shares of one normal distribution are fixed, so they have no error bars."
OVERLAP = (
    "These numbers have no error bars: no density dip separates {}. With other noise the run could have found other "
    "components there."
)
RARE = "There are no error bars of {}: more than 1 of 10 repetitions with other noise found no such component."
IN_SERIES = "In a series the share of the background and the answers of all units have no error bars."
FILLED = (
    "These numbers have no error bars: columns have missing numbers, and in a series it is not known how far filling "
    "them spreads the noise."
)
LOST = "These numbers have no error bars: they are those of an earlier run of the series."


@dataclass(frozen=True, slots=True)
class Errors:
    """Standard errors, in the units of the data, NaN of a number that has none, and in sentences why it has none.

    weights: (k + 1,), the background's last; means, deviations: (k, d); probabilities: (k + 1, values), the last those
    of all units, with no values without categories; correlations: (k, d, d).
    """

    weights: np.ndarray
    means: np.ndarray
    deviations: np.ndarray
    probabilities: np.ndarray
    correlations: np.ndarray
    why: str = ""


def errors_of(config: PrivateMixtureConfig, state: PrivateMixtureState, model: PrivateMixtureModel) -> Errors:
    """Of a finished run."""
    (k, d), found = model.means.shape, _nothing(model)
    overlap = np.bincount(model.group)[model.group] > 1
    if overlap.any():
        return replace(found, why=OVERLAP.format(_listed(overlap)))
    if state.warm and is_normal(state):
        return replace(found, why=LOST)
    if state.warm and state.missing.any():
        return replace(found, why=FILLED)
    if state.warm:
        return replace(_of_series(state, model), why=IN_SERIES)
    if k * d**2 > MOST_WORK:
        return replace(found, why=TOO_LARGE)
    found = _of_repetitions(config, state, model)
    rare = ~np.isfinite(found.means).all(axis=1)
    why = [RARE.format(_listed(rare))] if rare.any() else []
    why += [SET] if is_normal(state) else []
    return replace(found, why=" ".join(why))


def _nothing(model: PrivateMixtureModel) -> Errors:
    k, d = model.means.shape
    values = 0 if model.probabilities is None else model.probabilities.shape[1]
    none, numbers, answers = np.full((k + 1,), np.nan), np.full((k, d), np.nan), np.full((k + 1, values), np.nan)
    return Errors(none, numbers, numbers.copy(), answers, np.full((k, d, d), np.nan))


def _listed(components: np.ndarray) -> str:
    """components: (k,) bool, one of them at least."""
    *first, last = [str(j) for j in np.flatnonzero(components)]
    return f"components {', '.join(first)} and {last}" if first else f"component {last}"


def _of_repetitions(config: PrivateMixtureConfig, state: PrivateMixtureState, model: PrivateMixtureModel) -> Errors:
    others = renoised(config, state, model)
    models = [
        replace(model, means=means, covariances=covariances)
        for means, covariances in zip(others.means, others.covariances, strict=True)
    ]
    means = _spread(np.stack([each.means_of_data() for each in models]))
    covariances = np.stack([each.covariances_of_data() for each in models])
    deviations = np.sqrt(np.diagonal(covariances, axis1=2, axis2=3))
    correlations = _spread(covariances / (deviations[..., None] * deviations[..., None, :]))
    return Errors(_spread(others.weights), means, _spread(deviations), _spread(others.probabilities), correlations)


def _spread(shown: np.ndarray) -> np.ndarray:
    """Standard deviations over the first axis, made wider by as much as 95 % intervals from so few are. NaN for what
    too few runs found, and for what is the same in all."""
    found = np.isfinite(shown).mean(axis=0) >= LEAST_FOUND
    errors = np.full(shown.shape[1:], np.nan)
    errors[found] = np.nanstd(shown[:, found], axis=0, ddof=1)
    return np.where(errors > 0, errors * wider(len(shown)), np.nan)


def wider(runs: int) -> float:
    """Student's quantile for a standard deviation of `runs` runs, divided by the normal one, at 95 %."""
    return float(scipy.special.stdtrit(runs - 1, 0.975) / scipy.special.ndtri(0.975))


def _of_series(state: PrivateMixtureState, model: PrivateMixtureModel) -> Errors:
    """From the variances of the noise in shares, in coordinates of means, in scales and in shapes, in own units."""
    found, known = _nothing(model), state.known
    deviations = np.sqrt(np.diagonal(model.covariances_of_data(), axis1=1, axis2=2))
    found.weights[:-1] = np.sqrt(known[:, SHARES])
    if isinstance(state, MixedState):
        for category, own in enumerate(slices(model.layout.sizes)):
            found.probabilities[:-1, own] = np.sqrt(state.answers_known[:, category, None])
    means = np.sqrt(known[:, MEANS, None]) * deviations
    return replace(
        found, means=means, deviations=np.sqrt(known[:, [SCALES, SHAPES]].sum(axis=1))[:, None] / 2 * deviations
    )
