"""Processes of flow runs that start by a fork of one that has imported everything (`fedcore.flows.template`).

Prefect's runner starts a process for every run with `run_process`, which it looks up in its module so that it can be
replaced; `forking` does that. Whatever is not as it should be (the template is not ready yet, has died, has more than
one thread, cannot fork, is older than the installed code) is answered by Prefect's own way, which takes longer and is
otherwise the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import prefect
import prefect.runner._starter_engine as starter
from fedcore.flows.server import SAFE_PATH
from prefect.utilities.processutils import get_sys_executable

import fedcore

ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
LOST = 1  # exit status of a run whose template died before it: nobody knows its own
LOOK = 0.5  # seconds between looks at such a run
TO_END = 5.0  # seconds that a run has for its end when the runner stops, before it is killed


def installed() -> tuple[Any, ...]:
    """Tells the code that is installed from that of before an upgrade, whose files are new ones."""
    found: list[tuple[int, int] | None] = []
    for package in (fedcore, prefect):
        try:
            state = os.stat(str(package.__file__))
            found.append((state.st_ino, state.st_mtime_ns))
        except OSError:  # in the course of one
            found.append(None)
    return tuple(found)


class Forked:
    """A run's process, as far as Prefect's runner looks at it."""

    def __init__(self, pid: int):
        self.pid = pid
        self.returncode: int | None = None
        self.ended = asyncio.Event()

    def end(self, status: int) -> None:
        self.returncode = status
        self.ended.set()

    def send(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Template:
    """The process that forks, as its parent sees it; started at once, and again after it died."""

    def __init__(self) -> None:
        self.runs: dict[int, Forked] = {}
        self.asked: dict[int, asyncio.Future[Forked | None]] = {}
        self.number = 0
        self.ready = False
        self.reading: asyncio.Task[None] | None = None
        self.writer: asyncio.StreamWriter
        self.begin()

    def begin(self) -> None:
        self.ours, theirs = socket.socketpair()
        self.code = installed()
        command = [get_sys_executable(), "-m", "fedcore.flows.template", str(theirs.fileno())]
        environment = {**os.environ, **dict.fromkeys(ONE_THREAD, "1"), **SAFE_PATH}
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], close_fds=True
        )
        theirs.close()

    def close(self) -> None:
        self.ours.close()
        try:
            self.process.wait(TO_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    async def fork(self, env: Mapping[str, str], cwd: Any) -> Forked | None:
        """A new run's process; None if there is none to be had this way."""
        if self.reading is None or self.reading.done():
            if self.reading is not None:  # it died
                self.writer.close()
                self.process.wait()
                self.begin()
            reader, self.writer = await asyncio.open_unix_connection(sock=self.ours)
            self.reading = asyncio.create_task(self._read(reader))
            await asyncio.sleep(0)
        if not self.ready:
            return None
        if self.code != installed():  # what a run imports late would be of another version than what it has
            if not self.runs and not self.asked:
                self.writer.close()
            return None
        self.number += 1
        answer = self.asked[self.number] = asyncio.get_running_loop().create_future()
        asked = {"number": self.number, "env": dict(env), "cwd": None if cwd is None else str(cwd)}
        with suppress(OSError):
            self.writer.write(json.dumps(asked).encode() + b"\n")
            await self.writer.drain()
        return await answer

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while line := await reader.readline():
                self._hear(json.loads(line))
        self.ready = False
        for answer in self.asked.values():
            if not answer.done():
                answer.set_result(None)
        self.asked.clear()
        await asyncio.gather(*(_watch(run) for run in self.runs.values()))
        self.runs.clear()

    def _hear(self, told: dict[str, Any]) -> None:
        if "ready" in told:
            self.ready = True
        elif "number" in told:
            run = Forked(told["pid"]) if "pid" in told else None
            if run is not None:
                self.runs[run.pid] = run
            answer = self.asked.pop(told["number"])
            if not answer.done():
                answer.set_result(run)
            elif run is not None:  # who asked was cancelled
                run.send(signal.SIGTERM)
        else:
            self.runs.pop(told["pid"]).end(told["status"])


async def _watch(run: Forked) -> None:
    """Until the process is gone, of which nobody will tell how it ended, unless it has become a child of this one: the
    first of a container gets orphans, and has to reap them."""
    while run.returncode is None:
        try:
            pid, status = os.waitpid(run.pid, os.WNOHANG)
        except ChildProcessError:
            pid, status = 0, 0
        try:
            os.kill(run.pid, 0)
        except ProcessLookupError:
            run.end(os.waitstatus_to_exitcode(status) if pid else LOST)
        else:
            await asyncio.sleep(LOOK)


@contextmanager
def forking() -> Iterator[None]:
    """Inside, runs of Prefect's runner start by a fork, where that is safe: on Linux."""
    if sys.platform != "linux":
        yield
        return
    runner: Any = starter  # whose `run_process` is typed as overloaded
    plain, template = runner.run_process, Template()

    async def run_process(
        command: list[str],
        *,
        task_status: Any = None,
        task_status_handler: Callable[[Any], Any] | None = None,
        env: Mapping[str, str],
        cwd: Any = None,
        **others: Any,
    ) -> Any:
        run = None
        if command == [get_sys_executable(), "-m", "prefect.engine"] and others.keys() <= {"stream_output"}:
            run = await template.fork(env, cwd)
        if run is None:
            return await plain(
                command, task_status=task_status, task_status_handler=task_status_handler, env=env, cwd=cwd, **others
            )
        try:
            if task_status is not None:
                task_status.started(run.pid if task_status_handler is None else task_status_handler(run))
            await run.ended.wait()
        finally:
            run.send(signal.SIGTERM)
            with anyio.CancelScope(shield=True), anyio.move_on_after(TO_END):
                await run.ended.wait()
            run.send(signal.SIGKILL)
        return run

    runner.run_process = run_process
    try:
        yield
    finally:
        runner.run_process = plain
        template.close()
