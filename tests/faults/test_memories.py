"""Faults of clients' memories: kills at every file, late writers of dead processes, a full disk, damaged files.

A run whose clients remember (FedEM, VR-FedEM) ends in the bits of an undisturbed one, or with an error that names the
block. Undisturbed runs were made in one process, on one block.
"""

import errno
import hashlib
import os
import shutil
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fedcore.tasks.dask_backend import DaskBackend, dask_client

from fedcore.errors import LeaseLost, RunError, WorkerFailed
from fedcore.population.sizing import shared_out
from fedcore.rounds.clients import Answer, answer_block, memory_file
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import LoadedRun, Run, load_run
from fedcore.storage.arrays import read_values, write_values
from tests.faults.driver import Kill, of_memory
from tests.faults.place import Place, bits, same_result
from tests.faults.test_damage import cut, empty, flip, garble, remove
from tests.faults.test_two_processes import soon
from tests.federated_em.test_run import rows_population
from tests.sessions import to_end

COMMON = {"components": 2, "covariance": "diag", "cluster_rounds": 1, "codec": 2, "monitor_every": 3}
ALGORITHMS = {
    "fedem": COMMON | {"participation": 0.75, "rounds": 4},
    "vr-fedem": COMMON | {"algorithm": "vr-fedem", "batch": 4, "inner_rounds": 3, "rounds": 4},
}
CHUNKINGS = (4, 12, 64)  # clients of a block: 15, 5 and 1 blocks
BLOCKS = 5
MEMORY, ROUND, LAST = 5, 7, 10  # commits: the first memories; a round with memories before and after; the run's last


@dataclass(frozen=True)
class Remembering(Place):
    """A workplace without a ledger. mode: the algorithm."""

    @property
    def private(self) -> bool:
        return False

    def request(self) -> dict:
        return {
            "method": "paper_federated_em",
            "population": str(self.folder / "population"),
            "run_id": "run",
            "seed": 5,
            "settings": ALGORITHMS[self.mode],
            "runs": str(self.folder / "runs"),
        }

    def run(self) -> Run:
        return Run.open(self.run_path)

    def begun(self, rounds: int, backend=None):
        """A session whose run has so many commits after the first state."""
        session = self.start(backend)
        while session.run.round < rounds:
            session.training.step()
        return session


@pytest.fixture(scope="module")
def populations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("populations")
    for clients in CHUNKINGS:
        rows_population(folder / str(clients) / "population", leaf=4, block=clients)
    return folder


@pytest.fixture
def remembering(populations, tmp_path):
    return lambda mode="fedem", chunking=12: Remembering.copy(populations / str(chunking), tmp_path / "place", mode)


@pytest.fixture(scope="module")
def calm(populations, tmp_path_factory) -> dict[str, tuple[LoadedRun, dict]]:
    """Undisturbed runs: result, and the memories that all clients have at the end."""
    found = {}
    for mode in ALGORITHMS:
        here = Remembering.copy(populations / "64", tmp_path_factory.mktemp("calm") / "place", mode)
        to_end(here.start())
        found[mode] = load_run(here.run_path), memories_of(here)
    return found


