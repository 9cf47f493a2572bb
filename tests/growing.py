"""Populations that grow by appends, kept by cohort or by calendar period, with ledgers of test noise, for tests of runs
on them.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np

from fedcore.population.ingest.ingest import ingest
from fedcore.population.store import Population
from fedcore.privacy.accounting import exact_sum
from fedcore.privacy.ledger.ledger import create_ledger
from fedcore.rounds.engine import InProcessBackend
from fedcore.training.budget import begin_cohorts, set_budget
from fedcore.training.request import TrainRequest
from fedcore.training.session import Session, concluding, start_run
from tests import sessions
from tests.conftest import small_counts, write_counts
from tests.population.contents import ids_of, write_csv

NOISE = "a key"
HEADER = ["client", "when", "token"]  # of a table of entries


class Growing:
    """folder: with the population, runs and sources. nominal: declared for each client who came."""

    def __init__(self, folder: Path, founders: int = 12, nominal: int = 100, begin: bool = True, epsilon: float = 8.0):
        self.folder, self.nominal = folder, nominal
        folder.mkdir(parents=True, exist_ok=True)
        self.ledger = create_ledger(f"sqlite:///{folder / 'ledger.sqlite'}", test=True)
        named = {"id": self.ledger.id, "url": self.ledger.url}
        made = write_counts(folder / "p", small_counts(founders), nominal_clients=nominal * founders, ledger=named)
        self.ledger.register(made.id)
        self.ledger.set_budget(made.id, epsilon, 1e-6)
        self.path, self.appended = made.path, 0
        if begin:
            begin_cohorts(made, self.ledger)

    @property
    def population(self) -> Population:
        return Population.open(self.path)

    @property
    def budget(self):
        return self.ledger.balance(self.population.id).budget

    def append(self, *ids: str, declared: int | None = None) -> Population:
        """An append of these clients, some of whom may be known and have other tokens then; nobody may come. declared:
        of the cohort, if not as many as come.
        """
        self.appended += 1
        known = {one for one in ids_of(self.population) if one}
        come = self.nominal * len({*ids} - known) if declared is None else declared
        total = self.population.manifest.nominal_clients + come
        rows = [(one, token + 3 * (one in known), 1 + (len(one) + token) % 3) for one in ids for token in range(3)]
        file = write_csv(self.folder / f"append-{self.appended}.csv", ["client", "token", "count"], rows)
        return ingest(file, self.path, append=True, nominal_clients=total)

    def request(
        self,
        run_id: str | None = None,
        method: str = "toy",
        start_from: str | None = None,
        share: str | None = None,
        **settings,
    ) -> TrainRequest:
        given = {"private": True, "rounds": 1, "spare_releases": 0} if method == "toy" else {}
        named = {"run_id": run_id, "start_from": start_from, "test_noise": NOISE, "share": share}
        return sessions.request_for(self.path, self.folder, method, {**given, **settings}, **named)

    def begin(self, *asked, **settings) -> Session:
        return start_run(self.request(*asked, **settings), InProcessBackend(), stamp="then")

    def run(self, *asked, **settings) -> Session:
        """A run from its beginning to its end."""
        return to_end(self.begin(*asked, **settings))

    def cohort_of_each(self) -> dict[str, int]:
        """{client id: cohort}."""
        each = [cohort for cohort, clients in self.population.manifest.order for _ in range(clients)]
        return {one: cohort for one, cohort in zip(ids_of(self.population), each, strict=True) if one}


def label(month: int) -> str:
    return f"{2025 + (month - 1) // 12}-{(month - 1) % 12 + 1:02d}"


def entries(client: str, tokens: dict[int, int], rows: int = 4):
    """Rows of a client, of one token in each of some months."""
    return [(client, f"{label(month)}-{day + 1:02d}", token) for month, token in tokens.items() for day in range(rows)]


class Calendar:
    """A population of entries with its ledger of test noise; each month some clients have rows in it. url: of the
    ledger; people: whether it is one for people, with real noise; stored: options of ingest
    """

    def __init__(
        self,
        folder,
        window: int = 3,
        months: int = 1,
        unit: str = "client_period",
        period: bool = True,
        url: str | None = None,
        people: bool = False,
        **stored,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.months, self.files, self.noise = folder, months, 0, None if people else NOISE
        self.ledger = create_ledger(url or f"sqlite:///{folder / 'ledger.sqlite'}", test=not people)
        options = {"period": "month", "time": "when", "first": label(1), "through": label(months)} if period else {}
        self.path = folder / "p"
        named = {"id": self.ledger.id, "url": self.ledger.url}
        rows = [row for month in range(1, months + 1) for row in self.of_month(month)]
        rows = rows if period else [(client, token) for client, _, token in rows]
        file = write_csv(folder / "first.csv", HEADER if period else ["client", "token"], rows)
        made = ingest(file, self.path, features=30, nominal_clients=100, ledger=named, **options, **stored)
        self.ledger.register(made.id)
        if unit:
            set_budget(made, self.ledger, 4.0, 1e-6, unit=unit, window=window)

    def of_month(self, month: int):
        return [row for n in range(12) for row in entries(f"u{n}", {month: (n * month) % 30})]

    @property
    def population(self) -> Population:
        return Population.open(self.path)

    @property
    def rho_max(self) -> Fraction:
        return Fraction(self.ledger.balance(self.population.id).budget.rho_max)

    def append(self, rows=(), months: int = 0) -> Population:
        """These rows, and `months` more of the calendar with their own."""
        new = [row for month in range(self.months + 1, self.months + months + 1) for row in self.of_month(month)]
        self.months, self.files = self.months + months, self.files + 1
        file = write_csv(self.folder / f"{self.files}.csv", HEADER, [*new, *rows])
        going_on = {"through": label(self.months), "nominal_clients": 100} if months else {}
        return ingest(file, self.path, append=True, **going_on)

    def begin(self, method: str = "toy", run_id=None, start_from=None, backend=None, **asked):
        asked = {**({"private": True, "rounds": 1, "spare_releases": 0} if method == "toy" else {}), **asked}
        more = {"run_id": run_id, "start_from": start_from, "test_noise": self.noise, "backend": backend}
        return sessions.begin(self.path, self.folder, method, asked, **more)

    def run(self, *named, **asked):
        return to_end(self.begin(*named, **asked))


def to_end(session: Session) -> Session:
    with concluding(session):
        while session.training.step() is not None:
            pass
    return session


def price_of(session: Session) -> Fraction:
    """What was planned for the run, exactly."""
    return exact_sum(planned["rho"] for planned in session.run.info["plan"])


def ranges_of_run(session: Session) -> tuple[tuple[int, int], ...]:
    return tuple((first, last) for first, last in session.run.info["cohorts"])


def published(session: Session) -> dict[str, bytes]:
    return {name: np.asarray(value).tobytes() for name, value in session.run.releases().items()}
