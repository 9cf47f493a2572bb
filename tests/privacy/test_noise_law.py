"""Which law a reservation names, which one a release is drawn with, and that the noise costs no more than its price."""

import json
import math
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from fedcore.errors import ConfigError, LedgerError, LedgerTampered, PrivacyError, SensitivityError
from fedcore.privacy.ledger import reservations
from fedcore.privacy.ledger.chain import CHARGED, canonical
from fedcore.privacy.ledger.checkpoint import UnknownState, account_at, state_of
from fedcore.privacy.ledger.ledger import create_ledger, open_ledger
from fedcore.privacy.ledger.replay import replay
from fedcore.privacy.mechanisms import SecureNoise, TestNoise
from fedcore.privacy.plan import DISCRETE, ROUNDED, PlannedRelease
from fedcore.training.budget import LedgerPublisher
from tests.privacy.conftest import Books, release
from tests.privacy.test_order import ACQUIRED, SET, chain_of, charged, reserved

ZEROS = np.zeros(3, np.int64)


def of_an_earlier_version(books, monkeypatch, plan, **options) -> str:
    """A run that has reserved the discrete Gaussian, as before there was another law."""
    with monkeypatch.context() as earlier:
        earlier.setattr(reservations, "ROUNDED", DISCRETE)
        return books.reserve(plan, **options)


def laws_of(books, run) -> dict:
    account = books.ledger.account(books.population).runs[run]
    return {key[1:]: account.law_of(attempt) for key, attempt in account.attempts.items()}


def records(books, kind) -> list:
    return [row for row in books.ledger.history(books.population) if row["kind"] == kind]


@pytest.fixture
def test_books(tmp_path):
    url = f"sqlite:///{tmp_path / 'test.sqlite'}"
    create_ledger(url, test=True)
    ledger = open_ledger(url)
    ledger.register("people")
    ledger.set_budget("people", 2.0, 1e-10, currency="zcdp")  # in which there is discrete noise
    return Books(url, ledger, "people")


# --- the law ----------------------------------------------------------------------------------------------------------


def test_a_new_run_reserves_and_charges_the_rounded_gaussian(books):
    run = books.reserve([release()])
    charge = books.ledger.charge(books.ledger.acquire(run), release())
    assert charge.noise == ROUNDED == laws_of(books, run)["sums-1", 0]
    assert [records(books, kind)[0]["noise"] for kind in ("reserve", "charge")] == [ROUNDED, ROUNDED]
    books.ledger.verify(books.population)


def test_a_run_that_reserved_the_discrete_gaussian_is_the_same_and_draws_the_rounded_one(books, monkeypatch):
    """It protects people: the newer law at the same scale and price. What was drawn before keeps its law."""
    plan = [release(), release(2)]
    run = of_an_earlier_version(books, monkeypatch, plan, spares=1)
    books.reserve(plan, spares=1, run=run)
    assert len(records(books, "reserve")) == 1 and records(books, "reserve")[0]["noise"] == DISCRETE
    lease = books.ledger.acquire(run)
    assert books.ledger.charge(lease, plan[0]).noise == ROUNDED
    assert laws_of(books, run) == {("sums-1", 0): ROUNDED, ("sums-2", 0): DISCRETE}
    again = books.ledger.charge(lease, plan[0])
    assert (again.attempt, again.noise, laws_of(books, run)["sums-1", 1]) == (1, ROUNDED, ROUNDED)
    books.ledger.verify(books.population)


def test_the_law_is_no_part_of_the_digest_of_a_plan(books, monkeypatch):
    old = of_an_earlier_version(books, monkeypatch, [release()])
    new, other = books.reserve([release()]), books.reserve([release(sigma=21.0)])
    digests = {row["run_id"]: row["plan_digest"] for row in records(books, "reserve")}
    assert digests[old] == digests[new] != digests[other]


def test_test_noise_goes_on_with_the_law_of_its_reservation(test_books, monkeypatch):
    books, plan = test_books, [release(), release(2)]
    old = of_an_earlier_version(books, monkeypatch, plan, secure=False)
    new = books.reserve(plan, secure=False)
    for run, law in ((old, DISCRETE), (new, ROUNDED)):
        books.reserve(plan, run=run, secure=False)  # as a resumed run does
        lease, noise = books.ledger.acquire(run), TestNoise("key")
        publisher = LedgerPublisher(books.ledger, None, SimpleNamespace(id=run), lease, noise)
        assert np.array_equal(publisher.release(plan[0], ZEROS), noise.draw(plan[0], "", ZEROS, law))
        assert set(laws_of(books, run).values()) == {law}


def test_old_records_and_checkpoints_mean_what_they_meant():
    """A charge that names no law has that of its reservation, and the state of the account has the form it had."""
    account = replay("ledger", "people", chain_of(SET, reserved(release()), ACQUIRED, charged(release())))
    run = account.runs["run"]
    assert run.noise == DISCRETE and [run.law_of(a) for a in run.attempts.values()] == [DISCRETE]
    state = json.loads(canonical(state_of(account)))
    assert state["runs"]["run"]["attempts"] == [[1, "sums-1", 0, CHARGED, release().rho, 0.0, None]]


def test_a_checkpoint_keeps_the_law_of_a_draw():
    old, new = charged(release()), charged(release(), 1, noise=ROUNDED)
    steps = [SET, reserved(release(), spares=1), ACQUIRED, old, new]
    account = replay("ledger", "people", chain_of(*steps))
    restored = account_at("people", json.loads(canonical(state_of(account))))
    assert canonical(state_of(restored)) == canonical(state_of(account))
    run = restored.runs["run"]
    assert [run.law_of(attempt) for _, attempt in sorted(run.attempts.items())] == [DISCRETE, ROUNDED]
    for edit in (lambda run: run.update(noise="hexagonal"), lambda run: run["attempts"][1].__setitem__(7, "hexagonal")):
        state = json.loads(canonical(state_of(account)))
        edit(state["runs"]["run"])
        with pytest.raises(UnknownState, match="noise hexagonal"):
            account_at("people", state)


