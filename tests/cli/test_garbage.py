"""Garbage in every file and option that somebody can hand to a command: a named error and exit code 2, at once.

Deep nesting, numbers of thousands of digits, NUL characters, archives that unpack to more than they are, and files
that are none: a FIFO would be waited for without end, a device read without end.
"""

import io
import json
import os
import socket
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from fedcore.errors import ConfigError, FedcoreError, IngestError, RunError
from fedcore.evaluation import report as fedcore_report
from fedcore.operations.deployment import read_file
from fedcore.operations.latest_runs import latest
from fedcore.population.ingest import sources_array
from fedcore.population.ingest.ingest import ingest
from fedcore.population.store import Population
from fedcore.storage.arrays import read_values, write_values
from fedcore.storage.files import place
from fedcore.storage.parsing import parse_json, parse_toml
from tests.cli.test_bad_input import PLAIN, RESUME, TRAIN, interrupted, trained
from tests.command import fedcore

DEEP = 100_000
DEEP_JSON = "[" * DEEP + "]" * DEEP
DEEP_OBJECT = '{"a":' * DEEP + "1" + "}" * DEEP
DIGITS = "9" * 5000
LONG = "9" * 400  # no limit of Python's, but no float
GARBAGE = {
    "deep": DEEP_JSON,
    "deep object": DEEP_OBJECT,
    "digits": f'{{"round": {DIGITS}}}',
    "no float": f'{{"round": {LONG}}}',
    "overflow": '{"round": 1e999}',
    "not a number": '{"round": NaN}',
    "NUL": "\0",
    "empty": "",
    "cut": '{"round": ',
    "text": '"text"',
    "not UTF-8": b"\xff\xfe{",
}


def written(path: Path, garbage: str | bytes) -> None:
    path.write_bytes(garbage if isinstance(garbage, bytes) else garbage.encode())


# --- what reads JSON and TOML -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in GARBAGE if name != "text"])
def test_json_that_is_none_is_a_value_error(name):
    with pytest.raises(ValueError):
        parse_json(GARBAGE[name])


@pytest.mark.parametrize(
    "text",
    [
        f"a = {DEEP_JSON}",
        f"a = {DIGITS}",
        f"b = [{{c = {10**26}}}]",
        f"a = {-(2**63) - 1}",
        f"a = {LONG}",
        ".".join("a" * 500) + " = 1",
        "a = \0",
    ],
)
def test_toml_that_is_none_is_a_value_error(text):
    with pytest.raises(ValueError):
        parse_toml(text)


def test_what_is_written_is_read():
    value = {"a": [1, -2.5, "x" * 400, "9" * 400, True, None, 10**300], "b": {"c": [[[]]]}}
    assert parse_json(json.dumps(value)) == value
    assert parse_toml("a = 1\n[b]\nc = [[[]]]\n") == {"a": 1, "b": {"c": [[[]]]}}


