"""Which law reservations and charges name, and that the noise costs no more than its price."""

import json
import math
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from fedcore.errors import ConfigError, LedgerError, LedgerTampered, PrivacyError, SensitivityError
from fedcore.privacy.ledger.chain import CHARGED, canonical
from fedcore.privacy.ledger.checkpoint import UnknownState, account_at, state_of
from fedcore.privacy.ledger.replay import replay
from fedcore.privacy.mechanisms import SecureNoise
from fedcore.privacy.plan import ROUNDED, PlannedRelease
from fedcore.training.publishing import LedgerPublisher
from tests.privacy.conftest import release
from tests.privacy.test_order import ACQUIRED, SET, chain_of, charged, reserved

ZEROS = np.zeros(3, np.int64)


def records(books, kind) -> list:
    return [row for row in books.ledger.history(books.population) if row["kind"] == kind]


# --- the law ----------------------------------------------------------------------------------------------------------


def test_a_new_run_reserves_and_charges_the_rounded_gaussian(books):
    run = books.reserve([release()])
    books.ledger.charge(books.ledger.acquire(run), release())
    assert [records(books, kind)[0]["noise"] for kind in ("reserve", "charge")] == [ROUNDED, ROUNDED]
    books.ledger.verify(books.population)


def reserved_with(noise: str, secure: bool = True):
    kind, run, payload = reserved(release())
    return kind, run, {**payload, "noise": noise, "secure": secure}


def test_a_checkpoint_of_noise_that_only_a_newer_version_knows():
    account = replay("ledger", "people", chain_of(SET, reserved_with(ROUNDED), ACQUIRED, charged(release())))
    state = json.loads(canonical(state_of(account)))
    assert state["runs"]["run"]["attempts"] == [[1, "sums-1", 0, CHARGED, release().rho, 0.0, None]]
    assert canonical(state_of(account_at("people", state))) == canonical(state)
    state["runs"]["run"]["noise"] = "hexagonal"
    with pytest.raises(UnknownState, match="noise hexagonal"):
        account_at("people", state)


@pytest.mark.parametrize(("noise", "drawn"), [(ROUNDED, "hexagonal"), ("hexagonal", ROUNDED)])
def test_noise_that_only_a_newer_version_knows_is_said_to_be_so(noise, drawn):
    chain = chain_of(SET, reserved_with(noise), ACQUIRED, charged(release(), noise=drawn))
    with pytest.raises(LedgerError, match="a newer fedcore") as told:
        replay("ledger", "people", chain)
    assert not isinstance(told.value, LedgerTampered)


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
