"""How much the noise of a run moves what it shows: the rounds again, with other noise, on stand-ins for the rows.

What is shown went through starts, and through rounds that shrink and invert, and each round used what noise had made of
the last. So there is no formula. But the noise of every release is known, and so is what clients and server do. The
rounds from the first whitening to the last of EM are made again up to MOST_RUNS times, with fresh noise of the planned
size. In place of the people's rows stand STAND_INS rows that are drawn from the mixture that was found, with its
answers, each for as many units as there are rows too few. They have gaps at random, as many in each column as were
counted, so that filling them spreads noise as it did in the run. Of a run that ended with one normal distribution only
the whitening is made again. The standard error of a number is its standard deviation over these runs.

It is a function of the state, so it costs no privacy. It rests on the mixture: where it fits the rows badly, so do the
errors. Noise of the first releases (ranges of columns) is not in it. Rows of clients count by what they weigh, so that
nothing need be known of how many rows a client has.

Source: the parametric bootstrap (Efron and Tibshirani 1993), of the mechanism in place of the sample.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np
import scipy

from fedcore.methods.mixture_models.whole_rows import STEP
from fedcore.methods.private_mixture import server, whitening
from fedcore.methods.private_mixture.answers import slices
from fedcore.methods.private_mixture.clients import client_update
from fedcore.methods.private_mixture.columns import missing_shares
from fedcore.methods.private_mixture.config import PrivateMixtureConfig
from fedcore.methods.private_mixture.density import PrivateMixtureModel
from fedcore.methods.private_mixture.series import KNOWN
from fedcore.methods.private_mixture.state import NORMAL, MixedState, PrivateMixtureState
from fedcore.population.blocks import RowsBlock
from fedcore.randomness import stream

STAND_INS = 2048
MOST_RUNS, LEAST_RUNS = 24, 8
WORK, MOST_WORK = 2500, 40_000  # of components times squared columns: from the first on there are fewer runs
FAR = 1e6  # what distances are cut to
NEAR = 1.0  # of (m_i - m_j)' (S_i + S_j)^-1 (m_i - m_j), within which it is the same component
STAND, OTHER, NOISE = (f"private_mixture errors {what}" for what in ("rows", "seeds", "noise"))


@dataclass(frozen=True, slots=True)
class Found:
    """weights: (k + 1,), the background's last; means: (k, d); covariances: (k, d, d); probabilities: (k + 1, values)
    of answers, the last those of all units; of several runs along a first axis."""

    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    probabilities: np.ndarray


def renoised(config: PrivateMixtureConfig, state: PrivateMixtureState, model: PrivateMixtureModel) -> Found:
    """What several runs find, stacked along a first axis, in the state's coordinates and order: weights (runs, k + 1),
    means (runs, k, d), covariances (runs, k, d, d), probabilities (runs, k + 1, values), with no values without
    categories; NaN for a component that a run did not find. The state is that of a finished run that began from
    nothing.
    """
    return _again(config, _ByValue(state, model))


class _ByValue:
    """A state, equal to another one with the same arrays, and its model."""

    def __init__(self, state: PrivateMixtureState, model: PrivateMixtureModel):
        digest = hashlib.sha256()
        for field in fields(state):
            value = getattr(state, field.name)
            digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
        self.state, self.model, self._digest = state, model, digest.digest()

    def __hash__(self) -> int:
        return hash(self._digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByValue) and self._digest == other._digest


@lru_cache(maxsize=8)
def _again(config: PrivateMixtureConfig, given: _ByValue) -> Found:
    state = given.state
    generator = stream(state.seed, STAND, 0)
    rows = _stand_ins(given.model, generator)
    missing = np.zeros(rows.shape[1])
    missing[given.model.layout.numeric] = missing_shares(config, state)
    if missing.any():
        rows[generator.random(rows.shape) < missing] = np.nan
    block = RowsBlock(0, 0, np.arange(len(rows) + 1, dtype=np.int64), rows)
    runs = [_matched(given.model, _run(config, given, block, number)) for number in range(runs_of(*state.means.shape))]
    return Found(*(np.stack([getattr(run, field.name) for run in runs]) for field in fields(Found)))


def runs_of(k: int, d: int) -> int:
    """How many runs there are, of k components in d columns."""
    return int(np.clip(MOST_RUNS * WORK // (k * d**2), LEAST_RUNS, MOST_RUNS))


def _stand_ins(model: PrivateMixtureModel, generator: np.random.Generator) -> np.ndarray:
    """(STAND_INS, features) rows of the mixture, as the population has them; of each part as many as its weight
    says."""
    (k, d), layout = model.means.shape, model.layout
    ends = np.rint(np.cumsum(model.weights) / model.weights.sum() * STAND_INS).astype(np.int64)
    u, part = generator.standard_normal((STAND_INS, d)), np.searchsorted(ends, np.arange(STAND_INS), side="right")
    for j in range(k):
        u[part == j] = model.means[j] + u[part == j] @ np.linalg.cholesky(model.covariances[j]).T
    u[part == k] *= np.sqrt(server.BROAD)
    rows = np.zeros((STAND_INS, layout.features))
    rows[:, layout.numeric] = layout.as_stored(model.of_coordinates(u), generator)
    if model.probabilities is not None:
        for own, at in zip(layout.categories, slices(layout.sizes), strict=True):
            reached = model.probabilities[part, at].cumsum(axis=1) < generator.random((STAND_INS, 1))
            value = reached.sum(axis=1).clip(max=at.stop - at.start - 1)
            rows[:, list(own)] = np.eye(len(own))[value] if len(own) > 1 else value[:, None]
    return rows


def _run(config: PrivateMixtureConfig, given: _ByValue, block: RowsBlock, number: int) -> Found:
    """What a run ends with that continues from the first ranges of columns, with other noise and other public
    streams."""
    state = given.state
    phases = server.context_of(config, state).design.phases
    at = [(phase.kind, phase.step) for phase in phases]
    normal = is_normal(state)
    early = normal and not isinstance(state, MixedState)
    first, stop = at.index(("norms", 0)), at.index(("norms", 2) if early else ("guard", 0))
    noise = dict(zip((item.name for phase in phases for item in phase.releases), state.noise.tolist(), strict=True))
    d, q, none, same = state.features, len(state.spread), np.zeros(0), whitening.identity(state.features)
    now = replace(
        state,
        done=False,
        unit="record",
        round=first,
        seed=int(stream(state.seed, OTHER, number).integers(2**31)),
        clip=1.0,
        map_centre=same.centre,
        map_matrix=same.matrix,
        map_exponent=same.exponent,
        cells=np.zeros((0, q)),
        found_cells=np.zeros((0, q)),
        found_counts=none,
        found_noise=none,
        weights=none,
        means=np.zeros((0, d)),
        covariances=np.zeros((0, d, d)),
        known=np.zeros((0, KNOWN)),
        node=np.zeros(0, np.int64),
        edges=np.zeros((0, 2), np.int64),
    )
    if isinstance(now, MixedState):
        now = replace(now, probabilities=now.probabilities[:0], answers_known=now.answers_known[:0])
    each, generator = state.count / STAND_INS, stream(state.seed, NOISE, number)
    while now.round < stop:
        message = server.message(config, now)
        assert message is not None  # the run is not done
        sums = {name: np.asarray(statistic.value()) * each for name, statistic in client_update(message, block).items()}
        noised = {name: values + generator.normal(0.0, noise[name], values.shape) for name, values in sums.items()}
        now, _ = server.server_update(config, now, noised)
    return _moved(given.model, now, normal)


def is_normal(state: PrivateMixtureState) -> bool:
    """Whether the run gave its mixture up for the normal distribution of all rows, which the whitening says."""
    return state.outcome == NORMAL and len(state.means) == 1 and not state.means.any()


def _moved(model: PrivateMixtureModel, now: PrivateMixtureState, normal: bool) -> Found:
    """What a run has found, in the coordinates of the model. normal: whether that is the normal distribution of all
    rows."""
    own, d = now.map, len(model.centre)
    turned = np.linalg.pinv(own.linear()) @ model.linear
    away = (own.centre * STEP - model.origin) @ model.linear
    none = np.zeros((len(now.means) + 1, 0))
    weights, means, covariances = now.weights, now.means, now.covariances
    probabilities = now.probabilities if isinstance(now, MixedState) else none
    if normal:
        weights, means, covariances = model.weights, np.zeros((1, d)), np.eye(d)[None]
        probabilities = np.tile(probabilities[-1:], (2, 1))
    return Found(
        weights, away + means @ turned, np.einsum("ai,kab,bj->kij", turned, covariances, turned), probabilities
    )


def _matched(model: PrivateMixtureModel, found: Found) -> Found:
    """Each in the place of the component that it is nearest to, all together, by the distance of means in standard
    deviations of both."""
    k, d = model.means.shape
    gaps = model.means[:, None] - found.means[None]
    both = model.covariances[:, None] + found.covariances[None]
    distances = np.einsum("ijd,ijd->ij", gaps, np.linalg.solve(both, gaps[..., None])[..., 0])
    own, other = scipy.optimize.linear_sum_assignment(np.minimum(distances, FAR))
    near = distances[own, other] <= NEAR
    own, other = np.append(own[near], k), np.append(other[near], len(found.means))
    weights, means, covariances = np.full(k + 1, np.nan), np.full((k, d), np.nan), np.full((k, d, d), np.nan)
    probabilities = np.full((k + 1, found.probabilities.shape[1]), np.nan)
    weights[own], probabilities[own] = found.weights[other], found.probabilities[other]
    means[own[:-1]], covariances[own[:-1]] = found.means[other[:-1]], found.covariances[other[:-1]]
    return Found(weights, means, covariances, probabilities)
