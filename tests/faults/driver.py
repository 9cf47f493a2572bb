"""What other processes do in the tests of faults: train, resume, and die by SIGKILL at a chosen step.

Every call of a step leaves a line in the file `tally` of the workplace ("before draw 2", "after draw 2"), written
before anything else happens, so that what killed processes did can be counted afterwards.
"""

import ctypes
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import wraps
from pathlib import Path

import fedcore.evaluation.report
import fedcore.operations.latest_runs
import fedcore.operations.retention
import fedcore.operations.series
import fedcore.privacy.ledger.ledger
import fedcore.rounds.clients
import fedcore.rounds.engine
import fedcore.runs.store
import fedcore.storage.arrays
import fedcore.training.session
from fedcore.cli.training import _rounds
from fedcore.errors import FedcoreError
from fedcore.privacy.ledger.ledger import Ledger
from fedcore.privacy.mechanisms import SecureNoise, TestNoise
from fedcore.rounds.engine import InProcessBackend, Training
from fedcore.runs.store import Run
from fedcore.training.request import TrainRequest
from fedcore.training.session import concluding, resume, start_run

PROCESSES = multiprocessing.get_context("forkserver")  # children without the threads of the test process
PROCESSES.set_forkserver_preload(
    [
        *("tests.faults.driver", "fedcore.methods.histograms", "fedcore.methods.federated_em"),
        *("fedcore.evaluation.report", "matplotlib.figure", "matplotlib.backends.backend_agg", "jinja2"),
        *("rich.progress", "flint", "fedcore.papers.histograms", "tests.sites.kills"),
    ]
)
PATIENCE = 120.0  # of a test for one of its processes, seconds


def of_memory(round: int, block: int) -> int:
    """What stands for the round in the steps "memory" and "rename" of a file of clients' memories."""
    return 1000 * round + block


def _round_of_file(path: Path) -> int:
    if path.parent.parent.name == "memory":
        return of_memory(int(path.parent.name), int(path.stem))
    return int(path.stem) if path.parent.name == "state" else -1


# step -> (where it is looked up, its name, the round of a call from its arguments); 0 is the start or the end of a run,
# 1 what is decided and written last there.
STEPS: dict[str, list[tuple[object, str, Callable[..., int]]]] = {
    "create": [(Run, "create", lambda *_: 0)],
    "reserve": [(Ledger, "reserve", lambda *_, **__: 0)],
    "witness": [(fedcore.training.session, "remember_head", lambda *_: 0)],
    "acquire": [(Ledger, "acquire", lambda *_, **__: 0)],
    "map": [(Training, "_map", lambda training, _: training.round)],
    "charge": [(Ledger, "charge", lambda _, __, planned: planned.round)],
    "draw": [(noise, "draw", lambda _, planned, *__: planned.round) for noise in (SecureNoise, TestNoise)],
    "publish": [(Ledger, "publish", lambda _, __, charge, ___: charge.round)],
    "keep": [(Run, "keep_release", lambda run, *_, **__: run.round + 1)],
    "commit": [(Run, "commit", lambda _, round, *__, **___: round)],
    "state": [(fedcore.runs.store, "write_values", lambda path, *_, **__: _round_of_file(path))],
    "memory": [(fedcore.rounds.clients, "write_values", lambda path, *_, **__: _round_of_file(path))],
    "rename": [(fedcore.storage.arrays, "replace_durably", lambda _, path, **__: _round_of_file(path))],
    "head": [(Run, "_write_head", lambda _, head: head["round"])],
    "settle": [(Ledger, "finish", lambda *_, **__: 0)],
    "statement": [(fedcore.training.session, "statement_of", lambda *_: 0)],
    "finish": [(Run, "finish", lambda _, status: int(status == "finished"))],
    "compare": [(fedcore.operations.series, "evaluate_run", lambda *_, **__: 0)],
    "decided": [
        (fedcore.operations.series, "write_json", lambda *_: 0),
        (fedcore.operations.latest_runs, "write_json", lambda *_: 1),
    ],
    "prune": [(fedcore.operations.series, "prune", lambda *_, **__: 0)],
    "remove": [(fedcore.operations.retention, "_remove_model", lambda *_: 0)],
    "report": [(fedcore.evaluation.report, "write_report", lambda *_: 0)],
}


