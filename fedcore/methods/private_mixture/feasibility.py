"""The expected utility of a run, from public and released numbers: noise on one side, n units on the other.

    columns   what is in WINDOW cells of a column with one typical size, relative to the least that stands out of noise
    edge      the largest eigenvalue that noise alone gives to the second whitening, where true ones are about 1.
              Before a run it is that of usual rows; from the second whitening on that of the released clip and count
    first     the same of the first whitening. Where it is large, rows are cut further out than usual in the second
    `valley`  the peak of a component that holds n / K units, over a dip to LOW of it, in deviations

Borders come from simulated runs (docs/notes/private-mixture.md): 2 to 8 components 6 of the largest standard deviation
apart, in 2 to 50 columns, with 500 to 8000 records at epsilon 0.3 to 4. The forecast shows what the noise allows, not
that the data have such groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedcore.methods.mixture_models.noised_cells import SURE, WINDOW
from fedcore.methods.mixture_models.whole_rows import ONE
from fedcore.methods.private_mixture.columns import missing_shares
from fedcore.methods.private_mixture.config import PrivateMixtureConfig
from fedcore.methods.private_mixture.layout import layout_of
from fedcore.methods.private_mixture.plan import WHITENINGS, design_of, plan, units_of
from fedcore.methods.private_mixture.series import pool_in
from fedcore.methods.private_mixture.state import PrivateMixtureState
from fedcore.methods.private_mixture.whitening import noise_edge
from fedcore.rounds.method import PublicFacts, Worth

Word = Literal["none", "weak", "fair", "good"]

HELD = 0.9  # of a column's units, in WINDOW cells
BEYOND = 1.64  # of norms beyond sqrt(d), at which whitened rows are cut
PEAK, LOW = 0.2, 0.3  # of a component's units in the fullest cell of an edge; of that in the dip
TOLD, LOST, ROUGH, FINE = 1.0, 4.0, 1.5, 0.75  # columns at least; edges at most: of any use, for groups, for both
GROUPS, SURELY = 1.5, 3.0  # least depths of dips, in deviations
SMALL = "; groups of less than 3 % of the rows are mostly missed"
EXPECT: dict[Word, str] = {
    "none": "noise hides the columns, so that not even one normal distribution can be estimated well",
    "weak": "a rough density; groups of equal size would not be separated",
    "fair": f"a density, and perhaps groups of equal size that are well separated{SMALL}",
    "good": f"a density, and groups of equal size that are well separated{SMALL}",
}
STEP, MOST_STEPS = 1.1, 200  # of the search for a number of units that would be enough


@dataclass(frozen=True, slots=True)
class Strength:
    """As in the module's table."""

    columns: float
    edge: float
    valley: float
    first: float

    @property
    def word(self) -> Word:
        if self.columns < TOLD or self.edge > LOST:
            return "none"
        if self.valley < GROUPS or self.edge > ROUGH:
            return "weak"
        return "good" if self.valley >= SURELY and max(self.edge, self.first) <= FINE else "fair"


def strength(config: PrivateMixtureConfig, public: PublicFacts) -> Strength:
    """Strength of a run that begins from nothing. Raises ConfigError for what
    `fedcore.methods.private_mixture.plan.plan` refuses."""
    n, d = units_of(config, public), layout_of(config, public.features).d
    return _strength({release.name: release.scale for release in plan(config, public)}, n, d, config.components)


def words_of(config: PrivateMixtureConfig, state: PrivateMixtureState) -> tuple[Word, Word]:
    """The word before the run, and the one since the second whitening, which is never a better one. Density dips are
    searched in complete rows alone. There are taken to be as many as if gaps of columns were independent."""
    facts = state.features, state.declared, state.rho, state.relation
    phases = design_of(config, *facts, profiled=state.profiled).phases
    names = [item.name for phase in phases for item in phase.releases]
    noise = dict(zip(names, state.noise.tolist(), strict=True))
    before = _strength(noise, state.declared, state.features, config.components)
    complete = state.declared * float(np.prod(1.0 - missing_shares(config, state)))
    valley = _valley(noise["valleys"], complete, config.components)
    return before.word, replace(before, edge=max(before.edge, state.edge), valley=min(before.valley, valley)).word


def _strength(noise: Mapping[str, float], n: int, d: int, components: int) -> Strength:
    """noise: by release, in steps; n: units; d: columns of numbers."""
    columns = math.inf  # known from a profile
    if "spans_0" in noise:
        cell = min(noise["spans_0"], math.sqrt(2) * noise["columns"]) / ONE
        columns = HELD * n / (SURE * math.sqrt(WINDOW) * cell)
    first, edge = (noise_edge(noise[f"moments_{step}"], d, math.sqrt(d) + BEYOND, n) for step in range(WHITENINGS))
    return Strength(columns, edge, _valley(noise["valleys"], n, components), first)


def _valley(noise: float, n: float, components: int) -> float:
    """noise: in steps; n: rows in which density dips are searched."""
    peak = PEAK * n / components
    return (1 - LOW) * peak / math.sqrt(2 * (noise / ONE) ** 2 + (1 + LOW) * peak)


def noise_of_answers(config: PrivateMixtureConfig, public: PublicFacts) -> float:
    """Standard deviation of the noise in a probability of the last round of EM, in a component that holds n / K units;
    0 without categories. Raises ConfigError for what `fedcore.methods.private_mixture.plan.plan` refuses."""
    scales = [release.scale for release in plan(config, public) if release.name.startswith("em_answers")]
    return scales[-1] / ONE * config.components / units_of(config, public) if scales else 0.0


def enough(config: PrivateMixtureConfig, public: PublicFacts) -> float:
    """About how many units would make a good run at this budget; infinite if no number that was tried does."""
    n = float(units_of(config, public))
    for _ in range(MOST_STEPS):
        declared = config.model_copy(update={"nominal_records": math.ceil(n)})
        if strength(declared, replace(public, nominal_clients=math.ceil(n))).word == "good":
            return n
        n *= STEP
    return math.inf


def worth(config: PrivateMixtureConfig, public: PublicFacts) -> Worth:
    """Raises ConfigError for what `fedcore.methods.private_mixture.plan.plan` refuses."""
    if (pool := pool_in(public, config.components, layout_of(config, public.features))) is not None:
        return Worth("good", f"the run continues with {len(pool.means)} components that its series knows")
    word = strength(config, public).word
    expect = EXPECT[word]
    if word != "good" and math.isfinite(units := enough(config, public)):
        expect += f"; about {float(f'{units:.2g}'):,.0f} {public.unit}s would be enough for a good one at this budget"
    if (points := 100 * noise_of_answers(config, public)) > 0:
        expect += (
            f"; probabilities of answers, in a component of equal size, with noise of about {float(f'{points:.2g}'):g} "
            "percentage points before they are drawn to those of all"
        )
    return Worth(word, expect)
