"""Noise: its distribution, what is refused before it is paid, and that a sabotaged build is noticed.

That its law is exact is shown in test_rounded_gaussian.py; here it is the law of what a run draws.
"""

import os
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedcore.errors import PrivacyError, SensitivityError
from fedcore.privacy import mechanisms, normal_table, rounded_gaussian
from fedcore.privacy.mechanisms import SecureNoise, TestNoise, simulated_gaussian
from fedcore.privacy.plan import PlannedRelease

ALPHA = 1e-7  # chance that an honest build fails one statistical check
SMALL, LARGE = 1.3, 1.4 * 3 * 2**16
CELLS = 20_000
DRAW = [-62, 310, -883, -1715, 384, 288]  # of key "key", round 1, name "sums", scale 1000.5


def planned(scale, *, sensitivity=1, shape=(CELLS,), name="sums", round=1):
    return PlannedRelease(name, round, shape, sensitivity, scale / sensitivity, "docs/privacy/rounded-gaussian.md", "")


# --- distribution ---------------------------------------------------------------------------------------------------


def variance_fits(noise, scale):
    """The variance within the bounds of a chi-square law at level ALPHA.

    Power at 20 000 cells: the standard error of the variance is 1 %, the bounds are 5.3 % away, so a scale that is 6 %
    too small (variance 11.6 % too small) is missed with probability below 1e-8; scale / 4 and the mean of two draws
    (variance / 2) lie tens of standard errors away.
    """
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], len(noise)) / len(noise)
    return low <= np.mean(noise**2.0) / variance_of(scale) <= high


def distribution_fits(noise, scale):
    """Against the exact probabilities (chi-square test) if the scale is small, else the normal limit (Kolmogorov)."""
    if scale > 1000:
        return stats.kstest(noise / scale, "norm").pvalue > ALPHA
    support = np.arange(-60, 61)
    weights = np.diff(stats.norm.cdf(np.arange(-60.5, 61) / scale))
    edge = int(3 * scale)
    inside = np.abs(support) <= edge
    expected = np.append(weights[inside], weights[~inside].sum()) / weights.sum() * len(noise)
    counts = np.array([np.sum(noise == k) for k in support[inside]] + [np.sum(np.abs(noise) > edge)])
    return stats.chisquare(counts, expected).pvalue > ALPHA


def variance_of(scale):
    """Rounding adds a twelfth, up to terms as small as exp(-2 pi**2 scale**2)."""
    return scale**2 + 1 / 12


class QuarterScale(SecureNoise):
    def draw(self, planned, run_key, values):
        return super().draw(replace(planned, noise_multiplier=planned.noise_multiplier / 4), run_key, values)


class DrawnTwice(SecureNoise):
    """A retry that draws again on the same sum, and whoever sees both takes the mean."""

    def draw(self, planned, run_key, values):
        return (super().draw(planned, run_key, values) + super().draw(planned, run_key, values)) // 2


class WrongLaw(SecureNoise):
    """Discrete Laplace noise of nearly the right variance: 2 q / (1 - q)**2 = scale**2."""

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


def test_what_is_drawn_is_the_exact_sampler_at_the_planned_scale(monkeypatch):
    """No distribution tells a scale that is a thousandth too small: what is called, and with what, does."""
    called = []
    monkeypatch.setattr(mechanisms, "add", lambda *given: called.append(given) or given[0])
    plan, values = planned(LARGE, shape=(3,)), np.arange(3)
    SecureNoise().draw(plan, "run", values)
    TestNoise("key").draw(plan, "run", values)
    for got, bits in zip(called, (rounded_gaussian.SystemBits, rounded_gaussian.StreamBits), strict=True):
        assert got[0] is values and got[1] == plan.scale and type(got[2]) is bits


@pytest.mark.parametrize("scale", [SMALL, LARGE])
@pytest.mark.parametrize("sabotaged", [QuarterScale(), DrawnTwice()])
def test_a_sabotaged_build_fails(sabotaged, scale):
    noise = sabotaged.draw(planned(scale), "run", np.zeros(CELLS, np.int64))
    assert not variance_fits(noise, scale)
    assert not distribution_fits(noise, scale)


def test_noise_of_the_right_variance_and_the_wrong_law_fails():
    noise = WrongLaw().draw(planned(SMALL), "run", np.zeros(CELLS, np.int64))
    assert np.mean(noise**2) == pytest.approx(variance_of(SMALL), rel=0.1)
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


def test_test_noise_is_what_it_was():
    """Interrupted runs of test noise continue with it."""
    assert TestNoise("key").draw(planned(1000.5, shape=(6,)), "", np.zeros(6, np.int64)).tolist() == DRAW
    assert SecureNoise().secure


def test_simulated_noise_is_floats():
    drawn = simulated_gaussian(np.random.Generator(np.random.Philox(1)), np.zeros(CELLS), LARGE)
    assert drawn.dtype == np.float64 and variance_fits(drawn, LARGE)


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [SecureNoise(), TestNoise("key")])
@pytest.mark.parametrize(
    "values", [np.zeros(3), np.zeros(3, np.int32), np.zeros((3, 1), np.int64), np.zeros(4, np.int64), [0, 0, 0]]
)
def test_other_dtypes_and_shapes_are_refused(source, values):
    for ask in (source.ready, lambda plan, values: source.draw(plan, "run", values)):
        with pytest.raises(SensitivityError, match="not an int64 array"):
            ask(planned(5.0, shape=(3,)), values)


@pytest.mark.parametrize("source", [SecureNoise(), TestNoise("key")])
def test_what_cannot_be_drawn_is_refused_before_it_is_asked_for_whatever_the_values_are(source, monkeypatch):
    values = np.full(1, 424242)
    source.ready(planned(2.0**48, shape=(1,)), values)
    with pytest.raises(SensitivityError, match="'sums'.*wider than 2.81e.14.* coarser grid"):
        source.ready(planned(np.nextafter(2.0**48, np.inf), shape=(1,)), values)
    with monkeypatch.context() as broken, pytest.raises(PrivacyError, match="random bits"):
        broken.setattr("os.urandom", lambda n: (_ for _ in ()).throw(NotImplementedError()))
        source.ready(planned(5.0, shape=(1,)), values)
    monkeypatch.setattr(normal_table, "SHA256", "0" * 64)
    rounded_gaussian._table.cache_clear()
    with pytest.raises(PrivacyError, match="not the one that was proved"):
        source.ready(planned(5.0, shape=(1,)), values)


def test_the_largest_sums_do_not_wrap():
    ends = np.iinfo(np.int64)
    drawn = SecureNoise().draw(planned(2.0**38, shape=(2, 64)), "run", np.array([[ends.max] * 64, [ends.min] * 64]))
    assert (drawn[0] > 2**62).all() and (drawn[1] < -(2**62)).all()
    assert (drawn[0] == ends.max).any() and (drawn[0] < ends.max).any()


def test_a_scalar_release_keeps_its_shape():
    assert SecureNoise().draw(planned(5.0, shape=()), "run", np.array(3)).shape == ()


def test_a_failing_sampler_does_not_show_the_sum(monkeypatch):
    def failing(values, scale, bits):
        raise ValueError(f"cannot noise {values}")

    monkeypatch.setattr(mechanisms, "add", failing)
    with pytest.raises(PrivacyError) as caught:
        SecureNoise().draw(planned(5.0, shape=(1,)), "run", np.array([424242]))
    assert "424242" not in str(caught.value) and caught.value.__cause__ is None
    assert caught.value.__suppress_context__
