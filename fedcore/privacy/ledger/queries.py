"""What is read from a ledger: a chain, a balance, whether tables and chain agree, and why a plan is refused."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection, Row, select

from fedcore.errors import LedgerTampered
from fedcore.privacy.accounting import ZcdpBudget, epsilon_of, exact_sum, rounded_up
from fedcore.privacy.ledger import database as db
from fedcore.privacy.ledger.chain import (
    OPEN,
    PUBLISHED,
    RESERVED,
    SPENT,
    Account,
    Balance,
    Record,
    canonical,
    make_balance,
)


def read_chain(connection: Connection, population_id: str) -> list[Record]:
    """The records of a population, in order."""
    c = db.records.c
    columns = select(c.seq, c.kind, c.run_id, c.payload, c.prev_hash, c.hash)
    rows = connection.execute(columns.where(c.population_id == population_id).order_by(c.seq))
    return [Record(*row) for row in rows]


def budget_of(account: Row[Any]) -> ZcdpBudget | None:
    """The budget in a row of `database.accounts`; None before one is set."""
    if account.rho_max is None:
        return None
    return ZcdpBudget(account.epsilon, account.delta, account.rho_max, account.delta_conv, account.delta_extra)


def _runs(connection: Connection, population_id: str) -> dict[str, Row[Any]]:
    rows = connection.execute(select(db.runs).where(db.runs.c.population_id == population_id))
    return {row.run_id: row for row in rows}


def _releases(connection: Connection, population_id: str) -> list[Row[Any]]:
    of_population = select(db.releases).join(db.runs).where(db.runs.c.population_id == population_id)
    return list(connection.execute(of_population))


def table_balance(connection: Connection, account: Row[Any], budget: ZcdpBudget | None) -> Balance:
    """The balance as the tables give it, without replaying the chain."""
    runs, releases = _runs(connection, account.population_id), _releases(connection, account.population_id)
    open_runs = [run_id for run_id, run in runs.items() if run.status == OPEN]
    spent = [row for row in releases if row.state in SPENT]
    reserved = [(row.rho, row.delta) for row in releases if row.state == RESERVED]
    for run_id in open_runs:
        run = runs[run_id]
        reserved += [(run.spare_rho, run.spare_delta)] * (run.spares - run.used)
    totals = (
        exact_sum(row.rho for row in spent),
        exact_sum(rho for rho, _ in reserved),
        exact_sum(row.delta for row in spent),
        exact_sum(delta for _, delta in reserved),
    )
    return make_balance(
        account.population_id,
        budget,
        account.unit,
        account.relation,
        totals,
        Counter(row.state for row in releases),
        open_runs,
    )


def compare_tables(
    connection: Connection, ledger_id: str, account: Account, row: Row[Any], budget: ZcdpBudget | None, *, arrays: bool
) -> None:
    """Raises LedgerTampered if a table says anything else than the chain does.

    arrays: whether the published values are read and hashed too.
    """
    population_id = account.population_id

    def check(same: bool, what: str) -> None:
        if not same:
            raise LedgerTampered(
                f"population {population_id!r} in ledger {ledger_id}: {what} not what the chain says.",
                "Restore the ledger from a backup and find out what was done to it; nothing more is "
                "released until then.",
            )

    check((row.seq, row.hash) == (account.seq, account.hash), f"the last record ({row.seq}) is")
    check(budget == account.budget, "the budget is")
    check((row.unit, row.relation) == (account.unit, account.relation), "unit or relation are")

    runs = _runs(connection, population_id)
    check(runs.keys() == account.runs.keys(), "the runs are")
    for run_id, run in runs.items():
        replayed = account.runs[run_id]
        same = run.plan == canonical(replayed.plan)
        for name in ("plan_digest", "spares", "used", "spare_rho", "spare_delta", "secure", "status", "token"):
            same = same and getattr(run, name) == getattr(replayed, name)
        check(same, f"the entry of run {run_id!r} is")

    releases = {
        (r.run_id, r.round, r.name, r.attempt): (r.state, r.rho, r.delta) for r in _releases(connection, population_id)
    }
    attempts = {(run_id, *key): a for run_id, run in account.runs.items() for key, a in run.attempts.items()}
    check(releases.keys() == attempts.keys(), "the list of releases is")
    for key, stored in releases.items():
        attempt = attempts[key]
        check(stored == (attempt.state, attempt.rho, attempt.delta), f"release {key[2]!r} of run {key[0]!r} is")

    p = db.published.c
    columns = (p.run_id, p.round, p.name, p.attempt, p.sha256, *((p.shape, p.data) if arrays else ()))
    query = select(*columns).join(db.runs).where(db.runs.c.population_id == population_id)
    published = {key: attempt.digest for key, attempt in attempts.items() if attempt.state == PUBLISHED}
    for value in connection.execute(query):
        key = (value.run_id, value.round, value.name, value.attempt)
        found = hashlib.sha256(value.shape.encode() + value.data).hexdigest() if arrays else value.sha256
        check(
            found == value.sha256 == published.pop(key, None),
            f"the published value of {value.name!r} of run {value.run_id!r} is",
        )
    for run_id, _, name, _ in published:
        check(False, f"the published value of {name!r} of run {run_id!r} is missing, which is")


def refusal(
    budget: ZcdpBudget, balance: Balance, run_id: str, rho: Fraction, delta: Fraction, spares: int
) -> tuple[str, str]:
    """(message, remedy) for a plan that costs rho and delta, spares included, and does not fit into the budget."""
    population_id = balance.population_id
    if delta > Fraction(max(balance.delta_left, 0.0)):
        return (
            f"run {run_id!r} needs delta = {float(delta):.3g} for its thresholding steps, and population "
            f"{population_id!r} has {balance.delta_left:.3g} left of {budget.delta_extra:.3g}. "
            "Nothing was released.",
            "Give the thresholds a smaller delta, or raise the budget.",
        )
    cost, left = rounded_up(rho), balance.rho_left
    used = Fraction(balance.rho_spent) + Fraction(balance.rho_reserved)
    needed = epsilon_of(rounded_up(used + rho), budget.delta_conv)
    message = (
        f"run {run_id!r} would cost rho = {cost:.6g} (epsilon = {epsilon_of(cost, budget.delta_conv):.4g}"
        f"{f', {spares} spare releases included' if spares else ''}), and population {population_id!r} has rho = "
        f"{left:.6g} left of {budget.rho_max:.6g} (spent {balance.rho_spent:.6g}, reserved by open runs "
        f"{balance.rho_reserved:.6g}). Nothing was released."
    )
    raised = f"raise the budget to epsilon = {_above(needed * (1 + 2e-4)):.4g} or more"
    if left <= 0:
        return message, f"Nothing is left: {raised}."
    factor = _above(math.sqrt(cost / left) * (1 + 1e-9))
    share = _below(epsilon_of(left, budget.delta_conv))
    return message, f"Multiply the noise by {factor:.4g}, or give the run epsilon = {share:.4g} or less, or {raised}."


def _above(value: float) -> float:
    """Rounded up to four digits, so that the number shown is enough."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return math.ceil(value / unit) * unit


def _below(value: float) -> float:
    """Rounded down to four digits, so that the number shown fits."""
    if value <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return math.floor(value / unit) * unit
