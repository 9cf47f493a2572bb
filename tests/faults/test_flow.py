"""SIGKILL of a Prefect flow; the command line resumes its run without Prefect, and a damaged run is one message."""

import json
import os
import shutil
import subprocess
import sys

import psutil
import pytest
from fedcore.flows.server import STOP_SECONDS

from fedcore.runs.store import load_run
from tests.faults.place import KILLED, same_result

FLOW = """
import json, sys
from pathlib import Path
from tests.faults.driver import Kill, count_steps
from fedcore.flows.train import Compute, FLOWS
from fedcore.methods.histograms.config import HistogramsConfig

count_steps(Path(sys.argv[2]), Kill("publish", "after", 3))
request = json.loads(sys.argv[1])
FLOWS[request.pop("method")](config=HistogramsConfig(**request.pop("settings")), compute=Compute(workers=1), **request)
"""


COMMAND = "from fedcore.cli import main; main()"


def lives_in(home: str, process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get("PREFECT_HOME") == home
    except (psutil.AccessDenied, psutil.NoSuchProcess):
        return False


@pytest.fixture
def prefect_home(tmp_path, prefect_database):
    """A home of Prefect of its own. The server that a killed flow had started ends by itself."""
    home = str(tmp_path / "prefect")
    os.mkdir(home)
    shutil.copy(prefect_database, home)
    yield home
    servers = [process for process in psutil.process_iter() if lives_in(home, process)]
    _, alive = psutil.wait_procs(servers, timeout=2 * STOP_SECONDS)
    for process in alive:
        process.kill()
    assert not alive, "the server outlived the flow that had started it"


@pytest.mark.slow
@pytest.mark.prefect
def test_a_flow_killed_after_a_publication(place, undisturbed, prefect_home, tmp_path):
    here = place("test noise")
    environment = os.environ | {"PREFECT_HOME": prefect_home}
    environment.pop("PREFECT_API_URL", None)

    def run(*arguments):
        # Files and not pipes, which a server that outlives the flow for a moment would keep open.
        with open(tmp_path / "out", "w+") as out, open(tmp_path / "err", "w+") as err:
            code = subprocess.run(
                [sys.executable, *arguments], env=environment, stdout=out, stderr=err, timeout=200
            ).returncode
        return code, (tmp_path / "out").read_text(), (tmp_path / "err").read_text()

    code, _, errors = run("-c", FLOW, json.dumps(here.request()), str(here.folder / "tally"))
    assert code == KILLED, errors[-2000:]
    before = here.published()
    assert len(before) == 3 and load_run(here.run_path).head["round"] == 2
    code, told, errors = run("-c", COMMAND, "resume", str(here.run_path), "--local", "--json")
    assert code == 0, errors[-2000:]
    assert json.loads(told)["status"] == "finished"
    assert same_result(load_run(here.run_path), undisturbed["test noise"])
    assert before.items() <= here.published().items()
    here.check_ledger(forfeited=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["head.json", "run.json"])
def test_the_command_line_says_what_is_damaged(place, name):
    here = place("plain")
    session = here.start()
    session.training.step()
    session.close()
    (here.run_path / name).write_text("{")
    answer = subprocess.run(
        [sys.executable, "-c", COMMAND, "resume", str(here.run_path), "--local"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert answer.returncode == 2
    assert name in answer.stderr and "Traceback" not in answer.stderr
