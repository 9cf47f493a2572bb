"""What clients answer: exact integer sums over units, one kind for each pass. Argued in docs/privacy/private-gmm.md.

A row's node is found from the tree in the message. A row in none of the pass's nodes adds nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from fedcore.methods.mixture_models.whole_rows import products
from fedcore.methods.private_gmm.boxes import CUBE_BITS, keys_of, places_in_cube
from fedcore.methods.private_gmm.integer_rows import (
    FAR,
    ONE,
    CountSum,
    Group,
    Tile,
    VectorSum,
    clipped,
    groups,
    in_steps,
    projected,
    shortened,
    squared_distances,
)
from fedcore.methods.private_gmm.plan import PLACE_CELLS, PLACE_ENDS, PassKind
from fedcore.methods.private_gmm.state import (
    BoxesMessage,
    Message,
    OffsetsMessage,
    ProfilesMessage,
    ValleysMessage,
    of_cell,
)
from fedcore.methods.private_gmm.tree import node_of
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.messages import refuse_unless
from fedcore.rounds.statistics import IntegerSum, Statistics

PLACE_STEPS = 2**14  # from the middle between two components to either
FURTHEST_PLACE = 1.5  # of the cells of an edge, in the same unit; places beyond are in one of two ends
PLACE_WIDTH = 2 * FURTHEST_PLACE * PLACE_STEPS / PLACE_CELLS


def check_weight(message: Message, boxes: int, candidates: int) -> None:
    """Raises SensitivityError if a row could be in two slots, or if what it adds in all histograms or boxes together
    could exceed what noise was planned for: `boxes` and `candidates` of them, with a weight of ONE each."""
    refuse_unless(_distinct(message.nodes), "nodes")
    used, planned = 1, 1
    if isinstance(message, OffsetsMessage):
        refuse_unless(_distinct(np.column_stack([message.slot, message.box])), "box")
        used, planned = len(np.unique(message.box[:, :2], axis=0)), boxes
    elif isinstance(message, ProfilesMessage):
        used, planned = _most_alike(message.slot), candidates
    elif isinstance(message, ValleysMessage):
        used = _most_alike(message.pairs)
    refuse_unless(used * int(message.weight) ** 2 <= planned * ONE**2, "weight")


def _distinct(values: np.ndarray) -> bool:
    return len(np.unique(values, axis=0)) == len(values)


def _most_alike(values: np.ndarray) -> int:
    return int(np.unique(values, return_counts=True)[1].max(initial=1))


def client_update(message: Message, block: RowsBlock) -> Statistics:
    """The leaf's exact sums under their planned names, int64 of the planned shapes.

    Whatever the rows hold, this neither fails nor warns.
    """
    kernel = KERNELS[message.kind](message)
    with np.errstate(all="ignore"):
        for group in groups(block, message.by_client, kernel.width):
            for tile in group.tiles:
                _add(message, kernel, group, tile)
            kernel.close(group)
    return {
        name: IntegerSum(total.reshape(shape))
        for name, total, shape in zip(message.names, kernel.totals(), message.shapes, strict=True)
    }


def _add(message: Message, kernel: Kernel, group: Group, tile: Tile) -> None:
    at = node_of(message.tree, tile.x, None if message.level < 0 else message.level)
    for slot, node in enumerate(message.nodes):
        chosen = at == node
        if chosen.all():
            kernel.add(slot, group, tile)
        elif chosen.any():
            kernel.add(slot, group, tile.of(chosen))


class Kernel(ABC):
    """The sums of one pass. width: numbers that are kept for each client of a group."""

    width = 1

    def __init__(self, message: Message):
        self.message: Any = message  # of the class that the kind of the pass has
        self.sizes = [int(np.prod(shape)) for shape in message.shapes]
        self.sums: list[CountSum | VectorSum] = []

    @abstractmethod
    def add(self, slot: int, group: Group, tile: Tile) -> None:
        """Adds the rows of a tile, all of them in the node of this slot."""

    def close(self, group: Group) -> None:
        """The group's clients are complete."""
        for each in self.sums:
            each.close(group)

    def totals(self) -> list[np.ndarray]:
        """By release, int64, flat or of the planned shape."""
        return [each.total for each in self.sums]

    def counts(self, release: int, weight: int = ONE) -> CountSum:
        made = CountSum(self.sizes[release], weight, self.message.by_client)
        self.sums.append(made)
        return made

    def vectors(self, release: int) -> VectorSum:
        made = VectorSum(self.sizes[release], self.message.by_client)
        self.sums.append(made)
        self.width = max(self.width, self.sizes[release])
        return made

    def clipped(self, slot: int, tile: Tile, shared: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """See `integer_rows.clipped`. shared: whether the rows of a client share one bound."""
        rows = tile.rows if shared and self.message.by_client else None
        return clipped(tile.x, self.message.centre[slot], float(self.message.radius[slot]), rows)

    def projected(self, slot: int, tile: Tile) -> np.ndarray:
        """(n, q) whole numbers of steps."""
        return projected(self.clipped(slot, tile)[0], self.message.basis[slot])


class Mean(Kernel):
    """Sums of clipped rows; in the first such pass of a level also counts of rows."""

    def __init__(self, message: Message):
        super().__init__(message)
        self.count = self.counts(0) if len(self.sizes) == 2 else None
        self.total = self.vectors(len(self.sizes) - 1)

    def add(self, slot: int, group: Group, tile: Tile) -> None:
        if self.count is not None:
            self.count.add(tile, np.full(len(tile.x), slot))
        d = tile.x.shape[1]
        self.total.add(group, tile, slice(slot * d, (slot + 1) * d), self.clipped(slot, tile)[0])


class Radii(Kernel):
    """A histogram of the distances from the centre; in the first such pass over the cells also counts of rows."""

    def __init__(self, message: Message):
        super().__init__(message)
        self.count = self.counts(0) if len(self.sizes) == 2 else None
        self.radii = self.counts(len(self.sizes) - 1)

    def add(self, slot: int, group: Group, tile: Tile) -> None:
        if self.count is not None:
            self.count.add(tile, np.full(len(tile.x), slot))
        step = float(self.message.radius[slot]) / ONE
        inner = np.floor(self.message.edges / step**2)
        bins = np.searchsorted(inner, self.clipped(slot, tile)[1], side="left")
        self.radii.add(tile, bins + slot * (len(inner) + 1))


class Moments(Kernel):
    """Second moments of clipped rows: a triangle with its diagonal scaled, the diagonal alone, or the trace."""

    def __init__(self, message: Message):
        super().__init__(message)
        self.total = np.zeros(message.shapes[0], np.int64)
        self.form = "full" if message.kind == "moments" else message.covariance

    def add(self, slot: int, group: Group, tile: Tile) -> None:
        z, _ = self.clipped(slot, tile, shared=True)
        if self.form == "full":
            self.total[slot] += products(z)
        else:
            diagonal = (z * z).sum(axis=0).astype(np.int64)
            self.total[slot] += diagonal if self.form == "diag" else diagonal.sum()

    def totals(self) -> list[np.ndarray]:
        return [self.total]


class Halves(Kernel):
    """Counts of the halves of the heavy boxes that the last pass found."""

    message: BoxesMessage

    def __init__(self, message: BoxesMessage):
        super().__init__(message)
        self.halves = self.counts(0, message.weight)

    def add(self, slot: int, group: Group, tile: Tile) -> None:
        message, j = self.message, self.message.halvings
        axes = message.shifts.shape[1]
        for shift, place in enumerate(places_in_cube(self.projected(slot, tile), message.shifts)):
            parents = np.flatnonzero((message.parents[:, 0] == slot) & (message.parents[:, 1] == shift))
            if not len(parents):
                continue
            keys = keys_of(message.parents[parents, 2:], j)
            order = np.argsort(keys)
            own = keys_of(place >> (CUBE_BITS - j), j)
            at = np.minimum(np.searchsorted(keys[order], own), len(parents) - 1)
            parent = np.where(keys[order][at] == own, parents[order][at], -1)
            half = ((place >> (CUBE_BITS - j - 1)) & 1) @ (1 << np.arange(axes))
            self.halves.add(tile, np.where(parent >= 0, parent * 2**axes + half, -1))


class Offsets(Kernel):
    """Sums of what separates the rows of a chosen box from its middle."""

    message: OffsetsMessage

    def __init__(self, message: OffsetsMessage):
        super().__init__(message)
        self.total = self.vectors(0)

    def add(self, slot: int, group: Group, tile: Tile) -> None:
        message, y = self.message, self.projected(slot, tile)
        places, q = places_in_cube(y, message.shifts), y.shape[1]
        for box in np.flatnonzero(message.slot == slot):
            shift, halvings, *code = message.box[box]
            inside = np.flatnonzero(((places[shift] >> (CUBE_BITS - halvings)) == np.array(code)).all(axis=1))
            steps = message.weight / message.reach[box]
            offsets = shortened((y[inside] - message.middle[box]) * steps, message.weight)
            self.total.add(group, tile.of(inside), slice(box * q, (box + 1) * q), offsets)


class Profiles(Kernel):
    """For every candidate centre the histogram of the rows' distances from it."""

    message: ProfilesMessage

    def __init__(self, message: ProfilesMessage):
        super().__init__(message)
        self.rings = self.counts(0, message.weight)

    def add(self, slot: int, group: Group, tile: Tile) -> None:
        candidates = np.flatnonzero(self.message.slot == slot)
        if len(candidates):
            squares = squared_distances(self.projected(slot, tile), self.message.candidates[candidates])
            bins = self.message.shapes[0][1]
            for column, candidate in enumerate(candidates):
                ring = np.searchsorted(self.message.edges, squares[:, column], side="left")
                self.rings.add(tile, ring + candidate * bins)


class Valleys(Kernel):
    """Histograms of the places of rows on the lines between their own component and its neighbours."""

    message: ValleysMessage

    def __init__(self, message: Message):
        super().__init__(message)
        self.places = self.counts(0, message.weight)

    def add(self, slot: int, group: Group, tile: Tile) -> None:
        message = self.message
        z = in_steps(tile.x, message.centre[slot], float(message.radius[slot]))
        edges = of_cell(message.pairs, slot)
        places = message.maps[slot].of(z) + message.start[slot, edges]
        at = np.clip(np.floor(places / PLACE_WIDTH) + PLACE_CELLS // 2, -1, PLACE_CELLS).astype(np.int64) + 1
        far = (np.abs(z) >= FAR).any(axis=1)  # these would pile up where they were cut
        for column, edge in enumerate(edges):
            cell = at[:, column] + edge * (PLACE_CELLS + PLACE_ENDS)
            self.places.add(tile, np.where(far, -1, cell))


KERNELS: dict[PassKind, Callable[[Any], Kernel]] = {
    "mean": Mean,
    "radii": Radii,
    "moments": Moments,
    "boxes": Halves,
    "offsets": Offsets,
    "profiles": Profiles,
    "leaf mean": Mean,
    "leaf radii": Radii,
    "leaf valleys": Valleys,
    "leaf covariance": Moments,
}
