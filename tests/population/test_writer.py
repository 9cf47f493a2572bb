"""Writing: a version appears whole or not at all, blocks obey the manifest's invariants, bad input is refused."""

import errno
import json
import multiprocessing
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.errors import ManifestError, PopulationError, PopulationNotFound
from fedcore.population import arrays, block_writer, layout
from fedcore.population import manifest as manifests
from fedcore.population import writer as population_writer
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from tests.conftest import write_population

from .conftest import names, some_counts, some_rows
from .test_store import all_counts


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 37), max_size=5),
    leaf=st.integers(1, 9),
    block=st.integers(1, 20),
    block_bytes=st.sampled_from([1, 60, 300, 10**9]),
)
def test_any_cut_of_the_input_gives_the_same_population(tmp_path_factory, cuts, leaf, block, block_bytes):
    matrix, heldout, bounds = some_counts(37), some_counts(37, seed=5), [0, *sorted(cuts), 37]
    path = tmp_path_factory.mktemp("cut") / "p"
    sizes = {"clients_per_leaf": leaf, "clients_per_block": block, "block_bytes": block_bytes}
    with PopulationWriter(path, "counts", 7, **sizes) as writer:
        for low, high in zip(bounds[:-1], bounds[1:], strict=True):
            writer.write(names(low, high - low), matrix[low:high], heldout[low:high])
        population = writer.commit()
    np.testing.assert_array_equal(all_counts(population), matrix.toarray())
    np.testing.assert_array_equal(all_counts(population, heldout=True), heldout.toarray())
    clients = [entry.clients for entry in population.blocks]
    assert all(number % leaf == 0 for number in clients[:-1]) and sum(clients) == 37
    assert max(clients) <= -(-block // leaf) * leaf
    if block_bytes == 1 and leaf < 37:
        assert clients[0] == leaf or matrix[:leaf].nnz + heldout[:leaf].nnz == 0


@pytest.mark.parametrize(("train", "heldout"), [(4, None), (3, 1), (1, 3)])
def test_a_block_closes_by_the_bytes_of_all_data_of_its_clients(tmp_path, train, heldout):
    """4 counts of 8 bytes each: 65 bytes are reached by the third client."""
    counts = [
        None if number is None else sp.csr_matrix(np.tile(np.arange(4) < number, (7, 1)).astype(int))
        for number in (train, heldout)
    ]
    with PopulationWriter(
        tmp_path / "p", "counts", 4, clients_per_leaf=1, clients_per_block=7, block_bytes=65
    ) as writer:
        writer.write(names(0, 7), *counts)
        assert [entry.clients for entry in writer.commit().blocks] == [3, 3, 1]


def test_nothing_is_visible_without_a_commit(tmp_path):
    path = tmp_path / "p"
    with (
        pytest.raises(ZeroDivisionError),
        PopulationWriter(path, "counts", 7, clients_per_leaf=1, clients_per_block=1) as writer,
    ):
        writer.write(names(0, 3), some_counts(3))
        assert len(list((path / "blocks").iterdir())) >= 3
        with pytest.raises(PopulationNotFound):
            Population.open(path)
        raise ZeroDivisionError
    assert not path.exists()


def test_a_population_is_not_overwritten(counts_population, tmp_path):
    with pytest.raises(PopulationError, match="already"):
        PopulationWriter(counts_population.path, "counts", 7).__enter__()
    assert counts_population.verify().ok
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("x")
    with pytest.raises(PopulationError, match="not empty"):
        PopulationWriter(other, "counts", 7).__enter__()
    assert (other / "thesis.txt").exists()
    with pytest.raises(PopulationError, match="is a file"):
        PopulationWriter(other / "thesis.txt", "counts", 7).__enter__()


def test_a_second_writer_loses(tmp_path):
    with PopulationWriter(tmp_path / "p", "counts", 7) as first:
        with pytest.raises(PopulationError, match="Another process is writing"):
            PopulationWriter(tmp_path / "p", "counts", 7).__enter__()
        first.write(names(0, 3), some_counts(3))
        population = first.commit()
    assert population.verify().ok


def test_a_version_is_made_once(counts_population):
    """Even if the lock failed (some network file systems), the manifest's link decides."""
    with pytest.raises(PopulationError, match="first to make version 2"):
        with PopulationWriter.extending(counts_population) as writer:
            for entry in counts_population.blocks:
                writer.keep(entry)
            layout.version_file(counts_population.path, 2).write_text("{}")
            writer.commit()
    assert layout.version_file(counts_population.path, 2).read_text() == "{}"
    assert Population.open(counts_population.path, 1).verify().ok


def test_a_stale_parent_is_refused(counts_population):
    with PopulationWriter.extending(counts_population) as writer:
        for entry in counts_population.blocks:
            writer.keep(entry)
        writer.commit()
    with pytest.raises(PopulationError, match="moved on to version 2"):
        PopulationWriter.extending(counts_population).__enter__()


def _die_while_writing(path, parent):
    writer = PopulationWriter.extending(parent) if parent else PopulationWriter(path, "counts", 7, clients_per_leaf=1)
    writer.__enter__()
    if parent:
        for entry in parent.blocks[:-1]:
            writer.keep(entry)
    writer.write(names(100, 8), some_counts(8))
    writer.close_block()
    (path / layout.SPILL).mkdir()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("extend", [False, True])
def test_leftovers_of_a_dead_writer_are_swept(tmp_path, counts_population, extend):
    path = counts_population.path if extend else tmp_path / "q"
    parent = counts_population if extend else None
    child = multiprocessing.get_context("spawn").Process(target=_die_while_writing, args=(path, parent))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    left = {folder.name for folder in (path / "blocks").iterdir() if folder.is_dir()}
    if extend:
        assert left > {block.slot for block in counts_population.blocks} and Population.open(path).version == 1
        with PopulationWriter.extending(counts_population) as writer:
            for entry in counts_population.blocks:
                writer.keep(entry)
            population = writer.commit()
    else:
        assert left
        population = write_population(path, "counts", 7, names(0, 2), some_counts(2))
    left = {folder.name for folder in (path / "blocks").iterdir() if folder.is_dir()}
    assert left == {block.slot for block in population.blocks} and not (path / layout.SPILL).exists()


def test_an_append_opens_few_earlier_versions(tmp_path, monkeypatch):
    """A weekly append does not open the versions of all weeks before. Each of these has a slot that no other names."""
    population = write_population(tmp_path / "p", "counts", 7, names(0, 2), some_counts(2), leaf=1, block=1)
    kept = {population.version: [entry.slot for entry in population.blocks]}
    for week in range(12):
        with PopulationWriter.extending(population) as writer:
            writer.keep(population.blocks[0])
            writer.write(names(2 + week, 2), some_counts(2))
            population = writer.commit()
        kept[population.version] = [entry.slot for entry in population.blocks]
    (stranger := tmp_path / "p" / "blocks" / "v000999-000000").mkdir()
    opened, load = [], manifests.load
    monkeypatch.setattr(manifests, "load", lambda path, version=None: opened.append(version) or load(path, version))
    with PopulationWriter.extending(population) as writer:
        assert len(opened) > 12 and not stranger.exists()  # there was something that none of them names
        opened.clear()
    with PopulationWriter.extending(population):
        assert opened == [population.version]
    for version, slots in kept.items():
        assert Population.open(tmp_path / "p", version).verify().ok
        assert all((tmp_path / "p" / "blocks" / slot).is_dir() for slot in slots)


@pytest.mark.parametrize("where", ["chunk", "manifest"])
def test_a_full_disk(tmp_path, monkeypatch, where):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "p"
    with pytest.raises(PopulationError, match="no room left") as caught, PopulationWriter(path, "counts", 7) as writer:
        writer.write(names(0, 3), some_counts(3))
        if where == "chunk":
            monkeypatch.setattr(arrays, "write_chunk", full)
        else:
            monkeypatch.setattr(os, "link", full)
        writer.commit()
    assert "Free some space" in caught.value.remedy and not path.exists()


def one_client_more(parent: Population) -> Population:
    with PopulationWriter.extending(parent) as writer:
        for entry in parent.blocks[:-1]:
            writer.keep(entry)
        writer.write(names(16, 8), some_counts(8))
        return writer.commit()


def one_client(path: Path) -> Population:
    return write_population(path, "counts", 7, names(0, 1), some_counts(1))


@pytest.fixture(params=["new", "extended"])
def way(request, tmp_path, counts_population):
    """(path, what writes the next version there)"""
    if request.param == "extended":
        return counts_population.path, lambda: one_client_more(counts_population)
    return tmp_path / "new", lambda: one_client(tmp_path / "new")


def test_a_version_whose_name_was_not_flushed_is_taken_back(way, refuse):
    """With its blocks: a name that stayed would be that of nothing."""
    path, write = way
    known = layout.versions(path)
    refuse("fsync", path / layout.VERSIONS)
    with pytest.raises(PopulationError, match="Input/output error; nothing of this version is visible"):
        write()
    assert layout.versions(path) == known and all(Population.open(path, one).verify().ok for one in known)
    assert write().verify().ok


@pytest.mark.parametrize("calls", [("fsync",), ("fsync", "unlink")])
def test_a_version_that_cannot_be_taken_back_keeps_its_blocks(way, refuse, calls):
    """Its name is there still, or will be after the next loss of power."""
    path, write = way
    version = layout.version_file(path, len(layout.versions(path)) + 1)
    if "unlink" in calls:
        refuse("unlink", version)
    refuse("fsync", path / layout.VERSIONS, times=2)
    with pytest.raises(PopulationError, match="may or may not be there") as caught:
        write()
    assert "population describe" in caught.value.remedy
    assert version.exists() == ("unlink" in calls)
    if version.exists():
        assert Population.open(path).verify().ok
    assert len(list((path / layout.BLOCKS).glob(f"v{version.stem}-*"))) == 1


def test_a_version_is_there_whatever_happens_to_its_other_name(way, refuse):
    path, write = way
    version = layout.version_file(path, len(layout.versions(path)) + 1)
    refuse("unlink", version.with_name(f".{version.name}.{os.getpid()}.partial"))
    assert write().verify().ok


def test_a_name_that_was_given_although_the_disk_said_no(way, refuse):
    """As a server of files does whose answer was lost."""
    path, write = way
    refuse("link", layout.version_file(path, len(layout.versions(path)) + 1), done=True)
    assert write().verify().ok


def test_a_failed_write_is_never_committed(tmp_path, monkeypatch):
    with PopulationWriter(tmp_path / "p", "rows", 2, clients_per_leaf=1) as writer:
        with pytest.raises(PopulationError, match="expected numbers of shape"):
            writer.write_large("a", iter([np.zeros((3, 2)), np.zeros((3, 5))]))
        with pytest.raises(PopulationError, match="failed half-way"):
            writer.commit()
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("cores", [1, 2])
def test_a_block_that_cannot_be_closed_fails_the_version(tmp_path, monkeypatch, cores):
    """It may be closed while the next one is filled, so that the error comes with a later call."""

    def full(self):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))

    monkeypatch.setattr(block_writer.BlockWriter, "close", full)
    monkeypatch.setattr(population_writer, "usable_cores", lambda: cores)
    for blocks in (1, 2, 5):
        with PopulationWriter(tmp_path / "p", "counts", 7, clients_per_leaf=2, clients_per_block=2) as writer:
            with pytest.raises(PopulationError, match="no room left"):
                for number in range(blocks):
                    writer.write(names(2 * number, 2), some_counts(2))
                writer.commit()
            with pytest.raises(PopulationError, match="failed half-way"):
                writer.commit()
        assert not (tmp_path / "p").exists()


