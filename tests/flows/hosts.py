"""A Dask cluster of several hosts, and what can happen to it: `python -m tests.flows.hosts --dir FOLDER`, as root.

A scheduler, three workers and two hosts for flows (a, b) are network namespaces, and users, of their own. They share
an S3 server, which has the population and the runs, and a ledger in PostgreSQL. Every piece of data is 20 ms late in
each direction, also between the hosts. Scheduler and workers talk by TLS, as docs/several-hosts.md says.

It trains the same private model again and again, each time with another fault: connections that are cut, hosts that
are lost, a store that fails, two hosts that want the same run. Noise is that of tests, so that each run must end with
the bits of a run of one host on the same clients; where it ends with an error, `fedcore resume` must. In the end the
ledger must have charged each release of each run once. One line is printed for each fault. `--only` chooses some.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedcore.population.copying import copy_population
from fedcore.population.store import Population
from fedcore.population.synthetic import synthesise
from fedcore.privacy.ledger.ledger import create_ledger, default_ledger_url, open_ledger
from fedcore.runs.store import LoadedRun, load_run
from tests.faults.place import bits, told
from tests.flows.host_cluster import FLOWS, WORKERS, Cluster, cluster
from tests.namespaces import LIMIT, Hosts, until
from tests.relay import BUCKET

LATE = 0.02
SETTINGS = {"clusters": 2, "rounds": 3, "epsilon": 0.5}
POPULATION, RUNS = f"s3://{BUCKET}/pop", f"s3://{BUCKET}/runs"
CLIENTS_PER_BLOCK = 32768
BUDGET = (20.0, 1e-9)
COMMITS = 2  # before a fault: the first state, and the first round


# --- what runs at the hosts -------------------------------------------------------------------------------------------


def populate(place: Path, clients: int) -> Population:
    """Counts of 20 words, 10 of each client, with a budget in the ledger of this host."""
    ledger = create_ledger(default_ledger_url(), test=True)
    sizes = {"clients": clients, "features": 20, "clusters": 2, "tokens": 10, "test_tokens": 0, "heldout_clients": 0}
    known = {"id": ledger.id, "url": ledger.url}
    made = synthesise(place, "reddit-like", 1, sizes, clients_per_block=CLIENTS_PER_BLOCK, ledger=known)
    ledger.register(made.id)
    ledger.set_budget(made.id, *BUDGET)
    return made


def digest(found: LoadedRun) -> str:
    """Of what a run has come to, without the seconds."""
    value = (found.head["status"], found.head["round"], bits(found.state), told(found))
    return hashlib.sha256(repr(value).encode()).hexdigest()


def state(names: Sequence[str]) -> dict[str, Any]:
    """What has come of each run, and how often the ledger has charged each of its releases."""
    population = Population.open(POPULATION)
    ledger = open_ledger(default_ledger_url())
    balance, charged = ledger.verify(population.id), Counter()
    for record in ledger.history(population.id):
        if record["kind"] == "charge":
            charged[record["run_id"]] += 1
    found = {"reserved": balance.rho_reserved, "releases": balance.releases, "runs": {}}
    for name in names:
        run = load_run(f"{RUNS}/{name}")
        known = {"digest": digest(run), "plan": len(run.info["plan"]), "charged": charged[name]}
        found["runs"][name] = {**known, "status": run.head["status"], "round": run.head["round"]}
    return found


def perform(task: str, rest: Sequence[str]) -> None:
    """Done at a host, in a process of its own; prints JSON."""
    if task == "near":  # the population of one host, in its folder
        populate(Path("pop"), int(rest[0]))
        print(json.dumps(None))
    elif task == "far":
        populate(Path("pop"), int(rest[0]))
        copy_population(Path("pop"), POPULATION)
        shutil.rmtree("pop")
        print(json.dumps(None))
    elif task == "digest":
        print(json.dumps(digest(load_run(rest[0]))))
    elif task == "state":
        print(json.dumps(state(rest)))


def at(made: Hosts, host: str, *task: str) -> Any:
    said = made.says(host, sys.executable, "-m", "tests.flows.hosts", "--task", *task)
    return json.loads(said.splitlines()[-1])


# --- the faults -------------------------------------------------------------------------------------------------------


class Try:
    """One run, from its start to its end, at host a; `row` says what was seen."""

    def __init__(self, on: Cluster, name: str) -> None:
        self.on, self.name = on, name
        self.row: dict[str, Any] = {"fault": name}
        self.started = 0.0

    def train(self, host: str = "a") -> subprocess.Popen[Any]:
        return self.start(host, "train", "histograms", POPULATION, "--runs", RUNS, "--run-id", self.name, *ASKED)

    def resume(self, host: str = "a") -> subprocess.Popen[Any]:
        return self.start(host, "resume", f"{RUNS}/{self.name}")

    def start(self, host: str, *command: str) -> subprocess.Popen[Any]:
        self.started = time.monotonic()
        shared = ("--local", "--dask", self.on.address, "--cache", "0")
        return self.on.made.start(host, "fedcore", *command, *shared, output=f"{self.name}.log")

    def said(self, host: str = "a") -> str:
        return (self.on.made.home(host) / f"{self.name}.log").read_text()

    def in_a_round(self, process: subprocess.Popen[Any]) -> None:
        """Wait until a round has begun, after the first commits."""
        until(lambda: self.on.commits(self.name) >= COMMITS or process.poll() is not None, LIMIT, 0.05)
        assert process.poll() is None, self.said()
        time.sleep(0.5)
        assert self.on.commits(self.name) == COMMITS, "the round was over already"

    def ends(self, process: subprocess.Popen[Any], host: str = "a", what: str = "") -> bool:
        """Wait for it, and note how it ended. Returns whether it has finished the run."""
        code = process.wait(LIMIT)
        seconds = time.monotonic() - self.started
        self.row.setdefault("seconds", []).append(round(seconds, 1))
        if code != 0:
            said = self.said(host)
            last = " ".join(said.splitlines()[-3:])[-400:]
            self.row.setdefault("errors", []).append(f"{what}{host}, exit {code}: {last}")
            assert code == 2, said[-3000:]  # an error that has a name
        return code == 0


ASKED = [f"--set={name}={value}" for name, value in SETTINGS.items()] + ["--test-noise", "a key"]
Fault = Callable[[Cluster, Try], None]


def must_end(run: Try, process: subprocess.Popen[Any], host: str = "a") -> None:
    """The run must end, if need be by a resume."""
    if not run.ends(process, host):
        assert run.ends(run.resume(host), host, "resume at "), run.row


def no_fault(on: Cluster, run: Try) -> None:
    must_end(run, run.train())


def worker_cut_from_the_scheduler(on: Cluster, run: Try) -> None:
    process = run.train()
    run.in_a_round(process)
    on.cut(("w1", "scheduler"))
    must_end(run, process)


def workers_cut_from_the_store(on: Cluster, run: Try) -> None:
    process = run.train()
    run.in_a_round(process)
    for _ in range(5):
        on.cut(*((name, "store") for name in WORKERS))
        time.sleep(0.5)
    must_end(run, process)


def flow_cut_from_everything(on: Cluster, run: Try) -> None:
    process = run.train()
    run.in_a_round(process)
    for _ in range(3):
        on.cut(("a", "store"), ("a", "ledger"))
        time.sleep(1)
    must_end(run, process)


def flow_cut_from_the_scheduler(on: Cluster, run: Try) -> None:
    process = run.train()
    run.in_a_round(process)
    on.cut(("a", "scheduler"))
    must_end(run, process)


def cable_pulled_for_ten_seconds(on: Cluster, run: Try) -> None:
    process = run.train()
    run.in_a_round(process)
    on.made.plug("w2", False)
    time.sleep(10)
    on.made.plug("w2", True)
    must_end(run, process)


def worker_host_lost(on: Cluster, run: Try) -> None:
    process = run.train()
    run.in_a_round(process)
    on.lose("w2")
    must_end(run, process)


def scheduler_host_lost(on: Cluster, run: Try) -> None:
    process = run.train()
    run.in_a_round(process)
    on.lose("scheduler")
    assert not run.ends(process), run.row
    on.repair()
    assert run.ends(run.resume(), what="resume at "), run.row


def flow_host_lost(on: Cluster, run: Try) -> None:
    """Another host continues."""
    process = run.train()
    run.in_a_round(process)
    on.lose("a")
    process.wait()
    assert run.ends(run.resume("b"), "b", "resume at "), run.row
    on.made.plug("a", True)


def two_hosts_resume_one_run(on: Cluster, run: Try) -> None:
    """One is refused, and the other one finishes it."""
    process = run.train()
    run.in_a_round(process)
    process.kill()
    process.wait()
    one_finishes(run, {host: run.resume(host) for host in FLOWS})


def one_finishes(run: Try, both: dict[str, subprocess.Popen[Any]]) -> None:
    ended = {host: run.ends(process, host) for host, process in both.items()}
    assert sorted(ended.values()) == [False, True], run.row


def two_hosts_start_one_run(on: Cluster, run: Try) -> None:
    one_finishes(run, {host: run.train(host) for host in FLOWS})


def store(kind: str, share: float, seconds: float = 0.0, lasts: float = LIMIT) -> Fault:
    def fault(on: Cluster, run: Try) -> None:
        process = run.train()
        run.in_a_round(process)
        before = len(on.heard())
        on.faults(store=kind, share=share, seconds=seconds)
        with suppress(subprocess.TimeoutExpired):
            process.wait(lasts)
        on.faults()
        run.row["struck"] = sum(line == f"fault {kind}" for line in on.heard()[before:])
        must_end(run, process)

    return fault


FAULTS: dict[str, Fault] = {
    "none": no_fault,
    "flow-lost": flow_host_lost,
    "resume-twice": two_hosts_resume_one_run,
    "start-twice": two_hosts_start_one_run,
    "store-503-all": store("503", 1.0, lasts=60.0),
    "store-very-slow": store("slow", 1.0, 30.0, lasts=60.0),
    "store-503": store("503", 0.1),
    "store-slow": store("slow", 0.1, 3.0),
    "store-body": store("body", 0.1),
    "client-cut": flow_cut_from_the_scheduler,
    "flow-cut": flow_cut_from_everything,
    "cable-10s": cable_pulled_for_ten_seconds,
    "worker-lost": worker_host_lost,
    "scheduler-lost": scheduler_host_lost,
    "store-cut": workers_cut_from_the_store,
    "worker-cut": worker_cut_from_the_scheduler,
}


def one_host(made: Hosts, clients: int) -> dict[str, Any]:
    """The same clients and settings in a folder of host b, with as many workers: the bits that all must have."""
    name = "alone"
    environment = {"FEDCORE_LEDGER": f"sqlite:///{made.home('b') / 'ledger.sqlite'}"}
    kept, made.more = made.more, {**made.more, "b": {**made.more["b"], **environment}}
    try:
        at(made, "b", "near", str(clients))
        started = time.monotonic()
        command = ("train", "histograms", "pop", "--run-id", name, *ASKED, "--local", "--cache", "0")
        made.says("b", "fedcore", *command, "--workers", str(len(WORKERS)))
        seconds = time.monotonic() - started
        return {"seconds": round(seconds, 1), "digest": at(made, "b", "digest", f"runs/{name}")}
    finally:
        made.more = kept
        shutil.rmtree(made.home("b") / "pop")


def check(made: Hosts, rows: Sequence[dict[str, Any]], expected: str) -> None:
    """Raises AssertionError unless all runs have the same bits, and each release was charged once."""
    found = at(made, "b", "state", *(row["fault"] for row in rows))
    print("ledger:", json.dumps(found["releases"]), "reserved:", found["reserved"])
    wrong = [row for row in rows if "failed" in row]
    for row in rows:
        run = found["runs"][row["fault"]]
        if run["digest"] != expected or run["charged"] != run["plan"]:
            wrong.append({**row, **run})
    assert not wrong and found["reserved"] == 0, json.dumps(wrong, indent=1)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, help="a folder to make, which all users can reach")
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--late", type=float, default=LATE, help="seconds, in each direction")
    parser.add_argument("--only", nargs="*", choices=[*FAULTS], default=[*FAULTS])
    parser.add_argument("--task", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.task:
        perform(given.task[0], given.task[1:])
        return 0
    if given.dir is None:
        parser.error("--dir is missing")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all is cleaned up
    with cluster(given.dir.resolve(), given.late) as on:
        alone = one_host(on.made, given.clients)
        print(json.dumps({"fault": "one host", **alone}), flush=True)
        at(on.made, "a", "far", str(given.clients))
        on.serve("scheduler", *WORKERS)
        rows = []
        for name in given.only:
            run = Try(on, name)
            try:
                FAULTS[name](on, run)
            except AssertionError as error:
                run.row["failed"] = str(error)[-2000:]
            on.repair()
            print(json.dumps(run.row), flush=True)
            rows.append(run.row)
        check(on.made, rows, alone["digest"])
        print("runs with the bits of one host:", len(rows))
    spent = os.times()
    print(f"CPU seconds of all processes: {sum(spent[:4]):.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
