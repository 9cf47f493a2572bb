"""The rounds of a run and what they release, known from config and public facts alone.

    count             number of units; per column a histogram of sign, exponent, missing        a range of each column
    centres, spans    three times: sums about a centre, then exponents of distances from it     centre and scale
    norms, moments    twice: norms of rows, then count, sum and products of rows cut to one     whitening
    norms, cells      norms in q leading directions, then four rounds of Lloyd                  starts
    norms             of rows from their nearest start                                          scale of the components
    components        `rounds` rounds of EM                                                     the mixture
    guard             its gain over one normal distribution                                     one, or a mixture
    `valleys`         for each edge between neighbouring components a histogram of places       groups

    If there are categories, rounds of EM also release answers by component and value.

    A run that starts from a profile knows centres and scales, and leaves out `centres` and `spans`.

    A run that continues a series has the last three kinds only, with the whole budget. Its start, which is public,
    shows whether it does.

    The background has separate sums in rounds of EM, the last of each release but `em_pooled`, which leaves it out.

Shapes are planned at their largest: K components, MOST_CELLS cells, K - 1 edges. Shares are of mu^2, that is of rho.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.packing import triangle
from fedcore.methods.mixture_models.whole_rows import MOST_FEATURES
from fedcore.methods.private_mixture import sensitivities
from fedcore.methods.private_mixture.config import PrivateMixtureConfig
from fedcore.methods.private_mixture.layout import layout_of, sizes_of
from fedcore.methods.private_mixture.profiled import ranges_in
from fedcore.methods.private_mixture.series import pool_in
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import PublicFacts

ARGUMENT = "docs/privacy/private-mixture.md"
OF_COLUMNS = (
    "what a {unit} adds sums to one cell or one number for each column at most: "
    "the bound is that of all columns together"
)
OF_COMPONENTS = "the shares of a {unit} sum to one at most: all components cost one release"
OF_ANSWERS = (
    "the shares of a {unit} sum to one at most in each category that it answers: the bound is that of all categories "
    "together"
)
OF_ONE = "what a {unit} adds sums to one cell or one vector at most: all cells cost one release"

Kind = Literal["columns", "centres", "spans", "norms", "moments", "cells", "components", "guard", "valleys"]

EXPONENTS = 30  # log2 of absolute values from -30 to 30
SPANS = 2 * EXPONENTS + 1
COLUMN_CELLS = 2 * SPANS + 1  # negative, positive, and nothing or too small; gaps have one more
NORM_CELLS = 58  # about ratios of 2^(1/4) from 2^-4 to 2^10, and two ends
PASSES = 3  # of centres and spans
OF_CELLS = 0.25  # of what columns, centres and spans get together
WHITENINGS = 2
LLOYD = 4
MOST_CELLS = 64
PLACE_CELLS, PLACE_ENDS = 12, 2
EM_PARTS = {"p": 0.08, "pv": 0.32, "pvv": 0.12, "pooled": 0.12, "own": 0.36}
EM_POOLED = {"p": 0.08, "pv": 0.32, "pvv": 0.12, "pooled": 0.48}
SHARES = {"em": 0.41, "guard": 0.01, "valleys": 0.08}
WARM_SHARES = {"em": 0.91, "guard": 0.01, "valleys": 0.08}  # of a run that continues a series
OWN_LIMIT = 1.5  # of the noise's edge for an average component, in its own variance
MOST_OF_ANSWERS = 0.5  # of a round's budget
ANSWERS = "em_answers"  # begins the names of their releases
EXTRA_REACH = 1.5  # of a component's clip beyond sqrt(d)
LARGEST_NOISE = 2.0**38  # grid steps; sums of 10^10 units and their noise stay far below 2^63


@dataclass(frozen=True, slots=True)
class ReleaseShare:
    """A release before the budget is known. share: of the budget."""

    name: str
    shape: tuple[int, ...]
    sensitivity: int
    share: float


@dataclass(frozen=True, slots=True)
class Phase:
    """A round. step: which of several of its kind. releases: what it makes."""

    kind: Kind
    step: int
    releases: tuple[ReleaseShare, ...]


@dataclass(frozen=True, slots=True)
class Design:
    """A run as it is planned. d: columns of numbers; k: components; q: leading directions; n: declared number of units;
    mu: of the whole run; own: whether each component's own matrix is released; warm: whether the run continues a
    series; profiled: whether it starts from a profile."""

    d: int
    k: int
    q: int
    n: int
    mu: float
    own: bool
    warm: bool
    profiled: bool
    phases: tuple[Phase, ...]


def reach_of(d: int) -> float:
    """C, the norm that a row in the units of a component is cut to."""
    return math.sqrt(d) + EXTRA_REACH


def design_of(
    config: PrivateMixtureConfig,
    features: int,
    units: int,
    rho: float,
    relation: str,
    warm: bool = False,
    profiled: bool = False,
) -> Design:
    """features: columns of numbers; units: the declared number of them; warm, profiled: as in `Design`.
    Raises ConfigError for too many columns or an unknown relation."""
    if features > MOST_FEATURES:
        raise ConfigError(
            f"private_mixture reads at most {MOST_FEATURES} columns, not {features}.",
            "Choose columns, or project them by a public matrix.",
        )
    d, k, mu = features, config.components, math.sqrt(2 * rho)
    q = min(d, max(2, min(k + 1, 8)))
    noise = 2 * math.sqrt(d) * reach_of(d) ** 2 * k / (math.sqrt(2) * mu * units)
    own = noise < OWN_LIMIT
    if warm:
        phases = _last_phases(config, d, k, own, relation, WARM_SHARES)
    else:
        c = min(max(3 * d * (24 / units) ** 2 / (0.4 * mu**2), 0.06), 0.25)
        passes = 0 if profiled else PASSES
        rest = (0.995 - (c if passes else OF_CELLS * c)) / 0.9
        phases = _first_phases(d, q, c, rest, relation, passes)
        phases += _last_phases(config, d, k, own, relation, {name: rest * part for name, part in SHARES.items()})
    return Design(d, k, q, units, mu, own, warm, profiled, tuple(phases))


def _first_phases(d: int, q: int, c: float, rest: float, relation: str, passes: int) -> list[Phase]:
    """Phases that a run of a continued series does not need: columns, coordinates, starts. passes: of centres and
    spans."""
    count, vector = sensitivities.counts(relation), sensitivities.sums(relation)
    columns, moments = sensitivities.counts(relation, d), sensitivities.moments(relation)
    phases = list[Phase]()

    def add(kind: Kind, step: int, *releases: ReleaseShare) -> None:
        phases.append(Phase(kind, step, releases))

    def norms(step: int) -> None:
        add("norms", step, ReleaseShare(f"norms_{step}", (NORM_CELLS,), count, rest * 0.02 / 4))

    add(
        "columns",
        0,
        ReleaseShare("count", (1,), count, 0.005),
        ReleaseShare("columns", (d, COLUMN_CELLS + 1), columns, OF_CELLS * c),
    )
    for step in range(passes):
        summed = ReleaseShare(f"centres_{step}", (d,), sensitivities.sums(relation, d), 0.35 * c / PASSES)
        add("centres", step, summed)
        add("spans", step, ReleaseShare(f"spans_{step}", (d, SPANS), columns, 0.40 * c / PASSES))
    for step, part in enumerate((0.4, 0.6)):
        norms(step)
        share = rest * 0.18 * part
        add(
            "moments",
            step,
            ReleaseShare(f"moments_count_{step}", (1,), count, 0.05 * share),
            ReleaseShare(f"moments_sum_{step}", (d,), vector, 0.25 * share),
            ReleaseShare(f"moments_{step}", (triangle(d),), moments, 0.70 * share),
        )
    norms(2)
    for step in range(LLOYD):
        share = rest * 0.20 / LLOYD
        add(
            "cells",
            step,
            ReleaseShare(f"cells_{step}", (MOST_CELLS,), count, 0.2 * share),
            ReleaseShare(f"cells_sum_{step}", (MOST_CELLS, q), vector, 0.8 * share),
        )
    norms(3)
    return phases


def _last_phases(
    config: PrivateMixtureConfig, d: int, k: int, own: bool, relation: str, shares: dict[str, float]
) -> list[Phase]:
    """Rounds of EM, the guard and the unimodality tests. shares: of the budget."""
    count, vector = sensitivities.counts(relation), sensitivities.sums(relation)
    moments, phases = sensitivities.moments(relation), list[Phase]()

    def add(kind: Kind, step: int, *releases: ReleaseShare) -> None:
        phases.append(Phase(kind, step, releases))

    sizes = sizes_of(config.categories)
    answers = share_of_answers(sizes, d)
    for step, of_round in enumerate(em_shares(config.rounds)):
        whole = shares["em"] * of_round
        rest = whole * (1.0 - answers)
        parts = {name: rest * each for name, each in (EM_PARTS if own else EM_POOLED).items()}
        releases = [
            ReleaseShare(f"em_p_{step}", (k + 1,), count, parts["p"]),
            ReleaseShare(f"em_pv_{step}", (k + 1, d), vector, parts["pv"]),
            ReleaseShare(f"em_pvv_{step}", (k + 1,), count, parts["pvv"]),
            ReleaseShare(f"em_pooled_{step}", (triangle(d),), moments, parts["pooled"]),
        ]
        if own:
            releases.append(ReleaseShare(f"em_own_{step}", (k + 1, triangle(d)), moments, parts["own"]))
        if sizes:
            of_answers = sensitivities.counts(relation, len(sizes))
            releases.append(ReleaseShare(f"{ANSWERS}_{step}", (k + 1, sum(sizes)), of_answers, whole * answers))
        add("components", step, *releases)
    add("guard", 0, ReleaseShare("guard", (1,), vector, shares["guard"]))
    places = (max(k - 1, 1), PLACE_CELLS + PLACE_ENDS)
    add("valleys", 0, ReleaseShare("valleys", places, count, shares["valleys"]))
    return phases


def share_of_answers(sizes: tuple[int, ...], d: int) -> float:
    """Of a round of EM: what makes the loss by the noise of answers and that by the noise of numbers fall alike.

    With noise of s in the units of a release, a component of n units loses by its mean (d / 2) (C s / n)^2 nats a unit,
    by its covariance (d^2 / 8) (C^2 s / n)^2, about, and by its probabilities (1 / 2) sum_v (sqrt(G) s / n)^2 / p_v,
    which is G sum V^2 / 2 (s / n)^2 for G categories of V values that are as likely. s^2 is one over the share. So the
    sum of all is least where answers and numbers share as the roots of what they lose.
    """
    answers = len(sizes) * sum(size**2 for size in sizes) / 2
    squared = d * reach_of(d) ** 2
    numbers = squared / 2 / EM_POOLED["pv"] + squared**2 / 8 / EM_POOLED["pooled"]
    ratio = math.sqrt(answers / numbers)
    return min(ratio / (1.0 + ratio), MOST_OF_ANSWERS)


def em_shares(rounds: int) -> list[float]:
    """Of the budget of all rounds of EM: squares of a line from 0.7 to 1.5, so that the last ones are the most
    precise."""
    line = [0.7 + 0.8 * (step / (rounds - 1) if rounds > 1 else 1.0) for step in range(rounds)]
    total = sum(each**2 for each in line)
    return [each**2 / total for each in line]


def units_of(config: PrivateMixtureConfig, public: PublicFacts) -> int:
    """The declared number of units. Raises ConfigError if none was declared."""
    if public.unit == "record" and config.nominal_records is not None:
        return config.nominal_records
    if public.nominal_clients is None:
        raise ConfigError(
            "a private_mixture run needs the public size of the population.",
            "Set nominal_clients in the settings (of a budget for records, nominal_records), or declare it when the "
            "population is made.",
        )
    return public.nominal_clients


def planned_design(config: PrivateMixtureConfig, public: PublicFacts) -> Design:
    """Raises ConfigError without a budget or a size, for too many columns, for a relation or unit that the method
    has no argument for, for columns that there are not, or for a start that no run of the series leaves."""
    if public.rho is None or not public.rho > 0:
        raise ConfigError("a private_mixture run needs a privacy budget.", "Set a budget for the population.")
    if public.unit not in sensitivities.UNITS:
        raise ConfigError(f"a private_mixture run knows no unit {public.unit!r}.")
    layout = layout_of(config, public.features)
    warm = pool_in(public, config.components, layout) is not None
    profiled = ranges_in(public, layout) is not None
    return design_of(config, layout.d, units_of(config, public), public.rho, public.relation, warm, profiled)


def plan(config: PrivateMixtureConfig, public: PublicFacts) -> list[PlannedRelease]:
    """All releases, with privacy costs that, rounded up, sum to at most public.rho. Raises what `planned_design`
    raises, and ConfigError for a budget so small that noise would be wider than LARGEST_NOISE."""
    design = planned_design(config, public)
    assert public.rho is not None
    total = math.fsum(item.share for phase in design.phases for item in phase.releases)
    rho = public.rho / max(total, 1.0)
    while True:
        rho *= 1.0 - 1e-12  # costs round up, hence a hair is kept back; the loop ends because the hair grows
        releases = _priced(design.phases, rho, public.unit)
        prices = [release.rho for release in releases]
        if max(sum(prices), math.fsum(prices)) <= public.rho:
            break
    if max(release.scale for release in releases) > LARGEST_NOISE:
        raise ConfigError(
            "the budget of this private_mixture run is too small: its noise would be wider than sums can hold.",
            "Give the run a larger epsilon, or ask for fewer rounds.",
        )
    return releases


def _priced(phases: Sequence[Phase], rho: float, unit: str) -> list[PlannedRelease]:
    return [
        PlannedRelease(
            item.name,
            number,
            item.shape,
            item.sensitivity,
            math.sqrt(0.5 / (item.share * rho)),
            ARGUMENT,
            composition_of(phase, item).format(unit=unit),
        )
        for number, phase in enumerate(phases, start=1)
        for item in phase.releases
    ]


def composition_of(phase: Phase, item: ReleaseShare) -> str:
    """The sentence of the statement, with a place for the unit."""
    if phase.kind == "components":
        return OF_ANSWERS if item.name.startswith(ANSWERS) else OF_COMPONENTS
    return OF_COLUMNS if phase.kind in ("columns", "centres", "spans") and item.name != "count" else OF_ONE