def memories_of(here: Remembering) -> dict:
    """The memories of all clients after the last committed round, by value."""
    run, blocks = here.run(), len(here.population().blocks)
    parts = [read_values(memory_file(run.memory_folder(run.round), index)) for index in range(blocks)]
    return bits({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def kept(here: Remembering) -> list[str]:
    return sorted(path.name for path in (here.run_path / "memory").iterdir() if path.is_dir())


def check_same(here: Remembering, calm) -> None:
    reference, memories = calm[here.mode]
    assert same_result(load_run(here.run_path), reference)
    assert memories_of(here) == memories


def test_the_undisturbed_run_is_what_the_faults_below_suppose(remembering, calm):
    here = remembering()
    session = here.begun(ROUND)
    assert len(here.population().blocks) == BLOCKS
    assert kept(here) == ["000006", "000007"], "two versions are kept"
    assert len(list(session.run.memory_folder(ROUND).iterdir())) == BLOCKS
    to_end(session)
    assert session.run.round == LAST and {*memories_of(here)} == {"V"}
    check_same(here, calm)
    assert {*calm["vr-fedem"][1]} == {"V", "S"}
    assert calm["fedem"][0].head["memories"] is True


# --- kill -9 --------------------------------------------------------------------------------------------------------

KILLS = [
    Kill("memory", "before", of_memory(MEMORY, 0)),
    Kill("rename", "before", of_memory(MEMORY, 2)),
    Kill("memory", "before", of_memory(ROUND, 0)),
    Kill("rename", "before", of_memory(ROUND, 0)),
    Kill("memory", "after", of_memory(ROUND, 0)),
    Kill("rename", "before", of_memory(ROUND, 3)),
    Kill("memory", "after", of_memory(ROUND, BLOCKS - 1)),
    Kill("commit", "before", ROUND),
    Kill("state", "after", ROUND),
    Kill("head", "before", ROUND),
    Kill("head", "after", ROUND),
    Kill("commit", "after", ROUND),
    Kill("memory", "after", of_memory(LAST, 3)),
]


CASES = [*[("fedem", kill) for kill in KILLS], *[("vr-fedem", kill) for kill in KILLS[4:8]]]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "kill"), CASES, ids=str)
def test_the_same_bits_after_a_kill(remembering, calm, mode, kill):
    here = remembering(mode)
    here.kill_at(kill)
    here.finish()
    check_same(here, calm)
    here.check_no_litter()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pause", "kill"),
    [
        (0.02, KILLS[4]),
        (0.02, Kill("head", "before", LAST)),
        (1e9, KILLS[0]),
        (1e9, KILLS[6]),
        (1e9, Kill("commit", "before", LAST)),
        (1e9, Kill("head", "after", LAST)),
    ],
    ids=str,
)
def test_the_same_bits_after_a_kill_between_commits(remembering, calm, kill, pause):
    """Rounds share commits: some of them, or all."""
    here = remembering()
    here.kill_at(kill, commit_seconds=pause)
    assert (kill.when == "after" or pause < 1) or here.run().round == 0
    here.finish(commit_seconds=pause)
    check_same(here, calm)
    here.check_no_litter()


# --- late writers ---------------------------------------------------------------------------------------------------


class Noting(InProcessBackend):
    """Notes what was asked, by round; `before(index)` happens before each block, from round `since` on."""

    def __init__(self, before=None):
        self.asked = []
        self.before = before

    def map_blocks(self, function, message, blocks, sizes=None):
        self.asked.append((function, message))

        def answer(message, index):
            if self.before is not None:
                self.before(index)
            return function(message, index)

        return super().map_blocks(answer, message, blocks, sizes)


@pytest.mark.parametrize("mode", ALGORITHMS)
def test_a_late_worker_writes_files_of_the_round_that_is_being_made_again(remembering, calm, mode):
    """Its process was killed in this round; it writes each block before, between and after the resumed run's own."""
    here, noted = remembering(mode), Noting()
    session = here.begun(ROUND - 1, noted)
    session.training.answer()  # all memories are written, nothing is committed
    session.close()
    zombie = partial(noted.asked[-1][0], noted.asked[-1][1])

    def meanwhile(index):
        if resumed.run.round == ROUND - 1:
            zombie((index + 1) % BLOCKS)
            zombie((index - 1) % BLOCKS)

    resumed = here.resume(Noting(meanwhile))
    resumed.training.step()
    zombie(1)  # and when the round is committed
    to_end(resumed)
    check_same(here, calm)


def test_a_late_worker_writes_files_of_a_round_that_is_pruned(remembering, calm):
    """They are removed with the next commit; after the last one they stay, and are read by nobody."""
    here = remembering()
    session = here.begun(ROUND)
    old = {index: read_values(memory_file(session.run.memory_folder(ROUND), index)) for index in range(BLOCKS)}

    def late(block):
        values = {name: array + 1.0 for name, array in old[block].items()}
        write_values(memory_file(session.run.memory_folder(MEMORY), block), values)

    late(2)
    session.training.step()
    assert not session.run.memory_folder(MEMORY).exists()
    to_end(session)
    late(3)
    check_same(here, calm)
    assert here.run().memories() == here.run().memory_folder(LAST)


