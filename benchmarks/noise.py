"""Noise of `SecureNoise`: CPU-microseconds for a cell of a release of 10 x 1000, beside a floating-point normal of
NumPy. Both take turns in one run.

Scales are of a sensitivity of 2^16 steps and noise multipliers of .5 to 1000. std_over_planned is 1 up to
expected_error.
"""

import math

import numpy as np

from benchmarks.measured import in_turns
from fedcore.privacy.mechanisms import SecureNoise
from fedcore.privacy.plan import PlannedRelease

SHAPE = (10, 1000)
RELEASES = 100  # in a turn
MULTIPLIERS = (0.5, 1.5, 30.0, 1000.0)


def measure(options) -> dict:
    return {"benchmark": "noise", "rows": [_row(multiplier, options.repeats) for multiplier in MULTIPLIERS]}


def _row(multiplier: float, repeats: int) -> dict:
    planned = PlannedRelease("noise", 1, SHAPE, 2**16, multiplier, "", "")
    values, generator = np.zeros(SHAPE, np.int64), np.random.Generator(np.random.Philox(1))
    drawn: list[np.ndarray] = []

    def ours() -> None:
        drawn[:] = [SecureNoise().draw(planned, "", values) for _ in range(RELEASES)]

    turns = {"ours": ours, "normal": lambda: [generator.normal(size=SHAPE) for _ in range(RELEASES)]}
    taken = in_turns(turns, repeats)
    cells = RELEASES * planned.cells
    us = taken["ours"].map(lambda seconds: seconds / cells * 1e6)
    return {
        "scale": f"{planned.scale:g}",
        "cells": planned.cells,
        "us_per_cell": us,
        "numpy_normal_us": taken["normal"].map(lambda seconds: seconds / cells * 1e6),
        "std_over_planned": float(np.std(drawn) / planned.scale),
        "expected_error": 1 / math.sqrt(2 * cells),
    }
