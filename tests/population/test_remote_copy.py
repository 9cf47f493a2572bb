"""Copying populations between folders and URLs: whole or not at all, and nothing is ever overwritten."""

import pytest

from fedcore.errors import ChunkError, ConfigError, PopulationError, PopulationNotFound
from fedcore.population import layout
from fedcore.population.copying import copy_population
from fedcore.population.erasing import forget
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.storage import files
from fedcore.storage import objects as object_storage
from tests.conftest import write_population

from .conftest import names, some_counts, some_rows
from .remote_places import DAMAGES, copied, damage, snapshot

pytest.importorskip("upath", reason="universal-pathlib is not installed")


@pytest.mark.slow
def test_there_and_back_changes_no_byte(counts_population, base, tmp_path):
    copied(counts_population, f"{base}/p")
    copy_population(f"{base}/p", f"{base}/again/p")
    done = copy_population(f"{base}/again/p", tmp_path / "below" / "back")
    assert (done.blocks, done.kept, done.version) == (3, 0, 1) and done.population_id == counts_population.id
    assert snapshot(tmp_path / "below" / "back") == snapshot(counts_population.path)
    back = Population.open(tmp_path / "below" / "back")
    with PopulationWriter.extending(back) as writer:  # a copy can be appended to
        for entry in back.blocks:
            writer.keep(entry)
        assert writer.commit().version == 2


@pytest.mark.slow
def test_copying_again_keeps_what_is_there(counts_population, base):
    there = copied(counts_population, f"{base}/p")
    done = copy_population(counts_population.path, f"{base}/p")
    assert (done.kept, done.bytes) == (3, 0)
    damage(there, 1, "train/counts", "flipped")  # the right size, the wrong bytes
    done = copy_population(counts_population.path, f"{base}/p")
    assert (done.kept, done.bytes) == (2, counts_population.blocks[1].bytes) and there.verify().ok


@pytest.mark.parametrize("dest", ["memory", "local"])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_interrupted_copy_is_not_visible_and_goes_on(counts_population, memory, tmp_path, dest, after):
    where = memory if dest == "memory" else tmp_path / "q"

    def interrupt(done, total):
        if done == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_population(counts_population.path, where, progress=interrupt)
    with pytest.raises(PopulationNotFound):
        Population.open(where)
    other = write_population(tmp_path / "other", "counts", 7, names(0, 4), some_counts(4))
    with pytest.raises(PopulationError, match="Another population is being copied"):
        copy_population(other.path, where)
    done = copy_population(counts_population.path, where)
    assert done.kept == after and Population.open(where).verify().ok
    assert layout.read_beside(layout.place(where), layout.MARKER) is None


def test_a_copy_whose_name_was_not_flushed_is_not_visible(counts_population, tmp_path, refuse):
    refuse("fsync", tmp_path / "q" / layout.VERSIONS)
    with pytest.raises(PopulationError, match="nothing of this version is visible"):
        copy_population(counts_population.path, tmp_path / "q")
    with pytest.raises(PopulationNotFound):
        Population.open(tmp_path / "q")
    assert copy_population(counts_population.path, tmp_path / "q").kept == 3
    assert Population.open(tmp_path / "q").verify().ok


def test_a_copy_that_is_whole_says_so(counts_population, tmp_path, refuse):
    refuse("unlink", tmp_path / "q" / layout.MARKER)
    with pytest.raises(PopulationError, match="Version 1 was copied .* whole"):
        copy_population(counts_population.path, tmp_path / "q")
    assert Population.open(tmp_path / "q").verify().ok
    assert copy_population(counts_population.path, tmp_path / "q").kept == 3
    assert not (tmp_path / "q" / layout.MARKER).exists()


def test_a_failure_while_writing_is_not_visible(counts_population, memory, monkeypatch):
    calls = []

    def full(folder, contents, write=object_storage.write_many):
        calls.append(folder)
        if len(calls) == 2:
            raise object_storage._unreachable(folder, OSError(28, "No space left on device"))
        write(folder, contents)

    monkeypatch.setattr(object_storage, "write_many", full)
    with pytest.raises(PopulationError, match="No space left"):
        copy_population(counts_population.path, memory)
    with pytest.raises(PopulationNotFound):
        Population.open(memory)
    assert copy_population(counts_population.path, memory).kept == 1


def test_large_slots_go_in_batches(counts_population, memory, monkeypatch, tmp_path):
    monkeypatch.setattr(object_storage, "BATCH_BYTES", 100)
    assert copied(counts_population, memory).verify().ok
    copy_population(memory, tmp_path / "back")
    assert snapshot(tmp_path / "back") == snapshot(counts_population.path)


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_source_is_not_copied(counts_population, memory, tmp_path, kind):
    there = copied(counts_population, f"{memory}/p")
    damage(there, 1, "train/indices", kind)
    for dest in (f"{memory}/q", tmp_path / "q"):
        with pytest.raises(ChunkError, match=r"Block 1 \(slot v000001-000001\).*not copied"):
            copy_population(f"{memory}/p", dest)
        with pytest.raises(PopulationNotFound):
            Population.open(dest)


