"""What clients answer: exact integer sums over units, one kind for each pass. Argued in docs/privacy/private-gmm.md.

A node's rows are found from the tree in the message. Slots number the nodes of a pass; a row in none of them adds
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcore.methods.private_gmm.sensitivities import DIAGONAL
from fedcore.methods.private_gmm.tree import Tree, node_of
from fedcore.methods.private_gmm.whole import BITS, ONE, CountSum, Group, Tile, VectorSum, clipped, groups, projected
from fedcore.methods.private_gmm.whole import squared_distances as distances
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.statistics import IntegerSum, Statistics

CUBE_BITS = BITS + 2  # the cube of all boxes has a side of 2^18 steps, and the ball of a node one of 2^17
SLACK = 2**10  # for the rounding of projections
LARGEST_SHIFT = 2 ** (BITS + 1) - 2 * SLACK


@dataclass(frozen=True, slots=True)
class Message:
    """What clients need to contribute to a round; all of it published or public.

    kind: of the pass. names, shapes: of its releases. by_client: what a unit is. tree, and level: to which it is
    followed, -1: to its leaves. nodes: (s,) those of the slots, with centre (s, d), radius (s,) and basis (s, d, q).
    edges: squared inner edges of the radii, in the units of the data; of profiles in steps. covariance: its form.
    weight: what a record adds to a histogram, or the norm that its offset may have. shifts: (2, qb) int64 of the boxes.
    halvings: so far; parents: (B, 2 + qb) int64 slot, shift and code of the boxes that are halved.
    place: (M, q) candidate centres, or middles of boxes, with place_slot (M,), and for offsets place_reach (M,) and
    place_box (M, 2 + qb) int64 shift, halvings and code.
    """

    kind: str
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    by_client: bool
    tree: Tree
    level: int
    nodes: np.ndarray
    centre: np.ndarray
    radius: np.ndarray
    basis: np.ndarray
    edges: np.ndarray
    weight: int = ONE
    covariance: str = "full"
    shifts: np.ndarray | None = None
    halvings: int = 0
    parents: np.ndarray | None = None
    place_slot: np.ndarray | None = None
    place: np.ndarray | None = None
    place_reach: np.ndarray | None = None
    place_box: np.ndarray | None = None


def client_update(message: Message, block: RowsBlock) -> Statistics:
    """The leaf's exact sums under their planned names, int64 of the planned shapes. No rows make this fail or warn."""
    kernel = KERNELS[message.kind](message)
    with np.errstate(all="ignore"):
        for group in groups(block, message.by_client, kernel.width):
            for tile in group.tiles:
                _add(message, kernel, group, tile)
            kernel.close(group)
    found = kernel.totals()
    return {
        name: IntegerSum(total.reshape(shape))
        for name, total, shape in zip(message.names, found, message.shapes, strict=True)
    }


def _add(message: Message, kernel, group: Group, tile: Tile) -> None:
    at = node_of(message.tree, tile.x, None if message.level < 0 else message.level)
    for slot, node in enumerate(message.nodes):
        chosen = at == node
        if chosen.all():
            kernel.add(slot, group, tile)
        elif chosen.any():
            kernel.add(slot, group, tile.of(chosen))


class Kernel:
    """Sums of one pass. width: numbers that are kept for each client of a group."""

    width = 1

    def __init__(self, message: Message):
        self.message = message
        self.cells = [int(np.prod(shape)) for shape in message.shapes]
        self.sums: list[CountSum | VectorSum] = []

    def close(self, group: Group) -> None:
        for each in self.sums:
            each.close(group)

    def totals(self) -> list[np.ndarray]:
        return [each.total for each in self.sums]

    def counts(self, release: int, weight: int = ONE) -> CountSum:
        self.sums.append(CountSum(self.cells[release], weight, self.message.by_client))
        return self.sums[-1]

    def vectors(self, release: int) -> VectorSum:
        self.sums.append(VectorSum(self.cells[release], self.message.by_client))
        self.width = max(self.width, self.cells[release])
        return self.sums[-1]

    def clipped(self, slot: int, tile: Tile, shared: bool = False):
        rows = tile.rows if shared and self.message.by_client else None
        return clipped(tile.x, self.message.centre[slot], float(self.message.radius[slot]), rows)


class Mean(Kernel):
    """Sums of clipped rows, and on the first occasion counts of rows."""

    def __init__(self, message: Message):
        super().__init__(message)
        self.count = self.counts(0) if len(self.cells) == 2 else None
        self.total = self.vectors(len(self.cells) - 1)

    def add(self, slot: int, group: Group, tile: Tile) -> None:
        if self.count is not None:
            self.count.add(tile, np.full(len(tile.x), slot))
        d = tile.x.shape[1]
        self.total.add(group, tile, slice(slot * d, (slot + 1) * d), self.clipped(slot, tile)[0])


class Radii(Kernel):
    """A histogram of the distances from the centre, and on the first occasion of leaves counts of rows."""

    def __init__(self, message: Message):
        super().__init__(message)
        self.count = self.counts(0) if len(self.cells) == 2 else None
        self.radii = self.counts(len(self.cells) - 1)

    def add(self, slot: int, group: Group, tile: Tile) -> None:
        if self.count is not None:
            self.count.add(tile, np.full(len(tile.x), slot))
        step = float(self.message.radius[slot]) / ONE
        inner = np.floor(self.message.edges / step**2)
        cells = np.searchsorted(inner, self.clipped(slot, tile)[1], side="left")
        self.radii.add(tile, cells + slot * (len(inner) + 1))


