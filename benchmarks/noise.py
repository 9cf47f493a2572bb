"""Exact discrete Gaussian noise from the secure source: seconds for 10,000 cells, against a floating-point normal."""

import math
from time import perf_counter

import numpy as np

from benchmarks.measured import Measured
from fedcore.privacy.mechanisms import SecureNoise
from fedcore.privacy.plan import PlannedRelease

CELLS = 10_000


def measure(options) -> dict:
    rows = []
    for sigma in (0.5, 1.5, 30.0):
        planned = PlannedRelease("noise", 1, (10, 1000), 2**16, sigma, "", "")
        values = np.zeros((10, 1000), np.int64)
        taken = []
        for _ in range(options.repeats + 1):
            started = perf_counter()
            drawn = SecureNoise().draw(planned, "", values)
            taken.append(perf_counter() - started)
        started = perf_counter()
        np.random.Generator(np.random.Philox(1)).normal(size=CELLS)
        floating = perf_counter() - started
        rows.append(
            {
                "noise_multiplier": f"{sigma:g}",
                "cells": CELLS,
                "seconds": Measured(taken[1:]),
                "numpy_normal_s": floating,
                "std_over_planned": float(drawn.std() / planned.scale),
                "expected_error": 1 / math.sqrt(2 * CELLS),
            }
        )
    return {"benchmark": "noise", "rows": rows}
