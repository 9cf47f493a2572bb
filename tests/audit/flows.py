"""The table of flows, and how they are run in a neighbouring world: in a process of its own, with a Prefect server and
a database of its own.
"""

from __future__ import annotations

import ast
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

from fedcore.methods.names import METHODS
from fedcore.operations.deployment import read_file
from fedcore.operations.pipelines.law import Ready, ready
from fedcore.operations.pipelines.steps import Step
from tests.audit.commands import COUNTS, DESCRIBED, RAW, SIZES, SKETCHED, TIMES
from tests.audit.neighbours import HISTOGRAMS, SHORT_GMM, World, build_world, in_world
from tests.audit.observing import Declared, rows_in_order, tables, watched

REPOSITORY = Path(__file__).parents[2]
PROGRAM = "import sys; from tests.audit.flows import main; main(sys.argv[1])"
DATABASE = "home/prefect/prefect.db"
EM = {"algorithm": "private", "covariance": "known", "components": 2, "rounds": 2, "epsilon": 1.0}
# What Prefect keeps of runs. Its other tables hold its own services, in the order of their clocks.
KEPT = (
    *"artifact artifact_collection block_document deployment flow flow_run flow_run_state".split(),
    *("log", "task_run", "task_run_state", "variable"),
)
OWN_EVENTS = b'"event": fedcore.'  # rows of the table of events that fedcore sent; Prefect's follow its clocks
PREFECT = (
    Declared("prefect *", r'"(total_run_time|estimated\w*|start_time|end_time|duration)": [-\d. :]+', TIMES),
    Declared("prefect log", r"process \d+|pid \d+|\b\d+\.\d\d s each", TIMES),
    Declared(
        "prefect artifact*", r"\| \d+ \| \d+ \| \d+ \| \d+ \| (yes|no) \|", "clients and blocks of a version: " + COUNTS
    ),
    Declared("prefect artifact*", r"\| (heldout_)?(clients|tokens|rows|entries|blocks) \| \d+ \|", COUNTS),
    Declared("prefect artifact*", r"\| bytes \| \d+ \|", SIZES),
    Declared("prefect artifact*", r"began [-\dTZ:\\]+, ended [-\dTZ:\\]+", TIMES),
    Declared("prefect artifact*", r"\| (done|nothing to do|not made) \| \d+\.?\d* \|", TIMES),
    Declared("*", r"127\.0\.0\.1:\d+", "the port of the server of this world"),
)
METRICS = (
    Declared("fedcore.prom", r"fedcore_(round_seconds|clients_per|last_round)\w*\{[^}]*\} \S+", TIMES),
    Declared("fedcore.prom", r"fedcore_clients_asked_total\{[^}]*\} \S+", COUNTS),
    Declared("fedcore.prom", r"fedcore_block_bytes_total\{[^}]*\} \S+", SIZES),
)


@dataclass(frozen=True)
class Audited:
    """call: of a flow on a world; None if it needs no private population, and then `because` says why."""

    call: Callable[[World], dict[str, Any]] | None = None
    may_differ: tuple[Declared, ...] = ()
    because: str = ""


STEPS = ("ingest", "forget", "train", "evaluate", "export", "personalise")


def _piped(w: World) -> Ready:
    content = read_file(w.folder / "pipelines.toml")
    return ready(content.pipeline[0], content.deployment)


