"""The number of components, the rank or the penalty that `auto` takes, by what is held out for the choice.

mixtures   on level 1 of the sample. Where entries are missing, a tenth of those that are there is hidden, and the error
           is that of their conditional means (other models than Gaussians have no missing entries). Else a fifth of the
           rows is held out, and the error is their loss. 1, 2, 4, 8 ... components are tried, each with the penalty
           under which what is held out is likeliest: errors of means say nothing of spreads. The choice ends
           once two numbers in a row do not lower the error by more than its standard error
imputer    the same cells; 1, 2, 3, 5, 8 ... factors and no limit. A limit must win by more than its standard error
tables     a fifth of the cells that were seen, from the moments of the first pass. The penalty is halved, from one that
           leaves nothing, as long as the loss of the hidden cells falls

All candidates see the same training cells, and none of them sees what is held out. So a choice needs no pass over the
rows. Everything here is a pure function of the sample, or the moments, and the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from fedcore.errors import PopulationError
from fedcore.methods.federated_em.config import AUTO_SHARE, CANDIDATES, MOST_CHOSEN, NO_LIMIT, PSEUDO_ROWS
from fedcore.methods.federated_em.sampled import AnyMixture, Counted, Sample, better
from fedcore.methods.federated_em.search import FEWEST, start_of
from fedcore.methods.mixture_models.contract import Theta, is_sparse
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.imputation import Imputation
from fedcore.methods.mixture_models.imputer import GaussianImputer
from fedcore.methods.mixture_models.low_rank_tables import LowRankTables, parameters_from_cells
from fedcore.methods.mixture_models.nuclear_norm import log_partition, mean
from fedcore.randomness import stream

CHOICE = "federated_em/choice"
COMPONENTS = (1, 2, 4, 8, 16, 32, MOST_CHOSEN)
RANKS = (1, 2, 3, 5, 8, 12, 20, 32)
HIDDEN = 0.1  # of the cells of the sample that are there
STEPS, GAIN, MORE_STEPS = 20, 1e-3, 6  # of EM with the first penalty, and from there with each other one
CELL_STEPS = 30  # of EM of tables with each penalty
HALVINGS = 12  # of the penalty of tables
WORSE = 2  # candidates in a row that are no better: then a choice ends

ModelOf = Callable[[float, float], AnyMixture]  # as `Counted.model_of`
Errors = Callable[[AnyMixture, Theta], np.ndarray]  # (n,) of each row that has something held out


@dataclass(frozen=True, slots=True)
class HeldOut:
    """train: what candidates are trained on. errors, losses: of the rest, by which a number and a penalty are chosen.
    weights: of the rows that these are of."""

    train: Sample
    errors: Errors
    losses: Errors
    weights: np.ndarray | None


def chosen_components(
    model_with: Callable[[float], ModelOf], sample: Sample, seed: int, pseudo_rows: float | None, by_distance: bool
) -> tuple[int, float]:
    """(components, pseudo-rows). model_with: the model by its components. pseudo_rows: None to choose them too."""
    level = sample.rows(slice(sample.first))
    held = _held_out(model_with(1)(PSEUDO_ROWS, level.total), level, seed)
    best, penalty, errors, since = 0, PSEUDO_ROWS, None, 0
    for components in COMPONENTS:
        features = sample.y.shape[1]
        if components > 1 and components * max(FEWEST, 2 * features) > held.train.count:
            break
        counted = Counted(model_with(components))
        try:
            own, nu = _with_penalties(counted, held, seed, pseudo_rows, by_distance)
        except PopulationError:  # fewer different rows than components
            break
        if errors is None or better(errors, own, held.weights):
            best, penalty, errors, since = components, nu, own, 0
            continue
        since += 1
        if since == WORSE:
            break
    return best, penalty


def _with_penalties(
    counted: Counted, held: HeldOut, seed: int, pseudo_rows: float | None, by_distance: bool
) -> tuple[np.ndarray, float]:
    """(the errors with the best penalty, that penalty)."""
    asked = CANDIDATES if pseudo_rows is None else (pseudo_rows,)
    theta, found = None, list[tuple[float, float, np.ndarray]]()
    for nu in asked:
        model, steps = counted.model(held.train, nu), MORE_STEPS
        if theta is None:
            theta, steps = start_of(model, held.train, seed, 0, by_distance), STEPS
        theta, _ = counted.accelerated(model, theta, held.train, steps, GAIN)
        loss = float(np.average(held.losses(model, theta), weights=held.weights))
        found.append((loss, nu, held.errors(model, theta)))
    _, nu, own = min(found, key=lambda each: each[0])
    return own, nu


def _held_out(model: AnyMixture, level: Sample, seed: int) -> HeldOut:
    if not is_sparse(level.y) and isinstance(model, GaussianMixture) and np.isnan(level.y).any():
        train, hidden, rows = _hidden_cells(level, seed)
        truth, weights = level.y[rows], None if level.weights is None else level.weights[rows]

        def of_cells(model: AnyMixture, theta: Theta) -> np.ndarray:
            filled = Imputation(cast(GaussianMixture, model).components_of(theta), np.zeros(0), np.zeros(0))
            off = np.where(hidden[rows], filled.means(train.y[rows]) - truth, 0.0)
            return np.asarray((off**2).sum(axis=1))

        def losses(model: AnyMixture, theta: Theta) -> np.ndarray:
            return model.log_likelihood(theta, train.y[rows]) - model.log_likelihood(theta, truth)

        return HeldOut(train, of_cells, losses, weights)
    cut = max(int(level.count * (1 - AUTO_SHARE)), 1)
    fresh = level.rows(slice(cut, None)) if cut < level.count else level
    train = level.rows(slice(cut))

    def of_rows(model: AnyMixture, theta: Theta) -> np.ndarray:
        return -model.log_likelihood(theta, fresh.y)

    return HeldOut(train, of_rows, of_rows, fresh.weights)


def _hidden_cells(level: Sample, seed: int) -> tuple[Sample, np.ndarray, np.ndarray]:
    """(the rows with more missing cells, which those are (n, d), and the rows that have any). No row and no column
    loses its last cell."""
    seen = np.isfinite(level.y)
    uniforms = np.where(seen, stream(seed, CHOICE).random(seen.shape), np.inf)
    hidden = uniforms < HIDDEN
    hidden[:, (hidden == seen).all(axis=0)] = False
    hidden[(hidden == seen).all(axis=1)] = False
    return replace(level, y=np.where(hidden, np.nan, level.y)), hidden, np.flatnonzero(hidden.any(axis=1))


def chosen_rank(
    model_with: Callable[[float], Callable[[float, float], GaussianImputer]],
    sample: Sample,
    theta: Theta,
    seed: int,
    pseudo_rows: float,
) -> float:
    """NO_LIMIT or the number of factors of the imputer. theta: where EM begins."""
    level = sample.rows(slice(sample.first))
    train, hidden, rows = _hidden_cells(level, seed)
    if not len(rows):
        return NO_LIMIT
    weights = None if level.weights is None else level.weights[rows]

    def errors(rank: float) -> np.ndarray:
        counted = Counted(cast(ModelOf, model_with(rank)))
        model = counted.model(train, pseudo_rows)
        own, _ = counted.accelerated(model, theta, train, STEPS, GAIN)
        filled = cast(GaussianImputer, model).personalise(own, train.y[rows])["imputed"]
        return np.asarray((np.where(hidden[rows], filled - level.y[rows], 0.0) ** 2).sum(axis=1))

    free = errors(NO_LIMIT)
    ranks = [rank for rank in RANKS if rank < level.y.shape[1]]
    best = _first_minimum(ranks, errors, weights)
    return best[0] if best is not None and better(free, best[1], weights) else NO_LIMIT


def _first_minimum(
    candidates: Sequence[float], errors: Callable[[float], np.ndarray], weights: np.ndarray | None
) -> tuple[float, np.ndarray] | None:
    """(the candidate with the least mean error before it rose WORSE times in a row, its errors)."""
    best: tuple[float, np.ndarray] | None = None
    least, since = np.inf, 0
    for candidate in candidates:
        own = errors(candidate)
        average = float(np.average(own, weights=weights))
        if average < least:
            best, least, since = (candidate, own), average, 0
            continue
        since += 1
        if since == WORSE:
            break
    return best


def chosen_penalty(
    model_with: Callable[[float], LowRankTables], total: np.ndarray, visits: np.ndarray, tables: float, seed: int
) -> float:
    """The nuclear penalty of tables. total, visits: (J L,) the sum of the observed values of each cell, and how often
    it was seen."""
    seen = visits > 0
    hidden = seen & (stream(seed, CHOICE).random(len(seen)) < AUTO_SHARE)
    kept_total, kept_visits = np.where(hidden, 0.0, total), np.where(hidden, 0.0, visits)
    one = model_with(1.0)
    nothing = mean(one.family, np.zeros(1))[0]
    gradient = (kept_total - kept_visits * nothing) / tables
    largest = float(np.linalg.norm(gradient.reshape(one.rows, one.columns), 2))
    if not hidden.any() or not largest:
        return 1.0
    theta: Theta | None = None

    def errors(penalty: float) -> np.ndarray:
        nonlocal theta
        model = model_with(penalty)
        if theta is None or not model.admissible(model.statistic_of(theta)):
            theta = parameters_from_cells(model, _cells(model, kept_total), _cells(model, kept_visits))
        for _ in range(CELL_STEPS):
            s, _ = model.step_of_cells(theta, kept_total, kept_visits, tables)
            theta = model.maximise(s, start=theta, rough=True)
        natural = theta["natural"].ravel()[hidden]
        return visits[hidden] * log_partition(model.family, natural) - total[hidden] * natural

    penalties = [largest / 2**step for step in range(1, HALVINGS + 1)]
    best = _first_minimum(penalties, errors, None)
    return best[0] if best is not None else penalties[0]


def _cells(model: LowRankTables, values: np.ndarray) -> np.ndarray:
    return values.reshape(model.rows, model.columns)
