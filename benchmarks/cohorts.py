"""CPU-seconds of `Ledger.verify` and `Ledger.balance` after a run in each of 520 weeks: one account for everybody, and
one for every cohort, of which each week opens one and the last 42 pay. They take turns.

The disk is not waited for while the ledgers are made.
"""

from __future__ import annotations

import sqlite3
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.measured import in_turns
from fedcore.privacy.cohorts import Participants
from fedcore.privacy.ledger import database
from fedcore.privacy.ledger.ledger import Ledger, create_ledger
from fedcore.privacy.plan import PlannedRelease

WEEKS, HORIZON = 520, 42
RELEASES = (1, 3, 8)  # of a run
POPULATION, MANIFEST = "population", "0" * 64


class Hasty(sqlite3.Connection):
    def execute(self, statement, *arguments):
        return super().execute(statement.replace("synchronous = FULL", "synchronous = OFF"), *arguments)


def measure(options) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        rows = [_row(Path(folder), releases, options.repeats) for releases in RELEASES]
    return {"benchmark": "cohorts", "rows": rows}


def _row(folder: Path, releases: int, repeats: int) -> dict:
    ledgers = {kept: _ledger(folder / f"{kept}-{releases}.sqlite", releases, kept) for kept in ("one", "cohorts")}
    row: dict = {"weeks": str(WEEKS), "releases": str(releases)}
    for what in ("verify", "balance"):
        taken = in_turns({kept: partial(getattr(of, what), POPULATION) for kept, of in ledgers.items()}, repeats)
        row |= {f"{what}_one_s": taken["one"], f"{what}_s": taken["cohorts"]}
        row[f"{what}_ratio"] = taken["cohorts"].over(taken["one"])
    return row


def _ledger(file: Path, releases: int, kept: str) -> Ledger:
    real = sqlite3.connect
    database.sqlite3.connect = partial(real, factory=Hasty)
    try:
        ledger = create_ledger(f"sqlite:///{file}")
        ledger.register(POPULATION)
        ledger.set_budget(POPULATION, 4.0, 1e-6)
        tokens = tuple(f"{number:032x}" for number in range(1, WEEKS + 1))
        if kept == "cohorts":
            ledger.begin_cohorts(POPULATION, version=1, manifest=MANIFEST, token=tokens[0], chain={1: MANIFEST})
        plan = [
            PlannedRelease(f"sums-{round}", round, (100,), 2**20, 4000.0, "", "") for round in range(1, releases + 1)
        ]
        for week in range(1, WEEKS + 1):
            who = Participants(((max(1, week - HORIZON + 1), week),), tokens[:week]) if kept == "cohorts" else None
            run = f"{kept}-{week}"
            ledger.reserve(POPULATION, run, plan, 0, secure=True, cohorts=who)
            lease = ledger.acquire(run)
            for planned in plan:
                charge = ledger.charge(lease, planned)
                assert charge is not None
                ledger.publish(lease, charge, np.zeros(planned.shape, np.int64))
            ledger.finish(lease, "finished")
    finally:
        database.sqlite3.connect = real
    return ledger
