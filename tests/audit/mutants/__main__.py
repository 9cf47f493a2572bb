"""Runs the tests that must notice each mutant, and says which of them did."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.audit.mutants.hook import MARK, NAME
from tests.audit.mutants.table import ROOT, Mutant, chosen

FAILED = re.compile(r"^FAILED (\S+)", re.MULTILINE)
SECONDS = 900


@dataclass(frozen=True)
class Verdict:
    """killed: by which test; None: by none, and `why`."""

    mutant: Mutant
    killed: str | None
    why: str = ""

    def __str__(self) -> str:
        return (
            f"killed  {self.mutant.name}  ({self.killed})" if self.killed else f"ALIVE   {self.mutant.name}  {self.why}"
        )


def verdict_on(mutant: Mutant) -> Verdict:
    """Whether one of the mutant's tests fails, as a test does and not because nothing could be imported."""
    mutant.altered()
    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder) / "altered"
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-rf", "--tb=no", "-n", "0", "-m", "not heavy"]
        command += ["-p", "no:cacheprovider", "-p", "tests.audit.mutants.hook", *mutant.tests]
        environment = os.environ | {NAME: mutant.name, MARK: str(mark), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        if not mark.exists():
            return Verdict(
                mutant, None, "the tests never import the module: " + done.stdout[-300:] + done.stderr[-300:]
            )
    failed = FAILED.search(done.stdout)
    if done.returncode == 1 and failed:
        return Verdict(mutant, failed[1])
    why = "all of its tests passed" if done.returncode == 0 else f"pytest said: {done.stdout[-400:]}"
    return Verdict(mutant, None, why)


def main(names: list[str]) -> int:
    mutants = chosen(names)
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as pool:
        verdicts = []
        for verdict in pool.map(verdict_on, mutants):
            print(verdict, flush=True)
            verdicts.append(verdict)
    alive = [verdict for verdict in verdicts if verdict.killed is None]
    print(f"{len(verdicts) - len(alive)} of {len(verdicts)} mutants killed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
