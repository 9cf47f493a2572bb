import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.errors import ChunkError, PopulationError
from fedcore.population import layout, streaming
from fedcore.population.manifest import Provenance
from fedcore.population.streaming import StoredRows
from fedcore.population.writer import PopulationWriter
from tests.conftest import write_counts


def stored(n, chunk):
    x = np.arange(3 * n, dtype=np.float32).reshape(n, 3)
    asked = []

    def read(first, stop):
        asked.append((first, stop))
        return x[first:stop].copy()

    return x, StoredRows(read, n, 3, np.float32, chunk), asked


@given(st.integers(1, 40), st.integers(1, 9), st.data())
@settings(max_examples=100, deadline=None)
def test_what_is_read_is_what_is_stored(n, chunk, data):
    x, rows, asked = stored(n, chunk)
    rows._window.length = chunk
    low, high = sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))
    part, expected = rows[low:high], x[low:high]
    assert part.shape == expected.shape and len(part) == len(expected) and part.dtype == np.float32
    assert np.array_equal(np.asarray(part), expected)
    assert np.array_equal(np.asarray(part[1:]), expected[1:])
    some = st.lists(st.integers(0, max(len(expected) - 1, 0)), max_size=8 if len(expected) else 0)
    numbers = np.array(data.draw(some), np.int64)
    assert np.array_equal(part[numbers], expected[numbers])
    mask = np.arange(len(expected)) % 2 == 0
    assert np.array_equal(part[mask], expected[mask])
    assert all(first % chunk == 0 and stop - first <= chunk for first, stop in asked)


def test_rows_in_order_are_read_once():
    x, rows, asked = stored(100, 10)
    rows._window.length = 20
    for low in range(0, 100, 7):
        np.asarray(rows[low : low + 7])
    assert asked == [(first, first + 20) for first in range(0, 100, 20)]


def test_what_is_not_there():
    _, rows, _ = stored(10, 3)
    wrongs = (np.array([10]), np.array([-1]), np.ones(3, bool), slice(0, 5, 2), np.zeros((2, 2), int), np.array([0.5]))
    for wrong in wrongs:
        with pytest.raises(IndexError):
            rows[wrong]


@pytest.fixture
def population(tmp_path):
    rng = np.random.default_rng(0)
    with PopulationWriter(tmp_path / "p", "rows", 3, clients_per_leaf=2, clients_per_block=4) as writer:
        ptr = np.array([0, 40, 40, 45, 90, 90, 100]).astype(np.int64)
        writer.write([f"c{i}" for i in range(6)], (ptr, rng.normal(size=(100, 3)).astype(np.float32)))
        return writer.commit(Provenance(sources=("test",)))


def test_a_streamed_block_is_the_block(population, monkeypatch):
    monkeypatch.setattr(streaming, "WINDOW_BYTES", 1)
    for index in range(len(population.blocks)):
        whole, streamed = population.read(index), population.stream(index)
        assert (streamed.first, streamed.leaf, streamed.clients) == (whole.first, whole.leaf, whole.clients)
        assert np.array_equal(streamed.ptr, whole.ptr) and np.array_equal(np.asarray(streamed.x), whole.x)
        assert population.decoded_bytes(index) == whole.x.nbytes
        part = streamed.slice(1, 2, 0)
        assert np.array_equal(np.asarray(part.x), whole.slice(1, 2, 0).x) and part.features == 3


def test_damage_is_named_when_it_is_met(population):
    folder = layout.block_folder(population.path, population.blocks[0].slot) / "train" / "x"
    for chunk in (folder / "c").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(chunk.read_bytes()[:-3] + b"abc")
    rows = population.stream(0).x
    with pytest.raises(ChunkError, match="Block 0"):
        np.asarray(rows)


def test_counts_are_not_streamed(tmp_path):
    with pytest.raises(PopulationError, match="dense rows"):
        write_counts(tmp_path / "c", sp.csr_matrix(np.ones((3, 4), int))).stream(0)