class Moments(Kernel):
    """Second moments of clipped rows: a triangle with its diagonal scaled, the diagonal alone, or the trace."""

    def __init__(self, message: Message):
        super().__init__(message)
        self.total = np.zeros(message.shapes[0], np.int64)
        self.form = "full" if message.kind == "moments" else message.covariance

    def add(self, slot: int, group: Group, tile: Tile) -> None:
        z, _ = self.clipped(slot, tile, shared=True)
        if self.form == "full":
            products = z.T @ z
            squares = z * z
            squares *= DIAGONAL[0]
            squares /= DIAGONAL[1]
            np.fill_diagonal(products, np.floor(squares, out=squares).sum(axis=0))
            self.total[slot] += products[np.triu_indices(z.shape[1])].astype(np.int64)
        else:
            squares = (z * z).sum(axis=0).astype(np.int64)
            self.total[slot] += squares if self.form == "diag" else squares.sum()

    def totals(self) -> list[np.ndarray]:
        return [self.total]


class Projecting(Kernel):
    """Kernels of projected rows."""

    def projected(self, slot: int, tile: Tile) -> np.ndarray:
        return projected(self.clipped(slot, tile)[0], self.message.basis[slot])

    def corners(self, y: np.ndarray) -> np.ndarray:
        """(shifts, n, qb) int64 places in the cube, one for each shift."""
        shifts = self.message.shifts
        return y[:, : shifts.shape[1]].astype(np.int64) + shifts[:, None, :] + (ONE + SLACK)


def keys_of(codes: np.ndarray, halvings: int) -> np.ndarray:
    """(n,) int64, one number for each box. codes: (n, qb) int64, below 2**halvings."""
    return codes @ (np.int64(1) << (np.int64(halvings) * np.arange(codes.shape[1], dtype=np.int64)))


class Boxes(Projecting):
    """Counts of the halves of the heavy boxes that the last pass found."""

    def __init__(self, message: Message):
        super().__init__(message)
        self.halves = self.counts(0, message.weight)

    def add(self, slot: int, group: Group, tile: Tile) -> None:
        message, j = self.message, self.message.halvings
        corners = self.corners(self.projected(slot, tile))
        children = corners.shape[2]
        for shift, corner in enumerate(corners):
            mine = np.flatnonzero((message.parents[:, 0] == slot) & (message.parents[:, 1] == shift))
            if not len(mine):
                continue
            keys = keys_of(message.parents[mine, 2:], j)
            order = np.argsort(keys)
            own = keys_of(corner >> (CUBE_BITS - j), j)
            at = np.minimum(np.searchsorted(keys[order], own), len(mine) - 1)
            parent = np.where(keys[order][at] == own, mine[order][at], -1)
            half = ((corner >> (CUBE_BITS - j - 1)) & 1) @ (1 << np.arange(children))
            self.halves.add(tile, np.where(parent >= 0, parent * 2**children + half, -1))


class Offsets(Projecting):
    """Sums of what separates the rows of a box from its centre."""

    def __init__(self, message: Message):
        super().__init__(message)
        self.total = self.vectors(0)

    def add(self, slot: int, group: Group, tile: Tile) -> None:
        message, y = self.message, self.projected(slot, tile)
        corners, q = self.corners(y), y.shape[1]
        for place in np.flatnonzero(message.place_slot == slot):
            shift, halvings, *code = message.place_box[place]
            inside = np.flatnonzero(((corners[shift] >> (CUBE_BITS - halvings)) == np.array(code)).all(axis=1))
            steps = message.weight / message.place_reach[place]
            offsets = cut((y[inside] - message.place[place]) * steps, message.weight)
            self.total.add(group, tile.of(inside), slice(place * q, (place + 1) * q), offsets)


def cut(z: np.ndarray, bound: int) -> np.ndarray:
    """(n, q) whole numbers with sum z**2 <= bound**2 exactly. z: (n, q), changed."""
    limit = 2.0**24
    np.clip(z, -limit, limit, out=z)
    np.rint(z, out=z)
    squares = np.einsum("ij,ij->i", z, z)
    long = np.flatnonzero(squares > float(bound) ** 2)
    if len(long):
        z[long] = np.trunc(z[long] * (bound / np.sqrt(squares[long]) * (1.0 - 2.0**-40))[:, None])
    return z


class Profiles(Projecting):
    """For every candidate centre the histogram of the rows' distances from it."""

    def __init__(self, message: Message):
        super().__init__(message)
        self.rings = self.counts(0, message.weight)

    def add(self, slot: int, group: Group, tile: Tile) -> None:
        places = np.flatnonzero(self.message.place_slot == slot)
        if len(places):
            squares = distances(self.projected(slot, tile), self.message.place[places])
            cells = self.message.shapes[0][1]
            for column, place in enumerate(places):
                ring = np.searchsorted(self.message.edges, squares[:, column], side="left")
                self.rings.add(tile, ring + place * cells)


KERNELS = {
    "mean": Mean,
    "radii": Radii,
    "moments": Moments,
    "boxes": Boxes,
    "offsets": Offsets,
    "profiles": Profiles,
    "leaf mean": Mean,
    "leaf radii": Radii,
    "leaf covariance": Moments,
}
