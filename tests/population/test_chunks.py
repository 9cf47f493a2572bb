"""Arrays that are decoded without Zarr: the same values, whatever part is asked for."""

import json
import struct

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from fedcore.errors import ChunkError
from fedcore.population import arrays, layout
from fedcore.population.chunks import PlainArray
from fedcore.population.slots import Slot
from fedcore.population.store import Population
from tests.conftest import write_population

from .conftest import names, sealed_again


def test_every_array_of_the_writer_is_decoded_as_zarr_would(tmp_path, monkeypatch, counts_population):
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 400)  # several chunks, the last of which is padded
    x = np.random.default_rng(0).normal(size=(33, 5))
    rows = write_population(tmp_path / "rows", "rows", 5, ["a", "b"], (np.array([0, 30, 33]), x), dtype="float64")
    seen = 0
    for population in (rows, counts_population):
        for entry in population.blocks:
            slot = Slot.of(population.path, entry)
            for file in slot.folder.rglob("zarr.json"):
                theirs = zarr.open(file.parent, mode="r")
                if isinstance(theirs, zarr.Group):
                    continue
                name = file.parent.relative_to(slot.folder).as_posix()
                ours = arrays.open_array(slot, name, theirs.shape, str(theirs.dtype))
                assert isinstance(ours, PlainArray) and ours.compressed == (theirs.dtype.kind != "f")
                n = theirs.shape[0]
                for low, high in ((0, n), (0, 1), (n // 3, n - n // 4), (n - 1, n)):
                    found = arrays.read(slot, name, theirs.shape, str(theirs.dtype), low, high)
                    np.testing.assert_array_equal(found, theirs[low:high])
                    assert found.dtype == theirs.dtype
                seen += 1
    assert seen == 4 + 3 * 8


@pytest.mark.parametrize(
    ("dtype", "tail"), [("float32", (3,)), ("float64", ()), ("int32", ()), ("int64", ()), ("uint8", (2,))]
)
@pytest.mark.parametrize("length", [0, 1, 40, 41, 300])
def test_files_of_arrays_are_those_that_zarr_writes(tmp_path, monkeypatch, dtype, tail, length):
    """Byte by byte; whole and streamed, one chunk or several."""
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 160)
    dtype = np.dtype(dtype)
    values = np.random.default_rng(length).integers(0, 90, (length, *tail)).astype(dtype)
    for stream_bytes in (200, 1 << 20):
        ours, theirs = tmp_path / f"ours{stream_bytes}", tmp_path / f"theirs{stream_bytes}"
        writer = arrays.ArrayWriter(ours, dtype, tail, stream_bytes)
        for start in range(0, length, 7):
            writer.append(values[start : start + 7])
        assert writer.close() == dtype
        _written_by_zarr(theirs, values, json.loads((ours / "zarr.json").read_text())["chunk_grid"])
        found = {file.relative_to(ours): file.read_bytes() for file in layout.files_of(ours)}
        assert found == {file.relative_to(theirs): file.read_bytes() for file in layout.files_of(theirs)}
        if length == 300 and stream_bytes == 200:
            assert len(found) > 4


def _written_by_zarr(folder, values, grid):
    blosc = zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle", typesize=values.dtype.itemsize)
    dense = values.dtype.kind == "f"
    made = zarr.create_array(
        str(folder),
        shape=values.shape,
        chunks=tuple(grid["configuration"]["chunk_shape"]),
        dtype=values.dtype,
        filters=None,
        compressors=[zarr.codecs.Crc32cCodec()] if dense else [blosc, zarr.codecs.Crc32cCodec()],
        fill_value=np.nan if dense else 0,
        zarr_format=3,
        config={"write_empty_chunks": True},
    )
    if len(values):
        made[...] = values


def test_arrays_of_other_writers_are_refused(counts_population):
    """The same counts, stored with a codec that the writer never takes."""
    folder = layout.block_folder(counts_population.path, counts_population.blocks[0].slot) / "train" / "counts"
    values = zarr.open_array(folder, mode="r")[...]
    codec = zarr.codecs.ZstdCodec()
    made = zarr.create_array(
        str(folder), shape=values.shape, dtype=values.dtype, chunks=(3,), compressors=[codec], overwrite=True
    )
    made[...] = values
    with pytest.raises(ChunkError, match="Block 0.*train/counts cannot be opened"):
        sealed_again(counts_population).read(0)


def test_a_chunk_of_another_size_is_refused_before_it_is_decoded(counts_population):
    """A faulty writer, whose digests are right."""
    entry = counts_population.blocks[1]
    file = layout.block_folder(counts_population.path, entry.slot) / "train" / "counts" / "c" / "0"
    content = bytearray(file.read_bytes())
    content[4:8] = struct.pack("<I", 4 * entry.train.entries + 4)
    file.write_bytes(content)
    with pytest.raises(ChunkError, match="Block 1.*train/counts: a chunk is truncated or altered"):
        sealed_again(counts_population).read(1)


def test_a_chunk_cut_short_by_a_faulty_writer_is_refused(tmp_path, counts_population):
    """Its digests are right, and nothing behind the end of the file may be read, nor memory be handed out as it was."""
    file = (
        layout.block_folder(counts_population.path, counts_population.blocks[1].slot) / "train" / "counts" / "c" / "0"
    )
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(ChunkError, match="Block 1.*train/counts: a chunk is truncated or altered"):
        sealed_again(counts_population).read(1)
    rows = write_population(tmp_path / "rows", "rows", 2, ["a"], (np.array([0, 9]), np.ones((9, 2))))
    file = layout.block_folder(rows.path, rows.blocks[0].slot) / "train" / "x" / "c" / "0" / "0"
    content = file.read_bytes()
    for other in (content[:20], content + b"more"):
        file.write_bytes(other)
        with pytest.raises(ChunkError, match="Block 0.*train/x: a chunk is truncated or altered"):
            sealed_again(rows).read(0)


def test_metadata_of_another_kind_of_array_are_an_error(counts_population):
    entry = counts_population.blocks[0]
    file = layout.block_folder(counts_population.path, entry.slot) / "train" / "counts" / "zarr.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "codecs": 3}))
    with pytest.raises(ChunkError, match="train/counts cannot be opened"):
        sealed_again(counts_population).read(0)


@pytest.mark.parametrize("largest", [2**24 - 1, 2**24, 2**31 - 1, 2**40])
def test_large_counts_keep_their_value(tmp_path, largest):
    """float32 up to 2**24, then float64; totals are exact where sums of int32 would overflow."""
    counts = np.array([[1, 0, largest], [0, 0, 0], [largest, largest, 2]], np.int64)
    write_population(tmp_path / "p", "counts", 3, names(0, 3), sp.csr_matrix(counts))
    block = Population.open(tmp_path / "p").read(0)
    assert block.data.dtype == (np.float32 if largest < 2**24 else np.float64)
    assert np.array_equal(block.csr.toarray(), counts) and block.totals.tolist() == counts.sum(axis=1).tolist()
