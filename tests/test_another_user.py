"""A private run, and another user of the machine who tries to get into it: nothing that listens lets it in, nothing
that the run keeps is for it to read. Without what closes the doors, the same attempts run code as the user of the run.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import dask
import psutil
import pytest
from fedcore.flows.server import port_taken
from fedcore.tasks.local_cluster import own_folder

from fedcore.runs.store import load_run
from tests.another_user import NOBODY
from tests.command import private_population
from tests.conftest import small_counts

ROOT = Path(__file__).parent.parent
PLANTED = "planted_by_somebody_else"
RUN = """
import sys
from pathlib import Path
from tests.faults.driver import Kill, count_steps, pause

def wait():
    try:
        import planted_by_somebody_else
    except ImportError:
        pass
    pause(until)

until = Path(sys.argv[1])
count_steps(until.with_suffix(".tally"), hooks={Kill("charge", "before", 2): wait})
"""
OPEN = """
import logging
from distributed import LocalCluster
from fedcore.flows.own_server import OwnServerFlow
from fedcore.tasks import dask_backend
dask_backend.local_cluster = lambda n: LocalCluster(
    n, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=logging.ERROR)
del OwnServerFlow.__call__
"""
TRAIN = """
from fedcore.cli import main
sys.argv = ["fedcore", *sys.argv[2:]]
main()
"""
SETTINGS = ["--set", "clusters=2", "--set", "rounds=2", "--set", "epsilon=4"]


def test_a_folder_for_temporary_files_that_somebody_else_has_made_is_not_used(tmp_path, monkeypatch):
    name = f"fedcore-{os.getuid()}"
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        assert own_folder() == own_folder() == str(tmp_path / name)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700
        (tmp_path / name).chmod(0o755)
        other = own_folder()
        assert other != str(tmp_path / name) and os.stat(other).st_mode & 0o777 == 0o700
        (tmp_path / name).rmdir()
        (tmp_path / name).symlink_to(other)
        assert own_folder() not in (other, str(tmp_path / name))
        if os.geteuid() == 0:
            (tmp_path / name).unlink()
            (tmp_path / name).mkdir(0o700)
            os.chown(tmp_path / name, NOBODY, NOBODY)
            assert own_folder() != str(tmp_path / name)


def test_nobody_takes_the_port_of_a_server_before_it_listens():
    with port_taken() as taken, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(taken.getsockname())


@pytest.fixture
def everybodys():
    """A folder like /tmp, in which another user has taken the names that Dask's folder and ours would have, and has
    put a module there.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    folder = Path(tempfile.mkdtemp(prefix="everybodys-"))
    folder.chmod(0o1777)
    planted = folder / "dask-scratch-space"
    planted.mkdir()
    (planted / f"{PLANTED}.py").write_text(f"open({str(folder / 'was-here')!r}, 'w').close()\n")
    for path in (planted, planted / f"{PLANTED}.py"):
        os.chown(path, NOBODY, NOBODY)
    planted.chmod(0o777)
    (folder / f"fedcore-{os.getuid()}").symlink_to(planted)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def paused(folder: Path, everybodys: Path, *before: str):
    """A private run by Prefect and two workers, in the middle of a round; afterwards it goes on and ends well."""
    population, _ = private_population(folder / "population", small_counts(400), leaf=4, block=16)
    until = folder / "until"
    where = ["--runs", str(folder / "runs"), "--run-id", "run", "--workers", "2"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", "".join([RUN, *before, TRAIN]), str(until)]
            + ["train", "histograms", str(population.path), *SETTINGS, *where],
            env=environment
            | {"TMPDIR": str(everybodys), "PREFECT_HOME": str(everybodys / "home"), "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
        )
        try:
            deadline = time.monotonic() + 240
            while not until.with_suffix(".here").exists():
                assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()[-3000:]
                time.sleep(0.1)
            yield psutil.Process(process.pid)
            until.touch()
            assert process.wait(240) == 0, (folder / "log").read_text()[-3000:]
            assert load_run(folder / "runs" / "run").head["status"] == "finished"
        finally:
            if process.poll() is None:
                family = [*psutil.Process(process.pid).children(recursive=True), process]
                for member in family:
                    member.kill()
                process.wait()


def attacked(run: psutil.Process, folder: Path, everybodys: Path) -> dict:
    """What another user gets of a run."""
    family = [run, *run.children(recursive=True)]
    sockets = [found for process in family for found in process.net_connections(kind="all")]
    assert not [found.laddr for found in sockets if isinstance(found.laddr, str) and found.laddr], "a socket in a file"
    ports = sorted({found.laddr.port for found in sockets if found.status == psutil.CONN_LISTEN})
    assert {found.laddr.ip for found in sockets if found.status == psutil.CONN_LISTEN} == {"127.0.0.1"}
    kept = sorted(everybodys.glob("fedcore-*/")) + [everybodys / "home", everybodys / "home" / "prefect.db"]
    ours = [str(path) for path in kept if not path.is_symlink()]
    what = {"ports": ports, "pids": [process.pid for process in family], "paths": ours, "scratch": str(everybodys)}
    (folder / "what.json").write_text(json.dumps(what))
    done = subprocess.run(
        [sys.executable, "-m", "tests.another_user", str(folder / "what.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout) | {"listening": len(ports), "family": len(family), "paths": len(ours)}


@pytest.mark.slow
@pytest.mark.prefect
def test_another_user_gets_nothing_of_a_private_run(tmp_path, everybodys):
    with paused(tmp_path, everybodys) as run:
        found = attacked(run, tmp_path, everybodys)
    assert found["user"] == NOBODY and found["lines"] == found["family"] >= 4 and found["paths"] == 3
    assert found["listening"] == 6, "a scheduler, two nannies, two workers, a Prefect server"
    assert found["entered"] == found["ran as"] == found["read"] == found["secrets in"] == []
    ((port, asked),) = found["prefect"].items()
    assert asked.pop("events").startswith("ConnectionClosed")
    assert asked == {"/health": 200, "/flow_runs/filter": 401, "/flows/": 401}
    assert {name: told.split("\r\n")[0] for name, told in found["told"].items()} == {
        f"{port} in the clear": "HTTP/1.1 404 Not Found"
    }, "the Prefect server has no pages; nothing else says a word"
    assert not (everybodys / "was-here").exists()


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.prefect
def test_the_same_user_gets_into_a_run_whose_doors_are_open(tmp_path, everybodys):
    with paused(tmp_path, everybodys, OPEN) as run:
        found = attacked(run, tmp_path, everybodys)
    assert found["ran as"] == [0, 0, 0], "code was run by the scheduler and both workers as the user of the run"
    assert found["listening"] > 6 and found["entered"]
    (asked,) = [answers for answers in found["prefect"].values() if answers["/health"] == 200]  # Dask has pages too
    assert asked == {"/health": 200, "/flow_runs/filter": 200, "/flows/": 201, "events": "auth_success"}
    assert (everybodys / "was-here").exists(), "the process of the run imported a module of somebody else's"
