"""What a search needs, from public numbers alone: noise on one side, a component of the least weight on the other.

    shells     2 sd sqrt(lag) < t / 2             else no ball is tried
    balls      t + 2 sd sqrt(bins) < 0.9 * 2 t    a component must pass the guard
    boxes      the threshold < 0.3 * 2 t          a box must catch 30 % of a component
    principal  2 sqrt(d) sd < 2 t s^2 / 4         noise of the second moment against that of two means s apart

with t half of what the least component holds, all in units, radii in those of the node's ball, and s = 0.75 of that
radius. It says what the noise allows, not that the data have such a structure. Source: the conditions that the guards
of `fedcore.methods.private_gmm.terrific` and `boxes` set, and the perturbation bound of Analyze Gauss (Dwork, Talwar,
Thakurta, Zhang 2014).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy

from fedcore.methods.private_gmm import sensitivities, terrific
from fedcore.methods.private_gmm.boxes import FALSE_BOXES
from fedcore.methods.private_gmm.config import PrivateGMMConfig
from fedcore.methods.private_gmm.integer_rows import ONE
from fedcore.methods.private_gmm.plan import SHIFTS, passes_of, plan, searches, sizes_of
from fedcore.methods.private_gmm.state import PrivateGMMState
from fedcore.rounds.method import PublicFacts, Worth

CANDIDATES = 2  # per component: what a search with little budget keeps
BINS = 14  # of a profile, up to the radius of a component
SEPARATION, CAUGHT, HELD = 0.75, 0.3, 0.9
HOPELESS, AMPLE = 2.5, 0.5  # what is needed, in what is there: from there on nothing is found; noise hardly matters


@dataclass(frozen=True, slots=True)
class Forecast:
    """units: that would be enough at this budget, 0 if the present number is; epsilon_factor: by which this run's
    epsilon would have to grow at the present number, about, 0 if it is enough."""

    units: float
    epsilon_factor: float

    def in_words(self, unit: str) -> str:
        """Describe what would be enough for separated components, to two digits. unit: "record" or "client"."""
        if not self.units:
            return "by its noise, the budget was enough for separated components"
        units = float(f"{self.units:.2g}")
        return (
            f"for separated components about {units:,.0f} {unit}s would be enough at this budget, or "
            f"{self.epsilon_factor:.2g} times this run's epsilon"
        )


def forecast(config: PrivateGMMConfig, state: PrivateGMMState) -> Forecast:
    """For a failed run: the t that its noise requires, relative to the t that its noisy count gave."""
    needed = max(needs_of(config, state.features, state.relation, state.noise).values())
    factor = needed / max(state.needed, 1e-9)
    return Forecast(2 * needed / config.w_min, factor) if factor > 1 else Forecast(0.0, 0.0)


def needs_of(config: PrivateGMMConfig, features: int, relation: str, noise: np.ndarray) -> dict[str, float]:
    """t that each condition asks for, in units. noise: standard deviations of the releases in grid steps."""
    sizes, passes = sizes_of(config, features), passes_of(config, features, relation)
    names = [item.name for each in passes for item in each.releases]
    sd = {name: float(scale) for name, scale in zip(names, noise, strict=True) if name.startswith("level0_")}
    ring = sd["level0_profiles"] / sensitivities.weight(sizes.candidates, CANDIDATES * sizes.k)
    halves = 2**sizes.qb * sizes.k * SHIFTS
    box = float(-scipy.special.ndtri(FALSE_BOXES / halves)) * sd["level0_boxes_0"] / ONE
    needs = {
        "shells": 2 * terrific.MARGIN * ring * math.sqrt(terrific.LAG),
        "balls": terrific.MARGIN * ring * math.sqrt(BINS) / (2 * HELD - 1),
        "boxes": box / (2 * CAUGHT),
    }
    if "level0_moments" in sd:
        needs["principal"] = 2 * math.sqrt(features) * sd["level0_moments"] / ONE**2 / (0.5 * SEPARATION**2)
    return needs


def worth(config: PrivateGMMConfig, public: PublicFacts) -> Worth | None:
    """None if no size was declared. A budget for records is described as if every client held one record; with more,
    the result is better. Raises ConfigError for what `fedcore.methods.private_gmm.plan.plan` refuses."""
    if public.nominal_clients is None:
        return None
    releases = plan(config, public)
    if not searches(config, public):
        return Worth("good", "the series knows all components, so that the run does not look for them")
    noise = np.array([release.scale for release in releases])
    needed = max(needs_of(config, public.features, public.relation, noise).values())
    factor = 2 * needed / (config.w_min * public.nominal_clients)
    if factor <= 1:
        return Worth("good" if factor <= AMPLE else "fair", "separated components are likely to be found")
    said = Forecast(2 * needed / config.w_min, factor).in_words(public.unit)
    hopeless = factor >= HOPELESS and public.unit == "client"
    return Worth("none" if hopeless else "weak", f"noise is likely to hide components of the least weight; {said}")
