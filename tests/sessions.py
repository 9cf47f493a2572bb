"""Runs in this process: a request with what most tests ask alike, its session, and that to its end."""

from pathlib import Path

from fedcore.population.store import Population
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run
from fedcore.training.request import TrainRequest
from fedcore.training.session import Session, concluding, start_run
from tests.conftest import counts_method


def request_for(population: Population | Path | str, folder: Path, method=None, settings=None, **changes):
    """A run "r" on a population, or on the one at a place, under folder/runs; method: by default that of counts."""
    asked = {
        "method": method or counts_method(settings or {}),
        "population": str(population.path if isinstance(population, Population) else population),
        "settings": settings or {},
        "runs": str(folder / "runs"),
        "run_id": "r",
    }
    return TrainRequest(**{**asked, **changes})


def begin(population, folder, method=None, settings=None, *, backend=None, stamp="then", **changes) -> Session:
    request = request_for(population, folder, method, settings, **changes)
    return start_run(request, backend or InProcessBackend(), stamp=stamp)


def to_end(session: Session) -> Run:
    with concluding(session):
        while session.training.step() is not None:
            pass
    return session.run


def train(*asked, **changes) -> Run:
    return to_end(begin(*asked, **changes))
