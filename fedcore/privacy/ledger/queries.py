"""What is read from a ledger: a chain, whether tables and chain agree, and why a plan is refused."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Table, func, select

from fedcore.errors import LedgerTampered
from fedcore.privacy.accounting import CURRENCY, Budget, rounded_up
from fedcore.privacy.ledger import tables
from fedcore.privacy.ledger.balances import NUMBERS
from fedcore.privacy.ledger.chain import OPEN, PUBLISHED, Account, Balance, Record, Segment, canonical
from fedcore.privacy.ledger.replay import CHECKPOINT, STOP
from fedcore.privacy.ledger.rows import find, find_all
from fedcore.privacy.ledger.shares import shares_json
from fedcore.storage.ranges import Ranges

CHAIN = ("seq", "kind", "run_id", "payload", "prev_hash", "hash")


def read_chain(connection: Connection, population_id: str, *where: ColumnElement[bool]) -> list[Record]:
    """The records of a population, in order."""
    c = tables.records.c
    mine = c.population_id == population_id
    return [Record(*row) for row in find(connection, tables.records, mine, *where, columns=CHAIN, order=c.seq)]


def recent_chain(connection: Connection, population_id: str) -> list[Record]:
    """The records from the newest checkpoint on; all of them if there is none."""
    c = tables.records.c
    newest = select(func.max(c.seq)).where(c.population_id == population_id, c.kind == CHECKPOINT).scalar_subquery()
    return read_chain(connection, population_id, c.seq >= func.coalesce(newest, 1))


def budget_of(account: Row[Any]) -> Budget | None:
    """The budget in a row of `tables.accounts`; None before one is set."""
    if account.rho_max is None:
        return None
    return Budget(account.epsilon, account.delta, account.rho_max, account.delta_conv, account.delta_extra)


def compare_tables(
    connection: Connection, ledger_id: str, account: Account, row: Row[Any], *, part: bool, arrays: bool
) -> None:
    """Raises LedgerTampered if a table says anything else than the chain does.

    part: the account was replayed from a checkpoint on: only the runs that it knows are compared, those that were open
    then and later ones. arrays: whether the published values are read and hashed too.
    """
    population_id = account.population_id

    def check(same: bool, what: str) -> None:
        if not same:
            message = f"population {population_id!r} in ledger {ledger_id}: {what} not what the chain says."
            raise LedgerTampered(message, STOP)

    check((row.seq, row.hash) == (account.seq, account.hash), f"the last record ({row.seq}) is")
    check(budget_of(row) == account.budget, "the budget is")
    check((row.unit, row.relation) == (account.unit, account.relation), "unit or relation are")
    said = account.public_schema[-1] if account.public_schema else None
    check(account.budget is None or row.currency == CURRENCY, "the currency is")
    check(row.public_schema == said, "the reason of the schema is")
    check(row.mode == account.mode, "whether it is kept by cohort is")
    shares = canonical(shares_json(account.shares)) if account.shares else None
    check(row.shares == shares, "its division into shares is")

    runs = {run.run_id: run for run in _runs(connection, account, part)}
    check(runs.keys() == account.runs.keys(), "the runs are")
    for run_id, run in runs.items():
        replayed = account.runs[run_id]
        same = run.plan == canonical(replayed.plan) and run.population_id == population_id
        same = same and run.cohorts == (None if replayed.cohorts is None else canonical(replayed.cohorts))
        for name in RUN_COLUMNS:
            same = same and getattr(run, name) == getattr(replayed, name)
        check(same, f"the entry of run {run_id!r} is")
    opened = tables.runs.c.population_id == population_id, tables.runs.c.status == OPEN
    if part:
        found = [run.run_id for run in find(connection, tables.runs, *opened, columns=("run_id",))]
    else:
        found = [run.run_id for run in runs.values() if run.status == OPEN]
    check(sorted(found) == account.open_runs(), "the list of open runs is")

    attempts = {(run_id, *key): a for run_id, run in account.runs.items() for key, a in run.attempts.items()}
    releases = {(r.run_id, r.round, r.name, r.attempt): r for r in _of_runs(connection, tables.releases, runs)}
    check(releases.keys() == attempts.keys(), "the list of releases is")
    for key, stored in releases.items():
        attempt = attempts[key]
        same = (stored.state, stored.rho, stored.delta) == (attempt.state, attempt.rho, attempt.delta)
        check(same, f"release {key[2]!r} of run {key[0]!r} is")

    published = {key: attempt.digest for key, attempt in attempts.items() if attempt.state == PUBLISHED}
    columns = ("run_id", "round", "name", "attempt", "sha256", *(("shape", "data") if arrays else ()))
    for value in _of_runs(connection, tables.published, runs, columns):
        key = (value.run_id, value.round, value.name, value.attempt)
        found_hash = hashlib.sha256(value.shape.encode() + value.data).hexdigest() if arrays else value.sha256
        check(
            found_hash == value.sha256 == published.pop(key, None),
            f"the published value of {value.name!r} of run {value.run_id!r} is",
        )
    for run_id, _, name, _ in published:
        check(False, f"the published value of {name!r} of run {run_id!r} is missing, which is")


RUN_COLUMNS = (
    "plan_digest",
    "spares",
    "used",
    "spare_rho",
    "spare_delta",
    "secure",
    "status",
    "token",
    "purpose",
    "noise",
    "share",
)


def _runs(connection: Connection, account: Account, part: bool) -> Iterator[Row[Any]]:
    c = tables.runs.c
    if part:
        yield from find_all(connection, tables.runs, c.run_id, account.runs)
    else:
        yield from find(connection, tables.runs, c.population_id == account.population_id)


def _of_runs(
    connection: Connection, table: Table, runs: Iterable[str], columns: tuple[str, ...] | None = None
) -> Iterator[Row[Any]]:
    return find_all(connection, table, table.c.run_id, runs, columns=columns)


def refusal(
    balance: Balance, run_id: str, rho: Fraction, delta: Fraction, spares: int, payers: Ranges, part: Fraction
) -> tuple[str, str]:
    """(message, remedy) for a plan that costs rho and delta, spares included, and does not fit into the budget.

    balance: of the account, or the view of a sub-budget, which is this part of the budget. payers: ranges of the
    cohorts that would be charged, for a budget by cohort.
    """
    budget, who = balance.required_budget(), f"{balance.whose}population {balance.population_id!r}"
    paying = [s for s in balance.segments if any(low <= s.last and s.first <= high for low, high in payers)]
    if paying and delta > Fraction(max(min(s.delta_left for s in paying), 0.0)):
        balance, who = _alone(balance, min(paying, key=lambda segment: segment.delta_left), who)
    elif paying:
        balance, who = _alone(balance, min(paying, key=lambda segment: segment.rho_left), who)
    more = f"{', or leave such cohorts out' if paying else ''}{', or give it a larger share' if balance.whose else ''}"
    if delta > Fraction(max(balance.delta_left, 0.0)):
        return (
            f"run {run_id!r} needs delta = {float(delta):.3g} for its thresholding steps, and {who} has "
            f"{balance.delta_left:.3g} left of {budget.delta_extra:.3g}. Nothing was released.",
            f"Give the thresholds a smaller delta, or raise the budget{more}.",
        )
    cost, left = rounded_up(rho), balance.rho_left
    used = Fraction(balance.rho_spent) + Fraction(balance.rho_reserved)
    needed = budget.epsilon_of(rounded_up((used + rho) / part))
    message = (
        f"run {run_id!r} would cost rho = {cost:.6g} (epsilon = {budget.epsilon_of(cost):.4g}"
        f"{f', {spares} spare releases included' if spares else ''}), and {who} has rho = "
        f"{left:.6g} left of {budget.rho_max:.6g} (spent {balance.rho_spent:.6g}, reserved by open runs "
        f"{balance.rho_reserved:.6g}). Nothing was released."
    )
    raised = f"raise the budget to epsilon = {_above(needed * (1 + 2e-4)):.4g} or more{more}"
    if left <= 0:
        return message, f"Nothing is left: {raised}."
    factor = _above(math.sqrt(cost / left) * (1 + 1e-9))
    share = _below(budget.epsilon_of(left))
    return message, f"Multiply the noise by {factor:.4g}, or give the run epsilon = {share:.4g} or less, or {raised}."


def _alone(balance: Balance, segment: Segment, whose: str) -> tuple[Balance, str]:
    """(balance of these cohorts only, who that is)."""
    numbers = {name: getattr(segment, name) for name in NUMBERS}
    who = f"{'cohort' if segment.first == segment.last else 'each of cohorts'} {segment}"
    return replace(balance, **numbers, segments=()), f"{who} of {whose}"


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
