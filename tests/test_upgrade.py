"""Hosts of two versions meet under a live schedule: what the older one does not know it refuses by name, and nothing is
lost: what was charged and published stays, and the run goes on where somebody knows it.
"""

import json
import sqlite3
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import fedcore
from fedcore.errors import ConfigError, LedgerError, LedgerTampered, RunError
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs import digests as run_digests
from fedcore.runs.store import Run, load_run
from fedcore.training.session import concluding, resume
from tests.command import private_population
from tests.conftest import edit_record, small_counts, write_population
from tests.sessions import begin as begin_any
from tests.sessions import to_end, train
from tests.test_compatibility import contents
from tests.training.test_session import SMALL, begin, bits, interrupted

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


# --- the next minor version, in a process of its own ------------------------------------------------------------------

NEXT = """
import sys
import fedcore
fedcore.__version__, arithmetic = sys.argv.pop(1), sys.argv.pop(1)
from fedcore.methods.registry import method_class
if arithmetic:
    method_class(arithmetic.partition("=")[0]).arithmetic_version = arithmetic.partition("=")[2]
from fedcore.cli import main
sys.argv[0] = "fedcore"
main()
"""
EM = {"components": 2, "covariance": "diag", "algorithm": "em", "max_passes": 4, "tol": 0.0}


def next_version(*command, arithmetic: str = "", version: str = "0.2.0") -> subprocess.Popen:
    """`fedcore COMMAND` of another version. arithmetic: "METHOD=VERSION" of a method that it computes otherwise."""
    called = [sys.executable, "-c", NEXT, version, arithmetic, *map(str, command)]
    return subprocess.Popen(called, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen) -> SimpleNamespace:
    out, err = process.communicate(timeout=300)
    return SimpleNamespace(code=process.returncode, out=out, err=err)


@pytest.fixture(params=["histograms", "federated_em"])
def upgraded(request, tmp_path, monkeypatch):
    """(method, path of a run that was interrupted after a round, bits of the same run that was not)."""
    rows = np.random.default_rng(0).normal(size=(60, 2)) + np.repeat([[0.0], [6.0]], 30, axis=0)
    runs = {}
    for place in ("whole", "parts"):
        folder = tmp_path / place
        folder.mkdir()
        monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{folder / 'ledger.sqlite'}")
        if request.param == "histograms":
            asked = (private_population(folder / "p", small_counts(20), test=True)[0], folder, "histograms", SETTINGS)
            more = {"test_noise": "same"}
        else:
            ids, data = [f"c{number}" for number in range(20)], (np.arange(0, 61, 3), rows)
            asked = (write_population(folder / "p", "rows", 2, ids, data), folder, "federated_em", EM)
            more = {}
        if place == "whole":
            runs[place] = bits(train(*asked, **more))
        else:
            session = begin_any(*asked, **more)
            runs[place] = session.run.path
            interrupted(session, 1)
    return request.param, runs["parts"], runs["whole"]


@pytest.mark.slow
def test_the_next_version_finishes_a_run_with_the_same_bits(upgraded):
    method, path, whole = upgraded
    assert Run.open(path).round == 1
    done = ended(next_version("resume", path, "--local", "--json"))
    assert done.code == 0, done.err
    assert json.loads(done.out)["status"] == "finished" and bits(load_run(path)) == whole


@pytest.mark.slow
def test_a_next_version_of_another_arithmetic_says_which_one_finishes_the_run(upgraded):
    method, path, whole = upgraded
    before = contents(path.parent.parent)
    refused = ended(next_version("resume", path, "--local", arithmetic=f"{method}=of the next version"))
    assert refused.code == 2 and contents(path.parent.parent) == before
    assert f"Finish it with fedcore {fedcore.__version__}, the version that started it: fedcore resume" in refused.err
    assert ("fedcore runs abandon" in refused.err) == (method == "histograms")
    again = to_end(resume(path, InProcessBackend()))
    assert again.head["status"] == "finished" and bits(again) == whole


@pytest.mark.slow
def test_a_next_version_of_another_arithmetic_gives_the_budget_back(world):
    interrupted(world.session, 0)
    done = ended(next_version("runs", "abandon", world.path, arithmetic="histograms=of the next version"))
    balance = world.ledger.verify(world.population.id)
    assert done.code == 0 and not balance.open_runs and balance.rho_reserved == 0 < balance.rho_spent


@pytest.mark.slow
def test_hosts_of_two_versions_that_resume_one_run_end_with_the_same_bits(upgraded):
    """One of them does, or one after the other; whoever comes too late is refused by name."""
    method, path, whole = upgraded
    both = [next_version("resume", path, "--local", version=one) for one in (fedcore.__version__, "0.2.0")]
    done = [ended(process) for process in both]
    assert sorted(one.code for one in done) in ([0, 0], [0, 2]), [one.err for one in done]
    assert all(one.err.startswith(("RunBusy", "RunError")) for one in done if one.code), [one.err for one in done]
    assert load_run(path).head["status"] == "finished" and bits(load_run(path)) == whole


@pytest.mark.slow
@pytest.mark.parametrize("arithmetic", ["", "histograms=of the next version"])
def test_a_host_of_the_next_version_does_not_disturb_a_run_that_is_under_way(world, arithmetic):
    refused = ended(next_version("resume", world.path, "--local", arithmetic=arithmetic))
    assert refused.code == 2 and refused.err.startswith("RunBusy"), refused.err
    assert to_end(world.session).head["status"] == "finished"
    assert set(world.ledger.verify(world.population.id).releases) == {"published"}
