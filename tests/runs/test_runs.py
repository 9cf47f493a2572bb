"""The run store: commits are whole or absent; loading is safe."""

import json
import zipfile
from dataclasses import dataclass
from itertools import cycle

import numpy as np
import pytest
import zarr

from fedcore.errors import RunBusy, RunError, RunNotFound
from fedcore.runs.store import Run, load_run
from fedcore.storage import arrays as value_files
from fedcore.storage.arrays import read_values, write_values


@dataclass(frozen=True)
class State:
    centres: np.ndarray
    phase: str
    step: int
    weight: float


def state(step: int) -> State:
    return State(np.arange(6, dtype=np.float64).reshape(2, 3) + step, "rounds", step, 0.5)


def new_run(folder, **extra) -> Run:
    return Run.create(folder, {"run_id": "r1", "method": "toy", **extra})


def test_a_committed_round_reads_back(tmp_path):
    run = new_run(tmp_path)
    run.commit(0, state(0))
    run.commit(1, state(1), [{"round": 1, "movement": 0.25}])
    loaded = load_run(run.path)
    assert (loaded.state["centres"] == state(1).centres).all()
    assert loaded.state["phase"] == "rounds" and loaded.state["step"] == 1 and loaded.state["weight"] == 0.5
    assert loaded.metrics == [{"round": 1, "movement": 0.25}]


def test_what_was_written_without_a_head_does_not_exist(tmp_path):
    run = new_run(tmp_path)
    run.commit(0, state(0))
    run.commit(1, state(1), [{"round": 1, "movement": 1.0}])
    # A process that died after state and metrics of round 2 but before the head:
    write_values(run.state_file(2), {"centres": np.zeros(3)})
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write('{"round": 2, "mov')
    run.unlock()
    again = Run.open(run.path)
    assert again.round == 1 and again.read_state()["step"] == 1 and len(again.metrics()) == 1
    again.lock()
    again.commit(2, state(2), [{"round": 2, "movement": 2.0}])
    assert [row["round"] for row in again.metrics()] == [1, 2]
    assert load_run(run.path).state["step"] == 2


def test_old_states_are_dropped_and_two_are_kept(tmp_path):
    run = new_run(tmp_path)
    for round in range(5):
        run.commit(round, state(round))
    assert sorted(p.name for p in (run.path / "state").iterdir()) == ["000003.zip", "000004.zip"]


def test_a_run_has_one_writer(tmp_path):
    run = new_run(tmp_path)
    with pytest.raises(RunBusy):
        Run.open(run.path).lock()
    run.unlock()
    Run.open(run.path).lock()


def test_a_name_is_used_once(tmp_path):
    new_run(tmp_path)
    with pytest.raises(RunError, match="exists"):
        new_run(tmp_path)


def test_no_run_here(tmp_path):
    with pytest.raises(RunNotFound):
        load_run(tmp_path / "nothing")


@pytest.mark.parametrize("content", ["", "[]", "{", '{"schema": 99}', "\xff"])
def test_a_damaged_run_file_is_a_named_error(tmp_path, content):
    run = new_run(tmp_path)
    (run.path / "run.json").write_text(content)
    with pytest.raises(RunError):
        Run.open(run.path)


def _flip(path, where=0.5):
    data = bytearray(path.read_bytes())
    data[int(len(data) * where)] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "damage",
    [
        _flip,
        lambda p: _flip(p, 0.1),
        lambda p: p.unlink(),
        lambda p: p.write_bytes(p.read_bytes()[:-3]),
        lambda p: p.write_bytes(b""),
        lambda p: p.write_bytes(b"garbage" * 1000),
    ],
)
def test_a_damaged_state_is_a_named_error(tmp_path, damage):
    write_values(tmp_path / "s.zip", {"centres": np.random.Generator(np.random.Philox(1)).random((40, 30))})
    damage(tmp_path / "s.zip")
    with pytest.raises(RunError, match="unreadable"):
        read_values(tmp_path / "s.zip")


def _rewritten(path, change):
    """The same zip with the root's attributes changed."""
    with zipfile.ZipFile(path) as old:
        content = {name: old.read(name) for name in old.namelist()}
    meta = json.loads(content["zarr.json"])
    change(meta["attributes"], content)
    content["zarr.json"] = json.dumps(meta).encode()
    with zipfile.ZipFile(path, "w") as new:
        for name, data in content.items():
            new.writestr(name, data)


