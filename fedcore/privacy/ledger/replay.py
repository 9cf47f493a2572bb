"""The meaning of every record of a chain, and the account that a chain adds up to: the definition of every balance."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, TypeVar

from fedcore.errors import BudgetExceeded, ConfigError, LedgerTampered
from fedcore.population.cohorts import FOUNDERS
from fedcore.privacy.accounting import CURRENCY, Budget
from fedcore.privacy.cohorts import Participants, recorded
from fedcore.privacy.ledger.balances import Loss, StartingCharge
from fedcore.privacy.ledger.chain import (
    CHARGED,
    FORFEITED,
    OPEN,
    PUBLISHED,
    PURPOSE,
    RESERVED,
    RETURNED,
    Account,
    Attempt,
    Record,
    RunAccount,
    canonical,
)
from fedcore.privacy.ledger.checkpoint import UnknownState, account_at, budget_of, state_of
from fedcore.privacy.ledger.dividing import DIVIDE, check_division
from fedcore.privacy.ledger.formats import refuse_retired_record
from fedcore.privacy.ledger.rows import newer
from fedcore.privacy.ledger.shares import SHARES, shares_json, shares_of, whose
from fedcore.privacy.ledger.sums import EVERYBODY, Totals
from fedcore.privacy.noise_shares import check_shares
from fedcore.privacy.periods import PeriodTerms, periods_in
from fedcore.privacy.plan import CLIENT_PERIOD, LAWS, ROUNDED, SHARED, PlannedRelease
from fedcore.storage.parsing import JsonObject
from fedcore.storage.plain import made_of
from fedcore.storage.ranges import Ranges

CHECKPOINT, LOSS, COHORTS, FORGET = "checkpoint", "accept loss", "cohorts", "forget"
PERIODS, ANCHOR, SHARED_IDS, SPENT_BEFORE = "periods", "anchor", "shared ids", "spent before"
NEEDS = ("cohorts", PERIODS, SHARES)  # features that records name and this version knows
STOP = "Restore the ledger from a backup and find out what was done to it; nothing more is released until then."
BROKEN = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, ConfigError)

# --- the meaning of each kind of record -----------------------------------------------------------------------------
# run_id is empty for records of the population itself. Each raises one of BROKEN for a record that cannot follow those
# before it.


def _register(account: Account, run_id: str, payload: JsonObject) -> None:
    if account.seq != 0:
        raise ValueError("registered twice")


def _set_budget(account: Account, run_id: str, payload: JsonObject) -> None:
    if account.budget is not None:
        raise ValueError("a second budget")
    account.budget = _budget(payload["currency"], payload["budget"])
    account.unit, account.relation = payload["unit"], payload["relation"]
    account.periods = _periods(payload)
    if payload.get("public_schema") is not None:
        account.public_schema.append(str(payload["public_schema"]))


def _periods(payload: JsonObject) -> PeriodTerms | None:
    """Of the unit client_period, and of no other."""
    value, needs = payload.get("periods"), payload.get("needs", [])
    if (value is None) != (payload["unit"] != CLIENT_PERIOD) or (value is None) != (PERIODS not in needs):
        raise ValueError("calendar periods in another unit, or none in theirs")
    return None if value is None else made_of(PeriodTerms, value)


def _spent_before(account: Account, run_id: str, payload: JsonObject) -> None:
    """The starting charge of an account: it is charged to all existing clients, before anything is reserved."""
    if account.budget is None or account.spent_before is not None or account.runs or account.checkpoint:
        raise ValueError("a starting charge without a budget, a second one, or one after a run")
    rho = _price(payload["rho"])
    if account.periods is not None and rho:
        raise ValueError("a starting charge of calendar periods")
    if account.founders is not None and account.periods is None:
        raise ValueError("a starting charge after cohorts began")
    account.ended.sums.add(EVERYBODY, Totals(rho_spent=Fraction(rho)))
    account.spent_before = StartingCharge(account.seq + 1, payload["at"], rho, str(payload["reason"]))


def _raise_budget(account: Account, run_id: str, payload: JsonObject) -> None:
    old = account.budget
    if old is None:
        raise ValueError("a raise of no budget")
    new = _budget(CURRENCY, payload["budget"])
    if new.rho_max < old.rho_max or new.delta_extra < old.delta_extra:
        raise ValueError("a lowered budget")
    account.budget = new


def _divide(account: Account, run_id: str, payload: JsonObject) -> None:
    if SHARES not in payload.get("needs", []) or payload["before"] != shares_json(account.shares):
        raise ValueError("a division of other shares than there are")
    if account.budget is None:
        raise ValueError("a division of no budget")
    new = shares_of(payload["shares"])
    try:
        check_division(account, new)
    except BudgetExceeded as refused:
        raise ValueError(refused.message) from None
    account.shares = new


def _public_schema(account: Account, run_id: str, payload: JsonObject) -> None:
    account.public_schema.append(str(payload["reason"]))


def _shared_ids(account: Account, run_id: str, payload: JsonObject) -> None:
    account.shared_ids.append(str(payload["reason"]))


def _accept_loss(account: Account, run_id: str, payload: JsonObject) -> None:
    account.losses.append(Loss(account.seq + 1, payload["at"], str(payload["reason"]), tuple(payload["seen"])))


def _anchor(account: Account, run_id: str, payload: JsonObject) -> None:
    if not isinstance(payload["place"], str | None):
        raise ValueError("an anchor that is at no place")
    account.anchor = payload["place"]


def _cohorts(account: Account, run_id: str, payload: JsonObject) -> None:
    if account.founders is not None or account.budget is None or account.unit not in ("client", CLIENT_PERIOD):
        raise ValueError("cohorts that began before, without a budget, or of something else than clients")
    version, manifest, token = _count(payload["founders"]), str(payload["manifest"]), str(payload["token"])
    account.founders, account.tokens = (version, manifest), Participants(EVERYBODY, (token,)).tokens


def _forget(account: Account, run_id: str, payload: JsonObject) -> None:
    _count(payload["version"])  # what is published stays, and what it cost; no account starts again


def _checkpoint(account: Account, run_id: str, payload: JsonObject) -> None:
    if canonical(payload["state"]) != canonical(state_of(account)):
        raise ValueError("it is not what the records before it add up to")
    account.checkpoint = account.seq + 1


def _reserve(account: Account, run_id: str, payload: JsonObject) -> None:
    if run_id in account.runs:
        raise ValueError("a run reserved twice")
    run = RunAccount(
        payload["plan"],
        payload["plan_digest"],
        _count(payload["spares"]),
        _price(payload["spare_rho"]),
        _price(payload["spare_delta"]),
        payload["secure"],
        payload["statement"],
        purpose=_known("purpose", payload, PURPOSE, (PURPOSE,)),
        noise=_known("noise", payload, ROUNDED, LAWS),
        cohorts=_participants(account, payload),
        share=_share(account, payload),
    )
    _check_noise(run)
    if account.periods is not None and any(planned["delta"] for planned in run.plan):
        raise ValueError("a thresholding step in an account by client and period")
    for planned in run.plan:
        key = (_count(planned["round"]), str(planned["name"]), 0)
        run.attempts[key] = Attempt(RESERVED, _price(planned["rho"]), _price(planned["delta"]))
    account.runs[run_id] = run


def _check_noise(run: RunAccount) -> None:
    """Noise in shares has its own name, covers what is charged for it, and is charged at its own cost."""
    if (run.noise == SHARED) != any("noise_share" in planned for planned in run.plan):
        raise ValueError("noise in shares under another name, or its name without them")
    if run.noise == SHARED:
        releases = [PlannedRelease.from_json(planned) for planned in run.plan]
        check_shares(releases)
        if [release.rho for release in releases] != [planned["rho"] for planned in run.plan]:
            raise ValueError("a share of noise at another cost than its own")


def _share(account: Account, payload: JsonObject) -> str | None:
    """The sub-budget that a reservation is charged to."""
    name = payload.get("share")
    if (name is None) != (SHARES not in payload.get("needs", [])) or (name is not None and name not in account.shares):
        raise ValueError("a plan with a share that the account does not have")
    return name


def _participants(account: Account, payload: JsonObject) -> Ranges | None:
    """The ranges of a reservation; its tokens are remembered."""
    value = payload.get("cohorts")
    if (value is None) != (account.founders is None and account.periods is None) or (value is None) != (
        "cohorts" not in payload.get("needs", [])
    ):
        raise ValueError("a plan with cohorts in one account, or without them in an account by cohort")
    if value is None:
        return None
    ranges, tokens = recorded(value, account.tokens)
    if account.periods is not None and periods_in(ranges) > account.periods.window:
        raise ValueError("more periods than the window holds")
    account.learn(tokens)
    return ranges


def _acquire(account: Account, run_id: str, payload: JsonObject) -> None:
    # A run that ended before the checkpoint may still be acquired, and end again: that changes no balance.
    run = account.runs.get(run_id)
    if run is None and account.checkpoint:
        return
    run = account.runs[run_id]
    if payload["token"] != run.token + 1:
        raise ValueError("tokens count by one")
    run.token = payload["token"]


def _charge(account: Account, run_id: str, payload: JsonObject) -> None:
    run, key = account.runs[run_id], _key(payload)
    if run.status != OPEN:
        raise ValueError("a charge to a closed run")
    planned = run.attempts[payload["round"], payload["name"], 0]
    if (payload["rho"], payload["delta"]) != (planned.rho, planned.delta):
        raise ValueError("another cost than planned")
    if run.given_up is not None and payload["round"] >= run.given_up:
        raise ValueError("a charge in a round that was given up")
    if _known("noise", payload, run.noise, LAWS) != run.noise or payload.get("noise_share") != run.noise_share(key):
        raise ValueError("other noise than planned")
    if payload["attempt"] == 0 or key in run.attempts:
        _move(run, key, RESERVED, CHARGED)
        return
    if run.spares_left < 1:
        raise ValueError("no spare release left")
    run.used += 1
    run.attempts[key] = Attempt(CHARGED, planned.rho, planned.delta)


def _publish(account: Account, run_id: str, payload: JsonObject) -> None:
    run, key = account.runs[run_id], _key(payload)
    _move(run, key, CHARGED, PUBLISHED)
    run.attempts[key].digest = payload["digest"]


def _forfeit(account: Account, run_id: str, payload: JsonObject) -> None:
    _move(account.runs[run_id], _key(payload), CHARGED, FORFEITED)


def _extend(account: Account, run_id: str, payload: JsonObject) -> None:
    run, key = account.runs[run_id], _key(payload)
    planned, before = run.attempts[*key[:2], 0], run.attempts[*key[:2], key[2] - 1]
    if run.status != OPEN or run.spares_left or key in run.attempts or before.state != FORFEITED:
        raise ValueError("an extension without need")
    if (payload["rho"], payload["delta"]) != (planned.rho, planned.delta):
        raise ValueError("another cost than planned")
    run.attempts[key] = Attempt(RESERVED, planned.rho, planned.delta)


def _give_up(account: Account, run_id: str, payload: JsonObject) -> None:
    run, first = account.runs[run_id], _count(payload["round"])
    if run.status != OPEN or first >= (run.given_up or math.inf):
        raise ValueError("a run that has ended, or rounds that were given up before")
    for planned in run.plan:
        if planned["round"] >= first and not planned.get("optional"):
            raise ValueError("a round that the run needs is given up")
    for (round, _, _), attempt in run.attempts.items():
        if round >= first and attempt.state == RESERVED:
            attempt.state = RETURNED
    run.given_up = first


def _finish(account: Account, run_id: str, payload: JsonObject) -> None:
    run = account.runs[run_id]
    if run.status != OPEN or payload["status"] == OPEN:
        raise ValueError("finished twice, or not at all")
    for attempt in run.attempts.values():
        attempt.state = {CHARGED: FORFEITED, RESERVED: RETURNED}.get(attempt.state, attempt.state)
    account.close(run, payload["status"])


def _move(run: RunAccount, key: tuple[int, str, int], old: str, new: str) -> None:
    if run.attempts[key].state != old:
        raise ValueError(f"{key} is not {old}")
    run.attempts[key].state = new


def _key(payload: JsonObject) -> tuple[int, str, int]:
    return payload["round"], payload["name"], payload["attempt"]


def _budget(currency: Any, value: dict[str, float]) -> Budget:
    for number in value.values():
        _price(number)
    return budget_of(currency, value)


def _price(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError("a cost that is no number from 0")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a count that is no whole number from 0")
    return value


Name = TypeVar("Name", bound=str)


def _known(name: str, payload: JsonObject, default: Name, known: tuple[Name, ...]) -> Name:
    value: Name = payload.get(name, default)  # earlier records did not say it
    if value not in known:
        raise newer(f"a record has {name} {value!r}")
    return value


APPLY: dict[str, Callable[[Account, str, JsonObject], None]] = {
    "register": _register,
    "budget set": _set_budget,
    SPENT_BEFORE: _spent_before,
    "budget raise": _raise_budget,
    DIVIDE: _divide,
    "public schema": _public_schema,
    SHARED_IDS: _shared_ids,
    LOSS: _accept_loss,
    ANCHOR: _anchor,
    COHORTS: _cohorts,
    FORGET: _forget,
    CHECKPOINT: _checkpoint,
    "reserve": _reserve,
    "acquire": _acquire,
    "charge": _charge,
    "publish": _publish,
    "forfeit": _forfeit,
    "extend": _extend,
    "give up": _give_up,
    "finish": _finish,
}


# --- whole chains ---------------------------------------------------------------------------------------------------


def replay(ledger_id: str, population_id: str, records: Iterable[Record], *, part: bool = False) -> Account:
    """The account of a whole chain.

    part: the records may begin with a checkpoint, which is then believed. Raises LedgerTampered naming the first record
    that does not verify, LedgerError for what a newer fedcore wrote.
    """
    account = Account(population_id)
    for record in records:
        where = f"record {record.seq} ({record.kind}) of population {population_id!r} in ledger {ledger_id}"
        restored = part and account.seq == 0 and record.kind == CHECKPOINT
        if not restored and record.seq != account.seq + 1:
            raise LedgerTampered(f"{where}: record {account.seq + 1} should stand here.", STOP)
        if not restored and record.prev_hash != account.hash:
            raise LedgerTampered(f"{where}: it does not follow the record before it.", STOP)
        if record.hash != record.expected_hash(ledger_id, population_id):
            raise LedgerTampered(f"{where}: its content does not match its hash.", STOP)
        try:
            payload = json.loads(record.payload)
            refuse_retired_record(record.kind, payload, where)
            if record.kind not in APPLY:
                raise newer(where)
            if unknown := [name for name in payload.get("needs") or () if name not in NEEDS]:
                raise newer(f"{where} needs {', '.join(map(str, unknown))}")
            if restored:
                account = account_at(population_id, payload["state"])
                account.checkpoint = record.seq
            else:
                APPLY[record.kind](account, record.run_id or "", payload)
        except UnknownState as unknown:
            raise newer(f"{where} holds {unknown}") from None
        except BROKEN as error:
            raise LedgerTampered(f"{where}: it cannot follow the records before it ({error!s:.200}).", STOP) from None
        account.seq, account.hash = record.seq, record.hash
    _check_within_budget(account, ledger_id)
    return account


def _check_within_budget(account: Account, ledger_id: str) -> None:
    rho, delta = account.sums().most(((FOUNDERS, max(len(account.tokens), FOUNDERS)),))
    rho_max, delta_max = (account.budget.rho_max, account.budget.delta_extra) if account.budget else (0.0, 0.0)
    if rho > rho_max or delta > delta_max:
        raise LedgerTampered(
            f"population {account.population_id!r} of ledger {ledger_id}: the records up to {account.seq} "
            "spend more than the budget.",
            "Restore the ledger from a backup.",
        )
    # Of cohorts that had spent more without a share when their account was divided, nothing is left undivided.
    checked = [*account.shares, *([None] if account.shares and account.founders is None else [])]
    for name in checked:
        if min(account.share_left(((FOUNDERS, account.last_cohort),), name)) < 0:
            raise LedgerTampered(
                f"population {account.population_id!r} of ledger {ledger_id}: the records up to {account.seq} "
                f"spend more than {whose(name)} of the budget.",
                "Restore the ledger from a backup.",
            )
