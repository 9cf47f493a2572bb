"""What happens later to accounts by cohort, by calendar period and in shares, in one table: a draw that is lost is paid
by all that pay for its run, and checkpoints keep all that there is. For one account: `test_redraws.py`.
"""

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from fedcore.errors import BudgetExceeded, LedgerError
from fedcore.privacy.accounting import exact_sum
from fedcore.privacy.ledger import reservations
from fedcore.privacy.ledger.chain import canonical
from fedcore.privacy.ledger.checkpoint import account_at, state_of
from tests.privacy.accounts import begin, costing, divide, forged, kinds, on, rho_max, spend, took, with_periods
from tests.privacy.conftest import open_books, release, total

HALF = Fraction(1, 2)
KINDS = ("cohorts", "periods", "shares")


def opened(url, kind):
    """(books, what a run of cohorts 2-4 or of share a asks, what one of cohort 2 alone or of that share)."""
    if kind == "shares":
        books, asked = open_books(url), {"share": "a"}
        divide(books, a=HALF)
        return books, asked, asked
    books, unit = (with_periods(url), {"unit": "client_period"}) if kind == "periods" else (open_books(url), {})
    if kind == "cohorts":
        begin(books)
    return books, {"cohorts": took((2, 4), of=5), **unit}, {"cohorts": took((2, 2), of=5), **unit}


def held(books, kind) -> dict:
    """{cohort, or share: (rho spent, rho reserved)} of those that hold anything; verified."""
    balance = books.ledger.verify(books.population)
    assert balance == books.ledger.balance(books.population)
    if kind == "shares":
        found = {share.name: share for share in balance.shares}
    else:
        found = {number: one for one in balance.segments for number in range(one.first, one.last + 1)}
    assert all(one.rho_left >= 0 and one.delta_left >= 0 for one in found.values())
    numbers = {name: (one.rho_spent, one.rho_reserved) for name, one in found.items()}
    return {name: both for name, both in numbers.items() if any(both)}


# --- draws that were lost ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "what"), [*((kind, "rho") for kind in KINDS), ("cohorts", "delta"), ("shares", "delta")]
)
def test_a_lost_draw_is_paid_by_all_that_pay_for_the_run_or_not_at_all(url, kind, what):
    """Once one of them has nothing left: what the others have, or the account beside the share, pays for nothing."""
    books, asked, one = opened(url, kind)
    part = HALF if kind == "shares" else Fraction(1)
    if what == "rho":
        planned, rest = costing(rho_max(books) * part / 3), costing(rho_max(books) * part * 3 / 5)
    else:
        extra = books.ledger.balance(books.population).budget.delta_extra * float(part)
        planned, rest = release(sigma=200.0, delta=extra * 0.4), release(sigma=200.0, delta=extra * 0.5)
    lease = books.ledger.acquire(books.reserve([planned], **asked))
    books.ledger.charge(lease, planned)
    other = books.ledger.acquire(books.reserve([rest], **one))
    before = held(books, kind), kinds(books)
    with pytest.raises(BudgetExceeded, match="no unreserved budget"):
        books.ledger.charge(lease, planned)
    assert (held(books, kind), kinds(books)) == before
    if kind == "shares" and what == "rho":
        divide(books, a=".9")
    else:
        books.ledger.finish(other, "abandoned")
    assert books.ledger.charge(lease, planned).attempt == 1
    assert kinds(books)[-2:] == ["extend", "charge"]
    twice = (total(planned, planned), total(rest) if kind == "shares" and what == "rho" else 0)
    assert held(books, kind) == dict.fromkeys(["a"] if kind == "shares" else [2, 3, 4], twice)