def reserved_with(noise: str, secure: bool = True):
    kind, run, payload = reserved(release())
    return kind, run, {**payload, "noise": noise, "secure": secure}


@pytest.mark.parametrize(
    ("noise", "drawn", "secure", "why"),
    [
        (ROUNDED, DISCRETE, True, "another noise than reserved"),
        (ROUNDED, DISCRETE, False, "another noise than reserved"),
        (DISCRETE, ROUNDED, False, "another noise than reserved"),
        (ROUNDED, "hexagonal", True, "a newer fedcore"),
        ("hexagonal", ROUNDED, True, "a newer fedcore"),
    ],
)
def test_a_charge_of_another_noise_is_refused(noise, drawn, secure, why):
    chain = chain_of(SET, reserved_with(noise, secure), ACQUIRED, charged(release(), noise=drawn))
    with pytest.raises(LedgerError, match=why) as told:
        replay("ledger", "people", chain)
    assert isinstance(told.value, LedgerTampered) == (why == "another noise than reserved")


@pytest.mark.parametrize(("noise", "drawn"), [(ROUNDED, ROUNDED), (DISCRETE, DISCRETE), (DISCRETE, ROUNDED)])
def test_a_charge_of_the_reserved_or_the_newer_noise_is_accepted(noise, drawn):
    chain = chain_of(SET, reserved_with(noise), ACQUIRED, charged(release(), noise=drawn))
    run = replay("ledger", "people", chain).runs["run"]
    assert [run.law_of(attempt) for attempt in run.attempts.values()] == [drawn]


# --- before anything is paid ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["dtype", "shape", "table", "bits"])
def test_what_cannot_be_drawn_is_not_charged(books, broken, monkeypatch):
    run = books.reserve([release()])
    publisher = LedgerPublisher(books.ledger, None, SimpleNamespace(id=run), books.ledger.acquire(run), SecureNoise())
    values = {"dtype": np.zeros(3), "shape": np.zeros(4, np.int64)}.get(broken, ZEROS)
    length = books.ledger.length(books.population)
    with monkeypatch.context() as damaged, pytest.raises((SensitivityError, PrivacyError)):
        if broken == "table":
            damaged.setattr("fedcore.privacy.rounded_gaussian._table", no_table)
        if broken == "bits":
            damaged.setattr("fedcore.privacy.rounded_gaussian.os.urandom", no_bits)
        publisher.release(release(), values)
    assert books.ledger.length(books.population) == length and books.spent()[0] == 0
    assert publisher.release(release(), ZEROS).shape == (3,) and books.spent()[0] == release().rho


def no_table():
    raise PrivacyError("the table is damaged.")


def no_bits(n):
    raise NotImplementedError


# --- the price --------------------------------------------------------------------------------------------------------


class Priced(PlannedRelease):
    """A release whose price somebody says."""

    __slots__ = ()
    price = 0.0

    @property
    def rho(self) -> float:
        return self.price


def least_price(planned: PlannedRelease) -> float:
    """The smallest float that is not below D**2 / (2 s**2)."""
    exact = Fraction(planned.sensitivity) ** 2 / (2 * Fraction(planned.scale) ** 2)
    price = float(exact)
    while Fraction(price) < exact:
        price = math.nextafter(price, math.inf)
    while Fraction(math.nextafter(price, 0.0)) >= exact:
        price = math.nextafter(price, 0.0)
    return price


@pytest.mark.parametrize(("sensitivity", "multiplier"), [(1, 20.0), (3, 7.3), (92682, 40 / 3), (2**34 + 1, 15.3)])
def test_a_plan_pays_for_the_noise_that_is_drawn_to_the_last_bit(books, sensitivity, multiplier, monkeypatch):
    planned = replace(release(), sensitivity=sensitivity, noise_multiplier=multiplier)
    priced = Priced(*(getattr(planned, name) for name in PlannedRelease.__slots__))
    monkeypatch.setattr(Priced, "price", least_price(planned))
    books.reserve([priced])
    assert books.spent() == (0, Priced.price)
    monkeypatch.setattr(Priced, "price", math.nextafter(Priced.price, 0.0))
    with pytest.raises(ConfigError, match="costs more than rho"):
        books.reserve([priced])


def test_noise_too_wide_to_be_drawn_is_not_reserved(books):
    planned = replace(release(), sensitivity=2**32, noise_multiplier=2.0**16)
    books.reserve([planned])
    with pytest.raises(ConfigError, match="none is drawn above 2.81e.14.* coarser grid"):
        books.reserve([replace(planned, noise_multiplier=math.nextafter(2.0**16, math.inf))])


def test_every_price_covers_its_noise():
    """What `reserve` checks holds for every planned release that a method can make: its price is rounded up twice."""
    generator = np.random.default_rng(1)
    for multiplier in 10 ** generator.uniform(-3, 6, 3000):
        planned = replace(release(), sensitivity=int(generator.integers(1, 2**40)), noise_multiplier=float(multiplier))
        assert Fraction(planned.sensitivity) ** 2 <= 2 * Fraction(planned.scale) ** 2 * Fraction(planned.rho)
        assert planned.rho <= 0.5 / multiplier**2 * (1 + 1e-15)
