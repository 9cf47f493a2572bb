"""A population that grows by appends, kept by cohort, with a ledger of test noise, for tests of runs on it."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np

from fedcore.population.ingest.ingest import ingest
from fedcore.population.store import Population
from fedcore.privacy.accounting import exact_sum
from fedcore.privacy.ledger.ledger import create_ledger
from fedcore.rounds.engine import InProcessBackend
from fedcore.training.budget import begin_cohorts
from fedcore.training.request import TrainRequest
from fedcore.training.session import Session, concluding, start_run
from tests import sessions
from tests.conftest import small_counts, write_counts
from tests.population.contents import ids_of, write_csv

NOISE = "a key"


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
        """An append of these clients, some of whom may be known, each with some counts; nobody may come. declared: of
        the cohort, if not as many as come.
        """
        self.appended += 1
        known = {one for one in ids_of(self.population) if one}
        come = self.nominal * len({*ids} - known) if declared is None else declared
        total = self.population.manifest.nominal_clients + come
        rows = [(one, token, 1 + (len(one) + token) % 3) for one in ids for token in range(3)]
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
