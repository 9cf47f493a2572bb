"""Reading: what was written comes back, and damage is always an error that names the block."""

import json
import os
import pickle
import shutil

import numpy as np
import pytest

from fedcore.errors import ChunkError, ManifestError, PopulationError, PopulationNotFound
from fedcore.population import arrays, layout
from fedcore.population.blocks import leaves
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from tests.conftest import write_population

from .conftest import names, sealed_again, some_counts, some_rows


def all_counts(population, heldout=False):
    blocks = [population.read(index, heldout=heldout) for index in range(len(population.blocks))]
    return np.concatenate([(block.heldout if heldout else block).csr.toarray() for block in blocks])


def chunk_files(population, index, array):
    folder = layout.block_folder(population.path, population.blocks[index].slot) / array
    return [file for file in layout.files_of(folder) if file.name != "zarr.json"]


def test_counts_come_back(counts_population):
    population = Population.open(counts_population.path)
    assert (population.kind, population.n_clients, population.features, population.version) == ("counts", 23, 7, 1)
    assert [block.clients for block in population.blocks] == [8, 8, 7]
    expected = some_counts(23).toarray()
    np.testing.assert_array_equal(all_counts(population), expected)
    np.testing.assert_array_equal(all_counts(population, heldout=True), some_counts(23, seed=1).toarray())
    assert population.n_rows == expected.sum()
    block = population.read(1)
    assert block.heldout is None and block.first == 8 and block.leaf == 2
    assert block.data.dtype == np.float32 and block.indices.dtype == np.int32 and block.indptr.dtype == np.int32
    np.testing.assert_array_equal(block.totals, expected[8:16].sum(axis=1))
    assert [leaf.first for leaf in leaves(block, population.clients_per_leaf)] == [8, 12]
    ids = np.concatenate([population.client_ids(index) for index in range(3)])
    assert ids.tolist() == names(0, 23)


def test_rows_come_back(rows_population):
    ptr, x = some_rows(10)
    blocks = [rows_population.read(index) for index in range(3)]
    np.testing.assert_array_equal(np.concatenate([block.x for block in blocks]), x)
    lengths = np.concatenate([np.diff(block.ptr) for block in blocks])
    np.testing.assert_array_equal(lengths, np.diff(ptr))
    assert rows_population.n_rows == len(x) and blocks[0].x.dtype == np.float32


def test_a_streamed_client_is_read_in_tiles(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 400)
    x = np.random.default_rng(0).normal(size=(777, 5))
    sizes = {"clients_per_leaf": 1, "clients_per_block": 3, "stream_bytes": 1000}
    with PopulationWriter(tmp_path / "p", "rows", 5, dtype="float64", **sizes) as writer:
        writer.write(["small"], (np.array([0, 2]), x[:2]))
        writer.write_large("huge", (x[start : start + 50] for start in range(0, 777, 50)))
        writer.write(["last"], (np.array([0, 3]), x[:3]))
        population = writer.commit()
    assert len(chunk_files(population, 0, "train/x")) > 50
    whole = population.read(0)
    assert np.diff(whole.ptr).tolist() == [2, 777, 3]
    np.testing.assert_array_equal(whole.x, np.concatenate([x[:2], x, x[:3]]))
    tiles = list(population.client_tiles(0, 1, 900))
    assert max(tile.nbytes for tile in tiles) <= 900 and len(tiles) > 30
    np.testing.assert_array_equal(np.concatenate(tiles), x)
    assert population.verify().ok


def test_huge_counts_survive(tmp_path):
    matrix = some_counts(2)
    matrix.data[0] = 2**40
    with PopulationWriter(tmp_path / "p", "counts", 7) as writer:
        writer.write([1, 2], matrix)
        block = writer.commit().read(0)
    assert block.data.dtype == np.float64 and block.totals.sum() == matrix.sum()


def test_empty_clients_and_missing_heldout(tmp_path):
    nobody = some_counts(9)[:0]
    empty = some_counts(9) * 0
    with PopulationWriter(tmp_path / "p", "counts", 7, clients_per_leaf=2, clients_per_block=4) as writer:
        writer.write([], nobody)
        writer.write(names(0, 5), empty[:5])
        writer.write(names(5, 2), some_counts(2), some_counts(2, seed=1))
        writer.write(names(7, 2), empty[:2])
        population = writer.commit()
    assert population.verify().ok and population.has_heldout
    np.testing.assert_array_equal(all_counts(population)[5:7], some_counts(2).toarray())
    assert all_counts(population)[:5].sum() == 0
    heldout = all_counts(population, heldout=True)
    np.testing.assert_array_equal(heldout[5:7], some_counts(2, seed=1).toarray())
    assert heldout[:5].sum() == heldout[7:].sum() == 0
    assert population.blocks[0].heldout is None


