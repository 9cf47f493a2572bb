"""Populations behind URLs: read as from a folder, and every failure has a name.

`memory://` needs no server; `s3://` is a server on the loopback interface.
"""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedcore.errors import ChunkError, ConfigError, ManifestError, PopulationError, PopulationNotFound
from fedcore.population import arrays, copying, layout
from fedcore.population.copying import copy_population
from fedcore.population.ingest.ingest import ingest
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.storage import objects as object_storage

from .conftest import names, some_counts
from .contents import counts_of, ids_of, rows_of
from .remote_places import DAMAGES, chunk, copied, damage, forget_connections, require_credentials, sign_on

pytest.importorskip("upath", reason="universal-pathlib is not installed")
fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_counts_come_back(counts_population, base):
    there = copied(counts_population, f"{base}/p")
    assert there.manifest == counts_population.manifest and there.versions() == [1]
    assert counts_of(there) == counts_of(counts_population)
    assert counts_of(there, heldout=True) == counts_of(counts_population, heldout=True)
    assert ids_of(there) == ids_of(counts_population)
    assert there.client_bytes(1).tolist() == counts_population.client_bytes(1).tolist()
    assert (there.read_clients(1, 2, 5) != counts_population.read_clients(1, 2, 5)).nnz == 0
    report = there.verify()
    assert report.ok and report.bytes == counts_population.verify().bytes


def test_rows_come_back(rows_population, base):
    there = copied(rows_population, f"{base}/p")
    assert rows_of(there) == rows_of(rows_population)
    np.testing.assert_array_equal(np.asarray(there.stream(1).x), np.asarray(rows_population.stream(1).x))
    for mine, theirs in zip(there.client_tiles(0, 1, 12), rows_population.client_tiles(0, 1, 12), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_client_of_many_chunks(tmp_path, memory, monkeypatch):
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 400)
    x = np.random.default_rng(0).normal(size=(777, 5))
    with PopulationWriter(tmp_path / "p", "rows", 5, dtype="float64", clients_per_leaf=1, stream_bytes=1000) as writer:
        writer.write_large("huge", (x[start : start + 50] for start in range(0, 777, 50)))
        there = copied(writer.commit(), memory)
    np.testing.assert_array_equal(np.concatenate(list(there.client_tiles(0, 0, 900))), x)
    np.testing.assert_array_equal(there.read(0).x, x)
    storage, path = chunk(there, 0, "train/x")
    storage.rm(path.replace("/c/0/0", "/c/3/0"))
    with pytest.raises(ChunkError, match="the chunk c/3/0 is missing"):
        list(there.client_tiles(0, 0, 900))


def test_name_location_and_pickle(counts_population, base):
    there = copied(counts_population, f"{base}/a b/p/")
    assert there.path.name == "p" and there.location == str(there.path) == f"{base}/a b/p"
    assert str(there.path.resolve()) == there.location
    assert Population.open(there.location) == there
    again = pickle.loads(pickle.dumps(there))
    assert again == there and counts_of(again) == counts_of(there)
    assert len(pickle.dumps(there)) < len(pickle.dumps(counts_population)) + 500
    assert counts_population.location == str(counts_population.path.resolve())


@pytest.mark.slow
def test_a_new_version_is_seen(counts_population, base):
    old = copied(counts_population, f"{base}/p")
    with PopulationWriter.extending(counts_population) as writer:
        for entry in counts_population.blocks[:2]:
            writer.keep(entry)
        writer.write(names(16, 9), some_counts(9), some_counts(9))
        new = writer.commit()
    seen = []
    done = copy_population(new.path, f"{base}/p", progress=lambda *step: seen.append(step))
    assert (done.version, done.blocks, done.kept) == (2, len(new.blocks), 2) and seen[-1] == (done.blocks, done.blocks)
    assert old.versions() == [1, 2] and Population.open(f"{base}/p").n_clients == 25
    assert counts_of(Population.open(f"{base}/p")) == counts_of(new)
    assert Population.open(f"{base}/p", version=1).verify().ok
    with pytest.raises(PopulationNotFound, match="no version 3"):
        Population.open(f"{base}/p", version=3)


