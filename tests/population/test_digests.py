"""Files of a population are bound to each other: what was exchanged or rewritten is refused when it is first read."""

import json
import os
import shutil

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from fedcore.errors import ChunkError, ManifestError
from fedcore.population import arrays, layout
from fedcore.population import manifest as manifests
from fedcore.population.copying import copy_population
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from tests.conftest import write_population
from tests.population.conftest import names, some_counts


@pytest.fixture(params=["folder", pytest.param("url", marks=pytest.mark.slow)])
def place(request, tmp_path):
    """A function that takes a population to where it is attacked."""
    if request.param == "folder":
        return lambda population: population

    def copied(population):
        url = f"memory://digests-{tmp_path.name}"
        copy_population(population.path, url)
        return Population.open(url)

    return copied


def alike_counts(path):
    """Two blocks of the same shapes, types and lengths, with other values."""
    first, none = np.arange(1, 25).reshape(4, 6), np.zeros((4, 1), int)
    matrix = sp.csr_matrix(np.concatenate([np.hstack([first, none]), np.hstack([none, first[::-1]])]))
    return write_population(path, "counts", 7, names(1, 8), matrix, matrix[::-1].copy(), leaf=4, block=4)


def alike_rows(path, chunk_bytes=None):
    x = np.arange(8 * 5 * 3, dtype=np.float32).reshape(40, 3)
    with PopulationWriter(path, "rows", 3, clients_per_leaf=4, clients_per_block=4) as writer:
        writer.write(names(1, 8), (np.arange(0, 41, 5), x), (np.arange(0, 41, 5), -x))
        return writer.commit()


def folder_of(population, index):
    return layout.block_folder(population.path, population.blocks[index].slot)


def exchange(population, name, one=0, other=1):
    """Exchange what is called so in two blocks: a file, or all files below a folder."""
    a, b = folder_of(population, one) / name, folder_of(population, other) / name
    if layout.is_remote(a):
        for file in [file for file in a.fs.find(a.path)]:
            there = file.replace(str(a.path), str(b.path))
            first, second = a.fs.cat_file(file), a.fs.cat_file(there)
            a.fs.pipe_file(file, second), a.fs.pipe_file(there, first)
        return
    aside = a.with_name("aside")
    a.rename(aside), b.rename(a), aside.rename(b)


READS = {
    "train": lambda population: population.read(0),
    "heldout": lambda population: population.read(0, heldout=True),
    "ids": lambda population: population.client_ids(0),
}


@pytest.mark.parametrize("array", ["train/indices", "train/counts", "heldout/counts", "ids/bytes"])
@pytest.mark.parametrize("what", ["c", "zarr.json", ""])
def test_exchanged_arrays_of_counts(tmp_path, place, array, what):
    population = place(alike_counts(tmp_path / "p"))
    name = f"{array}/{what}".rstrip("/")
    if what == "zarr.json":  # equal in both blocks: so it is changed first
        file = folder_of(population, 1) / name
        content = json.loads(layout.read_bytes(file))
        content["attributes"] = {"other": True}
        file.write_bytes(json.dumps(content).encode())
    exchange(population, name)
    with pytest.raises(ChunkError, match=rf"Block 0 \(slot v000001-000000\).*{array}"):
        READS[array.split("/")[0]](population)


@pytest.mark.parametrize("read", ["read", "tiles", "stream", "clients", "heldout tiles"])
def test_exchanged_rows(tmp_path, place, monkeypatch, read):
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 60)
    population = place(alike_rows(tmp_path / "p"))
    part = "heldout" if read.startswith("heldout") else "train"
    exchange(population, f"{part}/x/c/1")  # one chunk of several
    reads = {
        "read": lambda: population.read(0),
        "tiles": lambda: [list(population.client_tiles(0, client, 12)) for client in range(4)],
        "heldout tiles": lambda: [list(population.client_tiles(0, client, 12, True)) for client in range(4)],
        "stream": lambda: np.asarray(population.stream(0).x),
        "clients": lambda: population.read_clients(0, 0, 4),
    }
    with pytest.raises(ChunkError, match=rf"Block 0 \(slot v000001-000000\).*{part}/x"):
        reads[read]()
    problems = population.verify().problems
    assert len(problems) == 2 and all(f"{part}/x: the chunk c/1" in problem for problem in problems)


def test_exchanged_slots(tmp_path, place):
    population = place(alike_counts(tmp_path / "p"))
    exchange(population, "")
    for index in (0, 1):
        with pytest.raises(ChunkError, match=f"Block {index} "):
            population.read(index)
        with pytest.raises(ChunkError, match=f"Block {index} "):
            population.client_ids(index)
    assert len(population.verify().problems) == 2


