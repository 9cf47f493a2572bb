"""When an account that was opened in zCDP may be recounted in Gaussian differential privacy, and what is recorded.

The argument is docs/privacy/recount.md: what is not refused here keeps within the caps of `fedcore.privacy.recount`.
"""

from __future__ import annotations

from typing import Any

from fedcore.errors import PrivacyError
from fedcore.privacy import recount
from fedcore.privacy.accounting import Budget, recounted
from fedcore.privacy.ledger.chain import SPENT, Account, RunAccount
from fedcore.privacy.plan import DISCRETE, PlannedRelease

RECOUNT = "recount"
SHOWN = 5  # open runs


def recounted_budget(account: Account) -> Budget:
    """The budget that the account has after a recount; account: of the whole chain.

    Raises BudgetMissing; PrivacyError if the account is in Gaussian differential privacy already, is per client and
    calendar period, has open runs, holds discrete noise beyond the caps, or would have less; ConfigError if its rho_max
    is beyond them.
    """
    old, whose = account.required_budget(), f"population {account.population_id!r}"
    if old.currency != "zcdp":
        raise PrivacyError(
            f"the budget of {whose} is in Gaussian differential privacy"
            f"{', since it was recounted' if old.discrete else ''}.",
            "There is nothing to recount.",
        )
    if account.periods is not None:
        raise PrivacyError(
            f"the budget of {whose} is per client and calendar period, and what is proved of a recount holds for one "
            "period, not for a client's whole life.",
            "It stays in zCDP.",
        )
    if names := account.open_runs():
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise PrivacyError(
            f"{whose} has open runs: {', '.join(names[:SHOWN])}{more}.",
            "Let them end (fedcore resume), or give them up (fedcore runs abandon); then recount.",
        )
    for run in account.runs.values():
        for planned in charged_with_discrete_noise(run):
            recount.check_release(planned)
    new = recounted(old)
    if new.rho_max < old.rho_max:
        raise PrivacyError(
            f"recounted, {whose} would have rho_max = {new.rho_max:.6g} in place of {old.rho_max:.6g}.", recount.KEEPS
        )
    return new


def charged_with_discrete_noise(run: RunAccount) -> list[PlannedRelease]:
    """The releases of a run of which an attempt was charged for discrete noise."""
    charged = {
        (round, name)
        for (round, name, _), attempt in run.attempts.items()
        if attempt.state in SPENT and run.law_of(attempt) == DISCRETE
    }
    return [PlannedRelease.from_json(item) for item in run.plan if (item["round"], item["name"]) in charged]


def record_of(old: Budget, new: Budget) -> dict[str, Any]:
    """The payload of the record, with the caps that the new rho_max was made from."""
    eta1, eta2 = recount.caps(new.epsilon, new.delta_conv, new.discrete)
    limits = {
        "cells": recount.LARGEST_ARRAY,
        "sensitivity": recount.SMALLEST_SENSITIVITY,
        "scale": recount.SMALLEST_SCALE,
        "releases": recount.MOST_RELEASES,
    }
    return {
        "currency": new.currency,
        "budget": new.numbers(),
        "before": old.numbers(),
        "caps": {"eta1": eta1, "eta2": eta2, **limits},
    }
