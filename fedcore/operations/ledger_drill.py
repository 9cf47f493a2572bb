"""Checks of a copy of a ledger before it is needed: whether it is whole, and which records it lacks.

A copy is compared with everything that saw the ledger: the ledger itself, runs, and their populations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from fedcore.errors import LedgerError, LedgerMissing, LedgerRetired, LedgerRolledBack, PopulationError
from fedcore.population.store import Population
from fedcore.privacy.accounting import rounded_up
from fedcore.privacy.ledger.chain import ChainHead
from fedcore.privacy.ledger.copies import open_copy
from fedcore.privacy.ledger.ledger import Ledger, open_ledger
from fedcore.storage.files import Place
from fedcore.training.witness import seen_beside, seen_by_runs

WHOLE, OLDER, DAMAGED = "whole", "older", "damaged"
PROMISE = ("epsilon", "delta")


@dataclass
class Drill:
    """What was found about a copy.

    populations: records, budget, spent rho and open runs of each, in the copy. lost: for each population, the ledger's
    later records, which the copy lacks. runs, places: runs and populations that saw a record which the copy lacks.
    problems: why the copy is damaged, or of another chain. remarks: what could not be compared.
    """

    ledger: str
    populations: list[dict[str, Any]] = field(default_factory=list)
    lost: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    places: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Whole: nothing that is known would be lost. Older: private runs would be refused until that is accepted."""
        if self.problems:
            return DAMAGED
        return OLDER if self.lost or self.runs or self.places else WHOLE


def drill(source: str, url: str, runs: Iterable[str | Place] = ()) -> Drill:
    """Open a copy, verify all of it, and compare it with what saw the ledger. Nothing is written.

    url: where the ledger itself should be; it may be gone. runs: folders or URLs. Raises LedgerMissing or LedgerError
    if there is no copy, Unreachable.
    """
    copy = open_copy(source)
    found = Drill(copy.id)
    for population_id in copy.populations():
        try:
            balance = copy.verify(population_id)
        except LedgerRetired as error:
            found.remarks.append(error.message)
            continue
        except LedgerError as error:
            found.problems.append(error.message)
            continue
        budget = None if balance.budget is None else {name: balance.budget.to_json()[name] for name in PROMISE}
        found.populations.append(
            {
                "population_id": population_id,
                "records": copy.length(population_id),
                "budget": budget,
                "rho_spent": balance.rho_spent,
                "open_runs": list(balance.open_runs),
            }
        )
    mine = [item["population_id"] for item in found.populations]
    if not found.problems:
        _compare_live(copy, mine, url, found)
        _compare_runs(copy, mine, runs, found)
    return found


def _compare_live(copy: Ledger, mine: list[str], url: str, found: Drill) -> None:
    try:
        live = open_ledger(url, expected_id=copy.id)
        theirs = live.populations()
    except LedgerMissing as error:
        found.remarks.append(f"The ledger itself is not at hand: {error.message}")
        return
    except LedgerError as error:
        found.remarks.append(f"The ledger itself cannot be read: {error.message}")
        return
    for population_id in mine:
        if population_id not in theirs or not live.contains(population_id, copy.head(population_id)):
            found.remarks.append(
                f"The ledger at {live.url!r} lacks what the copy has of population {population_id!r}: it went back."
            )
    for population_id in theirs:
        try:
            history = live.history(population_id)
        except LedgerRetired:
            continue
        lost = set(copy.lacks(population_id, [ChainHead(live.id, row["seq"], row["hash"]) for row in history]))
        if rows := [row for row in history if ChainHead(live.id, row["seq"], row["hash"]) in lost]:
            found.lost.append({"population_id": population_id, **_since(rows)})


def _since(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What records say that came after the copy."""
    charged = sum((Fraction(row["rho"]) for row in rows if row["kind"] == "charge"), Fraction(0))
    kinds = Counter(str(row["kind"]) for row in rows)
    runs = sorted({str(row["run_id"]) for row in rows if row["run_id"] is not None})
    return {
        "records": len(rows),
        "kinds": dict(sorted(kinds.items())),
        "rho_charged": rounded_up(charged),
        "runs": runs,
    }


def _compare_runs(copy: Ledger, mine: list[str], folders: Iterable[str | Place], found: Drill) -> None:
    looked_at: set[str] = set()
    if not (named := list(folders)):
        found.remarks.append("No runs were named: what they and their populations saw was not compared.")
    for folder in named:
        for run, population_id, head in seen_by_runs(folder):
            if head.ledger_id != copy.id:
                continue
            if population_id not in mine or not copy.contains(population_id, head):
                which = {"run": str(run.path), "status": run.status, "population_id": population_id}
                found.runs.append({**which, "saw_record": head.seq})
            place = str((run.info.get("population") or {}).get("path"))
            if place not in looked_at:
                looked_at.add(place)
                _compare_population(copy, mine, place, found)


def _compare_population(copy: Ledger, mine: list[str], place: str, found: Drill) -> None:
    try:
        population = Population.open(place)
        head = seen_beside(population)
    except (PopulationError, LedgerRolledBack) as error:
        found.remarks.append(f"What population {place!r} saw is not known: {error.message}")
        return
    if head is not None and (population.id not in mine or not copy.contains(population.id, head)):
        found.places.append({"population": place, "population_id": population.id, "saw_record": head.seq})
