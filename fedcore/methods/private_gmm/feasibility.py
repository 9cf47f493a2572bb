"""What a search needs, from public numbers alone: noise on one side, a component of the least weight on the other.

    shells     2 sd sqrt(lag) < t / 2             else no ball is tried
    balls      t + 2 sd sqrt(cells) < 0.9 * 2 t   a component must pass the guard
    boxes      the threshold < 0.3 * 2 t          a box must catch 30 % of a component
    principal  2 sqrt(d) sd < 2 t s^2 / 4         noise of the second moment against that of two means s apart

with t half of what the least component holds, all in units, radii in those of the node's ball, and s = 0.75 of that
radius. It says what the noise allows, not that the data have such a structure. Source: the conditions that the guards
of `fedcore.methods.private_gmm.split` and `candidates` set, and the perturbation bound of Analyze Gauss (Dwork, Talwar,
Thakurta, Zhang 2014).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from fedcore.errors import ConfigError
from fedcore.methods.private_gmm import sensitivities, split
from fedcore.methods.private_gmm.candidates import FALSE_BOXES
from fedcore.methods.private_gmm.config import PrivateGMMConfig
from fedcore.methods.private_gmm.schedule import SHIFTS, plan, schedule, sizes_of
from fedcore.methods.private_gmm.whole import ONE
from fedcore.rounds.method import PublicFacts

CANDIDATES = 2  # per component: what a search with little budget keeps
CELLS = 14  # of a profile, up to the radius of a component
SEPARATION, CAUGHT, HELD = 0.75, 0.3, 0.9


@dataclass(frozen=True, slots=True)
class Forecast:
    """units: that would be enough at this budget, 0 if the present number is; epsilon_factor: by which this run's
    epsilon would have to grow at the present number, about, 0 if it is enough; limit: what needs most; needs: t in
    units that each condition asks for.
    """

    units: float
    epsilon_factor: float
    limit: str
    needs: dict[str, float]

    def in_words(self, unit: str) -> str:
        """What would be enough for components that lie apart, to two digits. unit: "record" or "client"."""
        if not self.units:
            return "going by its noise, the budget was enough for components that lie apart"
        units = float(f"{self.units:.2g}")
        return (
            f"for components that lie apart about {units:,.0f} {unit}s would be enough at this budget, or "
            f"{self.epsilon_factor:.2g} times this run's epsilon"
        )


def needs_of(config: PrivateGMMConfig, features: int, relation: str, noise: np.ndarray) -> dict[str, float]:
    """t that each condition asks for, in units. noise: standard deviations of the releases in grid steps."""
    sizes, passes = sizes_of(config, features), schedule(config, features, relation)
    wanted = [item.name for each in passes for item in each.releases]
    sd = {name: float(scale) for name, scale in zip(wanted, noise, strict=True) if name.startswith("level0_")}
    ring = sd["level0_profiles"] / sensitivities.weight(sizes.places, CANDIDATES * sizes.components)
    cells = 2**sizes.qb * sizes.components * SHIFTS
    box = float(-ndtri(FALSE_BOXES / cells)) * sd["level0_boxes_0"] / ONE
    needs = {
        "shells": 2 * split.MARGIN * ring * math.sqrt(split.LAG),
        "balls": split.MARGIN * ring * math.sqrt(CELLS) / (2 * HELD - 1),
        "boxes": box / (2 * CAUGHT),
    }
    if "level0_moments" in sd:
        needs["principal"] = 2 * math.sqrt(features) * sd["level0_moments"] / ONE**2 / (0.5 * SEPARATION**2)
    return needs


def forecast(config: PrivateGMMConfig, state) -> Forecast:
    """For a run that has failed: its noise, and the t that its own count of units gave."""
    needs = needs_of(config, state.tree_centre.shape[1], state.relation, state.noise)
    return _forecast(config, needs, state.needed)


def feasible(config: PrivateGMMConfig, public: PublicFacts, units: float | None = None) -> Forecast:
    """Before a run: what this budget (public.rho) needs, beside so many units; the nominal number by default.

    Raises ConfigError if no number is given and none is public, and what `plan` raises.
    """
    units = units if units is not None else config.nominal_clients or public.nominal_clients
    if units is None:
        raise ConfigError("a forecast needs a number of units.", "Give one, or declare the population's nominal size.")
    noise = np.array([release.scale for release in plan(config, public)])
    return _forecast(config, needs_of(config, public.features, public.relation, noise), 0.5 * config.share * units)


def _forecast(config: PrivateGMMConfig, needs: dict[str, float], present: float) -> Forecast:
    limit = max(needs, key=needs.get)
    factor = needs[limit] / max(present, 1e-9)
    if factor <= 1:
        return Forecast(0.0, 0.0, "", needs)
    return Forecast(2 * needs[limit] / config.share, factor, limit, needs)
