"""The rounds of a run and what they release, known from config and public facts alone.

    a level   3 times (mean, radii), moments, `widths` times boxes, offsets, profiles     all its nodes at once
    leaves    radii, mean, radii, mean, covariance                                        all leaves at once

A unit is in one node of a level (a client: with a total mass of one), so a release costs the same for one node as for
all. Nothing that is found changes the schedule: a run that has found nothing ends early, one that has found all
components at an upper level sends the releases of the lower ones for its leaves, whose balls they make tighter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.packing import triangle
from fedcore.methods.private_gmm import sensitivities
from fedcore.methods.private_gmm.config import PrivateGMMConfig
from fedcore.methods.private_gmm.whole import MOST_FEATURES
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import PublicFacts

ARGUMENT = "docs/privacy/private-gmm.md"
SHIFTS = 2
BOUNDINGS = 3
NODE_SHARES = {"bounding": 0.15, "moments": 0.35, "boxes": 0.12, "offsets": 0.08, "profiles": 0.30}
LEAF_SHARES = {"counts": 0.05, "radii": 0.05, "mean": 0.15, "radii again": 0.05, "mean again": 0.30, "covariance": 0.40}
RADII_RATIO, LEAF_RATIO = 1.25, 1.1  # of the grids of radii
PROFILE_CELLS = 24  # radii of a profile: 2^17 steps downwards, ratio sqrt(GAP); and one cell for what is beyond
ONE_NODE = "one node of a level per {unit}: all nodes cost one release"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A release before it has its noise. share: of the budget."""

    name: str
    shape: tuple[int, ...]
    sensitivity: int
    share: float


