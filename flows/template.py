"""A process that has imported what runs need and forks one for each: `python -m fedcore.flows.template DESCRIPTOR`.

`fedcore.flows.forking` starts it, and asks through the socket of that descriptor, with a JSON object in each line:

    asked   {"number", "env", "cwd"}
    told    {"ready": true}, once; {"number", "pid"} or {"number", "error"}; {"pid", "status"} when a run has ended

It forks only while it has a single thread: a lock that another thread holds would stay locked in the copy for ever. It
ends when the socket is closed, and its runs go on.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from typing import Any

ENGINE = "prefect.engine"  # what Prefect starts a process with for each run


def threads() -> int:
    """Of this process, also those of libraries."""
    return len(os.listdir("/proc/self/task"))


def load() -> None:
    """What every run imports. That of methods is imported by those that use it."""
    import fedcore.flows.pipeline
    import fedcore.flows.train
    import prefect._internal.metrics
    import prefect.engine
    import prefect.flow_engine  # noqa: F401

    import fedcore.evaluation.report
    import fedcore.operations.in_process  # noqa: F401


def forked(connection: socket.socket) -> dict[str, Any] | None:
    """Forks whatever is asked. Returns in every fork, with what was asked; None in this process, at the end."""
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # it wakes the loop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the runs have their own answer
    held = b""
    while True:
        ready = select.select([connection, woken], [], [])[0]
        if woken in ready:
            woken.recv(4096)
            _tell_ends(connection)
        if connection not in ready:
            continue
        piece = connection.recv(1 << 16)
        if not piece:
            return None
        *lines, held = (held + piece).split(b"\n")
        for line in lines:
            asked = json.loads(line)
            if (several := threads()) > 1:
                _tell(connection, {"number": asked["number"], "error": f"the template has {several} threads"})
                continue
            try:
                pid = os.fork()
            except OSError as error:
                _tell(connection, {"number": asked["number"], "error": error.strerror})
                continue
            if pid:
                _tell(connection, {"number": asked["number"], "pid": pid})
                continue
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for end in (connection, woken, wake):
                end.close()
            return asked


def _tell_ends(connection: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _tell(connection, {"pid": pid, "status": os.waitstatus_to_exitcode(status)})


def _tell(connection: socket.socket, told: dict[str, Any]) -> None:
    try:
        connection.sendall(json.dumps(told).encode() + b"\n")
    except OSError:
        pass  # nobody is there any more; the loop finds the end of the socket


def become(asked: dict[str, Any]) -> None:
    """Run Prefect's engine here as a new process would: with the environment, the folder and the settings asked for."""
    from prefect.context import refresh_global_settings_context
    from threadpoolctl import ThreadpoolController

    from fedcore.population.sizing import usable_cores

    os.environ.clear()
    os.environ.update(asked["env"])
    if asked["cwd"]:
        os.chdir(asked["cwd"])
    named = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or ""
    ThreadpoolController().limit(limits=int(named) if named.isdigit() else usable_cores())
    refresh_global_settings_context()
    sys.modules.pop(ENGINE, None)
    sys.argv = [ENGINE]
    runpy.run_module(ENGINE, run_name="__main__", alter_sys=True)


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    gc.disable()
    load()
    gc.freeze()
    gc.enable()
    _tell(connection, {"ready": True})
    asked = forked(connection)
    if asked is not None:
        become(asked)


if __name__ == "__main__":
    main()