FLOWS: dict[str, Audited] = {
    "train-histograms": Audited(
        lambda w: {
            "population": w / "counts",
            "config": HISTOGRAMS,
            "runs": w / "runs",
            "run_id": "aaa",
            "monitoring": {"metrics_file": str(w / "fedcore.prom")},
        },
        METRICS,
    ),
    "train-federated-em": Audited(
        lambda w: {
            "population": w / "rows",
            "config": EM,
            "runs": w / "runs",
            "run_id": "bbb",
            "start_from": w / "start.npz",
            "public_start_because": "made up",
        }
    ),
    "train-paper-federated-em": Audited(
        lambda w: {
            "population": w / "rows",
            "config": EM,
            "runs": w / "runs",
            "run_id": "jjj",
            "start_from": w / "start.npz",
            "public_start_because": "made up",
        }
    ),
    "train-private-gmm": Audited(
        lambda w: {"population": w / "points", "config": SHORT_GMM, "runs": w / "runs", "run_id": "ccc"}
    ),
    "train-private-mixture": Audited(
        lambda w: {
            "population": w / "points",
            "config": {"components": 2, "rounds": 1, "epsilon": 1.0, "nominal_clients": 300},
            "runs": w / "runs",
            "run_id": "ggg",
        }
    ),
    "train-profile": Audited(
        lambda w: {
            "population": w / "points",
            "config": {"epsilon": 1.0, "nominal_clients": 300, "bounds": [[-50, 50]] * 4, "anyway": True},
            "runs": w / "runs",
            "run_id": "iii",
        }
    ),
    "train-gradient-em": Audited(because="has no private algorithm; its statement says `privacy: none`"),
    "train-paper-histograms": Audited(because="has no private algorithm; its statement says `privacy: none`"),
    "train-paper-gradient-em": Audited(because="has no private algorithm; its statement says `privacy: none`"),
    "train-perma": Audited(because="has no private algorithm; its statement says `privacy: none`"),
    "train-background": Audited(because="has no private algorithm; its statement says `privacy: none`"),
    "train-mixed-effects": Audited(because="has no private algorithm; its statement says `privacy: none`"),
    "train-dictionaries": Audited(
        lambda w: {
            "population": w / "rows",
            "config": {"private": True, "global_atoms": 3, "sparsity": 1, "rounds": 2, "epsilon": 1.0},
            "runs": w / "runs",
            "run_id": "hhh",
        }
    ),
    "resume-run": Audited(lambda w: {"run": w / "runs/broken"}),
    "evaluate": Audited(lambda w: {"run": w / "runs/finished", "population": w / "public"}),
    "ingest": Audited(
        lambda w: {
            "source": w / "source.csv",
            "dest": w / "made",
            "options": {
                "format": "csv",
                "client": "client",
                "token": "token",
                "count": "count",
                "vocabulary": w / "vocabulary.txt",
            },
        },
        (Declared("made/*", None, RAW), SKETCHED, *DESCRIBED),
    ),
    "pipeline": Audited(
        lambda w: {"ready": _piped(w), "at": "2026-01-01T03:00:00Z"},
        (Declared("*", r'"seconds": [\d.e-]+|"(began|ended)": "[-\dTZ:]+"', TIMES),),
    ),
    **{f"pipeline-{kind}": Audited(because="is called by the flow of its pipeline alone") for kind in STEPS},
    "site-run": Audited(
        because="makes runs as training flows do; `tests/sites/test_serve.py` compares what sites post of neighbours"
    ),
    "reproduce": Audited(because="simulates its clients or reads public benchmarks; nothing in it is private"),
}


def flows_of_the_code() -> set[str]:
    """The names of all flows: what `@flow(name=...)` decorates in flows and papers, one for each method, and one for
    each kind of step of a pipeline.
    """
    found = {f"train-{name.replace('_', '-')}" for name in METHODS}
    found |= {f"pipeline-{kind.model_fields['do'].default}" for kind in get_args(get_args(Step)[0])}
    for path in [*sorted((REPOSITORY / "flows").glob("*.py")), REPOSITORY / "papers" / "flow.py"]:
        for function in ast.walk(ast.parse(path.read_text())):
            for made in getattr(function, "decorator_list", []):
                call = made.func if isinstance(made, ast.Call) else made
                if getattr(call, "id", getattr(call, "attr", None)) == "flow":
                    names = [word.value.value for word in made.keywords if word.arg == "name"]
                    found.add(names[0] if names else function.name.replace("_", "-"))
    return found


def flow_of(name: str):
    if name.startswith("train-"):
        from fedcore.flows.train import FLOWS as TRAINING

        return TRAINING[name.removeprefix("train-").replace("-", "_")]
    from fedcore.flows import evaluate, ingest, pipeline, train

    return {
        "resume-run": train.resume_run,
        "evaluate": evaluate.evaluate_run_flow,
        "ingest": ingest.ingest_flow,
        "pipeline": pipeline.pipeline_flow,
    }[name]


