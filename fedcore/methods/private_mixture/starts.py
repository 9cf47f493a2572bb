"""Rounds of Lloyd with released cells, and the components that they suggest."""

from __future__ import annotations

import numpy as np

from fedcore.methods.mixture_models.cell_starts import mixture_of_cells
from fedcore.methods.mixture_models.whole_rows import ONE
from fedcore.methods.private_mixture.plan import LLOYD, MOST_CELLS

CELL_FACTOR = 0.07
SURE = 2.0  # standard deviations of a count, that a cell must hold
BESIDE = 0.5  # standard deviations of all rows, by which a cell is moved from a big one
LEAST_WITHIN = 0.3  # of what m equal cells of a cube have within, m^(-2 / q) of the variance of all rows
BACKGROUND = 0.03  # weight at the start


def number_of_cells(k: int, q: int, n: float, mu: float, typical: float, clip: float) -> int:
    """K', chosen such that the noise of a cell's centre stays small relative to the distance between cells."""
    enough = CELL_FACTOR * n * mu * typical / (np.sqrt(q) * clip)
    return int(np.clip(enough, min(2 * k, 24), MOST_CELLS))


def first_cells(m: int, spread: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """(m, q) in units."""
    return generator.normal(size=(m, len(spread))) * spread


def moved(
    cells: np.ndarray,
    counts: np.ndarray,
    sums: np.ndarray,
    noise: tuple[float, float],
    clip: float,
    spread: np.ndarray,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centres, counts and noise of centres after a round. counts (m,), sums (m, q): published, in steps; noise: of
    both.

    A cell that holds too little is moved near a big one, and counts 0.
    """
    m, q = cells.shape
    held, sd = counts[:m] / ONE, noise[0] / ONE
    good = held > SURE * sd
    divisor = np.maximum(held, 1.0)[:, None]
    mean = np.clip(sums[:m] * (clip / ONE) / divisor, -clip, clip)
    uncertain = noise[1] * clip / ONE / divisor[:, 0]
    centres = np.where(good[:, None], mean, cells)
    big = np.maximum(np.where(good, held, 0.0), 0.0)
    chance = big / big.sum() if big.sum() > 0 else np.full(m, 1 / m)
    beside = centres[generator.choice(m, size=m, p=chance)] + BESIDE * spread * generator.normal(size=(m, q))
    return np.where(good[:, None], centres, beside), np.where(good, held, 0.0), uncertain


def components_of(
    cells: np.ndarray,
    counts: np.ndarray,
    uncertain: np.ndarray,
    spread: np.ndarray,
    lift: np.ndarray,
    k: int,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """weights (k + 1,), means (k, d), covariances (k, d, d) in the coordinates of the components. cells: of all rounds.

    lift: (q, d) what a step in the leading directions is there; the other directions start from mean 0 and variance 1.
    """
    d, good = lift.shape[1], counts > 0
    if good.sum() < 2 or k < 2:
        return np.array([1 - BACKGROUND, BACKGROUND]), np.zeros((1, d)), np.eye(d)[None]
    centres, mass = cells[good], counts[good]
    share = mass / mass.sum()
    away = centres - share @ centres
    between = (away * share[:, None]).T @ away - np.eye(len(spread)) * float(share @ uncertain[good] ** 2)
    values, vectors = np.linalg.eigh(np.diag(spread**2) - between)
    least = LEAST_WITHIN * (len(cells) / LLOYD) ** (-2.0 / len(spread))
    within = (vectors * np.maximum(values, least * float((spread**2).mean()))) @ vectors.T
    found = mixture_of_cells(centres, mass, uncertain[good], within, k, generator)
    # Of the standardised leading directions: an orthonormal basis in the coordinates of the components, about.
    means = found.means @ lift
    plane = lift * spread[:, None]
    rest = np.eye(d) - plane.T @ plane
    lifted = np.einsum("qd,kqr,re->kde", lift, found.covariances, lift)
    return np.append(found.weights * (1 - BACKGROUND), BACKGROUND), means, _positive(rest + lifted)


def _positive(matrices: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh((matrices + np.swapaxes(matrices, -1, -2)) / 2)
    rebuilt: np.ndarray = (vectors * np.maximum(values, 1e-2)[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    return rebuilt
