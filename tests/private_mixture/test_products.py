"""The bound of sums of products, in Python's own integers: 17 ONE to replace a unit, sqrt(144.5) ONE to add one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models import whole_rows
from fedcore.methods.mixture_models.packing import triangle
from fedcore.methods.mixture_models.whole_rows import ONE, cut_coordinates, cut_to, for_products
from fedcore.methods.private_mixture import PrivateMixtureConfig, sensitivities
from fedcore.methods.private_mixture.plan import LARGEST_NOISE, plan
from fedcore.privacy.mechanisms import TestNoise
from fedcore.privacy.plan import PlannedRelease
from tests.private_mixture.worlds import facts

ADD, REPLACE = "add_or_remove_one", "replace_one"
MANY = 2**23


def part_of(rows: np.ndarray, clip: float, times: int = 1, packed=whole_rows.whole_products) -> list[int]:
    """What a client of these rows, each `times` over, adds: exact."""
    b = np.full(len(rows), len(rows) * times)
    y = for_products(rows, cut_to(rows, clip), clip, b)
    return [int(value) * times for value in packed(y)]


def squared(one: list[int], other: list[int] | None = None) -> int:
    return sum((a - b) ** 2 for a, b in zip(one, other or [0] * len(one), strict=True))


@st.composite
def units(draw, d: int):
    """The part of a unit of 1 to 6 rows, or of a client of many rows, of any size."""
    generator = np.random.default_rng(draw(st.integers(0, 2**31)))
    n = draw(st.integers(1, 6))
    rows = generator.normal(size=(n, d)) * 10.0 ** generator.integers(1, 7, (n, 1))
    if draw(st.booleans()):  # few directions, so that two units may differ in all entries
        rows = generator.choice([-1.0, 0.0, 1.0], (n, d)) * 10.0 ** draw(st.integers(0, 6))
    clip, times = draw(st.sampled_from([1e3, 1e5])), draw(st.sampled_from([1, 1, 3, 4096, MANY]))
    return part_of(cut_coordinates(rows), clip, times)


@given(st.data(), st.integers(1, 7))
@settings(max_examples=150, deadline=None)
def test_no_two_units_are_further_apart_than_the_bound(data, d):
    one, other = data.draw(units(d)), data.draw(units(d))
    assert squared(one, other) <= (17 * ONE) ** 2 == sensitivities.moments(REPLACE) ** 2
    assert max(2 * squared(one), 2 * squared(other)) <= 289 * ONE**2 <= 2 * sensitivities.moments(ADD) ** 2


@given(st.data(), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_matrices_of_components_have_one_bound_together(data, d, k):
    """Rows of k d numbers that are cut together; each block of d of them has a matrix of its own, or all have one."""
    found = []
    for _ in range(2):
        generator = np.random.default_rng(data.draw(st.integers(0, 2**31)))
        n = data.draw(st.integers(1, 4))
        rows = cut_coordinates(generator.normal(size=(n, k * d)) * 10.0 ** generator.integers(1, 7, (n, k * d)))
        y = for_products(rows, cut_to(rows, 1e4), 1e4, np.full(n, n)).reshape(n, k, d)
        found.append(np.stack([whole_rows.whole_products(np.ascontiguousarray(y[:, j])) for j in range(k)]))
    own, pooled = ([each.ravel().tolist() for each in found], [each.sum(axis=0).tolist() for each in found])
    for one, other in (own, pooled):
        assert squared(one, other) <= sensitivities.moments(REPLACE) ** 2
        assert squared(one) <= sensitivities.moments(ADD) ** 2


def corners(packed=whole_rows.whole_products) -> tuple[list[int], list[int]]:
    """A client of 2^23 rows (1, -1), after the cut, and one of a single row (u, u)."""
    many = part_of(cut_coordinates(np.array([[1e6, -1e6]])), 1e3, MANY, packed)
    return many, part_of(cut_coordinates(np.array([[1e6, 1e6]])), 1e3, 1, packed)


def test_the_bounds_are_reached():
    """No smaller factor would do: by two clients whose matrices are orthogonal, one of them of 2^23 rows."""
    many, one = corners()
    assert many == [12 * MANY, -17 * MANY, 12 * MANY]
    assert 0.9997**2 < squared(many, one) / sensitivities.moments(REPLACE) ** 2 <= 1
    assert 0.999**2 < squared(many) / sensitivities.moments(ADD) ** 2 <= 1


def test_the_factors_fit_each_other():
    """A diagonal of 13 or a bound of 16 would be exceeded; with 11 the bound would not be reached on the diagonal."""
    assert whole_rows.OFF_DIAGONAL**2 == 289 >= 2 * whole_rows.ON_DIAGONAL**2 > 0.99 * 289
    one, other = ([12 * ONE, 0, 0], [0, 0, 12 * ONE])
    assert 0.99 * (17 * ONE) ** 2 < squared(one, other) <= (17 * ONE) ** 2
    many, one = corners()
    assert squared(many, one) > (16 * ONE) ** 2
    wrong = [[round(value * 13 / 12) if at != 1 else value for at, value in enumerate(each)] for each in (many, one)]
    assert 2 * squared(wrong[0]) > 289 * ONE**2


def test_floors_on_the_diagonal_would_break_the_bound():
    """Why entries are whole multiples of products: floors of fractions take a client's whole diagonal away."""
    many, one = corners(whole_rows.products)
    assert many == [0, -MANY, 0]
    assert squared(many, one) > 1.2 * ONE**2


