"""What one unit can add, against the planned bound, in Python's own integers."""

import math
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.errors import ConfigError
from fedcore.methods.profile import Profile, ProfileConfig, clients
from fedcore.methods.profile.cells import LEAVES, LEVELS
from fedcore.methods.profile.layout import TREE, layout_of
from fedcore.methods.profile.plan import RELATIONS, sensitivity
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import PublicFacts

UNITS = ("client", "record")
FEATURES = 7  # two numbers with bounds, one without; a category of three values; a boolean
TABLE = {"categories": ((3, 4, 5), (6,)), "bounds": ((0.0, 120.0), (-5.0, 5.0), *(None,) * 5)}
BY = [(), ("0",), ("1",), ("0", "1")]
ENDS = np.array([1.797e308, -1.797e308, 5e-324, 0.0, -0.0, np.nan, np.inf, -np.inf, 120.0, 2.0**31, 2.0**-30, 0.5])


def block_of(people) -> RowsBlock:
    ptr = np.concatenate([[0], np.cumsum([len(own) for own in people])]).astype(np.int64)
    return RowsBlock(0, 0, ptr, np.concatenate(people))


def part(by, unit, *people) -> np.ndarray:
    layout = layout_of(ProfileConfig(by=by, **TABLE), FEATURES)
    found = clients.vector_of(layout, block_of(people), unit == "client")
    assert found.dtype == np.int64 and found.shape == (layout.cells,) and (found >= 0).all()
    return found


def squared(values) -> int:
    return sum(int(value) ** 2 for value in values[np.flatnonzero(values)])


def bound(by, relation) -> int:
    return sensitivity(layout_of(ProfileConfig(by=by, **TABLE), FEATURES), relation)


@st.composite
def rows(draw, most=4):
    """(n, FEATURES) rows: usual, at the ends of what float64 holds, with gaps or with impossible answers."""
    generator, found = np.random.default_rng(draw(st.integers(0, 2**31))), []
    for _ in range(draw(st.integers(0, most))):
        row = np.concatenate(
            [generator.normal(50, 30, 3), np.eye(3)[generator.integers(3)], [float(generator.integers(2))]]
        )
        kind = draw(st.sampled_from(["usual", "usual", "ends", "gaps", "both"]))
        if kind == "ends":
            row[:3] = generator.choice(ENDS, 3)
        elif kind == "gaps":
            row[generator.random(FEATURES) < 0.5] = np.nan
        elif kind == "both":
            row[3:] = generator.choice([0.0, 1.0, 2.0, np.nan], 4)
        found.append(row)
    return np.repeat(np.array(found).reshape(-1, FEATURES), draw(st.sampled_from([1, 1, 3, 4000])), axis=0)


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("unit", UNITS)
@given(st.data())
@settings(max_examples=15, deadline=None)
def test_a_unit_moves_the_release_by_no_more_than_planned(by, unit, data):
    others, one, instead = [data.draw(rows()), data.draw(rows())], data.draw(rows()), data.draw(rows())
    if unit == "record":
        one, instead = one[:1], instead[:1]
    alone, exchanged = part(by, unit, one), part(by, unit, instead)
    joined = part(by, unit, others[0], one, others[1]) - part(by, unit, *others)
    assert np.array_equal(joined, alone), "what a unit adds depends on its company"
    assert squared(alone) <= bound(by, RELATIONS[0]) ** 2
    assert squared(alone - exchanged) <= bound(by, RELATIONS[1]) ** 2


WHOLE = np.array([[30.0, 1.0, 7.0, 1.0, 0.0, 0.0, 1.0]])
OTHER = np.array([[90.0, -1.0, -7.0, 0.0, 1.0, 0.0, 0.0]])


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("times", [1, 3])
def test_the_bounds_are_reached(by, times):
    """By a row that answers everything, and by two that differ in everything at the top of each tree."""
    alone = part(by, "client", np.repeat(WHOLE, times, axis=0))
    both = alone - part(by, "client", np.repeat(OTHER, times, axis=0))
    for value, relation in ((alone, RELATIONS[0]), (both, RELATIONS[1])):
        assert 0.999999 * bound(by, relation) < math.sqrt(squared(value)) <= bound(by, relation)


def test_a_row_without_a_number_adds_as_much_as_one_with_it():
    layout = layout_of(ProfileConfig(), 1)
    missing = clients.vector_of(layout, block_of([np.array([[np.nan]])]), True)
    there = clients.vector_of(layout, block_of([np.array([[3.0]])]), True)
    assert there.shape == (TREE,) and np.count_nonzero(there) == LEVELS and np.count_nonzero(missing) == 1
    assert 0.999999 * squared(there) < squared(missing) <= squared(there) == layout.squared


def test_a_part_is_the_same_in_any_leaf_tile_and_order(monkeypatch):
    generator = np.random.default_rng(0)
    people = [
        np.column_stack(
            [generator.normal(50, 40, (n, 3)), np.eye(3)[generator.integers(0, 3, n)], generator.integers(0, 2, n)]
        )
        for n in (0, 1, 5, 40, 2, 300)
    ]
    total = sum(part(("0", "1"), "client", own) for own in people)
    monkeypatch.setattr("fedcore.methods.mixture_models.whole_rows.FEWEST_ROWS", 3)
    monkeypatch.setattr("fedcore.methods.mixture_models.whole_rows.TILE_NUMBERS", 30)
    assert np.array_equal(part(("0", "1"), "client", *people[::-1]), total)


def facts(relation=RELATIONS[0], rho=0.01, unit="client"):
    return PublicFacts("rows", FEATURES, 1024, 1000, None, rho, 0, relation, None, unit)


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_plan_costs_the_budget_and_no_more(relation):
    config = ProfileConfig(by=("0", "1"), **TABLE)
    (planned,) = Profile(config).plan(facts(relation))
    layout = layout_of(config, FEATURES)
    assert 0.999999999 * 0.01 < planned.rho <= 0.01 and planned.shape == (layout.cells,)
    assert planned.sensitivity**2 >= layout.squared * (2 if relation == "replace_one" else 1)
    with pytest.raises(ConfigError, match="too small"):
        Profile(config).plan(facts(relation, 1e-18))
    with pytest.raises(ConfigError, match="no relation"):
        Profile(config).plan(replace(facts(), relation="something"))
    with pytest.raises(ConfigError, match="needs a privacy budget"):
        Profile(config).plan(replace(facts(), rho=None))


def test_groups_get_half_of_what_a_row_may_add():
    for by in BY[1:]:
        layout = layout_of(ProfileConfig(by=by, **TABLE), FEATURES)
        without = layout_of(ProfileConfig(**TABLE), FEATURES)
        assert layout.squared == pytest.approx(2 * without.squared, rel=1e-6)


# --- builds that break the bound --------------------------------------------------------------------------------------


@contextmanager
def rows_count_whole():
    """A client's rows count each for itself."""
    tiles = clients.tiles
    with mock.patch.object(clients, "tiles", lambda block, by_client, *more: tiles(block, False, *more)):
        yield


@contextmanager
def rows_count_twice():
    """A row is in two leaves of each column."""
    counts = clients._counts

    def twice(cells, weight, size):
        found = counts(cells, weight, size)
        return found + np.roll(found, LEAVES // 2) if size == LEAVES else found

    with mock.patch.object(clients, "_counts", twice):
        yield


@pytest.mark.parametrize("build", [rows_count_whole, rows_count_twice])
def test_builds_that_break_the_bound_are_caught(build):
    with build():
        assert squared(part((), "client", np.repeat(WHOLE, 3, axis=0))) > bound((), RELATIONS[0]) ** 2