def test_a_population_without_heldout_says_so(rows_population):
    with pytest.raises(PopulationError, match="no held-out part"):
        rows_population.read(0, heldout=True)


def test_unicode_ids(tmp_path):
    ids = ["Ωmega", "naïve", "日本", "a b\u00a0c"]
    with PopulationWriter(tmp_path / "p", "counts", 7) as writer:
        writer.write(ids, some_counts(4))
        assert writer.commit().client_ids(0).tolist() == ids


def test_a_population_pickles(counts_population):
    again = pickle.loads(pickle.dumps(counts_population))
    assert again == counts_population
    again.read(0)


DAMAGES = {
    "deleted": lambda file: file.unlink(),
    "truncated": lambda file: os.truncate(file, file.stat().st_size - 3),
    "emptied": lambda file: os.truncate(file, 0),
    "flipped": lambda file: file.write_bytes(bytes([file.read_bytes()[0] ^ 4]) + file.read_bytes()[1:]),
}


@pytest.mark.parametrize("array", ["train/indptr", "train/indices", "train/counts", "heldout/counts"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_counts(counts_population, damage, array):
    DAMAGES[damage](chunk_files(counts_population, 1, array)[0])
    with pytest.raises(ChunkError, match=r"Block 1 \(slot v000001-000001\).*" + array) as caught:
        counts_population.read(1, heldout=True)
    assert "Restore the folder" in caught.value.remedy and "v000001-000001" in caught.value.remedy
    counts_population.read(0, heldout=True)  # its neighbours are untouched
    report = counts_population.verify()
    assert len(report.problems) == 1 and "Block 1" in report.problems[0]


@pytest.mark.parametrize("array", ["train/ptr", "train/x"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_rows(rows_population, damage, array):
    rows_population.read(2)  # opened arrays may be cached; damage must still show
    DAMAGES[damage](chunk_files(rows_population, 2, array)[0])
    with pytest.raises(ChunkError, match="Block 2"):
        rows_population.read(2)
    with pytest.raises(ChunkError, match="Block 2"):
        np.asarray(rows_population.stream(2).x)


def test_damaged_ids(counts_population):
    for file in chunk_files(counts_population, 0, "ids/bytes"):
        DAMAGES["flipped"](file)
    with pytest.raises(ChunkError, match="Block 0"):
        counts_population.client_ids(0)
    assert not counts_population.verify().ok


def test_a_missing_slot(counts_population):
    shutil.rmtree(layout.block_folder(counts_population.path, counts_population.blocks[2].slot))
    with pytest.raises(ChunkError, match="Block 2"):
        counts_population.read(2)


@pytest.mark.parametrize(
    ("array", "values", "what"),
    [
        ("indptr", [0, 3, 2, 6], "without going back"),
        ("indptr", [0, 1, 2, 5], "from 0 to 6"),
        ("indptr", [1, 1, 2, 6], "from 0 to 6"),
        ("indices", [0, 1, 2, 0, 1, 7], "outside the vocabulary"),
        ("indices", [0, 1, 2, -1, 1, 3], "outside the vocabulary"),
        ("counts", [1, 1, 0, 1, 1, 1], "below one"),
        ("counts", [1, 1, -5, 1, 1, 1], "below one"),
    ],
)
def test_wrong_content_with_right_checksums_of_chunks(tmp_path, array, values, what):
    import scipy.sparse as sp
    import zarr

    matrix = sp.csr_matrix(np.array([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]]), shape=(3, 4))
    population = write_population(tmp_path / "p", "counts", 4, ["a", "b", "c"], matrix)
    stored = zarr.open_array(str(layout.block_folder(population.path, population.blocks[0].slot) / "train" / array))
    stored[...] = np.array(values)
    with pytest.raises(ChunkError, match=what):
        sealed_again(population).read(0)


def test_unsorted_tokens_are_found_by_verify(tmp_path):
    import zarr

    population = write_population(tmp_path / "p", "counts", 7, names(0, 20), some_counts(20))
    stored = zarr.open_array(str(layout.block_folder(population.path, population.blocks[0].slot) / "train/indices"))
    stored[...] = np.ones(stored.shape, np.int32)
    assert "not increasing" in sealed_again(population).verify().problems[0]


def test_another_shape_than_the_manifest(counts_population):
    import zarr

    folder = layout.block_folder(counts_population.path, counts_population.blocks[0].slot)
    zarr.open_array(str(folder / "train/counts")).resize((1,))
    with pytest.raises(ChunkError, match="the manifest says"):
        sealed_again(counts_population).read(0)


def test_another_population_at_the_same_path(tmp_path):
    for seed in range(3):  # the handles of the first must not be used for the second
        population = write_population(tmp_path / "p", "counts", 7, names(0, 4), some_counts(4, seed=seed))
        np.testing.assert_array_equal(population.read(0).csr.toarray(), some_counts(4, seed=seed).toarray())
        shutil.rmtree(tmp_path / "p")


def test_open_nothing(tmp_path, counts_population):
    with pytest.raises(PopulationNotFound, match="no population"):
        Population.open(tmp_path / "nowhere")
    with pytest.raises(PopulationNotFound, match="no version 7"):
        Population.open(counts_population.path, version=7)
    with pytest.raises(PopulationError, match="no block 9"):
        counts_population.read(9)


def changed(text, **fields):
    content = json.loads(text)
    content.update(fields)
    return json.dumps(content)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda text: text[: len(text) // 2], "not readable JSON"),
        (lambda text: "[]", "not a JSON object"),
        (lambda text: changed(text, schema_version=99), "schema version 99"),
        (lambda text: changed(text, n_clients=24), "does not match its own checksum"),
        (lambda text: changed(text, ledger={"id": "x", "url": "y"}), "does not match its own checksum"),
        (lambda text: changed(text, checksum=None), "does not match its own checksum"),
    ],
)
def test_damaged_manifest(counts_population, damage, what):
    file = layout.version_file(counts_population.path, 1)
    file.write_text(damage(file.read_text()))
    with pytest.raises(ManifestError, match=what):
        Population.open(counts_population.path)


def sealed(manifest_file, **fields):
    """The manifest with changed fields and a fresh checksum: as from a faulty writer."""
    import hashlib

    content = json.loads(manifest_file.read_text())
    del content["checksum"]
    content.update(fields)
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    manifest_file.write_text(json.dumps({**content, "checksum": hashlib.sha256(canonical).hexdigest()}))


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"n_clients": 24}, "hold 23 clients"),
        ({"n_rows": 1}, "n_rows"),
        ({"clients_per_leaf": 3}, "whole leaves"),
        ({"dtype": "float32"}, "goes with kind"),
        ({"surprise": 1}, "[Ee]xtra"),
        ({"public_for_evaluation": True}, "stated reason"),
        ({"version": 2}, "says it is version 2"),
        ({"population_id": "../../etc"}, "population_id"),
    ],
)
def test_inconsistent_manifest(counts_population, fields, what):
    file = layout.version_file(counts_population.path, 1)
    sealed(file, **fields)
    with pytest.raises(ManifestError, match=what):
        Population.open(counts_population.path)