def test_memories_of_a_round_that_had_none_are_not_taken(remembering, calm):
    here = remembering()
    session = here.begun(MEMORY - 1)
    assert session.run.head["memories"] is False
    write_values(memory_file(session.run.memory_folder(MEMORY - 1), 0), {"V": np.ones((12, 3))})
    session.close()
    to_end(here.resume())
    check_same(here, calm)


def test_pruning_goes_on_beside_a_late_writer(remembering, calm, monkeypatch):
    """A file appears in a folder while it is being removed: the round is committed nevertheless."""
    here, real = remembering(), shutil.rmtree
    session = here.begun(ROUND)

    def raced(path, ignore_errors=False, **options):
        if Path(path).parent.name == "memory" and not ignore_errors:
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        if Path(path).parent.name != "memory":
            real(path, ignore_errors=ignore_errors, **options)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", raced)
        session.training.step()
        assert session.run.memory_folder(ROUND - 1).exists()
    to_end(session)
    assert kept(here) == ["000009", "000010"]
    check_same(here, calm)


def test_a_process_that_lost_the_run_does_not_touch_memories_that_are_read(remembering, calm, monkeypatch):
    """Where locks do not reach: it still thinks that round 7 comes next, when the other one has committed it."""
    here = remembering()
    monkeypatch.setattr(Run, "lock", lambda run, take_over=False: False)
    stale = here.begun(ROUND - 1)
    other = here.resume()
    other.training.step()
    folder, removed = other.run.memory_folder(ROUND), []
    stale.training.backend = Noting(
        lambda index: removed.extend(block for block in range(BLOCKS) if not memory_file(folder, block).exists())
    )
    with pytest.raises(LeaseLost):
        stale.training.step()
    assert not removed, "at no time was a file of the committed round missing"
    to_end(other)
    check_same(here, calm)


# --- damage ---------------------------------------------------------------------------------------------------------


def other_clients(path: Path) -> None:
    write_values(path, {name: array[:-1] for name, array in read_values(path).items()})


@pytest.mark.parametrize("damage", [flip, cut, empty, garble, remove, other_clients])
def test_a_damaged_memory_file_is_named_and_the_good_one_mends_it(remembering, calm, damage):
    here = remembering()
    here.begun(ROUND).close()
    path = memory_file(here.run().memory_folder(ROUND), 3)
    good = path.read_bytes()
    damage(path)
    with pytest.raises(RunError, match=f"clients of block 3 after round {ROUND}") as caught:
        to_end(here.resume())
    assert caught.value.remedy
    assert here.run().status == "failed" and here.run().round == ROUND
    path.write_bytes(good)
    to_end(here.resume())
    check_same(here, calm)


def test_lost_folders_of_memories_do_not_become_memories_of_zero(remembering, calm):
    here = remembering()
    here.begun(ROUND).close()
    folder = here.run().memory_folder(ROUND)
    folder.rename(here.folder / "elsewhere")
    with pytest.raises(RunError, match=f"memories after round {ROUND} of run 'run' are lost"):
        to_end(here.resume())
    (here.folder / "elsewhere").rename(folder)
    to_end(here.resume())
    check_same(here, calm)


@pytest.mark.parametrize("step", [MEMORY, ROUND])
def test_a_disk_that_fills_while_memories_are_written(remembering, calm, monkeypatch, step):
    """Half of the files fit."""
    here, real = remembering(), write_values
    session = here.begun(step - 1)

    def full(path, values, **how):
        if path.stem >= "000003":
            monkeypatch.setattr("fedcore.storage.raw_arrays.pieces", refuse)
        real(path, values, **how)

    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("fedcore.rounds.clients.write_values", full)
        with pytest.raises(RunError, match="cannot write '000003.arrays' of the run: No space left") as caught:
            to_end(session)
        monkeypatch.undo()
    assert caught.value.remedy and here.run().round == step - 1
    to_end(here.resume())
    check_same(here, calm)
    here.check_no_litter()


