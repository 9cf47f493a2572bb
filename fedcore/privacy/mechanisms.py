"""Noise, and the integer grid that it is added on.

    SecureNoise          exact discrete Gaussian from a cryptographic generator: the only noise that protects people
    TestNoise            pseudo-random, repeatable, anyone with the key can subtract it: a run with it is not private
    simulated_gaussian   continuous, for the experiments of papers; protects nobody

    truncate_to_grid, check_l2_rows    floats of clients -> integers whose L2 norm holds exactly

The argument is docs/privacy/discrete-gaussian.md.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from typing import Protocol

import numpy as np

from fedcore.errors import ConfigError, PrivacyError, SensitivityError
from fedcore.privacy.plan import PlannedRelease

# Values stay below 2**62 (aggregation.IntegerSum refuses more), and noise of this scale reaches 2**62 only at 128
# standard deviations. So no sum leaves int64, whatever the data are; OpenDP would saturate there, which is
# post-processing, so that not even that could leak.
LARGEST_SCALE = 2.0**55
LARGEST_SENSITIVITY = 2**53  # exact as a float
SCALE_STEPS = 64

LARGEST_GRID_VALUE = 2.0**53
LARGEST_ROW_BOUND = 2**31
LOW_BITS = 32


class NoiseSource(Protocol):
    """secure: whether the noise protects people. label: for the privacy statement."""

    secure: bool
    label: str

    def draw(self, planned: PlannedRelease, run_key: str, values: np.ndarray) -> np.ndarray:
        """values + noise of scale `planned.scale`; both int64 of shape `planned.shape`, in grid units.

        run_key: the run's id. Raises SensitivityError if dtype, shape or scale are not the planned ones.
        """


def _check(planned: PlannedRelease, values: np.ndarray) -> None:
    """Looks at dtype and shape only, never at a value: a refusal must not depend on the data."""
    if not isinstance(values, np.ndarray) or values.dtype != np.int64 or values.shape != tuple(planned.shape):
        raise SensitivityError(f"release {planned.name!r} is not an int64 array of shape {tuple(planned.shape)}.")
    if planned.scale > LARGEST_SCALE or planned.sensitivity > LARGEST_SENSITIVITY:
        raise SensitivityError(
            f"release {planned.name!r}: noise of scale {planned.scale:.3g} grid units does not fit into 64 bits.",
            "Use a coarser grid or less noise.",
        )


class SecureNoise:
    """Exact discrete Gaussian noise: Canonne, Kamath, Steinke 2020, Algorithm 3, as built into OpenDP.

    Integer and rational arithmetic only; random bits from the cryptographic generator inside OpenDP, which the
    operating system seeds. There is no seed to set and none to find. Argument: docs/privacy/discrete-gaussian.md.
    """

    secure = True
    label = "exact discrete Gaussian (OpenDP), bits from a cryptographic generator seeded by the operating system"

    def draw(self, planned: PlannedRelease, run_key: str, values: np.ndarray) -> np.ndarray:
        _check(planned, values)
        measurement = _measurement(planned.name, planned.sensitivity, planned.scale, planned.rho)
        try:
            noised = measurement(values.ravel().tolist())
        except Exception as error:  # the text of a foreign error could hold a raw sum
            raise PrivacyError(f"noise for release {planned.name!r} could not be drawn ({type(error).__name__}); "
                               "nothing was released.") from None  # fmt: skip
        return np.array(noised, np.int64).reshape(values.shape)


@lru_cache(maxsize=256)
def _measurement(name: str, sensitivity: int, scale: float, rho: float):
    """OpenDP's measurement whose own price is at most the price that is charged.

    Both prices are rounded upwards; the scale grows by units in the last place until OpenDP's is the smaller one.
    """
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    for _ in range(SCALE_STEPS):
        measurement = dp.m.make_gaussian(*space, scale=scale, MO="ZeroConcentratedDivergence")
        if measurement.map(float(sensitivity)) <= rho:
            return measurement
        scale = math.nextafter(scale, math.inf)
    raise SensitivityError(f"release {name!r}: noise of scale {scale:.6g} costs rho = "
                           f"{measurement.map(float(sensitivity)):.6g}, more than the charged {rho:.6g}.")  # fmt: skip


class TestNoise:
    """Repeatable discrete Gaussian noise for tests; protects nobody.

    A function of (key, round, name) and of nothing else (not of the run, not of the attempt), so that a disturbed run
    ends in the same bits as an undisturbed one.
    """

    __test__ = False  # not a test class of pytest
    secure = False
    label = "test noise: not private"

    def __init__(self, key: str):
        self.key = key

    def draw(self, planned: PlannedRelease, run_key: str, values: np.ndarray) -> np.ndarray:
        _check(planned, values)
        name = f"{self.key}|{planned.round}|{planned.name}"
        digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
        rng = np.random.Generator(np.random.Philox(key=np.frombuffer(digest, np.uint64)))
        return values + _pseudo_discrete_gaussian(rng, planned.scale, values.size).reshape(values.shape)


def _pseudo_discrete_gaussian(rng: np.random.Generator, scale: float, size: int) -> np.ndarray:
    """(size,) int64 by rejection from a discrete Laplace (Canonne, Kamath, Steinke 2020, Alg. 3), in floats."""
    spread = math.floor(scale) + 1
    kept, missing = [], size
    while missing > 0:
        tries = 2 * missing + 16
        geometric = rng.geometric(-math.expm1(-1 / spread), (2, tries))
        laplace = geometric[0] - geometric[1]
        excess = (np.abs(laplace) - scale**2 / spread) / scale
        kept.append(laplace[rng.random(tries) < np.exp(-(excess**2) / 2)][:missing])
        missing -= len(kept[-1])
    return np.concatenate(kept) if kept else np.zeros(0, np.int64)


def simulated_gaussian(rng: np.random.Generator, values: np.ndarray, scale: float) -> np.ndarray:
    """FOR SIMULATION ONLY: values + continuous Gaussian noise, float64, as the papers draw it.

    Floating-point Gaussians leak through their low bits (Mironov 2012); results of this are never called private.
    """
    return values + rng.normal(0.0, scale, np.shape(values))


# --- the grid -------------------------------------------------------------------------------------------------------


def truncate_to_grid(y: np.ndarray, step: float) -> np.ndarray:
    """The grid values z, |z| * step <= |y|: y / step truncated toward zero, exactly. Any shape; returns int64.

    Truncation toward zero cannot raise a norm; rounding to nearest can. NaN becomes 0, and anything beyond 2**53 steps
    saturates there (nothing that a client holds may make the run fail). Raises ConfigError for a step that is not in
    [2**-500, 2**500].
    """
    if not 2.0**-500 <= step <= 2.0**500:
        raise ConfigError(f"a grid step must be between 2**-500 and 2**500, not {step!r}.")
    y = np.asarray(y, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        quotient = np.nan_to_num(y / step, nan=0.0, posinf=LARGEST_GRID_VALUE, neginf=-LARGEST_GRID_VALUE)
    steps = np.minimum(np.trunc(np.abs(quotient)), LARGEST_GRID_VALUE)
    # The quotient is rounded, so it may lie on the next integer; then one step less. Compare without rounding.
    product, error = _two_product(steps, step)
    magnitude = np.abs(y)
    steps = np.where((product > magnitude) | ((product == magnitude) & (error > 0)), steps - 1, steps)
    return np.copysign(steps, y).astype(np.int64)


def _two_product(a: np.ndarray, b: float) -> tuple[np.ndarray, np.ndarray]:
    """a * b = product + error exactly (Dekker 1971), barring over- and underflow."""
    product = a * b
    a_high, b_high = a * 134217729.0, b * 134217729.0  # 2**27 + 1 splits 53 bits into 26 + 26
    a_high = a_high - (a_high - a)
    b_high = b_high - (b_high - b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def check_l2_rows(values: np.ndarray, rows: np.ndarray, n_rows: int, bound: int) -> np.ndarray:
    """The same grid values, with every row whose L2 norm exceeds `bound` scaled down until it does not.

    values: (nnz,) int64 entries of a sparse matrix; rows: (nnz,) the row of each; bound: whole number of grid units,
    at most 2**31. Norms are compared in integer arithmetic: sum z**2 <= bound**2 holds exactly in the result, whatever
    came in. A row's result depends on that row only. Raises ConfigError for a bad bound, TypeError for non-integers.
    """
    if type(bound) is not int or not 0 < bound <= LARGEST_ROW_BOUND:
        raise ConfigError(f"the bound on a row must be a whole number in 1 .. 2**31, not {bound!r}.")
    if values.dtype != np.int64:
        raise TypeError(f"grid values are int64, not {values.dtype}")
    values = np.clip(values, -bound, bound)  # an entry beyond the bound breaks it alone; and squares now fit
    while True:
        high, low = _squared_norms(values, rows, n_rows)
        over = (high > bound**2 >> LOW_BITS) | ((high == bound**2 >> LOW_BITS) & (low > bound**2 % 2**LOW_BITS))
        if not over.any():
            return values
        factor = np.ones(n_rows)
        factor[over] = bound / np.sqrt(high[over] * 2.0**LOW_BITS + low[over]) * (1 - 2.0**-40)
        values = np.trunc(values * factor[rows]).astype(np.int64)  # exact where the factor is 1


def check_l2_dense(values: np.ndarray, bound: int) -> np.ndarray:
    """`check_l2_rows` for (rows, columns) int64."""
    n, d = values.shape
    return check_l2_rows(values.ravel(), np.repeat(np.arange(n), d), n, bound).reshape(n, d)


def _squared_norms(values: np.ndarray, rows: np.ndarray, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """(high, low), each (n_rows,) int64 with sum z**2 = high * 2**32 + low exactly, for |z| <= 2**31."""
    squares = values * values
    if len(squares) == 0 or len(squares) * int(squares.max()) < 2**53:  # then float64 sums are exact, and faster
        total = np.bincount(rows, squares, n_rows).astype(np.int64)
        return total >> LOW_BITS, total & (2**LOW_BITS - 1)
    high, low = np.zeros(n_rows, np.int64), np.zeros(n_rows, np.int64)
    np.add.at(high, rows, squares >> LOW_BITS)
    np.add.at(low, rows, squares & (2**LOW_BITS - 1))
    return high + (low >> LOW_BITS), low & (2**LOW_BITS - 1)
