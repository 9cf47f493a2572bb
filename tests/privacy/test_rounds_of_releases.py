"""All releases of a round are charged in one transaction, and stored in one."""

import numpy as np
import pytest

from fedcore.errors import BudgetExceeded, LeaseLost, SensitivityError, UnplannedRelease
from tests.privacy import processes
from tests.privacy.conftest import release, total
from tests.privacy.test_ledger_faults import spawn
from tests.privacy.test_redraws import filled, kinds, optional

PLAN = [release(name=name, sigma=sigma) for name, sigma in (("a", 20.0), ("b", 30.0), ("c", 40.0))]
VALUES = [np.array([first, -2, 3]) for first in (1, 4, 9)]


def begun(books, **options):
    run = books.reserve(PLAN, **options)
    return run, books.ledger.acquire(run)


def values_of(books, run):
    found = [books.ledger.published(run, planned.name) for planned in PLAN]
    return [None if value is None else value.tolist() for value in found]


def records(books):
    """Of charges and publications, without times and hashes."""
    shown = ("kind", "round", "name", "attempt", "rho", "delta", "noise", "token", "digest")
    history = [row for row in books.ledger.history(books.population) if row["kind"] in ("charge", "publish")]
    return [{name: row[name] for name in shown if name in row} for row in history]


def test_a_round_leaves_the_records_of_its_releases(books):
    ledger, (run, lease) = books.ledger, begun(books)
    charges = ledger.charge_round(lease, PLAN)
    assert [(charge.name, charge.attempt, charge.stored) for charge in charges] == [(p.name, 0, None) for p in PLAN]
    assert books.spent() == (total(*PLAN), 0)
    assert all(map(np.array_equal, ledger.publish_round(lease, charges, VALUES), VALUES))
    assert values_of(books, run) == [value.tolist() for value in VALUES]
    other, lease = begun(books)
    single = [ledger.charge(lease, planned) for planned in PLAN]
    for charge, value in zip(single, VALUES, strict=True):
        ledger.publish(lease, charge, value)
    found = records(books)
    assert found[: len(found) // 2] == found[len(found) // 2 :]
    again = ledger.charge_round(lease, PLAN)
    assert [charge.stored.tolist() for charge in again] == values_of(books, other)
    changed = [value + 1 for value in VALUES]
    assert all(map(np.array_equal, ledger.publish_round(lease, single, changed), VALUES))
    assert records(books) == found and books.spent() == (total(*PLAN, *PLAN), 0)


def test_a_round_is_charged_whole_or_not_at_all(books):
    _, lease = begun(books)
    with pytest.raises(UnplannedRelease):
        books.ledger.charge_round(lease, [*PLAN[:2], release(name="d")])
    assert books.spent() == (0, total(*PLAN)) and "charge" not in kinds(books)


def test_a_round_is_stored_whole_or_not_at_all(books):
    run, lease = begun(books)
    charges = books.ledger.charge_round(lease, PLAN)
    with pytest.raises(SensitivityError):
        books.ledger.publish_round(lease, charges, [*VALUES[:2], VALUES[2].astype(float)])
    with pytest.raises(ValueError, match="shorter"):
        books.ledger.publish_round(lease, charges, VALUES[:2])
    assert values_of(books, run) == [None] * 3 and "publish" not in kinds(books)
    books.ledger.publish_round(lease, charges, VALUES)
    assert None not in values_of(books, run)


def test_a_stale_lease_neither_charges_nor_stores_a_round(books):
    ledger, (run, stale) = books.ledger, begun(books)
    charges = ledger.charge_round(stale, PLAN)
    fresh = ledger.acquire(run, take_over=True)
    with pytest.raises(LeaseLost):
        ledger.charge_round(stale, PLAN)
    with pytest.raises(LeaseLost):
        ledger.publish_round(stale, charges, VALUES)
    assert values_of(books, run) == [None] * 3 and books.spent() == (total(*PLAN), 0)
    again = ledger.charge_round(fresh, PLAN)
    assert [charge.attempt for charge in again] == [1, 1, 1]
    with pytest.raises(LeaseLost, match="given up"):  # under a good lease too: these attempts were forfeited
        ledger.publish_round(fresh, charges, VALUES)
    ledger.publish_round(fresh, again, VALUES)
    assert books.spent() == (total(*PLAN, *PLAN), 0)


@pytest.mark.parametrize("spares", [0, 1, 3])
def test_each_lost_release_is_paid_again(books, spares):
    ledger, (_, lease) = books.ledger, begun(books, spares=spares)
    ledger.charge_round(lease, PLAN)
    again = ledger.charge_round(lease, PLAN)
    assert [charge.attempt for charge in again] == [1, 1, 1]
    assert kinds(books).count("extend") == 3 - spares and kinds(books).count("forfeit") == 3
    ledger.publish_round(lease, again, VALUES)
    ledger.finish(lease, "finished")
    assert books.spent() == (total(*PLAN, *PLAN), 0)


def test_nothing_of_a_round_is_paid_again_where_one_release_cannot(books):
    """The budget has room for one of two lost releases, and the run needs both."""
    plan = [release(1, name="a"), release(1, name="b")]
    lease = books.ledger.acquire(books.reserve([*plan, release(2)]))
    room = books.ledger.balance(books.population).rho_left - 1.5 * plan[0].rho
    books.reserve([release(1, float(np.sqrt(0.5 / room)), name="rest")])
    assert books.ledger.charge_round(lease, plan) is not None
    before = kinds(books), books.spent()
    with pytest.raises(BudgetExceeded, match="release 'b'"):
        books.ledger.charge_round(lease, plan)
    assert (kinds(books), books.spent()) == before


def test_a_round_that_is_given_up_is_not_drawn(books):
    plan = [release(1), optional(2, name="a"), optional(2, name="b")]
    run, lease = filled(books, *plan)
    first = books.ledger.charge_round(lease, plan[:1])
    books.ledger.publish_round(lease, first, VALUES[:1])
    assert books.ledger.charge_round(lease, plan[1:]) is not None
    assert books.ledger.charge_round(lease, plan[1:]) is None
    assert kinds(books)[-2:] == ["forfeit", "give up"]
    assert books.spent()[0] == total(*plan)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["charge 0", "charge 2", "charged", "publish 0", "publish 2", "published"])
def test_a_process_killed_in_a_round_leaves_all_of_it_or_nothing(url, books, when):
    run, _ = begun(books, spares=3)
    child = spawn.Process(target=processes.work_on_a_round_and_die, args=(url, run, PLAN, when))
    child.start()
    child.join(60)
    assert child.exitcode == -9
    paid = 0 if when.startswith("charge ") else 3
    assert kinds(books).count("charge") == paid
    assert values_of(books, run) == ([[7, 7, 7]] * 3 if when == "published" else [None] * 3)
    lease = books.ledger.acquire(run)
    charges = books.ledger.charge_round(lease, PLAN)
    if when != "published":
        assert [charge.attempt for charge in charges] == [bool(paid)] * 3
        books.ledger.publish_round(lease, charges, VALUES)
    books.ledger.finish(lease, "finished")
    twice = bool(paid) and when != "published"
    assert books.spent() == (total(*PLAN, *(PLAN if twice else ())), 0)
