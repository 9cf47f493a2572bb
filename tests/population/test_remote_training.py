"""Training over URLs: the bits of a folder, a witness of the ledger there, and runs that survive a failure."""

import json

import numpy as np
import pytest

from fedcore.errors import LedgerRolledBack, PopulationError
from fedcore.population import layout
from fedcore.population.copying import copy_population
from fedcore.population.store import Population
from fedcore.privacy.ledger.ledger import create_ledger, default_ledger_url, open_ledger
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import load_run
from fedcore.training.budget import ledger_name, ledger_of, remember_head
from fedcore.training.session import concluding, resume
from tests import sessions
from tests.command import private_population
from tests.conftest import small_counts, write_counts
from tests.sessions import to_end

from .remote_places import copied, require_credentials

pytest.importorskip("upath", reason="universal-pathlib is not installed")
fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")


def trained(location, tmp_path, run_id, backend=None, **changes):
    return sessions.train(location, tmp_path, changes.pop("method", "toy"), run_id=run_id, backend=backend, **changes)


def bits(run) -> dict:
    return {name: np.asarray(value).tobytes() for name, value in load_run(run.path).state.items()}


@pytest.mark.slow
def test_training_over_s3_gives_the_same_bits(tmp_path, toy, s3):
    population = write_counts(tmp_path / "p", small_counts(60))
    there = copied(population, f"{s3}/p")
    local, far = trained(population.path, tmp_path, "local"), trained(there.location, tmp_path, "far", cache_bytes=0)
    assert bits(local) == bits(far) and local.round == far.round == 3
    assert far.info["population"]["path"] == there.location and far.info["population"]["name"] == "p"


@pytest.mark.slow
def test_a_private_run_over_s3_keeps_its_witness_there(tmp_path, s3):
    population, ledger = private_population(tmp_path / "p", small_counts(40), test=True)
    remember_head(population, ledger)
    there = copied(population, f"{s3}/p")
    assert layout.read_beside(there.path, layout.WITNESS) == layout.read_beside(population.path, layout.WITNESS)
    settings = {"clusters": 2, "rounds": 2, "epsilon": 2.0}
    first = trained(
        population.path,
        tmp_path,
        "r",
        method="histograms",
        settings=settings,
        test_noise="k",
        runs=str(tmp_path / "one"),
    )
    local = layout.read_beside(population.path, layout.WITNESS)
    second = trained(there.location, tmp_path, "far", method="histograms", settings=settings, test_noise="k")
    assert second.status == first.status == "finished" and load_run(second.path).state
    seen = json.loads(layout.read_beside(there.path, layout.WITNESS))
    head = ledger.head(population.id)
    assert seen == {"ledger_id": head.ledger_id, "seq": head.seq, "hash": head.hash}
    # A copy brings the newer record along, in either direction, and never an older one.
    copy_population(population.path, there.path)
    assert json.loads(layout.read_beside(there.path, layout.WITNESS)) == seen != json.loads(local)
    copy_population(there.path, population.path)
    assert json.loads(layout.read_beside(population.path, layout.WITNESS)) == seen


@pytest.mark.slow
def test_a_private_run_over_s3_draws_the_same_published_values(tmp_path, s3, monkeypatch):
    results = []
    for place in ("local", "far"):
        monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / f'{place}.sqlite'}")
        population, _ = private_population(tmp_path / place, small_counts(40), test=True)
        location = copied(population, f"{s3}/p").location if place == "far" else population.path
        results.append(
            bits(
                trained(
                    location,
                    tmp_path / place / "out",
                    "r",
                    method="histograms",
                    test_noise="k",
                    settings={"clusters": 2, "rounds": 2},
                )
            )
        )
    assert results[0] == results[1]


@pytest.mark.slow
def test_an_old_copy_of_the_ledger_is_refused(tmp_path, s3):
    population, ledger = private_population(tmp_path / "p", small_counts(40), test=True)
    there = copied(population, f"{s3}/p")
    before = (tmp_path / "ledger.sqlite").read_bytes()
    ledger.raise_budget(population.id, 9.0, 1e-6)
    remember_head(there, ledger)
    (tmp_path / "ledger.sqlite").write_bytes(before)
    for sidecar in tmp_path.glob("ledger.sqlite-*"):
        sidecar.unlink()
    with pytest.raises(LedgerRolledBack):
        ledger_of(Population.open(there.location))
    layout.write_beside(there.path, layout.WITNESS, b"{")
    with pytest.raises(LedgerRolledBack, match="damaged"):
        ledger_of(there)


@pytest.mark.slow
def test_a_bucket_that_may_only_be_read(tmp_path, s3, monkeypatch):
    """A private run needs to write one object; without it nothing is reserved."""
    population, ledger = private_population(tmp_path / "p", small_counts(40), test=True)
    there = copied(population, f"{s3}/p")

    def refused(self, *arguments, **options):
        raise PermissionError("Access Denied")

    monkeypatch.setattr(fsspec.get_filesystem_class("s3"), "_pipe_file", refused)
    with pytest.raises(PopulationError, match="ledger|cannot be reached: Access Denied"):
        trained(
            there.location, tmp_path, "r", method="histograms", settings={"clusters": 2, "rounds": 2}, test_noise="k"
        )
    assert ledger.balance(population.id).rho_reserved == 0 and not (tmp_path / "runs" / "r").exists()


@pytest.mark.slow
def test_a_run_that_loses_its_storage_can_be_resumed(tmp_path, toy, s3, server):
    population = write_counts(tmp_path / "p", small_counts(30))
    there = copied(population, f"{s3}/p")
    reference = trained(population.path, tmp_path, "reference")
    session = sessions.begin(there.location, tmp_path, "toy", cache_bytes=0)
    try:
        with pytest.raises(PopulationError, match="cannot be reached"), concluding(session):
            session.training.step()
            require_credentials(server, 0)
            session.training.step()
    finally:
        require_credentials(server, float("inf"))
    session = resume(session.run.path, InProcessBackend())
    to_end(session)
    assert bits(session.run) == bits(reference)


@pytest.mark.heavy
@pytest.mark.slow
def test_dask_over_s3_gives_the_same_bits(tmp_path, toy, s3):
    from fedcore.tasks.dask_backend import DaskBackend, dask_client

    population = write_counts(tmp_path / "p", small_counts(400), block=16)
    there = copied(population, f"{s3}/p")
    with dask_client(2) as client:
        far = trained(there.location, tmp_path, "far", DaskBackend(client))
    assert bits(far) == bits(trained(population.path, tmp_path, "local"))


def test_a_ledger_named_by_a_copy_is_the_same(tmp_path, memory):
    ledger = create_ledger(default_ledger_url(), test=True)
    population = write_counts(tmp_path / "p", small_counts(20), ledger=ledger_name())
    ledger.register(population.id)
    ledger.set_budget(population.id, 1.0, 1e-6)
    there = copied(population, memory)
    assert there.id == population.id
    assert ledger_of(there).balance(there.id) == open_ledger(default_ledger_url()).balance(population.id)
