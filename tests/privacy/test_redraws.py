"""A release that was charged and lost is paid again: by a spare, by what nobody has reserved, by rounds given up."""

from dataclasses import replace

import numpy as np
import pytest

from fedcore.errors import BudgetExceeded
from fedcore.privacy.accounting import Budget
from fedcore.privacy.ledger import ledger as ledger_books
from fedcore.privacy.ledger import reservations
from fedcore.privacy.ledger.chain import CHARGED, RESERVED, Account, Attempt, RunAccount
from fedcore.privacy.ledger.redraws import Redraw, redraw
from fedcore.privacy.statement import private_statement
from tests.privacy.conftest import open_books, release, total

VALUE = np.array([1, 2, 3], np.int64)
WHOLE = 0.08  # about the rho of the budget of `books`: epsilon = 2 at delta_conv = 9e-11


def optional(round, sigma=20.0, **more):
    return replace(release(round, sigma, **more), optional=True)


def filled(books, *plan, spares=0):
    """(run, lease) of a run whose plan leaves nothing of the budget that could pay for its cheapest release."""
    run = books.reserve(plan, spares)
    left = books.ledger.balance(books.population).rho_left
    other = release(1, sigma=float(np.sqrt(0.5 / left)) * (1 + 1e-9), name="rest")
    books.reserve([other])
    assert books.ledger.balance(books.population).rho_left < 1e-6
    return run, books.ledger.acquire(run)


def kinds(books):
    return [row["kind"] for row in books.ledger.history(books.population)]


def test_a_spare_pays_first_then_what_no_run_has_reserved(books):
    ledger, planned = books.ledger, release()
    run = books.reserve([planned], spares=1)
    lease = ledger.acquire(run)
    for attempt in range(4):
        assert ledger.charge(lease, planned).attempt == attempt
        spares = total(planned) if attempt == 0 else 0
        assert books.spent() == (total(*[planned] * (attempt + 1)), spares)
    ledger.publish(lease, ledger_books.Charge(run, 1, planned.name, 3), VALUE)
    ledger.finish(lease, "finished")
    assert books.spent() == (total(*[planned] * 4), 0)
    tail = ["charge", "forfeit", "charge", "forfeit", "extend", "charge", "forfeit", "extend", "charge"]
    assert kinds(books)[-11:] == [*tail, "publish", "finish"]
    assert private_statement(ledger, books.population, run).rho == total(*[planned] * 4)


def test_what_another_run_has_reserved_pays_for_nothing(books):
    run, lease = filled(books, release())
    books.ledger.charge(lease, release())
    before = books.spent(), kinds(books)
    with pytest.raises(BudgetExceeded, match="no unreserved budget"):
        books.ledger.charge(lease, release())
    assert (books.spent(), kinds(books)) == before
    books.ledger.finish(lease, "budget exhausted")
    assert books.spent()[0] == total(release())


def test_the_last_optional_rounds_pay_as_many_as_it_takes(books):
    ledger = books.ledger
    plan = [release(1, 15.0), release(2), optional(3), optional(4), optional(5, 30.0)]
    run, lease = filled(books, *plan)
    spent, reserved = books.spent()
    ledger.charge(lease, plan[0])
    assert ledger.charge(lease, plan[0]).attempt == 1
    assert kinds(books)[-4:] == ["forfeit", "give up", "extend", "charge"]
    after = books.spent()
    assert after[0] == total(plan[0], plan[0]) and sum(after) <= spent + reserved
    assert ledger.balance(books.population).releases == {"charged": 1, "forfeited": 1, "reserved": 2, "returned": 3}
    ledger.publish(lease, ledger_books.Charge(run, 1, plan[0].name, 1), VALUE)
    ledger.publish(lease, ledger.charge(lease, plan[1]), VALUE)
    assert [ledger.charge(lease, planned) for planned in plan[2:]] == [None] * 3
    statement = private_statement(ledger, books.population, run)
    assert statement.given_up == 3 and "skipped its rounds from 3 on" in statement.text()
    ledger.finish(lease, "finished")
    assert books.spent()[0] == total(plan[0], plan[0], plan[1])


def test_an_optional_release_that_is_lost_is_given_up_itself(books):
    ledger, plan = books.ledger, [release(1), optional(2)]
    _, lease = filled(books, *plan)
    ledger.publish(lease, ledger.charge(lease, plan[0]), VALUE)
    assert ledger.charge(lease, plan[1]).attempt == 0
    assert ledger.charge(lease, plan[1]) is None
    assert kinds(books)[-2:] == ["forfeit", "give up"]
    assert ledger.charge(lease, plan[1]) is None and kinds(books)[-1] == "give up"  # asked again: nothing is added
    assert books.spent()[0] == total(*plan)


def test_rounds_that_the_run_needs_are_not_given_up(books):
    plan = [release(1), optional(2), release(3)]
    _, lease = filled(books, *plan)
    books.ledger.charge(lease, plan[0])
    with pytest.raises(BudgetExceeded):
        books.ledger.charge(lease, plan[0])
    half = [release(1), optional(2, name="a"), release(2, name="b")]
    other = open_books(books.url)
    _, lease = filled(other, *half)
    other.ledger.charge(lease, half[0])
    with pytest.raises(BudgetExceeded):
        other.ledger.charge(lease, half[0])


