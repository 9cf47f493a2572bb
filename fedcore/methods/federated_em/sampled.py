"""EM on a sample of the rows, and what fresh rows choose: the penalty, and whether components have heavy tails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

import numpy as np
import scipy

from fedcore.methods.federated_em.anderson import accelerated
from fedcore.methods.federated_em.config import CANDIDATES, DEGREES_TRIED
from fedcore.methods.mixture_models.contract import Theta
from fedcore.methods.mixture_models.counts import BernoulliMixture, MultinomialMixture, PoissonMixture
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.regression import RegressionMixture
from fedcore.methods.mixture_models.student import with_tails

LEAST_GAIN, LEAST_ERRORS = 1e-3, 1.0  # nats a row, and standard errors, by which a larger penalty or tails must win
TAIL_STEPS, TAIL_GAIN = 10, 1e-3  # accelerated steps with each number of degrees of freedom

AnyMixture: TypeAlias = GaussianMixture | RegressionMixture | PoissonMixture | MultinomialMixture | BernoulliMixture


@dataclass(frozen=True, slots=True)
class Sample:
    """y: (n, d) standardised rows, NaN where missing, or counts in CSR form, in a random order. weights: (n,) how much
    each counts; None: all the same. first: rows of level 1. share: of the population's rows; 1: these are all."""

    y: np.ndarray | scipy.sparse.csr_matrix
    weights: np.ndarray | None
    first: int
    share: float

    def rows(self, part: slice | np.ndarray) -> Sample:
        return replace(self, y=self.y[part], weights=None if self.weights is None else self.weights[part])

    @property
    def count(self) -> int:
        return int(self.y.shape[0])

    @property
    def total(self) -> float:
        """Of the weights."""
        return float(self.count if self.weights is None else self.weights.sum())

    @property
    def whole(self) -> bool:
        return self.share >= 1.0


@dataclass(slots=True)
class Counted:
    """EM of a model on some rows. model_of: returns the model for a penalty in pseudo-rows and a number of rows.
    degrees: of freedom of its components, if the run has chosen them; None: it has not, or they are normal."""

    model_of: Callable[[float, float], AnyMixture]
    row_steps: float = 0.0
    degrees: float | None = None

    def model(self, rows: Sample, pseudo_rows: float) -> AnyMixture:
        model = self.model_of(pseudo_rows, rows.total)
        return model if self.degrees is None else with_tails(cast(GaussianMixture, model), self.degrees)

    def mapped(self, model: AnyMixture, theta: Theta, rows: Sample) -> tuple[np.ndarray, float]:
        """(M (q,), the objective at theta)."""
        (totals,), (values,) = model.e_totals_and_log_likelihoods([theta], rows.y, rows.weights)
        self.row_steps += rows.count
        mean = values.mean() if rows.weights is None else np.average(values, weights=rows.weights)
        return totals / rows.total, float(model.penalty(theta) - mean)

    def steps(self, model: AnyMixture, theta: Theta, rows: Sample, steps: int) -> tuple[Theta, float]:
        """(theta after this many plain steps, its objective)."""
        for _ in range(steps):
            theta = model.maximise(self.mapped(model, theta, rows)[0])
        return theta, self.mapped(model, theta, rows)[1]

    def accelerated(
        self, model: AnyMixture, theta: Theta, rows: Sample, steps: int, gain: float
    ) -> tuple[Theta, float]:
        """(theta after at most this many accelerated steps, less where a step gains less; the best objective seen)."""
        trail = accelerated(model, theta, lambda at: self.mapped(model, at, rows), steps, gain)
        return model.maximise(trail.best), trail.objective


def best_penalty(counted: Counted, theta: Theta, train: Sample, fresh: Sample, steps: int) -> float:
    """Of CANDIDATES, after some steps on the training rows with each, by the loss of fresh rows. A larger one must be
    `better`: else a few far rows would decide, and a penalty that suits them can cost all others much."""
    best, losses = CANDIDATES[0], np.zeros(0)
    for nu in CANDIDATES:
        model = counted.model(train, nu)
        fitted, _ = counted.steps(model, theta, train, steps)
        own = -model.log_likelihood(fitted, fresh.y)
        if not len(losses) or better(losses, own, fresh.weights, LEAST_GAIN):
            best, losses = nu, own
    return best


def best_tails(counted: Counted, theta: Theta, train: Sample, fresh: Sample, pseudo_rows: float) -> float | None:
    """Degrees of freedom, of DEGREES_TRIED, or None for normal components, by the loss of fresh rows after some
    steps on the training rows with each, from theta. The best ones must be `better` than normal components."""

    def losses(degrees: float | None) -> np.ndarray:
        model = replace(counted, degrees=degrees).model(train, pseudo_rows)
        fitted, _ = counted.accelerated(model, theta, train, TAIL_STEPS, TAIL_GAIN)
        return -model.log_likelihood(fitted, fresh.y)

    tried = {degrees: losses(degrees) for degrees in DEGREES_TRIED}
    best = min(tried, key=lambda degrees: float(np.average(tried[degrees], weights=fresh.weights)))
    return best if better(losses(None), tried[best], fresh.weights, LEAST_GAIN) else None


def better(before: np.ndarray, after: np.ndarray, weights: np.ndarray | None, least: float = 0.0) -> bool:
    """Whether the losses (n,) of rows fell by more than the standard error of that, and by more than the least gain."""
    gain = before - after
    middle = np.average(gain, weights=weights)
    error = np.sqrt(np.average((gain - middle) ** 2, weights=weights) / len(gain))
    return bool(middle > max(least, LEAST_ERRORS * error))