def test_a_share_pays_for_no_lost_draw_of_a_cohort_that_has_less_left_than_the_share(url):
    """Cohort 2 had spent nearly all before the account was divided."""
    books, asked, one = opened(url, "cohorts")
    spend(books, [costing(rho_max(books) * 9 / 10)], **one)
    divide(books, a=HALF)
    planned = costing(rho_max(books) / 16)
    lease = books.ledger.acquire(books.reserve([planned], share="a", **asked))
    books.ledger.charge(lease, planned)
    before = held(books, "cohorts"), kinds(books)
    with pytest.raises(BudgetExceeded, match="no unreserved budget"):
        books.ledger.charge(lease, planned)
    assert (held(books, "cohorts"), kinds(books)) == before


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_are_given_up_for_a_lost_draw_before_another_account_pays(url, kind):
    books, asked, one = opened(url, kind)
    whole = rho_max(books) * (HALF if kind == "shares" else 1)
    plan = [costing(whole / 5), *(replace(costing(whole / 5, round=round), optional=True) for round in (2, 3))]
    lease = books.ledger.acquire(books.reserve(plan, **asked))
    rest = costing(whole / 3)
    books.reserve([rest], **one)
    for attempt in range(2):
        assert books.ledger.charge(lease, plan[0]).attempt == attempt
    assert kinds(books)[-4:] == ["forfeit", "give up", "extend", "charge"]
    assert books.ledger.charge(lease, plan[2]) is None, "the last round pays, and no other"
    now, beside = total(plan[0], plan[0]), total(plan[1])
    expected = dict.fromkeys(["a"] if kind == "shares" else [2, 3, 4], (now, beside))
    expected["a" if kind == "shares" else 2] = (now, total(plan[1], rest))
    assert held(books, kind) == expected


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(reservations, "CHECKPOINT_AFTER", 12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_keeps_all_that_there_is(url, often, kind):
    """What each cohort, period or share has spent, the runs that are open, and how the account began."""
    small, dear = release(1, 60.0), release(2, 70.0)
    if kind == "cohorts":
        books = open_books(url)
        spend(books, [small], bound=on(1))
        early = books.reserve([small, dear], bound=on(1))  # open when cohorts begin: paid by the first
        begin(books)
    else:
        books, asked, _ = opened(url, kind)
        early = books.reserve([small, dear], **asked)
    lease = books.ledger.acquire(early)
    books.ledger.charge(lease, small)
    spent = {"cohorts": {1: [small, small]}, "shares": {"a": [small]}}.get(kind, {n: [small] for n in (2, 3, 4)})
    for number in range(2, 10):  # each opens a cohort, and some records of it are checkpoints
        if kind == "shares":
            asked = {"share": ("a", None)[number % 2]}
            payers = [asked["share"]]
        else:
            first = max(1 + number // 3, number - 2) if kind == "periods" else 1 + number // 3
            asked, payers = {"cohorts": took((first, number), of=max(number, 5))}, range(first, number + 1)
            asked |= {"unit": "client_period"} if kind == "periods" else {}
        spend(books, [small, dear], **asked)
        for payer in payers:
            spent.setdefault(payer, []).extend([small, dear])
        held(books, kind)
    assert kinds(books).count("checkpoint") >= 3
    open_run = books.reserve([small], **asked)
    account = books.ledger.account(books.population)
    restored = account_at(books.population, json.loads(canonical(state_of(account))))
    assert restored.runs == {run: account.runs[run] for run in (early, open_run)}
    assert (restored.tokens, restored.founders) == (account.tokens, account.founders)
    assert restored.balance() == account.balance() == books.ledger.balance(books.population)
    assert (restored.ended, restored.periods) == (account.ended, account.periods)
    assert restored.lifetime() == account.lifetime()
    assert canonical(state_of(restored)) == canonical(state_of(account))
    mine = restored.runs[open_run]
    assert mine.share == asked.get("share") and mine.cohorts == (
        asked["cohorts"].ranges if "cohorts" in asked else None
    )
    found = {name: rho for name, (rho, _) in held(books, kind).items()}
    assert found == {name: total(*plans) for name, plans in spent.items()}


def test_a_checkpoint_with_entries_that_nobody_knows_is_of_a_newer_version(file_books):
    begin(file_books)
    state = state_of(file_books.ledger.account(file_books.population))
    with pytest.raises(LedgerError, match="a newer fedcore"):
        forged(file_books, "checkpoint", {"state": {**state, "cohorts": {"shares": 1}}})
        file_books.ledger.balance(file_books.population)


def test_one_account_has_the_checkpoint_that_it_had(books, often):
    for _ in range(4):
        spend(books, [release(1, 50.0), release(2, 50.0)])
    (*_, state) = [row["state"] for row in books.ledger.history(books.population) if row["kind"] == "checkpoint"]
    assert "cohorts" not in state and Fraction(*state["rho"]) == exact_sum([release(1, 50.0).rho] * 4)
