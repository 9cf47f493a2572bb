"""A simulated month: a run each day on a population that grows, under one budget, while something dies.

    python -m tests.faults.month --days 30 --seed 1 --dir FOLDER

Each day new clients arrive, while the run of that day is going on or before it, and a Prefect flow with a local Dask
cluster trains on the newest version, from where the run of the day before ended. On most days something is killed by
SIGKILL: a Dask worker; the process of the flow, at a step between reservation and commit; or the Prefect server, which
comes back. A run whose process died is resumed by the command line. At the end the same month is made again in one
process with nothing killed. What must hold is `check`.
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path

import psutil

from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.synthetic import client_names, generate, settings_of, synthesise, true_centres
from fedcore.population.writer import PopulationWriter
from fedcore.privacy.accounting import exact_sum, rounded_up
from fedcore.privacy.ledger.ledger import create_ledger, open_ledger
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run, load_run
from fedcore.training.request import TrainRequest
from fedcore.training.session import start_run
from tests.faults.driver import Kill
from tests.faults.place import KILLED, same_result
from tests.sessions import to_end

SIZES = {"clients": 1024, "features": 40, "clusters": 3, "tokens": 60, "test_tokens": 0, "heldout_clients": 0}
SETTINGS = {"clusters": 3, "epsilon": 1.5, "spare_releases": 1}
EPSILON = 7.2  # of the population; pays for fewer days than a long month has
WARM = "the runs of this test are made with test noise"
ROUND_SECONDS = 0.4  # a round waits so long, so that there is a middle of it
FAULTS = ("none", "worker", "server", "flow")
STEPS = (
    *(f"{when}-{step}" for step in ("charge", "draw", "publish") for when in ("before", "after")),
    *("before-commit", "after-head"),
)
FORFEITS = {"after-charge", "before-draw", "after-draw", "before-publish"}  # charged, and then lost

FLOW = """
import json, sys, time
from pathlib import Path
from tests.faults.driver import Kill, count_steps
from tests.faults.month import ROUND_SECONDS
from fedcore.flows.train import Compute, FLOWS
from fedcore.methods.histograms.config import HistogramsConfig

request, kill = json.loads(sys.argv[1]), json.loads(sys.argv[2])
waits = {Kill("map", "before", round): lambda: time.sleep(ROUND_SECONDS) for round in range(1, 20)}
count_steps(Path(sys.argv[3]), Kill(**kill) if kill else None, waits)
state = FLOWS["histograms"](config=HistogramsConfig(**request.pop("settings")), compute=Compute(workers=2), **request,
                            return_state=True)