def some(names, quick=("deep", "digits")) -> list:
    """The quick ones are tried with every change."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


RUN_FILES = ["run.json", "head.json", "metrics.jsonl", "statement.json", "evaluation.json", "plan.json"]
SHOWS = [line.split() for line in ("runs show runs/r", "report runs/r", "runs list", RESUME, "runs abandon runs/r")]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """By name: a folder with a finished run, or with one that was interrupted, of a population and a ledger."""
    made = {}
    for name, make in (("trained", trained), ("interrupted", interrupted)):
        folder = tmp_path_factory.mktemp(name)
        with pytest.MonkeyPatch.context() as patched:
            patched.chdir(folder)
            patched.setenv("FEDCORE_LEDGER", f"sqlite:///{folder / 'ledger.sqlite'}")
            make(folder)
        made[name] = folder
    return made


@pytest.fixture
def inside(places, monkeypatch):
    """inside(name): this process is in that place, whose files a test puts back."""

    def enter(name: str) -> Path:
        folder = places[name]
        monkeypatch.chdir(folder)
        monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{folder / 'ledger.sqlite'}")
        return folder

    return enter


def refused(*arguments) -> str:
    """What a command that must not end in a traceback said; it is refused."""
    outcome = fedcore(*arguments)
    assert outcome.code == 2 and "Traceback" not in outcome.err, arguments
    return outcome.err


@pytest.mark.parametrize("garbage", some(GARBAGE))
@pytest.mark.parametrize("name", some(RUN_FILES, ("run.json", "head.json", "statement.json")))
def test_garbage_in_the_files_of_a_run(inside, monkeypatch, name, garbage):
    """Every command that looks at it says so, or does not need it."""
    monkeypatch.setattr(fedcore_report, "run_figures", lambda *_: {})
    path = inside("trained") / "runs" / "r" / name
    before = path.read_bytes() if path.exists() else None
    try:
        written(path, GARBAGE[garbage])
        for command in SHOWS:
            assert fedcore(*command).code in (0, 2), command
    finally:
        path.unlink() if before is None else path.write_bytes(before)


@pytest.mark.parametrize("garbage", some([*GARBAGE, "list"]))
def test_garbage_that_says_which_run_is_the_latest(inside, garbage):
    folder = inside("trained")
    path = folder / "runs" / "latest-nightly.json"
    try:
        written(path, GARBAGE.get(garbage, "[]"))
        with pytest.raises(RunError):
            latest(folder / "runs", "nightly")
        assert "RunError" in refused("runs", "latest")
        assert "RunError" in refused("report", path)
    finally:
        path.unlink()


@pytest.mark.parametrize("garbage", some(GARBAGE))
@pytest.mark.parametrize("name", ["ledger-head.json", "versions/000001.json"])
def test_garbage_beside_a_population(inside, name, garbage):
    folder = inside("interrupted")
    path = folder / "p" / name
    before = path.read_bytes()
    try:
        written(path, GARBAGE[garbage])
        for command in (("budget", "show", "p"), TRAIN.split(), RESUME.split(), ("population", "describe", "p")):
            if name != "ledger-head.json" or command[0] != "population":
                refused(*command)
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("garbage", some([name for name in GARBAGE if name != "empty"]))
def test_garbage_as_a_plan_or_a_setting(inside, tmp_path, garbage):
    inside("trained")
    written(tmp_path / "garbage", GARBAGE[garbage])
    assert "RunError" in refused("report", "runs/r", "--plan", tmp_path / "garbage")
    assert "ConfigError" in refused(*TRAIN.split(), "--config", tmp_path / "garbage")
    assert "ConfigError" in refused("serve", tmp_path / "garbage")


@pytest.mark.parametrize("value", [DEEP_JSON, DIGITS, LONG, "{a=" * 500 + "1" + "}" * 500])
def test_garbage_as_the_value_of_a_setting(inside, value):
    inside("trained")
    for command in (
        (*TRAIN.split(), "--set"),
        ("population", "ingest", "x", "y", "--option"),
        ("plan", "histograms", "p", "--set"),
    ):
        told = refused(*command, f"rounds={value}")
        assert "ConfigError" in told and len(told) < 2000


NAMES = {"NUL": ("a\0b", "NUL"), "long": ("x" * 5000, "5000 bytes")}
NAMING = [
    ("train", "histograms", "HERE", "--local"),
    ("train", "histograms", "p", "--local", "--runs", "HERE"),
    ("resume", "HERE", "--local"),
    ("population", "describe", "HERE"),
    ("population", "verify", "HERE"),
    ("runs", "list", "--runs", "HERE"),
    ("runs", "show", "HERE"),
    ("predict", "runs/r", "HERE", "o"),
    ("predict", "runs/r", "p", "HERE"),
    ("evaluate", "runs/r", "HERE", "--local"),
    ("plan", "histograms", "HERE"),
    ("budget", "show", "HERE"),
]
NAMING_OTHERS = [
    ("population", "ingest", "HERE", "q"),
    ("serve", "HERE"),
    ("train", "histograms", "p", "--config", "HERE"),
    ("train", "histograms", "p", "--ledger", "HERE"),
    ("runs", "latest", "--deployment", "HERE"),
    ("report", "runs/r", "--plan", "HERE"),
]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_no_file_can_have(inside, name):
    inside("trained")
    text, words = NAMES[name]
    for command in NAMING:
        assert words in refused(*(text if part == "HERE" else part for part in command)), command
    for command in NAMING_OTHERS:
        refused(*(text if part == "HERE" else part for part in command))


def test_nul_characters_in_files_and_values(inside, tmp_path):
    inside("trained")
    for location in ("a\0b", Path("a\0b"), "s3://bucket/a\0b", "file:///a\0b"):
        with pytest.raises(ConfigError, match="NUL"):
            place(location)
    (tmp_path / "d.toml").write_text(
        '[[deployment]]\nname = "a"\nmethod = "paper_histograms"\npopulation = "p\\u0000"\n'
    )
    (entry,) = read_file(tmp_path / "d.toml").deployment
    with pytest.raises(ConfigError, match="NUL"):
        Population.open(entry.population)
    (tmp_path / "a.csv").write_text("client,token\nann,x\n")
    for source in ("a\0.csv", [tmp_path / "a.csv", "b\0.csv"]):
        with pytest.raises(FedcoreError, match="NUL"):
            ingest(source, tmp_path / "q")
    with pytest.raises(FedcoreError, match="NUL"):
        ingest(tmp_path / "a.csv", tmp_path / "q", vocabulary="words\0")
    with pytest.raises(FedcoreError, match="NUL"):
        ingest(tmp_path / "a.csv", tmp_path / "q\0", features=3)


# --- archives that unpack to more than they are -----------------------------------------------------------------------

SMALL_FILE, LARGE = 8 << 20, 3 << 30


def bomb(path: Path, name: str, head: bytes, size: int, *others: tuple[str, bytes]) -> None:
    """A small archive with an entry that declares a head and `size` bytes of zeros, of which it has 128 MiB."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for other, content in others:
            archive.writestr(other, content)
        with archive.open(name, "w", force_zip64=True) as entry:
            entry.write(head)
            for _ in range(32):
                entry.write(bytes(4 << 20))
    grow(path, name, len(head) + size)


