"""Whole runs of a case through the platform. The one place of this package that knows how runs are started, resumed
and stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from fedcore.methods import names
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.rounds.caches import MEMORIES
from fedcore.rounds.clients import read_memory
from fedcore.rounds.engine import Backend, InProcessBackend
from fedcore.runs.store import Run, load_run
from fedcore.storage.arrays import read_values, write_values
from fedcore.testing.cases import DELTA, EPSILON, NOISE_KEY, Case
from fedcore.training.request import TrainRequest
from fedcore.training.session import Session, concluding, resume, start_run

RUN = "run"


@dataclass(frozen=True)
class Ended:
    """What is left of a stored run.

    status:   of the run
    state, memories: after the last round; memories are those of all clients, empty if they remember nothing
    metrics:  rows without times
    releases: published values
    spent:    rho that the ledger charged; 0 if the run is not private
    """

    status: str
    state: Mapping[str, Any]
    memories: Mapping[str, np.ndarray]
    metrics: list[dict[str, Any]]
    releases: Mapping[str, np.ndarray]
    spent: float


# --- stored runs ------------------------------------------------------------------------------------------------------


def whole_run(
    case: Case, folder: Path, *, block: int | None = None, backend: Backend | None = None, streamed: bool = False
) -> Ended:
    """The run from its first round to its last.

    block: clients of a stored block, if not those of the case. streamed: rows are read while they are used.
    """
    with _registered(case):
        session = _started(case, folder, block, backend or InProcessBackend())
        if streamed:
            session.training.source = replace(session.training.source, stream_above=0)
        with concluding(session):
            while session.training.step() is not None:
                pass
        return _ended(session)


def run_in_pieces(case: Case, folder: Path, *, block: int) -> Ended:
    """The run, stopped before its first round and after every one, and resumed as if by a new process.

    block: clients of a stored block.
    """
    with _registered(case):
        session = _started(case, folder, block, InProcessBackend())
        going_on = True
        while going_on:
            session.close()
            MEMORIES.clear()
            session = resume(session.run.path, InProcessBackend(), ledger_url=_ledger(folder))
            going_on = session.training.step() is not None
            session.training.commit()
        with concluding(session):
            pass
        return _ended(session)


def stored_and_read(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The values as the run store gives them back. Raises RunError for what it cannot store."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "values.zip"
    write_values(file, values, durable=False)
    return read_values(file)


@contextmanager
def _registered(case: Case) -> Iterator[None]:
    """The method has its name in the registry, whether or not a package registers it."""
    cls = type(case.method)
    with mock.patch.dict(names.OWN, {cls.name: f"{cls.__module__}:{cls.__qualname__}"}):
        yield


def _ledger(folder: Path) -> str:
    return f"sqlite:///{folder / 'ledger.sqlite'}"


def _started(case: Case, folder: Path, block: int | None, backend: Backend) -> Session:
    folder.mkdir(parents=True, exist_ok=True)
    population = _written(case, folder, block)
    asked: dict[str, Any] = {}
    if case.method.private:
        asked["test_noise"] = NOISE_KEY
    if case.warm_start is not None:
        arrays: dict[str, Any] = dict(case.warm_start)
        np.savez(folder / "start.npz", **arrays)
        asked |= {"start_from": str(folder / "start.npz"), "public_start_because": "it is made up for a test"}
    request = TrainRequest(
        method=case.method.name,
        population=str(population.path),
        settings=case.method.config.model_dump(mode="json"),
        runs=str(folder / "runs"),
        run_id=RUN,
        seed=case.seed,
        **asked,
    )
    return start_run(request, backend, stamp="then", ledger_url=_ledger(folder))


def _written(case: Case, folder: Path, block: int | None) -> Population:
    people = case.population
    options: dict[str, Any] = {}
    if people.kind == "rows":
        options["dtype"] = people.dtype
    if case.method.private:
        from fedcore.privacy.ledger.ledger import create_ledger

        ledger = create_ledger(_ledger(folder), test=True)
        options["ledger"] = {"id": ledger.id, "url": ledger.url}
    clients = len(people.clients)
    with PopulationWriter(
        folder / "population",
        people.kind,
        people.features,
        clients_per_leaf=people.leaf,
        clients_per_block=block or people.block,
        nominal_clients=clients,
        halves=people.halves,
        image=people.image,
        **options,
    ) as writer:
        writer.write([f"client-{number}" for number in range(clients)], people.matrix(), people.matrix(heldout=True))
        made = writer.commit(Provenance(sources=("fedcore.testing",)))
    if case.method.private:
        ledger.register(made.id)
        ledger.set_budget(made.id, EPSILON, DELTA, unit=case.unit, relation=case.relation)
    return made


def _ended(session: Session) -> Ended:
    run: Run = session.run
    loaded, folder = load_run(run.path), run.memories()
    memories: dict[str, np.ndarray] = {}
    if folder is not None:
        entries, digests = session.population.blocks, run.memory_digests()
        read = [read_memory(folder, index, entry.clients, digests) for index, entry in enumerate(entries)]
        memories = {name: np.concatenate([values[name] for values in read]) for name in read[0]}
    balance = session.balance()
    return Ended(
        run.status,
        loaded.state,
        memories,
        [{name: value for name, value in row.items() if not name.startswith("seconds")} for row in loaded.metrics],
        run.releases(),
        0.0 if balance is None else balance.rho_spent,
    )
