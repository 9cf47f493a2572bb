"""Decoded blocks that the runs of one process which serves share: the same bits, bounded, gone with their slots."""

import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from fedcore.errors import ConfigError
from fedcore.population import kept_blocks
from fedcore.population.blocks import CountsBlock
from fedcore.population.copying import copy_population
from fedcore.population.erasing import forget
from fedcore.population.kept_blocks import SOCKET, VARIABLE, keeping, shared
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from tests.population.conftest import names, some_counts, some_rows
from tests.rounds.test_engine import begin, to_end
from tests.toy import Toy

PLENTY = 2**30


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Where files are kept. Short: a socket has a path of a hundred characters at most."""
    monkeypatch.delenv(VARIABLE, raising=False)
    place = Path("/tmp") / f"k{os.getpid()}{abs(hash(tmp_path)) % 10**6}"
    place.mkdir()
    monkeypatch.setattr(kept_blocks.tempfile, "tempdir", str(place))
    yield place
    shutil.rmtree(place)


def made(path, kind="counts", clients=23, seed=0) -> Population:
    parts = some_counts if kind == "counts" else some_rows
    with PopulationWriter(path, kind, 7 if kind == "counts" else 3, clients_per_leaf=4, clients_per_block=8) as writer:
        writer.write(names(0, clients), parts(clients, seed=seed), parts(clients, seed=1))
        return writer.commit()


def used(population: Population, heldout: bool = False) -> None:
    for index in range(len(population.blocks)):
        shared(population, index, heldout, lambda index=index: population.read(index, heldout))


def held_of(keeper, population: Population) -> set[str]:
    """Slots of which a block is kept."""
    within(5, lambda: keeper.lock.acquire(timeout=1) and not keeper.lock.release())
    return {name[1] for name in keeper.held if name[0] == population.location}


def within(seconds: float, found) -> None:
    until = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < until
        time.sleep(0.005)


def never():
    raise AssertionError("it was read from the store")


def is_kept(population: Population, index: int = 0, heldout: bool = False) -> bool:
    try:
        shared(population, index, heldout, never)
    except AssertionError:
        return False
    return True


def settled(keeper, blocks: int) -> None:
    """Keeping is not answered: until so many are kept."""
    within(5, lambda: len(keeper.held) == blocks)


def fields(block) -> list:
    if block is None:
        return []
    arrays = [getattr(block, name) for name in kept_blocks.ARRAYS[type(block)]]
    features = block.features if isinstance(block, CountsBlock) else None
    bits = [(array.dtype, array.shape, array.tobytes()) for array in arrays]
    return [type(block), block.first, block.leaf, features, bits, fields(block.heldout)]


@pytest.mark.parametrize("heldout", [False, True])
@pytest.mark.parametrize("kind", ["counts", "rows"])
def test_a_kept_block_is_the_block(tmp_path, kind, heldout, monkeypatch):
    population = made(tmp_path / "p", kind)
    with keeping(PLENTY) as keeper:
        used(population, heldout)
        settled(keeper, 3)
        for index in range(len(population.blocks)):
            plain = fields(population.read(index, heldout))
            assert fields(shared(population, index, heldout, never)) == plain and bool(plain[-1]) == heldout
        assert not is_kept(population, 0, not heldout)
        monkeypatch.setattr(kept_blocks, "_most_descriptors", lambda: 0)
        assert fields(shared(population, 0, heldout, never)) == fields(population.read(0, heldout)), "read, not mapped"


def test_a_training_ends_with_the_same_bits_and_decodes_each_block_once(tmp_path, monkeypatch):
    plain = to_end(begin(tmp_path, Toy(), name="plain"))
    reads, real = [], Population.read
    monkeypatch.setattr(Population, "read", lambda *found: (reads.append(found[1]), real(*found))[1])
    with keeping(PLENTY) as keeper:
        for name in ("one", "other"):
            training = begin(tmp_path, Toy(), name=name, population=Population.open(tmp_path / "p-plain"))
            training.source = replace(training.source, cache_bytes=0)
            training.step()
            settled(keeper, len(training.blocks))
            assert to_end(training).centre.tobytes() == plain.centre.tobytes()
    assert sorted(reads) == list(training.blocks)


def test_without_anybody_who_serves_nothing_is_kept(tmp_path, temporary):
    used(made(tmp_path / "p"))
    with keeping(PLENTY):
        folder = os.environ[VARIABLE]
    assert VARIABLE not in os.environ and list(temporary.iterdir()) == []
    os.environ[VARIABLE] = folder  # as of a run that goes on when nobody serves any more
    try:
        used(made(tmp_path / "q"))
    finally:
        del os.environ[VARIABLE]
    assert list(temporary.iterdir()) == []


def test_files_have_no_name_and_only_their_user_reaches_the_socket(tmp_path, temporary):
    before = os.umask(0)
    try:
        with keeping(PLENTY) as keeper:
            used(made(tmp_path / "p"))
            settled(keeper, 3)
            (folder,) = temporary.iterdir()
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert [path.name for path in folder.iterdir()] == [SOCKET]
            assert {os.fstat(held.file).st_nlink for held in keeper.held.values()} == {0}
    finally:
        os.umask(before)


def opened_by(pid: int) -> set[int]:
    """Inodes."""
    found = set()
    for one in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            found.add(os.stat(f"/proc/{pid}/fd/{one}").st_ino)
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_nothing_is_left_when_whoever_serves_is_killed(tmp_path, number):
    """The kernel frees files without a name with the last descriptor, which is not passed on to other programs."""
    code = (
        "import os, signal, subprocess, sys, time; sys.path.insert(0, sys.argv[2])\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored\n"
        "from tests.population.test_kept_blocks import keeping, made, used, settled, PLENTY; from pathlib import Path\n"
        "with keeping(PLENTY) as keeper:\n"
        "    used(made(Path(sys.argv[1]) / 'p')); settled(keeper, 3)\n"
        "    other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], close_fds=False)\n"
        "    print(other.pid, *(os.fstat(held.file).st_ino for held in keeper.held.values()), flush=True)\n"
        "    time.sleep(60)\n"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", code, str(tmp_path), str(root)]
    serving = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    other, *held = map(int, serving.stdout.readline().split())
    try:
        assert len(held) == 3 and set(held) <= opened_by(serving.pid)
        assert not set(held) & opened_by(other)
        serving.send_signal(number)
        assert serving.wait(10) == -number
    finally:
        os.kill(other, signal.SIGKILL)
        serving.kill()
        serving.stdout.close()


def test_all_together_are_bounded_and_blocks_of_a_population_do_not_drive_out_each_other(tmp_path, monkeypatch):
    first, second = made(tmp_path / "p"), made(tmp_path / "q", seed=5)
    with keeping(PLENTY) as keeper:
        used(first)
        settled(keeper, 3)
        sizes = sorted(held.size for held in keeper.held.values())
        assert keeper.bytes == sum(sizes)
    with keeping(sum(sizes) - sizes[0]) as keeper:
        used(first)
        settled(keeper, 2)
        before = held_of(keeper, first)
        used(second)
        used(first)
        assert held_of(keeper, first) == before and len(keeper.held) == 2, "a run may go on with them"
        monkeypatch.setattr(kept_blocks, "UNUSED", 0.0)
        used(first)
        assert held_of(keeper, first) == before, "its own stay"
        used(second)
        within(5, lambda: held_of(keeper, second))
        assert len(held_of(keeper, first)) < 2
        assert keeper.bytes == sum(held.size for held in keeper.held.values()) <= keeper.limit
        monkeypatch.setattr(kept_blocks, "UNUSED_OWN", 0.0)
    with keeping(sizes[0] - 1) as keeper:
        used(first)
        assert not keeper.held and not is_kept(first)
    monkeypatch.setattr(kept_blocks, "_most_descriptors", lambda: 2)
    monkeypatch.setattr(kept_blocks, "UNUSED_OWN", 86400.0)
    with keeping(PLENTY) as keeper:
        monkeypatch.setattr(kept_blocks, "_mappings", 0)
        used(first)
        settled(keeper, 2)
        used(first)
        assert len(keeper.held) == 2
        used(second)
        within(5, lambda: held_of(keeper, second))
        assert len(keeper.held) == 2, "by number, too"


def test_who_is_forgotten_is_not_kept(tmp_path, monkeypatch):
    population, other = made(tmp_path / "p"), made(tmp_path / "q")
    with keeping(PLENTY) as keeper:
        for one in (population, other):
            used(one)
            used(one, heldout=True)
        settled(keeper, 12)
        block = population.read(1)
        forget(population, clients=[str(population.client_ids(1)[2])])
        assert not is_kept(population, 1) and not is_kept(population, 1, heldout=True), "of whom nobody is given"
        shared(population, 1, False, lambda: block)  # a run that has read it before
        assert is_kept(population, 0) and is_kept(population, 2)
        assert len(held_of(keeper, population)) == 2 and len(keeper.held) == 10
        after = Population.open(tmp_path / "p")
        used(after)
        settled(keeper, 11)


def test_what_was_kept_of_a_population_that_is_gone_goes_before_long(tmp_path, monkeypatch):
    """Whoever removed it, and wherever; nobody asks for it."""
    monkeypatch.setattr(kept_blocks, "LOOK", 0.02)
    population = made(tmp_path / "p")
    with keeping(PLENTY) as keeper:
        used(population)
        settled(keeper, 3)
        shutil.rmtree(tmp_path / "p")
        settled(keeper, 0)
        assert keeper.bytes == 0


def test_another_population_at_the_same_place_is_another(tmp_path):
    with keeping(PLENTY) as keeper:
        used(made(tmp_path / "p"))
        settled(keeper, 3)
        shutil.rmtree(tmp_path / "p")
        assert not is_kept(made(tmp_path / "p", seed=7))
        keeper.drop_gone(remote=False)
        assert not keeper.held


def test_of_a_population_behind_a_url_what_was_pruned_goes_too(tmp_path):
    url = f"memory://kept-{tmp_path.name}"
    made(tmp_path / "p")
    copy_population(tmp_path / "p", url)
    population = Population.open(url)
    plain = fields(population.read(0))
    with keeping(PLENTY) as keeper:
        used(population)
        settled(keeper, 3)
        assert fields(shared(population, 0, False, never)) == plain
        forgotten = forget(Population.open(tmp_path / "p"), clients=[str(population.client_ids(1)[2])]).population
        copy_population(forgotten.path, url, prune=True)
        keeper.drop_gone(remote=False)
        assert len(keeper.held) == 3
        keeper.drop_gone(remote=True)
        assert len(keeper.held) == 2


def test_who_writes_into_a_block_changes_neither_the_file_nor_anybody_elses(tmp_path):
    population = made(tmp_path / "p")
    with keeping(PLENTY) as keeper:
        used(population)
        settled(keeper, 3)
        mine, other = (shared(population, 0, False, never) for _ in range(2))
        plain = fields(other)
        mine.data[:] = 7
        assert fields(other) == plain == fields(shared(population, 0, False, never))


def test_a_full_disk_keeps_nothing_and_stops_nobody(tmp_path, monkeypatch):
    class Full:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def write(self, piece):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept_blocks.tempfile, "TemporaryFile", Full)
    population = made(tmp_path / "p")
    with keeping(PLENTY) as keeper:
        used(population)
        assert not keeper.held


@pytest.mark.parametrize("said", [b"", b"garbage\n", b"[]\n", b'{"get": 1}\n', b'{"get": ["a"]}\n', b"{" * 2**17])
def test_garbage_ends_nothing(tmp_path, said):
    population = made(tmp_path / "p")
    plain = fields(population.read(0))
    with keeping(PLENTY) as keeper:
        used(population)
        settled(keeper, 3)
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(os.path.join(os.environ[VARIABLE], SOCKET))
            try:
                asking.sendall(said)
            except BrokenPipeError:
                pass
        assert fields(shared(population, 0, False, never)) == plain


@pytest.mark.parametrize("content", [b"", b"x" * 200])
def test_what_is_no_block_is_read_from_the_store(tmp_path, content):
    """As another version of fedcore may have kept it."""
    population = made(tmp_path / "p")
    plain = fields(population.read(0))
    entry = population.blocks[0]
    with keeping(PLENTY) as keeper, open(tmp_path / "file", "w+b") as file:
        file.write(content)
        file.flush()
        keeper.keep((population.location, entry.slot, entry.digest, False), os.dup(file.fileno()))
        assert len(keeper.held) == (1 if content else 0)
        assert fields(shared(population, 0, False, lambda: population.read(0))) == plain
        assert is_kept(population) == (not content)


def test_descriptors_do_not_pile_up(tmp_path):
    population = made(tmp_path / "p")
    with keeping(PLENTY) as keeper:
        used(population)
        settled(keeper, 3)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            assert is_kept(population) and not is_kept(population, 0, heldout=True)
        within(5, lambda: len(os.listdir("/proc/self/fd")) <= before)
        assert kept_blocks._mappings == 0
        mapped = [shared(population, 0, False, never) for _ in range(5)]
        assert kept_blocks._mappings == 5
        del mapped
        assert kept_blocks._mappings == 0


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_every_file_that_is_let_go_is_closed(tmp_path):
    """Else what was kept of who was forgotten would stay on the disk."""
    population = made(tmp_path / "p")
    entry = population.blocks[0]
    name = (population.location, entry.slot, entry.digest, False)
    before = descriptors()
    with keeping(PLENTY) as keeper:
        used(population)
        settled(keeper, 3)
        within(5, lambda: descriptors() <= before + 9)  # socket, selector, pair; three files
        full = descriptors()
        with open(tmp_path / "file", "wb") as file:
            file.write(b"content")
        asked = [
            lambda file: keeper.keep(name, os.dup(file)),  # there is one
            lambda file: keeper.keep((*name[:1], "other", *name[2:]), os.dup(file)),  # no such slot
            lambda file: keeper.keep((*name[:1], "a\0b", *name[2:]), os.dup(file)),
            lambda file: kept_blocks._ask(os.environ[VARIABLE], {"keep": ["too", "short"]}, file),
            lambda file: kept_blocks._ask(os.environ[VARIABLE], {"keep": 1}, file),
        ]
        for ask in asked:
            file = os.open(tmp_path / "file", os.O_RDONLY)
            ask(file)
            os.close(file)
        assert is_kept(population)  # all before has been heard
        within(5, lambda: descriptors() <= full)
        forget(population, clients=[str(population.client_ids(1)[2])])
        keeper.drop_gone(remote=False)
        assert len(keeper.held) == 2
        within(5, lambda: descriptors() == full - 1)
    within(5, lambda: descriptors() == before)


@pytest.mark.parametrize(
    "answer", [b'{"room": "x"}\n', b'{"room": null}\n', b'{"room": 1e400}\n', b"[1]\n", b"no line"]
)
def test_odd_answers_end_no_run(tmp_path, answer, monkeypatch):
    population = made(tmp_path / "p")
    monkeypatch.setattr(kept_blocks, "PATIENCE", 0.2)
    monkeypatch.setattr(kept_blocks, "_silent_until", 0.0)
    folder = Path(kept_blocks.tempfile.mkdtemp())
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / SOCKET))
        listener.listen()
        monkeypatch.setenv(VARIABLE, str(folder))

        def serve():
            with listener.accept()[0] as end:
                end.recv(1000)
                end.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        assert fields(shared(population, 0, False, lambda: population.read(0))) == fields(population.read(0))
        thread.join()


def test_one_that_does_not_answer_is_not_asked_again_for_a_while(tmp_path, monkeypatch):
    population = made(tmp_path / "p")
    monkeypatch.setattr(kept_blocks, "PATIENCE", 0.1)
    monkeypatch.setattr(kept_blocks, "_silent_until", 0.0)
    folder = Path(kept_blocks.tempfile.mkdtemp())
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / SOCKET))
        listener.listen()
        monkeypatch.setenv(VARIABLE, str(folder))
        used(population)
        listener.settimeout(0.1)
        listener.accept()[0].close()
        with pytest.raises(TimeoutError):
            listener.accept()


def test_nobody_is_asked_in_a_folder_that_others_can_open(tmp_path, monkeypatch):
    population = made(tmp_path / "p")
    with keeping(PLENTY) as keeper:
        used(population)
        settled(keeper, 3)
        os.chmod(os.environ[VARIABLE], 0o755)
        assert not is_kept(population)
        os.chmod(os.environ[VARIABLE], 0o700)
        assert is_kept(population)
        monkeypatch.setattr(kept_blocks.os, "getuid", lambda: 12345)
        assert not is_kept(population)


def test_what_a_process_that_was_killed_has_left_goes_and_nothing_else(temporary):
    dead, other = temporary / f"{kept_blocks.PREFIX}dead", temporary / f"{kept_blocks.PREFIX}other"
    for folder in (dead, other):
        folder.mkdir(0o700)
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(dead / SOCKET))
    (other / "file").write_text("somebody's")
    with keeping(0), keeping(0):
        assert len(list(temporary.iterdir())) == 3
    assert list(temporary.iterdir()) == [other]


def test_nobody_is_in_a_block_without_clients(tmp_path):
    population = made(tmp_path / "p")
    forget(population, clients=population.client_ids(0).tolist())
    after = Population.open(tmp_path / "p")
    assert after.blocks[0].void
    with keeping(PLENTY) as keeper:
        used(after)
        settled(keeper, len(after.blocks) - 1)


def test_a_place_for_the_socket_must_be_there(tmp_path, monkeypatch):
    for place in (tmp_path / "missing", tmp_path / ("long" * 30)):
        if "long" in place.name:
            place.mkdir()
        monkeypatch.setattr(kept_blocks.tempfile, "tempdir", str(place))
        with pytest.raises(ConfigError, match="TMPDIR"), keeping(PLENTY):
            pass
    assert list((tmp_path / ("long" * 30)).iterdir()) == []


def test_as_many_descriptors_as_a_process_may_spare():
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert 0 < kept_blocks._most_descriptors() <= soft // 2
