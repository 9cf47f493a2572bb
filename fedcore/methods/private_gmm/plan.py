"""The passes of a run and what they release, known from config and public facts alone.

    a level       3 times (mean, radii), moments, `widths` times boxes, offsets, profiles     all its nodes at once
    estimation    radii, mean, radii, mean, `valleys`, covariance                             all cells at once

A run of a series that already knows the requested number of components does not search. It has only the passes of the
estimation, without the unimodality test, and they use the whole budget. Its start, which is public, determines this.

A unit is in one node of a level (a client: with a total mass of one), so a release costs the same for one node as for
all. Nothing that is found changes the plan: a run that has found nothing ends early; one that has found all components
at an upper level still makes the releases of the lower levels, which make the balls of its cells tighter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.packing import triangle
from fedcore.methods.private_gmm import sensitivities
from fedcore.methods.private_gmm.config import PrivateGMMConfig
from fedcore.methods.private_gmm.integer_rows import MOST_FEATURES
from fedcore.methods.private_gmm.series import pool_in, width_of
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import PublicFacts

ARGUMENT = "docs/privacy/private-gmm.md"
SHIFTS = 2  # random positions of the boxes
BOUNDING_ROUNDS = 3
NODE_SHARES = {"bounding": 0.15, "moments": 0.35, "boxes": 0.12, "offsets": 0.08, "profiles": 0.30}
VALLEYS = 0.12  # of the cells' share, in runs that search
CELL_SHARES = {"counts": 0.05, "radii": 0.05, "mean": 0.15, "radii again": 0.05, "mean again": 0.30, "covariance": 0.40}
NODE_RATIO, CELL_RATIO = 1.25, 1.1  # of the grids of radii, for nodes of a level and for cells
PROFILE_RADII = 24  # of a profile: 2^17 steps downwards, ratio sqrt(GAP); a further bin takes what is beyond
ESTIMATION = -1  # in place of a level, for the passes over the cells
PLACE_CELLS, PLACE_ENDS = 12, 2  # of a histogram of places between two components
ONE_NODE = "one node of a level per {unit}: all nodes cost one release"
ONE_PLACE = "what a {unit} adds on all lines has the norm of one count at most: all lines cost one release"

PassKind = Literal[
    "mean",
    "radii",
    "moments",
    "boxes",
    "offsets",
    "profiles",
    "leaf radii",
    "leaf mean",
    "leaf valleys",
    "leaf covariance",
]


@dataclass(frozen=True, slots=True)
class ReleaseShare:
    """A release before the budget is known. share: of the budget."""

    name: str
    shape: tuple[int, ...]
    sensitivity: int
    share: float


@dataclass(frozen=True, slots=True)
class Pass:
    """A round. level: ESTIMATION for the cells. step: which of several passes of its kind. releases: what it makes."""

    kind: PassKind
    level: int
    step: int
    releases: tuple[ReleaseShare, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that config and schema fix. d: columns; q: dimensions of a basis; qb: of the boxes; k: components."""

    d: int
    q: int
    qb: int
    k: int

    @property
    def boxes(self) -> int:
        """Boxes whose halves a pass counts, at most."""
        return max(3, self.k) * 2 * SHIFTS

    @property
    def candidates(self) -> int:
        """Candidate centres of a level, at most."""
        return 8 * self.k

    def nodes(self, level: int) -> int:
        """Nodes of a level, at most."""
        return 1 if level == 0 else self.k


def sizes_of(config: PrivateGMMConfig, features: int) -> Sizes:
    q = min(features, config.components)
    return Sizes(features, q, min(q, config.box_dimensions), config.components)


def radius_grid(config: PrivateGMMConfig, ratio: float) -> list[float]:
    """Upper edges of the bins of a histogram of radii, from sigma_min to twice the radius; rows beyond are in the last
    bin."""
    steps = math.ceil(math.log(2 * config.public_radius / config.sigma_floor) / math.log(ratio))
    return [config.sigma_floor * ratio**step for step in range(steps + 1)]


def searches(config: PrivateGMMConfig, public: PublicFacts) -> bool:
    """Whether the run looks for components: not if its series knows all of them, and where they are. Raises ConfigError
    for a start that no run of the series leaves."""
    pool = pool_in(public.warm_start, public.features, config.covariance)
    return bool(pool.lost[0]) or len(pool.found) != config.components


def passes_of(config: PrivateGMMConfig, features: int, relation: str, searches: bool = True) -> list[Pass]:
    """All rounds in order. Raises ConfigError without a radius, or for too many columns."""
    _ = config.public_radius
    if features > MOST_FEATURES:
        raise ConfigError(
            f"private_gmm reads at most {MOST_FEATURES} columns, not {features}.",
            "Choose columns, or project them by a public matrix.",
        )
    sizes = sizes_of(config, features)
    if not searches:
        return [*_passes_of_estimation(config, sizes, relation, 1.0, valleys=0.0)]
    passes = [one for level in range(config.levels) for one in _passes_of_a_level(config, sizes, relation, level)]
    return [*passes, *_passes_of_estimation(config, sizes, relation, 1 - config.partition_share, valleys=VALLEYS)]


