"""What a population shares with others of its ledger, for the person at the terminal: on standard error, in no JSON.

Numbers are shown on a terminal only: files and logs of jobs are read by others.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedcore.population.store import Population
    from fedcore.privacy.ledger.ledger import Ledger
    from fedcore.training.shared_ids import Comparison, Shared

MOST = 10  # populations that are named


def register(
    population: Population,
    ledger: Ledger,
    *,
    new_key: bool | None = None,
    budget: bool = False,
    declaring: bool = False,
) -> Comparison:
    """Call `fedcore.training.shared_ids.register`, and print what it has found.

    budget: list what could not be compared, too. declaring: the budget owner declares the shared ids with this command.
    """
    from fedcore.training import shared_ids

    compared = shared_ids.register(population, ledger, new_key=new_key)
    printed = []
    if compared.found and is_terminal():
        printed += [f"Population {population.path.name} shares people with other populations of its ledger:"]
        printed += _some([_line(one) for one in compared.found])
        printed += [
            "The privacy losses of a person in several populations add up, and no budget bounds their sum. These "
            "numbers are estimates from noisy sketches. They depend on private data: do not publish them."
        ]
    elif compared.found:
        printed += [
            f"Population {population.path.name} shares people with other populations of its ledger, and the privacy "
            f"losses of these people add up. Run `fedcore budget shared-ids {population.path}` on a terminal to see "
            "how many."
        ]
    if compared.undeclared and not declaring:
        printed += [
            "A budget, or the next private run, needs a declaration from the budget owner that statements quote: "
            f"fedcore budget set {population.path} ... --shared-ids REASON, or, once there is a budget, "
            f"fedcore budget shared-ids {population.path} REASON."
        ]
    if budget and compared.not_compared:
        why = "the key is missing" if compared.lost else "another key"
        printed += [f"Not compared: {why}. These populations have a budget:"]
        printed += _some([f"  - {one}" for one in compared.not_compared])
        if not compared.lost:
            printed += ["Run `fedcore budget shared-ids PATH` for each of them to make its sketch again."]
    if budget and compared.unknown:
        printed += ["Not compared: no sketch. These populations have a budget, but the ledger has no sketch of them:"]
        printed += _some([f"  - {one}" for one in compared.unknown])
        printed += ["Run `fedcore budget shared-ids PATH` for each of them to add one."]
    if printed:
        print(*printed, sep="\n", file=sys.stderr)
    return compared


def is_terminal() -> bool:
    """Whether a person reads standard error as it is written."""
    return sys.stderr.isatty()


def _some(lines: list[str]) -> list[str]:
    left = len(lines) - MOST
    return lines if left <= 0 else [*lines[:MOST], f"  - and {left} more"]


def _line(one: Shared) -> str:
    parts = []
    if one.ids is not None and one.ids.many:
        parts.append(f"about {one.ids.ids:,.0f} ids (standard error {one.ids.error:,.0f})")
    if one.blocks:
        parts.append(f"{one.blocks} block{'' if one.blocks == 1 else 's'} with the same ids and data")
    budget = "has a budget" if one.has_budget else "has no budget yet"
    return f"  - {' and '.join(parts)} with {one.name!r} (id {one.population_id}), which {budget}"
