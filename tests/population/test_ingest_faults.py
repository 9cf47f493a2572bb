"""The fault table of ingestion: every unusable source is a named error that says what, where, and what to do."""

import json
import os
import warnings

import numpy as np
import pytest
import scipy.sparse as sp

from fedcore.errors import ConfigError, IngestError, PopulationError, PopulationNotFound
from fedcore.population import layout
from fedcore.population.ingest.ingest import ingest

from .contents import counts_of, rows_of, write_csv

LONG = ["client", "token", "count"]
GOOD = [("ann", 0, 2), ("bob", 2, 1)]


def refused(match, *args, **kwargs):
    with pytest.raises(IngestError, match=match) as caught:
        ingest(*args, **kwargs)
    assert caught.value.remedy
    return caught.value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("ann,0,-1", "the count -1 is negative"),
        ("ann,0,1.5", "the count 1.5 is not a whole number"),
        ("ann,0,NaN", "the count is nan"),
        ("ann,0,", "the count is nan"),
        ("ann,0,inf", "the count is inf"),
        ("ann,0,1e17", r"above 2\*\*53"),
        ("ann,0,many", "count is not a number: 'many'"),
        ("ann,0,1_000", "count is not a number: '1_000'"),
        ("ann,0", "2 columns instead of 3"),
        ("ann,0,1,1", "4 columns instead of 3"),
        (",0,1", "the client id is empty"),
        ("a\0b,0,1", r"a control character \(U\+0000\)"),
        ("ann,3,1", "unknown feature id 3"),
        ("ann,-1,1", "unknown feature id -1"),
        ("ann,dog,1", "unknown feature id 'dog'"),
        ("ann,1.0,1", "unknown feature id '1.0'"),
        ("ann,99999999999999999999,1", "unknown feature id '99999999999999999999'"),
        ('"ann",0,x', "count is not a number"),
    ],
)
@pytest.mark.parametrize("quoted", [False, True])
def test_bad_csv_rows_name_file_and_line(tmp_path, line, what, quoted):
    """A quoted line break anywhere sends the whole block through the careful parser: same answer, shifted lines."""
    head = '"eve\n",1,1\n' if quoted else "eve,1,1\n"
    (tmp_path / "a.csv").write_text(f"client,token,count\n{head}ann,0,1\n{line}\nbob,1,1\n")
    number = 5 if quoted else 4
    refused(rf"(?s)1 bad row:.*a\.csv, line {number}: .*{what}", tmp_path / "a.csv", tmp_path / "p", features=3)
    population = ingest(tmp_path / "a.csv", tmp_path / "p", features=3, tolerance=1)
    assert counts_of(population) == {"eve": {1: 1}, "ann": {0: 1}, "bob": {1: 1}}
    assert population.manifest.provenance.bad_rows == 1


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("ann,inf,1", "x is infinite"),
        ("ann,1,-inf", "y is infinite"),
        ("ann,one,1", "x is not a number"),
        ("ann,1", "2 columns"),
    ],
)
def test_bad_dense_csv_rows(tmp_path, line, what):
    (tmp_path / "a.csv").write_text(f"client,x,y\nann,1,2\n{line}\n")
    refused(rf"a\.csv, line 3: .*{what}", tmp_path / "a.csv", tmp_path / "p")
    assert rows_of(ingest(tmp_path / "a.csv", tmp_path / "p", tolerance=1)) == {"ann": [(1.0, 2.0)]}


def test_a_value_too_large_for_float32_is_bad(tmp_path):
    (tmp_path / "a.csv").write_text("client,x\nann,1e300\n")
    refused("x is infinite", tmp_path / "a.csv", tmp_path / "p", dtype="float32")
    assert rows_of(ingest(tmp_path / "a.csv", tmp_path / "p")) == {"ann": [(1e300,)]}