def test_blocks_keep_their_order_whichever_is_closed_first(tmp_path, monkeypatch):
    """Two at once, if both fit into what an array may hold; a larger one waits until those before are on the disk."""
    monkeypatch.setattr(population_writer, "usable_cores", lambda: 4)
    real, closing, most = block_writer.BlockWriter.close, set(), []

    def slow(self):
        closing.add(self.first)
        threading.Event().wait(0.03 if self.first == 0 else 0)
        most.append(len(closing))
        closing.discard(self.first)
        return real(self)

    monkeypatch.setattr(block_writer.BlockWriter, "close", slow)
    for stream_bytes, at_once in ((1 << 20, 2), (1, 1)):
        most.clear()
        place, options = tmp_path / f"{at_once}", {"clients_per_leaf": 2, "clients_per_block": 2}
        made = write_population(place, "counts", 7, names(0, 8), some_counts(8), stream_bytes=stream_bytes, **options)
        assert [block.first for block in made.blocks] == [0, 2, 4, 6] and max(most) == at_once and made.verify().ok
        np.testing.assert_array_equal(all_counts(made), some_counts(8).toarray())


def test_new_version_shares_blocks(counts_population):
    old = counts_population
    with PopulationWriter.extending(old) as writer:
        writer.keep(old.blocks[0])
        writer.keep(old.blocks[1])
        last = old.read(2, heldout=True)
        ids = [*old.client_ids(2), *names(23, 4)]
        extra = sp.vstack([last.csr.astype(np.int64), some_counts(4, seed=9)])
        writer.write(ids, extra)
        new = writer.commit(Provenance(sources=("more",)))
    assert (new.version, new.id, new.n_clients, new.manifest.provenance.parent) == (2, old.id, 27, 1)
    assert [block.slot for block in new.blocks[:2]] == [block.slot for block in old.blocks[:2]]
    np.testing.assert_array_equal(all_counts(new)[:23], some_counts(23).toarray())
    assert Population.open(old.path).version == 2 and Population.open(old.path, 1).verify().ok and new.verify().ok