def test_a_slot_cannot_point_outside(counts_population):
    file = layout.version_file(counts_population.path, 1)
    blocks = json.loads(file.read_text())["blocks"]
    blocks[0]["slot"] = "../../elsewhere"
    sealed(file, blocks=blocks)
    with pytest.raises(ManifestError, match="slot"):
        Population.open(counts_population.path)


def test_vocabulary(tmp_path):
    tokens = ["the", "cat's", "Ω"]
    population = write_population(tmp_path / "p", "counts", 3, ["a"], some_counts(1, 3), vocabulary=tokens)
    assert population.vocabulary() == tuple(tokens)
    file = layout.vocabulary_file(population.path, population.manifest.vocabulary.sha256)
    file.write_text("the\ncat\nΩ\n")
    with pytest.raises(ManifestError, match="does not match its checksum"):
        population.vocabulary()
    assert "vocabulary" in population.verify().problems[0]
    file.unlink()
    with pytest.raises(ManifestError, match="cannot be read"):
        population.vocabulary()


def test_verify_reports_progress_and_any_changed_byte(counts_population):
    steps = []
    assert counts_population.verify(lambda done, total: steps.append((done, total))).ok
    assert steps == [(1, 3), (2, 3), (3, 3)]
    folder = layout.block_folder(counts_population.path, counts_population.blocks[0].slot)
    (folder / "zarr.json").write_text("{}")
    assert "checksum" in counts_population.verify().problems[0]