def grow(path: Path, name: str, size: int) -> None:
    """Declare another size of an entry than the 128 MiB that it has: it is refused by what it declares."""
    content = bytearray(path.read_bytes())
    for signature, at in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        start = content.rindex(signature, 0, content.rindex(name.encode()))
        if struct.unpack_from("<I", content, start + at)[0] != 0xFFFFFFFF:
            struct.pack_into("<I", content, start + at, size)
    path.write_bytes(content)


def npy_head(shape: tuple, dtype: str) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def npy(array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def test_a_state_that_unpacks_to_more_than_it_is(tmp_path):
    good = tmp_path / "good.zip"
    write_values(good, {"a": np.zeros(1000)})
    with zipfile.ZipFile(good) as archive, zipfile.ZipFile(tmp_path / "bad.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for entry in archive.infolist():
            packed.writestr(entry.filename, archive.read(entry))
    with pytest.raises(RunError, match="unpack"):
        read_values(tmp_path / "bad.zip")
    bomb(tmp_path / "bomb.zip", "a/c/0", b"", LARGE, ("zarr.json", b"{}"))
    with pytest.raises(RunError, match="unpack"):
        read_values(tmp_path / "bomb.zip")


def test_a_description_deep_inside_a_state(tmp_path):
    with zipfile.ZipFile(tmp_path / "deep.zip", "w") as archive:
        archive.writestr("zarr.json", DEEP_JSON)
    with pytest.raises(RunError, match="deep.zip"):
        read_values(tmp_path / "deep.zip")


@pytest.mark.parametrize("shape", [(2**40,), (2**62, 2**62), (10**30,), (-1, -8), (3,)])
def test_a_start_that_declares_more_than_it_holds(inside, tmp_path, shape):
    inside("trained")
    with zipfile.ZipFile(tmp_path / "start.npz", "w") as archive:
        archive.writestr("clusters.npy", npy_head(shape, "f8") + bytes(8))
    told = refused(*PLAIN.split(), "--run-id", "s", "--start-from", tmp_path / "start.npz")
    assert "ConfigError" in told and "start.npz" in told


def test_a_start_that_unpacks_to_gigabytes(inside, tmp_path):
    inside("trained")
    bomb(tmp_path / "start.npz", "clusters.npy", npy_head((LARGE // 8,), "f8"), LARGE)
    told = refused(*PLAIN.split(), "--run-id", "s", "--start-from", tmp_path / "start.npz")
    assert "ConfigError" in told and "start.npz" in told


@pytest.mark.parametrize("shape", [(2**40, 3), (2**62, 2**62), (10**30, 1), (-1, -8)])
def test_arrays_that_declare_more_than_they_hold(tmp_path, shape):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy_head(shape, "f8") + bytes(64))
        archive.writestr("client.npy", npy(np.array(["ann"])))
    with pytest.raises(IngestError, match="declares"):
        ingest(tmp_path / "a.npz", tmp_path / "p")
    (tmp_path / "x.npy").write_bytes(npy_head(shape, "f8") + bytes(64))
    np.save(tmp_path / "ids.npy", np.array(["ann"]))
    with pytest.raises(IngestError, match="declares"):
        ingest(tmp_path / "x.npy", tmp_path / "p", client="ids.npy")


@pytest.mark.parametrize("what", ["vocab", "shape", "row", "ids"])
def test_sparse_matrices_that_unpack_to_gigabytes(tmp_path, what):
    """What has to be held whole is refused by its declared size."""
    parts = {
        "data": npy(np.ones(1)),
        "indices": npy(np.zeros(1, np.int32)),
        "indptr": npy(np.array([0, 1])),
        "shape": npy(np.array([1, 3])),
        "format": npy(np.array("csr")),
    }
    large = {
        "vocab": ("vocab", npy_head((LARGE // 32,), "U8"), LARGE),
        "shape": ("shape", npy_head((LARGE // 8,), "i8"), LARGE),
        "row": ("data", npy_head((LARGE // 4,), "i4"), LARGE),
        "ids": ("client", npy_head((1,), "U400000000"), 1_600_000_000),
    }
    name, head, size = large[what]
    if what == "row":
        parts["indices"] = npy(np.zeros(0, np.int32))
        parts["indptr"] = npy(np.array([0, LARGE // 4]))
    others = [(f"{part}.npy", content) for part, content in parts.items() if part != name]
    bomb(tmp_path / "a.npz", f"{name}.npy", head, size, *others)
    assert (tmp_path / "a.npz").stat().st_size < SMALL_FILE
    with pytest.raises(IngestError) as caught:
        ingest(tmp_path / "a.npz", tmp_path / "p", **({"client": "client"} if what == "ids" else {}))
    assert "a.npz" in caught.value.message and caught.value.remedy


def test_a_row_that_does_not_fit_into_memory(tmp_path, monkeypatch):
    sp.save_npz(tmp_path / "a.npz", sp.csr_matrix(np.ones((2, 1000))))
    monkeypatch.setattr(sources_array, "LARGEST_WHOLE", 7000)
    with pytest.raises(IngestError, match="bytes are more than 7000"):
        ingest(tmp_path / "a.npz", tmp_path / "p", memory=16 << 20)


# --- files that are none ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Odd:
    """make: makes the file; named: how the error calls it."""

    make: object
    named: str


def a_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


ODD = {
    "fifo": Odd(os.mkfifo, "FIFO"),
    "socket": Odd(a_socket, "socket"),
    "device": Odd(lambda path: path.symlink_to("/dev/zero"), "device"),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.npz", "a.npy"])
def test_a_source_that_is_no_regular_file(tmp_path, odd, name):
    ODD[odd].make(tmp_path / name)
    client = {"client": "ids.npy"} if name == "a.npy" else {}
    with pytest.raises(IngestError, match=f"{name} is a {ODD[odd].named}"):
        ingest(tmp_path / name, tmp_path / "p", **client)


@pytest.mark.parametrize("odd", ODD)
def test_files_inside_folders_and_beside_sources(tmp_path, odd):
    (tmp_path / "words").write_text("the\ncat\n")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "good.txt").write_text("the cat")
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "good.csv").write_text("client,token,count\nann,0,1\n")
    np.save(tmp_path / "x.npy", np.ones((1, 3)))
    for name in ("texts/odd.txt", "tables/odd.csv", "odd", "ids.npy"):
        ODD[odd].make(tmp_path / name)
    wrong = f"is a {ODD[odd].named}"
    for source, options in (
        ("texts", {"vocabulary": tmp_path / "words"}),
        ("tables", {"features": 3}),
        ("tables/good.csv", {"vocabulary": tmp_path / "odd"}),
        ("tables/good.csv", {"features": 3, "heldout": tmp_path / "tables" / "odd.csv"}),
        ("x.npy", {"client": "ids.npy"}),
    ):
        with pytest.raises(IngestError, match=wrong):
            ingest(tmp_path / source, tmp_path / "p", **options)


def test_dev_zero_is_no_vocabulary_and_no_settings(inside, tmp_path):
    inside("trained")
    (tmp_path / "a.csv").write_text("client,token\nann,x\n")
    assert "device" in refused("population", "ingest", tmp_path / "a.csv", tmp_path / "q", "--vocabulary", "/dev/zero")
    assert "ConfigError" in refused(*TRAIN.split(), "--config", "/dev/zero")
    assert "ConfigError" in refused("serve", "/dev/zero")
    (tmp_path / "start.npz").symlink_to("/dev/zero")
    start = (*PLAIN.split(), "--start-from", tmp_path / "start.npz")
    for command in (("report", "runs/r", "--plan", "/dev/zero"), start):
        assert "regular file" in refused(*command)


def test_standard_input_is_judged_by_what_it_is(tmp_path, monkeypatch):
    """A file that is redirected can be read twice; what comes through a pipe cannot."""
    (tmp_path / "a.csv").write_text("client,token,count\nann,0,1\n")
    reading, writing = os.pipe()
    with pytest.raises(IngestError, match="is a FIFO"):
        ingest(f"/proc/self/fd/{reading}", tmp_path / "p", format="csv", features=3)
    with open(tmp_path / "a.csv") as redirected:
        made = ingest(f"/proc/self/fd/{redirected.fileno()}", tmp_path / "p", format="csv", features=3)
    assert made.n_clients == 1
    os.close(reading), os.close(writing)


# --- sources that say nothing ---------------------------------------------------------------------------------------


def test_tokens_that_are_all_unknown(tmp_path):
    (tmp_path / "words.txt").write_text("the\ncat\n")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("Ein Hund")
    (tmp_path / "a.csv").write_text("client,token\nann,Hund\nbob,ein\n")
    for source in ("texts", "a.csv"):
        with pytest.raises(IngestError, match="words.txt") as caught:
            ingest(tmp_path / source, tmp_path / "p", vocabulary=tmp_path / "words.txt")
        assert "und'" in caught.value.message and "2 tokens" in caught.value.message and caught.value.remedy
        assert not (tmp_path / "p" / "versions").exists() or not list((tmp_path / "p" / "versions").glob("*.json"))
    (tmp_path / "texts" / "b.txt").write_text("the Hund")
    made = ingest(tmp_path / "texts", tmp_path / "p", vocabulary=tmp_path / "words.txt")
    assert made.manifest.provenance.dropped_tokens == 3
    (tmp_path / "texts" / "b.txt").unlink()
    with pytest.raises(IngestError, match="of the population"):
        ingest(tmp_path / "texts", tmp_path / "p", append=True)


WRONG_OPTIONS = [
    ("npz", {"columns": ["x"]}, "array"),
    ("npz", {"delimiter": ";"}, "array"),
    ("npz", {"prefix": "train", "array": "y"}, "heldout_prefix"),
    ("npz", {"heldout_prefix": "test"}, "array"),
    ("npz", {"tokeniser": "identifiers"}, "array"),
    ("csv", {"array": "x"}, "delimiter"),
    ("csv", {"prefix": "x"}, "delimiter"),
    ("csv", {"tokeniser": "identifiers"}, "delimiter"),
    ("parquet", {"delimiter": ";"}, "columns"),
    ("text", {"delimiter": ";"}, "tokeniser"),
    ("text", {"columns": ["x"]}, "tokeniser"),
    ("text", {"token": "x"}, "tokeniser"),
    ("text", {"dtype": "float32"}, "tokeniser"),
    ("npy", {"array": "x"}, "dtype"),
]


@pytest.mark.parametrize(("form", "options", "takes"), WRONG_OPTIONS)
def test_options_of_another_format(tmp_path, form, options, takes):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    source = tmp_path / f"a.{form}"
    vocabulary = {}
    if form == "csv":
        source.write_text("client,token,count\nann,0,1\n")
    elif form == "parquet":
        parquet.write_table(pa.table({"client": ["ann"], "x": [1.0]}), source)
    elif form == "text":
        source.mkdir()
        (source / "a.txt").write_text("the cat")
        (tmp_path / "words").write_text("the\n")
        vocabulary = {"vocabulary": tmp_path / "words"}
    elif form == "npy":
        np.save(source, np.ones((1, 3)))
        np.save(tmp_path / "ids.npy", np.array(["ann"]))
        vocabulary = {"client": "ids.npy"}
    elif "prefix" in options:
        matrix = sp.csr_array(np.ones((1, 3)))
        np.savez(source, **{f"train_{part}": getattr(matrix, part) for part in ("data", "indices", "indptr", "shape")})
    else:
        np.savez(source, x=np.ones((1, 3)), client=np.array(["ann"]))
    name = next(name for name in options if name != "prefix" or len(options) == 1)
    with pytest.raises(IngestError, match=name) as caught:
        ingest(source, tmp_path / "p", **vocabulary, **options)
    assert takes in caught.value.remedy
