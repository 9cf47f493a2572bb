"""What an operator sees of a budget that is divided into shares."""

from __future__ import annotations

from typing import Any

from fedcore.operations.cohort_page import who
from fedcore.population.manifest import Manifest
from fedcore.privacy.ledger.chain import Balance, Segment, ShareBalance

UNDIVIDED = "(undivided)"
IN_WORDS = (
    "Divided into shares by its operator; each run is paid by the share that it names. People are promised what the "
    "whole budget says, whoever spends it."
)


def share_rows(balance: Balance, manifest: Manifest) -> list[dict[str, Any]]:
    """What each share has spent, reserved and left, the undivided part last; by cohort where the account is kept so,
    for consecutive cohorts of equal account. Empty unless the budget is divided.

    manifest: of the population, for the dates of its calendar periods
    """
    return [row for share in balance.shares for row in _rows(share, balance, manifest)]


def _rows(share: ShareBalance, balance: Balance, manifest: Manifest) -> list[dict[str, Any]]:
    budget = balance.required_budget()
    parts: tuple[ShareBalance | Segment, ...] = share.segments or (share,)
    rows = []
    for part in parts:
        cohorts = who(manifest, ((part.first, part.last),)) if isinstance(part, Segment) else {}
        row = {
            "share": share.name or UNDIVIDED,
            "part": str(share.part),
            **cohorts,
            "rho": share.rho_max,
            "rho spent": part.rho_spent,
            "epsilon spent": budget.epsilon_of(part.rho_spent),
            "rho reserved": part.rho_reserved,
            "rho left": max(part.rho_left, 0.0),
        }
        deltas = {"delta spent": part.delta_spent, "delta left": max(part.delta_left, 0.0)}
        rows.append({**row, **deltas} if budget.delta_extra else row)
    return rows
