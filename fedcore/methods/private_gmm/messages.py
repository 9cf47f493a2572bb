"""What the server asks of clients in a pass; all of it is published or public.

Slots number the nodes of a pass: slot s of a release is about nodes[s].
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedcore.methods.mixture_models.whole_rows import WholeMap
from fedcore.methods.private_gmm.boxes import LARGEST_SHIFT
from fedcore.methods.private_gmm.config import Covariance
from fedcore.methods.private_gmm.integer_rows import ONE
from fedcore.methods.private_gmm.plan import ESTIMATION, PassKind
from fedcore.methods.private_gmm.tree import BASIS, MOST_LEVELS, Tree
from fedcore.rounds.messages import POSITIVE, between


@dataclass(frozen=True, slots=True)
class Message:
    """What clients need to contribute to a pass.

    kind: of the pass. names, shapes: of its releases. by_client: whether a unit is a client.
    tree, and level: to which it is followed, ESTIMATION: to its cells.
    nodes: (s,) those of the slots, with centre (s, d), radius (s,) in the units of the data and basis (s, d, q).
    edges: squared inner edges of the bins of radii, in the units of the data; of profiles in steps.
    covariance: the form that is estimated.
    weight: what a record adds to a histogram, or the norm that its offset may have.
    """

    kind: PassKind
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    by_client: bool
    tree: Tree
    level: int = field(metadata=between(ESTIMATION, MOST_LEVELS))
    nodes: np.ndarray
    centre: np.ndarray
    radius: np.ndarray = field(metadata=POSITIVE)
    basis: np.ndarray = field(metadata=BASIS)
    edges: np.ndarray
    covariance: Covariance = "full"
    weight: int = ONE


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxesMessage(Message):
    """shifts: (2, qb) int64 of the boxes. halvings: so far. parents: (B, 2 + qb) int64 slot, shift and code of the
    boxes whose halves are counted."""

    shifts: np.ndarray = field(metadata=between(0, LARGEST_SHIFT))
    halvings: int
    parents: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsMessage(Message):
    """shifts: (2, qb) int64 of the boxes. box: (M, 2 + qb) int64 shift, halvings and code of the chosen boxes, with
    slot (M,), middle (M, q) and reach (M,), both in steps: an offset is cut to its box's reach."""

    shifts: np.ndarray = field(metadata=between(0, LARGEST_SHIFT))
    slot: np.ndarray
    box: np.ndarray
    middle: np.ndarray
    reach: np.ndarray = field(metadata=POSITIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilesMessage(Message):
    """candidates: (M, q) whole numbers of steps, candidate centres; slot: (M,) of their nodes."""

    slot: np.ndarray
    candidates: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class ValleysMessage(Message):
    """pairs: (e, 2) int64 of slots. maps: for each slot from its rows in steps to places on its own lines; start:
    (s, e) where its mean is there, -PLACE_STEPS at the first slot of a pair and PLACE_STEPS at the second."""

    pairs: np.ndarray
    maps: tuple[WholeMap, ...]
    start: np.ndarray


def of_cell(pairs: np.ndarray, slot: int) -> np.ndarray:
    """Numbers of the lines that end in this cell, increasing."""
    return np.flatnonzero((pairs == slot).any(axis=1))
