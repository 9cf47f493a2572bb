"""A pipeline over many days: files come each day, some late, some damaged, some twice, on one day none; clients are
forgotten by age; processes are killed by SIGKILL at random; an automation of the server turns a low budget into a call
of a webhook. Then the same days undisturbed in one process, compared.

    python -m tests.pipelines.days --days 60 --dir FOLDER            flows of a Prefect server on this host
    python -m tests.pipelines.days --days 60 --dir FOLDER --local    the same without any

The server's database is the one that PREFECT_API_DATABASE_CONNECTION_URL names, or one in the folder. The ledger of the
days that are disturbed is the one that FEDCORE_TEST_DATABASE names, a new one, or one in the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fedcore.operations.creating import create
from fedcore.operations.deployment import read_file
from fedcore.operations.pipelines.doing import OwnHands, as_text
from fedcore.operations.pipelines.journal import read_journal
from fedcore.operations.pipelines.law import ready
from fedcore.operations.pipelines.running import run_pipeline
from fedcore.operations.up_record import folder_of
from fedcore.population.ingest.ingest import ingest
from fedcore.population.store import Population
from fedcore.privacy.ledger.ledger import create_ledger, open_ledger
from fedcore.runs.store import Run, list_runs
from fedcore.storage.arrays import read_values
from tests.flows.test_prefect import listening

FIRST = datetime(2026, 1, 1, 3, tzinfo=UTC)
FEATURES, FOUNDERS, NEWCOMERS = 6, 24, 4
DISTURBED, UNDISTURBED = "disturbed", "undisturbed"
HERE = Path(__file__).parent.parent.parent
FILE = """
[[population]]
path = "population"

[population.budget]
epsilon = 8.0
delta = 1e-6
public_schema = "made up"
cohorts = true

[monitoring]
runs_left = 39  # each day brings a cohort that pays for 40 runs, and each run makes it low

[[deployment]]
name = "open"
method = "paper_histograms"
population = "population"
retention = 3
config = {{ algorithm = "algorithm2", clusters = 2, rounds = 2 }}

[[deployment]]
name = "closed"
method = "histograms"
population = "population"
start_from = "previous"
retention = 3
config = {{ horizon = 40, clusters = 2, rounds = 2, anyway = true }}

[[pipeline]]
name = "daily"
population = "population"

[[pipeline.step]]
do = "ingest"
files = "arrivals/%Y-%m-%d*.csv"
days_back = 5
quiet_seconds = 0
newcomers = {newcomers}
bad_rows = "leave_out"
options = {{ client = "client" }}

[[pipeline.step]]
do = "forget"
after_days = {retention}

[[pipeline.step]]
do = "train"
deployment = "closed"

[[pipeline.step]]
do = "train"
deployment = "open"
when = "if_new_files"

[[pipeline.step]]
do = "export"
deployment = "open"
to = "model.npz"
when = "if_promoted"

[[pipeline.step]]
do = "personalise"
deployment = "open"
to = "personal"
ending = "csv"
when = "if_promoted"
"""


ALARM = """
import sys
from prefect import get_client
from prefect.blocks.webhook import Webhook
from prefect.events.actions import CallWebhook
from prefect.events.schemas.automations import AutomationCore, EventTrigger
from pydantic import SecretStr

block = Webhook(url=SecretStr(sys.argv[1])).save("alarm", overwrite=True)
trigger = EventTrigger(expect={"fedcore.budget.low"}, for_each={"prefect.resource.id"})
told = CallWebhook(block_document_id=block, payload='{"text": {{ event.payload.message | tojson }}}')
with get_client(sync_client=True) as client:
    client.create_automation(AutomationCore(name="alarm", trigger=trigger, actions=[told]))
