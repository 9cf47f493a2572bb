"""What an account's records add up to, as one exact value: a reservation replays from the newest of them.

Sums are fractions, runs that ended are sums and counts, and open runs are kept in full. `fedcore budget show` and
`Ledger.verify` replay everything, and compare every checkpoint with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from fractions import Fraction
from typing import Any, cast, get_args

from fedcore.privacy.accounting import Budget, Currency
from fedcore.privacy.ledger.chain import Account, Attempt, Ended, RunAccount
from fedcore.privacy.plan import LAWS

FIELDS = {"budget", "currency", "unit", "relation", "rho", "delta", "releases", "public_schema", "loss", "runs"}


class UnknownState(Exception):
    """A checkpoint holds what this version does not know. Its argument: the names."""


def state_of(account: Account) -> dict[str, Any]:
    """The account as JSON. rho, delta: what ended runs have spent, as [numerator, denominator]."""
    return {
        "budget": None if account.budget is None else account.budget.numbers(),
        "currency": account.currency,
        "unit": account.unit,
        "relation": account.relation,
        "rho": list(account.ended.rho.as_integer_ratio()),
        "delta": list(account.ended.delta.as_integer_ratio()),
        "releases": dict(account.ended.releases),
        "public_schema": account.public_schema[-1] if account.public_schema else None,
        "loss": account.losses[-1] if account.losses else None,
        "runs": {run_id: _run_json(account.runs[run_id]) for run_id in account.open_runs()},
    }


def account_at(population_id: str, state: Mapping[str, Any]) -> Account:
    """The account that `state_of` made this of; its number and hash are left to the caller.

    Raises UnknownState for what a newer version wrote; KeyError, TypeError or ValueError if it is none.
    """
    if unknown := sorted(state.keys() - FIELDS):
        raise UnknownState(", ".join(unknown))
    budget, said, loss = state["budget"], state["public_schema"], state["loss"]
    releases = Counter({str(name): int(number) for name, number in state["releases"].items()})
    return Account(
        population_id,
        None if budget is None else Budget(known_currency(state["currency"]), **budget),
        state["unit"],
        state["relation"],
        [] if said is None else [said],
        [] if loss is None else [loss],
        {run_id: _run_of(value) for run_id, value in state["runs"].items()},
        Ended(_sum(state["rho"]), _sum(state["delta"]), releases),
    )


def known_currency(name: Any) -> Currency:
    """Raises UnknownState for a currency that a newer version wrote."""
    if name not in get_args(Currency):
        raise UnknownState(f"currency {name!r}")
    return cast(Currency, name)


def _run_json(run: RunAccount) -> dict[str, Any]:
    """Without what has no value: checkpoints of before have no word for it."""
    attempts = []
    for key, a in sorted(run.attempts.items()):
        other_law = [] if a.noise is None else [a.noise]
        attempts.append([*key, a.state, a.rho, a.delta, a.digest, *other_law])
    value = {**asdict(run), "attempts": attempts}
    return value if run.given_up is not None else {name: value[name] for name in value if name != "given_up"}


def _run_of(value: Mapping[str, Any]) -> RunAccount:
    attempts = {(round, name, number): Attempt(*rest) for round, name, number, *rest in value["attempts"]}
    if unknown := sorted(value.keys() - RunAccount.__dataclass_fields__.keys()):
        raise UnknownState(", ".join(unknown))
    laws = {value["noise"], *(a.noise for a in attempts.values() if a.noise is not None)}
    if other := sorted(map(str, laws - {*LAWS})):
        raise UnknownState(f"noise {', '.join(other)}")
    return RunAccount(**{**value, "attempts": attempts})


def _sum(pair: list[int]) -> Fraction:
    total = Fraction(*pair)
    if total < 0:
        raise ValueError("a negative sum")
    return total
