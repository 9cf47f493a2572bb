"""Noise: its price, its distribution, and that a sabotaged build is noticed. The grid: norms hold in integers."""

import os
from dataclasses import replace
from fractions import Fraction
from math import isqrt

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from fedcore.errors import ConfigError, PrivacyError, SensitivityError
from fedcore.privacy import mechanisms
from fedcore.privacy.mechanisms import (
    SecureNoise,
    TestNoise,
    check_l2_dense,
    check_l2_rows,
    simulated_gaussian,
    truncate_to_grid,
)
from fedcore.privacy.plan import PlannedRelease

ALPHA = 1e-7  # chance that an honest build fails one statistical check
SMALL, LARGE = 1.3, 1.4 * 3 * 2**16
CELLS = 20_000


def planned(scale, *, sensitivity=1, shape=(CELLS,), name="sums", round=1):
    return PlannedRelease(name, round, shape, sensitivity, scale / sensitivity, "docs/privacy/discrete-gaussian.md", "")


# --- distribution ---------------------------------------------------------------------------------------------------


def variance_fits(noise, scale):
    """The variance within the bounds of a chi-square law at level ALPHA.

    Power at 20 000 cells: the standard error of the variance is 1 %, the bounds are 5.3 % away, so a scale that is 6 %
    too small (variance 11.6 % too small) is missed with probability below 1e-8; scale / 4 and the mean of two draws
    (variance / 2) lie tens of standard errors away.
    """
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], len(noise)) / len(noise)
    return low <= np.mean((noise / scale) ** 2) <= high


def distribution_fits(noise, scale):
    """Against the exact probabilities (chi-square test) if the scale is small, else the normal limit (Kolmogorov)."""
    if scale > 1000:
        return stats.kstest(noise / scale, "norm").pvalue > ALPHA
    support = np.arange(-60, 61)
    weights = np.exp(-(support**2) / (2 * scale**2))
    edge = int(3 * scale)
    inside = np.abs(support) <= edge
    expected = np.append(weights[inside], weights[~inside].sum()) / weights.sum() * len(noise)
    counts = np.array([np.sum(noise == k) for k in support[inside]] + [np.sum(np.abs(noise) > edge)])
    return stats.chisquare(counts, expected).pvalue > ALPHA


class QuarterScale(SecureNoise):
    def draw(self, planned, run_key, values):
        return super().draw(replace(planned, noise_multiplier=planned.noise_multiplier / 4), run_key, values)


class DrawnTwice(SecureNoise):
    """A retry that draws again on the same sum, and whoever sees both takes the mean."""

    def draw(self, planned, run_key, values):
        return (super().draw(planned, run_key, values) + super().draw(planned, run_key, values)) // 2


class WrongLaw(SecureNoise):
    """Discrete Laplace noise of the right variance: 2 q / (1 - q)**2 = scale**2."""

    def draw(self, planned, run_key, values):
        half = 1 / planned.scale**2
        q = 1 + half - np.sqrt((1 + half) ** 2 - 1)
        draws = np.random.Generator(np.random.Philox(1)).geometric(1 - q, (2, *values.shape))
        return values + draws[0] - draws[1]


@pytest.mark.parametrize("scale", [SMALL, LARGE])
@pytest.mark.parametrize("source", [SecureNoise(), TestNoise("key")])
def test_noise_has_the_planned_distribution(source, scale):
    noise = source.draw(planned(scale), "run", np.full(CELLS, 1000)) - 1000
    assert variance_fits(noise, scale) and distribution_fits(noise, scale)


@pytest.mark.parametrize("scale", [SMALL, LARGE])
@pytest.mark.parametrize("sabotaged", [QuarterScale(), DrawnTwice()])
def test_a_sabotaged_build_fails(sabotaged, scale):
    noise = sabotaged.draw(planned(scale), "run", np.zeros(CELLS, np.int64))
    assert not variance_fits(noise, scale)
    assert not distribution_fits(noise, scale)


def test_noise_of_the_right_variance_and_the_wrong_law_fails():
    noise = WrongLaw().draw(planned(SMALL), "run", np.zeros(CELLS, np.int64))
    assert np.mean(noise**2) == pytest.approx(SMALL**2, rel=0.1)
    assert not distribution_fits(noise, SMALL)