print("STATE", state.name)
"""
COMMAND = "from fedcore.cli import main; main()"


@dataclass
class Day:
    """fault: of FAULTS; step, round: where the flow dies; growing: the population grows while the run goes on.

    refused: whether the budget is too small, as predicted before the run; states: of the flow runs of the day;
    version: of the population that was trained on; forfeited: releases, as predicted.
    """

    number: int
    fault: str
    step: str = ""
    round: int = 0
    growing: bool = False
    refused: bool = False
    states: tuple[str, ...] = ()
    version: int = 0
    forfeited: int = 0

    @property
    def run_id(self) -> str:
        return f"day-{self.number:02d}"


def plan(days: int, seed: int) -> list[Day]:
    """What goes wrong on which day: every fault about equally often, in a random order."""
    draw = random.Random(seed)
    faults = [FAULTS[index % len(FAULTS)] for index in range(days)]
    draw.shuffle(faults)
    steps = [STEPS[index % len(STEPS)] for index in range(days)]
    draw.shuffle(steps)
    return [
        Day(
            number,
            fault,
            steps.pop() if fault == "flow" else "",
            draw.randint(1, 2) if fault == "flow" else 0,
            draw.random() < 0.5,
        )
        for number, fault in enumerate(faults, 1)
    ]


# --- the population -------------------------------------------------------------------------------------------------


def settings_for(days: int):
    return settings_of("reddit-like", SIZES | {"clients": 1024 * (days + 1)})


def first_version(folder: Path, seed: int) -> Population:
    ledger = create_ledger(f"sqlite:///{folder / 'ledger.sqlite'}", test=True)
    made = synthesise(
        folder / "population",
        "reddit-like",
        seed,
        SIZES,
        clients_per_leaf=64,
        clients_per_block=256,
        ledger={"id": ledger.id, "url": ledger.url},
    )
    ledger.register(made.id)
    ledger.set_budget(made.id, EPSILON, 1e-6)
    return made


def grow(folder: Path, settings, seed: int, day: int) -> None:
    """A thousand new clients, as a new version."""
    parent = Population.open(folder / "population")
    train, _ = generate(settings, seed, day, true_centres(settings, seed))
    with PopulationWriter.extending(parent) as writer:
        for entry in parent.blocks:
            writer.keep(entry)
        writer.write(client_names(1024 * day, train.shape[0]), train)
        writer.commit(Provenance(sources=(f"day {day}",)))


# --- the Prefect server ---------------------------------------------------------------------------------------------


class Server:
    """A server of its own on loopback, that can be killed and comes back with its database."""

    def __init__(self, home: Path):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.api = f"http://127.0.0.1:{self.port}/api"
        self.environment = os.environ | {
            "PREFECT_HOME": str(home),
            "PREFECT_API_URL": self.api,
            "DO_NOT_TRACK": "1",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        }
        self.process = None

    def start(self, patience: float = 90.0) -> None:
        environment = {name: value for name, value in self.environment.items() if name != "PREFECT_API_URL"}
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        until = time.monotonic() + patience
        while time.monotonic() < until:
            try:
                urllib.request.urlopen(f"{self.api}/health", timeout=2).read()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise AssertionError("the Prefect server did not start")

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def states(self, run_id: str) -> tuple[str, ...]:
        """Of the flow runs that belong to a run, in the order of their starts."""
        body = {"flow_runs": {"name": {"like_": run_id}}, "sort": "START_TIME_ASC", "limit": 10}
        request = urllib.request.Request(
            f"{self.api}/flow_runs/filter", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        return tuple(found["state_name"] for found in json.load(urllib.request.urlopen(request, timeout=20)))


# --- a day ----------------------------------------------------------------------------------------------------------


def live(folder: Path, settings, seed: int, day: Day, before: Day | None, server: Server) -> None:
    """The day's run, with what goes wrong. Fills in what the day did."""
    if not day.growing:
        grow(folder, settings, seed, day.number)
    population = Population.open(folder / "population")
    day.version, day.refused = population.version, not affordable(folder, population)
    request = request_of(folder, day, before)
    kill = asdict(kill_of(day)) if day.fault == "flow" else None
    log = folder / f"{day.run_id}.log"
    with open(log, "w") as out:
        child = subprocess.Popen(
            [sys.executable, "-c", FLOW, json.dumps(request), json.dumps(kill), str(folder / "tally")],
            env=server.environment,
            stdout=out,
            stderr=out,
        )
        if not day.refused:
            disturb(folder, settings, seed, day, child, server)
        code = child.wait(timeout=400)
    if day.refused:
        assert code == 0 and "STATE Refused" in log.read_text(), f"{day}: {log.read_text()[-3000:]}"
        if day.growing:
            grow(folder, settings, seed, day.number)
    elif day.fault == "flow":
        assert code == KILLED, f"{day}: {code} {log.read_text()[-3000:]}"
        day.forfeited = int(day.step in FORFEITS)
        resumed = subprocess.run(
            [sys.executable, "-c", COMMAND, "resume", str(folder / "runs" / day.run_id), "--workers", "2"],
            env=server.environment,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert resumed.returncode == 0, f"{day}: {resumed.stdout[-2000:]} {resumed.stderr[-3000:]}"
    else:
        assert code == 0 and "STATE Completed" in log.read_text(), f"{day}: {code} {log.read_text()[-3000:]}"
    day.states = server.states(day.run_id)


def kill_of(day: Day) -> Kill:
    when, step = day.step.split("-")
    return Kill(step, when, day.round)


def affordable(folder: Path, population: Population) -> bool:
    """Whether the budget that is left pays for one more run, at the price of those before."""
    runs = sorted((folder / "runs").glob("day-*/run.json"))
    balance = open_ledger(f"sqlite:///{folder / 'ledger.sqlite'}").balance(population.id)
    prices = [item["rho"] for item in json.loads(runs[-1].read_text())["plan"]] if runs else [0.0]
    return balance.rho_left >= sum(prices) + max(prices)  # one spare


def request_of(folder: Path, day: Day, before: Day | None) -> dict:
    warm = {} if before is None else {"start_from": str(folder / "runs" / before.run_id), "public_start_because": WARM}
    return {
        "population": str(folder / "population"),
        "settings": SETTINGS,
        "runs": str(folder / "runs"),
        "run_id": day.run_id,
        "seed": day.number,
        "version": day.version,
        "test_noise": "a key",
        **warm,
    }


def disturb(folder: Path, settings, seed: int, day: Day, child: subprocess.Popen, server: Server) -> None:
    """Waits for the first round, then does what the day has in store."""
    head, until = folder / "runs" / day.run_id / "head.json", time.monotonic() + 300
    while not head.exists() and child.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    if day.growing:
        grow(folder, settings, seed, day.number)
    if day.fault == "worker":
        family = psutil.Process(child.pid).children(recursive=True)
        workers = [process for process in family if "spawn_main" in " ".join(process.cmdline())]
        assert workers, f"{day}: no worker was found"
        random.Random(day.number).choice(workers).kill()
    elif day.fault == "server":
        server.kill()
        time.sleep(1.0)
        server.start()


# --- the month, and what must hold of it ----------------------------------------------------------------------------


def disturbed(folder: Path, days: list[Day], seed: int, tell=lambda day: None) -> None:
    settings, server, before = settings_for(len(days)), Server(folder / "prefect"), None
    first_version(folder, seed)
    server.start()
    try:
        for day in days:
            live(folder, settings, seed, day, before, server)
            before = before if day.refused else day
            tell(day)
    finally:
        server.kill()


def calm(folder: Path, days: list[Day], seed: int) -> None:
    """The same versions and the same runs, in one process."""
    settings, before = settings_for(len(days)), None
    os.environ["FEDCORE_LEDGER"] = f"sqlite:///{folder / 'ledger.sqlite'}"
    first_version(folder, seed)
    for day in days:
        grow(folder, settings, seed, day.number)
        if not day.refused:
            request = TrainRequest(method="histograms", **request_of(folder, day, before))
            to_end(start_run(request, InProcessBackend(), stamp="then"))
            before = day


def check(folder: Path, reference: Path, days: list[Day]) -> dict:
    """Every run ended as predicted, the budget is exact, the models are those of the undisturbed month, bit for bit.

    Returns counts.
    """
    ledger = open_ledger(f"sqlite:///{folder / 'ledger.sqlite'}")
    population = Population.open(folder / "population")
    trained = [day for day in days if not day.refused]
    for day in days:  # a killed flow is Running for Prefect until it is missed
        died = [("Running",), ("Crashed",)] if day.fault == "flow" and not day.refused else [()]
        assert day.states in [(*before, "Refused" if day.refused else "Completed") for before in died], day
        assert (folder / "runs" / day.run_id).exists() is not day.refused, day
    prices, published = [], 0
    for day in trained:
        run, twin = load_run(folder / "runs" / day.run_id), load_run(reference / "runs" / day.run_id)
        assert run.head["status"] == "finished" and run.info["population"]["version"] == day.version, day
        assert same_result(run, twin), day
        prices += [item["rho"] for item in run.info["plan"]]
        published += len(run.info["plan"])
        assert Run.open(run.path).releases().keys() == {item["name"] for item in run.info["plan"]}, day
    balance = ledger.verify(population.id)
    lost = sum(day.forfeited for day in trained)
    charges = [record for record in ledger.history(population.id) if record["kind"] == "charge"]
    assert balance.releases.get("published", 0) == published
    assert balance.releases.get("forfeited", 0) == lost
    assert not balance.releases.get("charged", 0) and not balance.rho_reserved
    assert len(charges) == published + lost
    assert balance.rho_spent == rounded_up(exact_sum(record["rho"] for record in charges))
    assert Fraction(balance.rho_spent) <= Fraction(balance.budget.rho_max)
    again = Counter(record["name"] for record in charges)
    assert sum(again.values()) == len(prices) + lost
    return {
        "days": len(days),
        "refused": len(days) - len(trained),
        "published": published,
        "forfeited": lost,
        "faults": dict(Counter(day.fault for day in trained)),
        "rho_spent": balance.rho_spent,
        "rho_max": balance.budget.rho_max,
        "clients": population.n_clients,
    }


def month(folder: Path, count: int, seed: int, tell=lambda day: None) -> tuple[list[Day], dict]:
    days = plan(count, seed)
    for name in ("disturbed", "calm"):
        (folder / name).mkdir(parents=True)
    disturbed(folder / "disturbed", days, seed, tell)
    calm(folder / "calm", days, seed)
    return days, check(folder / "disturbed", folder / "calm", days)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, required=True)
    chosen = parser.parse_args()
    shutil.rmtree(chosen.dir, ignore_errors=True)

    def tell(day: Day) -> None:
        fault = f"{day.fault} {day.step} {day.round or ''}".strip()
        print(
            f"{day.run_id}  {fault:26} grows {'during' if day.growing else 'before'}  {', '.join(day.states)}",
            flush=True,
        )

    print(json.dumps(month(chosen.dir, chosen.days, chosen.seed, tell)[1], indent=1))


if __name__ == "__main__":
    main()
