"""Everything that is stored of a run compared with what it was: its files with its head, the head with population and
ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.errors import FedcoreError, LedgerMissing, PopulationError, RunError, Unreachable
from fedcore.population.store import Population
from fedcore.runs import digests as run_digests
from fedcore.runs.client_memories import FORGOTTEN
from fedcore.runs.run_files import START_FILE
from fedcore.runs.store import Run
from fedcore.storage import files
from fedcore.storage.files import Place
from fedcore.training.budget import ledger_of
from fedcore.training.session import check_bound

if TYPE_CHECKING:
    from fedcore.privacy.ledger.ledger import Ledger


@dataclass(slots=True)
class RunReport:
    """What `verify_run` found. files: that were compared; problems: a line for each damage; remarks: what could not be
    compared, and why.
    """

    files: int = 0
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    @contextmanager
    def comparing(self) -> Iterator[None]:
        """Inside, damage is noted. Storage that cannot be reached raises Unreachable."""
        try:
            yield
        except Unreachable:
            raise
        except FedcoreError as error:
            self.problems.append(error.message)


def is_run(path: Place) -> bool:
    """Whether there is a run, and not a population."""
    return path.suffix == ".json" or files.is_file(path / "run.json")


def verify_run(
    path: str | Place, ledger_url: str | None = None, progress: Callable[[int, int], None] | None = None
) -> RunReport:
    """Read all files of a run, and compare it with its population's manifest and its ledger's records, where these are
    at hand.

    progress: called with (files of memories done, all). Raises RunNotFound, Unreachable; damage is reported.
    """
    report = RunReport()
    try:
        run = Run.open(path)
    except RunError as error:
        if type(error) is not RunError:
            raise
        report.problems.append(error.message)
        return report
    report.files += 2
    if run.pruned:
        report.remarks.append(f"Its model was removed on {run.head['pruned']}.")
    elif run.round >= 0:
        _verify_model(run, report, progress)
    with report.comparing():
        run.metrics()
        report.files += 1
    population = _verify_population(run, report)
    if population is not None and run.info.get("private"):
        _verify_ledger(run, population, report, ledger_url)
    return report


def _verify_model(run: Run, report: RunReport, progress: Callable[[int, int], None] | None) -> None:
    with report.comparing():
        run.read_state()
        report.files += 1
    if FORGOTTEN in run.head:
        report.remarks.append(f"What its clients remembered was removed on {run.head[FORGOTTEN]}: some were forgotten.")
    else:
        _verify_memories(run, report, progress)
    with report.comparing():
        report.files += len(run.releases())
    start = run.head.get("files", {}).get("start")
    if start is not None:
        report.files += 1
        if _digest(run.path / START_FILE) != start:
            report.problems.append(f"{START_FILE} was changed, or is lost.")


def _verify_memories(run: Run, report: RunReport, progress: Callable[[int, int], None] | None) -> None:
    with report.comparing():
        folder, kept = run.memories(), run.memory_digests() or {}
        for number, (name, digest) in enumerate(sorted(kept.items())):
            if folder is not None and _digest(folder / name) != digest:
                report.problems.append(f"{name} of the memories after round {run.round} was changed, or is lost.")
            if progress is not None:
                progress(number + 1, len(kept))
        report.files += len(kept)


def _digest(file: Place) -> str | None:
    try:
        return run_digests.of_place(file)
    except OSError:
        return None


def _verify_population(run: Run, report: RunReport) -> Population | None:
    """The run's population, if it is at hand."""
    where = run.info.get("population") or {}
    try:
        population = Population.open(where["path"], version=where["version"])
    except KeyError:
        report.remarks.append("run.json names no population.")
        return None
    except PopulationError as error:
        report.remarks.append(f"The population is not at hand: {error.message}")
        return None
    if population.id != where.get("id") or where.get("manifest") != population.checksum:
        report.problems.append(
            f"Version {population.version} of the population at {population.path} is not the one that the run read."
        )
    return population


def _verify_ledger(run: Run, population: Population, report: RunReport, url: str | None) -> None:
    try:
        ledger = ledger_of(population, url)
    except LedgerMissing as error:
        report.remarks.append(f"The ledger is not at hand: {error.message}")
        return
    except FedcoreError as error:
        report.problems.append(error.message)
        return
    with report.comparing():
        ledger.verify(population.id)
    with report.comparing():
        check_bound(ledger, population, run)
    with report.comparing():
        ended = (ledger.recorded(run.id, "finish") or {}).get("head")
        if ended is not None and ended != run.committed_digest:
            report.problems.append(f"Ledger {ledger.id} saw run {run.id!r} end with other files than it has.")
    if not run.pruned:
        with report.comparing():
            _compare_releases(run, ledger, report)


def _compare_releases(run: Run, ledger: Ledger, report: RunReport) -> None:
    copies, planned = run.releases(), {str(item["name"]): int(item["round"]) for item in run.info.get("plan", ())}
    for name, round in planned.items():
        published: Any = ledger.published(run.id, name)
        if round <= run.round and published is None:
            report.problems.append(f"Ledger {ledger.id} has not published {name!r}, which the run has used.")
        elif run_digests.STUDY in run.info:  # the ledger has this site's masked answers, and the run has totals
            continue
        elif published is not None and name in copies and not np.array_equal(copies[name], published):
            report.problems.append(f"The copy of {name!r} is not what ledger {ledger.id} published.")
