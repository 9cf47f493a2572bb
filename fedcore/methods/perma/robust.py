"""Robust rounds, learner = "robust": global atoms hold the background of a fixed camera, local atoms what is left.

As printed, PerMA fits its global atoms to whole frames by least squares, so that objects leak into them, and into the
codes: background "ghosts". Here the global part is robust, after Huber's modified residuals:

    codes of a sample y     least Huber loss of y - x G, by x <- x + psi(y - x G) G'
    cleaned samples         x G + psi(y - x G): residuals beyond the cut are reduced to it
    client's global atoms   the orthogonal learner's step (Algorithm 4) on the cleaned samples: polar factor of X'Y
    server                  the aggregate of the clients' atoms, as in the other rounds
    local atoms             the learner's steps on the rest y - x G, which holds the objects (Algorithm 6)

psi(r) = r cut to [-c s, c s]. The standard deviation s is estimated by 1.4826 median |r| of the client's residuals, so
a client can compute it alone. A client that is read in tiles has an s for each tile: one median over
all of them would be a sort on disk. In the rounds only global atoms are sent; the matching before them needs whole
dictionaries. Samples may come in any order, and a frame may be brighter than the others.

Sources: Liang, Shi, Al Kontar, Fattahi 2023, Algorithms 4 and 6; Huber, "Robust Statistics" (1981), Chapter 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fedcore.methods.dictionary_learning.distances import Group, matched_distances
from fedcore.methods.dictionary_learning.operators import polar
from fedcore.methods.perma.config import PermaConfig
from fedcore.methods.perma.initialisation import singular_start
from fedcore.methods.perma.learners import Coder, step
from fedcore.methods.perma.state import Counts, RoundMessage
from fedcore.rounds.method import Memory

Rows = Callable[[], Iterator[np.ndarray]]
TO_STANDARD_DEVIATION = 1.4826  # of a normal distribution, from its median absolute value
SMALLEST = 1e-9  # standard deviation of residuals, below which they are rounding


# --- codes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RobustCoder:
    """Codes of least Huber loss.

    cut:       c, standard deviations from which on a residual counts as an outlier
    estimates: how often the standard deviation is estimated; steps: of the iteration after each estimate
    """

    cut: float = 1.0
    estimates: int = 3
    steps: int = 5

    def __call__(self, samples: np.ndarray, atoms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(codes (n, r), cleaned samples (n, d)) of samples (n, d) with orthonormal atoms (r, d)."""
        codes = samples @ atoms.T
        if not len(samples):
            return codes, samples
        rest = samples - codes @ atoms
        bound = 0.0
        for _ in range(self.estimates):
            bound = self.cut * max(TO_STANDARD_DEVIATION * float(np.median(np.abs(rest))), SMALLEST)
            for _ in range(self.steps):
                codes += np.clip(rest, -bound, bound) @ atoms.T
                rest = samples - codes @ atoms
        return codes, codes @ atoms + np.clip(rest, -bound, bound)


TO_LEARN = RobustCoder()  # codes that global atoms are learnt from
TO_KEEP = RobustCoder(estimates=6, steps=10)  # that are kept, or local atoms learnt from: nearer to the minimum


def huber(rest: np.ndarray, cut: np.ndarray) -> np.ndarray:
    """Huber losses of residuals and what the cut leaves of them: r^2 up to the bound b, 2 b |r| - b^2 beyond."""
    return np.abs(cut) * (2.0 * np.abs(rest) - np.abs(cut))


def robust_parts(
    samples: np.ndarray, common: np.ndarray, local: np.ndarray, coder: Coder
) -> tuple[np.ndarray, np.ndarray]:
    """(global part, local part) of samples (n, d): robust codes of G alone, then the local atoms' of what is left."""
    shared = TO_KEEP(samples, common)[0] @ common
    rest = samples - shared
    return shared, coder(rest, local) @ local if len(local) else np.zeros_like(rest)


# --- a round of the clients -----------------------------------------------------------------------------------------


def robust_round(
    config: PermaConfig,
    message: RoundMessage,
    group: Group,
    memory: Memory,
    sent: np.ndarray,
    coder: Coder,
    counts: Counts,
) -> None:
    """The round of a group of clients: writes their atoms into `sent` (C, rg, d), what they learn into `memory`, and
    adds to `counts`. In the last round local atoms are learnt."""
    common, local_atoms = message.global_atoms, group.rank - len(message.common)
    for i, client in enumerate(group.clients.tolist()):
        rows = group.rows_of(i)
        sent[client], loss = global_atoms(rows, common, TO_LEARN)
        memory["loss"][client] = loss / group.sizes[i]
        counts.nonzero += group.sizes[i] * len(common)
        if message.learn_local and local_atoms:
            local = memory["local"][client, :local_atoms] if memory["fitted"][client] else None
            rest = _left_by(common, rows, TO_KEEP, keep=not group.in_tiles)
            local, used = learn_local_atoms(rest, local, local_atoms, max(config.refine_steps, 1), coder)
            memory["local"][client, :local_atoms], memory["fitted"][client] = local, 1
            counts.nonzero += float(used.sum())
            counts.unused_atoms += float((used == 0).sum())
    distances = matched_distances(sent[group.clients], common)
    memory["distance"][group.clients] = distances.mean(-1) if len(common) else 0.0


def global_atoms(rows: Rows, common: np.ndarray, coder: RobustCoder) -> tuple[np.ndarray, float]:
    """((rg, d) a client's global atoms after a step from the common ones, Huber loss of the codes)."""
    xy, loss = np.zeros_like(common), 0.0
    for y in rows():
        codes, cleaned = coder(y, common)
        xy += codes.T @ cleaned
        made = codes @ common
        loss += float(huber(y - made, cleaned - made).sum())
    return polar(xy, common), loss


def _left_by(common: np.ndarray, rows: Rows, coder: RobustCoder, keep: bool) -> Rows:
    """What the global atoms leave, (1, m, d) tile by tile. keep: in memory, else it is computed again in every pass."""

    def rest() -> Iterator[np.ndarray]:
        for y in rows():
            yield (y - coder(y, common)[0] @ common)[None]

    if not keep:
        return rest
    kept = list(rest())
    return lambda: iter(kept)


def learn_local_atoms(
    rest: Rows, local: np.ndarray | None, count: int, steps: int, coder: Coder
) -> tuple[np.ndarray, np.ndarray]:
    """((l, d) orthonormal atoms learnt from what the global ones leave, (l,) codes of the last step that used them).

    local: (l, d) to continue from; None: `count` singular vectors of what is left. steps: at least 1.
    """
    atoms = singular_start(rest, count) if local is None else local[None]
    used = np.zeros(count)
    for _ in range(steps):
        atoms, sums = step("orthogonal", rest, atoms, coder, loss=False)
        used = sums.used[0, 0]
    return atoms[0], used
