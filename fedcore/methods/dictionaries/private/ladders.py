"""Ladders: how large clients' numbers are, by counts of half octaves that can be released with noise.

A client is in one cell. Numbers beyond the ends are in the last cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

STEP = 0.5  # octaves in a cell
WINDOW = 8  # cells in which nearly all clients are expected


@dataclass(frozen=True, slots=True)
class Ladder:
    """lowest: the binary logarithm at which the first cell begins; cells: their number."""

    lowest: float
    cells: int

    @property
    def edges(self) -> np.ndarray:
        """(cells - 1,) where all cells but the first begin."""
        return np.exp2(self.lowest + STEP * np.arange(1, self.cells))

    def cell(self, values: np.ndarray) -> np.ndarray:
        """The cells of positive numbers: by comparisons, which have no rounding."""
        return np.searchsorted(self.edges, values, side="right")

    def quantile(self, counts: np.ndarray, share: float) -> float:
        """The upper end of the cell in which this share of the clients is reached, in the window of WINDOW cells that
        holds the most. counts: (cells,) noised, so that a sum over all cells would be mostly noise."""
        sums = np.convolve(counts, np.ones(WINDOW), "valid")
        first = int(sums.argmax())
        reached = np.cumsum(counts[first : first + WINDOW]) >= share * max(float(sums[first]), 1e-300)
        return float(2.0 ** (self.lowest + STEP * (first + int(reached.argmax()) + 1)))


ENERGIES = Ladder(-40.0, 160)  # of mean squared norms of rows, in the units of the data
NORMS = Ladder(-14.0, 32)  # of norms of a client's sums, in units of the typical energy
