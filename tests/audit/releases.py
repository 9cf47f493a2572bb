"""What is audited: a table of configurations of the private pipeline. Every release that a configuration plans is
audited, whatever its name and shape; a new release needs one more row.

The audits use the public functions of the method only: `plan`, `init`, `message`, `client_update`, `release_values`,
`server_update`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import numpy as np

from fedcore.methods.histograms import Histograms, HistogramsConfig
from fedcore.methods.histograms.weights import WEIGHTS
from fedcore.population.blocks import CountsBlock
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import PublicFacts
from tests.audit import em_releases
from tests.histograms.example_clients import block_of
from tests.histograms.run_in_memory import answer


def ties(features: int, centres: int | None = None) -> dict[str, np.ndarray]:
    """Given centres that are turns of one another: a client with equal counts is as near to each of them as to any, up
    to the rounding of its scores.
    """
    weights = np.arange(1, features + 1) ** 1.5
    turns = [np.roll(weights, turn) for turn in range(centres or features)]
    return {"centres": np.stack(turns) / weights.sum()}


@dataclass(frozen=True)
class Case:
    """A configuration under audit.

    relation: of the plan. start: makes the given centres from the number of features; None: none are given.
    replaced: what replacing one client may do, as a multiple of the squared sensitivity of a plan under add/remove: 2
    for contributions whose inner products are not negative, 4 for those of any sign
    halves: whether the population is declared to hold two halves by document. A client's counts are then taken 64
    times, and the other way round in its second half
    one_whole: whether all releases are made of both
    """

    config: HistogramsConfig
    relation: str = "add_or_remove_one"
    start: Callable[[int], dict[str, np.ndarray]] | None = None
    replaced: int = 2
    halves: bool = False
    one_whole: bool = False

    @property
    def method(self) -> Histograms:
        return Histograms(self.config)

    def public(self, features: int, rho: float = 0.5, seed: int = 0) -> PublicFacts:
        start = None if self.start is None else self.start(features)
        known = PublicFacts("counts", features, 1024, 60, None, rho, seed, self.relation, start)
        return replace(known, halves="document", one_whole=self.one_whole) if self.halves else known

    def block(self, vectors) -> CountsBlock:
        """A block of these clients."""
        if not self.halves:
            return block_of(vectors)
        counts = 64 * np.asarray(vectors)
        return block_of(counts, heldout=counts[:, ::-1])

    def narrow(self, clip: float) -> Case:
        """The same with a clip that all clients reach."""
        return replace(self, config=self.config.model_copy(update={"clip": clip}))

    def allowed(self, planned: PlannedRelease, relation: str) -> int:
        """Largest squared L2 change of the array, in grid steps, when one client is added, or replaced."""
        if self.relation == relation or relation == "add_or_remove_one":
            return planned.sensitivity**2
        return (4 if planned.name == WEIGHTS else self.replaced) * planned.sensitivity**2


def _small(**settings) -> HistogramsConfig:
    return HistogramsConfig(**{"clusters": 2, "rounds": 2, "overseed": 2, **settings})


REPLACED = "replace_one"
CASES = {
    "clusters": Case(_small()),
    "merged": Case(_small(rounds=4, overseed=4, merge_after=2)),
    "one cell": Case(_small(clusters=1, rounds=1, overseed=1)),
    "narrow clip": Case(_small(clusters=3, rounds=1, overseed=3, clip=0.5)),
    "replaced": Case(_small(), REPLACED),
    "given": Case(_small(overseed=None), start=partial(ties, centres=2)),
    "many given": Case(_small(overseed=None), start=ties),
    "many given, replaced": Case(_small(overseed=None), REPLACED, ties),
    "frequency": Case(_small(reduction="frequency", keep=2)),
    "frequency, replaced": Case(_small(reduction="frequency", keep=1), REPLACED),
}
WITH_HALVES = {
    "halves": Case(_small(nominal_clients=10**6), halves=True),
    "halves, replaced": Case(_small(nominal_clients=10**6, personalisation="centre"), REPLACED, halves=True),
    "one whole": Case(_small(nominal_clients=10**6), halves=True, one_whole=True),
    "one whole, replaced": Case(_small(nominal_clients=10**6, rounds=3), REPLACED, halves=True, one_whole=True),
    "halves of one mean": Case(_small(clusters=1, rounds=None, overseed=None, nominal_clients=10**6), halves=True),
}


ALL = CASES | WITH_HALVES | em_releases.CASES


# --- published values that a run may meet ---------------------------------------------------------------------------


def as_planned(generator, planned, grid):
    return grid + np.rint(generator.normal(0.0, planned.scale, grid.shape)).astype(np.int64)


def far_out(generator, planned, grid):
    """Values that no noise gives: the bound must not rest on published values being near the truth."""
    return generator.integers(-(2**45), 2**45, grid.shape)


def nothing(generator, planned, grid):
    return np.zeros(grid.shape, np.int64)


def one_sided(generator, planned, grid):
    """All mass on one token, so that the metric of the others is at its floor and their whitening at its largest."""
    values = np.zeros(grid.shape, np.int64)
    values[..., -1] = 2**40
    return values


PUBLISHED = {"as planned": as_planned, "far out": far_out, "nothing": nothing, "one-sided": one_sided}


@dataclass(frozen=True)
class Round:
    """A round of a run: its message, and the releases that it makes."""

    message: object
    planned: list[PlannedRelease]


def rounds_of(
    case: Case, block: CountsBlock, seed: int = 0, published: str = "as planned", rho: float = 0.5
) -> Iterator[Round]:
    """All rounds of a run whose published values are made by `PUBLISHED[published]`."""
    method, public = case.method, case.public(block.features, rho, seed)
    plan, state, generator = list(method.plan(public)), method.init(public), np.random.default_rng(seed)
    for number in count(1):
        message = method.message(state)
        if message is None:
            return
        planned = [release for release in plan if release.round == number]
        yield Round(message, planned)
        grid = sums(case, message, block)
        assert grid.keys() == {release.name for release in planned}, "a round releases what is planned for it"
        result = {release.name: PUBLISHED[published](generator, release, grid[release.name]) for release in planned}
        state, _ = method.server_update(state, result)


def sums(case: Case, message, block: CountsBlock, clients_per_leaf: int = 1024) -> dict[str, np.ndarray]:
    """The exact sums that the engine would add noise to, by planned name."""
    return case.method.release_values(message, answer(case.method, message, block, clients_per_leaf))


def whole(array: np.ndarray) -> list[int]:
    """The entries as Python integers, which neither round nor wrap."""
    assert array.dtype == np.int64
    return [int(value) for value in array.ravel()]


def squared_distance(one: np.ndarray, other: np.ndarray) -> int:
    return sum((a - b) ** 2 for a, b in zip(whole(one), whole(other), strict=True))


def in_one_cell(planned: PlannedRelease) -> bool:
    """Whether the plan says that a client is in one cell: an entry of the first axis."""
    return " per client" in planned.composition
