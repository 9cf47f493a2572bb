"""Form, centre, scale and gaps of every column, from noisy histograms of exponents and noisy sums of cut distances."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedcore.methods.mixture_models.noised_cells import (
    LIKELY,
    SURE,
    WINDOW,
    about,
    certain,
    kept,
    quantile,
    standing_out,
)
from fedcore.methods.mixture_models.whole_rows import ONE
from fedcore.methods.private_mixture.config import PrivateMixtureConfig
from fedcore.methods.private_mixture.plan import EXPONENTS, SPANS, design_of
from fedcore.methods.private_mixture.state import PrivateMixtureState

WITHIN = 0.95  # of the units, whose distances are not cut
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-EXPONENTS, 2.0 ** (EXPONENTS + 2)
APART = 3.2  # deviations of its sum, that the best window of the numbers other than zero must hold
BESIDES = 3  # cells on either side of that window, which count if they are LIKELY
GAPS = 2.0  # deviations of its noise, that a count of gaps must exceed
WIDTH = 0.5  # of an atom, in the typical size of the other numbers: a quarter of it on each side
LEAST_SHARE = 0.01  # of zeros, and of others, in a column that stands alone
COUNTED, LOWEST, EMPTY, LOWER = 0.1, 0.3, 1.5, 0.6  # of the fullest cell; of it; deviations; of the lowest cell


@dataclass(frozen=True, slots=True)
class Forms:
    """How columns with many zeros are read; (d,) each, 0 for columns that it does not concern.

    atoms: the width over which zeros are spread, in the units of the data; only they are moved
    steps: 1 for columns of whole numbers
    share: of zeros in columns that stand alone, from LEAST_SHARE to 1 - LEAST_SHARE
    near: (d, SPANS + 1) bool, cells about the typical size of the other numbers; none of a column without an atom
    """

    atoms: np.ndarray
    steps: np.ndarray
    share: np.ndarray
    near: np.ndarray

    def without(self, columns: np.ndarray) -> Forms:
        """columns: (d,) bool, those whose form is known."""
        atoms, steps, share = (np.where(columns, 0.0, part) for part in (self.atoms, self.steps, self.share))
        return Forms(atoms, steps, share, self.near & ~columns[:, None])


def atoms_of(histogram: np.ndarray, noise: float, count: np.ndarray) -> Forms:
    """The form of every column.

    histogram: (d, COLUMN_CELLS) published, in steps; noise: of a cell, in steps; count: (d,) of numbers, about. A
    column whose zeros do not stand out of noise is as it is. If no window of its other numbers does, it stands alone.
    If these are whole numbers, it has steps of 1. Else its zeros are an atom.
    """
    counts, sd = histogram / ONE, noise / ONE
    both, nothing = counts[:, :SPANS] + counts[:, SPANS : 2 * SPANS], counts[:, 2 * SPANS]
    d, wide = len(counts), math.sqrt(2) * sd
    atoms, steps, share, near = np.zeros(d), np.zeros(d), np.zeros(d), np.zeros((d, SPANS + 1), bool)
    for column in np.flatnonzero(nothing > SURE * sd):
        first, size, strength = _window(both[column], wide)
        if strength <= APART:
            share[column] = np.clip(nothing[column] / count[column], LEAST_SHARE, 1 - LEAST_SHARE)
            continue
        cells = np.arange(SPANS)
        inside = (cells >= first) & (cells < first + size)
        besides = (cells >= first - BESIDES) & (cells < first + size + BESIDES)
        used = np.maximum(np.where(inside | (besides & (both[column] > LIKELY * wide)), both[column], 0.0), 0.0)
        if _whole(both[column], used, wide):
            steps[column] = 1.0
            continue
        middle = int(np.searchsorted(np.cumsum(used), used.sum() / 2)) - EXPONENTS
        atoms[column] = WIDTH * 2.0 ** (middle + 0.5)
        near[column, 1:] = about(np.where(inside, both[column], -np.inf))
    return Forms(atoms, steps, share, near)


def _window(counts: np.ndarray, noise: float) -> tuple[int, int, float]:
    """First cell and number of the neighbouring cells whose sum stands out of noise the most, and by how many of its
    deviations. counts: (cells,)."""
    found = []
    for size in range(1, WINDOW + 1):
        sums = np.lib.stride_tricks.sliding_window_view(counts, size).sum(axis=1) / (
            max(noise, 1e-12) * math.sqrt(size)
        )
        found.append((int(sums.argmax()), size, float(sums.max())))
    return max(found, key=lambda window: window[2])


def _whole(counts: np.ndarray, used: np.ndarray, noise: float) -> bool:
    """Whether numbers seem to be whole: the least counted ones are 1, many of them, and fewer lie between 1/2 and 1.
    counts: (SPANS,) of all cells; used: (SPANS,) those about the typical size, 0 elsewhere."""
    lowest = int(np.argmax(used > COUNTED * used.max()))
    below = counts[EXPONENTS - 1]
    many = used[lowest] > LOWEST * used.max()
    return lowest == EXPONENTS and bool(
        many and (below < EMPTY * noise or below + LIKELY * noise < LOWER * used[lowest])
    )


def exponent_edges() -> np.ndarray:
    """(SPANS + 1,) edges of the cells of absolute values."""
    edges: np.ndarray = 2.0 ** (np.arange(SPANS + 1) - EXPONENTS)
    return edges


def first_guess(histogram: np.ndarray, noise: float, forms: Forms) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centre and the distance that holds most units, (d,) each, and whether they stand out of noise, (d,) bool.

    histogram: (d, COLUMN_CELLS) published, in steps. Of a column that does not, the centre is 0 and the distance the
    largest: it is left as it is declared to be, within the range of the method. Of one that stands alone they are 0 and
    1, those of the numbers that it is replaced by.
    """
    counts, sd = histogram / ONE, noise / ONE
    negative, positive, nothing = counts[:, :SPANS], counts[:, SPANS : 2 * SPANS], counts[:, 2 * SPANS :]
    told, near = standing_out(np.concatenate([nothing, negative + positive], axis=1), sd * np.sqrt(2))
    near = np.where(forms.atoms[:, None] > 0, forms.near, near)
    near = np.concatenate([near[:, :0:-1], near], axis=1)
    line = kept(np.concatenate([negative[:, ::-1], nothing, positive], axis=1), sd, near)
    edges = exponent_edges()
    ends = np.concatenate([-edges[::-1], edges])
    centre = quantile(line, ends, 0.5)
    low, high = quantile(line, ends, (1 - WITHIN) / 2), quantile(line, ends, (1 + WITHIN) / 2)
    reach = np.clip(np.maximum(high - centre, centre - low), SMALLEST_SCALE, LARGEST_SCALE)
    reach = np.maximum(reach, np.maximum(forms.atoms, forms.steps) / 2)
    alone = forms.share > 0
    centre, reach = np.where(told & ~alone, centre, 0.0), np.where(told, reach, LARGEST_SCALE)
    return centre, np.where(alone, 1.0, reach), told | alone