def test_components_that_are_cut_apart_would_break_the_bound():
    """Why all vectors of a row are cut together: with a cut for each, a row in two components adds two rows."""
    rows = cut_coordinates(np.array([[1e6, 2e6], [3e6, -1e6]]))
    apart = [value for row in rows for value in part_of(row[None], 1e3)]
    assert squared(apart) > 1.9 * sensitivities.moments(ADD) ** 2
    y = for_products(rows.reshape(1, 4), np.full(1, 1e-6), 1e3, np.ones(1, np.int64)).reshape(2, 2)
    together = [int(value) for each in y for value in whole_rows.whole_products(each[None])]
    assert squared(together) <= sensitivities.moments(ADD) ** 2


def test_the_matrix_is_unpacked_as_it_was():
    y = np.rint(np.random.default_rng(4).normal(size=(50, 7)) * 300)
    packed = whole_rows.whole_products(y)
    assert packed.shape == (triangle(7),) and packed.dtype == np.int64
    assert np.allclose(whole_rows.matrix_of_products(packed, 7), y.T @ y, rtol=1e-14)


def test_noise_on_the_matrix_is_even_in_all_directions():
    """On the diagonal sqrt(2) times that off it, about: 17/12."""
    noise = np.random.default_rng(5).normal(size=(4000, triangle(3)))
    found = np.array([whole_rows.matrix_of_products(each, 3) for each in noise])
    assert found[:, 0, 1].std() == pytest.approx(1 / 17, rel=0.05)
    assert found[:, 1, 1].std() == pytest.approx(1 / 12, rel=0.05)


@pytest.mark.parametrize("relation, times", [(ADD, np.sqrt(144.5)), (REPLACE, 17.0)])
def test_the_plan_has_these_bounds_and_the_sampler_draws_such_noise(relation, times):
    public = facts(3, 10**6, 0.5, "record", relation)
    releases = {each.name: each for each in plan(PrivateMixtureConfig(components=2), public)}
    for name in ("moments_0", "moments_1", "em_pooled_4", "em_own_4"):
        assert releases[name].sensitivity == pytest.approx(times * ONE, rel=1e-7)
    widest = PlannedRelease("widest", 1, (20_000,), 17 * ONE, LARGEST_NOISE / (17 * ONE), "docs", "one")
    drawn = TestNoise("key").draw(widest, "run", np.zeros(20_000, np.int64))
    assert drawn.std() == pytest.approx(LARGEST_NOISE, rel=0.03)
    assert abs(drawn.mean()) < 4 * LARGEST_NOISE / np.sqrt(20_000)


def test_a_budget_whose_noise_is_too_wide_is_refused_beforehand():
    public = replace(facts(3, 1000, 1.0, "record", REPLACE), rho=1e-9)
    with pytest.raises(ConfigError, match="too small"):
        plan(PrivateMixtureConfig(), public)
