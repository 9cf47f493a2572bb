"""What a population shares with others of its ledger, for the person at the terminal: on standard error, in no JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedcore.population.store import Population
    from fedcore.privacy.ledger.ledger import Ledger
    from fedcore.training.shared_ids import Shared

MOST = 10  # populations that are named


def register(population: Population, ledger: Ledger, *, new_key: bool = False, budget: bool = False) -> None:
    """`fedcore.training.shared_ids.register`, and what it has found. budget: list what could not be compared, too."""
    from fedcore.training import shared_ids

    compared = shared_ids.register(population, ledger, new_key=new_key)
    told = []
    if compared.found:
        told += [f"Population {population.path.name} shares people with other populations of its ledger:"]
        told += _some([_line(one) for one in compared.found])
        told += [
            "The privacy losses of a person in several populations add up, and no budget bounds their sum. These "
            "numbers are estimates from noisy sketches. They depend on private data: do not publish them."
        ]
    if compared.undeclared:
        told += [
            "A budget, or the next private run, needs a declaration from the budget owner that statements quote: "
            f"fedcore budget set {population.path} ... --shared-ids REASON, or, once there is a budget, "
            f"fedcore budget shared-ids {population.path} REASON."
        ]
    if budget and compared.unknown:
        told += ["Not compared, since the ledger has no sketch of their ids yet, but a budget:"]
        told += [
            *_some([f"  - {one}" for one in compared.unknown]),
            "Append to them, or raise their budget, to add one.",
        ]
    if told:
        print(*told, sep="\n", file=sys.stderr)


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
