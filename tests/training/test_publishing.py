"""A run of a study has another publisher: what it reserves, what it shows, and that no other can continue it."""

from dataclasses import replace

import numpy as np
import pytest

from fedcore.errors import RunError
from fedcore.privacy.accounting import exact_sum
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run
from fedcore.training.budget import ledger_of
from fedcore.training.publishing import LedgerPublisher, Publishing
from fedcore.training.session import abandon, resume, start_run
from tests.command import private_population
from tests.conftest import small_counts, spec_of
from tests.sessions import request_for, to_end

SMALL = {"clusters": 2, "rounds": 2, "epsilon": 1.0}
STUDY = {"digest": "ab", "run": 3, "site": "north"}


class Louder(Publishing):
    """Twice the noise of the plan; shows one more than it published; notes how the account is closed."""

    study = STUDY

    def __init__(self):
        self.endings = []

    def charged(self, plan):
        return tuple(replace(planned, noise_multiplier=2 * planned.noise_multiplier) for planned in plan)

    def publisher(self, spec, run, ledger, lease):
        inner = super().publisher(spec, run, ledger, lease)
        return Shifted(inner.ledger, inner.population, inner.run, inner.lease, inner.noise, self)


class Shifted(LedgerPublisher):
    def __init__(self, *inner):
        super().__init__(*inner[:-1])
        self.louder = inner[-1]

    def published(self, planned):
        stored = super().published(planned)
        return None if stored is None else stored + 1

    def release(self, planned, grid_values):
        (charged,) = self.louder.charged([planned])
        if super().published(planned) is None:
            super().release(charged, grid_values)
        return self.published(planned)

    def ending(self, status):
        self.louder.endings.append((status, self.ledger.run_status(self.run.id)))


@pytest.fixture
def begun(tmp_path):
    population, _ = private_population(tmp_path / "p", small_counts())
    spec = replace(spec_of(request := request_for(population, tmp_path, settings=SMALL)), study=STUDY)
    louder = Louder()
    session = start_run(request, InProcessBackend(), stamp="then", spec=spec, publisher=louder)
    return population, session, louder


def test_the_publisher_decides_what_is_reserved_and_what_comes_back(begun):
    population, session, louder = begun
    ledger = ledger_of(population)
    price = float(exact_sum(planned.rho for planned in louder.charged(session.spec.releases)))
    assert ledger.balance(population.id).rho_reserved == pytest.approx(price, rel=1e-12)
    session.training.step()
    session.close()
    session = resume(session.run.path, InProcessBackend(), publisher=louder)
    run = to_end(session)
    assert run.info["study"] == STUDY and "study" in run.info["needs"]
    assert ledger.balance(population.id).rho_spent == pytest.approx(price, rel=1e-12)
    for name, value in run.releases().items():
        assert np.array_equal(value, ledger.published(run.id, name) + 1)
    assert louder.endings == [("finished", "open")]  # before the ledger closes the account


def test_no_other_publisher_continues_or_ends_the_run(begun):
    _, session, louder = begun
    session.close()
    path = session.run.path
    with pytest.raises(RunError, match="run 3 of a study"):
        resume(path, InProcessBackend())
    with pytest.raises(RunError, match="run 3 of a study"):
        abandon(path)
    assert Run.open(path).status == "running"
    resume(path, InProcessBackend(), publisher=louder).close()


def test_a_run_of_one_place_takes_no_publisher_of_a_study(tmp_path):
    population, _ = private_population(tmp_path / "p", small_counts())
    with pytest.raises(RunError, match="no study"):
        start_run(
            request_for(population, tmp_path, settings=SMALL), InProcessBackend(), stamp="then", publisher=Louder()
        )
    assert not (tmp_path / "runs" / "r").exists()