@pytest.mark.slow
@pytest.mark.parametrize("array", ["train/indptr", "train/indices", "train/counts", "heldout/counts"])
@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_counts(counts_population, memory, kind, array):
    there = copied(counts_population, memory)
    there.read(1, heldout=True)  # open arrays are kept; damage must still show
    damage(there, 1, array, kind)
    what = "the chunk c/0 is missing" if kind == "deleted" else "truncated or altered"
    with pytest.raises(ChunkError, match=rf"Block 1 \(slot v000001-000001\) of memory://.*{array}: .*{what}"):
        there.read(1, heldout=True)
    there.read(0, heldout=True)  # its neighbours are untouched
    report = there.verify()
    assert len(report.problems) == 1 and "Block 1" in report.problems[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_rows_on_s3(rows_population, s3, kind):
    there = copied(rows_population, s3)
    damage(there, 2, "train/x", kind)
    with pytest.raises(ChunkError, match=r"Block 2.*train/x: .*(missing|truncated)"):
        there.read(2)
    with pytest.raises(ChunkError, match="Block 2"):
        np.asarray(there.stream(2).x)
    assert not there.verify().ok


@pytest.mark.parametrize("array", ["ids/bytes", "ids/ptr"])
def test_damaged_ids(counts_population, memory, array):
    there = copied(counts_population, memory)
    damage(there, 0, array, "deleted")
    with pytest.raises(ChunkError, match=f"Block 0.*{array}"):
        there.client_ids(0)


@pytest.mark.slow
def test_a_missing_slot_and_damaged_metadata(counts_population, base):
    there = copied(counts_population, f"{base}/p")
    slot = layout.block_folder(there.path, there.blocks[2].slot)
    slot.fs.pipe_file((slot / "train/indptr/zarr.json").path, b"{")
    with pytest.raises(ChunkError, match="Block 2.*train/indptr: zarr.json is truncated or altered"):
        there.read(2)
    slot.fs.rm(slot.path, recursive=True)
    with pytest.raises(ChunkError, match="Block 2.*train/indptr: zarr.json is missing"):
        there.read(2)
    assert [problem[:7] for problem in there.verify().problems] == ["Block 2"]


def test_another_population_at_the_same_url(tmp_path, memory):
    for seed in range(3):  # the handles of the first must not be used for the second
        with PopulationWriter(tmp_path / str(seed), "counts", 7) as writer:
            writer.write(names(0, 4), some_counts(4, seed=seed))
            there = copied(writer.commit(), memory)
        np.testing.assert_array_equal(there.read(0).csr.toarray(), some_counts(4, seed=seed).toarray())
        object_storage.remove(there.path)


def test_vocabulary(tmp_path, base):
    with PopulationWriter(tmp_path / "p", "counts", 3, vocabulary=["the", "cat's", "Ω"]) as writer:
        writer.write(["a"], some_counts(1, 3))
        there = copied(writer.commit(), f"{base}/p")
    assert there.vocabulary() == ("the", "cat's", "Ω")
    file = layout.vocabulary_file(there.path, there.manifest.vocabulary.sha256)
    file.fs.pipe_file(file.path, b"the\ncat\n")
    with pytest.raises(ManifestError, match="does not match its checksum"):
        there.vocabulary()
    file.fs.rm(file.path)
    with pytest.raises(ManifestError, match="cannot be read: No such file"):
        there.vocabulary()


def test_a_damaged_manifest(counts_population, memory):
    there = copied(counts_population, memory)
    file = layout.version_file(there.path, 1)
    file.fs.pipe_file(file.path, layout.read_bytes(file).replace(b'"n_clients": 23', b'"n_clients": 24'))
    with pytest.raises(ManifestError, match="does not match its own checksum"):
        Population.open(memory)


def test_a_local_population_never_waits_for_object_storage(counts_population):
    code = (
        "import sys; from fedcore.population.store import Population; import fedcore.cli\n"
        "p = Population.open(sys.argv[1]); early = 'fsspec' in sys.modules\n"
        "p.read(0); p.verify()  # Zarr itself loads fsspec where it is installed\n"
        "print('LOADED', early, sorted({'upath', 's3fs', 'botocore', 'aiohttp'} & set(sys.modules)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(counts_population.path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert "LOADED False []" in out.stdout


# --- which places there are -------------------------------------------------------------------------------------------


def test_file_urls_are_folders(counts_population, tmp_path):
    there = Population.open(counts_population.path.as_uri())
    assert there.path == counts_population.path and type(there.path) is type(tmp_path)
    spaced = copied(counts_population, (tmp_path / "a b").as_uri())
    assert spaced.path == tmp_path / "a b" and spaced.verify().ok
    assert layout.place("file://localhost/x/y") == Path("/x/y")


@pytest.mark.parametrize(
    ("location", "what", "remedy"),
    [
        ("file://host/x", "names a host", "file:///"),
        ("nosuch://bucket/x", "no storage for nosuch://", "s3://"),
        ("s3:/bucket/x", "lost a slash", "as text"),
        (Path("s3://bucket/x"), "lost a slash", "as text"),
        ("s3://key:hunter2@bucket/x", "holds a password", "AWS_SECRET_ACCESS_KEY"),
        ("simplecache::s3://bucket/x", "chain", "itself"),
    ],
)
def test_urls_that_cannot_be_used(location, what, remedy):
    with pytest.raises(ConfigError, match=what) as caught:
        Population.open(location)
    assert remedy in caught.value.remedy and "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("module", "url", "remedy"),
    [
        ("upath", "s3://bucket/x", ".[object-storage]"),
        ("s3fs", "s3://bucket/x", ".[object-storage]"),
        ("gcsfs", "gs://bucket/x", "gcsfs"),
        ("adlfs", "az://bucket/x", "adlfs"),
    ],
)
def test_a_package_that_is_not_installed(monkeypatch, module, url, remedy):
    monkeypatch.setitem(sys.modules, module, None)
    for name in ("s3", "gs", "az"):
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, name, raising=False)
    with pytest.raises(ConfigError, match="needs") as caught:
        Population.open(url)
    assert remedy in caught.value.remedy


