"""Ingestion: hand-worked goldens for every format, and laws: order, cuts, memory and block size change nothing."""

import collections

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcore.errors import ConfigError, IngestError, PopulationNotFound
from fedcore.operations.declared import DeclaredPopulation
from fedcore.population import layout
from fedcore.population.describing import describe
from fedcore.population.ingest import dealing, indices, spill
from fedcore.population.ingest import ingest as ingest_module
from fedcore.population.ingest.ingest import ingest
from fedcore.population.ingest.request import IngestRequest
from fedcore.population.ingest.schema import read_schema
from fedcore.population.store import Population

from .contents import counts_of, ids_of, rows_of, write_csv

MIB = 1 << 20
TINY = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LONG = ["client", "token", "count"]


# ---- goldens


def test_long_counts_with_feature_ids(tmp_path):
    write_csv(tmp_path / "a.csv", LONG, [("ann", 0, 2), ("bob", 2, 1), ("ann", 0, 3), ("ann", 1, 1), ("cy", 1, 0)])
    population = ingest(tmp_path / "a.csv", tmp_path / "p", features=3)
    assert counts_of(population) == {"ann": {0: 5, 1: 1}, "bob": {2: 1}, "cy": {}}
    assert (population.n_clients, population.n_rows, population.features) == (3, 7, 3)
    assert population.manifest.provenance.sources == ("a.csv",) and population.manifest.nominal_clients is None
    assert population.verify().ok and not (population.path / layout.SPILL).exists()


def test_long_counts_with_a_vocabulary_and_two_files(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    write_csv(folder / "a.csv", ["user", "word"], [("1", "dog"), ("1", "cat"), ("1", "dog"), ("2", "emu")])
    write_csv(folder / "b.csv", ["note", "word", "user"], [("a\nb", "cat", "1"), ("", "cat", '3, "the" third')])
    (tmp_path / "vocab.txt").write_text("cat\ndog\n")
    population = ingest(folder, tmp_path / "p", client="user", token="word", vocabulary=tmp_path / "vocab.txt")
    assert counts_of(population) == {"1": {0: 2, 1: 2}, "2": {}, '3, "the" third': {0: 1}}
    assert population.vocabulary() == ("cat", "dog") and population.manifest.provenance.dropped_tokens == 1


def test_dense_csv(tmp_path):
    write_csv(tmp_path / "a.csv", ["x", "client", "y"], [(1, "b", 2.5), ("", "a", -1), ("NA", "b", "NaN")])
    population = ingest(tmp_path / "a.csv", tmp_path / "p")
    assert rows_of(population) == {"b": [(1.0, 2.5), (None, None)], "a": [(None, -1.0)]}
    assert population.manifest.dtype == "float64" and population.kind == "rows"


def test_heldout_files(tmp_path):
    write_csv(tmp_path / "train.csv", LONG, [("ann", 0, 2), ("bob", 1, 1)])
    write_csv(tmp_path / "test.csv", LONG, [("ann", 1, 7), ("eve", 1, 1)])
    population = ingest(tmp_path / "train.csv", tmp_path / "p", features=2, heldout=tmp_path / "test.csv")
    assert counts_of(population) == {"ann": {0: 2}, "bob": {1: 1}, "eve": {}}
    assert counts_of(population, heldout=True) == {"ann": {1: 7}, "bob": {}, "eve": {1: 1}}


@pytest.mark.parametrize("client_type", ["string", "int64", "dictionary"])
def test_parquet(tmp_path, client_type):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    clients = pa.array(["7", "8", "7", "9"])
    clients = clients.dictionary_encode() if client_type == "dictionary" else clients.cast(client_type)
    counts = pa.table({"client": clients, "token": ["b", "a", "b", "zzz"], "count": [1, 2, 3, 4]})
    parquet.write_table(counts, tmp_path / "a.parquet")
    population = ingest(tmp_path / "a.parquet", tmp_path / "p", vocabulary=["a", "b"])
    assert counts_of(population) == {"7": {1: 4}, "8": {0: 2}, "9": {}}
    assert population.manifest.provenance.dropped_tokens == 4
    rows = pa.table({"client": clients, "u": [1.0, None, 3.0, 4.0], "v": pa.array([1, 2, 3, 4], pa.int32())})
    parquet.write_table(rows, tmp_path / "b.parquet")
    population = ingest(tmp_path / "b.parquet", tmp_path / "q", dtype="float32")
    assert rows_of(population) == {"7": [(1.0, 1.0), (3.0, 3.0)], "8": [(None, 2.0)], "9": [(4.0, 4.0)]}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_dense_npz(tmp_path, save):
    x = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    save(tmp_path / "a.npz", x=x, client=np.array([5, 4, 5, 6], np.int16), y=np.zeros(4))
    population = ingest(tmp_path / "a.npz", tmp_path / "p")
    flat = [tuple(map(float, row)) for row in x.reshape(4, 6)]
    assert rows_of(population) == {"5": [flat[0], flat[2]], "4": [flat[1]], "6": [flat[3]]}
    assert population.manifest.dtype == "float32" and population.features == 6
    counts = ingest(tmp_path / "a.npz", tmp_path / "q", kind="counts")
    assert counts_of(counts)["5"] == {j: j + 12 + j for j in range(6)}


def test_npy_with_ids_in_another(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[1.5], [2.5], [np.nan]]))
    np.save(tmp_path / "who.npy", np.array(["b", "a", "b"]))
    population = ingest(tmp_path / "x.npy", tmp_path / "p", client="who.npy")
    assert rows_of(population) == {"b": [(1.5,), (None,)], "a": [(2.5,)]} and population.manifest.dtype == "float64"


