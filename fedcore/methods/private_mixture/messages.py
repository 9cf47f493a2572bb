"""What the server asks of clients in a round; all of it is published or public."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedcore.methods.mixture_models.whole_rows import WholeMap
from fedcore.methods.private_mixture.gaps import Guess
from fedcore.methods.private_mixture.layout import Layout
from fedcore.methods.private_mixture.plan import Kind
from fedcore.rounds.messages import POSITIVE


@dataclass(frozen=True, slots=True)
class Message:
    """kind, step: of the round. names, shapes: of its releases. by_client: whether a unit is a client. layout: how rows
    are read. centre, scale: (d,) of the columns of numbers, in the units of the data; in rounds about columns the scale
    is what a distance is cut to."""

    kind: Kind
    step: int
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    by_client: bool
    layout: Layout
    centre: np.ndarray
    scale: np.ndarray = field(metadata=POSITIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedMessage(Message):
    """map: from standardised rows to the coordinates of the round. clip: in them, in steps. guess: what gaps are filled
    from; in rounds about components its parts are these, the background and, last, one normal distribution."""

    map: WholeMap
    guess: Guess
    clip: float = field(metadata=POSITIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellsMessage(MappedMessage):
    """cells: (m, q) whole centres of the cells, in steps."""

    cells: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentsMessage(MappedMessage):
    """maps: of the components, the background last, each to its own units. constants: (k + 1,) of their log
    densities.

    answers: (k + 1, values + 1) logs of the probabilities of all categories' values, the last 0, for no answer; or
    None.
    bound: what a row's gain is cut to. own: whether each component's own matrix is asked for.
    node: (k,) int64 of each component; edges: (e, 2) int64 pairs of nodes; along: from the round's coordinates to the
    Fisher directions of the edges; middle: (e,) whole numbers there, from which places are counted, with -PLACE_STEPS
    at the first node of an edge and PLACE_STEPS at the second.
    """

    maps: tuple[WholeMap, ...]
    constants: np.ndarray
    answers: np.ndarray | None
    bound: float = field(metadata=POSITIVE)
    own: bool
    node: np.ndarray
    edges: np.ndarray
    along: WholeMap
    middle: np.ndarray