@pytest.mark.parametrize(
    "change",
    [
        lambda a, c: a.update(arrays={"../../secret": [2]}),
        lambda a, c: a.update(schema=99),
        lambda a, c: a.update(arrays={"a": [3]}),
        lambda a, c: c.pop("a/c/0"),
        lambda a, c: a.update(arrays={"b": [2]}),
    ],
)
def test_a_state_that_is_not_as_declared_is_refused(tmp_path, change):
    write_values(tmp_path / "s.zip", {"a": np.zeros(2)})
    _rewritten(tmp_path / "s.zip", change)
    with pytest.raises(RunError):
        read_values(tmp_path / "s.zip")


def test_arrays_are_described_as_zarr_describes_them():
    kinds = ("?", "i1", "u1", "<i2", "u2", "i4", "u4", ">i8", "u8", "f2", "f4", ">f8")
    for kind, shape in zip(kinds, cycle([(), (3,), (2, 0, 4)]), strict=False):
        entries = {}
        zarr.create_array(
            zarr.storage.MemoryStore(entries),
            shape=shape,
            chunks=tuple(max(1, n) for n in shape),
            dtype=np.dtype(kind),
            compressors=[zarr.codecs.Crc32cCodec()],
            zarr_format=3,
        )
        assert value_files._described(shape, np.dtype(kind)) == entries["zarr.json"].to_bytes()


def _described(content, change):
    meta = json.loads(content["a/zarr.json"])
    change(meta)
    content["a/zarr.json"] = json.dumps(meta).encode()


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(shape=[4]),
        lambda m: m.update(shape=[-2]),
        lambda m: m.update(shape=["2"]),
        lambda m: m.update(data_type="object"),
        lambda m: m.update(data_type="complex128"),
        lambda m: m.update(data_type=[["x", "f8"]]),
        lambda m: m.update(data_type={"name": "float64"}),
        lambda m: m.update(data_type="float32"),
        lambda m: m.pop("data_type"),
        lambda m: m.pop("codecs"),
        lambda m: m.update(codecs=[{"name": "unheard-of"}]),
        lambda m: m.update(node_type="group"),
        lambda m: m.update(attributes={"unit": "m"}),
    ],
)
def test_an_array_that_is_not_described_as_it_is_is_refused(tmp_path, change):
    write_values(tmp_path / "s.zip", {"a": np.zeros(2)})
    _rewritten(tmp_path / "s.zip", lambda _, content: _described(content, change))
    with pytest.raises(RunError):
        read_values(tmp_path / "s.zip")


@pytest.mark.parametrize("chunk", [b"", bytes(16), bytes(20), bytes(24), bytes(10**6)])
def test_a_chunk_of_another_size_or_checksum_is_refused(tmp_path, chunk):
    write_values(tmp_path / "s.zip", {"a": np.ones(2)})
    _rewritten(tmp_path / "s.zip", lambda _, content: content.update({"a/c/0": chunk}))
    with pytest.raises(RunError):
        read_values(tmp_path / "s.zip")


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    write_values(tmp_path / "s.zip", {"a": np.ones(2)})
    monkeypatch.setattr(value_files, "MAX_STATE_BYTES", 100)
    with pytest.raises(RunError, match="too large"):
        read_values(tmp_path / "s.zip")


def test_a_packed_entry_that_is_damaged_is_a_named_error(tmp_path):
    """What we write is not packed; what comes from elsewhere may be."""
    path = tmp_path / "s.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zarr.json", json.dumps({"attributes": "x" * 1000}))
    content = bytearray(path.read_bytes())
    content[39:45] = b"\xff" * 6  # the packed data begin after 30 bytes of header and the name
    path.write_bytes(bytes(content))
    with pytest.raises(RunError, match="unreadable"):
        read_values(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), [1, 2], np.array(["a"])])
def test_only_arrays_and_finite_scalars_are_stored(tmp_path, value):
    with pytest.raises(RunError):
        write_values(tmp_path / "s.zip", {"bad": value})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "array", [np.zeros((0, 3)), np.array(3.5), np.arange(5, dtype=np.int64), np.array([True, False])]
)
def test_arrays_of_every_shape_round_trip(tmp_path, array):
    write_values(tmp_path / "s.zip", {"a": array})
    back = read_values(tmp_path / "s.zip")["a"]
    assert back.dtype == array.dtype and back.shape == array.shape and (back == array).all()


def test_a_name_may_be_the_beginning_of_another(tmp_path):
    values = {"s": np.arange(3.0), "scale": np.ones((2, 2)), "mean": np.zeros(4), "means": np.full((), 2.0)}
    write_values(tmp_path / "v.zip", values)
    found = read_values(tmp_path / "v.zip")
    assert found.keys() == values.keys()
    for name, value in values.items():
        np.testing.assert_array_equal(found[name], value)
