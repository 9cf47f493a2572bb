"""The releases of a private run, their privacy cost and their expected utility, from public numbers only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.private.clients import ENERGIES, SHARES, sums_cells, triangle
from fedcore.methods.dictionaries.start import RELEASED, global_atoms_of, rounds_of
from fedcore.methods.dictionary_learning.operators import random_atoms
from fedcore.privacy.grid import GRID_NORM
from fedcore.privacy.plan import PlannedRelease
from fedcore.randomness import stream
from fedcore.rounds.method import PublicFacts, Worth

ARGUMENT = "docs/privacy/dictionaries.md"
SPREADS = {"add_or_remove_one": 1, "replace_one": 2}  # sensitivity of a release, in norms of a client's vector
SCALE, MOMENTS = "scale", "moments"
SCALE_SHARE, MOMENTS_SHARE = 0.02, 0.13  # of a run's budget; rounds share the rest

Word = Literal["weak", "fair", "good"]
LIKELY_CLIP = 0.05  # in units of the typical energy; clients with some 50 rows had 0.02 to 0.1
GOOD, FAIR = 0.2, 1.0  # at most: nu of an atom that has an equal share of the energy
COSINES = 1.35  # nu up to which learnt atoms left less than as many public cosines (notes/privacy-dictionaries.md)
EXPECT: dict[Word, str] = {
    "weak": "noise moves atoms about as far as clients do; fewer atoms may be better",
    "fair": "a dictionary that is better than its start, and short of one without noise",
    "good": "a dictionary near one without noise",
}


def release_name(number: int) -> str:
    """Planned name of the sums of round 1 .. T."""
    return f"sums_{number:04d}"


def begins_given(public: PublicFacts) -> bool:
    """Whether the run starts from given atoms."""
    return public.warm_start is not None and "global" in public.warm_start


def nominal(public: PublicFacts) -> int:
    """The declared number of clients who take part. Raises ConfigError if none was declared."""
    if public.nominal_clients is None:
        raise ConfigError(
            "a private dictionary run needs a declared number of clients, because the exact one is not public.",
            "Pass --set nominal_clients=N, or declare it at ingest (`--declared-clients N`).",
        )
    return public.nominal_clients


def shape_of(config: DictionariesConfig, public: PublicFacts) -> tuple[int, int]:
    """(r, d) of the atoms; those of a start that is given, where the settings leave their number open."""
    if config.global_atoms is None and begins_given(public):
        assert public.warm_start is not None
        return len(public.warm_start["global"]), public.features
    return global_atoms_of(config, public.features), public.features


def plan(config: DictionariesConfig, public: PublicFacts) -> list[PlannedRelease]:
    """Releases whose privacy costs, rounded up, sum to at most public.rho. Raises ConfigError without a budget or a
    declared number of clients."""
    if public.rho is None or not public.rho > 0:
        raise ConfigError("a private dictionary run needs a privacy budget.", "Set a budget for the population.")
    nominal(public)
    r, d = shape_of(config, public)
    first = [(SCALE, ENERGIES.cells, SCALE_SHARE, "one cell for each client")]
    if not begins_given(public):
        first.append((MOMENTS, triangle(d), MOMENTS_SHARE, "one clipped matrix for each client"))
    rounds = rounds_of(config)
    each = (1.0 - math.fsum(share for _, _, share, _ in first)) / rounds
    sums = (
        (release_name(number), sums_cells(r, d), each, "one vector for each client, its parts clipped by themselves")
        for number in range(1, rounds + 1)
    )
    asked, rho = [*first, *sums], public.rho
    sensitivity = SPREADS[public.relation] * GRID_NORM
    while True:
        # Costs round up, hence a hair is kept back; the loop ends because the hair grows.
        rho *= 1.0 - 1e-12
        releases = [
            PlannedRelease(
                name,
                number,
                (cells,),
                sensitivity,
                math.sqrt(0.5 / (share * rho)),
                ARGUMENT,
                composition,
                optional=number > len(first) + 1,
            )
            for number, (name, cells, share, composition) in enumerate(asked, 1)
        ]
        prices = [release.rho for release in releases]
        if max(sum(prices), math.fsum(prices)) <= public.rho:
            return releases


def likely_noise(config: DictionariesConfig, public: PublicFacts) -> float:
    """nu: the expected length of the noise in a full step of an atom with an equal share of the energy, where clients
    reach the clip that is likely."""
    r, d = shape_of(config, public)
    scale = plan(config, public)[-1].scale / GRID_NORM
    return LIKELY_CLIP * scale / math.sqrt(SHARES[0]) * math.sqrt(d) * r / nominal(public)


def worth(config: DictionariesConfig, public: PublicFacts) -> Worth:
    """By `likely_noise`. Raises ConfigError as `plan` does."""
    noise = likely_noise(config, public)
    word: Word = "good" if noise <= GOOD else "fair" if noise <= FAIR else "weak"
    said = f"{EXPECT[word]} (noise in a full step of an atom: {noise:.2g} of its length)"
    return Worth(word, f"{said}; {_against_cosines(noise, nominal(public))}")


def _against_cosines(noise: float, clients: int) -> str:
    """How runs with such noise compared with a dictionary that costs no budget. Noise falls with the clients."""
    better = "learnt atoms were better than as many public cosines"
    if noise > COSINES:
        better = "as many public cosines, which cost no budget, were better than learnt atoms"
    border = math.ceil(clients * noise / COSINES)
    return (
        f"with such noise {better} on images of handwritten digits; learnt atoms were up to a noise of {COSINES:g}, "
        f"that of this budget with {border:,} clients"
    )


def budget_sketch(config: DictionariesConfig, public: PublicFacts, planned: Sequence[PlannedRelease]) -> dict[str, Any]:
    """noise: `likely_noise`."""
    return {"rounds": len(planned), "releases": len(planned), "noise": likely_noise(config, public)}


def likely_warm_start(config: DictionariesConfig, public: PublicFacts) -> dict[str, np.ndarray]:
    """Random atoms of the right shape; with a budget, as those of a run of the series."""
    arrays = {"global": random_atoms(stream(0, "dictionaries/likely"), *shape_of(config, public))}
    return arrays if public.rho is None else arrays | {RELEASED: np.ones(1)}