def test_many_bad_rows_are_counted_and_ten_shown(tmp_path):
    rows = [("ann", 0, -1)] * 37 + GOOD
    write_csv(tmp_path / "a.csv", LONG, rows)
    error = refused("37 bad rows", tmp_path / "a.csv", tmp_path / "p", features=3)
    assert error.message.count("a.csv, line") == 10 and "and 27 more" in error.message
    refused("37 bad rows; 36 are tolerated", tmp_path / "a.csv", tmp_path / "p", features=3, tolerance=36)
    assert counts_of(ingest(tmp_path / "a.csv", tmp_path / "p", features=3, tolerance=37)) == {
        "ann": {0: 2},
        "bob": {2: 1},
    }


def test_lines_are_counted_across_blocks(tmp_path):
    rows = [(f"client {i}", i % 3, 1) for i in range(60_000)]
    rows[50_001] = ("x", 0, -5)
    write_csv(tmp_path / "a.csv", LONG, rows)  # about 1.4 MB, read in blocks of 87 kB
    refused(r"a\.csv, line 50003: ", tmp_path / "a.csv", tmp_path / "p", features=3, memory=16 << 20)


def test_blank_lines_crlf_and_byte_order_mark(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfclient,token,count\r\nann,0,1\r\n\r\nbob,1,2")
    assert counts_of(ingest(tmp_path / "a.csv", tmp_path / "p", features=2)) == {"ann": {0: 1}, "bob": {1: 2}}


def test_tabs(tmp_path):
    (tmp_path / "a.tsv").write_text("client\ttoken\nann, bob\t1\n")
    assert counts_of(ingest(tmp_path / "a.tsv", tmp_path / "p", features=2)) == {"ann, bob": {1: 1}}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (b"client,token,count\n", "holds no client"),
        (b"client,token,count\nan\xffn,0,1\n", "line 2: not UTF-8"),
        (b'client,token,count\n"ann,0,1\n', "line 2: "),
        (b"client,client,count\nann,0,1\n", "names a column twice"),
        (b"user,token,count\nann,0,1\n", "no column 'client'"),
    ],
)
def test_unusable_csv_files(tmp_path, content, what):
    (tmp_path / "a.csv").write_bytes(content)
    refused(what, tmp_path / "a.csv", tmp_path / "p", features=3)
    assert not (tmp_path / "p").exists()


def test_missing_columns_are_listed(tmp_path):
    write_csv(tmp_path / "a.csv", ["who", "what"], [(1, 2)])
    error = refused("no column 'token'", tmp_path / "a.csv", tmp_path / "p", client="who", kind="counts", features=3)
    assert "who, what" in error.remedy
    refused("no column 'n'", tmp_path / "a.csv", tmp_path / "p", client="who", token="what", count="n", features=3)
    refused("no feature column", write_csv(tmp_path / "b.csv", ["client"], [(1,)]), tmp_path / "p")


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_columns_that_are_no_numbers_are_listed_with_the_others(tmp_path, form):
    rows = [(f"c{number}", f"Ann {number}", number, "Rome", 0.5) for number in range(60)]
    header = ["client", "name", "age", "city", "height"]
    file = tmp_path / f"a.{form}"
    if form == "csv":
        write_csv(file, header, rows)
        error = refused("60 bad rows:", file, tmp_path / "p")
        assert "a.csv, line 2: name is not a number: 'Ann 0'" in error.message
        assert "Not numbers: the columns name (60 rows), city (60 rows)." in error.message
    else:
        parquet_file(file, **{name: list(column) for name, column in zip(header, zip(*rows, strict=True), strict=True)})
        error = refused(r"the columns name \(string\), city \(string\) hold no numbers", file, tmp_path / "p")
    assert "--columns age,height." in error.remedy
    population = ingest(file, tmp_path / "p", columns=["age", "height"])
    assert rows_of(population)["c7"] == [(7.0, 0.5)]


