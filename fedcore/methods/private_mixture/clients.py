"""What clients answer: exact integer sums over units, one kind for each round. Argued in
docs/privacy/private-mixture.md.

A row's part is a function of the message and of that row, and of its client's number of rows; see
`fedcore.methods.mixture_models.whole_rows`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedcore.methods.mixture_models import whole_rows
from fedcore.methods.mixture_models.fixed_functions import shares
from fedcore.methods.mixture_models.whole_rows import (
    LIMIT,
    STEP,
    STEP_BITS,
    Tile,
    count_weight,
    cut_to,
    for_products,
    for_sums,
    squared_norms,
    standardised,
    whole_products,
)
from fedcore.methods.private_mixture import gaps
from fedcore.methods.private_mixture.messages import CellsMessage, ComponentsMessage, MappedMessage, Message
from fedcore.methods.private_mixture.plan import COLUMN_CELLS, EXPONENTS, NORM_CELLS, PLACE_CELLS, SPANS, Kind
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.statistics import IntegerSum, Statistics

OWN_BITS = 14  # of a step in a component's own units
PLACE_STEPS = 2**14  # from the middle of an edge to a component
EVERY = np.zeros(0, np.int64)  # columns whose numbers have to be finite, for a row to be looked at
FURTHEST_PLACE = 1.5  # of the cells of an edge; places beyond are in one of two ends


def client_update(message: Message, block: RowsBlock) -> Statistics:
    """The leaf's exact sums under their planned names, int64 of the planned shapes.

    Whatever the rows hold, this neither fails nor warns.
    """
    totals = [np.zeros(shape, np.int64) for shape in message.shapes]
    answer, layout = ANSWERS[message.kind], message.layout
    copies = layout.copies(of_valleys=message.kind == "valleys")
    kept = max(_numbers(message), layout.features) * copies
    with np.errstate(all="ignore"):
        for tile in whole_rows.tiles(block, message.by_client, kept, EVERY):
            usable = _usable(message, tile)
            if usable.any():
                answer(message, _read(message, tile if usable.all() else tile.of(usable), copies), totals)
    return {name: IntegerSum(total) for name, total in zip(message.names, totals, strict=True)}


def _numbers(message: Message) -> int:
    """That are kept for each row."""
    d = message.layout.d
    if isinstance(message, ComponentsMessage):
        return d * len(message.maps)
    return max(d, len(message.cells)) if isinstance(message, CellsMessage) else d


def _usable(message: Message, tile: Tile) -> np.ndarray:
    """(n,) bool: rows without an infinite number, that have a number, except where gaps are counted."""
    x = tile.x[:, message.layout.numeric]
    usable: np.ndarray = ~np.isinf(x).any(axis=1)
    if message.kind != "columns":
        usable &= ~np.isnan(x).all(axis=1)
    return usable


def _read(message: Message, tile: Tile, copies: int) -> Tile:
    """The tile as numbers and codes, its gaps filled in rounds that read whole rows. Others have NaN there."""
    read = message.layout.read(tile, copies)
    if not isinstance(message, MappedMessage) or message.kind in ("guard", "valleys"):
        return read
    rows = np.flatnonzero(np.isnan(read.x).any(axis=1))
    if not len(rows):
        return read
    guess, answers = message.guess, None
    if isinstance(message, ComponentsMessage):
        guess, answers = guess.without_last(), _logs_of_answers(message, read, rows)
    words = message.layout.words(tile.x[rows // copies])
    first = (rows % copies + 1) * (message.layout.d + 1)
    x = np.array(read.x)
    x[rows] = gaps.filled(guess, x[rows], message.centre, message.scale, words, first, answers)
    return Tile(x, read.rows, read.codes)


def _logs_of_answers(message: ComponentsMessage, tile: Tile, rows: np.ndarray) -> np.ndarray | None:
    """(k + 1, n) log probabilities of the answers of these rows, or None without categories."""
    if message.answers is None or tile.codes is None:
        return None
    return _answered(message, np.zeros((len(message.maps), len(rows))), tile.codes[rows])


# --- columns ----------------------------------------------------------------------------------------------------------


def exponents(x: np.ndarray) -> np.ndarray:
    """floor(log2 |x|) + EXPONENTS, int64, exact; below 0 for what is 0 or too small, SPANS - 1 for what is too
    large."""
    _, exponent = np.frexp(np.minimum(np.abs(x), 1e300))
    found = np.minimum(exponent.astype(np.int64) - 1 + EXPONENTS, SPANS - 1)
    return np.where(x == 0, -1, np.maximum(found, -1))


def add_to_cells(total: np.ndarray, cells: np.ndarray, weight: np.ndarray) -> None:
    """Adds a row's weight to its cell. total: (m,) int64, changed. cells: (n,) int64, below 0: none."""
    counted = cells >= 0
    sums = np.bincount(cells[counted], weights=weight[counted], minlength=len(total))
    total += sums.astype(np.int64)  # exact: a tile's weights sum to less than 2**53


