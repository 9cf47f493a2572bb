"""Commands met by faults at every call of a file, of the ledger and of the network; `python -m tests.faults.walk` is
the whole walk. And the simulated machine itself: what is lost, what stays, and that nobody goes past it.
"""

import os
import shutil
import subprocess
import sys

import pytest

from fedcore.storage.files import flush, make_folder, write_whole
from tests.faults.commands import COMMANDS
from tests.faults.machine import Fault, Killed, Machine
from tests.faults.walk import Walk, walk

QUICK = {"promote": 5, "budget raise": 9, "prune (objects)": 13}  # every so many faults
STRIDES = {"train": 29, "train private": 53, "train (objects)": 17, "train private (objects)": 61}
STRIDES |= {"train by cohort": 37, "train on": 41, "train on (objects)": 17}
STRIDES |= {"resume": 47, "resume private": 83, "resume (objects)": 29, "resume private (objects)": 97}
STRIDES |= {"ingest": 83, "append": 251, "forget": 193, "compact": 193, "pipeline": 97}
STRIDES |= {"copy": 131, "copy (objects)": 61, "personalise": 47}
LONG = ("pipeline", "train by cohort")  # heavy
FEW = 23
REALLY = (
    "import sys; from pathlib import Path; from tests.faults.walk import Walk; Walk(sys.argv[1], Path(sys.argv[2]))"
)


def check(walked) -> None:
    assert walked.faults and not walked.wrong, "\n".join(walked.wrong)
    assert not walked.bypassed, "these calls are no points: " + ", ".join(sorted(walked.bypassed))


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_some_faults(name, tmp_path):
    check(walk(name, tmp_path / "walk", QUICK[name]))


# Of the walks over an object store, those of private runs are enough for every day.
ALIKE = ("train (objects)", "resume (objects)", "train on (objects)")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.heavy] if name in LONG or name in ALIKE else [])
        for name in COMMANDS
        if name not in QUICK
    ],
)
def test_more_faults(name, tmp_path):
    check(walk(name, tmp_path / "walk", STRIDES.get(name, FEW)))


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("name", COMMANDS)
def test_every_fault(name, tmp_path):
    check(walk(name, tmp_path / "walk"))


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.55, 0.9])
def test_who_is_simulated_to_be_killed_leaves_what_sigkill_leaves(tmp_path, share):
    def left() -> dict[str, int]:
        names = walking.place.tree()
        sizes = sorted(path.stat().st_size for path in walking.machine.root.rglob("*.zip"))
        return {"names": names, "sizes": sizes, "lost": walking.place.balance().get("lost")}

    with Walk("train private", tmp_path / "walk").on() as walking:
        number = int(len(walking.points) * share)
        walking.restore()
        with pytest.raises(Killed), walking.machine.process(Fault("kill", number)):
            walking.command.run(walking.place)
        simulated = left()
        walking.restore()
        child = subprocess.run(
            [sys.executable, "-c", f"{REALLY}.die_really({number})", "train private", walking.folder]
        )
        assert child.returncode == -9
        assert left() == simulated
        with walking.machine.process():
            walking.command.again(walking.place)
        walking._compare(Fault("kill", number))


# --- the machine ------------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "root").mkdir()
    with Machine(tmp_path / "root").on() as machine:
        yield machine


def points_of(machine: Machine, act) -> list:
    with machine.process() as process:
        act()
    return process.points


def meeting(machine: Machine, kind: str, number: int, act) -> None:
    with machine.process(Fault(kind, number)), pytest.raises((Killed, OSError)):
        act()


def test_a_whole_file_has_its_points(machine):
    found = points_of(machine, lambda: write_whole(machine.root / "a", b"abcd"))
    assert [point.kind for point in found] == ["create", "write", "fsync", "rename", "fsync"]
    assert not machine.bypassed