def test_writing_straight_to_a_url_is_refused(counts_population, tmp_path, memory):
    there = copied(counts_population, f"{memory}/p")
    (tmp_path / "data.csv").write_text("client,token\na,b\n")
    attempts = [
        lambda: PopulationWriter(f"{memory}/q", "counts", 7),
        lambda: PopulationWriter.extending(there),
        lambda: ingest(tmp_path / "data.csv", f"{memory}/q"),
        lambda: ingest(tmp_path / "data.csv", f"{memory}/p", append=True),
    ]
    for attempt in attempts:
        with pytest.raises(ConfigError, match="straight to memory://") as caught:
            attempt()
        assert "fedcore population copy" in caught.value.remedy
    assert there.versions() == [1] and object_storage.names(layout.place(f"{memory}/q")) == []


# --- storage that fails -----------------------------------------------------------------------------------------------


def test_no_such_bucket_and_no_such_population(counts_population, s3):
    for url in ("s3://nowhere/p", f"{s3}/nothing"):
        with pytest.raises(PopulationNotFound, match="no population") as caught:
            Population.open(url)
        assert "bucket" in caught.value.remedy
    with pytest.raises(PopulationError, match="bucket does not exist"):
        copy_population(counts_population.path, "s3://nowhere/p")


@pytest.mark.slow
def test_wrong_credentials(rows_population, s3, server):
    there = copied(rows_population, s3)
    attempts = [
        lambda: Population.open(s3),
        lambda: there.read(0),
        lambda: np.asarray(there.stream(0).x),
        lambda: there.client_ids(0),
        lambda: there.verify(),
        lambda: layout.read_beside(there.path, "x"),
        lambda: layout.write_beside(there.path, "x", b""),
        lambda: copy_population(rows_population.path, f"{s3}/q"),
    ]
    require_credentials(server, 0)
    try:
        for attempt in attempts:
            with pytest.raises(PopulationError, match="cannot be reached: .*(Access Key|Forbidden)") as caught:
                attempt()
            assert type(caught.value) is object_storage.Unreachable and "AWS_SECRET_ACCESS_KEY" in caught.value.remedy
            assert pickle.loads(pickle.dumps(caught.value)).remedy == caught.value.remedy  # as from a Dask worker
    finally:
        require_credentials(server, float("inf"))
    assert there.verify().ok


def test_no_credentials(rows_population, s3, monkeypatch, tmp_path):
    copied(rows_population, s3)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    forget_connections()
    with pytest.raises(PopulationError, match="credentials"):
        Population.open(s3)


def test_no_server(rows_population, s3, monkeypatch):
    there = copied(rows_population, s3)
    before = pickle.dumps(there)
    sign_on(monkeypatch, "http://127.0.0.1:9")  # nothing listens there
    there = pickle.loads(before)
    for attempt in (
        lambda: Population.open(s3),
        lambda: there.read(0),
        lambda: copying.copy_population(there.path, s3),
    ):
        with pytest.raises(PopulationError, match="cannot be reached|onto itself"):
            attempt()
    with pytest.raises(PopulationError, match="cannot be reached: EndpointConnectionError") as caught:
        there.read(0)
    assert "AWS_ENDPOINT_URL" in caught.value.remedy


@pytest.mark.slow
def test_the_endpoint_may_come_from_fsspecs_own_variables(rows_population, s3, monkeypatch):
    copied(rows_population, s3)
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]})
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    forget_connections()
    assert Population.open(s3).verify().ok