def _passes_of_a_level(config: PrivateGMMConfig, sizes: Sizes, relation: str, level: int) -> Iterator[Pass]:
    nodes, d, share = sizes.nodes(level), sizes.d, config.partition_share / config.levels
    shares = {name: share * part for name, part in NODE_SHARES.items()}
    if d == sizes.q:  # nothing to project
        whole = 1 - NODE_SHARES["moments"]
        shares = {name: share * part / whole for name, part in NODE_SHARES.items()}
    bounding = shares["bounding"] / (2 * BOUNDING_ROUNDS + 1)
    count, radii = sensitivities.counts(relation), len(radius_grid(config, NODE_RATIO))

    def release(name: str, shape: tuple[int, ...], sensitivity: int, share: float) -> ReleaseShare:
        return ReleaseShare(f"level{level}_{name}", shape, sensitivity, share)

    for step in range(BOUNDING_ROUNDS):
        counts = (release("counts", (nodes,), count, bounding),) if step == 0 else ()
        mean = release(f"mean_{step}", (nodes, d), sensitivities.sums(relation), bounding)
        yield Pass("mean", level, step, (*counts, mean))
        yield Pass("radii", level, step, (release(f"radii_{step}", (nodes, radii), count, bounding),))
    if d > sizes.q:
        moments = release("moments", (nodes, triangle(d)), sensitivities.moments(relation), shares["moments"])
        yield Pass("moments", level, 0, (moments,))
    for step in range(config.widths):
        shape = (max(sizes.boxes, SHIFTS * nodes), 2**sizes.qb)
        boxes = sensitivities.counts(relation, SHIFTS)
        yield Pass("boxes", level, step, (release(f"boxes_{step}", shape, boxes, shares["boxes"] / config.widths),))
    offsets = sensitivities.sums(relation, SHIFTS * config.widths)
    yield Pass("offsets", level, 0, (release("offsets", (sizes.candidates, sizes.q), offsets, shares["offsets"]),))
    shape, profiles = (sizes.candidates, PROFILE_RADII + 1), sensitivities.counts(relation, sizes.candidates)
    yield Pass("profiles", level, 0, (release("profiles", shape, profiles, shares["profiles"]),))


def _passes_of_estimation(
    config: PrivateGMMConfig, sizes: Sizes, relation: str, share: float, valleys: float
) -> Iterator[Pass]:
    """`valleys`: of the share; 0: no such pass."""
    k, d, radii = sizes.k, sizes.d, len(radius_grid(config, CELL_RATIO))
    shares = {name: share * (1 - valleys) * part for name, part in CELL_SHARES.items()}
    count, total = sensitivities.counts(relation), sensitivities.sums(relation)
    width, full = width_of(config.covariance, d), config.covariance == "full"
    bound = sensitivities.moments(relation) if full else sensitivities.squares(relation)
    counts = ReleaseShare("leaf_counts", (k,), count, shares["counts"])
    first_radii = ReleaseShare("leaf_radii_0", (k, radii), count, shares["radii"])
    yield Pass("leaf radii", ESTIMATION, 0, (counts, first_radii))
    yield Pass("leaf mean", ESTIMATION, 0, (ReleaseShare("leaf_mean_0", (k, d), total, shares["mean"]),))
    last_radii = ReleaseShare("leaf_radii_1", (k, radii), count, shares["radii again"])
    yield Pass("leaf radii", ESTIMATION, 1, (last_radii,))
    yield Pass("leaf mean", ESTIMATION, 1, (ReleaseShare("leaf_mean_1", (k, d), total, shares["mean again"]),))
    if valleys:
        places = ReleaseShare("leaf_valleys", (k - 1, PLACE_CELLS + PLACE_ENDS), count, share * valleys)
        yield Pass("leaf valleys", ESTIMATION, 0, (places,))
    covariance = ReleaseShare("leaf_covariance", (k, width), bound, shares["covariance"])
    yield Pass("leaf covariance", ESTIMATION, 0, (covariance,))


def plan(config: PrivateGMMConfig, public: PublicFacts) -> list[PlannedRelease]:
    """All releases, with privacy costs that, rounded up, sum to at most public.rho.

    Raises ConfigError without a budget or a radius, for too many columns, for a relation or a unit that the method has
    no argument for, or for a start that no run of the series leaves.
    """
    if public.rho is None or not public.rho > 0:
        raise ConfigError("a private_gmm run needs a privacy budget.", "Set a budget for the population.")
    if public.unit not in sensitivities.UNITS:
        raise ConfigError(f"a private_gmm run knows no unit {public.unit!r}.")
    passes = passes_of(config, public.features, public.relation, searches(config, public))
    rho = public.rho
    while True:
        # Costs round up, hence a hair is kept back; the loop ends because the hair grows.
        rho *= 1.0 - 1e-12
        releases = [
            PlannedRelease(
                item.name,
                number,
                item.shape,
                item.sensitivity,
                math.sqrt(0.5 / (item.share * rho)),
                ARGUMENT,
                (ONE_PLACE if each.kind == "leaf valleys" else ONE_NODE).format(unit=public.unit),
            )
            for number, each in enumerate(passes, start=1)
            for item in each.releases
        ]
        prices = [release.rho for release in releases]
        if max(sum(prices), math.fsum(prices)) <= public.rho:
            return releases