def test_a_digest_that_was_rewritten_with_its_file(tmp_path, place):
    """The manifest has the digest of the list."""
    population = place(alike_counts(tmp_path / "p"))
    exchange(population, "train")
    exchange(population, "digests.json")
    with pytest.raises(ChunkError, match="Block 0 .*digests.json"):
        population.read(0)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema":3,"files":{}}', None])
def test_a_damaged_or_lost_list(tmp_path, content):
    population = alike_counts(tmp_path / "p")
    file = folder_of(population, 1) / "digests.json"
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(ChunkError, match="Block 1 .*digests.json"):
        population.read(1)
    assert "Block 1" in population.verify().problems[0] and len(population.verify().problems) == 1


def test_a_value_that_was_changed_with_its_checksum(tmp_path):
    """CRC-32C finds what broke by itself, and not what somebody changed."""
    population = alike_rows(tmp_path / "p")
    stored = zarr.open_array(str(folder_of(population, 0) / "train/x"))
    stored[0, 0] = 77.0
    with pytest.raises(ChunkError, match="Block 0 .*train/x: the chunk c/0/0"):
        population.read(0)


def test_a_file_too_many_is_found_by_verify(tmp_path):
    population = alike_counts(tmp_path / "p")
    (folder_of(population, 1) / "train" / "more").write_text("?")
    assert population.read(1).clients == 4
    assert "train/more" in population.verify().problems[0]


def test_each_file_of_a_slot_is_listed_and_verified(tmp_path):
    population = alike_counts(tmp_path / "p")
    folder = folder_of(population, 0)
    listed = json.loads((folder / "digests.json").read_text())["files"]
    files = {file.relative_to(folder).as_posix() for file in layout.files_of(folder)}
    assert files == listed.keys() | {"digests.json"}
    for name in sorted(listed):
        good = (folder / name).read_bytes()
        (folder / name).write_bytes(good + b" ")
        problems = population.verify().problems
        assert len(problems) == 1 and name.partition("/c/")[0].removesuffix("/zarr.json") in problems[0], name
        (folder / name).write_bytes(good)
    assert population.verify().ok


def test_a_copy_of_a_damaged_block_is_refused(tmp_path):
    population = alike_counts(tmp_path / "p")
    exchange(population, "train/counts/c/0")
    with pytest.raises(ChunkError, match="Block 0 .*not copied"):
        copy_population(population.path, tmp_path / "q")
    assert layout.versions(tmp_path / "q") == []


def test_a_copy_has_the_same_manifest_and_digests(tmp_path):
    population = alike_counts(tmp_path / "p")
    copy_population(population.path, tmp_path / "q")
    other = Population.open(tmp_path / "q")
    assert other.manifest == population.manifest and other.verify().ok
    assert copy_population(population.path, tmp_path / "q").kept == 2
    assert layout.version_file(other.path, 1).read_bytes() == layout.version_file(population.path, 1).read_bytes()


# --- the manifest -----------------------------------------------------------------------------------------------------


def rewritten(population, **fields):
    file = layout.version_file(population.path, population.version)
    content = json.loads(file.read_text()) | fields
    content.pop("checksum")
    content["checksum"] = manifests.checksum_of(content)
    file.write_text(json.dumps(content))


def test_a_manifest_says_its_checksum(counts_population):
    stored = json.loads(layout.version_file(counts_population.path, 1).read_text())
    assert stored["schema_version"] == 2 and stored["needs"] == ["stripped-ids"]
    assert stored["checksum"] == counts_population.checksum == Population.open(counts_population.path).checksum
    assert all("sha256" not in block and len(block["digest"]) == 64 for block in stored["blocks"])


@pytest.mark.parametrize("needs", [["shares"], ["tokens", "cohorts"]])
def test_what_a_newer_version_needs_is_named(counts_population, needs):
    rewritten(counts_population, needs=needs)
    with pytest.raises(ManifestError, match=f"needs {needs[0]}") as refused:
        Population.open(counts_population.path)
    assert "newer" in refused.value.remedy


def test_a_field_of_a_newer_version_without_its_name(counts_population):
    rewritten(counts_population, cohorts=[])
    with pytest.raises(ManifestError, match="cohorts"):
        Population.open(counts_population.path)