def test_secure_noise_is_independent_between_cells_and_draws():
    first, second = (SecureNoise().draw(planned(LARGE), "run", np.zeros(CELLS, np.int64)) / LARGE for _ in "ab")
    bound = stats.norm.isf(ALPHA / 2) / np.sqrt(CELLS)
    assert abs(np.mean(first * second)) < bound
    assert abs(np.mean(first[1:] * first[:-1])) < bound


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_draws_other_noise():
    """A generator whose state is copied by fork would give two workers the same noise."""
    plan, zeros = planned(LARGE, shape=(4,)), np.zeros(4, np.int64)
    SecureNoise().draw(plan, "run", zeros)  # the generator is running
    drawn = []
    for _ in range(2):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, SecureNoise().draw(plan, "run", zeros).tobytes())
            os._exit(0)
        os.waitpid(child, 0)
        drawn.append(os.read(read, 32))
    drawn.append(SecureNoise().draw(plan, "run", zeros).tobytes())
    assert len({bytes(d) for d in drawn}) == 3 and all(len(d) == 32 for d in drawn)


def test_test_noise_depends_on_key_round_and_name_only():
    values = np.arange(12).reshape(3, 4)
    plan = planned(50.0, shape=(3, 4))
    drawn = TestNoise("key").draw(plan, "run", values)
    assert np.array_equal(drawn, TestNoise("key").draw(plan, "another run", values))
    assert np.array_equal(drawn + 5, TestNoise("key").draw(plan, "run", values + 5))
    for other in (
        TestNoise("other").draw(plan, "run", values),
        TestNoise("key").draw(replace(plan, round=2), "run", values),
        TestNoise("key").draw(replace(plan, name="x"), "run", values),
    ):
        assert not np.array_equal(drawn, other)
    assert not TestNoise("key").secure and "not private" in TestNoise("key").label
    assert SecureNoise().secure


def test_simulated_noise_is_floats():
    drawn = simulated_gaussian(np.random.Generator(np.random.Philox(1)), np.zeros(CELLS), LARGE)
    assert drawn.dtype == np.float64 and variance_fits(drawn, LARGE)


# --- price and refusals ---------------------------------------------------------------------------------------------


@given(st.floats(1e-3, 1e6), st.integers(1, 2**40))
@settings(max_examples=150, deadline=None)
def test_opendp_charges_at_most_the_planned_price(multiplier, sensitivity):
    plan = PlannedRelease("sums", 1, (1,), sensitivity, multiplier, "", "")
    if plan.scale > mechanisms.LARGEST_SCALE:
        return
    measurement = mechanisms._measurement(plan.name, sensitivity, plan.scale, plan.rho)
    assert measurement.map(float(sensitivity)) <= plan.rho
    assert plan.rho <= 0.5 / multiplier**2 * (1 + 1e-15)


def test_noise_that_costs_more_than_its_charge_is_refused():
    with pytest.raises(SensitivityError, match="costs rho = 0.5"):
        mechanisms._measurement("sums", 1, 1.0, 0.4999)


@pytest.mark.parametrize("source", [SecureNoise(), TestNoise("key")])
@pytest.mark.parametrize(
    "values", [np.zeros(3), np.zeros(3, np.int32), np.zeros((3, 1), np.int64), np.zeros(4, np.int64), [0, 0, 0]]
)
def test_other_dtypes_and_shapes_are_refused(source, values):
    with pytest.raises(SensitivityError, match="not an int64 array"):
        source.draw(planned(5.0, shape=(3,)), "run", values)


def test_noise_too_wide_for_64_bits_is_refused_whatever_the_values_are():
    for sensitivity, scale in ((1, 2.0**56), (2**53 + 2, 2.0**53)):
        plan = PlannedRelease("sums", 1, (1,), sensitivity, scale / sensitivity * 2, "", "")
        with pytest.raises(SensitivityError, match="64 bits"):
            SecureNoise().draw(plan, "run", np.zeros(1, np.int64))


def test_the_largest_sums_do_not_wrap():
    plan = planned(2.0**55, shape=(2,))
    drawn = SecureNoise().draw(plan, "run", np.array([2**62, -(2**62)]))
    assert drawn[0] > 2**61 and drawn[1] < -(2**61)


def test_a_scalar_release_keeps_its_shape():
    assert SecureNoise().draw(planned(5.0, shape=()), "run", np.array(3)).shape == ()


def test_a_failing_sampler_does_not_show_the_sum(monkeypatch):
    def failing(name, sensitivity, scale, rho):
        def measurement(values):
            raise ValueError(f"cannot noise {values}")

        return measurement

    monkeypatch.setattr(mechanisms, "_measurement", failing)
    with pytest.raises(PrivacyError) as caught:
        SecureNoise().draw(planned(5.0, shape=(1,)), "run", np.array([424242]))
    assert "424242" not in str(caught.value) and caught.value.__cause__ is None
    assert caught.value.__suppress_context__


# --- the grid -------------------------------------------------------------------------------------------------------

steps = st.one_of(st.sampled_from([3 * 2.0**-16, 0.2 * 2.0**-16, 1.0, 1 / 3]), st.floats(1e-12, 1e12))
anything = st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True)


