"""A Dask cluster on hosts of their own, with a store and a ledger behind a relay, and what can be done to it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.namespaces import SERVER, Hosts, serving, until
from tests.postgres import postgres_server
from tests.relay import BUCKET
from tests.tls import certificate, tls_environment

WORKERS = ("w1", "w2", "w3")
FLOWS = ("a", "b")
NAMES = ("scheduler", *WORKERS, *FLOWS)
FIRST_USER, NET = 47300, "10.79"
SCHEDULER, WORKER, LEDGER, POSTGRES = 8786, 9100, 5432, 5433  # ports; the last one, behind the relay


class Cluster:
    """The hosts, with the processes of Dask on them."""

    def __init__(self, made: Hosts) -> None:
        self.made = made
        self.dask: dict[str, subprocess.Popen[Any]] = {}
        self.stamp = 0

    @property
    def address(self) -> str:
        return f"tls://{self.made.address('scheduler', 1)}:{SCHEDULER}"

    def serve(self, *names: str) -> None:
        """Start Dask's processes at these hosts, and wait until the scheduler knows all workers."""
        for name in names:
            made, listening = self.made, f"{self.made.address(name, 2)}"
            if name == "scheduler":
                command = ["scheduler", "--protocol", "tls", "--host", listening, "--port", str(SCHEDULER)]
            else:
                ends = [f"tls://{made.address(name, end)}:{WORKER}" for end in (2, 1)]
                command = ["worker", self.address, "--nthreads", "1", "--name", f"{name}-{time.time():.0f}"]
                command += ["--listen-address", ends[0], "--contact-address", ends[1]]
            (made.home(name) / "dask.log").unlink(missing_ok=True)
            started = made.start(name, sys.executable, "-m", "dask", *command, "--no-dashboard", output="dask.log")
            self.dask[name] = started
            if name == "scheduler":  # the relay accepts for it, and a worker takes a closed TLS handshake for final
                until(lambda: "Scheduler at" in self.said("scheduler"), 120)
        workers = [name for name in names if name != "scheduler"]
        until(lambda: all("Registered to" in self.said(name) for name in workers), 120)

    def said(self, name: str) -> str:
        file = self.made.home(name) / "dask.log"
        return file.read_text() if file.exists() else ""

    def lose(self, name: str) -> None:
        """As if the power of a host failed: its cable is silent, and its processes are gone."""
        self.made.plug(name, False)
        inside = ["ip", "netns", "pids", f"{self.made.tag}-{name}"]
        for process in subprocess.run(inside, capture_output=True, text=True, check=True).stdout.split():
            os.kill(int(process), signal.SIGKILL)

    def repair(self) -> None:
        """End all faults, and start again what is gone: a worker ends when its scheduler does not answer."""
        self.faults()
        gone = [name for name, process in self.dask.items() if process.poll() is not None]
        if "scheduler" in gone:
            gone = [*self.dask]
        for name in gone:
            self.lose(name)
        for name in gone:
            self.made.plug(name, True)
        self.serve(*gone)

    def faults(self, **found: Any) -> None:
        """Give the relay what goes wrong from now on."""
        self.stamp += 1
        file = self.made.home(SERVER) / "faults.json"
        new = file.with_suffix(".new")
        new.write_text(json.dumps({**found, "stamp": self.stamp}))
        os.chmod(new, 0o644)
        os.replace(new, file)

    def cut(self, *pairs: tuple[str, str]) -> None:
        self.faults(cut=[*pairs, *(pair[::-1] for pair in pairs)])

    def heard(self) -> list[str]:
        file = self.made.home(SERVER) / "heard"
        return [line.partition(" ")[2] for line in file.read_text().splitlines()] if file.exists() else []

    def commits(self, run: str) -> int:
        return sum(line.split()[1:] == ["PUT", f"/{BUCKET}/runs/{run}/head.json"] for line in self.heard())


@contextmanager
def cluster(folder: Path, late: float) -> Iterator[Cluster]:
    ledger = f"postgresql+psycopg://owner@{{}}:{LEDGER}/ledger"
    made = Hosts(folder, NAMES, NET, FIRST_USER, meet=True)
    no_spilling = {f"DASK_DISTRIBUTED__WORKER__MEMORY__{name}": "False" for name in ("SPILL", "TARGET")}
    made.more = {
        name: {
            **(tls_environment(made.home(name)) | no_spilling),
            "DASK_TEMPORARY_DIRECTORY": str(made.home(name) / "dask"),
            "FEDCORE_LEDGER": ledger.format(made.address(name, 1)),
        }
        for name in NAMES
    }
    routes: list[tuple[str, str, int, str, int]] = [("ledger", "", LEDGER, "127.0.0.1", POSTGRES)]
    for name in ("scheduler", *WORKERS):
        port = SCHEDULER if name == "scheduler" else WORKER
        routes += [(name, made.address(name, 1), port, made.address(name, 2), port)]
    relay = {"delay": late, "cuts": 0.0, "seed": 1, "routes": routes, "heard": "heard", "faults": "faults.json"}
    with ExitStack() as stack:
        stack.enter_context(serving(made, **relay))
        stack.enter_context(postgres_server(POSTGRES, made.inside(SERVER)))
        certificate(folder)
        for name in NAMES:
            home = made.home(name)
            for file in ("cert.pem", "key.pem"):
                shutil.copy(folder / file, home / file)
                os.chown(home / file, made.user(name), made.user(name))
                os.chmod(home / file, 0o600)
            (home / "dask").mkdir(mode=0o700)
            os.chown(home / "dask", made.user(name), made.user(name))
        (folder / "key.pem").unlink()
        yield Cluster(made)
