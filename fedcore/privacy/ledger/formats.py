"""Formats of ledgers: which are read, and the refusal by name of those that only unreleased versions of fedcore wrote.

Refused are tables of schema 1, accounts in zCDP, accounts that were recounted from it, and noise of the discrete
Gaussian. `retired_in` finds such accounts in a ledger that is read.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, select

from fedcore.errors import LedgerError, LedgerRetired, retired
from fedcore.privacy.ledger import tables
from fedcore.privacy.plan import ROUNDED
from fedcore.storage.parsing import JsonObject

ZCDP, RECOUNT, DISCRETE = "zcdp", "recount", "discrete gaussian"  # as such accounts and records name them
IN_ZCDP = "an account in zero-concentrated differential privacy (zCDP)"
CARRY_OVER = (
    "Keep the ledger, and read with that commit what was spent: fedcore budget show. To use data of the same people "
    "again, ingest them with a new ledger (FEDCORE_LEDGER) and declare what was spent: fedcore budget set "
    "--spent-before. See docs/privacy/ledger.md."
)


def refusal(what: str, form: str) -> LedgerRetired:
    return LedgerRetired(retired(what, form)[0], CARRY_OVER)


def refuse_unknown_schema(schema: object, where: str) -> None:
    """Raises LedgerRetired for schema 1, LedgerError for one that this version does not know."""
    if schema == 1:
        raise refusal(f"the ledger {where!r}", "of schema 1")
    if schema != tables.SCHEMA:
        raise LedgerError(
            f"the ledger {where!r} has schema {schema!s:.20}; this version of fedcore knows {tables.SCHEMA}.",
            "Use the version of fedcore that wrote it, or a newer one.",
        )


def refuse_retired_record(kind: str, payload: JsonObject, where: str) -> None:
    """Raises LedgerRetired for a record of an account in zCDP, of one that was recounted, or of discrete noise."""
    if kind == RECOUNT:
        raise refusal(where, "of an account that was recounted from zCDP")
    if kind == "budget set" and payload.get("currency", ZCDP) == ZCDP:
        raise refusal(where, f"of {IN_ZCDP}")
    if kind == "reserve" and payload.get("noise", DISCRETE) == DISCRETE:
        raise refusal(where, "of discrete Gaussian noise")
    if kind == "charge" and payload.get("noise", ROUNDED) == DISCRETE:
        raise refusal(where, "of discrete Gaussian noise")
    state = payload.get("state") if kind == "checkpoint" else None
    if isinstance(state, Mapping):
        budget, runs = state.get("budget"), state.get("runs")
        if budget is not None and state.get("currency") == ZCDP:
            raise refusal(where, f"of {IN_ZCDP}")
        if isinstance(budget, Mapping) and "discrete" in budget:
            raise refusal(where, "of an account that was recounted from zCDP")
        open_runs = runs.values() if isinstance(runs, Mapping) else ()
        if any(isinstance(run, Mapping) and run.get("noise") == DISCRETE for run in open_runs):
            raise refusal(where, "of discrete Gaussian noise")


def retired_in(connection: Connection) -> str | None:
    """The first population with an account that this version refuses; None if there is none."""
    accounts, records = tables.accounts.c, tables.records.c
    in_zcdp = select(accounts.population_id).where(accounts.rho_max.is_not(None), accounts.currency == ZCDP)
    recounted = select(records.population_id).where(records.kind == RECOUNT)
    for query in (in_zcdp, recounted):
        if (found := connection.execute(query.limit(1)).scalar_one_or_none()) is not None:
            return str(found)
    return None
