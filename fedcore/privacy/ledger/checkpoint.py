"""What an account's records add up to, as one exact value: a reservation replays from the newest of them.

Sums are fractions, runs that ended are sums and counts, and open runs are kept in full. `fedcore budget show` and
`Ledger.verify` replay everything, and compare every checkpoint with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from fedcore.population.cohorts import FOUNDERS
from fedcore.privacy.accounting import CURRENCY, Budget
from fedcore.privacy.ledger.balances import Loss, StartingCharge
from fedcore.privacy.ledger.chain import Account, Attempt, Ended, RunAccount
from fedcore.privacy.ledger.shares import shares_json, shares_of
from fedcore.privacy.ledger.sums import Sums, Totals
from fedcore.privacy.periods import PeriodTerms
from fedcore.privacy.plan import LAWS
from fedcore.storage.parsing import JsonObject
from fedcore.storage.plain import entries, made_of, plain
from fedcore.storage.ranges import merged

FIELDS = {"budget", "currency", "unit", "relation", "releases", "public_schema", "loss", "runs"}
FIELDS |= {"shares", "anchor", "spent_before"}
SUMS = ({"rho", "delta"}, {"cohorts"})  # as one account, or by cohort


class UnknownState(Exception):
    """A checkpoint holds what this version does not know. Its argument: the names."""


def state_of(account: Account) -> dict[str, object]:
    """The account as JSON. rho, delta: what ended runs have spent, as [numerator, denominator]. In their place, where
    the account is kept by cohort, `cohorts`: the founders' version and manifest, the tokens, and these sums from cohort
    to cohort, as [first, last, rho, delta]; per client and period also its terms, and what a client with data in every
    period has lost. Once the account is divided, `shares`: their `parts`, and such sums of each that spent something.
    `anchor`: its place, `spent_before`: the starting charge, which the sums contain; each if there is one.
    """
    return {
        "budget": None if account.budget is None else account.budget.numbers(),
        "currency": CURRENCY,
        "unit": account.unit,
        "relation": account.relation,
        **_sums_json(account),
        **({"shares": _shares_json(account)} if account.shares else {}),
        **({} if account.anchor is None else {"anchor": account.anchor}),
        **({} if account.spent_before is None else {"spent_before": plain(account.spent_before)}),
        "releases": dict(account.ended.releases),
        "public_schema": account.public_schema[-1] if account.public_schema else None,
        "loss": plain(account.losses[-1]) if account.losses else None,
        "runs": {run_id: _run_json(account.runs[run_id]) for run_id in account.open_runs()},
    }


def account_at(population_id: str, state: JsonObject) -> Account:
    """The account that `state_of` made this of; its number and hash are left to the caller.

    Raises UnknownState for what a newer version wrote; KeyError, TypeError or ValueError if it is none.
    """
    by_cohort = "cohorts" in state
    if unknown := sorted(state.keys() - FIELDS - SUMS[by_cohort]):
        raise UnknownState(", ".join(unknown))
    budget, said, loss = state["budget"], state["public_schema"], state["loss"]
    releases = Counter({str(name): int(number) for name, number in state["releases"].items()})
    account = Account(
        population_id,
        None if budget is None else budget_of(state["currency"], budget),
        state["unit"],
        state["relation"],
        [] if said is None else [said],
        [] if loss is None else [made_of(Loss, loss)],
        {run_id: _run_of(value) for run_id, value in state["runs"].items()},
        Ended(releases=releases),
    )
    if by_cohort:
        version, manifest, account.tokens, sums = _cohorts_of(state["cohorts"])
        account.founders = version, manifest
        if "periods" in state["cohorts"]:
            account.periods = made_of(PeriodTerms, state["cohorts"]["periods"])
            account.ended.lifetime = _sum(state["cohorts"]["lifetime"])
    else:
        sums = [[FOUNDERS, FOUNDERS, state["rho"], state["delta"]]]
    account.ended.sums = _sums_of(sums)
    account.anchor = None if "anchor" not in state else str(state["anchor"])
    if "spent_before" in state:
        account.spent_before = made_of(StartingCharge, state["spent_before"])
    if "shares" in state:
        divided = state["shares"]
        if unknown := sorted(divided.keys() - {"parts", "sums"}):
            raise UnknownState(f"shares with {', '.join(unknown)}")
        account.shares = shares_of(divided["parts"])
        account.ended.shares = {str(name): _sums_of(pieces) for name, pieces in divided["sums"].items()}
    return account


def _sums_of(pieces: list[Any]) -> Sums:
    """What `_pieces_json` made this of."""
    sums = Sums()
    for first, last, rho, delta in pieces:
        sums.add(((first, last),), Totals(rho_spent=_sum(rho), delta_spent=_sum(delta)))
    return sums


def _pieces_json(account: Account, sums: Sums) -> list[list[Any]]:
    """[first, last, rho, delta] of what was spent, from cohort to cohort; numbers as [numerator, denominator]."""
    return [
        [first, last, list(totals.rho_spent.as_integer_ratio()), list(totals.delta_spent.as_integer_ratio())]
        for first, last, totals in sums.pieces(account.last_cohort)
    ]


def _shares_json(account: Account) -> dict[str, object]:
    spent = {name: _pieces_json(account, sums) for name, sums in sorted(account.ended.shares.items())}
    return {"parts": shares_json(account.shares), "sums": spent}


def _sums_json(account: Account) -> dict[str, object]:
    pairs = _pieces_json(account, account.ended.sums)
    if account.founders is None:
        ((_, _, rho, delta),) = pairs
        return {"rho": rho, "delta": delta}
    version, manifest = account.founders
    value = {"founders": version, "manifest": manifest, "tokens": list(account.tokens), "sums": pairs}
    if account.periods is not None:
        value |= {"periods": plain(account.periods), "lifetime": list(account.ended.lifetime.as_integer_ratio())}
    return {"cohorts": value}


def _cohorts_of(value: JsonObject) -> tuple[int, str, tuple[str, ...], list[Any]]:
    if unknown := sorted(value.keys() - {"founders", "manifest", "tokens", "sums", "periods", "lifetime"}):
        raise UnknownState(f"cohorts with {', '.join(unknown)}")
    return value["founders"], value["manifest"], tuple(value["tokens"]), value["sums"]


def budget_of(currency: Any, numbers: Mapping[str, float]) -> Budget:
    """Raises UnknownState for a currency that a newer version wrote."""
    if currency != CURRENCY:
        raise UnknownState(f"currency {currency!r}")
    return Budget(**numbers)


def _run_json(run: RunAccount) -> JsonObject:
    attempts = [[*key, a.state, a.rho, a.delta, a.digest] for key, a in sorted(run.attempts.items())]
    return {**entries(run), "attempts": attempts}


def _run_of(value: JsonObject) -> RunAccount:
    attempts = {(round, name, number): Attempt(*rest) for round, name, number, *rest in value["attempts"]}
    if unknown := sorted(value.keys() - RunAccount.__dataclass_fields__.keys()):
        raise UnknownState(", ".join(unknown))
    if value["noise"] not in LAWS:
        raise UnknownState(f"noise {value['noise']}")
    cohorts = None if value.get("cohorts") is None else merged((first, last) for first, last in value["cohorts"])
    return RunAccount(**{**value, "attempts": attempts, "cohorts": cohorts})


def _sum(pair: list[int]) -> Fraction:
    total = Fraction(*pair)
    if total < 0:
        raise ValueError("a negative sum")
    return total
