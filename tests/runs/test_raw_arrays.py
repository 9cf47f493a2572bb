"""Files of raw arrays: what is written is read, and anything else is refused by one kind of error."""

import json

import numpy as np
import pytest

from fedcore.errors import RunError
from fedcore.rounds.clients import memory_file, read_memory
from fedcore.storage import digests, raw_arrays
from fedcore.storage.arrays import read_values, write_values
from fedcore.storage.files import place
from tests.faults.place import bits

VALUES = {
    "V": np.arange(6.0).reshape(3, 2),
    "heard": np.array([True, False, True]),
    "none": np.zeros((0, 3)),
    "turned": np.arange(6, dtype=np.int16).reshape(2, 3).T,
    "big": np.arange(3, dtype=">f4"),
    "one": np.array(3.5),
}


def test_what_is_written_is_read_here_and_behind_a_url(memory, tmp_path):
    here, there = tmp_path / "a.arrays", place(f"{memory}/a.arrays")
    digest = write_values(here, VALUES)
    assert digest == write_values(there, VALUES) == digests.of_file(here)
    near, far = read_values(here, digest), read_values(there, digest)
    assert bits(near) == bits(far) == bits({**VALUES, "big": VALUES["big"].astype("<f4")})
    near["V"][0, 0] = 7.0  # it is the reader's own
    assert write_values(tmp_path / "b.arrays", VALUES) == digest
    with pytest.raises(RunError, match="'phase' cannot be stored"):
        write_values(here, {**VALUES, "phase": "rounds"})


@pytest.mark.parametrize("wrong", [np.array(["a"]), np.array([1j]), np.array([None]), np.array(["2026"], "M8[D]")])
def test_what_could_not_be_read_is_not_written(tmp_path, wrong):
    with pytest.raises(RunError, match="'names' cannot be stored in 'a.arrays'"):
        write_values(tmp_path / "a.arrays", {**VALUES, "names": wrong})
    assert not list(tmp_path.iterdir())


def written(arrays, content=bytes(64), schema=1, length=None) -> bytes:
    header = json.dumps({"schema": schema, "arrays": arrays}).encode()
    header += b" " * (-(16 + len(header)) % 64)
    return raw_arrays.MAGIC + (length or len(header)).to_bytes(8, "little") + header + content


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"fedcore\n",
        b"PK\x03\x04" + bytes(60),
        written([], length=2**62),
        written([], length=2**20 + 64, content=bytes(2**21)),
        written([["V", "<f8", [8]]], schema=2),
        written([["V", "<f8", [2**60, 2**60]]]),
        written([["V", "<f8", [-1]]]),
        written([["V", "<f8", [True]]]),
        written([["V", "|O", [8]]]),
        written([["V", "<f8", [4]]]) + b"more",
        written([["../V", "<f8", [8]]]),
        written([["V", "<f8"]]),
        written(3),
        written([[[], "<f8", [8]]]),
        raw_arrays.MAGIC + (64).to_bytes(8, "little") + b"[" * 64,
    ],
)
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "a.arrays").write_bytes(written([["V", "<f8", [8]]]))
    assert read_values(tmp_path / "a.arrays")["V"].tolist() == [0.0] * 8
    (tmp_path / "a.arrays").write_bytes(content)
    with pytest.raises(RunError, match="a.arrays"):
        read_values(tmp_path / "a.arrays")


def test_memories_of_another_name_are_lost(tmp_path):
    folder = tmp_path / "000007"
    write_values(memory_file(folder, 2), {"V": VALUES["V"]})
    with pytest.raises(RunError, match="block 2 after round 7 are lost: .*000002.arrays"):
        read_memory(folder, 2, 3, {})
