"""The temporary copy of the data of a fit is gone in the end, however the fit ends; with real processes."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

import fedcore
from fedcore.rounds.engine import InProcessBackend
from fedcore.storage import scratch
from fedcore.storage.scratch import PREFIX, is_scratch, scratch_folder

FIT = """
import sys, time
import numpy as np
import fedcore
from fedcore.rounds.engine import InProcessBackend

class Waiting(InProcessBackend):
    def map_blocks(self, *arguments, **others):
        print("in the fit", flush=True)
        time.sleep(600)

fedcore.FederatedMixture(2, backend=Waiting()).fit(np.arange(40.0).reshape(20, 2))
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where temporary folders are made."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def left(place: Path) -> list[Path]:
    return sorted(place.glob(f"{PREFIX}*"))


def fitting(place: Path) -> subprocess.Popen:
    """A process in the middle of a fit."""
    process = subprocess.Popen([sys.executable, "-c", FIT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "in the fit\n", process.communicate()
    (folder,) = left(place)
    assert any((folder / "population").iterdir()) and not folder.stat().st_mode & 0o077
    return process


def ended(process: subprocess.Popen, number: int) -> None:
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == -number


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_fit_that_is_stopped_leaves_nothing(place, number):
    ended(fitting(place), number)
    assert not left(place)


@pytest.mark.slow
def test_the_next_fit_removes_what_a_killed_one_left(place):
    ended(fitting(place), signal.SIGKILL)
    (dead,) = left(place)
    assert any(dead.rglob("*.json"))
    living = subprocess.Popen([sys.executable, "-c", FIT], stdout=subprocess.PIPE, text=True)
    assert living.stdout.readline() == "in the fit\n"
    (other,) = left(place)
    assert other != dead
    fedcore.FederatedMixture(max_iter=1).fit(np.arange(40.0).reshape(20, 2))
    assert left(place) == [other] and (other / "population").is_dir()  # its process lives
    ended(living, signal.SIGKILL)
    scratch.remove_dead()
    assert not left(place)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_within_a_fit_leaves_nothing(place, error):
    class Broken(InProcessBackend):
        def map_blocks(self, *arguments, **others):
            assert left(place)
            raise error

    with pytest.raises(error):
        fedcore.FederatedMixture(2, backend=Broken()).fit(np.arange(40.0).reshape(20, 2))
    assert not left(place) and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_interrupted_removal_is_made_up_for(place, monkeypatch):
    def interrupted(*arguments, **others):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt), scratch_folder():
        patched.setattr(scratch.shutil, "rmtree", interrupted)
    assert len(left(place)) == 1
    with scratch_folder() as folder:
        assert left(place) == [folder]


def test_many_threads_make_folders_and_remove_only_dead_ones(place):
    lost, ready = [], threading.Barrier(8)

    def work():
        ready.wait()
        for _ in range(30):
            with scratch_folder() as folder:
                (folder / "data").write_text("x")
                scratch.remove_dead()
                if not (folder / "data").exists() or not is_scratch(folder / "data"):
                    lost.append(folder)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not lost and not left(place)


def test_folders_of_others_are_left_alone(place):
    target = place / "kept"
    target.mkdir()
    (target / "lock").touch()
    (place / f"{PREFIX}link").symlink_to(target)
    (place / f"{PREFIX}file").touch()
    unlocked = place / f"{PREFIX}unlocked"
    unlocked.mkdir()
    (unlocked / "data").touch()
    scratch.remove_dead()
    assert len(left(place)) == 3 and (target / "lock").exists() and (unlocked / "data").exists()


def test_a_forked_process_does_not_remove_the_folder(place):
    with scratch_folder() as folder:
        child = os.fork()
        if not child:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(1)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
        assert folder.is_dir()
