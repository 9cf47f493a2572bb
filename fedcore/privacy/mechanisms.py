"""Noise. What it is added to is made in `fedcore.privacy.grid`.

    SecureNoise          exact discrete Gaussian from a cryptographic generator: the only noise that protects people
    TestNoise            pseudo-random, repeatable, anyone with the key can subtract it: a run with it is not private
    simulated_gaussian   continuous, for the experiments of papers; protects nobody

The argument is docs/privacy/discrete-gaussian.md.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import numpy as np

from fedcore.errors import PrivacyError, SensitivityError
from fedcore.privacy.plan import PlannedRelease

# Values stay below 2**62 (`fedcore.rounds.statistics.IntegerSum` refuses more), and noise of this scale reaches 2**62
# only at 128 standard deviations. So no sum leaves int64, whatever the data are; OpenDP would saturate there, which
# is post-processing, so that not even that could leak.
LARGEST_SCALE = 2.0**55
LARGEST_SENSITIVITY = 2**53  # exact as a float
SCALE_STEPS = 64


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
            raise PrivacyError(
                f"noise for release {planned.name!r} could not be drawn ({type(error).__name__}); nothing was released."
            ) from None
        return np.array(noised, np.int64).reshape(values.shape)


@lru_cache(maxsize=256)
def _measurement(name: str, sensitivity: int, scale: float, rho: float) -> Callable[[list[int]], list[int]]:
    """OpenDP's measurement whose own price is at most the price that is charged.

    Both prices are rounded upwards; the scale grows by units in the last place until OpenDP's is the smaller one.
    """
    # Not opendp.prelude, which also imports all of scikit-learn.
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    space = vector_domain(atom_domain(T="i64")), l2_distance(T="f64")
    for _ in range(SCALE_STEPS):
        measurement = make_gaussian(*space, scale=scale, MO="ZeroConcentratedDivergence")
        if measurement.map(float(sensitivity)) <= rho:
            return measurement
        scale = math.nextafter(scale, math.inf)
    raise SensitivityError(
        f"release {name!r}: noise of scale {scale:.6g} costs rho = "
        f"{measurement.map(float(sensitivity)):.6g}, more than the charged {rho:.6g}."
    )


class TestNoise:
    """Repeatable discrete Gaussian noise for tests; protects nobody.

    A function of (key, round, name) and of nothing else (not of the run, not of the attempt), so that a disturbed run
    ends in the same bits as an undisturbed one.
    """

    __test__ = False  # not a test class of pytest
    secure = False
    label = "test noise: not private"

    def __init__(self, key: str) -> None:
        self.key = key

    def draw(self, planned: PlannedRelease, run_key: str, values: np.ndarray) -> np.ndarray:
        _check(planned, values)
        name = f"{self.key}|{planned.round}|{planned.name}"
        digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
        rng = np.random.Generator(np.random.Philox(key=np.frombuffer(digest, np.uint64)))
        noise = _pseudo_discrete_gaussian(rng, planned.scale, values.size).reshape(values.shape)
        noised: np.ndarray = values + noise
        return noised


def _pseudo_discrete_gaussian(rng: np.random.Generator, scale: float, size: int) -> np.ndarray:
    """(size,) int64 by rejection from a discrete Laplace (Canonne, Kamath, Steinke 2020, Alg. 3), in floats."""
    laplace_scale = math.floor(scale) + 1
    kept, missing = [], size
    while missing > 0:
        tries = 2 * missing + 16
        geometric = rng.geometric(-math.expm1(-1 / laplace_scale), (2, tries))
        laplace = geometric[0] - geometric[1]
        excess = (np.abs(laplace) - scale**2 / laplace_scale) / scale
        kept.append(laplace[rng.random(tries) < np.exp(-(excess**2) / 2)][:missing])
        missing -= len(kept[-1])
    return np.concatenate(kept) if kept else np.zeros(0, np.int64)


def simulated_gaussian(rng: np.random.Generator, values: np.ndarray, scale: float) -> np.ndarray:
    """FOR SIMULATION ONLY: values + continuous Gaussian noise, float64, as the papers draw it.

    Floating-point Gaussians leak through their low bits (Mironov 2012); results of this are never called private.
    """
    return values + rng.normal(0.0, scale, np.shape(values))
