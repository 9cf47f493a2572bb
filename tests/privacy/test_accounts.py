"""What holds for accounts of every kind, in tables: edited tables and forged records are refused, whether the budget is
kept by cohort, by calendar period or in shares, and a run that is resumed has reserved its own plan.
"""

from fractions import Fraction

import pytest

from fedcore.errors import BudgetExceeded, LedgerTampered, PrivacyError
from fedcore.privacy.accounting import make_budget, rounded_down, rounded_up
from fedcore.privacy.ledger.chain import canonical
from fedcore.storage.plain import plain
from fedcore.storage.ranges import numbers_in, parsed
from tests.privacy.accounts import (
    OTHER_PARTICIPANTS,
    OTHER_RESERVATION,
    VALUE,
    begin,
    costing,
    divide,
    edit,
    forged,
    on,
    reservation,
    reserved_before,
    rho_max,
    spend,
    token,
    took,
    with_periods,
)
from tests.privacy.conftest import open_books, release

HALF = Fraction(1, 2)


# --- accounts of each kind, with something in them --------------------------------------------------------------------


def by_cohort(url):
    """A run of cohorts 1 and 2."""
    books = open_books(url)
    begin(books)
    books.reserve([release()], cohorts=took((1, 2), of=2))
    return books


def in_shares(url):
    """A run of share a, of half the budget, and one without a share; each took a third."""
    books = open_books(url)
    divide(books, a=HALF)
    for share in ("a", None):
        spend(books, [costing(rho_max(books) / 3)], share=share)
    return books


def in_shares_open(url):
    """A run of share a that is open."""
    books = open_books(url)
    divide(books, a=HALF)
    books.reserve([release()], share="a", run="first")
    return books


def with_unit(unit):
    def without_cohorts(url):
        books = open_books(url, epsilon=None)
        if unit:
            books.ledger.set_budget(books.population, 2, 1e-10, unit=unit)
        return books

    return without_cohorts


# --- who pays ---------------------------------------------------------------------------------------------------------


def dealt(**parts):
    return lambda books: divide(books, **parts)


def raised(books):
    books.ledger.raise_budget(books.population, 3, 1e-10)