def traces_of(folder: Path, world: str, names: Sequence[str]) -> dict[str, dict[str, bytes]]:
    """What these flows leave in this world, by flow; what worlds of the folder published before is published again.
    All worlds are at the same place, one after the other."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "DASK"))}
    environment |= {
        "PREFECT_HOME": str(folder / "world" / "home" / "prefect"),
        "PYTHONPATH": str(REPOSITORY),
        "PREFECT_LOGGING_LEVEL": "DEBUG",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    asked = json.dumps({"folder": str(folder), "world": world, "names": list(names)})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, asked], env=environment, capture_output=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    (folder / "world").rename(folder / world)
    return pickle.loads((folder / f"{world}.pickle").read_bytes())


def main(asked: str) -> None:
    """In the process of a world."""
    request = json.loads(asked)
    folder, shared = Path(request["folder"]), Path(request["folder"]) / "published"
    published = pickle.loads(shared.read_bytes()) if shared.exists() else {}
    world = build_world(folder / "world", request["world"], published)
    found: dict[str, dict[str, bytes]] = {}
    from fedcore.flows.settings import apply

    apply()
    database = world.folder / DATABASE
    with in_world(world, published):
        from fedcore.flows.server import server

        with server():
            import fedcore.flows.train
            import fedcore.tasks.artifacts
            import fedcore.tasks.training

            from fedcore.methods.registry import make_method

            # How rounds share task runs, and when something is shown again, follows the clock: let it follow the calls.
            ticks = iter(range(10**9))
            clock = SimpleNamespace(perf_counter=lambda: 0.5 * next(ticks), monotonic=lambda: 0.5 * next(ticks))
            fedcore.tasks.training.time = fedcore.tasks.artifacts.time = clock
            fedcore.flows.train.stamp = lambda: "then"

            for name in request["names"]:
                call = FLOWS[name].call
                assert call is not None
                arguments = call(world)
                if "config" in arguments:
                    method = name.removeprefix("train-").replace("-", "_")
                    arguments["config"] = make_method(method, arguments["config"]).config

                def work(name=name, arguments=arguments) -> int:
                    flow_of(name)(**arguments)
                    return 0

                found[name] = watched(work, world.folder, but=("home",))
            wait_until_recorded(database)
        kept = tables(database, KEPT)
        sent = tables(database, ("events",))["events"]
        kept["events"] = b"\n".join(row for row in sent.splitlines() if OWN_EVENTS in row)
        found["database"] = {f"prefect {table}": rows_in_order(rows, world.folder) for table, rows in kept.items()}
    shared.write_bytes(pickle.dumps(published))
    (folder / f"{request['world']}.pickle").write_bytes(pickle.dumps(found))


def wait_until_recorded(database: Path) -> None:
    """Prefect's server writes what task runs did a little later, and lines of log are sent to it in the background."""
    before: dict[str, bytes] = {}
    for _ in range(60):
        time.sleep(2)
        now = tables(database, KEPT)
        ended = (now["flow_run"], now["task_run"])
        if now == before and all(row.count(b'"state_type": COMPLETED') == row.count(b'"state_type":') for row in ended):
            return
        before = now


def declared(name: str) -> tuple[Declared, ...]:
    """What of a flow's traces may differ; of the database, what may of any flow."""
    return (*PREFECT, *(FLOWS[name].may_differ if name in FLOWS else DESCRIBED))


def rows() -> list[str]:
    """The lines of the table of docs/notes/privacy-audits.md; of what may differ that which is not Prefect's own."""
    lines = []
    for name, flow in FLOWS.items():
        differ = "; ".join(dict.fromkeys(item.because for item in flow.may_differ)) or "nothing"
        called = flow.call is not None
        lines.append(f"| `{name}` | {'yes' if called else 'no'} | {differ if called else ''} | {flow.because} |")
    return lines
