"""The integer grid that noise is added on: a client's numbers in whole steps, with an L2 norm that holds exactly.

A clip C is 2**16 steps, so the sensitivity in steps is a whole number by construction. Clients cut their clipped floats
toward zero and pass them through `bound_norms`, which decides on the whole numbers, not on the floats they came from.
The argument is docs/privacy/rounded-gaussian.md.
"""

from __future__ import annotations

import numpy as np

from fedcore.population.blocks import segment_sums

GRID_BITS = 16
GRID_NORM: int = 2**GRID_BITS  # the clip in grid steps: the sensitivity


def grid_step(clip: float) -> float:
    """Width of a grid step: clip / 2**16."""
    return clip / GRID_NORM


def bound_norms(grid: np.ndarray, indptr: np.ndarray) -> np.ndarray:
    """Scales down, in exact integer arithmetic, every client whose grid values exceed the norm 2**16.

    grid: (nnz,) float64 whole numbers with squared norms below 2**53; changed in place and returned. With r a whole
    number above the norm, |z| becomes floor(|z| 2**16 / r), which cannot leave a norm above 2**16.
    """
    squares = segment_sums(grid * grid, indptr)
    for client in np.flatnonzero(squares > GRID_NORM**2):
        entries = slice(indptr[client], indptr[client + 1])
        whole = grid[entries].astype(np.int64)
        above = int(np.sqrt(squares[client])) + 1
        grid[entries] = np.sign(whole) * (np.abs(whole) * GRID_NORM // above)
    return grid
