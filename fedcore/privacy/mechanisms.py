"""Noise. What it is added to is made in `fedcore.privacy.grid`.

    SecureNoise          rounded Gaussian on bits of the operating system: the only noise that protects people
    TestNoise            pseudo-random, repeatable, anyone with the key can subtract it: a run with it is not private
    simulated_gaussian   continuous, for the experiments of papers; gives no privacy

The argument is docs/privacy/rounded-gaussian.md.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fedcore.errors import PrivacyError, SensitivityError
from fedcore.privacy import rounded_gaussian
from fedcore.privacy.plan import PlannedRelease
from fedcore.privacy.rounded_gaussian import StreamBits, SystemBits, add


class NoiseSource(Protocol):
    """secure: whether the noise protects people. label: for the privacy statement."""

    secure: bool
    label: str

    def ready(self, planned: PlannedRelease, values: np.ndarray) -> None:
        """Raises whatever `draw` would refuse these values for, before anything is charged; never looks at a value.

        Raises SensitivityError if dtype, shape or scale are not those that can be drawn, PrivacyError for a damaged
        installation or a system without random bits.
        """

    def draw(self, planned: PlannedRelease, run_key: str, values: np.ndarray) -> np.ndarray:
        """values + noise of scale `planned.scale`; both int64 of shape `planned.shape`, in grid units.

        run_key: the run's id. Raises what `ready` raises.
        """


def ready(planned: PlannedRelease, values: np.ndarray) -> None:
    """Looks at dtype and shape only, never at a value: a refusal must not depend on the data."""
    if not isinstance(values, np.ndarray) or values.dtype != np.int64 or values.shape != tuple(planned.shape):
        raise SensitivityError(f"release {planned.name!r} is not an int64 array of shape {tuple(planned.shape)}.")
    try:
        rounded_gaussian.ready(planned.scale)
    except SensitivityError as error:
        raise SensitivityError(f"release {planned.name!r}: {error.message}", error.remedy) from None


class SecureNoise:
    """Rounded Gaussian noise with its exact distribution, from bits of the operating system:
    `fedcore.privacy.rounded_gaussian`.

    There is no seed to set and none to find. Argument: docs/privacy/rounded-gaussian.md.
    """

    secure = True
    label = "Gaussian, rounded to whole grid steps (exact sampler, bits from the operating system)"

    def ready(self, planned: PlannedRelease, values: np.ndarray) -> None:
        ready(planned, values)

    def draw(self, planned: PlannedRelease, run_key: str, values: np.ndarray) -> np.ndarray:
        self.ready(planned, values)
        try:
            return add(values, planned.scale, SystemBits())
        except Exception as error:  # the text of a foreign error could hold a raw sum
            raise PrivacyError(
                f"noise for release {planned.name!r} could not be drawn ({type(error).__name__}); nothing was released."
            ) from None


class TestNoise:
    """Repeatable noise for tests; gives no privacy.

    A function of (key, round, name), and of nothing else (not of the run, not of the attempt), so that a disturbed run
    ends in the same bits as an undisturbed one.
    """

    __test__ = False  # not a test class of pytest
    secure = False
    label = "test noise: not private"

    def __init__(self, key: str) -> None:
        self.key = key

    def ready(self, planned: PlannedRelease, values: np.ndarray) -> None:
        ready(planned, values)

    def draw(self, planned: PlannedRelease, run_key: str, values: np.ndarray) -> np.ndarray:
        self.ready(planned, values)
        return add(values, planned.scale, StreamBits(self.key, planned.round, planned.name))


def simulated_gaussian(rng: np.random.Generator, values: np.ndarray, scale: float) -> np.ndarray:
    """FOR SIMULATION ONLY: values + continuous Gaussian noise, float64, as the papers draw it.

    Floating-point Gaussians leak through their low bits (Mironov 2012); results of this are never called private.
    """
    return values + rng.normal(0.0, scale, np.shape(values))


def noise_of(test_noise: str | None) -> NoiseSource:
    """Noise that protects people; for a key, its repeatable noise for tests."""
    return SecureNoise() if test_noise is None else TestNoise(test_noise)