def test_extending_without_commit_leaves_the_old_version(counts_population):
    before = [file for file in layout.files_of(counts_population.path)]
    with PopulationWriter.extending(counts_population) as writer:
        writer.write(names(0, 4), some_counts(4))
        writer.close_block()
    assert layout.files_of(counts_population.path) == before


def test_keep_out_of_order(counts_population):
    with PopulationWriter.extending(counts_population) as writer:
        with pytest.raises(PopulationError, match="does not follow"):
            writer.keep(counts_population.blocks[1])


def counts_with(value, dtype=np.float64):
    matrix = some_counts(3).astype(dtype)
    matrix.data[1] = value
    return matrix


@pytest.mark.parametrize(
    ("ids", "matrix", "what"),
    [
        (["a", "b", ""], some_counts(3), "empty"),
        (["a", "b", "c\0"], some_counts(3), "NUL"),
        (["a", "b", 1.5], some_counts(3), "type float"),
        (["a", "b", True], some_counts(3), "type bool"),
        (["a", "b"], some_counts(3), "shape"),
        (["a", "b", "c"], some_counts(3, 8), "shape"),
        (["a", "b", "c"], np.ones((3, 7)), "SciPy sparse"),
        (["a", "b", "c"], counts_with(np.nan), "whole numbers"),
        (["a", "b", "c"], counts_with(np.inf), "whole numbers"),
        (["a", "b", "c"], counts_with(-1), "whole numbers"),
        (["a", "b", "c"], counts_with(0.5), "whole numbers"),
        (["a", "b", "c"], counts_with(2**54, np.int64), "whole numbers"),
        (["a", "b", "c"], some_counts(3).astype(complex), "not numbers"),
        (["a"], sp.csr_matrix(np.array([[2**52, 2**52, 2**52, 0, 0, 0, 0]])), "add up to more"),
    ],
)
def test_bad_counts(tmp_path, ids, matrix, what):
    with PopulationWriter(tmp_path / "p", "counts", 7) as writer:
        with pytest.raises(PopulationError, match=what):
            writer.write(ids, matrix)
        writer.write(names(0, 2), some_counts(2))  # a refused call adds nothing
        assert writer.commit().n_clients == 2


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (np.zeros((2, 3)), "ptr, x"),
        ((np.array([0, 1]), np.zeros((2, 3))), "ptr must run"),
        ((np.array([0, 2, 1]), np.zeros((2, 3))), "ptr must run"),
        ((np.array([0, 1, 2]), np.zeros((2, 4))), "expected numbers"),
        ((np.array([0, 1, 2]), np.full((2, 3), np.inf)), "infinite"),
        ((np.array([0, 1, 2]), np.full((2, 3), 1e300)), "infinite"),
        ((np.array([0, 1, 2]), np.full((2, 3), "x")), "expected numbers"),
    ],
)
def test_bad_rows(tmp_path, data, what):
    with PopulationWriter(tmp_path / "p", "rows", 3) as writer:
        with pytest.raises(PopulationError, match=what):
            writer.write(["a", "b"], data)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"kind": "text"}, "no population kind"),
        ({"features": 0}, "at least 1"),
        ({"clients_per_leaf": 0}, "at least 1"),
        ({"kind": "rows", "dtype": "int8"}, "cannot be stored"),
        ({"vocabulary": ["a"]}, "1 tokens for 7"),
        ({"vocabulary": list("abcdefa")[:6] + ["a"]}, "twice"),
        ({"vocabulary": list("abcdef") + ["x\ny"]}, "line break"),
    ],
)
def test_bad_settings(tmp_path, change, what):
    with pytest.raises(PopulationError, match=what):
        PopulationWriter(**{"path": tmp_path / "p", "kind": "counts", "features": 7, **change})