@dataclass(frozen=True, slots=True)
class Pass:
    """A round. kind: "mean", "radii", "moments", "boxes", "offsets", "profiles", or of leaves: "leaf radii", "leaf
    mean", "leaf covariance". level: -1 for leaves. step: which of several of a kind. releases: what it makes."""

    kind: str
    level: int
    step: int
    releases: tuple[Wanted, ...]

    @property
    def last_of_level(self) -> bool:
        return self.kind == "profiles"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Shapes that config and schema fix. q: dimensions of a basis, qb: of the boxes; nodes: at most in a level;
    parents: boxes whose halves are counted; places: candidate centres of a level."""

    features: int
    q: int
    qb: int
    components: int
    covariance: str

    @property
    def parents(self) -> int:
        return max(3, self.components) * 2 * SHIFTS

    @property
    def places(self) -> int:
        return 8 * self.components

    def nodes(self, level: int) -> int:
        return 1 if level == 0 else self.components


def sizes_of(config: PrivateGMMConfig, features: int) -> Sizes:
    q = min(features, config.components)
    return Sizes(features, q, min(q, config.box_dimensions), config.components, config.covariance)


def edges(config: PrivateGMMConfig, ratio: float) -> list[float]:
    """Upper edges of the cells of a grid of radii, from sigma_min to twice the radius; rows beyond are in the last."""
    steps = math.ceil(math.log(2 * config.radius / config.finest) / math.log(ratio))
    return [config.finest * ratio**step for step in range(steps + 1)]


def schedule(config: PrivateGMMConfig, features: int, relation: str) -> list[Pass]:
    """All rounds in order. Raises ConfigError without a radius."""
    _check(config, features)
    passes: list[Pass] = []
    for level in range(config.levels):
        passes += _level(config, sizes_of(config, features), relation, level)
    return passes + _leaves(config, sizes_of(config, features), relation)


def _check(config: PrivateGMMConfig, features: int) -> None:
    if config.radius is None:
        raise ConfigError(
            "a private_gmm run needs the radius of a ball that holds nearly all rows.",
            "Set radius from what is known without looking at the data; rather too large than too small.",
        )
    if features > MOST_FEATURES:
        raise ConfigError(
            f"private_gmm reads at most {MOST_FEATURES} columns, not {features}.",
            "Choose columns, or project them by a public matrix.",
        )


def _level(config: PrivateGMMConfig, sizes: Sizes, relation: str, level: int) -> list[Pass]:
    nodes, d, share = sizes.nodes(level), sizes.features, config.partition_share / config.levels
    shares = {name: share * part for name, part in NODE_SHARES.items()}
    if d == sizes.q:  # nothing to project
        whole = 1 - NODE_SHARES["moments"]
        shares = {name: share * part / whole for name, part in NODE_SHARES.items()}
    one = shares["bounding"] / (2 * BOUNDINGS + 1)
    count, radii = sensitivities.counts(relation), len(edges(config, RADII_RATIO))

    def named(kind: str, step: int, *releases) -> Pass:
        made = tuple(Wanted(f"level{level}_{name}", *rest) for name, *rest in releases)
        return Pass(kind, level, step, made)

    passes = []
    for step in range(BOUNDINGS):
        mean = (f"mean_{step}", (nodes, d), sensitivities.sums(relation), one)
        counts = (("counts", (nodes,), count, one),) if step == 0 else ()
        passes.append(named("mean", step, *counts, mean))
        passes.append(named("radii", step, (f"radii_{step}", (nodes, radii), count, one)))
    if d > sizes.q:
        moments = sensitivities.moments(relation)
        passes.append(named("moments", 0, ("moments", (nodes, triangle(d)), moments, shares["moments"])))
    boxes = sensitivities.counts(relation, SHIFTS)
    for step in range(config.widths):
        shape = (max(sizes.parents, SHIFTS * nodes), 2**sizes.qb)
        passes.append(named("boxes", step, (f"boxes_{step}", shape, boxes, shares["boxes"] / config.widths)))
    offsets = sensitivities.sums(relation, SHIFTS * config.widths)
    passes.append(named("offsets", 0, ("offsets", (sizes.places, sizes.q), offsets, shares["offsets"])))
    profiles = sensitivities.counts(relation, sizes.places)
    passes.append(named("profiles", 0, ("profiles", (sizes.places, PROFILE_CELLS + 1), profiles, shares["profiles"])))
    return passes


def _leaves(config: PrivateGMMConfig, sizes: Sizes, relation: str) -> list[Pass]:
    k, d, radii = sizes.components, sizes.features, len(edges(config, LEAF_RATIO))
    shares = {name: (1 - config.partition_share) * part for name, part in LEAF_SHARES.items()}
    count, total = sensitivities.counts(relation), sensitivities.sums(relation)
    width, bound = {
        "spherical": (1, sensitivities.squares(relation)),
        "diag": (d, sensitivities.squares(relation)),
        "full": (triangle(d), sensitivities.moments(relation)),
    }[sizes.covariance]
    return [
        Pass(
            "leaf radii",
            -1,
            0,
            (
                Wanted("leaf_counts", (k,), count, shares["counts"]),
                Wanted("leaf_radii_0", (k, radii), count, shares["radii"]),
            ),
        ),
        Pass("leaf mean", -1, 0, (Wanted("leaf_mean_0", (k, d), total, shares["mean"]),)),
        Pass("leaf radii", -1, 1, (Wanted("leaf_radii_1", (k, radii), count, shares["radii again"]),)),
        Pass("leaf mean", -1, 1, (Wanted("leaf_mean_1", (k, d), total, shares["mean again"]),)),
        Pass("leaf covariance", -1, 0, (Wanted("leaf_covariance", (k, width), bound, shares["covariance"]),)),
    ]


def plan(config: PrivateGMMConfig, public: PublicFacts) -> list[PlannedRelease]:
    """All releases, with prices that, rounded up, sum to at most public.rho. Raises ConfigError."""
    if public.rho is None or not public.rho > 0:
        raise ConfigError("a private_gmm run needs a zCDP budget.", "Set a budget for the population.")
    if public.unit not in sensitivities.UNITS:
        raise ConfigError(f"a private_gmm run knows no unit {public.unit!r}.")
    passes, rho = schedule(config, public.features, public.relation), public.rho
    composition = ONE_NODE.format(unit=public.unit)
    while True:
        # Prices round up, hence a hair is kept back; the loop ends because the hair grows.
        rho *= 1.0 - 1e-12
        releases = [
            PlannedRelease(
                item.name,
                number,
                item.shape,
                item.sensitivity,
                math.sqrt(0.5 / (item.share * rho)),
                ARGUMENT,
                composition,
            )
            for number, each in enumerate(passes, start=1)
            for item in each.releases
        ]
        prices = [release.rho for release in releases]
        if max(sum(prices), math.fsum(prices)) <= public.rho:
            return releases
