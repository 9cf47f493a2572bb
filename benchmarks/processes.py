"""Whole processes: what they and their descendants take of the CPU, and a Prefect server that benchmarks have to
themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter, sleep

import psutil
from fedcore.flows.server import authorization, server

from benchmarks.command import children_cpu

QUIET = 0.1  # CPU-seconds in a second: a server that has nothing left to do takes less
PATIENCE = 20.0  # seconds that a server may take to be done with what it was sent


@dataclass(frozen=True)
class Taken:
    """seconds: that passed. cpu: of the process and all its descendants that were waited for. out: what it printed."""

    seconds: float
    cpu: float
    out: str


def taken(words: Sequence[str], folder: Path | None = None, **environment: str) -> Taken:
    """A Python process: `python WORDS`, in the folder. Its bytecode is cached, as that of an installed package.

    Raises RuntimeError with what it said if it failed.
    """
    given = {**os.environ, "PREFECT_LOGGING_LEVEL": "WARNING", **environment}
    given.pop("PYTHONDONTWRITEBYTECODE", None)
    began = perf_counter()
    with subprocess.Popen(
        [sys.executable, *words], env=given, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        before = children_cpu()
        out, said = process.communicate()
    seconds, cpu = perf_counter() - began, children_cpu() - before
    if process.returncode:
        raise RuntimeError(said.strip()[-2000:] or f"{words[:3]} ended with {process.returncode}")
    return Taken(seconds, cpu, out)


class Server:
    """A Prefect server in a process of its own."""

    def __init__(self, base: str, process: psutil.Process):
        self.api = f"{base}/api"
        self.process = process

    def cpu(self) -> float:
        """CPU-seconds so far, of all its processes."""
        total = 0.0
        for process in [self.process, *self.process.children(recursive=True)]:
            spent = process.cpu_times()
            total += spent.user + spent.system
        return total

    def settle(self) -> None:
        """Wait until it has dealt with what it was sent."""
        until, last = monotonic() + PATIENCE, self.cpu()
        while monotonic() < until:
            sleep(1.0)
            now = self.cpu()
            if now - last < QUIET:
                return
            last = now

    def idle(self, seconds: float = 10.0) -> float:
        """CPU-seconds in a second in which nobody asks anything."""
        self.settle()
        before = self.cpu()
        sleep(seconds)
        return (self.cpu() - before) / seconds

    def task_runs(self) -> int:
        """Of all flow runs so far."""
        headers = {"content-type": "application/json"} | authorization()
        request = urllib.request.Request(f"{self.api}/task_runs/count", b"{}", headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


@contextmanager
def own_server(folder: Path) -> Iterator[Server]:
    """A fresh server on loopback, with its database in `folder`; ended afterwards."""
    import fedcore.flows  # noqa: F401  makes the settings of every process that is started here

    with _set({"PREFECT_HOME": str(folder), "PREFECT_API_URL": None}):
        before = {child.pid for child in psutil.Process().children()}
        with server() as base:
            process = next(child for child in psutil.Process().children() if child.pid not in before)
            found = Server(base, process)
            found.settle()
            yield found


@contextmanager
def _set(values: Mapping[str, str | None]) -> Iterator[None]:
    """Environment variables, None for one that is not there, and as they were afterwards."""
    kept = {name: os.environ.get(name) for name in values}

    def change(to: Mapping[str, str | None]) -> None:
        for name, value in to.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

    change(values)
    try:
        yield
    finally:
        change(kept)
