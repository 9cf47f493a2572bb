"""A private series on a stream, week by week through the platform: population, ledger by cohort, and run store.

    population/    grows by an append a week, which opens a cohort; those who leave are forgotten
    ledger.sqlite  each cohort pays for `horizon` runs and then retires
    runs/week-001  and so on; each starts from the one before it

Nothing is done twice: a process that was killed goes on where it was. Noise is pseudo-random, so that outcomes can be
compared bit by bit; the people are made up, and no run protects anybody.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from benchmarks.series.in_time import METHOD, noise_key
from benchmarks.series.stream import Stream
from fedcore.errors import PopulationNotFound, RunNotFound
from fedcore.population.erasing import forget
from fedcore.population.ingest.ingest import ingest
from fedcore.population.store import Population
from fedcore.privacy.ledger.chain import Balance
from fedcore.privacy.ledger.ledger import Ledger, create_ledger
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run, load_run
from fedcore.storage import files
from fedcore.storage.ranges import numbers_in
from fedcore.training.budget import begin_cohorts, ledger_of, remember_head
from fedcore.training.request import TrainRequest
from fedcore.training.session import Session, concluding, resume, start_run

EPSILON, DELTA = 4.0, 1e-6
HORIZON_OF_ARRIVALS = 1.26  # horizon times the share of newcomers, at which signal to noise is largest
SPARES = 2  # releases that a killed week may pay for once more, of each cohort
WHY = "made up, like the people"


@dataclass(frozen=True)
class Week:
    """What a week's run left. loss: of the released centres in the next week, nats; clients: declared, of those who
    took part; cohorts: how many took part
    """

    number: int
    loss: float
    clients: int
    cohorts: int


class WeeklySeries:
    """The series of a stream in a folder."""

    def __init__(self, folder: Path, stream: Stream, key: str = "series"):
        self.folder, self.stream, self.key = folder, stream, key

    @property
    def horizon(self) -> int:
        """Runs that a cohort pays for (docs/privacy/cohorts.md)."""
        return max(round(HORIZON_OF_ARRIVALS / self.stream.settings.arrivals), 1)

    @property
    def ledger_url(self) -> str:
        return f"sqlite:///{(self.folder / 'ledger.sqlite').resolve()}"

    @property
    def place(self) -> Path:
        return self.folder / "population"

    def run_folder(self, week: int) -> Path:
        return self.folder / "runs" / f"week-{week:03d}"

    def ledger(self) -> Ledger:
        return ledger_of(Population.open(self.place), self.ledger_url)

    def balance(self) -> Balance:
        return self.ledger().verify(Population.open(self.place).id)

    # --- a week -----------------------------------------------------------------------------------------------------

    def done(self) -> list[Week]:
        """The weeks that are finished."""
        file = self.folder / "weeks.json"
        return [Week(**one) for one in json.loads(file.read_text())] if file.exists() else []

    def go_on(self) -> Iterator[Week]:
        """Every week that is not done yet, as it is finished."""
        weeks = self.done()
        for number in range(len(weeks) + 1, self.stream.settings.weeks + 1):
            self._arrive(number)
            self._leave(number)
            weeks.append(self._train(number))
            files.write_whole(self.folder / "weeks.json", json.dumps([asdict(week) for week in weeks]).encode())
            yield weeks[-1]

    def _arrive(self, week: int) -> None:
        """The population, or its next version; and with the first one the budget, kept by cohort."""
        if week > 1:
            population = Population.open(self.place)
            if len(population.manifest.cohorts) < week:
                self._ingest(week)
            return
        try:
            population = Population.open(self.place)
        except PopulationNotFound:
            population = self._ingest(week)
        ledger = ledger_of(population, self.ledger_url)
        ledger.register(population.id)
        if ledger.balance(population.id).budget is None:
            ledger.set_budget(population.id, EPSILON, DELTA, public_schema=WHY)
            remember_head(population, ledger)
        begin_cohorts(population, ledger)

    def _ingest(self, week: int) -> Population:
        ids, counts = self.stream.arrived(week)
        source = self.folder / "arrivals.csv"
        source.write_text(as_csv(ids, counts))
        declared = int((self.stream.calendar[0] <= week).sum())
        return ingest(
            source,
            self.place,
            features=self.stream.settings.features,
            append=week > 1,
            nominal_clients=declared,
            ledger=None if week > 1 else {"id": self._test_ledger().id, "url": self.ledger_url},
        )

    def _test_ledger(self) -> Ledger:
        return create_ledger(self.ledger_url, test=True)

    def _leave(self, week: int) -> None:
        population, ledger = Population.open(self.place), self.ledger()
        forget(
            population,
            clients=self.stream.left(week),
            record=lambda version, listed: ledger.forgot(population.id, version=version, list=listed),
        )

    def _train(self, week: int) -> Week:
        if (session := self._session(week)) is not None:
            with concluding(session):
                while session.training.step() is not None:
                    pass
        run = load_run(self.run_folder(week))
        ranges = run.info["cohorts"]
        return Week(
            week, self.stream.loss(run.state["centres"], week + 1), run.info["nominal_clients"], len(numbers_in(ranges))
        )

    def _session(self, week: int) -> Session | None:
        """The week's run from its beginning, or from where it was; None if it is finished."""
        folder = self.run_folder(week)
        try:
            status = Run.open(folder).status
        except RunNotFound:
            return start_run(self._request(week), InProcessBackend(), stamp="", ledger_url=self.ledger_url)
        return None if status == "finished" else resume(folder, InProcessBackend(), ledger_url=self.ledger_url)

    def _request(self, week: int) -> TrainRequest:
        return TrainRequest(
            method=METHOD,
            population=str(self.place),
            settings={"horizon": self.horizon, "spare_releases": SPARES},
            runs=str(self.folder / "runs"),
            run_id=self.run_folder(week).name,
            start_from=None if week == 1 else str(self.run_folder(week - 1)),
            seed=week,
            test_noise=noise_key(self.key, week),
        )

    # --- the end ----------------------------------------------------------------------------------------------------

    def digest(self) -> str:
        """Of all released states: the same for every course that was not disturbed, or disturbed and gone on with."""
        whole = hashlib.sha256()
        for week in range(1, self.stream.settings.weeks + 1):
            for name, value in sorted(load_run(self.run_folder(week)).state.items()):
                whole.update(f"{week}|{name}".encode())
                whole.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
        return whole.hexdigest()

    def spent_by_clients(self) -> np.ndarray:
        """(N,) float64: share of the budget that each client who ever came has spent, of its cohort's account."""
        balance = self.balance()
        budget = balance.required_budget()
        of_cohort = {
            number: segment.rho_spent / budget.rho_max
            for segment in balance.segments
            for number in range(segment.first, segment.last + 1)
        }
        return np.array([of_cohort[week] for week in self.stream.calendar[0].tolist()])


def as_csv(ids: list[str], counts: sp.csr_matrix) -> str:
    """Long counts, a line for each client and token; a client without tokens has none."""
    rows = np.repeat(np.arange(len(ids)), np.diff(counts.indptr))
    cells = zip(rows.tolist(), counts.indices.tolist(), counts.data.tolist(), strict=True)
    return "client,token,count\n" + "".join(f"{ids[row]},{token},{count}\n" for row, token, count in cells)
