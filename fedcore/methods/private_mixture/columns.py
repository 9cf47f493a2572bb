"""Centre and scale of every column, from noised histograms of exponents and noised sums of cut distances."""

from __future__ import annotations

import numpy as np

from fedcore.methods.mixture_models.noised_cells import kept, quantile, standing_out
from fedcore.methods.mixture_models.whole_rows import ONE
from fedcore.methods.private_mixture.plan import EXPONENTS, SPANS

WITHIN = 0.95  # of the units, whose distances are not cut
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-EXPONENTS, 2.0 ** (EXPONENTS + 2)


def exponent_edges() -> np.ndarray:
    """(SPANS + 1,) edges of the cells of absolute values."""
    edges: np.ndarray = 2.0 ** (np.arange(SPANS + 1) - EXPONENTS)
    return edges


def first_guess(histogram: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centre and the distance that holds most units, (d,) each, and whether they stand out of noise, (d,) bool.

    histogram: (d, COLUMN_CELLS) published, in steps. Of a column that does not, the centre is 0 and the distance the
    largest: it is left as it is declared to be, within the range of the method.
    """
    counts, sd = histogram / ONE, noise / ONE
    negative, positive, nothing = counts[:, :SPANS], counts[:, SPANS : 2 * SPANS], counts[:, 2 * SPANS :]
    told, near = standing_out(np.concatenate([nothing, negative + positive], axis=1), sd * np.sqrt(2))
    near = np.concatenate([near[:, :0:-1], near], axis=1)
    line = kept(np.concatenate([negative[:, ::-1], nothing, positive], axis=1), sd, near)
    edges = exponent_edges()
    ends = np.concatenate([-edges[::-1], edges])
    centre = quantile(line, ends, 0.5)
    low, high = quantile(line, ends, (1 - WITHIN) / 2), quantile(line, ends, (1 + WITHIN) / 2)
    reach = np.clip(np.maximum(high - centre, centre - low), SMALLEST_SCALE, LARGEST_SCALE)
    return np.where(told, centre, 0.0), np.where(told, reach, LARGEST_SCALE), told


def moved(centre: np.ndarray, reach: np.ndarray, sums: np.ndarray, count: float) -> np.ndarray:
    """(d,) the centre after sums (d,), published in steps, of distances cut to the reach."""
    step: np.ndarray = np.clip(sums / ONE / max(count, 1.0), -1.0, 1.0) * reach
    return centre + step


def reach_of(histogram: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """(d,) the WITHIN quantile of distances, and whether it stands out of noise, (d,) bool. histogram: (d, SPANS)
    published, in steps."""
    counts, sd = histogram / ONE, noise / ONE
    told, near = standing_out(counts, sd)
    reach = quantile(kept(counts, sd, near), exponent_edges(), WITHIN)
    return np.clip(reach, SMALLEST_SCALE, LARGEST_SCALE), told