def test_blocks_without_a_digest_are_refused(counts_population):
    blocks = json.loads(layout.version_file(counts_population.path, 1).read_text())["blocks"]
    digest = blocks[0].pop("digest")
    rewritten(counts_population, blocks=blocks)
    with pytest.raises(ManifestError, match="digest"):
        Population.open(counts_population.path)
    blocks[0] |= {"digest": digest, "sha256": digest}
    rewritten(counts_population, blocks=blocks)
    with pytest.raises(ManifestError, match="digest"):
        Population.open(counts_population.path)


# --- who may look -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=[0, 0o022])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def open_to_others(folder):
    found = [folder, *folder.rglob("*")]
    return [str(path.relative_to(folder)) for path in found if path.lstat().st_mode & 0o077]


@pytest.mark.parametrize("there", [False, True])
def test_nobody_else_may_look_at_a_population_with_a_ledger(tmp_path, umask, there):
    path = tmp_path / "p"
    tmp_path.chmod(0o755)
    if there:
        path.mkdir()
        path.chmod(0o755)
    ledger = {"id": "0" * 32, "url": "sqlite:///nowhere"}
    options = {"vocabulary": list("abcdefg"), "ledger": ledger, "clients_per_leaf": 4, "clients_per_block": 4}
    population = write_population(path, "counts", 7, names(0, 6), some_counts(6), **options)
    layout.write_beside(path, layout.WITNESS, b"{}")
    with PopulationWriter.extending(population) as writer:
        writer.keep(population.blocks[0])
        ptr = population.read_clients(1, 0, 2)
        writer.write(names(4, 2), ptr)
        writer.write(names(6, 3), some_counts(3))
        writer.commit()
    assert open_to_others(path) == (["."] if there else []), "a folder that was there keeps its mode"
    copy_population(path, tmp_path / "q")
    assert open_to_others(tmp_path / "q") == []


def test_a_population_without_a_ledger_is_as_open_as_the_umask_says(tmp_path):
    tmp_path.chmod(0o755)
    before = os.umask(0o022)
    try:
        population = alike_counts(tmp_path / "p")
    finally:
        os.umask(before)
    assert (folder_of(population, 0) / "digests.json").stat().st_mode & 0o777 == 0o644


def test_what_a_dead_writer_left(tmp_path):
    population = alike_counts(tmp_path / "p")
    shutil.copytree(folder_of(population, 0), tmp_path / "p" / "blocks" / "v000002-000000")
    (tmp_path / "p" / ".zarr.json.99.partial").write_text("")
    os.utime(tmp_path / "p" / ".zarr.json.99.partial", (0, 0))  # younger ones may be those of a run that is at work
    (tmp_path / "p" / "versions" / ".000002.json.99.partial").write_text("")
    (tmp_path / "p" / "vocabularies").mkdir()
    (tmp_path / "p" / "vocabularies" / ".x.txt.99.partial").write_text("")
    with PopulationWriter.extending(population):
        pass
    left = [str(path) for path in (tmp_path / "p").rglob("*") if "partial" in path.name or "v000002" in path.name]
    assert left == []


def test_what_runs_and_ledgers_know_a_version_by_tells_nothing_of_its_data(tmp_path):
    """Who knows all clients but one could try that one against a digest of the data: a secret hides them."""
    known = []
    for name in ("one", "two"):
        with PopulationWriter(tmp_path / name, "counts", 7) as writer:
            writer.write(["a", "b"], sp.csr_matrix(np.eye(2, 7, dtype=np.int64)))
            known.append(writer.commit())
    one, two = known
    assert len(one.manifest.secret) == 64 and one.manifest.secret != two.manifest.secret
    as_guessed = two.manifest.model_copy(update={"population_id": one.id})  # all else is known, and equal
    assert as_guessed.blocks == one.manifest.blocks and manifests.checksum(as_guessed) != one.checksum


def test_names_below_a_folder_are_in_order_and_links_are_refused(tmp_path):
    """In the order of whole paths: "a-b" is before "a/b", as a folder's own order does not have it."""
    wanted = ["a-b", "a.b/c", "a/b", "a/c/0", "z"]
    for name in reversed(wanted):
        (tmp_path / "p" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "p" / name).touch()
    (tmp_path / "p" / "empty").mkdir()
    assert layout.names_of(tmp_path / "p") == wanted
    assert layout.files_of(tmp_path / "p") == [tmp_path / "p" / name for name in wanted]
    assert layout.names_of(tmp_path / "missing") == []
    (tmp_path / "link").symlink_to("p", target_is_directory=True)
    (tmp_path / "p" / "a" / "d").symlink_to("../z")
    for folder in ("p", "link"):
        with pytest.raises(OSError, match="symbolic link"):
            layout.names_of(tmp_path / folder)