def test_duplicate_ids_are_refused(tmp_path):
    with pytest.raises(PopulationError, match="'user 3' was written twice"):
        with PopulationWriter(tmp_path / "p", "counts", 7, clients_per_leaf=2, clients_per_block=2) as writer:
            writer.write(names(0, 5), some_counts(5))
            writer.write(names(3, 1), some_counts(1))
            writer.commit()


def test_a_hash_collision_is_no_duplicate(tmp_path, monkeypatch):
    from fedcore.population import same_ids

    monkeypatch.setattr(same_ids, "_hashes", lambda texts: np.ones(len(texts), np.int64))
    with PopulationWriter(tmp_path / "p", "counts", 7, clients_per_leaf=2, clients_per_block=2) as writer:
        writer.write(names(0, 5), some_counts(5))
        assert writer.commit().n_clients == 5


def test_no_clients(tmp_path):
    with pytest.raises(PopulationError, match="No client"), PopulationWriter(tmp_path / "p", "counts", 7) as writer:
        writer.commit()


def test_public_for_evaluation_needs_a_reason(tmp_path):
    with PopulationWriter(tmp_path / "p", "counts", 7, public_for_evaluation="published corpus") as writer:
        writer.write(["a"], some_counts(1))
        made = writer.commit().manifest
    assert made.public_for_evaluation and made.public_reason == "published corpus" and made.nominal_clients is None
    with pytest.raises(ManifestError, match="stated reason"):
        write_population(tmp_path / "q", "counts", 7, ["a"], some_counts(1), public_for_evaluation=" ")


def test_stored_form(rows_population):
    """The stored metadata are what the format page promises, readable by any Zarr v3 reader."""
    slot = layout.block_folder(rows_population.path, rows_population.blocks[0].slot)
    meta = json.loads((slot / "train/x/zarr.json").read_text())
    assert meta["zarr_format"] == 3 and [codec["name"] for codec in meta["codecs"]] == ["bytes", "crc32c"]
    assert meta["fill_value"] == "NaN"
    meta = json.loads((slot / "train/ptr/zarr.json").read_text())
    assert [codec["name"] for codec in meta["codecs"]] == ["bytes", "blosc", "crc32c"]
    import zarr

    group = zarr.open_group(str(rows_population.path), mode="r")
    assert group.attrs["fedcore"]["population"]
    x = group[f"blocks/{rows_population.blocks[0].slot}/train/x"][:]
    np.testing.assert_array_equal(x, some_rows(10)[1][: len(x)])