def test_a_few_words_among_numbers(tmp_path):
    file = write_csv(tmp_path / "a.csv", ["client", "x", "y"], [("a", 1, 2), ("b", "many", 2), ("c", 1, "two")])
    error = refused("2 bad rows", file, tmp_path / "p")
    assert "Not numbers: the columns x (1 row), y (1 row)." in error.message
    assert "columns that hold numbers" in error.remedy and "Correct them" in error.remedy
    assert rows_of(ingest(file, tmp_path / "p", tolerance=2)) == {"a": [(1.0, 2.0)]}
    many = ["client", *(f"c{number}" for number in range(50))]
    wide = write_csv(tmp_path / "w.csv", many, [("a", *["word"] * 40, *[1] * 10)])
    error = refused("1 bad row", wide, tmp_path / "q")
    assert "and 10 more." in error.message and "--columns c40,c41," in error.remedy


def test_columns_that_cannot_be_chosen(tmp_path):
    file = write_csv(tmp_path / "a.csv", ["client", "token", "x"], [("a", 0, 1)])
    assert rows_of(ingest(file, tmp_path / "p", columns=["x"])) == {"a": [(1.0,)]}, "which are dense rows, then"
    refused("chosen of dense rows", file, tmp_path / "q", columns=["x"], kind="counts", features=3)
    refused("'x' is named twice", file, tmp_path / "q", columns=["x", "x"])
    refused("named as that of the client and as another", file, tmp_path / "q", columns=["x", "client"])
    refused("no column 'z'", file, tmp_path / "q", columns=["x", "z"])


def test_wrong_settings(tmp_path):
    file = write_csv(tmp_path / "a.csv", LONG, GOOD)
    refused("need a vocabulary", file, tmp_path / "p")
    refused("nothing to ingest", tmp_path / "b.csv", tmp_path / "p")
    refused("nothing to ingest", str(tmp_path / "*.parquet"), tmp_path / "p")
    refused("cannot be read", file, tmp_path / "p", vocabulary=tmp_path / "none.txt")
    refused("is empty", file, tmp_path / "p", vocabulary=[])
    refused("'a' twice", file, tmp_path / "p", vocabulary=["a", "b", "a"])
    wrong = {"format": "xml", "memory": 1000, "tolerance": -1, "clients_per_leaf": 0, "frame_stride": 0}
    wrong |= {"kind": "graphs", "tokeniser": "letters", "halves": "post", "period": "fortnight", "colour": "red"}
    for name, value in wrong.items():
        with pytest.raises(ConfigError, match=f"option '{name}'"):
            ingest(file, tmp_path / "p", features=3, **{name: value})
    (tmp_path / "odd.xyz").write_text("x")
    refused("not clear", tmp_path / "odd.xyz", tmp_path / "p")
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe")
    refused("not UTF-8", file, tmp_path / "p", vocabulary=tmp_path / "bad.txt")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(tmp_path):
    file = write_csv(tmp_path / "a.csv", LONG, GOOD)
    file.chmod(0)
    refused("cannot be read", file, tmp_path / "p", features=3)


def test_counts_that_overflow(tmp_path):
    rows = [("ann", 0, 2**52), ("ann", 1, 2**52), ("ann", 2, 2**52), ("bob", 0, 1)]
    error = refused("'ann' add up to more", write_csv(tmp_path / "a.csv", LONG, rows), tmp_path / "p", features=3)
    assert "2**53" in error.message
    rows = [("huge", 0, 2**52)] * 3 + [("huge", 0, 0)] * 100_000
    refused("'huge' add up", write_csv(tmp_path / "b.csv", LONG, rows), tmp_path / "p", features=3, memory=16 << 20)


# ---- Parquet