@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.parametrize("kind", ["kill", "torn", "power", "power, names kept", "EIO", "ENOSPC"])
def test_a_whole_file_is_the_old_or_the_new_one(machine, kind, number):
    file = machine.root / "a"
    write_whole(file, b"old")
    machine.disk.forget()
    if kind in ("torn", "ENOSPC") and number != 2:
        return
    meeting(machine, kind, number, lambda: write_whole(file, b"newer"))
    assert file.read_bytes() == (b"old" if number < 5 or kind == "power" else b"newer")


def test_a_power_failure_takes_what_was_not_flushed(machine):
    def careless() -> None:
        (machine.root / "folder").mkdir()
        (machine.root / "folder" / "a").write_bytes(b"content")
        os.replace(machine.root / "folder" / "a", machine.root / "b")
        (machine.root / "c").mkdir()

    last = len(points_of(machine, careless))
    for kind, left in (("power", set()), ("power, names kept", {"folder", "b"})):
        for path in sorted(machine.root.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        machine.disk.forget()
        meeting(machine, kind, last, careless)
        assert {path.name for path in machine.root.iterdir()} == left
        assert not left or (machine.root / "b").read_bytes() == b""


def test_what_was_made_again_where_something_was_removed_stays_if_it_was_flushed(machine):
    """Names in a folder that is gone say nothing of another folder of the same name."""
    folder = machine.root / "folder"

    def twice() -> None:
        for content in (b"first", b"second"):
            make_folder(folder / "below", durable=True)
            (folder / "below" / "not flushed").mkdir()
            write_whole(folder / "a", content)
            if content == b"first":
                (folder / "below" / "not flushed").rmdir()
                (folder / "below").rmdir()
                (folder / "a").unlink()
                folder.rmdir()
        flush(folder / "below")
        (machine.root / "end").mkdir()

    last = len(points_of(machine, twice))
    for path in (folder, machine.root / "end"):
        shutil.rmtree(path)
    machine.disk.forget()
    meeting(machine, "power", last, twice)
    assert (folder / "a").read_bytes() == b"second" and (folder / "below" / "not flushed").is_dir()


def test_a_power_failure_leaves_what_was_flushed(machine):
    def careful() -> None:
        make_folder(machine.root / "folder" / "below", durable=True)
        write_whole(machine.root / "folder" / "below" / "a", b"content")
        (machine.root / "c").mkdir()
        (machine.root / "d").mkdir()

    meeting(machine, "power", 11, careful)
    assert (machine.root / "folder" / "below" / "a").read_bytes() == b"content"
    assert not (machine.root / "c").exists()


def test_a_dead_process_changes_nothing_more(machine):
    def act() -> None:
        try:
            (machine.root / "a").write_bytes(b"a")
        finally:
            (machine.root / "b").write_bytes(b"b")

    meeting(machine, "kill", 1, act)
    assert not list(machine.root.iterdir())


def test_a_process_knows_nothing_of_those_before_it(tmp_path):
    """Its calls are theirs; what is kept in memory is not there for it."""
    with Walk("append", tmp_path / "walk").on() as walking:
        walking.restore()
        with walking.machine.process() as process:
            walking.command.run(walking.place)
    assert process.reads == walking.reads and process.points == walking.points


def test_who_goes_past_the_points_is_noticed(machine):
    with machine.process():
        machine.disk.real["io.open"](machine.root / "a", "w").close()
        machine.disk.real["unlink"](machine.root / "a")
    assert machine.bypassed == {"open a", "os.remove a"}


def test_a_put_that_arrives_twice_keeps_its_condition(machine):
    from fedcore.storage import objects
    from fedcore.storage.files import place

    file = place("s3://bucket/a")
    meeting(machine, "very late", 1, lambda: objects.create(file, b"first"))
    with machine.process():
        objects.write_bytes(file, b"second")
    machine.bucket.deliver_now()
    assert objects.read_bytes(file) == b"second"