def extended(population, seed):
    with PopulationWriter.extending(population) as writer:
        for entry in population.blocks[:2]:
            writer.keep(entry)
        writer.write(names(16, 9), some_counts(9, seed=seed), some_counts(9, seed=seed))
        return writer.commit()


def test_what_is_there_is_never_overwritten(counts_population, memory, tmp_path):
    other = write_population(tmp_path / "other", "counts", 7, names(0, 4), some_counts(4))
    there = copied(counts_population, f"{memory}/p")
    with pytest.raises(PopulationError, match="another population"):
        copy_population(other.path, f"{memory}/p")
    with pytest.raises(PopulationError, match="another population"):
        copy_population(f"{memory}/p", other.path)
    copy_population(f"{memory}/p", tmp_path / "branch")
    extended(counts_population, 1)
    branch = extended(Population.open(tmp_path / "branch"), 2)
    copy_population(counts_population.path, f"{memory}/p")
    with pytest.raises(PopulationError, match="another version 2"):
        copy_population(branch.path, f"{memory}/p")
    with PopulationWriter.extending(branch) as writer:
        for entry in branch.blocks:
            writer.keep(entry)
        writer.commit()
    with pytest.raises(PopulationError, match="appended to separately"):  # its slots have the names of ours
        copy_population(branch.path, f"{memory}/p", version=3)
    assert there.versions() == [1, 2] and Population.open(there.location).verify().ok
    with pytest.raises(PopulationError, match="onto itself"):
        copy_population(f"{memory}/p", f"{memory}/p/")
    with pytest.raises(PopulationError, match="onto itself"):
        copy_population(other.path, other.path.as_uri())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    object_storage.write_bytes(layout.place(f"{memory}/full/letter.txt"), b"dear")
    for place in (tmp_path / "full", f"{memory}/full"):
        with pytest.raises(PopulationError, match="not empty"):
            copy_population(other.path, place)


def test_two_copies_of_different_populations_at_once(counts_population, rows_population_elsewhere, memory):
    def intrude(done, total):
        with pytest.raises(PopulationError, match="being copied"):
            copy_population(rows_population_elsewhere.path, memory)

    copy_population(counts_population.path, memory, progress=intrude)
    assert Population.open(memory).verify().ok


@pytest.fixture
def rows_population_elsewhere(tmp_path):
    return write_population(tmp_path / "rows", "rows", 3, names(0, 10), some_rows(10), leaf=4, block=4)


def test_a_manifest_is_created_once(s3):
    file = layout.place(s3) / "versions" / "000001.json"
    object_storage.create(file, b"first")
    with pytest.raises(FileExistsError):
        object_storage.create(file, b"second")
    # Both looked before either wrote: the store itself decides.
    with pytest.raises(FileExistsError):
        file.fs.pipe_file(file.path, b"second", mode="create")
    assert layout.read_bytes(file) == b"first"


def test_a_full_disk_while_copying_here(counts_population, memory, tmp_path, monkeypatch):
    copied(counts_population, memory)

    def full(path, *options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "opened", full)
    with pytest.raises(PopulationError, match="no room left"):
        copy_population(memory, tmp_path / "q")


@pytest.mark.slow
def test_pruning_takes_those_who_were_forgotten_out_of_a_copy(counts_population, base, tmp_path):
    there = copied(counts_population, f"{base}/p")
    after = forget(counts_population, clients=["user 1", *names(8, 8)]).population
    assert [block.void for block in after.blocks] == [False, True, False]
    done = copy_population(after.path, f"{base}/p")
    assert there.versions() == [1, 2] and done.pruned == 0
    done = copy_population(after.path, f"{base}/p", prune=True)
    assert there.versions() == [2] and (done.pruned, done.kept) == (1, 2)
    now = Population.open(f"{base}/p")
    assert now.manifest == after.manifest and now.verify().ok
    slots = {block.slot for block in after.blocks if not block.void}
    assert files.listing(now.path / layout.BLOCKS).keys() == {layout.ROOT, *slots}
    with pytest.raises(ChunkError, match="removed after it was opened"):
        there.read(0)
    copy_population(f"{base}/p", tmp_path / "back")
    assert snapshot(tmp_path / "back") == snapshot(after.path)
    with pytest.raises(ConfigError, match="written straight"):
        forget(now, clients=["user 2"])
