"""A run is decided once: what it reads is opened and verified once, and resolving reads nothing."""

import shutil
from collections import Counter

import pytest

from fedcore.errors import BudgetExceeded, LedgerRolledBack
from fedcore.population.store import Population
from fedcore.privacy.ledger import ledger as ledgers
from fedcore.rounds.engine import InProcessBackend
from fedcore.training import session, spec
from fedcore.training.session import start_run
from fedcore.training.spec import open_inputs, resolve
from tests.command import fedcore, private_population
from tests.conftest import small_counts
from tests.sessions import to_end
from tests.training.test_session import SMALL, begin, request_for


@pytest.fixture
def calls(monkeypatch) -> Counter[str]:
    """How often each step of a beginning is taken."""
    found: Counter[str] = Counter()

    def count(where, name, called):
        function = getattr(where, name)

        def counted(*arguments, **named):
            found[called] += 1
            return function(*arguments, **named)

        monkeypatch.setattr(where, name, counted)

    count(Population, "open", "population")
    count(ledgers, "open_ledger", "ledger")
    count(spec, "find_warm_start", "start")
    count(spec, "make_method", "method")
    for where in (spec, session):
        count(where, "resolve", "resolve")
    return found


def test_a_run_opens_what_it_reads_once_and_is_resolved_once(tmp_path, calls):
    population, _ = private_population(tmp_path / "p", small_counts())
    first = to_end(begin(population, tmp_path, run_id="first", settings={"epsilon": 1.0, **SMALL}))
    calls.clear()
    begin(population, tmp_path, settings={"epsilon": 1.0, **SMALL}, start_from=str(first.path))
    assert calls == {"population": 1, "ledger": 1, "start": 1, "method": 1, "resolve": 1}


def test_so_does_the_command(tmp_path, calls):
    population, _ = private_population(tmp_path / "p", small_counts())
    calls.clear()
    asked = [part for name, value in SMALL.items() for part in ("--set", f"{name}={value}")]
    made = fedcore("train", "histograms", population.path, "--local", "--runs", tmp_path / "runs", *asked)
    assert made.code == 0, made.err
    assert {name: calls[name] for name in ("ledger", "start", "resolve")} == {"ledger": 1, "start": 1, "resolve": 1}


def test_resolving_reads_nothing(tmp_path):
    population, _ = private_population(tmp_path / "p", small_counts())
    request = request_for(population, tmp_path)
    inputs = open_inputs(request)
    one = resolve(request, inputs)
    shutil.rmtree(population.path)
    for file in tmp_path.glob("*.sqlite*"):
        file.unlink()
    other = resolve(request, inputs)
    assert (one.releases, one.public, one.participants) == (other.releases, other.public, other.participants)


def test_what_was_spent_since_counts_when_a_resolved_run_reserves(tmp_path):
    population, ledger = private_population(tmp_path / "p", small_counts())
    request = request_for(population, tmp_path)
    resolved = resolve(request, open_inputs(request))  # all that is left
    begin(population, tmp_path, run_id="between", settings={"epsilon": 1.0, **SMALL})
    before = ledger.balance(population.id)
    with pytest.raises(BudgetExceeded):
        start_run(request, InProcessBackend(), stamp="then", spec=resolved)
    assert ledger.balance(population.id) == before and not (tmp_path / "runs" / "r").exists()


def test_a_ledger_that_went_back_since_is_refused(tmp_path):
    population, _ = private_population(tmp_path / "p", small_counts())
    request = request_for(population, tmp_path)
    shutil.copy(tmp_path / "ledger.sqlite", tmp_path / "copy")
    ended = to_end(begin(population, tmp_path, run_id="between", settings={"epsilon": 1.0, **SMALL}))
    resolved = resolve(request, open_inputs(request))
    shutil.rmtree(ended.path)  # the population alone remembers
    shutil.copy(tmp_path / "copy", tmp_path / "ledger.sqlite")
    with pytest.raises(LedgerRolledBack):
        start_run(request, InProcessBackend(), stamp="then", spec=resolved)