MATRIX = np.array([[0, 3, 1], [0, 0, 0], [2, 0, 0], [0, 0, 9]], np.uint16)


@pytest.mark.parametrize("compressed", [False, True])
def test_scipy_matrix_keeps_row_order(tmp_path, compressed):
    sp.save_npz(tmp_path / "m.npz", sp.csr_matrix(MATRIX), compressed=compressed)
    population = ingest(tmp_path / "m.npz", tmp_path / "p", clients_per_leaf=2, clients_per_block=2)
    assert ids_of(population) == ["m.npz:0", "m.npz:1", "m.npz:2", "m.npz:3"]
    got = np.concatenate([population.read(index).csr.toarray() for index in range(2)])
    np.testing.assert_array_equal(got, MATRIX)


def prefixed(matrix, prefix):
    matrix = sp.csr_matrix(matrix)
    parts = {"data": matrix.data, "indices": matrix.indices.astype(np.uint16), "indptr": matrix.indptr}
    return {f"{prefix}_{name}": part for name, part in {**parts, "shape": np.array(matrix.shape)}.items()}


def test_prefixed_matrices_with_vocabulary(tmp_path):
    vocab = np.array(["a", "b", "it's"])
    ids = np.array(["u0", "u1", "u2", "u3"])
    np.savez_compressed(
        tmp_path / "t.npz", **prefixed(MATRIX, "train"), **prefixed(MATRIX[::-1], "test"), vocab=vocab, who=ids
    )
    population = ingest(tmp_path / "t.npz", tmp_path / "p")
    assert population.vocabulary() == ("a", "b", "it's") and ids_of(population)[2] == "t.npz:2"
    np.testing.assert_array_equal(population.read(0, heldout=True).heldout.csr.toarray(), MATRIX[::-1])
    named = ingest(tmp_path / "t.npz", tmp_path / "q", prefix="test", client="who")
    assert counts_of(named) == {"u3": {1: 3, 2: 1}, "u2": {}, "u1": {0: 2}, "u0": {2: 9}} and not named.has_heldout


