"""`fedcore train` in a process of its own, as people run it: its rounds, seconds and memory."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep

import psutil

from fedcore.runs.store import Run

KEPT = ("PREFECT_LOGGING_LEVEL", "WARNING")
POLL = 0.05


@dataclass(frozen=True)
class Trained:
    """metrics: a row for each round. seconds, cpu: of the whole command, all its processes. flow, worker: peak bytes of
    the process that ran the flow and of the largest worker, 0 without workers. spent: (rounds committed, CPU-seconds)
    of all processes at some commits, if it was watched. plan: of a private run, as in run.json."""

    metrics: list[dict]
    seconds: float
    cpu: float
    flow: int
    worker: int
    spent: tuple[tuple[int, float], ...] = ()
    plan: tuple[dict, ...] = ()

    def cpu_per_round(self, warm_up: int) -> float:
        """CPU-seconds of a round after the first `warm_up` ones; NaN if too few commits were seen."""
        seen = [at for at in self.spent if at[0] >= warm_up]
        if len(seen) < 2:
            return float("nan")
        (first, before), (last, after) = seen[0], seen[-1]
        return (after - before) / (last - first)

    def cpu_of_rounds(self) -> float:
        """CPU-seconds from the first commit to that of the last round; NaN if one of them was not seen."""
        if not self.spent or self.spent[0][0] != 0 or self.spent[-1][0] != len(self.metrics):
            return float("nan")
        return self.spent[-1][1] - self.spent[0][1]

    @property
    def peaks(self) -> dict[str, float]:
        return {"flow_MiB": self.flow / 2**20, **({"worker_MiB": self.worker / 2**20} if self.worker else {})}


def train(
    method: str,
    population: Path,
    settings: Mapping[str, object],
    *,
    workers: int | None = 2,
    cache: int = 512,
    more: Sequence[str] = (),
    watched: bool = False,
    **environment: str,
) -> Trained:
    """workers: None for `--local`. cache: MiB for each process. more: further words of the command line. watched: look
    at the run as it goes, every POLL seconds. Raises RuntimeError with what the command said if it failed."""
    given = {KEPT[0]: KEPT[1], **os.environ, **environment}
    with tempfile.TemporaryDirectory() as folder:
        words = _words("train", method, population, settings, folder, workers, cache, more)
        before, began, output = children_cpu(), perf_counter(), Path(folder) / "output"
        with open(output, "w+") as told, open(Path(folder) / "errors", "w+") as said:
            process = subprocess.Popen(words, stdout=told, stderr=said, env=given)
            try:
                spent = _watch(process, Path(folder)) if watched else ()
                process.wait()
            except BaseException:
                process.terminate()
                process.wait()
                raise
            seconds, cpu = perf_counter() - began, children_cpu() - before
            said.seek(0)
            if process.returncode:
                raise RuntimeError(said.read().strip() or f"fedcore train ended with {process.returncode}")
        answer = json.loads(output.read_text().splitlines()[-1])
        peak = answer["peak_memory_bytes"]
        run = Run.open(Path(answer["run"]))
        return Trained(
            run.metrics(),
            seconds,
            cpu,
            peak["flow"],
            max(peak.get("workers", ()), default=0),
            spent,
            tuple(run.info["plan"]),
        )


def plan(
    method: str,
    population: Path,
    settings: Mapping[str, object],
    *,
    workers: int | None = 2,
    cache: int = 512,
    more: Sequence[str] = (),
) -> dict:
    """What `fedcore plan` says of such a run, as JSON. Arguments and errors are those of `train`."""
    with tempfile.TemporaryDirectory() as folder:
        words = _words("plan", method, population, settings, folder, workers, cache, more)
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or done.stdout.strip())
    return json.loads(done.stdout.splitlines()[-1])


def _words(command: str, method: str, population: Path, settings, runs: str, workers, cache: int, more) -> list[str]:
    return [
        *(sys.executable, "-m", "fedcore.cli", command, method, str(population)),
        *("--runs", runs, "--json", "--cache", f"{cache}MiB"),
        *(["--local"] if workers is None else ["--workers", str(workers)]),
        *(word for name, value in settings.items() for word in ("--set", f"{name}={value}")),
        *more,
    ]


def _watch(process: subprocess.Popen, folder: Path) -> tuple[tuple[int, float], ...]:
    """CPU-seconds of the processes whenever the run's head has moved."""
    found, last, tree = [], None, psutil.Process(process.pid)
    while process.poll() is None:
        sleep(POLL)
        head = next(folder.glob("*/head.json"), None)
        try:
            round = None if head is None else json.loads(head.read_text())["round"]
            if round is not None and round != last:
                times = [one.cpu_times() for one in (tree, *tree.children(recursive=True))]
                found.append((round, sum(time.user + time.system for time in times)))
                last = round
        except (OSError, ValueError, psutil.Error):  # a process or the run has just gone
            continue
    return tuple(found)


def children_cpu() -> float:
    """CPU-seconds of all processes that this one has waited for, and of those that they waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
