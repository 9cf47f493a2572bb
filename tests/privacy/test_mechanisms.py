"""Noise: its price, its distribution, and that a sabotaged build is noticed. The grid: norms hold in integers."""

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedcore.errors import PrivacyError, SensitivityError
from fedcore.privacy import mechanisms
from fedcore.privacy.mechanisms import SecureNoise, TestNoise, simulated_gaussian
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


def test_no_cell_goes_without_noise():
    drawn = np.stack(
        [SecureNoise().draw(planned(2.0**16, shape=(2, 3)), "run", np.zeros((2, 3), int)) for _ in "a" * 24]
    )
    assert (np.abs(drawn).max(axis=0) > 2**14).all() and (drawn.std(axis=0) > 2**14).all()


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
