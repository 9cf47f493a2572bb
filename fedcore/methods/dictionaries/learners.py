"""Local learners: what a client, or a stack of clients, does with its samples to improve a dictionary.

    orthogonal   polar factor of X'Y: dictionaries with orthonormal atoms (Algorithm 4)
    gradient     one gradient step on |Y - X D|^2 (Algorithm 5)
    statistics   atom after atom, exactly, from the sums X'X and X'Y (Mairal, Bach, Ponce, Sapiro 2010, Algorithm 2)

Shapes: samples (c, m, d) in tiles, atoms (c, S, r, d) for S dictionaries of each of c clients that see the same pass.
Everything a pass yields is a sum over samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from fedcore.methods.dictionaries.operators import normalise, polar
from fedcore.methods.dictionaries.sparse_coding import Coder
from fedcore.randomness import stream

Tiles = Callable[[], Iterable[np.ndarray]]
PIECE_NUMBERS = 2**16  # float64 numbers in the residuals of the samples that are worked on at a time
SETTLING_STEPS = 20  # at the target threshold, after a start's shrinking thresholds
GRADIENT_STEP = 0.5  # of 1 / the largest curvature; below 1 is stable
UNUSED = 1e-12  # an atom with less than this share of the mean energy of codes is unused


@dataclass(slots=True)
class Sums:
    """What one pass over the samples yields, for each of (c, S) dictionaries.

    xy: (c, S, r, d) codes times samples; xx: (c, S, r, r) codes times codes, or None
    used: (c, S, r) nonzero codes of each atom; loss: (c, S) sum of squared residuals
    """

    xy: np.ndarray
    xx: np.ndarray | None
    used: np.ndarray
    loss: np.ndarray

    @property
    def nonzero(self) -> np.ndarray:
        """(c, S) nonzero codes."""
        return self.used.sum(2)


def pieces(tiles: Tiles, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    """(c, 1, m, d) parts of the tiles, so short that what is made of them, (c, S, m, r) or (c, S, m, d), stays small.

    shape: (c, S, r, d) of the dictionaries.
    """
    c, s, r, d = shape
    step = max(PIECE_NUMBERS // max(c * s * max(r, d), 1), 1)
    for tile in tiles():
        for low in range(0, tile.shape[1], step):
            yield tile[:, None, low : low + step]


def pass_over(tiles: Tiles, atoms: np.ndarray, coder: Coder, *, second: bool = False, loss: bool = True) -> Sums:
    """One pass. atoms: (c, S, r, d). second: also the sums of codes times codes. loss: also residuals."""
    c, s, r, d = atoms.shape
    sums = Sums(
        np.zeros((c, s, r, d)), np.zeros((c, s, r, r)) if second else None, np.zeros((c, s, r)), np.zeros((c, s))
    )
    for y in pieces(tiles, atoms.shape):
        x = coder(y, atoms)
        sums.xy += x.swapaxes(2, 3) @ y
        if second:
            sums.xx += x.swapaxes(2, 3) @ x
        sums.used += np.count_nonzero(x, axis=2)
        if loss:
            rest = x @ atoms
            rest -= y
            sums.loss += np.einsum("csmd,csmd->cs", rest, rest)
    return sums


def step(
    learner: str, tiles: Tiles, atoms: np.ndarray, coder: Coder, step_size: float | None = None, loss: bool = True
) -> tuple[np.ndarray, Sums]:
    """(atoms after one step of the learner, sums of the pass). atoms: (c, r, d)."""
    sums = pass_over(tiles, atoms[:, None], coder, second=learner != "orthogonal", loss=loss)
    if learner == "orthogonal":
        return polar(sums.xy[:, 0], atoms), sums
    if learner == "gradient":
        return gradient_step(atoms, sums.xx[:, 0], sums.xy[:, 0], step_size), sums
    return np.stack([descend(a, xx, xy) for a, xx, xy in zip(atoms, sums.xx[:, 0], sums.xy[:, 0], strict=True)]), sums


def gradient_step(atoms: np.ndarray, xx: np.ndarray, xy: np.ndarray, step_size: float | None = None) -> np.ndarray:
    """Algorithm 5's D - 2 eta (X'X D - X'Y), atoms then scaled to norm 1. atoms, xy: (c, r, d); xx: (c, r, r).

    step_size: eta; None: 0.5 / the largest eigenvalue of X'X, for which the step is stable. Unused atoms stay.
    """
    if step_size is None:
        largest = np.linalg.eigvalsh(xx)[:, -1]
        eta = GRADIENT_STEP / np.where(largest > 0, largest, 1.0)
    else:
        eta = np.full(len(atoms), float(step_size))
    moved, norms = normalise(atoms - 2.0 * eta[:, None, None] * (xx @ atoms - xy))
    return np.where(norms[..., None] > 0, moved, atoms)


def descend(atoms: np.ndarray, xx: np.ndarray, xy: np.ndarray, sweeps: int = 1) -> np.ndarray:
    """Atom after atom to its exact minimum of |Y - X D|^2 given the others and the codes, then scaled to norm 1.

    atoms, xy: (r, d); xx: (r, r). Unused atoms stay. Returns (r, d).
    """
    atoms = np.array(atoms, np.float64)
    energy = np.diagonal(xx)
    used = np.flatnonzero(energy > UNUSED * max(float(energy.mean()), np.finfo(float).tiny))
    for _ in range(sweeps):
        for j in used:
            new = atoms[j] + (xy[j] - xx[j] @ atoms) / energy[j]
            norm = np.linalg.norm(new)
            if norm > 0:
                atoms[j] = new / norm
    return atoms


# --- starts ---------------------------------------------------------------------------------------------------------


def first_dictionaries(
    rank: int,
    features: int,
    n_starts: int,
    seed: int,
    numbers: np.ndarray,
    first: np.ndarray | None = None,
    purpose: str = "dictionaries/start",
) -> np.ndarray:
    """(c, S, rank, d) unit atoms that a start begins with: `first` (c, rank, d) if given, then random ones.

    Random dictionaries have orthonormal atoms if rank <= d, and directions drawn evenly otherwise. numbers: (c,) of the
    clients in the population; each has a stream of its own, named by the purpose.
    """
    out = np.empty((len(numbers), n_starts, rank, features))
    for i, number in enumerate(numbers):
        generator = stream(seed, purpose, 0, int(number))
        for s in range(n_starts):
            given = s == 0 and first is not None
            out[i, s] = first[i] if given else random_atoms(generator, rank, features)
    return out


def random_atoms(generator: np.random.Generator, rank: int, features: int) -> np.ndarray:
    """(rank, d): orthonormal and uniformly distributed if rank <= d, else directions drawn evenly."""
    gaussian = generator.standard_normal((rank, features))
    if rank > features:
        return normalise(gaussian)[0]
    q, upper = np.linalg.qr(gaussian.T)
    return (q * np.where(np.diagonal(upper) < 0, -1.0, 1.0)).T.copy()


def singular_start(tiles: Tiles, rank: int) -> np.ndarray:
    """(c, rank, d) leading right singular vectors of the samples, from sums of their products; rank <= d."""
    total = 0.0
    for tile in tiles():
        total = total + tile.swapaxes(1, 2) @ tile
    vectors = np.linalg.eigh(total)[1][:, :, ::-1][:, :, :rank].swapaxes(1, 2)
    largest = np.abs(vectors).argmax(axis=2)[..., None]
    flips = np.where(np.take_along_axis(vectors, largest, 2) < 0, -1.0, 1.0)
    return vectors * flips


@dataclass(frozen=True, slots=True)
class Schedule:
    """Thresholds of a start: first, first * decay, ... while above the target; at most `steps` of them.

    density: expected share of nonzero codes, if known: a start ends its schedule once it has more than 0.8 of that
    """

    first: float = 0.6
    decay: float = 0.99
    steps: int = 200
    density: float | None = None


def warm_start(
    learner: str,
    tiles: Tiles,
    sizes: np.ndarray,
    starts: np.ndarray,
    coder: Coder,
    schedule: Schedule,
    step_size: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(atoms (c, r, d), objective (c,)) of the best of several starts, all of them in the same passes.

    starts: (c, S, r, d). With hard thresholds they shrink down to the target, where 20 more steps follow; otherwise the
    learner makes `schedule.steps` steps. Kept is the start of least `objective`.
    """
    atoms = starts
    if coder.code == "threshold":
        atoms = _shrinking(learner, tiles, sizes, atoms, coder, schedule, step_size)
        settling = SETTLING_STEPS
    else:
        settling = schedule.steps
    for _ in range(settling):
        atoms = _steps(learner, tiles, atoms, coder, step_size)
    if atoms.shape[1] == 1:
        return atoms[:, 0], objective(tiles, atoms, coder)[:, 0]
    scores = objective(tiles, atoms, coder)
    best = scores.argmin(1)
    at = np.arange(len(atoms))
    return atoms[at, best], scores[at, best]


