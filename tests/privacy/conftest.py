"""A ledger with one population. FEDCORE_TEST_DATABASE may name a server's database to run these tests on as well."""

import os
import uuid
from dataclasses import dataclass

import pytest

from fedcore.privacy.accounting import exact_sum, rounded_up
from fedcore.privacy.ledger.ledger import Ledger, create_ledger
from fedcore.privacy.plan import PlannedRelease

SERVER = os.environ.get("FEDCORE_TEST_DATABASE")


def release(round=1, sigma=20.0, *, name=None, shape=(3,), delta=0.0):
    return PlannedRelease(name or f"sums-{round}", round, shape, 64, sigma, "docs/privacy/ledger.md", "one cell", delta)


def total(*planned) -> float:
    """The exact price of the releases, rounded up as a balance is."""
    return rounded_up(exact_sum(p.rho for p in planned))


@dataclass
class Books:
    """url: of the ledger; population: id of a registered population; run: a fresh run id at each call."""

    url: str
    ledger: Ledger
    population: str

    def run(self) -> str:
        return f"run-{uuid.uuid4().hex}"

    def reserve(self, plan, spares=0, run=None, **options) -> str:
        run = run or self.run()
        self.ledger.reserve(self.population, run, plan, spares, **{"secure": True, **options})
        return run

    def spent(self) -> tuple[float, float]:
        balance = self.ledger.verify(self.population)
        assert balance == self.ledger.balance(self.population)
        return balance.rho_spent, balance.rho_reserved


def open_books(url: str, epsilon: float | None = 2.0) -> Books:
    ledger, population = create_ledger(url), uuid.uuid4().hex
    ledger.register(population)
    if epsilon is not None:
        ledger.set_budget(population, epsilon, 1e-10, delta_extra=1e-11)
    return Books(url, ledger, population)


@pytest.fixture(params=["sqlite", "server"] if SERVER else ["sqlite"])
def url(request, tmp_path):
    return SERVER if request.param == "server" else f"sqlite:///{tmp_path / 'books' / 'ledger.sqlite'}"


@pytest.fixture
def books(url):
    return open_books(url)


@pytest.fixture
def file_books(tmp_path):
    """In a SQLite file, for tests that damage it."""
    return open_books(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