def parquet_file(file, **columns):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    parquet.write_table(pa.table(columns), file)
    return file


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"client": ["a", None], "token": [0, 1], "count": [1, 1]}, "row 1: the client id is missing"),
        ({"client": ["a", ""], "token": [0, 1], "count": [1, 1]}, "row 1: the client id is empty"),
        ({"client": ["a", "b"], "token": [0, None], "count": [1, 1]}, "row 1: the token is missing or empty"),
        ({"client": ["a", "b"], "token": [0, 9], "count": [1, 1]}, "row 1: unknown feature id 9"),
        ({"client": ["a", "b"], "token": [0, 1], "count": [1, None]}, "row 1: the count is nan"),
        ({"client": ["a", "b"], "token": [0, 1], "count": [1.0, 0.5]}, "row 1: the count 0.5 is not"),
        ({"client": ["a", "b"], "token": [0, 1], "count": [-1, 1]}, "row 0: the count -1 is negative"),
    ],
)
def test_bad_parquet_rows(tmp_path, columns, what):
    file = parquet_file(tmp_path / "a.parquet", **columns)
    refused(rf"a\.parquet, {what}", file, tmp_path / "p", features=3)
    assert len(counts_of(ingest(file, tmp_path / "p", features=3, tolerance=1))) == 1


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"client": [1.5], "token": [0]}, "column 'client' is of type double"),
        ({"client": ["a"], "token": ["x"]}, "column 'token' is of type string"),
        ({"client": ["a"], "token": [0], "count": ["x"]}, "column 'count' is of type string"),
        ({"client": ["a"], "word": [0]}, "no column 'token'"),
    ],
)
def test_wrong_parquet_types(tmp_path, columns, what):
    file = parquet_file(tmp_path / "a.parquet", **columns)
    refused(what, file, tmp_path / "p", features=3, kind="counts")


