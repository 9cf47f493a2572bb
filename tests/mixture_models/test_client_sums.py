import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.methods.mixture_models.client_sums import BUFFER, client_tiles, products_by_client, tile_rows, workspace


@given(st.lists(st.integers(0, 12), max_size=15), st.integers(1, 20), st.booleans())
@settings(max_examples=100, deadline=None)
def test_tiles_cover_every_row_once(sizes, tile, equal):
    if equal and sizes:
        sizes = [sizes[0]] * len(sizes)
    ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, ptr[-1])), rng.standard_normal((ptr[-1], 3))
    sums, seen = np.zeros((len(sizes), 2, 3)), np.zeros(ptr[-1], int)
    for clients, rows, runs, whole in client_tiles(ptr, tile):
        numbers = np.arange(ptr[-1])[rows]
        seen[numbers] += 1
        assert len(numbers) <= max(tile, max(sizes))
        assert whole or max(sizes) > tile
        sums[clients] += products_by_client(a[:, rows], b[rows], runs)
    assert (seen == 1).all()
    for client in range(len(sizes)):
        part = slice(ptr[client], ptr[client + 1])
        np.testing.assert_allclose(sums[client], a[:, part] @ b[part], atol=1e-12)


def test_rows_of_a_tile_are_no_power_of_two():
    for numbers in (1, 3, 31, 100, 1000, 10**6):
        assert tile_rows(numbers) % 16 == 8


def test_numpys_buffer_is_as_before_after_an_answer_and_after_a_failure():
    before = np.getbufsize()
    with workspace(64):
        assert np.getbufsize() == BUFFER < before
    with pytest.raises(KeyError), workspace(64):
        raise KeyError
    assert np.getbufsize() == before