def _shrinking(learner, tiles, sizes, atoms, coder, schedule, step_size) -> np.ndarray:
    enough = None
    if schedule.density is not None:
        enough = 0.8 * schedule.density * sizes[:, None] * atoms.shape[2]
    going = np.ones(atoms.shape[:2], bool)
    threshold = schedule.first
    for _ in range(schedule.steps):
        threshold *= schedule.decay
        if enough is None and threshold <= coder.threshold:
            break
        now = Coder("threshold", max(threshold, 0.0))
        sums = pass_over(tiles, atoms, now, second=learner != "orthogonal", loss=False)
        moved = _moved(learner, atoms, sums, step_size)
        atoms = np.where(going[:, :, None, None], moved, atoms)
        if enough is not None:
            going &= sums.nonzero <= enough
            if not going.any():
                break
    return atoms


def _steps(learner, tiles, atoms, coder, step_size) -> np.ndarray:
    sums = pass_over(tiles, atoms, coder, second=learner != "orthogonal", loss=False)
    return _moved(learner, atoms, sums, step_size)


def _moved(learner, atoms, sums: Sums, step_size) -> np.ndarray:
    if learner == "orthogonal":
        return polar(sums.xy, atoms)
    c, s, r, d = atoms.shape
    flat = atoms.reshape(c * s, r, d)
    xx, xy = sums.xx.reshape(c * s, r, r), sums.xy.reshape(c * s, r, d)
    if learner == "gradient":
        return gradient_step(flat, xx, xy, step_size).reshape(atoms.shape)
    return np.stack([descend(*each) for each in zip(flat, xx, xy, strict=True)]).reshape(atoms.shape)


