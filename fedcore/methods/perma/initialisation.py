"""The dictionary that every client learns alone before the first round (Algorithm 1, step 3), from several starts.

The paper starts at random and shrinks the threshold of the codes from step to step. Here each client tries several
starting dictionaries, in the same passes over its samples, and keeps the one that ends with the least objective.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedcore.methods.dictionary_learning.distances import Group
from fedcore.methods.dictionary_learning.operators import normalise, polar, random_atoms
from fedcore.methods.perma.config import PermaConfig
from fedcore.methods.perma.learners import Coder, Tiles, coder_of, pieces, step_all
from fedcore.randomness import stream

SETTLING_STEPS = 20  # at the target threshold, after the shrinking thresholds


@dataclass(frozen=True, slots=True)
class Schedule:
    """Thresholds of an initialisation: first, first * decay, ... while above the target; at most `steps` of them.

    density: expected share of nonzero codes, if known: a start ends its schedule once it has more than 0.8 of that
    """

    first: float = 0.6
    decay: float = 0.99
    steps: int = 200
    density: float | None = None


# --- of the clients of a run ----------------------------------------------------------------------------------------


def initial_dictionaries(config: PermaConfig, seed: int, group: Group) -> tuple[np.ndarray, np.ndarray]:
    """(atoms (c, rank, d), objective (c,)) of the best of the configured starts of every client of the group."""
    d = group.block.features
    numbers = group.block.first + group.clients
    starts = starting_dictionaries(group.rank, d, config.starts, seed, numbers, _first(config, seed, group))
    schedule = Schedule(steps=config.steps_of_start)
    return best_of_starts(config.steps_of, group.tiles, group.sizes, starts, coder_of(config), schedule)


def _first(config: PermaConfig, seed: int, group: Group) -> np.ndarray:
    """(c, rank, d) the first start: unit vectors for square orthogonal dictionaries, singular vectors of the samples
    for others of at most as many atoms as features, else samples."""
    d = group.block.features
    if group.rank > d:
        return np.stack([_sampled(seed, group, i) for i in range(len(group.clients))])
    if group.rank == d and config.learner == "orthogonal":
        return np.broadcast_to(np.eye(d), (len(group.clients), d, d))
    return singular_start(group.tiles, group.rank)


def _sampled(seed: int, group: Group, i: int) -> np.ndarray:
    """(rank, d) atoms made of different samples of client i of the group, the rest random directions."""
    client = int(group.clients[i])
    generator = stream(seed, "dictionaries/samples", 0, group.block.first + client)
    low, size = int(group.block.ptr[client]), int(group.sizes[i])
    rows = low + np.sort(generator.choice(size, min(group.rank, size), replace=False))
    atoms = random_atoms(generator, group.rank, group.block.features)
    unit, norms = normalise(np.asarray(group.block.x[rows], np.float64))
    nonzero = np.flatnonzero(norms > 0)
    atoms[nonzero] = unit[nonzero]
    return atoms


def restarted(
    config: PermaConfig, seed: int, group: Group, common: np.ndarray, local: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """((c, l, d) local atoms, (c,) bool whether they are new): learnt again on the samples' parts orthogonal to the
    global atoms (rg, d), and kept where that lowers the client's objective. local: (c, l, d) as they are."""
    d, wanted = common.shape[1], len(common)
    basis = polar(common, common) if wanted <= d else common[:0]

    def orthogonal_part() -> Iterator[np.ndarray]:
        for tile in group.tiles():
            yield tile - (tile @ basis.T) @ basis

    numbers = group.block.first + group.clients
    starts = starting_dictionaries(local.shape[1], d, config.restarts, seed, numbers, purpose="dictionaries/restart")
    schedule = Schedule(steps=config.steps_of_start)
    coder = coder_of(config)
    new, _ = best_of_starts(config.steps_of, orthogonal_part, group.sizes, starts, coder, schedule)
    both = np.stack([local, new], axis=1)
    shared = np.broadcast_to(common, (*both.shape[:2], wanted, d))
    scores = objective(group.tiles, np.concatenate([shared, both], axis=2), coder)
    better = scores[:, 1] < scores[:, 0]
    return np.where(better[:, None, None], new, local), better


