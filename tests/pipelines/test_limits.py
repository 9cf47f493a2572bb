"""Who waits for whom at one population, on a real Prefect server."""

import os
import subprocess
import sys
from contextlib import ExitStack

import pytest

from tests.flows.test_prefect import HERE, first, prefect_server

__all__ = ["prefect_server"]
HOLD = """
import sys, time
from pathlib import Path
from fedcore.flows.limits import using
population, use, name = sys.argv[1:]
with using(population, use):
    Path(f"{name}.in").touch()
    while not Path(f"{name}.out").exists():
        time.sleep(0.1)
"""
LIMIT = "import sys; from fedcore.flows.limits import make_limits; make_limits({sys.argv[1]: 2})"
KILLED = 120.0  # a place is held for a minute after its holder renewed it last, and others look at times


class Holders:
    """Processes that take a place at the population and keep it until they are told."""

    def __init__(self, server, folder, stack):
        self.folder, self.stack, self.running = folder, stack, {}
        self.environment = os.environ | {"PREFECT_API_URL": server + "/api", "PYTHONPATH": str(HERE)}

    def call(self, code, *arguments):
        command = [sys.executable, "-c", code, str(self.folder / "population"), *arguments]
        return subprocess.Popen(command, env=self.environment, cwd=self.folder)

    def come(self, use, *names):
        for name in names:
            process = self.running[name] = self.call(HOLD, use, name)
            self.stack.callback(process.wait)
            self.stack.callback(process.kill)

    def inside(self, *names, seconds=60.0):
        return first(lambda: all((self.folder / f"{name}.in").exists() for name in names), seconds)

    def go(self, name):
        (self.folder / f"{name}.out").touch()
        assert self.running[name].wait(60) == 0


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.prefect
def test_a_second_writer_and_a_reader_too_many_wait(prefect_server, tmp_path):
    with ExitStack() as stack:
        at = Holders(prefect_server, tmp_path, stack)
        assert at.call(LIMIT).wait(120) == 0
        at.come("writes", "writer")
        at.come("reads", "reader", "other")
        assert at.inside("writer", "reader", "other"), "readers do not wait for a writer, whose version is a new one"
        at.come("writes", "next")
        at.come("reads", "third")
        assert not at.inside("next", seconds=15) and not at.inside("third", seconds=1)
        at.go("reader")
        assert at.inside("third") and not (tmp_path / "next.in").exists()
        at.running["writer"].kill()
        assert at.inside("next", seconds=KILLED), "who was killed holds its place for a minute, and no longer"
