"""How a lost release is charged again, which was charged and drawn, but not published.

Its noise may have been drawn, so another draw has the same privacy cost again. The choice depends only on the ledger,
never on a value: every draw was charged before it began.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from fedcore.privacy.accounting import exact_sum
from fedcore.privacy.ledger.chain import OPEN, RESERVED, Account, RunAccount


@dataclass(frozen=True, slots=True)
class Redraw:
    """paid_by: a spare release of the run's reservation, or what no run has reserved; None: the release is given up,
    and the run ends before its round. given_up: the round from which on the run's releases are given up, if any are.
    """

    paid_by: Literal["spare", "extension"] | None
    given_up: int | None = None


def redraw(account: Account, run_id: str, round: int, name: str) -> Redraw | None:
    """The first source that is large enough: a reserve release, unreserved budget, that and the run's last optional
    rounds.

    None if none is, and the run needs the release.
    """
    run = account.runs[run_id]
    if run.given_up is not None and round >= run.given_up:
        return Redraw(None)
    if run.spares_left:
        return Redraw("spare")
    planned, budget = run.attempts[round, name, 0], account.required_budget()
    rho_used, delta_used = account.sums().most(run.payers)  # all are charged, so what is freed is freed for each
    rho = Fraction(budget.rho_max) - rho_used - Fraction(planned.rho)
    delta = Fraction(budget.delta_extra) - delta_used - Fraction(planned.delta)
    rho_of_share, delta_of_share = account.share_left(run.payers, run.share)
    rho = min(rho, rho_of_share - Fraction(planned.rho))
    delta = min(delta, delta_of_share - Fraction(planned.delta))
    if rho >= 0 and delta >= 0:
        return Redraw("extension")
    for last in _optional_rounds(run):
        if last <= round:
            return Redraw(None, round) if last == round else None
        freed = [a for (of, _, _), a in run.attempts.items() if of == last and a.state == RESERVED]
        rho += exact_sum(attempt.rho for attempt in freed)
        delta += exact_sum(attempt.delta for attempt in freed)
        if rho >= 0 and delta >= 0:
            return Redraw("extension", last)
    return None


def _optional_rounds(run: RunAccount) -> Iterator[int]:
    """The rounds without which the run can end, the last one first; those that were given up before left out."""
    if run.status != OPEN:
        return
    for round in sorted({planned["round"] for planned in run.plan}, reverse=True):
        if not all(planned.get("optional") for planned in run.plan if planned["round"] == round):
            return
        if run.given_up is None or round < run.given_up:
            yield round