"""


@dataclass
class Day:
    """number: from 1; files: that arrive on it, by name; killed: how often its process is killed, and after which share
    of the seconds that a day takes.
    """

    number: int
    files: dict[str, str] = field(default_factory=dict)
    killed: list[float] = field(default_factory=list)

    @property
    def at(self) -> datetime:
        return FIRST + timedelta(days=self.number - 1)


def plan(days: int, seed: int, kills: float = 0.4) -> list[Day]:
    """What happens on each day: the same for the same seed."""
    draw, made = random.Random(f"days {seed}"), [Day(number) for number in range(1, days + 1)]
    none, twice, damaged = draw.sample(range(1, days), 3) if days > 3 else (1, 2, 0)
    for place, day in enumerate(made):
        if place == none:
            continue
        name, content = f"{day.at:%Y-%m-%d}.csv", _content(draw, day.number)
        late = draw.randrange(3) if draw.random() < 0.25 and place not in (twice, damaged) else 0
        arrives = made[min(place + late, days - 1)]
        arrives.files[name] = content
        if place == twice:
            made[min(place + 1, days - 1)].files[f"{day.at:%Y-%m-%d} again.csv"] = content
        if place == damaged:  # and whole two days later
            day.files[name] = content.replace("token", "tok")
            made[min(place + 2, days - 1)].files[name] = content
    for day in made:
        while draw.random() < kills and len(day.killed) < 3:
            day.killed.append(draw.random())
    return made


def _content(draw: random.Random, number: int) -> str:
    """New clients, and some who are known."""
    who = [f"day {number} client {one}" for one in range(NEWCOMERS)]
    who += [f"founder {draw.randrange(FOUNDERS)}" for _ in range(3)]
    rows = [f"{one},{draw.randrange(FEATURES)},{draw.randrange(1, 5)}" for one in who for _ in range(6)]
    return "\n".join(["client,token,count", *rows, f"day {number} bad,nothing,1"]) + "\n"


# --- a folder ---------------------------------------------------------------------------------------------------------


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def prepare(folder: Path, days: int) -> None:
    """Founders, the file, and what `fedcore up` creates by it: a budget by cohort."""
    (folder / "arrivals").mkdir(parents=True)
    (folder / "daily.toml").write_text(FILE.format(newcomers=NEWCOMERS, retention=min(30, max(2, days // 2))))
    draw = random.Random("founders")
    rows = [
        f"founder {one},{draw.randrange(FEATURES)},{draw.randrange(1, 5)}" for one in range(FOUNDERS) for _ in range(6)
    ]
    (folder / "founders.csv").write_text("\n".join(["client,token,count", *rows]) + "\n")
    ledger = create_ledger(ledger_url(folder))
    ingest(
        folder / "founders.csv",
        folder / "population",
        features=FEATURES,
        nominal_clients=FOUNDERS,
        clients_per_leaf=4,
        clients_per_block=8,
        ledger={"id": ledger.id, "url": ledger.url},
    )
    with environment({"FEDCORE_LEDGER": ledger.url}):
        create(read_file(folder / "daily.toml"), folder_of(folder / "daily.toml"), lambda words: None)


def ledger_url(folder: Path) -> str:
    own = os.environ.get("FEDCORE_TEST_DATABASE") if folder.name == DISTURBED else None
    return own or f"sqlite:///{folder / 'ledger.sqlite'}"


def arrive(folder: Path, day: Day) -> None:
    for name, content in day.files.items():
        (folder / "arrivals" / name).write_text(content)


def undisturbed(folder: Path, days: list[Day]) -> None:
    """All days in this process."""
    content = read_file(folder / "daily.toml")
    whole = ready(content.pipeline[0], content.deployment)
    with environment({"FEDCORE_LEDGER": ledger_url(folder)}):
        for day in days:
            arrive(folder, day)
            (run,) = run_pipeline(whole, day.at, hands=OwnHands(report=False))
            assert not run.bad, [(record.step, record.what) for record in run.bad]


def disturbed(folder: Path, days: list[Day], local: bool, tell: bool = False) -> int:
    """Each day in a process of its own, which is killed as planned and started again. Returns how many were."""
    seconds, killed = 20.0, 0
    command = [sys.executable, "-m", "fedcore.cli", "pipeline", "run", str(folder / "daily.toml"), "daily"]
    for day in days:
        arrive(folder, day)
        for number, share in enumerate([*day.killed, None]):
            log = folder / f"{day.number}-{number}.log"
            with open(log, "w") as out:
                child = subprocess.Popen(
                    [*command, "--at", as_text(day.at), *(["--local"] if local else [])],
                    stdout=out,
                    stderr=out,
                    cwd=folder,
                    env=os.environ | {"FEDCORE_LEDGER": ledger_url(folder), "PYTHONPATH": str(HERE)},
                )
                if share is not None and _begun(folder, day, child):
                    time.sleep(share * seconds)
                    if child.poll() is None:
                        child.send_signal(signal.SIGKILL)
                        killed += 1
                code = child.wait(600)
            if share is None:
                assert code == 0, f"day {day.number}: {code}\n{log.read_text()[-4000:]}"
        run = read_journal(folder / "runs", "daily").at(as_text(day.at))
        assert run is not None and run.ended is not None and not run.bad
        if not day.killed:
            seconds = sum(record.seconds for record in run.steps)
        if tell:
            print(f"day {day.number}: {len(day.files)} files, killed {len(day.killed)}", flush=True)
    return killed


def _begun(folder: Path, day: Day, child: subprocess.Popen) -> bool:
    """Wait until the process has begun the day; whether it has, and lives."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and child.poll() is None:
        if read_journal(folder / "runs", "daily").at(as_text(day.at)) is not None:
            return True
        time.sleep(0.05)
    return False


# --- what must be the same --------------------------------------------------------------------------------------------