def _columns(message: Message, tile: Tile, totals: list[np.ndarray]) -> None:
    weight = count_weight(tile.rows)
    totals[0][0] += int(weight.sum())
    found = exponents(tile.x)
    cells = np.where(found < 0, 2 * SPANS, np.where(tile.x < 0, found, found + SPANS))
    cells[np.isnan(tile.x)] = COLUMN_CELLS
    for column in range(tile.x.shape[1]):
        add_to_cells(totals[1][column], cells[:, column], weight)


def _centres(message: Message, tile: Tile, totals: list[np.ndarray]) -> None:
    part = np.clip((tile.x - message.centre) / message.scale, -1.0, 1.0)
    part[np.isnan(tile.x)] = 0.0
    totals[0] += np.rint(part * count_weight(tile.rows)[:, None]).sum(axis=0).astype(np.int64)


def _spans(message: Message, tile: Tile, totals: list[np.ndarray]) -> None:
    found, weight = np.maximum(exponents(tile.x - message.centre), 0), count_weight(tile.rows)
    found[np.isnan(tile.x)] = -1
    for column in range(tile.x.shape[1]):
        add_to_cells(totals[0][column], found[:, column], weight)


# --- rows in linear coordinates ---------------------------------------------------------------------------------------


def _mapped(message: MappedMessage, tile: Tile) -> np.ndarray:
    return message.map.of(standardised(tile.x, message.centre, message.scale))


def norm_edges() -> np.ndarray:
    """Inner edges of the cells of norms, in units of the coordinates: 2^-4 to 2^10 by ratios of 2^(1/4)."""
    edges: np.ndarray = 2.0 ** (np.arange(NORM_CELLS - 1) / 4 - 4)
    return edges


def _norms(message: MappedMessage, tile: Tile, totals: list[np.ndarray]) -> None:
    z = _mapped(message, tile)
    if isinstance(message, ComponentsMessage):
        squares = _own_squares(message, _own(message, z))[:-1].min(axis=0) * 4.0 ** (STEP_BITS - OWN_BITS)
    else:
        squares = squared_norms(z)
    inner = np.floor((norm_edges() / STEP) ** 2)
    add_to_cells(totals[0], np.searchsorted(inner, squares, side="right"), count_weight(tile.rows))


def _moments(message: MappedMessage, tile: Tile, totals: list[np.ndarray]) -> None:
    z = _mapped(message, tile)
    factor = cut_to(z, message.clip)
    totals[0][0] += int(count_weight(tile.rows).sum())
    totals[1] += for_sums(z, factor, message.clip, tile.rows).sum(axis=0).astype(np.int64)
    totals[2] += whole_products(for_products(z, factor, message.clip, tile.rows))


def _cells(message: CellsMessage, tile: Tile, totals: list[np.ndarray]) -> None:
    z, cells = _mapped(message, tile), message.cells
    nearest = ((cells * cells).sum(axis=1) - 2.0 * (z @ cells.T)).argmin(axis=1)
    add_to_cells(totals[0], nearest, count_weight(tile.rows))
    vectors = for_sums(z, cut_to(z, message.clip), message.clip, tile.rows)
    for column in range(z.shape[1]):
        sums = np.bincount(nearest, weights=vectors[:, column], minlength=len(cells))
        totals[1][: len(cells), column] += sums.astype(np.int64)


# --- components -------------------------------------------------------------------------------------------------------


def _own(message: ComponentsMessage, z: np.ndarray) -> np.ndarray:
    """(k + 1, n, d) whole numbers: the rows in each component's own units."""
    return np.stack([each.of(z) for each in message.maps])


def _own_squares(message: ComponentsMessage, own: np.ndarray) -> np.ndarray:
    """(k + 1, n) squared norms, exact."""
    return np.stack([squared_norms(each) for each in own])


def _joint(message: ComponentsMessage, squares: np.ndarray) -> np.ndarray:
    """(k + 1, n) log densities of the numbers with weights, but for what all share."""
    joint: np.ndarray = message.constants[:, None] - squares * (0.5 * 4.0**-OWN_BITS)
    return joint


def _answered(message: ComponentsMessage, joint: np.ndarray, codes: np.ndarray | None) -> np.ndarray:
    """joint (m, n), changed: with the log probabilities of each row's answers, those of the last m of the message."""
    if message.answers is not None and codes is not None:
        for own in codes.T:
            joint += message.answers[-len(joint) :, own]
    return joint


