"""How much the noise of a run moves what it shows: the rounds again, with other noise, on stand-ins for the rows.

What is shown went through starts, and through rounds that shrink and invert, and each round asked with what noise had
made of the last. So there is no formula. But the noise of every release is known, and so is what clients and server do.
The rounds from the search for starts to the last of EM are made again RUNS times, with fresh noise of the planned size;
in place of the people's rows stand STAND_INS rows that are drawn from the mixture that was found, each for as many
units as there are rows too few. The standard error of a number is its standard deviation over these runs.

It is a function of the state, so it costs no privacy. It rests on the mixture: where it fits the rows badly, so do the
errors. Noise of the releases before (ranges of columns, whitening) is not in it. Rows of clients count by what they
weigh, so that nothing need be known of how many rows a client has.

Only where a valley parts every component from all others. Where components overlap, several mixtures explain the rows
about as well, and other noise would have found another one; runs on rows of the one that was found cannot show that (at
two standard deviations between components and 3000 rows, four in ten of such intervals held the mean of many runs).

Source: the parametric bootstrap (Efron and Tibshirani 1993), of the mechanism in place of the sample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np
from scipy.optimize import linear_sum_assignment

from fedcore.methods.private_mixture import server
from fedcore.methods.private_mixture.clients import client_update
from fedcore.methods.private_mixture.config import PrivateMixtureConfig
from fedcore.methods.private_mixture.state import MIXTURE, MixedState, PrivateMixtureState
from fedcore.population.blocks import RowsBlock
from fedcore.randomness import stream

STAND_INS, RUNS = 2048, 16
MOST_WORK = 40_000  # of components times squared columns: some seconds
FAR = 1e6  # what distances are cut to
LEAST_FOUND = 0.9  # of the runs, that have to find a component: of others nobody can say how far they move
NEAR = 1.0  # of (m_i - m_j)' (S_i + S_j)^-1 (m_i - m_j), within which it is the same component
STAND, OTHER, NOISE = (f"private_mixture errors {what}" for what in ("rows", "seeds", "noise"))


@dataclass(frozen=True, slots=True)
class Found:
    """weights: (k + 1,), the background's last; means: (k, d); covariances: (k, d, d); of several runs along a first
    axis."""

    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray


ToData = Callable[[np.ndarray], np.ndarray]


def renoised(config: PrivateMixtureConfig, state: PrivateMixtureState, to_data: ToData) -> Found | None:
    """What RUNS runs find, stacked along a first axis, in the state's coordinates and order: weights
    (RUNS, k + 1), means (RUNS, k, d), covariances (RUNS, k, d, d); NaN for one that a run did not find. None where
    there is no mixture, where there are categories, where valleys do not part every component from all others, where it
    would take too long, and in runs that go on with a series, which average what they find with what was known.

    to_data: rows in those coordinates to rows in the units of the data.
    """
    k, d = state.means.shape
    parted = len(np.unique(state.group)) == k > 1
    if (
        isinstance(state, MixedState)
        or state.warm
        or not state.done
        or state.outcome != MIXTURE
        or not parted
        or k * d**2 > MOST_WORK
    ):
        return None
    return _again(config, _ByValue(state, to_data))


class _ByValue:
    """A state that is equal to another one with the same arrays, and how its rows become data."""

    def __init__(self, state: PrivateMixtureState, to_data: ToData):
        digest = hashlib.sha256()
        for field in fields(state):
            value = getattr(state, field.name)
            digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
        self.state, self.to_data, self._digest = state, to_data, digest.digest()

    def __hash__(self) -> int:
        return hash(self._digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByValue) and self._digest == other._digest


@lru_cache(maxsize=8)
def _again(config: PrivateMixtureConfig, given: _ByValue) -> Found:
    state = given.state
    rows = given.to_data(_stand_ins(state, stream(state.seed, STAND, 0)))
    block = RowsBlock(0, 0, np.arange(len(rows) + 1, dtype=np.int64), rows)
    runs = [_matched(state, _run(config, state, block, number)) for number in range(RUNS)]
    return Found(*(np.stack([getattr(run, field.name) for run in runs]) for field in fields(Found)))


def _stand_ins(state: PrivateMixtureState, generator: np.random.Generator) -> np.ndarray:
    """(STAND_INS, d) rows of the mixture, in its coordinates; of each part as many as its weight says."""
    k, d = state.means.shape
    ends = np.rint(np.cumsum(state.weights) / state.weights.sum() * STAND_INS).astype(np.int64)
    rows = generator.standard_normal((STAND_INS, d))
    low = 0
    for j, high in enumerate(ends):
        if j < k:
            rows[low:high] = state.means[j] + rows[low:high] @ np.linalg.cholesky(state.covariances[j]).T
        else:
            rows[low:high] *= np.sqrt(server.BROAD)
        low = high
    return rows


def _run(config: PrivateMixtureConfig, state: PrivateMixtureState, block: RowsBlock, number: int) -> Found:
    """What a run ends with that goes on from the whitening, with other noise and other public streams."""
    phases = server.context_of(config, state).design.phases
    first = next(at for at, phase in enumerate(phases) if phase.kind == "norms" and phase.step == 2)
    stop = next(at for at, phase in enumerate(phases) if phase.kind == "guard")
    noise = dict(zip((item.name for phase in phases for item in phase.releases), state.noise.tolist(), strict=True))
    q, none = len(state.spread), np.zeros(0)
    now = replace(
        state,
        done=False,
        unit="record",
        round=first,
        seed=int(stream(state.seed, OTHER, number).integers(2**31)),
        edges=np.zeros((0, 2), np.int64),
        node=np.zeros(0, np.int64),  # of the components that this run ended with, which may be others
        cells=np.zeros((0, q)),
        found_cells=np.zeros((0, q)),
        found_counts=none,
        found_noise=none,
    )
    each, generator = state.count / STAND_INS, stream(state.seed, NOISE, number)
    while now.round < stop:
        message = server.message(config, now)
        assert message is not None  # the run is not done
        sums = {name: np.asarray(statistic.value()) * each for name, statistic in client_update(message, block).items()}
        noised = {name: values + generator.normal(0.0, noise[name], values.shape) for name, values in sums.items()}
        now, _ = server.server_update(config, now, noised)
    return Found(now.weights, now.means, now.covariances)


def _matched(state: PrivateMixtureState, found: Found) -> Found:
    """Each in the place of the component that it is nearest to, all together, by the distance of means in standard
    deviations of both."""
    k, d = state.means.shape
    gaps = state.means[:, None] - found.means[None]
    both = state.covariances[:, None] + found.covariances[None]
    distances = np.einsum("ijd,ijd->ij", gaps, np.linalg.solve(both, gaps[..., None])[..., 0])
    own, other = linear_sum_assignment(np.minimum(distances, FAR))
    near = distances[own, other] <= NEAR
    own, other = own[near], other[near]
    weights, means, covariances = np.full(k + 1, np.nan), np.full((k, d), np.nan), np.full((k, d, d), np.nan)
    weights[own], weights[-1] = found.weights[other], found.weights[-1]
    means[own], covariances[own] = found.means[other], found.covariances[other]
    return Found(weights, means, covariances)
