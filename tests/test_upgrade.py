"""Hosts of two versions meet under a live schedule: what the older one does not know it refuses by name, and nothing is
lost: what was charged and published stays, and the run goes on where somebody knows it.
"""

import sqlite3
from types import SimpleNamespace

import pytest

import fedcore
from fedcore.errors import ConfigError, LedgerError, LedgerTampered, RunError
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs import digests as run_digests
from fedcore.runs.store import load_run
from fedcore.training.session import concluding, resume
from tests.command import private_population
from tests.conftest import edit_record, small_counts
from tests.sessions import to_end
from tests.training.test_session import SMALL, begin, interrupted

SETTINGS = {"epsilon": 1.0, **SMALL}


def edit(ledger, statement):
    """What a newer version on another host does to the ledger."""
    with sqlite3.connect(ledger.url.removeprefix("sqlite:///")) as connection:
        assert connection.execute(statement).rowcount > 0
    connection.close()


@pytest.fixture
def world(tmp_path):
    """A population, its ledger, and a private run in the middle of its rounds."""
    population, ledger = private_population(tmp_path / "p", small_counts(20))
    session = begin(population, tmp_path, settings=SETTINGS)
    session.training.step()
    return SimpleNamespace(population=population, ledger=ledger, session=session, path=session.run.path)


def refused_in_the_middle(world, match):
    """The older host's run is refused at its next charge."""
    with pytest.raises(LedgerError, match=match) as told, concluding(world.session):
        while world.session.training.step() is not None:
            pass
    assert not isinstance(told.value, LedgerTampered) and "newer" in str(told.value)
    assert load_run(world.path).head["status"] == "failed"  # which can be resumed


def goes_on(world):
    """With this host upgraded too: every release was drawn once. What held the run could not give it back, and lives in
    this test."""
    run = to_end(resume(world.path, InProcessBackend(), take_over=True))
    balance = world.ledger.verify(world.population.id)
    assert run.head["status"] == "finished" and set(balance.releases) == {"published"}
    assert balance.rho_reserved == 0 and not balance.open_runs


def test_a_ledger_that_a_newer_version_has_migrated(world):
    edit(world.ledger, "UPDATE fedcore_ledger SET schema = 3")
    refused_in_the_middle(world, "has schema 3; this version of fedcore knows 2")
    for attempt in (
        lambda: resume(world.path, InProcessBackend()),
        lambda: begin(world.population, world.path.parent.parent, run_id="s", settings=SETTINGS),
    ):
        with pytest.raises(LedgerError, match="has schema 3"):
            attempt()
    assert [path.name for path in world.path.parent.iterdir()] == ["r"]
    edit(world.ledger, "UPDATE fedcore_ledger SET schema = 2")
    goes_on(world)


ACCOUNTS, RUNS = "fedcore_accounts", "fedcore_runs"
NEWER = {"mode": (ACCOUNTS, "by moon"), "currency": (ACCOUNTS, "shells"), "noise": (RUNS, "x")}


@pytest.mark.parametrize("column", NEWER)
def test_an_account_or_run_of_a_kind_that_only_a_newer_version_knows(world, column):
    table, value = NEWER[column]
    with sqlite3.connect(world.ledger.url.removeprefix("sqlite:///")) as connection:
        was = connection.execute(f"SELECT {column} FROM {table}").fetchone()[0]
    connection.close()
    edit(world.ledger, f"UPDATE {table} SET {column} = '{value}'")
    refused_in_the_middle(world, f"{column} '{value}'.*a newer fedcore")
    edit(world.ledger, f"UPDATE {table} SET {column} = {'NULL' if was is None else repr(was)}")
    goes_on(world)


def test_an_interrupted_run_of_a_newer_version_is_left_to_it(world):
    """Its reservation stays, and runs of this version go on beside it."""
    interrupted(world.session, 0)
    reserved = world.ledger.balance(world.population.id).rho_reserved
    edit_record(world.path, lambda info: info.update(needs=["moons"]))
    with pytest.raises(RunError, match="needs moons, which this fedcore does not know"):
        resume(world.path, InProcessBackend())
    mine = begin(
        world.population, world.path.parent.parent, run_id="mine", settings=SETTINGS, start_from="previous", seed=1
    )
    to_end(mine)
    balance = world.ledger.verify(world.population.id)
    assert balance.rho_reserved == reserved > 0 and balance.open_runs == ("r",)
    edit_record(world.path, lambda info: info.pop("needs"))
    with pytest.raises(RunError, match="was changed"):  # the ledger keeps what run.json was
        resume(world.path, InProcessBackend())


def test_an_interrupted_run_of_another_arithmetic_is_left_to_it(world):
    interrupted(world.session, 0)
    before = world.ledger.head(world.population.id)
    edit_record(world.path, lambda info: info.update(kernel="a newer one"))
    with pytest.raises(RunError, match="continuing with others would change its result"):
        resume(world.path, InProcessBackend())
    assert world.ledger.head(world.population.id) == before


def test_a_run_of_a_share_is_nothing_to_a_host_without_shares(tmp_path, monkeypatch):
    population, ledger = private_population(tmp_path / "p", small_counts(20))
    ledger.divide(population.id, {"a": 1})
    session = begin(population, tmp_path, settings=SETTINGS, share="a")
    interrupted(session, 1)
    with monkeypatch.context() as patch:
        patch.setattr(run_digests, "KNOWN", frozenset({"cohorts"}))
        with pytest.raises(RunError, match="needs shares, which this fedcore does not know"):
            resume(session.run.path, InProcessBackend())
    to_end(resume(session.run.path, InProcessBackend()))
    assert set(ledger.verify(population.id).releases) == {"published"}


def test_dask_workers_of_another_version_are_refused_by_name():
    from fedcore.tasks.dask_backend import _refuse_version

    mine = fedcore.__version__
    _refuse_version({"a": mine, "b": mine}, mine)
    _refuse_version({}, mine)
    with pytest.raises(ConfigError, match=f"1 Dask workers do not have fedcore {mine} .*: b has 0.0.1"):
        _refuse_version({"a": mine, "b": "0.0.1"}, mine)
    with pytest.raises(ConfigError, match="b has another version"):  # one that cannot even tell
        _refuse_version({"a": mine, "b": AttributeError("_version")}, mine)