def outcome(folder: Path) -> dict[str, Any]:
    """Everything but noise, random names and the clock."""
    population = Population.open(folder / "population")
    assert population.verify().ok
    manifest, ledger = population.manifest, open_ledger(ledger_url(folder))
    clients: dict[str, Any] = {}
    for index, entry in enumerate(population.blocks):
        if not entry.void:
            block = population.read(index)
            ids = population.client_ids(index).tolist()
            rows = zip(block.indptr[:-1].tolist(), block.indptr[1:].tolist(), strict=True)
            clients |= {
                one: dict(zip(block.indices[a:b].tolist(), block.data[a:b].tolist(), strict=True))
                for one, (a, b) in zip(ids, rows, strict=True)
            }
    clients.pop("", None)
    balance = ledger.verify(population.id)
    return {
        "clients": clients,
        "order": manifest.order,
        "cohorts": [(one.number, one.nominal, one.opened) for one in manifest.cohorts],
        "nominal": manifest.nominal_clients,
        "files": [(one.name, one.size, one.sha256, one.at) for one in manifest.deliveries],
        "runs": {run.id: _run(run) for run in list_runs(folder / "runs")},
        "spent": [(one.first, one.last, one.rho_spent, one.rho_reserved) for one in balance.segments],
        "lost": balance.releases.get("forfeited", 0),
        "personal": {path.name: path.read_bytes() for path in (folder / "personal").glob("*.csv")},
        "latest": {path.name: json.loads(path.read_text())["run"] for path in (folder / "runs").glob("latest-*.json")},
        "aside": sorted(read_journal(folder / "runs", "daily").aside),
    }


def _run(run: Run) -> dict[str, Any]:
    found = {"status": run.status, "round": run.round, "pruned": run.pruned, "cohorts": run.info.get("cohorts")}
    found["version"] = run.info["population"]["version"]
    if not run.info["private"] and not run.pruned:
        state = read_values(run.path / "state" / f"{run.round:06d}.zip")
        found["state"] = {
            name: value.tobytes() if hasattr(value, "tobytes") else value for name, value in state.items()
        }
    return found


def compare(folder: Path, reference: Path) -> list[str]:
    """What differs, in words. A draw that was charged and lost is paid again, by what no run has reserved."""
    mine, theirs = outcome(folder), outcome(reference)
    lost = mine.pop("lost") - theirs.pop("lost")
    if lost:  # the cohorts that took part have paid more
        for each in (mine, theirs):
            each["spent"] = [(first, last, reserved) for first, last, _, reserved in each["spent"]]
    return [name for name in mine if mine[name] != theirs[name]]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, required=True, help="a folder to make")
    parser.add_argument("--local", action="store_true", help="without a Prefect server")
    given = parser.parse_args(arguments)
    print(*lived(given.dir.resolve(), given.days, given.seed, given.local, tell=True), sep="\n")
    return 0


def lived(folder: Path, days: int, seed: int, local: bool, tell: bool = False) -> list[str]:
    """Live the days twice; what was seen, in sentences. Raises AssertionError if something differs."""
    planned = plan(days, seed)
    for name in (DISTURBED, UNDISTURBED):
        prepare(folder / name, days)
    began = time.monotonic()
    alarms: list[dict[str, Any]] = []
    if local:
        killed = disturbed(folder / DISTURBED, planned, local, tell)
    else:
        from fedcore.flows.dead import GOING_ON, SILENT, flow_names, flow_runs, mark_dead
        from fedcore.flows.server import server

        home = {"PREFECT_HOME": str(folder / "prefect")}
        with environment(home), server() as base, listening() as (webhook, alarms):
            subprocess.run([sys.executable, "-c", ALARM, webhook], check=True, timeout=120)
            killed = disturbed(folder / DISTURBED, planned, local, tell)
            time.sleep(SILENT)
            crashed = len(mark_dead(f"{base}/api", own=True))
            going_on = flow_runs(f"{base}/api", (*GOING_ON, "PENDING"), flows=flow_names())
            assert not going_on, f"these are shown as Running: {', '.join(run['name'] for run in going_on)}"
        assert alarms and all("is low" in alarm["text"] for alarm in alarms), alarms
    seconds = time.monotonic() - began
    undisturbed(folder / UNDISTURBED, planned)
    differ = compare(folder / DISTURBED, folder / UNDISTURBED)
    assert not differ, f"these differ: {', '.join(differ)}"
    found = outcome(folder / DISTURBED)
    return [
        f"{days} days, {sum(len(day.files) for day in planned)} files came, {len(found['files'])} were ingested, once",
        f"{killed} processes were killed; {found['lost']} draws were charged and lost",
        *([] if local else [f"{crashed} flow runs were set to Crashed, none is left Running"]),
        f"{len(found['cohorts'])} cohorts, {len(found['clients'])} clients are left, {len(found['runs'])} runs",
        *(f"a webhook was told {len(alarms)} times, first: {alarm['text']}" for alarm in alarms[:1]),
        f"equal to the undisturbed days; {seconds:.0f} s",
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