def _components(message: ComponentsMessage, tile: Tile, totals: list[np.ndarray]) -> None:
    rows, weight = tile.rows, count_weight(tile.rows)
    own = _own(message, _mapped(message, tile))
    part, _ = shares(_answered(message, _joint(message, _own_squares(message, own)), tile.codes))
    whole = np.floor(part * weight)
    whole[:, ~(whole.sum(axis=0) <= weight)] = 0.0  # never: but the bound must not rest on the rounding of shares
    k, (n, d) = len(own) - 1, own[0].shape
    at = np.append(np.arange(k), -1)  # the places of the components, and that of the background, which is the last
    totals[0][at] += whole.sum(axis=1).astype(np.int64)
    factor = np.stack([cut_to(each, message.clip) for each in own])
    # All of a row's vectors are cut together, that in the background's units too, so that what it adds to all has the
    # norm of one row.
    wide = np.ascontiguousarray(own.transpose(1, 0, 2))
    linear = (part * factor).T[:, :, None] * wide
    vectors = for_sums(linear.reshape(n, (k + 1) * d), np.ones(n), message.clip, rows)
    totals[1][at] += vectors.sum(axis=0).astype(np.int64).reshape(k + 1, d)
    linear = (np.sqrt(part) * factor).T[:, :, None] * wide
    roots = for_products(linear.reshape(n, (k + 1) * d), np.ones(n), message.clip, rows).reshape(n, k + 1, d)
    totals[2][at] += np.einsum("nkd,nkd->k", roots, roots).astype(np.int64)
    for j in range(k + 1 if message.own else k):
        triangle = whole_products(np.ascontiguousarray(roots[:, j]))
        if j < k:
            totals[3] += triangle
        if message.own:
            totals[4][at[j]] += triangle
    if message.answers is not None and tile.codes is not None:
        values = totals[-1].shape[1]
        for own_codes in tile.codes.T:
            places = np.where(own_codes < values, own_codes, -1)
            for j in range(k + 1):
                add_to_cells(totals[-1][at[j]], places, whole[j])


def _guard(message: ComponentsMessage, tile: Tile, totals: list[np.ndarray]) -> None:
    z = _mapped(message, tile)
    joint = _joint(message, _own_squares(message, _own(message, z)))
    normal = squared_norms(z)[None] * (-0.5 * STEP**2)
    if len(rows := np.flatnonzero(np.isnan(tile.x).any(axis=1))):  # what such a row holds, its gaps left out
        seen = gaps.joint_of(message.guess, tile.x[rows], message.centre, message.scale)
        joint[:, rows], normal[:, rows] = seen[:-1], seen[-1:]
    _, mixture = shares(_answered(message, joint, tile.codes))
    normal = _answered(message, normal, tile.codes)[0]
    # A number that is none, as an absurd message gives, adds nothing: no row makes a run fail.
    gain = np.clip(np.nan_to_num(mixture - normal, nan=0.0), -message.bound, message.bound)
    totals[0][0] += int(np.rint(gain * (count_weight(tile.rows) / message.bound)).sum())


def _valleys(message: ComponentsMessage, tile: Tile, totals: list[np.ndarray]) -> None:
    edges = message.edges
    if not len(edges):
        return
    standard = standardised(tile.x, message.centre, message.scale)
    z = message.map.of(standard)
    # Without the background: if it took the rows between two components, it would make a dip there. Without answers,
    # so that places and components are of numbers alone, as the null of a dip has them. Rows with gaps are left out
    # below: what fills them is of the components, and would confirm these.
    most = _joint(message, _own_squares(message, _own(message, z)))[:-1].argmax(axis=0)
    most = message.node[most]
    facing = np.zeros((int(message.node.max()) + 1, len(edges)))  # the sign that makes a place grow away from a node
    facing[edges[:, 0], np.arange(len(edges))] = 1.0
    facing[edges[:, 1], np.arange(len(edges))] = -1.0
    place = message.along.of(z) - message.middle
    towards = np.where(facing[most] != 0, facing[most] * place, -np.inf)
    edge = towards.argmax(axis=1)
    at = place[np.arange(len(z)), edge]
    cell = np.floor((at + FURTHEST_PLACE * PLACE_STEPS) / (2 * FURTHEST_PLACE * PLACE_STEPS / PLACE_CELLS))
    cell = np.clip(cell, -1, PLACE_CELLS).astype(np.int64) + 1
    width = totals[0].shape[1]
    # Rows that were cut to the limit of the coordinates pile up there, many if a column's scale came out far too small;
    # between two such piles is no dip.
    out = (np.abs(standard) >= LIMIT).any(axis=1) | (np.abs(z) >= LIMIT).any(axis=1) | np.isnan(tile.x).any(axis=1)
    add_to_cells(totals[0].reshape(-1), np.where(out, -1, edge * width + cell), count_weight(tile.rows))


ANSWERS: dict[Kind, Callable[[Any, Tile, list[np.ndarray]], None]] = {
    "columns": _columns,
    "centres": _centres,
    "spans": _spans,
    "norms": _norms,
    "moments": _moments,
    "cells": _cells,
    "components": _components,
    "guard": _guard,
    "valleys": _valleys,
}
