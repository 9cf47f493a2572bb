"""Makes the golden files of the schema that this version of fedcore writes:

    python -m tests.golden.make tests/golden/schema1

    counts/                two versions of a population of counts, with a vocabulary and held-out parts
    rows/                  a population of dense rows
    ledger.sqlite          of test noise: the budget of `counts`, what a finished run and an interrupted one did
    trained/finished       histograms on `counts`, private under test noise; the latest run of a deployment
    trained/interrupted    the same with another name, after one committed round and a charge whose value was lost
    trained/remembering    federated EM on `rows` with clients' memories, two rounds before its end
    expected/NAME.zip      the final state of the two interrupted ones, had they not been

Files that are kept are never made again: they say what an older version wrote. Ids are counted and clocks stand still,
so that the same version makes the same bytes on the same processor; nothing in them names a machine or a user.
"""

import argparse
import json
import os
import shutil
import sqlite3
import tempfile
import uuid
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import scipy.sparse as sp

from fedcore.operations.latest_runs import promote
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.privacy.ledger import ledger as ledgers
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run, load_run
from fedcore.storage.arrays import write_values
from fedcore.training.budget import remember_head
from fedcore.training.request import TrainRequest
from fedcore.training.session import concluding, resume, start_run

NOW = 1_700_000_000.0
STAMP = "20231114T221320"
PUBLIC = "made up by a random number generator"
PRIVATE = {"clusters": 2, "rounds": 2, "epsilon": 2.0, "spare_releases": 1}
REMEMBERING = {
    "components": 2,
    "covariance": "diag",
    "cluster_rounds": 1,
    "levels": 2,
    "participation": 0.75,
    "rounds": 2,
}
LEDGER = "sqlite:///ledger.sqlite"  # relative: only the environment says where it is


def random(purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(purpose))


def make_counts(ledger: dict) -> Population:
    counts = random(1).poisson(0.9, (24, 5)).astype(np.int32)
    heldout = random(2).poisson(0.4, (24, 5)).astype(np.int32)
    names = [f"client-{number}" for number in range(24)]
    with PopulationWriter(
        "counts",
        "counts",
        5,
        clients_per_leaf=4,
        clients_per_block=12,
        nominal_clients=24,
        vocabulary=["ash", "birch", "elm", "oak", "yew"],
        public_for_evaluation=PUBLIC,
        ledger=ledger,
    ) as writer:
        writer.write(names[:12], sp.csr_matrix(counts[:12]), sp.csr_matrix(heldout[:12]))
        first = writer.commit(Provenance(sources=("golden",)))
    with PopulationWriter.extending(first) as writer:
        for entry in first.blocks:
            writer.keep(entry)
        writer.write(names[12:], sp.csr_matrix(counts[12:]), sp.csr_matrix(heldout[12:]))
        return writer.commit(Provenance(sources=("golden",)))


def make_rows() -> Population:
    clients, each = 12, 6
    centres = np.array([[0.0, 0.0, 3.0], [4.0, 0.0, -3.0]])
    rows = centres[np.arange(clients * each) % 2] + random(3).normal(size=(clients * each, 3))
    heldout = centres[np.arange(clients * 2) % 2] + random(4).normal(size=(clients * 2, 3))
    with PopulationWriter(
        "rows", "rows", 3, clients_per_leaf=4, clients_per_block=8, public_for_evaluation=PUBLIC
    ) as writer:
        writer.write(
            [f"client-{number}" for number in range(clients)],
            (np.arange(clients + 1) * each, rows.astype(np.float32)),
            (np.arange(clients + 1) * 2, heldout.astype(np.float32)),
        )
        return writer.commit(Provenance(sources=("golden",)))


def begin(method: str, population: str, runs: str, run_id: str, settings: dict, **more):
    request = TrainRequest(
        method=method, population=population, runs=runs, run_id=run_id, settings=settings, seed=7, **more
    )
    return start_run(request, InProcessBackend(), stamp=STAMP)


def to_end(session) -> Run:
    with concluding(session):
        while session.training.step() is not None:
            pass
    return session.run


def interrupted(name: str, rounds: int, lose: bool = False, **asked) -> None:
    """A run that stops after some rounds; and the state that it would have ended with, from a copy that went on.

    lose: it pays for the first release of the next round, whose value is then lost.
    """
    session = begin(run_id=name, runs="trained", **asked)
    while session.run.round < rounds:
        session.training.step()
    if lose:
        planned = [item for item in session.training.plan.values() if item.round == session.training.round]
        session.account.ledger.charge(session.account.lease, planned[0])
    session.close()
    shutil.copytree("trained", "again")
    kept = Path("ledger.sqlite").read_bytes()
    witness = Path("counts/ledger-head.json").read_bytes()
    to_end(resume(f"again/{name}", InProcessBackend()))
    write_values(Path(f"expected/{name}.zip"), load_run(f"again/{name}").state)
    Path("ledger.sqlite").write_bytes(kept)
    Path("counts/ledger-head.json").write_bytes(witness)
    shutil.rmtree("again")


def settle_ledger() -> None:
    """Everything in one file; and nothing in its free pages of what was deleted, such as holders of leases."""
    with closing(sqlite3.connect("ledger.sqlite")) as connection:
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextmanager
def fixed():
    """Ids are counted, and no clock moves."""
    numbers = iter(range(1, 1000))
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(uuid, "uuid4", lambda: uuid.UUID(int=next(numbers))))
        stack.enter_context(mock.patch("time.time", lambda: NOW))
        stack.enter_context(mock.patch("time.perf_counter", lambda: 0.0))
        for function in (ledgers.create_ledger, ledgers.open_ledger):
            stack.enter_context(mock.patch.dict(function.__kwdefaults__, clock=lambda: NOW))
        yield


def make(folder: Path) -> None:
    """Fill the new folder."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch, fixed():
        os.chdir(scratch)
        try:
            with mock.patch.dict(os.environ, FEDCORE_LEDGER=LEDGER):
                _make()
            _forget(Path.cwd())
        finally:
            os.chdir(here)
        shutil.copytree(scratch, folder)


def _make() -> None:
    ledger = ledgers.create_ledger(LEDGER, test=True)
    counts, _ = make_counts({"id": ledger.id, "url": LEDGER}), make_rows()
    ledger.register(counts.id)
    ledger.set_budget(counts.id, 8.0, 1e-6)
    remember_head(counts, ledger)
    private = {"method": "histograms", "population": "counts", "settings": PRIVATE, "test_noise": "golden"}
    run = to_end(begin(run_id="finished", runs="trained", deployment="nightly", **private))
    promote(run, "nightly", "the first", STAMP)
    settle_ledger()
    interrupted("interrupted", 1, lose=True, **private)
    interrupted("remembering", 6, method="federated_em", population="rows", settings=REMEMBERING)
    settle_ledger()


def _forget(folder: Path) -> None:
    """Take out where it was made, and what is no part of what is kept."""
    for path in [*folder.rglob("lock"), *folder.rglob("*.lock"), *folder.rglob("report.html")]:
        path.unlink()
    for path in folder.rglob("run.json"):
        info = json.loads(path.read_text())
        info["population"]["path"] = Path(info["population"]["path"]).name
        path.write_text(json.dumps(info, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder that does not exist")
    make(parser.parse_args().folder.absolute())