@pytest.mark.parametrize("kind", ["counts", "words"])
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("token, count, what", [("", 2, "the token is missing or empty"), ("y", 1e300, "above 2")])
def test_an_empty_token_and_a_huge_count_are_bad_rows(tmp_path, form, kind, token, count, what):
    columns = {"client": ["a", "a", "b"], "token": ["x", token, "y"], "count": [1.0, count, 3.0]}
    file = tmp_path / f"a.{form}"
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if form == "parquet":
        parquet_file(file, **columns)
    elif form == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        write_csv(file, [*columns], zip(*columns.values(), strict=True))
    options = {"kind": kind} | ({"vocabulary": ["x", "y"]} if kind == "counts" else {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refused(rf"(?s)1 bad row:.*{what}", file, tmp_path / "p", **options)
        made = ingest(file, tmp_path / "p", tolerance=1, **options)
    assert (made.n_rows, made.manifest.provenance.bad_rows, made.manifest.provenance.dropped_tokens) == (4, 1, 0)


def test_damaged_parquet(tmp_path):
    file = parquet_file(tmp_path / "a.parquet", client=["a"] * 1000, token=list(range(1000)))
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    refused("cannot be read as a Parquet", file, tmp_path / "p", features=1000)
    file.write_bytes(whole[:4] + b"\xff" * 800 + whole[804:])
    refused("truncated or damaged", file, tmp_path / "p", features=1000)


# ---- arrays

MATRIX = sp.csr_matrix(np.array([[1, 0, 2], [0, 3, 0]]))


def csr_parts(**changes):
    parts = {"data": MATRIX.data, "indices": MATRIX.indices, "indptr": MATRIX.indptr, "shape": np.array([2, 3])}
    return {name: part for name, part in {**parts, **changes}.items() if part is not None}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"data": np.array([1.0, np.nan, 1.0])}, "row 0: the count is nan"),
        ({"data": np.array([1, 1, -3])}, "row 1: the count -3 is negative"),
        ({"data": np.array([1, 1, 0.25])}, "row 1: the count 0.25"),
        ({"indices": np.array([0, 2, 3])}, "row 1: unknown feature id 3"),
        ({"indices": np.array([0, -1, 1])}, "row 0: unknown feature id -1"),
    ],
)
def test_bad_matrix_rows(tmp_path, changes, what):
    np.savez(tmp_path / "m.npz", **csr_parts(**changes))
    refused(f"m.npz, {what}", tmp_path / "m.npz", tmp_path / "p")
    assert len(counts_of(ingest(tmp_path / "m.npz", tmp_path / "p", tolerance=1))) == 1


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"indptr": np.array([0, 2])}, "do not fit together"),
        ({"indptr": np.array([0, 3, 2])}, "goes back"),
        ({"indptr": np.array([0, 2, 9])}, "past the end"),
        ({"indptr": np.array([0, 1, 2])}, "does not end"),
        ({"indptr": np.array([1, 2, 3])}, "does not start at 0"),
        ({"indices": np.array([0, 1])}, "do not fit together"),
        ({"indices": np.array([0.0, 1.0, 2.0])}, "not numbers"),
        ({"data": np.array(["1", "2", "3"])}, "not numbers"),
        ({"data": None}, "no array 'data'"),
        ({"shape": np.array([2])}, "shape of the matrix"),
        ({"format": np.array(b"csc")}, "'csc' matrix"),
        ({"data": np.array([1, "x", None], object)}, "Python objects"),
        ({"vocab": np.array([1, 2, 3])}, "not a vector of text"),
        ({"vocab": np.array(["a"])}, "1 tokens for 3"),
    ],
)
def test_unusable_matrices(tmp_path, changes, what):
    np.savez(tmp_path / "m.npz", **csr_parts(**changes))
    with pytest.raises(PopulationError, match=what):
        ingest(tmp_path / "m.npz", tmp_path / "p")
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        ({"x": np.zeros((2, 3))}, "no array 'client'"),
        ({"client": np.zeros(2, int)}, "no array 'x'"),
        ({"x": np.zeros((2, 3)), "client": np.zeros(3, int)}, "not one client id for each of 2 rows"),
        ({"x": np.zeros((2, 3)), "client": np.zeros((2, 1), int)}, "not one client id"),
        ({"x": np.zeros((2, 3)), "client": np.zeros(2)}, "not one client id"),
        ({"x": np.zeros(2), "client": np.zeros(2, int)}, "not rows of numbers"),
        ({"x": np.full((2, 3), "a"), "client": np.zeros(2, int)}, "not rows of numbers"),
        ({"x": np.zeros((2, 0)), "client": np.zeros(2, int)}, "no column"),
        ({"x": np.asfortranarray(np.zeros((2, 3))), "client": np.zeros(2, int)}, "column by column"),
        ({"x": np.array([[1, "a"]], object), "client": np.zeros(1, int)}, "Python objects"),
        ({"x": np.zeros((0, 3)), "client": np.zeros(0, int)}, "holds no client"),
        ({"x": np.array([[np.inf, 1]]), "client": np.array(["a"])}, "row 0: column 0 is infinite"),
        ({"x": np.array([[1.0, 1]]), "client": np.array([""])}, "row 0: the client id is empty"),
    ],
)
def test_unusable_dense_arrays(tmp_path, arrays, what):
    np.savez(tmp_path / "a.npz", **arrays)
    refused(what, tmp_path / "a.npz", tmp_path / "p")


def test_damaged_npz(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones((500, 3)), client=np.arange(500))
    whole = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(whole[:1000])
    refused("cannot be read as an NPZ", tmp_path / "a.npz", tmp_path / "p")
    (tmp_path / "a.npz").write_bytes(whole[:3000] + b"\0" * 8 + whole[3008:])
    refused("truncated or damaged", tmp_path / "a.npz", tmp_path / "p")
    np.save(tmp_path / "x.npy", np.ones((500, 3)))
    np.save(tmp_path / "ids.npy", np.arange(500))
    os.truncate(tmp_path / "x.npy", 4000)
    refused("truncated or damaged", tmp_path / "x.npy", tmp_path / "p", client="ids.npy")
    refused("need client ids", tmp_path / "x.npy", tmp_path / "p")


