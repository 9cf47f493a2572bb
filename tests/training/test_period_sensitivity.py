"""What a client with entries in several calendar periods moves: every sum of every round of the private methods, in the
worlds with and without each of its entries.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.population.periods import Periods
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.rounds.clients import Answer, Source
from fedcore.rounds.engine import InProcessBackend
from fedcore.storage.ranges import ranges_of
from fedcore.testing import SmallPopulation
from tests.conformance.cases import case

METHODS = ["histograms/private", "federated_em/private-diag", "federated_em/private-imputer", "private_gmm/diag"]
METHODS += ["private_gmm/two-levels", "private_mixture/clients", "profile/clients"]
MONTHS, OTHERS = 4, 6
LABELS = tuple(f"2026-0{month}" for month in range(1, MONTHS + 1))
DEALT = Periods(column="when", unit="month", zone="UTC")


def entry(people: SmallPopulation, kind: int) -> np.ndarray:
    """What one entry holds: as clients of the case do, or as nobody should."""
    if kind >= 0:
        return people.clients[kind % len(people.clients)]
    if people.kind == "counts":
        return np.where(np.arange(people.features) == -kind % people.features, 10**6, 0)
    return np.full((5, people.features), 1e6 * (-1) ** kind, people.dtype)


def world(folder, name: str, tokens: dict[int, int]) -> Population:
    """Others with data in every month, and u with data in these; sorted by month as ingest does."""
    people = case(name).population
    entries = [(LABELS[month - 1], f"v{n}", n + month) for month in range(1, MONTHS + 1) for n in range(OTHERS)]
    entries += [(LABELS[month - 1], "u", kind) for month, kind in tokens.items()]
    entries.sort(key=lambda one: one[0])
    some = SmallPopulation(
        people.kind,
        people.features,
        tuple(entry(people, kind) for _, _, kind in entries),
        (),
        people.dtype,
        people.leaf,
    )
    options = {} if people.kind == "counts" else {"dtype": people.dtype}
    with PopulationWriter(
        folder, people.kind, people.features, clients_per_leaf=people.leaf, period=DEALT, labels=LABELS, **options
    ) as writer:
        writer.write([f"{label}/{who}" for label, who, _ in entries], some.matrix())
        return writer.commit()


def sums(name: str, population: Population, months: set[int]) -> list[dict[str, np.ndarray]]:
    """The exact whole numbers of every release, round by round, of a run that reads these months."""
    method = case(name).method
    ranges = population.participants(ranges_of(months))
    source = Source(str(population.path), population.version, ranges=ranges, manifest=population.checksum)
    found = []
    for made in case(name).history.rounds:
        statistics = InProcessBackend().map_blocks(Answer(method, source), made.message, range(len(population.blocks)))
        found.append(method.release_values(made.message, statistics))
    return found


@cache
def sensitivities(name: str) -> dict[str, float]:
    return {planned.name: planned.sensitivity for planned in case(name).plan}


def moved(name, one, other) -> list[float]:
    """By how many sensitivities each release of each round differs."""
    bounds = sensitivities(name)
    return [
        math.dist(np.ravel(a[key]).tolist(), np.ravel(b[key]).tolist()) / bounds[key]
        for a, b in zip(one, other, strict=True)
        for key in a
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=3, deadline=None)
@given(
    tokens=st.dictionaries(st.integers(1, MONTHS), st.integers(-3, 20), min_size=1),
    window=st.sets(st.integers(1, MONTHS), min_size=1, max_size=3),
)
def test_a_client_moves_every_sum_by_a_sensitivity_for_each_month_that_is_read(tmp_path_factory, name, tokens, window):
    folder, months = tmp_path_factory.mktemp("p"), sorted(tokens)
    worlds = [
        sums(name, world(folder / str(number), name, {month: tokens[month] for month in months[:number]}), window)
        for number in range(len(months) + 1)
    ]
    assert any(worlds[0][0]) and sum(map(len, worlds[0])) == len(moved(name, worlds[0], worlds[0]))
    for month, one, other in zip(months, worlds, worlds[1:], strict=False):
        far = moved(name, one, other)
        assert max(far) <= 1 and (month in window or not any(far)), (month, max(far))
    assert max(moved(name, worlds[0], worlds[-1])) <= len(window & {*months})


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_several_months_together_move_a_sum_by_more_than_one(tmp_path, name):
    """So that the square of their number is paid for a reason."""
    kinds = range(-1, 3)
    without = sums(name, world(tmp_path / "none", name, {}), {1, 2, 3})
    far = [
        max(
            moved(
                name, without, sums(name, world(tmp_path / str(kind), name, dict.fromkeys((1, 2, 3), kind)), {1, 2, 3})
            )
        )
        for kind in kinds
    ]
    assert 1.5 < max(far) <= 3, far
