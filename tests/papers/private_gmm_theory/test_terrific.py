"""Terrific balls against their definition by loops; sensitivities; Algorithm 2."""

import numpy as np
import pytest
from fedcore.papers.private_gmm import simulation as sim
from fedcore.papers.private_gmm.theory import one_cluster as ter
from fedcore.papers.private_gmm.theory.mechanisms import above_threshold_error
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.errors import ConfigError


def slow_quality(rows, centre, radius, size, factor):
    inside = reach = there = 0
    for x in rows:
        if np.isfinite(x).all():
            distance = sum((a - b) ** 2 for a, b in zip(x, centre, strict=True)) ** 0.5
            there, inside, reach = there + 1, inside + (distance <= radius), reach + (distance <= factor * radius)
    return min(min(inside, size), min(there - reach, size), max(0, size - (reach - inside)))


def slow_score(rows, radius, size, factor):
    values = sorted((slow_quality(rows, x, radius, size, factor) for x in rows if np.isfinite(x).all()), reverse=True)
    return sum(values[:size]) / size


def is_terrific(
    rows: np.ndarray, centre: np.ndarray, radius: float, size: int, factor: float, slack: float = 0.0
) -> bool:
    """Definition 5.2, with slack as its Gamma."""
    inside, reach = ter.ball_counts(rows, centre[None, :], np.array([radius, factor * radius]))[0]
    outside = int(np.isfinite(rows).all(axis=1).sum()) - reach
    return bool(inside >= size and outside >= size and reach - inside <= slack)


@st.composite
def small_data(draw):
    """Rows on a coarse grid: ties, equal rows, and distances that are exactly a radius."""
    n, d = draw(st.integers(1, 14)), draw(st.integers(1, 3))
    cells = draw(st.lists(st.integers(-6, 6), min_size=n * d, max_size=n * d))
    rows = np.array(cells, np.float64).reshape(n, d)
    if draw(st.booleans()):
        rows[draw(st.integers(0, n - 1))] = np.nan
    return rows


RADII = np.array([0.5, 1.0, 2.0, 3.0])


@settings(max_examples=60, deadline=None)
@given(small_data(), st.integers(1, 6), st.sampled_from([1.3, 2.0, 5.0]))
def test_quality_and_score_are_those_of_the_definition(rows, size, factor):
    found = ter.quality(rows, np.zeros((1, rows.shape[1])), RADII, size, factor)[0]
    assert found.tolist() == [slow_quality(rows, np.zeros(rows.shape[1]), r, size, factor) for r in RADII]
    assert (found >= 0).all() and (found <= size).all()
    scores = ter.terrific_score(rows, RADII, size, factor)
    assert scores == pytest.approx([slow_score(rows, r, size, factor) for r in RADII])


@settings(max_examples=60, deadline=None)
@given(small_data(), st.integers(1, 6), st.integers(0, 13))
def test_one_record_moves_quality_by_one_and_score_by_two(rows, size, who):
    fewer = rows.copy()
    fewer[who % len(rows)] = np.nan
    centres = np.random.default_rng(who).integers(-6, 7, (8, rows.shape[1])).astype(float)
    moved = ter.quality(rows, centres, RADII, size, 2.0) - ter.quality(fewer, centres, RADII, size, 2.0)
    assert np.abs(moved).max() <= 1
    assert np.abs(ter.terrific_score(rows, RADII, size, 2.0) - ter.terrific_score(fewer, RADII, size, 2.0)).max() <= 2
    several = [np.minimum(ter.ball_counts(x, x[np.isfinite(x).all(axis=1)], RADII), size) for x in (rows, fewer)]
    assert np.abs(ter.mean_of_largest(several[0], size) - ter.mean_of_largest(several[1], size)).max() <= 2