def test_two_files_that_do_not_go_together(tmp_path):
    sp.save_npz(tmp_path / "a.npz", MATRIX)
    sp.save_npz(tmp_path / "b.npz", MATRIX[:, :2])
    refused("2 columns, the files before 3", [tmp_path / "a.npz", tmp_path / "b.npz"], tmp_path / "p")
    (tmp_path / "other").mkdir()
    sp.save_npz(tmp_path / "other/a.npz", MATRIX)
    refused("the same ids", [tmp_path / "a.npz", tmp_path / "other/a.npz"], tmp_path / "p")


# ---- text


def test_unusable_text(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    refused("holds no file", folder, tmp_path / "p", vocabulary=["a"])
    (folder / "x").write_text("a b")
    refused("public vocabulary", folder, tmp_path / "p")
    refused("a file or a folder", folder, tmp_path / "p", vocabulary=["a"], client="author")
    refused("next to the clients' folders", folder, tmp_path / "p", vocabulary=["a"], client="folder")
    (folder / "y").write_bytes(b"a\xff")
    refused("y is not UTF-8", folder, tmp_path / "p", vocabulary=["a"])


# ---- appending


def test_append_to_nothing_or_to_unlike(tmp_path):
    file = write_csv(tmp_path / "a.csv", LONG, GOOD)
    with pytest.raises(PopulationNotFound):
        ingest(file, tmp_path / "p", features=3, append=True)
    ingest(file, tmp_path / "p", features=3, clients_per_leaf=2)
    dense = write_csv(tmp_path / "d.csv", ["client", "x"], [("a", 1)])
    refused("no column 'token'", dense, tmp_path / "p", append=True)
    refused("another number of features", file, tmp_path / "p", append=True, features=4)
    refused("another vocabulary", file, tmp_path / "p", append=True, vocabulary=["a", "b", "c"])
    refused("another leaf size", file, tmp_path / "p", append=True, clients_per_leaf=4)
    refused("another ledger", file, tmp_path / "p", append=True, ledger={"id": "x", "url": "y"})
    refused("not public for evaluation", file, tmp_path / "p", append=True, public_for_evaluation="now it is")
    sp.save_npz(tmp_path / "m.npz", MATRIX)
    ingest(tmp_path / "m.npz", tmp_path / "q")
    refused("Rows of m.npz are in", tmp_path / "m.npz", tmp_path / "q", append=True)
    with pytest.raises(PopulationError, match="already"):
        ingest(file, tmp_path / "p", features=3)


def test_append_keeps_the_vocabulary(tmp_path):
    file = write_csv(tmp_path / "a.csv", ["client", "token"], [("ann", "dog")])
    ingest(file, tmp_path / "p", vocabulary=["cat", "dog"])
    assert counts_of(ingest(file, tmp_path / "p", append=True)) == {"ann": {1: 2}}
    refused("another vocabulary", file, tmp_path / "p", append=True, vocabulary=["dog", "cat"])
    parts = csr_parts(shape=np.array([2, 3]), vocab=np.array(["x", "y", "z"]))
    np.savez(tmp_path / "m.npz", **parts)
    with pytest.raises(IngestError):
        ingest(tmp_path / "m.npz", tmp_path / "p", append=True)


@pytest.mark.parametrize("append", [False, True])
def test_a_disk_that_takes_no_folder_to_sort_in(tmp_path, refuse, append):
    write_csv(tmp_path / "a.csv", LONG, GOOD)
    if append:
        ingest(tmp_path / "a.csv", tmp_path / "p", features=3)
    refuse("mkdir", tmp_path / "p" / layout.SPILL)
    with pytest.raises(PopulationError, match="Input/output error"):
        ingest(tmp_path / "a.csv", tmp_path / "p", features=3, append=append)
    assert ingest(tmp_path / "a.csv", tmp_path / "p", features=3, append=append).verify().ok
