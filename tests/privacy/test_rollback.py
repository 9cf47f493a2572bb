"""Backup and restore under attack: every combination of new, old and absent population, ledger, runs and anchor.

Each is refused by name, or continues with exactly what was spent. What cannot be noticed is listed, and in
docs/privacy/ledger.md.
"""

import itertools
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp

from fedcore.errors import LedgerError
from fedcore.population.store import Population
from fedcore.privacy.ledger.ledger import open_ledger
from fedcore.training.budget import ledger_of
from fedcore.training.witness import check_runs
from tests import sessions
from tests.command import private_population
from tests.sessions import to_end

ANCHOR, WITNESS = "FEDCORE_ANCHOR", "ledger-head.json"
NEW, OLD, ABSENT, EMPTY = "new", "old", "absent", "empty"
CONTINUES, REFUSED, UNNOTICED = "continues", "refused", "unnoticed"


def start(place, run):
    settings = {"clusters": 2, "rounds": 1, "epsilon": 0.25}
    return sessions.begin(place / "p", place, settings=settings, run_id=run, test_noise="k")


def ledger_at(place):
    return open_ledger(f"sqlite:///{place / 'ledger.sqlite'}")


class Kept(NamedTuple):
    """Snapshots of everything: before the anchor was used for the first time, after, and now; and what is spent now."""

    place: Path
    spent: float

    def snapshot(self, when):
        return self.place.parent / when


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A population with three runs: of the time before its anchor, and two since."""
    place = tmp_path_factory.mktemp("rollback") / "now"
    (place / "anchor").mkdir(parents=True)
    matrix = np.random.Generator(np.random.Philox(1)).poisson(1.0, (12, 4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDCORE_LEDGER", f"sqlite:///{place / 'ledger.sqlite'}")
        patch.delenv(ANCHOR, raising=False)
        private_population(place / "p", sp.csr_matrix(matrix), test=True)
        for when in ("before", "since", "now"):
            to_end(start(place, when))
            with closing(sqlite3.connect(place / "ledger.sqlite")) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            shutil.copytree(place, place.parent / f"{when}-kept")
            patch.setenv(ANCHOR, str(place / "anchor"))
    return Kept(place, ledger_at(place).verify(Population.open(place / "p").id).rho_spent)


@pytest.fixture(autouse=True)
def ledger_variable(kept, monkeypatch):
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{kept.place / 'ledger.sqlite'}")
    monkeypatch.delenv(ANCHOR, raising=False)


PARTS = ("p", "ledger.sqlite", "runs", "anchor")


def put(kept, old, *ages, there=(None,) * 4):
    """Make the place of these parts. old: the snapshot of old ones. there: ages of the parts that are there already.
    An absent population is one without its witness.
    """
    for name, age, age_there in zip(PARTS, ages, there, strict=True):
        source, target = kept.snapshot(f"{old if age == OLD else 'now'}-kept") / name, kept.place / name
        if age == age_there:
            continue
        for left in kept.place.glob(f"{name}*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        if age in (NEW, OLD) or name == "p":
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        elif age == EMPTY:
            target.mkdir()
        if name == "p" and age == ABSENT:
            (target / WITNESS).unlink()


def outcome(kept):
    """What the checks of a start come to, which come before all that is written."""
    population = Population.open(kept.place / "p")
    try:
        ledger = ledger_of(population)
        check_runs(kept.place / "runs", population, ledger)
    except LedgerError as refused:
        assert refused.remedy, "what to do is missing"
        return REFUSED
    return CONTINUES if ledger.balance(population.id).rho_spent == kept.spent else UNNOTICED


# --- the table ------------------------------------------------------------------------------------------------------


def rule(anchored, population, ledger, runs, anchor, variable):
    """What must come of it, from what each part knows, and nothing of the code. anchored: whether old parts are of the
    time since the anchor was used.
    """
    if ledger == ABSENT or population == ABSENT:
        return REFUSED
    knows_place = anchored or NEW in (population, ledger) or variable
    if ledger == OLD and NEW in (population, runs):
        return REFUSED  # one of them saw a record that the ledger lacks
    if not knows_place:
        return UNNOTICED  # the rest is whole and of one time: nothing that is left shows that time went on
    if anchor == ABSENT:
        return REFUSED  # it is known that there is one, and it cannot be asked
    record = NEW if anchor == NEW else OLD if anchored and anchor == OLD else None
    used_before = anchored or NEW in (population, ledger)
    if record is None and used_before:
        return REFUSED
    if ledger == OLD:
        return REFUSED if record == NEW else UNNOTICED
    return CONTINUES


ROWS = [
    (anchored, *row)
    for anchored in (True, False)
    for row in itertools.product(*[(NEW, OLD, ABSENT)] * 3, (NEW, OLD, EMPTY, ABSENT), (True, False))
]


@pytest.mark.slow
def test_every_combination_is_refused_or_continues_with_exact_spend(kept, monkeypatch):
    """The anchor also as an empty folder, as of a disk that is not mounted. With old parts of two times."""
    wrong, counts, there = [], Counter(), (None,) * 5
    for anchored, *parts, variable in ROWS:
        put(kept, "since" if anchored else "before", *parts, there=there[1:] if there[0] == anchored else (None,) * 4)
        there = (anchored, *parts)
        with monkeypatch.context() as patch:
            if variable:
                patch.setenv(ANCHOR, str(kept.place / "anchor"))
            found = outcome(kept)
        expected = rule(anchored, *parts, variable)
        counts[anchored, found] += 1
        if found != expected:
            wrong.append((anchored, *parts, variable, f"{found}, not {expected}"))
    assert not wrong, "\n".join(map(str, wrong))
