"""When an account may be divided into sub-budgets, or the division changed, and what is recorded.

Nothing that was spent or reserved moves. A sub-budget becomes no smaller than what its runs have spent and reserved,
and what was spent without one stays where it is. docs/privacy/ledger.md has the argument.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from fedcore.errors import BudgetExceeded
from fedcore.privacy.accounting import rounded_up
from fedcore.privacy.ledger.chain import OPEN, Account
from fedcore.privacy.ledger.shares import SHARES, Shares, check_shares, part_of, shares_json, whose

DIVIDE = "budget divide"


def divided(account: Account, changes: Shares) -> dict[str, Fraction]:
    """The shares that an account has after these changes: those that are not named stay, and 0 takes one away.

    Raises BudgetMissing, ConfigError for bad names and parts, BudgetExceeded if a share would have less than its runs
    have spent and reserved.
    """
    account.required_budget()
    new = {name: part for name, part in {**account.shares, **changes}.items() if part or name not in changes}
    check_shares({name: part for name, part in changes.items() if part} | new)
    check_division(account, new)
    return new


def check_division(account: Account, new: Shares) -> None:
    """Raises BudgetExceeded unless every share has room for what its runs have spent and reserved, in every cohort. An
    account that is kept by cohort may have spent more without a share than is left undivided: of such cohorts the
    shares have what the account has left.
    """
    budget, everybody = account.required_budget(), ((1, account.last_cohort),)
    named = sorted({*account.shares, *new})
    for name in named if account.founders is not None else [*named, None]:
        part = part_of(new, name) if name is None or name in new else Fraction(0)
        rho, delta = account.sums_of(name).most(everybody)
        opened = part == 0 and name is not None and _open_run(account, name)
        if rho <= part * Fraction(budget.rho_max) and delta <= part * Fraction(budget.delta_extra) and not opened:
            continue
        least = max(_ratio(rho, budget.rho_max), _ratio(delta, budget.delta_extra))
        what = "what runs without a share" if name is None else f"what the runs of share {name!r}"
        if opened:
            message = f"run {opened!r} of share {name!r} is open, and the share is to be taken away."
            raise BudgetExceeded(f"{message} Nothing was changed.", "Let it end (fedcore resume), or give it up.")
        raise BudgetExceeded(
            f"{what} have spent and reserved is rho = {rounded_up(rho):.6g} of {budget.rho_max:.6g}"
            f"{f' and delta = {rounded_up(delta):.3g}' if delta else ''}, which is more than "
            f"{whose(name)} would have, {float(part):.6g} of the budget. Nothing was changed.",
            f"Leave it {_above(least)} of the budget or more.",
        )


def record_of(old: Shares, new: Shares) -> dict[str, Any]:
    """The payload of the record."""
    return {"needs": [SHARES], "shares": shares_json(new), "before": shares_json(old)}


def _open_run(account: Account, share: str) -> str | None:
    return next((run_id for run_id, run in account.runs.items() if run.share == share and run.status == OPEN), None)


def _ratio(used: Fraction, whole: float) -> Fraction:
    return used / Fraction(whole) if used else Fraction(0)


def _above(value: Fraction) -> float:
    """Rounded up to four digits behind the point."""
    return float(-(-value * 10**4 // 1) / 10**4)
