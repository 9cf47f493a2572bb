"""Shared knowledge of the runs of a series: the mixture of the last one, and the precision of all its numbers.

A run that starts from an earlier one of its series has coordinates and components already. It makes only rounds of EM,
with nearly the whole budget, from what the series knows. The result of a round is averaged with that by inverse
variance, if the two differ by no more than noise explains (`fedcore.methods.private_mixture.em.moved`). Earlier
knowledge counts FORGETTING less from run to run. A run that continued may have lost the components: it ended with one
normal distribution, or its background holds more than LOST of the units. Its arrays record this, and the next run
begins from nothing.

Everything here is a function of released arrays and of the plans of runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.released import RELEASED_NAMES
from fedcore.methods.mixture_models.whole_rows import LIMIT, WHOLE_BITS, WholeMap, whole_map
from fedcore.methods.private_mixture.layout import Layout
from fedcore.methods.private_mixture.profiled import is_of_profile
from fedcore.methods.private_mixture.state import MIXTURE, MixedState, PrivateMixtureState
from fedcore.rounds.method import PublicFacts

FORGETTING = 0.95  # weight of what was known before a run, against 1 for what the run adds
LOST = 0.3  # of the units in the background
KNOWN = 4  # columns of `known`: shares, means, scales, shapes
SHARES, MEANS, SCALES, SHAPES = range(KNOWN)
WHOLE = ("told", "lost", "map_exponent")
LARGEST = 1e6  # of anything in the coordinates of the components
LARGEST_KNOWN = 1e30  # of a variance of noise, whose square is finite


@dataclass(frozen=True, slots=True)
class Pool:
    """d columns, k components; fields as in `PrivateMixtureState`.

    known: (k, KNOWN) variances of the noise of a component's share, of a coordinate of its mean, of its scale and of an
        entry of its covariance, in its own units
    lost: (1,) bool, whether the next run begins from nothing
    atoms, steps, share: (d,) the forms of columns; missing: (d,) the shares of their missing values
    """

    centre: np.ndarray
    scale: np.ndarray
    told: np.ndarray
    map_centre: np.ndarray
    map_matrix: np.ndarray
    map_exponent: np.ndarray
    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    known: np.ndarray
    lost: np.ndarray
    atoms: np.ndarray
    steps: np.ndarray
    share: np.ndarray
    missing: np.ndarray

    @property
    def map(self) -> WholeMap:
        return WholeMap(self.map_centre, self.map_matrix, self.map_exponent)


@dataclass(frozen=True, slots=True)
class MixedPool(Pool):
    """Of runs with categories; as in `MixedState`."""

    probabilities: np.ndarray
    answers_known: np.ndarray


def _names(pool: type[Pool]) -> tuple[str, ...]:
    return tuple(f"pooled_{field.name}" for field in fields(pool))


SERIES_NAMES, WITH_ANSWERS = _names(Pool), _names(MixedPool)


def names_of(pool: Pool) -> tuple[str, ...]:
    """Of its arrays in a warm start."""
    return _names(type(pool))


def arrays_of(state: PrivateMixtureState, missing: np.ndarray) -> dict[str, np.ndarray]:
    """As arrays of a warm start. missing: (d,) the shares of missing values. Raises ConfigError if the run began from
    nothing and has found no components."""
    pool = MixedPool if isinstance(state, MixedState) else Pool
    if state.outcome != MIXTURE and not state.warm:
        raise ConfigError(f"has not found components ({state.outcome}).", "Name a run that has.")
    lost = state.outcome != MIXTURE or state.weights[-1] > LOST
    values = {field.name: getattr(state, field.name) for field in fields(pool) if field.name != "lost"}
    values |= {"lost": [lost], "missing": missing}
    return {f"pooled_{name}": np.asarray(value, np.float64) for name, value in values.items()}


def pool_in(public: PublicFacts, components: int, layout: Layout) -> Pool | None:
    """What the run continues from; None if it begins from nothing. Raises ConfigError for arrays that no run of as many
    components leaves."""
    if not public.warm_start or is_of_profile(public.warm_start):
        return None
    pool = checked(public.warm_start, layout, components, "the start")
    return None if pool.lost[0] else pool


def checked(arrays: Mapping[str, np.ndarray], layout: Layout, components: int, what: str) -> Pool:
    """Raises ConfigError unless a run over these columns could leave the arrays; those for other methods are left."""
    arrays = {name: array for name, array in arrays.items() if name not in RELEASED_NAMES}
    d, sizes = layout.d, layout.sizes
    kind, names = (MixedPool, WITH_ANSWERS) if sizes else (Pool, SERIES_NAMES)
    if set(arrays) in ({*SERIES_NAMES}, {*WITH_ANSWERS}) and set(arrays) != {*names}:
        raise ConfigError(
            f"{what} is of a run that read other columns as categories.",
            "Use the setting categories of that run ([] if it read all as numbers), or start from nothing.",
        )
    if set(arrays) != {*names}:
        raise ConfigError(
            f"{what} does not hold what a run of private_mixture on this population leaves.",
            "Start from such a run, or from nothing.",
        )
    values = {name.removeprefix("pooled_"): np.asarray(array) for name, array in arrays.items()}
    if not all(value.dtype.kind in "iuf" and np.isfinite(value).all() for value in values.values()):
        raise ConfigError(f"{what} holds arrays that are not of finite numbers.")
    pool = kind(
        **{name: value.astype(np.float64) for name, value in values.items() if name not in WHOLE},
        told=values["told"] > 0,
        lost=values["lost"] > 0,
        map_exponent=values["map_exponent"].astype(np.int64),
    )
    k = pool.means.size // d
    ones = [(d,)] * 4
    shapes = [*ones, (d, d), (d,), (k + 1,), (k, d), (k, d, d), (k, KNOWN), (1,), *ones]
    if sizes:
        shapes += [(k + 1, sum(sizes)), (k, len(sizes))]
    if not 1 <= k <= components or [getattr(pool, field.name).shape for field in fields(kind)] != shapes:
        raise ConfigError(
            f"{what} is not of at most {components} components over {d} columns.",
            "Keep the columns and the number of components of the series, or start from nothing.",
        )
    if not _sound(pool):
        raise ConfigError(f"{what} holds what no run leaves.", "Start from another run, or from nothing.")
    return pool


def _sound(pool: Pool) -> bool:
    """Whether messages of it keep all products exact (`fedcore.methods.mixture_models.whole_rows`)."""
    whole = np.abs(pool.map_matrix).sum(axis=0).max(initial=0.0) * 2 * LIMIT <= 2.0**WHOLE_BITS
    near = max(np.abs(pool.means).max(initial=0.0), np.abs(pool.covariances).max(initial=0.0)) <= LARGEST
    return bool(
        whole
        and near
        and (np.rint(pool.map_matrix) == pool.map_matrix).all()
        and (np.rint(pool.map_centre) == pool.map_centre).all()
        and np.abs(pool.map_centre).max(initial=0.0) <= LIMIT
        and np.abs(pool.map_exponent).max(initial=0) <= 900
        and (pool.scale > 0).all()
        and min(pool.atoms.min(), pool.steps.min(), pool.share.min(), 1.0 - pool.share.max()) >= 0
        and min(pool.missing.min(), 1.0 - pool.missing.max()) >= 0
        and (pool.weights > 0).all()
        and 0 < pool.known.min() <= pool.known.max() <= LARGEST_KNOWN
        and np.linalg.eigvalsh(pool.covariances).min() > 0
        and (
            not isinstance(pool, MixedPool)
            or (
                (pool.probabilities > 0).all()
                and (pool.probabilities <= 1).all()
                and (pool.answers_known > 0).all()
                and pool.answers_known.max() <= LARGEST_KNOWN
            )
        )
    )


def likely(components: int, layout: Layout) -> dict[str, np.ndarray]:
    """What a run with these facts may leave, of the right shapes: components 10 apart on a line, in columns of
    scale 1."""
    d, k, sizes = layout.d, components, layout.sizes
    same = whole_map(np.zeros(d), np.eye(d))
    means = np.zeros((k, d))
    means[:, 0] = 10.0 * np.arange(k)
    pool = {
        "centre": np.zeros(d),
        "scale": np.ones(d),
        "told": np.ones(d),
        "map_centre": same.centre,
        "map_matrix": same.matrix,
        "map_exponent": same.exponent.astype(np.float64),
        "weights": np.append(np.full(k, 0.99 / k), 0.01),
        "means": means,
        "covariances": np.tile(np.eye(d), (k, 1, 1)),
        "known": np.full((k, KNOWN), 0.01),
        "lost": np.zeros(1),
        "atoms": np.zeros(d),
        "steps": np.zeros(d),
        "share": np.zeros(d),
        "missing": np.zeros(d),
    }
    if sizes:
        alike = np.repeat([1 / size for size in sizes], sizes)
        pool |= {"probabilities": np.tile(alike, (k + 1, 1)), "answers_known": np.full((k, len(sizes)), 0.01)}
    return {f"pooled_{name}": value for name, value in pool.items()}