def text_folder(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    return folder


def test_text(tmp_path):
    files = {
        "a/one.txt": "The cat's CAT; don't -- 'the' cats' the\n",
        "a/two.txt": "Tom_and the2the\u00e9the",
        "b.txt": "",
        ".hidden": "the the",
    }
    folder = text_folder(tmp_path / "in", files)
    vocabulary = ["the", "cat", "cat's", "cats"]
    population = ingest(folder, tmp_path / "p", vocabulary=vocabulary)
    # don't, tom, and are dropped: 3 tokens
    assert counts_of(population) == {"a/one.txt": {0: 3, 1: 1, 2: 1, 3: 1}, "a/two.txt": {0: 3}, "b.txt": {}}
    assert population.manifest.provenance.dropped_tokens == 3
    (folder / "b.txt").unlink()
    folders = ingest(folder, tmp_path / "q", vocabulary=["The", "Tom_and"], client="folder", tokeniser="identifiers")
    assert counts_of(folders) == {"a": {0: 1, 1: 1}}


def test_text_pieces_do_not_cut_tokens(tmp_path, monkeypatch):
    from fedcore.population.ingest import sources_text

    text = "alpha beta's alpha\nbeta alpha " * 5
    folder = text_folder(tmp_path / "in", {"f": text})
    for piece in (1, 2, 3, 7, 1000):
        monkeypatch.setattr(sources_text, "PIECE", piece)
        population = ingest(folder, tmp_path / f"p{piece}", vocabulary=["alpha", "beta", "beta's"])
        assert counts_of(population) == {"f": {0: 15, 1: 5, 2: 5}}


def test_provenance_names_no_path(tmp_path):
    write_csv(tmp_path / "a.csv", LONG, [("ann", 0, 2)])
    population = ingest(tmp_path / "a.csv", tmp_path / "p", features=3, heldout=str(tmp_path / "a.csv"))
    text = layout.version_file(population.path, 1).read_text()
    assert str(tmp_path) not in text


def test_describe(tmp_path):
    write_csv(tmp_path / "a.csv", LONG, [("ann", 0, 2), ("bob", 1, 1)])
    ledger = {"id": "l", "url": "sqlite:///x"}
    population = ingest(
        tmp_path / "a.csv", tmp_path / "p", features=3, ledger=ledger, nominal_clients=100, public_for_evaluation="toy"
    )
    told = describe(population)
    assert told["clients"] == 2 and told["tokens"] == 3 and told["entries"] == 2 and told["ledger"] == ledger
    assert told["nominal_clients"] == 100 and told["public_for_evaluation"] == "toy" and told["versions"] == [1]


# ---- laws

names = st.text('ab\u00e9," ', min_size=1, max_size=3).filter(str.strip)  # blanks at the ends are no part of an id
long_rows = st.lists(st.tuples(names, st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=40)
dense_rows = st.lists(st.tuples(names, st.sampled_from([0.5, -1.0, 7.25]), st.integers(0, 99)), min_size=1, max_size=40)
sizes = st.tuples(st.integers(1, 5), st.integers(1, 12))


def summed(rows):
    """The slow, obvious answer."""
    total = {}
    for client, token, count in rows:
        mine = total.setdefault(client.strip(), collections.Counter())
        mine[token] += count
    return {client: {token: count for token, count in mine.items() if count} for client, mine in total.items()}


def cut(rows, places):
    bounds = [0, *sorted(min(place, len(rows)) for place in places), len(rows)]
    return [rows[low:high] for low, high in zip(bounds[:-1], bounds[1:], strict=True)]


@pytest.mark.slow
@TINY
@given(rows=long_rows, data=st.data(), places=st.lists(st.integers(0, 40), max_size=3), size=sizes)
def test_counts_any_order_any_files_any_memory(tmp_path_factory, rows, data, places, size):
    shuffled = data.draw(st.permutations(rows))
    memory = data.draw(st.sampled_from([50, 400, 3000, 10**7]))
    folder = tmp_path_factory.mktemp("in")
    files = [write_csv(folder / f"{i}.csv", LONG, part) for i, part in enumerate(cut(shuffled, places))]
    reference = ingest(write_csv(folder / "all.csv", LONG, rows), folder / "reference", features=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingest_module, "SPILL_SHARE", 16 * MIB // memory)
        population = ingest(
            files, folder / "p", features=5, memory=16 * MIB, clients_per_leaf=size[0], clients_per_block=size[1]
        )
    assert counts_of(population) == counts_of(reference) == summed(rows)
    assert ids_of(population) == ids_of(reference)
    hashes = spill.keys_of(ids_of(population))[:, 0].tolist()
    assert hashes == sorted(hashes)


@pytest.mark.slow
@TINY
@given(rows=dense_rows, data=st.data(), places=st.lists(st.integers(0, 40), max_size=3), size=sizes)
def test_dense_rows_any_files_any_memory(tmp_path_factory, rows, data, places, size):
    memory = data.draw(st.sampled_from([50, 400, 3000, 10**7]))
    folder = tmp_path_factory.mktemp("in")
    files = [write_csv(folder / f"{i}.csv", ["client", "a", "b"], part) for i, part in enumerate(cut(rows, places))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingest_module, "SPILL_SHARE", 16 * MIB // memory)
        population = ingest(files, folder / "p", memory=16 * MIB, clients_per_leaf=size[0], clients_per_block=size[1])
    expected = {}
    for client, a, b in rows:
        expected.setdefault(client.strip(), []).append((a, float(b)))  # rows of a client keep their order
    assert rows_of(population) == expected


@pytest.mark.slow
@TINY
@given(
    rows=long_rows,
    place=st.integers(0, 40),
    size=sizes,
    memory=st.sampled_from([60, 500, 10**7]),
    heldout=st.booleans(),
)
def test_append_is_ingest_of_everything(tmp_path_factory, rows, place, size, memory, heldout):
    parts = [part for part in cut(rows, [place]) if part]
    folder = tmp_path_factory.mktemp("in")
    sized = {"clients_per_leaf": size[0], "clients_per_block": size[1]}
    with pytest.MonkeyPatch.context() as patch:
        for share in ("SPILL_SHARE", "RANGE_SHARE"):
            patch.setattr(ingest_module.appending, share, 16 * MIB // memory)
        for number, part in enumerate(parts):
            file = write_csv(folder / f"{number}.csv", LONG, part)
            test = write_csv(folder / f"test{number}.csv", LONG, part[::2]) if heldout else None
            again = {"append": True} if number else {"features": 5, **sized}
            population = ingest(file, folder / "p", heldout=test, memory=16 * MIB, **again)
    assert counts_of(population) == summed(rows)
    if heldout:
        expected = {client: {} for client in summed(rows)}
        expected.update(summed([row for part in parts for row in part[::2]]))
        assert counts_of(population, heldout=True) == expected
    assert all(block.clients % size[0] == 0 for block in population.blocks[:-1])
    first = Population.open(population.path, 1)
    assert counts_of(first) == summed(parts[0])
    assert ids_of(population)[: first.n_clients] == ids_of(first)
    assert population.id == first.id and population.version == len(parts) and population.verify().ok


@pytest.mark.slow
@TINY
@given(rows=dense_rows, place=st.integers(0, 40), size=sizes, memory=st.sampled_from([60, 500, 10**7]))
def test_append_of_dense_rows(tmp_path_factory, rows, place, size, memory):
    parts = [part for part in cut(rows, [place]) if part]
    folder = tmp_path_factory.mktemp("in")
    with pytest.MonkeyPatch.context() as patch:
        for share in ("SPILL_SHARE", "RANGE_SHARE"):
            patch.setattr(ingest_module.appending, share, 16 * MIB // memory)
        for number, part in enumerate(parts):
            file = write_csv(folder / f"{number}.csv", ["client", "a", "b"], part)
            sized = {} if number else {"clients_per_leaf": size[0], "clients_per_block": size[1]}
            test = file if number else None
            population = ingest(file, folder / "p", heldout=test, memory=16 * MIB, append=bool(number), **sized)
    expected, later = {}, {}
    for number, part in enumerate(parts):
        for client, a, b in part:
            expected.setdefault(client.strip(), []).append((a, float(b)))
            later.setdefault(client.strip(), [])
            if number:
                later[client.strip()].append((a, float(b)))
    assert rows_of(population) == expected and population.verify().ok
    if len(parts) > 1:
        assert rows_of(population, heldout=True) == later


def test_append_shares_untouched_blocks(tmp_path):
    write_csv(tmp_path / "a.csv", LONG, [(f"c{i}", i % 3, 1) for i in range(20)])
    first = ingest(tmp_path / "a.csv", tmp_path / "p", features=3, clients_per_leaf=2, clients_per_block=4)
    known = ids_of(first)[5]
    write_csv(tmp_path / "b.csv", LONG, [(known, 0, 5)])
    second = ingest(tmp_path / "b.csv", tmp_path / "p", append=True)
    old, new = [[block.slot for block in one.blocks] for one in (first, second)]
    assert [a == b for a, b in zip(old, new, strict=True)] == [True, False, True, True, True]
    assert ids_of(second) == ids_of(first) and second.n_rows == 25
    write_csv(tmp_path / "c.csv", LONG, [("new", 0, 1)])
    third = ingest(tmp_path / "c.csv", tmp_path / "p", append=True)
    assert [block.slot for block in third.blocks[:5]] == new and ids_of(third)[-1] == "new"
    write_csv(tmp_path / "d.csv", LONG, [("newer", 0, 1)])
    fourth = ingest(tmp_path / "d.csv", tmp_path / "p", append=True)
    assert [block.clients for block in fourth.blocks] == [4, 4, 4, 4, 4, 2]


def test_append_matrix_without_ids(tmp_path):
    for name in ("m", "n"):
        sp.save_npz(tmp_path / f"{name}.npz", sp.csr_matrix(MATRIX))
    ingest(tmp_path / "m.npz", tmp_path / "p", clients_per_leaf=3, clients_per_block=3)
    population = ingest(tmp_path / "n.npz", tmp_path / "p", append=True)
    assert ids_of(population) == [f"{name}.npz:{row}" for name in "mn" for row in range(4)]
    got = np.concatenate([population.read(index).csr.toarray() for index in range(len(population.blocks))])
    np.testing.assert_array_equal(got, np.concatenate([MATRIX, MATRIX]))


def test_public_is_not_inherited_by_new_data(tmp_path):
    write_csv(tmp_path / "a.csv", LONG, [("ann", 0, 2)])
    first = ingest(tmp_path / "a.csv", tmp_path / "p", features=3, public_for_evaluation="toy")
    again = ingest(tmp_path / "a.csv", first.path, append=True, public_for_evaluation="toy still")
    assert again.manifest.public_for_evaluation
    assert not ingest(tmp_path / "a.csv", first.path, append=True).manifest.public_for_evaluation


def test_one_client_larger_than_memory(tmp_path):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60_000, 40)).astype(np.float32)  # 9.6 MB, against a buffer of 1.3 MB
    who = np.where(generator.random(60_000) < 0.9, "huge", "small")
    np.savez(tmp_path / "a.npz", x=x, client=who)
    sizes = {"clients_per_leaf": 1, "clients_per_block": 2}
    population = ingest(tmp_path / "a.npz", tmp_path / "p", memory=16 * MIB, **sizes)
    ids = ids_of(population)
    block = population.read(0)
    for name in ("huge", "small"):
        place = ids.index(name)
        np.testing.assert_array_equal(block.x[block.ptr[place] : block.ptr[place + 1]], x[who == name])
    again = ingest(tmp_path / "a.npz", tmp_path / "p", memory=16 * MIB, append=True, heldout=tmp_path / "a.npz")
    block = again.read(0, heldout=True)
    place = ids.index("huge")
    twice = np.concatenate([x[who == "huge"]] * 2)
    np.testing.assert_array_equal(block.x[block.ptr[place] : block.ptr[place + 1]], twice)
    held = block.heldout
    np.testing.assert_array_equal(held.x[held.ptr[place] : held.ptr[place + 1]], x[who == "huge"])


def test_one_client_with_more_counts_than_memory(tmp_path):
    rows = [("huge", i % 7, 1) for i in range(100_000)] + [("a", 1, 1), ("b", 2, 2)]
    population = ingest(write_csv(tmp_path / "a.csv", LONG, rows), tmp_path / "p", features=7, memory=16 * MIB)
    assert counts_of(population) == summed(rows)


def test_two_ids_with_one_hash(tmp_path, monkeypatch):
    def keys_of(ids):
        keys = np.zeros((len(ids), 2), np.uint64)
        keys[:, 1] = [sum(one.encode()) for one in ids]
        return keys

    monkeypatch.setattr(dealing, "keys_of", keys_of)
    monkeypatch.setattr(ingest_module.appending, "keys_of", keys_of)
    monkeypatch.setattr(indices, "keys_of", keys_of)
    monkeypatch.setattr(ingest_module, "SPILL_SHARE", 16 * MIB // 60)
    rows = [("b", 1, 1), ("a", 0, 1), ("b", 0, 2)]
    population = ingest(write_csv(tmp_path / "a.csv", LONG, rows), tmp_path / "p", features=3, memory=16 * MIB)
    assert counts_of(population) == summed(rows) and ids_of(population) == ["a", "b"]
    assert counts_of(ingest(tmp_path / "a.csv", tmp_path / "p", append=True)) == summed(rows * 2)


@pytest.mark.parametrize("column", [0, 1])
def test_no_client_is_taken_for_another_with_half_its_key(tmp_path, column):
    spilled = spill.Spill(tmp_path / "s", spill.Layout("counts", 2, None), memory=200)
    for number in range(40):
        keys = np.zeros((1, 2), np.uint64)
        keys[0, column] = number
        for _ in range(2):  # the second time it is known
            spilled.add(keys, [f"{number:02d}"])
            spilled.add_counts(False, keys, np.array([1]), np.array([number + 1]))
    found = {}
    for clients in spilled.clients():
        found.update(zip(clients.ids, clients.train.toarray()[:, 1].tolist(), strict=True))
    assert found == {f"{number:02d}": 2 * (number + 1) for number in range(40)}


def test_nothing_remains_of_a_failed_ingest(tmp_path):
    write_csv(tmp_path / "a.csv", LONG, [("ann", 0, 2)] * 3)
    write_csv(tmp_path / "b.csv", LONG, [("ann", 0, 2), ("bob", 0, -1)])
    with pytest.raises(Exception, match="bad row"):
        ingest(tmp_path / "b.csv", tmp_path / "p", features=3)
    with pytest.raises(PopulationNotFound):
        Population.open(tmp_path / "p")
    first = ingest(tmp_path / "a.csv", tmp_path / "p", features=3)
    before = layout.files_of(first.path)
    with pytest.raises(Exception, match="bad row"):
        ingest(tmp_path / "b.csv", tmp_path / "p", append=True)
    assert layout.files_of(first.path) == before and Population.open(first.path).version == 1


@pytest.mark.slow
def test_real_text(tmp_path):
    """The blogs of FEDCORE_DATA, whole: every count, in row order."""
    import os
    from pathlib import Path

    folder = os.environ.get("FEDCORE_DATA")
    if not folder or not (Path(folder) / "text_blogs/text_blogs.npz").exists():
        pytest.skip("FEDCORE_DATA does not name a folder with text_blogs")
    file = Path(folder) / "text_blogs/text_blogs.npz"
    population = ingest(file, tmp_path / "p", public_for_evaluation="public corpus", memory=64 * MIB)
    stored = np.load(file)
    assert (population.n_clients, population.features, len(population.vocabulary())) == (10_000, 1000, 1000)
    for part, heldout in (("train", False), ("test", True)):
        blocks = [population.read(index, heldout=heldout) for index in range(len(population.blocks))]
        got = sp.vstack([(block.heldout if heldout else block).csr for block in blocks]).tocsr()
        shape = tuple(stored[f"{part}_shape"])
        whole = sp.csr_matrix(
            (stored[f"{part}_data"].astype(np.int64), stored[f"{part}_indices"], stored[f"{part}_indptr"]), shape=shape
        )
        assert abs(got - whole).nnz == 0 and got.sum() == whole.sum()


@pytest.mark.parametrize("name", ["declared_clients", "nominal_clients"])
def test_an_option_is_read_by_its_new_and_its_old_name(tmp_path, name):
    wanted = IngestRequest(declared_clients=5)
    assert IngestRequest.of({"declared_clients": 4}, {name: 5}) == IngestRequest.model_validate({name: 5}) == wanted
    (tmp_path / "t.toml").write_text(f"[table]\n{name} = 5\n[columns.a]\n")
    assert read_schema(tmp_path / "t.toml") == {"columns": ["a"], "declared_clients": 5}
    declared = DeclaredPopulation.model_validate({"path": "p", "source": "a.csv", name: 5})
    assert declared.options == {"declared_clients": 5}


def test_an_option_by_both_of_its_names_is_refused(tmp_path):
    both = {"declared_clients": 5, "nominal_clients": 5}
    for read in (IngestRequest.of, IngestRequest.model_validate):
        with pytest.raises(ConfigError, match="nominal_clients and declared_clients are the same option"):
            read(both)
    (tmp_path / "t.toml").write_text("[table]\ndeclared_clients = 5\nnominal_clients = 5\n[columns.a]\n")
    with pytest.raises(IngestError, match=r"t.toml, \[table\]: nominal_clients and declared_clients are the same"):
        read_schema(tmp_path / "t.toml")