def objective(tiles: Tiles, atoms: np.ndarray, coder: Coder) -> np.ndarray:
    """(c, S) what dictionaries are compared by: the sum of squared residuals, with hard thresholds plus z^2 times the
    number of nonzero codes.

    Residuals are those of the samples. What thresholding takes from the codes alone would be the same for square
    orthogonal dictionaries, but with fewer atoms than features it is least for atoms that no sample has anything of.
    """
    total = np.zeros(atoms.shape[:2])
    for y in pieces(tiles, atoms.shape):
        x = coder(y, atoms)
        total += ((y - x @ atoms) ** 2).sum((2, 3))
        if coder.code == "threshold":
            total += coder.threshold**2 * np.count_nonzero(x, axis=(2, 3))
    return total


# --- refinement -----------------------------------------------------------------------------------------------------


def refine(
    learner: str,
    tiles: Tiles,
    common: np.ndarray,
    local: np.ndarray,
    coder: Coder,
    steps: int,
    step_size: float | None = None,
) -> np.ndarray:
    """Local atoms after some steps on what the global ones leave (Algorithm 6). common: (rg, d), local: (c, l, d).

    The residual Y - X_g G, with X_g coded from G alone, is formed tile by tile and never kept.
    """

    def rest():
        for tile in tiles():
            yield tile - coder(tile, common) @ common

    for _ in range(steps):
        local = step(learner, rest, local, coder, step_size, loss=False)[0]
    return local