@dataclass(frozen=True)
class Kill:
    """SIGKILL "before" or "after" the first call of a step in a round."""

    step: str
    when: str
    round: int = 0

    def __str__(self) -> str:
        return f"{self.when}-{self.step}-{self.round}"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def count_steps(tally: Path, kill: Kill | None = None, hooks: dict[Kill, Callable[[], None]] | None = None) -> None:
    """Wrap every step in this process, for good. hooks: what else happens at a point."""
    points = dict(hooks or {}) | ({kill: die} if kill else {})

    def reached(point: Kill) -> None:
        descriptor = os.open(tally, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{point.when} {point.step} {point.round}\n".encode())
        os.close(descriptor)
        if point in points:
            points[point]()

    def wrap(step, place, name, round_of):
        original = getattr(place, name)

        @wraps(original)
        def counted(*arguments, **options):
            round = round_of(*arguments, **options)
            reached(Kill(step, "before", round))
            result = original(*arguments, **options)
            reached(Kill(step, "after", round))
            return result

        setattr(place, name, staticmethod(counted) if step == "create" else counted)

    for step, places in STEPS.items():
        for place, name, round_of in places:
            wrap(step, place, name, round_of)


def pause(until: Path) -> None:
    """Say that this process is here, and wait for the test: `until` with .here is made, then `until` awaited."""
    until.with_suffix(".here").touch()
    while not until.exists():
        time.sleep(0.002)


def train(
    request: dict | str,
    ledger: str,
    tally: Path,
    outcome: Path,
    kill: Kill | None = None,
    *,
    workers: int = 0,
    take_over: bool = False,
    wait_at: Kill | None = None,
    until: Path | None = None,
    locks: bool = True,
    not_root: bool = False,
    commit_seconds: float = 0.0,
    conclude: bool = False,
    publish_seconds: float = 1.0,
) -> None:
    """A whole run: from its start if `request` is one, else resumed at that path. Writes how it ended to `outcome`.

    workers: of a local Dask cluster; 0: in this process. wait_at, until: see `pause`; None: before it begins.
    locks: False on a file system whose locks do not reach the other host. not_root: file permissions are heeded.
    commit_seconds: as `fedcore.rounds.engine.COMMIT_SECONDS`; 0: every round is committed. conclude: as the command
    line does it: with a report, and what becomes of a run of a deployment. publish_seconds: as
    `fedcore.privacy.ledger.ledger.PUBLISH_SECONDS`; short, since most ledgers of these tests do not come back.
    """
    fedcore.rounds.engine.COMMIT_SECONDS = commit_seconds
    fedcore.privacy.ledger.ledger.PUBLISH_SECONDS = publish_seconds
    os.environ["FEDCORE_LEDGER"] = ledger
    hooks = {wait_at: lambda: pause(until)} if wait_at else {}
    count_steps(tally, kill, hooks)
    if not locks:
        Run.lock = lambda run, take_over=False: False
    if until is not None and wait_at is None:
        pause(until)
    if not_root:
        heed_permissions()
    try:
        with _backend(workers) as backend:
            if isinstance(request, dict):
                session = start_run(TrainRequest(**request), backend, stamp="then")
            else:
                session = resume(request, backend, take_over=take_over)
            if conclude:
                fedcore.evaluation.report.run_figures = lambda *_: {}  # which takes long
                _rounds(session, backend, quiet=True)
            else:
                with concluding(session):
                    while session.training.step() is not None:
                        pass
        answer = {"error": None}
    except FedcoreError as error:
        answer = {"error": type(error).__name__, "message": error.message, "remedy": error.remedy}
    outcome.write_text(json.dumps(answer))


def heed_permissions() -> None:
    """Give up this process's right to write where a file's mode forbids it, if it has that right."""
    if os.geteuid() == 0:
        header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()  # version 3: no capabilities
        if ctypes.CDLL(None, use_errno=True).capset(header, data) != 0:
            raise OSError(ctypes.get_errno(), "capset")


def _backend(workers: int):
    if not workers:
        return nullcontext(InProcessBackend())
    from contextlib import contextmanager

    from fedcore.tasks.dask_backend import DaskBackend, dask_client

    @contextmanager
    def cluster():
        with dask_client(workers, private=True) as client:
            yield DaskBackend(client)

    return cluster()