def profiled_guess(centre: np.ndarray, reach: np.ndarray, forms: Forms) -> tuple[np.ndarray, np.ndarray]:
    """The same of a run that starts from a profile, which has released their ranges."""
    alone = forms.share > 0
    wide = np.maximum(np.clip(reach, SMALLEST_SCALE, LARGEST_SCALE), np.maximum(forms.atoms, forms.steps) / 2)
    return np.where(alone, 0.0, centre), np.where(alone, 0.5, wide)


def moved(centre: np.ndarray, reach: np.ndarray, sums: np.ndarray, count: np.ndarray) -> np.ndarray:
    """(d,) the centre after sums (d,), published in steps, of distances cut to the reach. count: (d,) of numbers."""
    step: np.ndarray = np.clip(sums / ONE / np.maximum(count, 1.0), -1.0, 1.0) * reach
    return centre + step


def reach_of(histogram: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """(d,) the WITHIN quantile of distances, and whether it stands out of noise, (d,) bool. histogram: (d, SPANS)
    published, in steps. Where noise leaves the quantile open, it is the least that the counts allow: a reach that is
    too small cuts a tail, one that is too large hides the column."""
    counts, sd = histogram / ONE, noise / ONE
    told, near = standing_out(counts, sd)
    reach = quantile(certain(counts, sd, near), exponent_edges(), WITHIN)
    return np.clip(reach, SMALLEST_SCALE, LARGEST_SCALE), told


# --- gaps -------------------------------------------------------------------------------------------------------------


def noise_of(config: PrivateMixtureConfig, state: PrivateMixtureState, name: str) -> float:
    """Standard deviation of the noise of a cell of this release, in units."""
    design = design_of(config, state.features, state.declared, state.rho, state.relation, state.warm, state.profiled)
    names = [item.name for phase in design.phases for item in phase.releases]
    return float(state.noise[names.index(name)]) / ONE


def missing_shares(config: PrivateMixtureConfig, state: PrivateMixtureState) -> np.ndarray:
    """(d,) the shares of gaps in columns of numbers, by released counts; 0 for what may be noise. In a series they are
    those of its first run."""
    if state.warm:
        return state.missing
    seen = state.missing > GAPS * noise_of(config, state, "columns")
    found: np.ndarray = np.where(seen, np.minimum(state.missing / max(state.count, 1.0), 1.0), 0.0)
    return found


def there(config: PrivateMixtureConfig, state: PrivateMixtureState) -> np.ndarray:
    """(d,) about how many numbers columns hold."""
    found: np.ndarray = np.maximum(state.count * (1.0 - missing_shares(config, state)), 1.0)
    return found