def test_what_was_charged_in_a_round_that_is_given_up_stays_paid(books):
    ledger, plan = books.ledger, [release(1), optional(2, name="a"), optional(2, name="b")]
    run, lease = filled(books, *plan)
    for planned in plan[1:]:
        ledger.charge(lease, planned)
    assert ledger.charge(lease, plan[2]) is None
    attempts = ledger.account(books.population).runs[run].attempts
    found = {name: attempt.state for (_, name, _), attempt in attempts.items()}
    assert found == {"sums-1": "reserved", "a": "charged", "b": "forfeited"}
    assert books.spent()[0] == total(*plan[1:])


def test_delta_is_paid_again_as_well(url):
    """delta_extra = 1e-11 holds three releases of 3e-12 and not a fourth."""
    books = open_books(url)
    planned = release(delta=3e-12)
    lease = books.ledger.acquire(books.reserve([planned]))
    assert [books.ledger.charge(lease, planned).attempt for _ in range(3)] == [0, 1, 2]
    with pytest.raises(BudgetExceeded):
        books.ledger.charge(lease, planned)
    balance = books.ledger.verify(books.population)
    assert balance.delta_spent == pytest.approx(9e-12) and balance.rho_left > planned.rho


def test_the_budget_is_exact_at_the_edge_of_an_extension(url):
    """What is left is the price to the last bit, or one unit in the last place less."""
    books = open_books(url)
    planned, run = release(), books.run()
    books.reserve([planned], run=run)
    lease = books.ledger.acquire(run)
    books.ledger.charge(lease, planned)
    rest = books.ledger.balance(books.population).rho_left - planned.rho
    sigma = float(np.sqrt(0.5 / rest))
    while books.ledger.balance(books.population).rho_left - release(1, sigma, name="rest").rho > planned.rho:
        sigma = float(np.nextafter(sigma, 0))
    books.reserve([release(1, sigma, name="rest")])
    fits = books.ledger.balance(books.population).rho_left >= planned.rho
    if fits:
        assert books.ledger.charge(lease, planned).attempt == 1
    else:
        with pytest.raises(BudgetExceeded):
            books.ledger.charge(lease, planned)
    books.ledger.verify(books.population)


def test_checkpoints_hold_extensions_and_what_was_given_up(books, monkeypatch):
    monkeypatch.setattr(reservations, "CHECKPOINT_AFTER", 1)
    plan = [release(1), optional(2)]
    run, lease = filled(books, *plan)
    books.ledger.charge(lease, plan[0])
    books.ledger.charge(lease, plan[0])
    books.ledger.finish(books.ledger.acquire(books.reserve([release(1, 1e6)])), "finished")
    assert "checkpoint" in kinds(books)[-4:]
    assert books.ledger.charge(lease, plan[1]) is None
    with pytest.raises(BudgetExceeded):
        books.ledger.charge(lease, plan[0])
    books.ledger.finish(lease, "finished")
    books.reserve([release(1, 1e6)])
    books.spent()


def test_what_was_given_up_before_a_checkpoint_is_not_given_up_again(books, monkeypatch):
    monkeypatch.setattr(reservations, "CHECKPOINT_AFTER", 1)
    _, lease = filled(books, optional(1))
    books.ledger.charge(lease, optional(1))
    assert books.ledger.charge(lease, optional(1)) is None
    books.reserve([release(1, 1e6)])
    assert "checkpoint" in kinds(books)[-2:]
    assert books.ledger.charge(lease, optional(1)) is None
    assert kinds(books).count("give up") == 1 and books.spent()[0] == total(optional(1))


# --- to the last bit --------------------------------------------------------------------------------------------------

PRICES = {1: 0.5, 2: 0.25, 3: 0.125}  # rho of the release of each round; times TINY, its delta
TINY, LESS = 2.0**-40, 2.0**-50


def lost(rho_left, delta_left, *, spares=0, used=0, third=RESERVED) -> Account:
    """The release of round 1 was charged and lost; those of rounds 2 and 3 are optional. All sums are exact."""
    plan = [{"round": round, "name": "r", "optional": round > 1} for round in PRICES]
    run = RunAccount(plan, "", spares, 0.0, 0.0, True, None, used=used)
    states = {1: CHARGED, 2: RESERVED, 3: third}
    run.attempts = {(round, "r", 0): Attempt(states[round], rho, rho * TINY) for round, rho in PRICES.items()}
    whole = sum(PRICES.values())
    budget = Budget(1.0, 1e-6, whole + rho_left, 1e-6, (whole + delta_left) * TINY)
    return Account("people", budget, runs={"run": run})


@pytest.mark.parametrize(
    ("rho_left", "delta_left", "way"),
    [
        (0.5, 0.5, Redraw("extension")),
        (0.5 - LESS, 0.5, Redraw("extension", 3)),
        (0.5, 0.5 - LESS, Redraw("extension", 3)),
        (0.375, 0.375, Redraw("extension", 3)),
        (0.375 - LESS, 1.0, Redraw("extension", 2)),
        (1.0, 0.375 - LESS, Redraw("extension", 2)),
        (0.125, 0.125, Redraw("extension", 2)),
        (0.125 - LESS, 1.0, None),
        (1.0, 0.125 - LESS, None),
    ],
)
def test_a_redraw_costs_its_whole_price_and_nothing_is_given_up_without_need(rho_left, delta_left, way):
    assert redraw(lost(rho_left, delta_left), "run", 1, "r") == way


def test_what_was_charged_in_a_later_round_pays_for_nothing():
    assert redraw(lost(0.375, 0.375, third=CHARGED), "run", 1, "r") == Redraw("extension", 2)


def test_a_spare_pays_once():
    assert redraw(lost(1.0, 1.0, spares=1), "run", 1, "r") == Redraw("spare")
    assert redraw(lost(1.0, 1.0, spares=1, used=1), "run", 1, "r") == Redraw("extension")