@given(st.lists(anything, min_size=1, max_size=20), steps)
@example([5e-324, -5e-324, 1.7976931348623157e308, 3 * 2.0**-16, -0.0], 3 * 2.0**-16)
@example([0.30000000000000004, 0.3, 0.6, 0.7, 0.9], 0.1)
@settings(max_examples=300, deadline=None)
def test_truncation_is_exact_and_never_raises_a_magnitude(values, step):
    grid = truncate_to_grid(np.array(values), step)
    assert grid.dtype == np.int64
    for y, z in zip(values, grid.tolist(), strict=True):
        if y != y:
            assert z == 0
            continue
        assert z == 0 or (z > 0) == (y > 0)
        if abs(y) == float("inf"):
            assert abs(z) == 2**53
            continue
        exact = abs(Fraction(y)) / Fraction(step)
        assert abs(z) == min(exact.numerator // exact.denominator, 2**53)


def test_a_quotient_that_rounds_up_is_not_followed():
    """y / step is 3 in floats and below 3 exactly: three steps would be longer than y."""
    y, step = 1.0 - 2.0**-53, 1.0 / 3.0
    assert y / step == 3.0 and Fraction(y) < 3 * Fraction(step)
    assert truncate_to_grid(np.array([y]), step).tolist() == [2]


@pytest.mark.parametrize("step", [0.0, -1.0, float("nan"), float("inf"), 2.0**-501])
def test_a_bad_step_is_refused(step):
    with pytest.raises(ConfigError, match="grid step"):
        truncate_to_grid(np.zeros(1), step)


def squared(values, rows, n):
    """Exact squared norms, in Python's integers."""
    total = [0] * n
    for z, row in zip(values.tolist(), rows.tolist(), strict=True):
        total[row] += z * z
    return total


entries = st.lists(
    st.tuples(st.integers(0, 4), st.one_of(st.integers(-(2**62), 2**62), st.integers(-300, 300))), max_size=40
)


@given(entries, st.one_of(st.integers(1, 500), st.integers(1, 2**31)))
@settings(max_examples=300, deadline=None)
def test_integer_norms_hold_exactly(pairs, bound):
    rows, values = np.array([row for row, _ in pairs], np.int64), np.array([z for _, z in pairs], np.int64)
    kept = check_l2_rows(values, rows, 5, bound)
    before, after = squared(values, rows, 5), squared(kept, rows, 5)
    assert all(norm <= bound**2 for norm in after)
    assert np.all(np.abs(kept) <= np.abs(values)) and np.all(kept * np.sign(values) >= 0)
    for row in range(5):
        mine = rows == row
        alone = check_l2_rows(values[mine], np.zeros(mine.sum(), np.int64), 1, bound)
        assert np.array_equal(kept[mine], alone)  # no client feels another
        if before[row] <= bound**2:
            assert np.array_equal(kept[mine], values[mine])
        else:  # scaled, not destroyed: truncation loses less than one unit in each entry
            assert isqrt(after[row]) >= bound * (1 - 2.0**-30) - np.sqrt(mine.sum()) - 2


def test_norms_beyond_float64_are_compared_exactly():
    """bound**2 + 1 and bound**2 are the same float64; in integers the first is too long."""
    bound = 2**30
    assert float(bound**2 + 1) == float(bound**2)
    values = np.array([bound, 1, bound], np.int64)
    kept = check_l2_rows(values, np.array([0, 0, 1]), 2, bound)
    assert squared(kept, np.array([0, 0, 1]), 2)[0] <= bound**2 and kept[2] == bound


@given(st.lists(st.lists(st.floats(0, 2.0**100, width=32), min_size=3, max_size=3), min_size=1, max_size=6))
@example([[1.0, 0.0, 0.0], [1e-40, 0.0, 0.0], [1e30, 1e30, 1e30]])
@settings(max_examples=100, deadline=None)
def test_clients_on_the_grid_stay_within_the_sensitivity(clients):
    """The whole way of a client: float32 histogram, scaled to norm C = 3, grid of C / 2**16, integer check."""
    q = np.array(clients, np.float32)
    with np.errstate(all="ignore"):
        y = q * np.minimum(1, np.float32(3) / np.linalg.norm(q, axis=1).astype(np.float32))[:, None]
    kept = check_l2_dense(truncate_to_grid(y, 3 * 2.0**-16), 2**16)
    assert all(sum(z * z for z in row) <= 2**32 for row in kept.tolist())


@pytest.mark.parametrize("bound", [0, -1, 2**31 + 1, 3.0, True])
def test_a_bad_bound_is_refused(bound):
    with pytest.raises(ConfigError, match="bound"):
        check_l2_rows(np.zeros(1, np.int64), np.zeros(1, np.int64), 1, bound)
    with pytest.raises(TypeError):
        check_l2_rows(np.zeros(1), np.zeros(1, np.int64), 1, 5)
