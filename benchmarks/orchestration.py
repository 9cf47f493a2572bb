"""What orchestration takes of a run: Prefect (its server too), Dask and the run store, in CPU-seconds of all processes.

Every case is run three ways, each short and long: the method alone, all in memory (`work`); `fedcore train --local`,
which adds the run store, and the ledger of a private run; and the whole flow with its Dask workers against a Prefect
server of its own. A population of a single block has no Dask: the flow's process answers it. What a round takes is the
difference of the long and the short run over that of their rounds, so that it is free of what starting takes, which has
its own columns. Differences of rounds of a second are as noisy as the work itself; `outside_ms`, the flow's process and
the server alone, is not: `outside_share` is its share, where there are workers.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time

from threadpoolctl import threadpool_limits

from benchmarks.measured import Measured
from benchmarks.populations import mixture_rows, reddit_like, with_rounds
from benchmarks.processes import Server, own_server, taken
from fedcore.methods.registry import make_method
from fedcore.population.blocks import leaves
from fedcore.population.store import Population
from fedcore.privacy.mechanisms import SecureNoise
from fedcore.rounds.statistics import merge, values
from fedcore.training.budget import ledger_of, plan_within_budget, public_facts

CLIENTS = 1000
LONG_CLIENTS = 100_000
CACHE = "2GiB"


@dataclass(frozen=True)
class Case:
    """A method and its settings, and the rounds of the short and the long run."""

    name: str
    settings: dict
    rounds: tuple[int, int]
    clients: int = CLIENTS
    method: str = "federated_em"
    workers: int = 1

    def population(self, folder: Path) -> Population:
        return (mixture_rows if self.method == "federated_em" else reddit_like)(folder, self.clients)

    def words(self, population: Population, rounds: int) -> list[str]:
        given = with_rounds(self.settings, rounds)
        return [
            "train",
            self.method,
            str(population.path),
            "--json",
            "--cache",
            CACHE,
            *(word for name, value in given.items() for word in ("--set", f"{name}={value}")),
        ]


CHEAP = (
    Case("em", {"algorithm": "em", "components": 3}, (20, 300)),
    Case("fedem, memories", {"algorithm": "fedem", "components": 3}, (20, 300)),
    Case("private histograms", {"clusters": 2, "epsilon": 8.0}, (20, 150), method="histograms"),
)
SEVERAL_BLOCKS = Case("em, several blocks", {"algorithm": "em", "components": 3}, (20, 300), 20_000)
LONG = [
    Case(
        f"em, long rounds, workers: {workers}",
        {"algorithm": "em", "components": 16, "covariance": "full"},
        (5, 45),
        workers * LONG_CLIENTS,
        workers=workers,
    )
    for workers in (1, 2)
]


def measure(options) -> dict:
    """--clients changes the cheap rounds only."""
    cases = [*(replace(case, clients=options.clients) for case in CHEAP), SEVERAL_BLOCKS, *LONG]
    with tempfile.TemporaryDirectory() as home, own_server(Path(home)) as server:
        idle = server.idle()
        rows = [_row(case, case.population(options.dir), options.repeats, server) for case in cases]
    return {"benchmark": "orchestration", "rows": [*rows, {"what": "idle server", "cpu_ms_per_s": 1000 * idle}]}


def _row(case: Case, population: Population, repeats: int, server: Server) -> dict:
    """CPU in ms for each round, of the long runs in seconds."""
    found = defaultdict(list)
    for _ in range(repeats):
        took = [
            {
                "work": work(case, population, rounds),
                **_local(case, population, rounds),
                **_flow(case, population, rounds, server),
            }
            for rounds in case.rounds
        ]
        for name, value in _compared(*took, *case.rounds).items():
            found[name].append(value)
    return {
        "what": case.name,
        "clients": population.n_clients,
        "rounds": case.rounds[1],
        **{name: Measured(amounts) for name, amounts in found.items()},
    }


def _compared(short: dict, long: dict, few: int, many: int) -> dict:
    each = {name: (long[name] - short[name]) / (many - few) for name in long}
    cpu = each["flow"] + each["workers"] + each["server"]
    whole = long["flow"] + long["workers"] + long["server"]
    return {
        "work_ms": 1000 * each["work"],
        "store_ms": 1000 * (each["local"] - each["work"]),
        "flow_ms": 1000 * each["flow"],
        "workers_ms": 1000 * each["workers"],
        "server_ms": 1000 * each["server"],
        "orchestration_ms": 1000 * (cpu - each["work"]),
        "orchestration_share": 1 - each["work"] / cpu,
        "outside_ms": 1000 * (each["flow"] + each["server"]),
        **({"outside_share": (each["flow"] + each["server"]) / cpu} if each["workers"] else {}),
        "with_start_ms": 1000 * (whole - long["work"]) / many,
        "with_start_share": 1 - long["work"] / whole,
        "start_s": whole - many * cpu,
        "local_start_s": long["local"] - many * each["local"],
        "wall_ms": 1000 * each["flow_wall"],
        "local_wall_ms": 1000 * each["local_wall"],
        "task_runs": each["task_runs"],
        "requests": each["requests"],
        "events": each["events"],
    }


def work(case: Case, population: Population, rounds: int) -> float:
    """CPU-seconds of the method alone: its rounds in this process, with everything in memory and nothing stored."""
    method = make_method(case.method, with_rounds(case.settings, rounds))
    parts = [
        leaf
        for index in range(len(population.blocks))
        for leaf in leaves(population.read(index), population.clients_per_leaf)
    ]
    planned, public, noise = (), public_facts(method, population, None, 0), SecureNoise()
    if method.private:
        planned, public, _ = plan_within_budget(method, population, ledger_of(population).balance(population.id), 0)
    state, memory, round = method.init(public), [None] * len(parts), 0
    with threadpool_limits(1):
        began = process_time()
        while (message := method.message(state)) is not None:
            total, round = None, round + 1
            for at, leaf in enumerate(parts):
                sums, memory[at] = method.client_update(message, leaf, memory[at])
                total = merge(total, sums)
            if method.private:
                grid = method.release_values(message, total)
                got = {p.name: noise.draw(p, "benchmark", grid[p.name]) for p in planned if p.round == round}
            else:
                got = values(total)
            state, _ = method.server_update(state, got)
        return process_time() - began


def _local(case: Case, population: Population, rounds: int) -> dict:
    with tempfile.TemporaryDirectory() as runs:
        words = [*case.words(population, rounds), "--local", "--runs", runs]
        took = taken(["-m", "benchmarks.counted", f"{runs}/counts.json", *words])
    return {"local": took.cpu, "local_wall": took.seconds}


def _flow(case: Case, population: Population, rounds: int, server: Server) -> dict:
    before, tasks = server.cpu(), server.task_runs()
    with tempfile.TemporaryDirectory() as runs:
        words = [*case.words(population, rounds), "--workers", str(case.workers), "--runs", runs]
        counts = Path(runs) / "counts.json"
        took = taken(["-m", "benchmarks.counted", str(counts), *words], PREFECT_API_URL=server.api)
        counted = json.loads(counts.read_text())
    server.settle()
    workers = counted.pop("children")
    return {
        "flow": took.cpu - workers,
        "workers": workers,
        "server": server.cpu() - before,
        "flow_wall": took.seconds,
        "task_runs": server.task_runs() - tasks,
        **counted,
    }