# --- starts ---------------------------------------------------------------------------------------------------------


def starting_dictionaries(
    rank: int,
    features: int,
    starts: int,
    seed: int,
    numbers: np.ndarray,
    first: np.ndarray | None = None,
    purpose: str = "dictionaries/start",
) -> np.ndarray:
    """(c, S, rank, d) unit atoms, S starts of each client: `first` (c, rank, d) if there is one, then random ones.

    numbers: (c,) of the clients in the population; each has a separate random stream, named by the purpose.
    """
    out = np.empty((len(numbers), starts, rank, features))
    for i, number in enumerate(numbers):
        generator = stream(seed, purpose, 0, int(number))
        for s in range(starts):
            out[i, s] = first[i] if s == 0 and first is not None else random_atoms(generator, rank, features)
    return out


def singular_start(tiles: Tiles, rank: int) -> np.ndarray:
    """(c, rank, d) leading right singular vectors of the samples, from sums of their products; rank <= d."""
    total = sum((tile.swapaxes(1, 2) @ tile for tile in tiles()), np.zeros(()))
    vectors = np.linalg.eigh(total)[1][:, :, ::-1][:, :, :rank].swapaxes(1, 2)
    largest = np.abs(vectors).argmax(axis=2)[..., None]
    flips = np.where(np.take_along_axis(vectors, largest, 2) < 0, -1.0, 1.0)
    return vectors * flips


def best_of_starts(
    learner: str, tiles: Tiles, sizes: np.ndarray, starts: np.ndarray, coder: Coder, schedule: Schedule
) -> tuple[np.ndarray, np.ndarray]:
    """(atoms (c, r, d), objective (c,)) of the best of several starts, all of them learnt in the same passes.

    starts: (c, S, r, d); sizes: (c,) samples. With hard thresholds, these shrink down to the target, where 20 more
    steps follow; with other codes the learner makes `schedule.steps` steps. The start of least `objective` is kept.
    """
    atoms, settling = starts, schedule.steps
    if coder.code == "threshold":
        atoms, settling = (_with_shrinking_thresholds(learner, tiles, sizes, starts, coder, schedule), SETTLING_STEPS)
    for _ in range(settling):
        atoms = step_all(learner, tiles, atoms, coder, loss=False)[0]
    scores = objective(tiles, atoms, coder)
    best, clients = scores.argmin(1), np.arange(len(atoms))
    return atoms[clients, best], scores[clients, best]


def _with_shrinking_thresholds(
    learner: str, tiles: Tiles, sizes: np.ndarray, atoms: np.ndarray, coder: Coder, schedule: Schedule
) -> np.ndarray:
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
        moved, sums = step_all(learner, tiles, atoms, now, loss=False)
        atoms = np.where(going[:, :, None, None], moved, atoms)
        if enough is not None:
            going &= sums.nonzero <= enough
            if not going.any():
                break
    return atoms


def objective(tiles: Tiles, atoms: np.ndarray, coder: Coder) -> np.ndarray:
    """(c, S) what dictionaries (c, S, r, d) are compared by: the sum of squared residuals of the samples, with hard
    thresholds z plus z^2 times the number of nonzero codes.

    What thresholding takes from the codes alone would be the same for square orthogonal dictionaries, but with fewer
    atoms than features it is least for atoms that are orthogonal to all samples.
    """
    total = np.zeros(atoms.shape[:2])
    for y in pieces(tiles, atoms.shape):
        x = coder(y, atoms)
        total += ((y - x @ atoms) ** 2).sum((2, 3))
        if coder.code == "threshold":
            total += coder.threshold**2 * np.count_nonzero(x, axis=(2, 3))
    return total
