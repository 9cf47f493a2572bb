"""Rows that take no part in training: a function of seed, client and row, whoever holds them."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.methods.mixture_models.validation import Split, training_part, validation_part
from fedcore.population.blocks import RowsBlock, leaves
from fedcore.population.streaming import StoredRows

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=12)
SHARES = st.sampled_from([0.02, 0.1, 0.2, 0.25, 0.37, 0.5])


def block_of(sizes, first=0):
    ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return RowsBlock(first, 0, ptr, np.arange(2.0 * ptr[-1]).reshape(-1, 2))


def stored(block, chunk=3):
    return RowsBlock(
        block.first, block.leaf, block.ptr, StoredRows(lambda a, b: block.x[a:b], *block.x.shape, block.x.dtype, chunk)
    )


@settings(max_examples=100, deadline=None)
@given(SIZES, SHARES, st.integers(0, 2**40))
def test_every_row_is_in_one_part_and_every_client_trains(sizes, share, seed):
    block, split = block_of(sizes), Split(seed, share)
    training, held = training_part(block, split), validation_part(block, split)
    assert sorted(np.concatenate([training.x, held.x])[:, 0]) == block.x[:, 0].tolist()
    assert (np.diff(training.ptr) + np.diff(held.ptr)).tolist() == sizes
    for own, kept, out in zip(sizes, np.diff(training.ptr), np.diff(held.ptr), strict=True):
        assert (kept > 0) == (own > 0)
        assert out <= np.ceil(own * share) and (own >= 3 or out == 0)
        if share in (0.1, 0.2, 0.25, 0.5) and own >= 3:  # whole numbers of rows make a stratum
            assert out >= np.floor(own * share)


@settings(max_examples=50, deadline=None)
@given(SIZES, SHARES, st.integers(1, 5), st.integers(0, 1000))
def test_no_cut_into_leaves_or_pieces_changes_it(sizes, share, clients_per_leaf, first):
    block, split = block_of(sizes, first), Split(3, share)
    whole = split.held_back(block.ptr, block.first)
    parts = [split.held_back(leaf.ptr, leaf.first) for leaf in leaves(block, clients_per_leaf)]
    assert np.array_equal(whole, np.concatenate(parts))
    for of in (training_part, validation_part):
        expected, lazy = of(block, split), of(stored(block), split)
        assert np.array_equal(np.asarray(lazy.x), expected.x) and np.array_equal(lazy.ptr, expected.ptr)
        middle = len(expected.x) // 2
        assert np.array_equal(np.asarray(lazy.x[middle:]), expected.x[middle:])
        if len(expected.x):
            some = np.array([middle, 0])
            assert np.array_equal(lazy.x[some], expected.x[some])


def test_rows_of_a_stratum_are_equally_likely():
    """10,000 clients of five rows: each row is held back by a fifth of them, within five standard errors."""
    block = block_of([5] * 10_000)
    share = Split(1, 0.2).held_back(block.ptr, 0).reshape(-1, 5).mean(axis=0)
    assert share.sum() == 1.0 and np.abs(share - 0.2).max() < 5 * np.sqrt(0.16 / 10_000)


def test_by_hand():
    """The rule in Python's whole numbers, of one client of 23 rows."""
    from fedcore.randomness import client_uniforms

    word = int(client_uniforms(7, "em/validation rows", 0, 4, 1)[0, 0] * 2**53)
    expected = set()
    for stratum in range(5):  # ceil(23 / 5)
        bits = (word + (stratum + 1) * 0x9E3779B97F4A7C15) % 2**64
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
        bits ^= bits >> 31
        expected.add(int((stratum + (bits >> 11) * 2.0**-53) / 0.2))
    held = Split(7, 0.2).held_back(np.array([0, 23]), 4)
    assert set(np.flatnonzero(held).tolist()) == {row for row in expected if row < 23}