OF_THREE = "each of cohorts 1-3 of population .* or leave such cohorts out"
STORIES = {
    # A change of the account, or a reservation: its cost, the cohorts that pay, the share, and why it is refused. Costs
    # are parts of the budget at the start, "n x" with n - 1 spares, or "delta" of what there is for thresholds.
    "each cohort to its edge": (
        *(open_books, begin, ("2 x 1/2", "1-3", None), ("1/2", "3", None, OF_THREE), ("1/2", "1-5", None, OF_THREE)),
        *(("1/2", "2-4", None, OF_THREE), ("1/2", "1,5", None, OF_THREE), ("2 x 1/2", "4-5", None)),
        ("3 x 1/2", "6-7", None, "each of cohorts 6-7 of population .* left of"),
    ),
    "the largest account and not the sum": (
        *(open_books, begin, ("1/2", "1", None), ("1/2", "2", None), ("1/2", "4", None), ("1/2", "1-4", None)),
        ("1/100", "1-2", None, "each of cohorts 1-2 of population"),
    ),
    "thresholds by cohort": (
        *(open_books, begin, ("delta 1/2", "1-2", None)),
        ("delta 3/4", "2-3", None, r"delta = 7.5e-12 .* each of cohorts 1-2 .* has 5e-12 left of 1e-11"),
        ("delta 3/4", "3", None),
    ),
    "a raise for every cohort": (
        open_books,
        begin,
        ("1", "1", None),
        ("1/2", "2-3", None),
        raised,
        ("1/8", "1-3", None),
    ),
    "each period": (  # a run of the newest three, month after month; late rows find what is left of theirs
        with_periods,
        *(("1/3", f"{max(month - 2, 1)}-{month}", None) for month in range(1, 13)),
        *(("1/3", "9-10", None, "each of cohorts 1-10 of population"), ("1/3", "11", None)),
    ),
    "a share and the account": (
        *(open_books, dealt(a=HALF, b=".3"), ("2/5", None, "a")),
        ("1/5", None, "a", "share 'a' of population .* has rho = .* left of.*Nothing was released.*larger share"),
        ("2/5", None, "b", "share 'b'"),
        ("2/5", None, None, "the undivided part of population"),
        *(("3/10", None, "b"), ("1/5", None, None), ("1/10", None, "a")),
    ),
    "thresholds of a share": (
        *(open_books, dealt(a=HALF), ("delta 1/2", None, "a")),
        ("delta 3/10", None, "a", "needs delta = .* for its thresholding steps"),
        ("delta 3/5", None, None, "needs delta = .* for its thresholding steps"),
        ("delta 1/2", None, None),
    ),
    "all in shares": (open_books, dealt(a=HALF, b=HALF), ("1/7", None, None, "the run names none"), ("1/2", None, "a")),
    "a raise by the same parts": (open_books, dealt(a=HALF), ("1/2", None, "a"), raised, ("1/8", None, "a")),
    "a share of every cohort": (
        *(open_books, begin, dealt(a=HALF), ("2/5", "1-2", "a")),
        *(("2/5", "2-3", "a", "each of cohorts 1-2 of share 'a'"), ("2/5", "3", "a"), ("2/5", "1-3", None)),
    ),
    "a share of every period": (
        *(with_periods, dealt(a=HALF), ("2/5", "1-2", "a")),
        *(("2/5", "2", "a", "each of cohorts 1-2 of share 'a'"), ("2/5", "3", "a")),
    ),
    # Else no account by cohort could be divided once its founders are retired.
    "a division of cohorts that have less left": (
        *(open_books, begin, ("9/10", "1", None), dealt(a=HALF, b=HALF)),
        ("1/4", "1-2", "a", "^run .* and cohort 1 of population(?!.*share)"),
        *(("1/4", "2", "a"), ("1/20", "1", "a"), ("1/100", "1", None, "the run names none")),
    ),
    "cohorts that begin after a division": (
        *(open_books, dealt(a=HALF), ("1/4", None, "a"), begin, ("1/2", "2", "a")),
        ("1/2", "1,3", "a", "cohort 1 of share 'a'"),
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_who_pays_and_who_cannot(url, name):
    """Each account that pays for a run holds its cost; one that has less left refuses it, and nothing changes."""
    account, *steps = STORIES[name]
    books, runs = account(url), {}
    ledger, population = books.ledger, books.population
    budget = ledger.balance(population).budget
    terms = {"bound": on(1), **({"unit": "client_period"} if account is with_periods else {})}
    for step in steps:
        if callable(step):
            step(books)
            continue
        cost, cohorts, share, *refusal = step
        ranges, asked = parsed(cohorts or "1"), terms | {"share": share}
        if cohorts is not None:
            asked["cohorts"] = took(*ranges, of=max(len(ledger.tokens(population)), ranges[-1][1]))
        if cost.startswith("delta "):
            plan, spares = [release(delta=budget.delta_extra * float(Fraction(cost[6:])))], 0
        else:
            times, _, part = cost.rpartition(" x ")
            plan, spares = [costing(Fraction(budget.rho_max) * Fraction(part))], int(times or 1) - 1
        if refusal:
            head = ledger.head(population)
            with pytest.raises(BudgetExceeded, match=refusal[0]):
                books.reserve(plan, spares, **asked)
            assert ledger.head(population) == head, "a refused run teaches the ledger no cohort"
        else:
            runs[books.reserve(plan, spares, **asked)] = (plan, spares, numbers_in(ranges), share)
        check_accounts(books, runs)
    for run, (plan, *_) in runs.items():
        lease = ledger.acquire(run)
        for planned in plan:
            ledger.publish(lease, ledger.charge(lease, planned), VALUE)
        ledger.finish(lease, "finished")
    check_accounts(books, runs, ended=True)


def check_accounts(books, runs, ended=False):
    """runs: (plan, spares, cohorts that pay, share) by name, none of them charged or all of them ended."""
    balance = books.ledger.verify(books.population)
    assert balance == books.ledger.balance(books.population)

    def total(name, cohort, share=...):
        costs = (
            Fraction(getattr(planned, name)) * (1 if ended else 1 + spares)
            for plan, spares, cohorts, of in runs.values()
            for planned in plan
            if cohort in cohorts and share in (..., of)
        )
        return sum(costs, Fraction(0))

    for holder in (balance, *balance.shares):
        share = getattr(holder, "name", ...)
        part = Fraction(getattr(holder, "part", 1))
        assert share is ... or holder.rho_max == rounded_down(part * Fraction(balance.budget.rho_max))
        for piece in holder.segments or [holder]:
            for cohort in range(getattr(piece, "first", 1), getattr(piece, "last", 1) + 1):
                for name, whole in (("rho", balance.budget.rho_max), ("delta", balance.budget.delta_extra)):
                    held, whole = total(name, cohort, share), Fraction(whole)
                    numbers = tuple(getattr(piece, f"{name}_{word}") for word in ("spent", "reserved", "left"))
                    assert numbers[:2] == ((rounded_up(held), 0) if ended else (0, rounded_up(held)))
                    left = min(part * whole - held, whole - total(name, cohort))
                    assert numbers[2] <= left <= numbers[2] + 1e-15


# --- a run that is resumed --------------------------------------------------------------------------------------------

PLANS = {  # the account, how the run was reserved, and how others are
    "cohorts": (by_cohort, {"cohorts": took((1, 2), of=2)}, [{"cohorts": took((1, 1), of=2)}]),
    "periods": (
        with_periods,
        {"cohorts": took((1, 2), of=2), "unit": "client_period"},
        [{"cohorts": took((1, 1), of=2), "unit": "client_period"}],
    ),
    "shares": (in_shares, {"share": "a"}, [{"share": "b"}, {"share": None}]),
}


@pytest.mark.parametrize("kind", PLANS)
def test_a_resumed_run_has_reserved_its_plan_and_another_is_refused(url, kind):
    account, asked, others = PLANS[kind]
    books, cheap = account(url), release(sigma=200.0)
    if kind == "shares":
        divide(books, b=".1")
    run = books.reserve([cheap], **asked)
    if "cohorts" in asked:  # what came meanwhile changes nothing
        books.reserve([cheap], **asked | {"cohorts": took((1, 3), of=3)})
    head = books.ledger.head(books.population)
    books.reserve([cheap], run=run, **asked)
    assert books.ledger.head(books.population) == head
    for other in others:
        with pytest.raises(PrivacyError, match="another plan"):
            books.reserve([cheap], run=run, **other)
    assert books.ledger.head(books.population) == head


# --- tables that were edited ------------------------------------------------------------------------------------------

OF_COHORTS = {
    "participants": OTHER_PARTICIPANTS,
    "no participants": "UPDATE fedcore_runs SET cohorts = NULL WHERE cohorts = '[[1,2]]'",
    "participants where there were none": "UPDATE fedcore_runs SET cohorts = '[[1,2]]' WHERE cohorts IS NULL",
    "one account": "UPDATE fedcore_accounts SET mode = NULL",
    "the reservation": OTHER_RESERVATION,
    "a token": f"UPDATE fedcore_records SET payload = replace(payload, '{token(1)}', '{token(9)}') "
    "WHERE kind = 'cohorts'",
}
OF_SHARES = {
    "larger shares": """UPDATE fedcore_accounts SET shares = '{"a":[9,10]}'""",
    "no shares": "UPDATE fedcore_accounts SET shares = NULL",
    "shares that are none": "UPDATE fedcore_accounts SET shares = 'x'",
    "a run without its share": "UPDATE fedcore_runs SET share = NULL",
    "a run of another share": "UPDATE fedcore_runs SET share = 'b'",
}


@pytest.mark.parametrize("edited", [*OF_COHORTS, *OF_SHARES])
def test_an_edit_is_noticed_by_whatever_depends_on_it_and_by_verify(file_books, edited):
    books, known = file_books, None
    if edited in OF_COHORTS:
        before = books.reserve([release()], bound=on(1))
        begin(books)
        run = books.reserve([release()], cohorts=took((1, 2), of=2))
        books.reserve([release()], cohorts=took((2, 2), of=2))
        edit(books, OF_COHORTS[edited])
        attempts = [lambda: books.reserve([release()], cohorts=took((2, 2), of=2))]
        if "participants" in edited or "reservation" in edited:
            known = before if "where" in edited else run
    else:
        divide(books, a=HALF, b=".3")
        planned = costing(rho_max(books) / 3)
        lease = books.ledger.acquire(books.reserve([planned], share="a"))
        books.ledger.charge(lease, planned)
        edit(books, OF_SHARES[edited])
        attempts = [
            lambda: books.reserve([release()], share="b"),
            lambda: books.ledger.charge(lease, planned),  # which must be paid again
            lambda: divide(books, a=".9"),
        ]
    for attempt in [*attempts, lambda: books.ledger.verify(books.population)]:
        with pytest.raises(LedgerTampered):
            attempt()
    if known is not None:
        with pytest.raises(LedgerTampered, match="who takes part"):
            books.ledger.participants_of(known)


# --- records that no ledger would have written ------------------------------------------------------------------------

COHORTS = {"founders": 1, "manifest": "m", "token": token(1)}
PERIODS = {"cohorts": plain(took((1, 3), of=3)), "unit": "client_period"}
BUDGET = {"budget": make_budget(2, 1e-10).numbers(), "unit": "client_period", "relation": "add_or_remove_one"}
WAS = {"a": [1, 2]}


def terms(value):
    return {**BUDGET, "currency": "gdp", "periods": value, "needs": ["periods"]}


def division(shares, before=WAS, **more):
    return {"needs": ["shares"], "before": before, **({} if shares is None else {"shares": shares}), **more}


RECORDS = {  # the account, the kind of the record, its payload
    "cohorts that begin twice": (by_cohort, "cohorts", COHORTS),
    "cohorts without a budget": (with_unit(None), "cohorts", COHORTS),
    "cohorts of records": (with_unit("record"), "cohorts", COHORTS),
    "a plan without cohorts": (by_cohort, "reserve", reservation(cohorts=None, needs=[])),
    "cohorts that are not needed": (by_cohort, "reserve", reservation(needs=[])),
    "a need without cohorts": (by_cohort, "reserve", reservation(cohorts=None)),
    "another token": (by_cohort, "reserve", reservation(cohorts=plain(took((2, 2), of=2, copy=1)))),
    "a cohort that is not there": (
        by_cohort,
        "reserve",
        reservation(cohorts={"ranges": [[3, 3]], "tokens": [token(1)]}),
    ),
    "nobody": (by_cohort, "reserve", reservation(cohorts={"ranges": [], "tokens": [token(1)]})),
    "ranges that overlap": (
        by_cohort,
        "reserve",
        reservation(cohorts={"ranges": [[1, 2], [2, 2]], "tokens": [token(1), token(2)]}),
    ),
    "a forgotten client without a version": (by_cohort, "forget", {"version": None, "list": None}),
    "more than the window": (with_periods, "reserve", reservation(**PERIODS | {"cohorts": plain(took((1, 4), of=4))})),
    "without periods": (with_periods, "reserve", reservation(**PERIODS | {"cohorts": None, "needs": []})),
    "a threshold": (with_periods, "reserve", reservation(**PERIODS, plan=[release(delta=1e-20).to_json()])),
    "periods again": (with_periods, "cohorts", COHORTS | {"token": token(2)}),
    "another window": (with_periods, "budget set", {"currency": "gdp", "periods": {"unit": "month", "window": 9}}),
    "periods without terms": (with_unit(None), "budget set", {**BUDGET, "currency": "gdp"}),
    **{
        f"terms {value}": (with_unit(None), "budget set", terms(value))
        for value in ({"unit": "month", "window": 0}, {"unit": "moon", "window": 1}, {"window": 1})
    },
    "a share of which more is spent": (in_shares, "budget divide", division({"a": [1, 4]})),
    "no shares, where one has spent": (in_shares, "budget divide", division({})),
    "what was spent without a share": (in_shares, "budget divide", division({"a": [1, 1]})),
    "more than all": (in_shares, "budget divide", division({"a": [9, 10], "b": [1, 5]})),
    "a negative share": (in_shares, "budget divide", division({"a": [1, 2], "b": [-1, 5]})),
    "a fraction that is not in lowest terms": (in_shares, "budget divide", division({"a": [2, 4]})),
    "a name with a space": (in_shares, "budget divide", division({"a": [1, 2], "b b": [1, 5]})),
    "other shares before": (in_shares, "budget divide", division({"a": [1, 2], "b": [1, 5]}, before={})),
    "shares that are not needed": (in_shares, "budget divide", division({"a": [1, 2], "b": [1, 5]}, needs=[])),
    "shares in a list": (in_shares, "budget divide", division([["a", 1, 2]])),
    "a division without shares": (in_shares, "budget divide", division(None)),
    "a share that there is not": (in_shares_open, "reserve", {"share": "b"}),
    "a share that is not needed": (in_shares_open, "reserve", {"share": "a", "needs": []}),
    "a need without a share": (in_shares_open, "reserve", {"share": None, "needs": ["shares"]}),
    "a share in a list": (in_shares_open, "reserve", {"share": ["a"]}),
}


@pytest.mark.parametrize("name", RECORDS)
def test_records_that_cannot_follow_are_refused(tmp_path, name):
    account, kind, payload = RECORDS[name]
    books = account(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    if account is in_shares_open:
        payload = {**reserved_before(books), **payload}
    row = {}
    if kind == "budget divide":
        row["shares"] = canonical(payload["shares"]) if payload.get("shares") else None
    forged(books, kind, payload, "other" if kind == "reserve" else None, **row)
    with pytest.raises(LedgerTampered, match=f"{kind}.*cannot follow"):
        books.ledger.verify(books.population)


FINE = {  # what some of those are made of
    by_cohort: ("reserve", reservation()),
    with_periods: ("reserve", reservation(**PERIODS)),
    in_shares: ("budget divide", division({"a": [1, 2], "b": [1, 10]})),
    in_shares_open: ("reserve", {}),
}


@pytest.mark.parametrize("account", FINE, ids=lambda account: account.__name__)
def test_records_that_can_follow_are_not(tmp_path, account):
    """Else the test before would say nothing."""
    kind, payload = FINE[account]
    books = account(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    if account is in_shares_open:
        payload = {**reserved_before(books), **payload}
    if kind == "budget divide":
        forged(books, kind, payload, shares=canonical(payload["shares"]))
        assert len(books.ledger.verify(books.population).shares) == 3
        return
    forged(books, kind, payload, "other")
    with pytest.raises(LedgerTampered, match="the runs are not what the chain says"):
        books.ledger.verify(books.population)


# --- records that overspend -------------------------------------------------------------------------------------------


def test_records_that_spend_more_of_one_cohort_are_refused(file_books):
    begin(file_books)
    half = release(sigma=(0.9 / float(rho_max(file_books))) ** 0.5)
    file_books.reserve([half], cohorts=took((1, 2), of=3))
    file_books.reserve([half], cohorts=took((3, 3), of=3))
    item = half.to_json()
    again = reservation(plan=[item], spare_rho=item["rho"], cohorts=plain(took((2, 3), of=3)))
    forged(file_books, "reserve", again, "other")
    with pytest.raises(LedgerTampered, match="spend more than the budget"):
        file_books.ledger.balance(file_books.population)


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        (".1", {"share": "a", "needs": ["shares"]}, "spend more than share 'a'"),
        (".4", {}, "spend more than the undivided part"),  # two thirds of the budget, of which 0.6 is undivided
    ],
)
def test_records_that_overspend_a_share_are_refused(file_books, part, change, words):
    divide(file_books, a=part)
    file_books.reserve([costing(rho_max(file_books) / 3)])
    forged(file_books, "reserve", {**reserved_before(file_books), **change}, "other")
    with pytest.raises(LedgerTampered, match=words):
        file_books.ledger.verify(file_books.population)
