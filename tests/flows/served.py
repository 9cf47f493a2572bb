"""Many private runs that `fedcore up` serves, some of whose processes are killed by SIGKILL, now and then together with
`fedcore up` itself. Afterwards: how long a dead run was shown as Running, and how large Prefect's database is before
and after old artifacts are removed.

    python -m tests.flows.served --runs 100 --kills 30 --dir FOLDER [--minutes 20]
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fedcore.flows import dead, server
from fedcore.flows.announce import ask
from fedcore.flows.pruning import prune

from tests.flows.test_prefect import first

FILE = """
[[population]]
path = "population"
source = "first.csv"
client = "client"
features = 5
nominal_clients = 12

[population.budget]
epsilon = 60.0
delta = 1e-6
public_schema = "made up"

[storage]
ledger = "sqlite:///ledger.sqlite"

[[deployment]]
name = "closed"
method = "histograms"
population = "population"
retention = 3
config = { epsilon = 0.5, clusters = 2, rounds = 2, anyway = true }
"""
ROWS = "client,token,count\n" + "".join(f"c{number},{number % 5},1\n" for number in range(12))
WITH_ALL = 6  # every so many kills `fedcore up` dies with the run
ENDS = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


@dataclass
class Seen:
    """states: of flow runs; shown: seconds for which a dead run was shown as Running; sizes: of Prefect's database,
    bytes, before and after artifacts were removed; removed: artifacts.
    """

    states: dict[str, int] = field(default_factory=dict)
    shown: list[float] = field(default_factory=list)
    sizes: tuple[int, int] = (0, 0)
    removed: int = 0
    ups: int = 0


class Up:
    """`fedcore up` of a folder."""

    def __init__(self, folder: Path):
        self.log = folder / f"up-{time.monotonic_ns()}.log"
        with open(os.open(self.log, os.O_CREAT | os.O_WRONLY, 0o600), "w") as log:
            command = [sys.executable, "-m", "fedcore.cli", "up", str(folder / "fedcore.toml")]
            self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=log)
        found = first(lambda: re.search(r"^Prefect UI: (\S+)$[\s\S]*^Login: (\S+)", self.log.read_text(), re.M), 300)
        assert found, self.log.read_text()
        self.address = f"{found[1]}/api"
        os.environ[server.GIVEN] = found[2]
        assert first(self.deployment, 120), "it is registered"

    def deployment(self) -> str | None:
        return next((one["id"] for one in ask(self.address, "/deployments/filter", {}) if not one["paused"]), None)

    def start(self) -> str:
        """The id of a flow run that is started now."""
        return str(ask(self.address, f"/deployments/{self.deployment()}/create_flow_run", {})["id"])

    def state(self, id: str) -> dict[str, Any]:
        return dict(dead.flow_runs(self.address, ("SCHEDULED", "PENDING", *dead.GOING_ON, *ENDS), id={"any_": [id]})[0])

    def wait(self, id: str, seconds: float) -> None:
        """Until this flow run is shown as ended."""
        assert first(lambda: self.state(id)["state_type"] in ENDS, seconds), self.state(id)

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait(120)


@contextmanager
def environment(folder: Path) -> Iterator[None]:
    """A folder of Prefect's own, and no server that is known."""
    before = {name: os.environ.pop(name, None) for name in ("PREFECT_API_URL", server.ASKED_FOR, server.GIVEN)}
    own = {"PREFECT_HOME": str(folder / "prefect"), "PREFECT_RUNNER_POLL_FREQUENCY": "1"}
    with server.environment(own):
        yield
    os.environ.update({name: value for name, value in before.items() if value is not None})


def lived(folder: Path, runs: int, kills: int, seed: int = 1, minutes: float = float("inf")) -> Seen:
    """Make so many runs one after the other, or fewer if they take longer. Raises AssertionError if a run is shown as
    what it is not.
    """
    folder.mkdir(parents=True)
    (folder / "first.csv").write_text(ROWS)
    (folder / "fedcore.toml").write_text(FILE)
    draw, seen = random.Random(seed), Seen(ups=1)
    killed = sorted(draw.sample(range(runs), kills))
    until = time.monotonic() + 60 * minutes
    with environment(folder):
        up = Up(folder)
        try:
            for number in range(runs):
                if time.monotonic() > until:
                    break
                id = up.start()
                if number in killed:
                    up = _kill(folder, up, id, draw, seen, killed.index(number) % WITH_ALL == WITH_ALL - 1)
                up.wait(id, 600)
            assert dead.flow_runs(up.address) == [], "nothing is shown as Running"
            every = dead.flow_runs(up.address, ENDS)
            seen.states = dict(Counter(run["state_name"] for run in every))
            before = _live_bytes(folder)
            seen.removed = prune(up.address, 0.0, datetime.now(UTC) + timedelta(minutes=1))
            seen.sizes = (before, _live_bytes(folder))
        finally:
            up.end(signal.SIGTERM)
    return seen


def _kill(folder: Path, up: Up, id: str, draw: random.Random, seen: Seen, all: bool) -> Up:
    """Kill the process of a flow run as soon as it has noted which it is, or a little later; if `all`, `fedcore up`
    first. Waits until the run is shown as ended. Returns the `fedcore up` that serves then.
    """
    holder = first(lambda: dead.noted(up.state(id)) or up.state(id)["state_type"] in ENDS, 300)
    assert not isinstance(holder, bool), up.state(id)
    time.sleep(draw.random())
    if all:
        up.end(signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(holder.pid, signal.SIGKILL)
    if all:
        up, seen.ups = Up(folder), seen.ups + 1
    died = time.monotonic()
    up.wait(id, 180)
    seen.shown.append(time.monotonic() - died)
    return up


def _live_bytes(folder: Path) -> int:
    """Of Prefect's database, without pages that are free."""
    copy = folder / "copy.db"
    copy.unlink(missing_ok=True)
    with sqlite3.connect(folder / "prefect" / "prefect.db", timeout=60) as database:
        database.execute("VACUUM INTO ?", (str(copy),))
    return copy.stat().st_size


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no run is started")
    parser.add_argument("--dir", type=Path, required=True, help="a folder to make")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    seen = lived(given.dir.resolve(), given.runs, given.kills, given.seed, given.minutes)
    before, after = (size / 2**20 for size in seen.sizes)
    print(f"{sum(seen.states.values())} runs, {len(seen.shown)} kills, {seen.ups} starts of fedcore up: {seen.states}")
    print(f"a dead run was shown as Running for at most {max(seen.shown, default=0):.0f} s; none is at the end")
    print(f"Prefect's database: {before:.1f} MiB, {after:.1f} MiB after {seen.removed} artifacts were removed")
    print(f"{time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
