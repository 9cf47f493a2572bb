"""What clients answer: one vector of exact integer counts. Argued in docs/privacy/profile.md.

A row's part is a function of the settings, of that row, and of its client's number of rows.
"""

from __future__ import annotations

import numpy as np

from fedcore.methods.mixture_models.whole_rows import Tile, tiles
from fedcore.methods.profile.cells import LEAVES, leaf_of
from fedcore.methods.profile.layout import Layout, codes_of, tree_of
from fedcore.population.blocks import RowsBlock

EVERY = np.zeros(0, np.int64)  # columns whose numbers have to be finite: none, every row is counted


def vector_of(layout: Layout, block: RowsBlock, by_client: bool) -> np.ndarray:
    """(cells,) int64 of the clients of a leaf, in the order of `fedcore.methods.profile.layout`.

    by_client: whether a client's rows share what one row may add. Whatever the rows hold, this does not fail.
    """
    groups = layout.groups
    leaves = np.zeros((1 + groups, len(layout.numbers), LEAVES), np.int64)
    missing = np.zeros((1 + groups, len(layout.numbers)), np.int64)
    values = [np.zeros(size + 1, np.int64) for size in layout.sizes]
    counted = np.zeros(layout.counted, np.int64)
    with np.errstate(all="ignore"):
        for tile in tiles(block, by_client, block.features, EVERY):
            _add(layout, tile, leaves, missing, values, counted)
    trees = np.concatenate([tree_of(leaves), missing[..., None]], axis=-1)
    return np.concatenate([trees[0].ravel(), *values, counted, trees[1:].ravel()])


def _add(
    layout: Layout, tile: Tile, leaves: np.ndarray, missing: np.ndarray, values: list[np.ndarray], counted: np.ndarray
) -> None:
    whole, grouped = layout.whole, layout.grouped
    codes = [codes_of(tile.x, own) for own in layout.categories]
    for total, code in zip(values, codes, strict=True):
        total += _counts(code, whole.flat // tile.rows, len(total))
    answers = [codes[category] for category in layout.by]
    group = np.full(len(tile.x), -1)
    if answers:
        answered = np.all([code < size for code, size in zip(answers, layout.group_shape, strict=True)], axis=0)
        place = np.ravel_multi_index([np.where(answered, code, 0) for code in answers], layout.group_shape)
        group = np.where(answered, place, -1)
    if len(counted):
        counted += _counts(group, grouped.flat // tile.rows, len(counted))
    for at, column in enumerate(layout.numbers):
        leaf = leaf_of(tile.x[:, column], layout.low[at], layout.high[at])
        gone = np.where(leaf < 0, 0, -1)
        leaves[0, at] += _counts(leaf, whole.level // tile.rows, LEAVES)
        missing[0, at] += _counts(gone, whole.missing // tile.rows, 1)[0]
        if layout.groups:
            place = np.where((group >= 0) & (leaf >= 0), group * LEAVES + leaf, -1)
            leaves[1:, at] += _counts(place, grouped.level // tile.rows, layout.groups * LEAVES).reshape(-1, LEAVES)
            missing[1:, at] += _counts(np.where(leaf < 0, group, -1), grouped.missing // tile.rows, layout.groups)


def _counts(cells: np.ndarray, weight: np.ndarray, size: int) -> np.ndarray:
    """(size,) int64: the sum of the weights (n,) of the rows in each cell (n,); below 0: in none."""
    inside = cells >= 0
    # Exact: a tile's weights sum to less than 2^53.
    return np.bincount(cells[inside], weights=weight[inside], minlength=size).astype(np.int64)