# --- workers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Struck:
    """What the workers compute; a tenth of the blocks of all rounds is answered, written, lost, and answered again.

    The first `kills` times by the death of the worker process, else by the same process. Each leaves a file in
    `folder`.
    """

    function: Answer
    folder: Path
    kills: int

    def expect(self, message, index, spare):
        self.function.expect(message, index, spare)

    def __call__(self, message, index):
        statistics = self.function(message, index)
        name = f"{Path(self.function.source.memory_out).name}-{index:03d}"
        if hashlib.blake2b(name.encode()).digest()[0] < 26 and not (self.folder / name).exists():
            number = len(list(self.folder.iterdir()))
            (self.folder / name).touch()
            if number < self.kills:
                os.kill(os.getpid(), signal.SIGKILL)
            return self.function(message, index)
        return statistics


class Striking(DaskBackend):
    def __init__(self, client, folder: Path, kills: int):
        super().__init__(client)
        self.folder, self.kills = folder, kills

    def map_blocks(self, function, message, blocks, sizes=None):
        return super().map_blocks(Struck(function, self.folder, self.kills), message, blocks, sizes)


@pytest.mark.slow
def test_no_chunking_workers_or_retry_change_a_bit(populations, tmp_path, calm):
    """The specification's acceptance test 8.7: states and memories after lost answers, on 15, 5 and 1 blocks."""
    struck = 0
    with dask_client(2) as client:
        for chunking, kills in zip(CHUNKINGS, (1, 0, 0), strict=True):
            for mode in ("fedem", "vr-fedem") if chunking == 12 else ("fedem",):
                here = Remembering.copy(populations / str(chunking), tmp_path / f"{chunking}-{mode}", mode)
                folder = here.folder / "struck"
                folder.mkdir()
                to_end(here.start(Striking(client, folder, kills)))
                check_same(here, calm)
                here.check_no_litter()
                struck += len(list(folder.iterdir()))
    asked = LAST * (15 + 5 + 5 + 1)
    assert 0.05 * asked < struck < 0.2 * asked


@dataclass(frozen=True)
class Late:
    """Block 0 is answered when `until` exists, and says when it is done; block `fails` fails."""

    function: object
    until: Path
    fails: int

    def __call__(self, message, index):
        if index == self.fails:
            soon(self.until.with_suffix(".here").exists)
            raise WorkerFailed("a block failed.", "")
        if index == 0:
            self.until.with_suffix(".here").touch()
            soon(self.until.exists)
        try:
            return self.function(message, index)
        finally:
            if index == 0:
                self.until.with_suffix(".done").touch()


class Disturbed(DaskBackend):
    def __init__(self, client, round: int, until: Path):
        super().__init__(client)
        self.left, self.until = round, until

    def map_blocks(self, function, message, blocks, sizes=None):
        self.left -= 1
        if self.left == 0:
            elsewhere = next(share for share in shared_out(sizes, 2) if 0 not in share)
            function = Late(function, self.until, elsewhere[-1])
        return super().map_blocks(function, message, blocks, sizes)


@pytest.mark.slow
def test_a_task_that_nobody_waits_for_any_more_ends_late(populations, tmp_path, calm):
    """A worker that still answers a block of the failed round 7, while the run has gone on elsewhere for some rounds.

    After three rounds the memories that it would read are gone, and it fails, unseen.
    """
    with dask_client(2) as client:
        for rounds in (0, 3):
            here = Remembering.copy(populations / "12", tmp_path / str(rounds), "fedem")
            until = here.folder / "until"
            with pytest.raises(WorkerFailed, match="a block failed"):
                to_end(here.start(Disturbed(client, ROUND, until)))
            session = here.resume()
            for _ in range(rounds):
                session.training.step()
            until.touch()
            soon(until.with_suffix(".done").exists)
            to_end(session)
            check_same(here, calm)


def test_leaves_that_remember_different_things_are_a_mistake_of_the_method(remembering, monkeypatch):
    """Memories are one array for the clients of a block; one leaf without them would shift those of the others."""
    from fedcore.methods.federated_em import FederatedEM

    here, real = remembering(), FederatedEM.client_update

    def forgetful(method, message, block, memory):
        statistics, memory = real(method, message, block, memory)
        return statistics, None if block.leaf == 1 else memory

    session = here.begun(MEMORY - 1)
    monkeypatch.setattr(FederatedEM, "client_update", forgetful)
    source = session.training.source
    message = session.method.message(session.training.state)
    with pytest.raises(ValueError, match="block 0 remember different things"):
        answer_block(session.method, source, message, 0)
    session.close()