def test_the_score_is_more_sensitive_than_one():
    """A record moves its neighbours' quality and brings its own: (25 - 17)/5 here."""
    rows = np.concatenate([np.zeros((5, 1)), 100.0 * np.arange(1, 6)[:, None]])
    fewer = rows.copy()
    fewer[4] = np.nan
    moved = ter.terrific_score(rows, np.array([1.0]), 5, 2.0) - ter.terrific_score(fewer, np.array([1.0]), 5, 2.0)
    assert moved[0] == pytest.approx(1.6)


@settings(max_examples=40, deadline=None)
@given(small_data(), st.integers(1, 5), st.integers(0, 4), st.sampled_from([1.3, 2.0, 5.0]))
def test_quality_of_t_less_gamma_makes_a_ball_terrific(rows, size, slack, factor):
    for x in rows[np.isfinite(rows).all(axis=1)]:
        for radius in RADII:
            enough = slow_quality(rows, x, radius, size, factor) >= size - slack
            if enough and size - slack >= 1:
                assert is_terrific(rows, x, radius, size - slack, factor, slack)
            if is_terrific(rows, x, radius, size, factor):
                assert slow_quality(rows, x, radius, size, factor) == size


def test_distinct_records_may_hold_equal_values():
    rows = np.repeat([[0.0], [50.0]], 8, axis=0)  # two values only: distinct values would make t = 8 impossible (S8)
    assert ter.terrific_score(rows, np.array([1.0]), 8, 5.0) == pytest.approx([8.0])
    assert ter.terrific_score(rows, np.array([1.0]), 9, 5.0) < 9


def test_tiles_do_not_change_counts(monkeypatch):
    rows = np.random.default_rng(0).standard_normal((50, 3))
    whole = ter.ball_counts(rows, rows, RADII[::-1])
    monkeypatch.setattr(ter, "TILE", 60)
    assert np.array_equal(ter.ball_counts(rows, rows, RADII[::-1]), whole)
    assert whole[:, ::-1].tolist() == [
        [int((np.linalg.norm(rows - x, axis=1) <= r).sum()) for r in RADII] for x in rows
    ]


def test_radius_grid_ends_at_or_above_high():
    assert ter.radius_grid(1.0, 8.0).tolist() == [1, 2, 4, 8]
    assert ter.radius_grid(1.0, 8.1).tolist() == [1, 2, 4, 8, 16]
    assert ter.radius_grid(3.0, 2.0).tolist() == [3]
    with pytest.raises(ConfigError):
        ter.radius_grid(0.0, 1.0)


def test_published_slack():
    plan = ter.radius_plan(2.0, 0.05, 1.0, 8.0, largest=True)
    assert plan.radii.tolist() == [8, 4, 2, 1]
    assert plan.gamma == pytest.approx(16 * (np.log(4) + np.log(40)) / 2)
    assert plan.gamma == above_threshold_error(4, 2.0, 0.05, 2.0)


def test_radius_of_separated_components_and_of_one_gaussian():
    truth = sim.mixture(2, 2, 150.0, 3, scales=(1.0, 5.0))
    rows, _ = sim.sample(truth, 400, 4)
    options = {"low": 0.3, "high": 4000.0, "beta": 0.05}
    small = [ter.terrific_radius(rows, 100, 30.0, np.random.default_rng(s), **options) for s in range(6)]
    large = [ter.terrific_radius(rows, 100, 30.0, np.random.default_rng(s), largest=True, **options) for s in range(6)]
    gamma = ter.radius_plan(30.0, 0.05, 0.3, 4000.0).gamma
    for radius in small + large:
        assert radius is not None
        assert ter.terrific_score(rows, np.array([radius]), 100)[0] >= 100 - 2 * gamma  # Claim 5.5
    assert max(small) < min(large)  # smallest of one component, largest of the other (Claim 5.6)
    one, _ = sim.sample(sim.mixture(2, 1, 1.0, 3), 400, 5)
    assert [ter.terrific_radius(one, 100, 30.0, np.random.default_rng(s), **options) for s in range(6)] == [None] * 6
    with pytest.raises(ConfigError):
        ter.terrific_radius(rows, 0, 1.0, np.random.default_rng(0), **options)
