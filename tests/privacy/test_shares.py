"""One budget divided into named shares: no share is overspent, the account's own filter holds, nothing is reset."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import BudgetExceeded, BudgetMissing, ConfigError, LedgerError, LedgerTampered
from fedcore.privacy.accounting import exact_sum
from fedcore.privacy.ledger import dividing, replay, tables
from fedcore.privacy.ledger.checkpoint import state_of
from fedcore.privacy.ledger.ledger import open_ledger
from fedcore.privacy.ledger.shares import read_shares, shares_json, shares_of
from fedcore.privacy.ledger.sums import Sums, Totals, side_by_side
from fedcore.privacy.statement import private_statement
from tests.privacy import processes
from tests.privacy.accounts import VALUE, costing, divide, kinds, rho_max, spend
from tests.privacy.conftest import open_books, release
from tests.privacy.test_ledger_faults import spawn, together

HALF, THIRD = Fraction(1, 2), Fraction(1, 3)


def of(books, name):
    """The balance of a share; verified on the way."""
    balance = books.ledger.verify(books.population)
    assert balance == books.ledger.balance(books.population)
    return next(share for share in balance.shares if share.name == name)


# --- what may be divided --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said", ["a", "a=", "=.5", "a=x", "a=1/0", "a=-.1", "a=2", "a=nan", "a=inf", f"{'a' * 129}=.5", "a b=.5", "a=1e-10"]
)
def test_parts_that_cannot_be_are_refused(books, said):
    before = kinds(books)
    with pytest.raises(ConfigError):
        books.ledger.divide(books.population, read_shares([said]))
    assert kinds(books) == before and books.ledger.balance(books.population).shares == ()


def test_parts_are_exact_as_they_are_written():
    assert read_shares(["a=.1", "b = 1/3", "c=0"]) == {"a": Fraction(1, 10), "b": THIRD, "c": 0}
    with pytest.raises(ConfigError, match="there twice"):
        read_shares(["a=.1", "a=.2"])


def test_more_than_all_cannot_be_dealt_out(books):
    divide(books, a=THIRD, b=THIRD, c=THIRD)  # which in floats may be more than 1
    assert of(books, None).part == 0
    with pytest.raises(ConfigError, match="more than all of it"):
        divide(books, d=Fraction(1, 10**9))
    with pytest.raises(ConfigError, match="at most 100 shares"):
        divide(books, a=0, b=0, c=0, **{f"s{number}": Fraction(1, 200) for number in range(101)})


def test_a_budget_must_be_there(url):
    with pytest.raises(BudgetMissing):
        divide(open_books(url, epsilon=None), a=HALF)


def test_a_division_is_a_record_that_is_shown_and_the_same_again_is_none(books):
    divide(books, a=HALF, b=".3")
    divide(books, a=HALF)
    divide(books, b=0, c=".1")
    rows = [row for row in books.ledger.history(books.population) if row["kind"] == "budget divide"]
    assert [row["shares"] for row in rows] == [{"a": [1, 2], "b": [3, 10]}, {"a": [1, 2], "c": [1, 10]}]
    assert [row["before"] for row in rows] == [{}, {"a": [1, 2], "b": [3, 10]}]
    shares = books.ledger.verify(books.population).shares
    assert [(share.name, share.part) for share in shares] == [
        ("a", HALF),
        ("c", Fraction(1, 10)),
        (None, Fraction(2, 5)),
    ]
    divide(books, a=0, c=0)
    assert books.ledger.verify(books.population).shares == ()
    books.reserve([costing(rho_max(books))])  # undivided again


def test_shares_that_were_spent_are_never_made_smaller_than_that(books):
    books.reserve([costing(rho_max(books) / 4)])
    with pytest.raises(BudgetExceeded, match=r"runs without a share.* more than the undivided part") as refused:
        divide(books, a=".8")
    assert "0.25 of the budget" in refused.value.remedy
    divide(books, a=".7")
    run = books.reserve([costing(rho_max(books) / 2)], share="a")
    for part in (".2", ".4"):
        with pytest.raises(BudgetExceeded, match="the runs of share 'a'"):
            divide(books, a=part)
    books.ledger.finish(books.ledger.acquire(run), "abandoned")
    divide(books, a=".1")
    spend(books, [costing(rho_max(books) / 20)], share="a")
    with pytest.raises(BudgetExceeded, match="the runs of share 'a'"):
        divide(books, a=0)
    divide(books, a=".05")
    assert of(books, "a").rho_left >= 0


def test_a_share_with_an_open_run_is_not_taken_away(books):
    divide(books, a=HALF)
    run = books.reserve([replace(release(), optional=True)], share="a")
    with pytest.raises(BudgetExceeded, match="share 'a'"):
        divide(books, a=0)
    books.ledger.finish(books.ledger.acquire(run), "abandoned")
    divide(books, a=0)
    assert books.ledger.verify(books.population).shares == ()
    assert books.ledger.acquire(run).run_id == run  # the record of what it was stays readable


def test_a_smallest_part_that_is_named_is_enough(books):
    books.reserve([costing(rho_max(books) / 7)])
    with pytest.raises(BudgetExceeded) as refused:
        divide(books, a=1)
    least = Fraction(refused.value.remedy.split()[2])
    divide(books, a=1 - least)


# --- who pays -------------------------------------------------------------------------------------------------------


def test_what_would_fit_is_said_and_fits(books):
    divide(books, a=THIRD)
    with pytest.raises(BudgetExceeded) as refused:
        books.reserve([costing(rho_max(books) / 2)], share="a")
    budget = books.ledger.balance(books.population).of_share("a").required_budget()
    epsilon = float(refused.value.remedy.split("epsilon = ")[1].split()[0])
    books.reserve([costing(budget.rho_of(epsilon))], share="a")
    larger = float(refused.value.remedy.split("raise the budget to epsilon = ")[1].split()[0])
    fresh = open_books(books.url)
    divide(fresh, a=THIRD)
    fresh.ledger.raise_budget(fresh.population, larger, 1e-10)
    fresh.reserve([costing(rho_max(books) / 2)], share="a")


@pytest.mark.parametrize("divided", [False, True])
def test_a_share_that_there_is_not_is_refused_by_name(books, divided):
    if divided:
        divide(books, a=HALF)
    with pytest.raises(ConfigError, match="no share 'b'" if divided else "is not divided"):
        books.reserve([release()], share="b")
    with pytest.raises(ConfigError, match="'b'"):
        books.ledger.balance(books.population).of_share("b")


# --- what was lost and is drawn again --------------------------------------------------------------------------------


# --- cohorts and periods ---------------------------------------------------------------------------------------------


@given(st.data())
def test_two_step_functions_side_by_side(data):
    last = data.draw(st.integers(1, 8))
    numbers = st.integers(1, last)
    made = []
    for _ in range(2):
        sums, held = Sums(), dict.fromkeys(range(1, last + 1), 0)
        for first, end, rho in data.draw(st.lists(st.tuples(numbers, numbers, st.integers(1, 3)), max_size=5)):
            if first <= end:
                sums.add(((first, end),), Totals(Fraction(rho)))
                held |= {number: held[number] + rho for number in range(first, end + 1)}
        made.append((sums, held))
    (one, mine), (other, theirs) = made
    pieces = list(side_by_side(one, other, last))
    assert [number for first, end, _, _ in pieces for number in range(first, end + 1)] == list(range(1, last + 1))
    for first, end, a, b in pieces:
        for number in range(first, end + 1):
            assert (a.rho_spent, b.rho_spent) == (mine[number], theirs[number])
    one.take_away(other)
    for first, end, totals in one.pieces(last):
        assert {mine[n] - theirs[n] for n in range(first, end + 1)} == {totals.rho_spent}


# --- checkpoints, statements, damage ----------------------------------------------------------------------------------


def test_the_statement_names_the_share(books):
    divide(books, **{"team-a": HALF})
    mine, other = (spend(books, [costing(rho_max(books) / 4)], share=share) for share in ("team-a", None))
    statement = private_statement(books.ledger, books.population, mine)
    assert statement.share == "team-a" and "share 'team-a'" in statement.text()
    statement = private_statement(books.ledger, books.population, other)
    assert statement.share == "" and "share '" not in statement.text()


@pytest.mark.parametrize("value", [[], {"a": 1}, {"a": [1, 0]}, {"a": [1]}, {"a": ["1", 2]}, {"a": [3, 2]}])
def test_what_is_no_division_is_not_read_as_one(value):
    with pytest.raises((TypeError, ValueError, ArithmeticError, ConfigError)):
        shares_of(value)
    assert shares_of(shares_json({"b": THIRD, "a": HALF})) == {"a": HALF, "b": THIRD}


# --- a version that knows no shares ----------------------------------------------------------------------------------


def test_a_host_without_shares_refuses_a_divided_account_by_name_and_nothing_is_lost(file_books, monkeypatch):
    """As the versions before do: an unknown record, an unknown need, a column that they know to be none of theirs."""
    run = file_books.reserve([release(1), release(2)])
    lease = file_books.ledger.acquire(run)
    file_books.ledger.publish(lease, file_books.ledger.charge(lease, release(1)), VALUE)
    divide(file_books, a=HALF)
    before = file_books.ledger.verify(file_books.population)
    with monkeypatch.context() as patch:
        patch.setattr(replay, "NEEDS", ("cohorts", "periods"))
        patch.delitem(replay.APPLY, dividing.DIVIDE)
        for attempt in (
            lambda: file_books.ledger.verify(file_books.population),
            lambda: file_books.ledger.balance(file_books.population),
            lambda: file_books.reserve([release(3)]),
            lambda: file_books.ledger.raise_budget(file_books.population, 9, 1e-10),
        ):
            with pytest.raises(LedgerError, match="budget divide.*a newer fedcore") as told:
                attempt()
            assert not isinstance(told.value, LedgerTampered)
    assert file_books.ledger.verify(file_books.population) == before
    file_books.ledger.publish(lease, file_books.ledger.charge(lease, release(2)), VALUE)
    file_books.ledger.finish(lease, "finished")


def test_undivided_accounts_are_as_the_versions_before_wrote_them(file_books):
    """So that a host that was not upgraded goes on with them."""
    run = file_books.reserve([release()])
    account = file_books.ledger.account(file_books.population)
    assert "shares" not in state_of(account) and "share" not in state_of(account)["runs"][run]
    record = file_books.ledger.history(file_books.population)[-1]
    assert record["needs"] == [] and "share" not in record
    with file_books.ledger._transaction(write=False) as connection:
        (row,) = connection.execute(tables.accounts.select())
        assert row.shares is None


# --- several processes -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_division_and_a_reservation_at_the_same_moment_leave_no_share_overspent(books):
    divide(books, a=".6")
    plan = [costing(rho_max(books) / 2)]
    run = books.run()
    answers = together(
        processes.reserve_or_divide_at_barrier,
        (books.url, books.population, run, plan, "a"),
        (books.url, books.population, None, [], ".3"),
    )
    assert sorted(answer for _, answer in answers) == ["BudgetExceeded", "done"]
    share = of(books, "a")
    assert share.rho_reserved <= share.rho_max


@pytest.mark.slow
def test_a_division_that_is_killed_is_there_or_not(books):
    for number in range(60):
        child = spawn.Process(target=processes.divide_and_die, args=(books.url, books.population, number))
        child.start()
        child.join(60)
        shares = books.ledger.verify(books.population).shares
        assert len(shares) in (0, 2)
        if child.exitcode == 0:
            break
        assert not shares
    assert number > 3 and of(books, "a").part == HALF
    assert exact_sum([share.rho_max for share in books.ledger.balance(books.population).shares]) <= rho_max(books)
    assert open_ledger(books.url).verify(books.population)
