"""Entries of calendar periods beyond one process: Dask workers, Prefect flows, a ledger in PostgreSQL."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction

import pytest
from fedcore.tasks.dask_backend import DaskBackend, dask_client

from fedcore.errors import BudgetExceeded, Waiting
from fedcore.privacy.ledger.ledger import open_ledger
from fedcore.runs.store import load_run
from tests.faults.month import Server
from tests.faults.place import same_result
from tests.flows.test_secure_hosts import postgres  # noqa: F401  a fixture
from tests.growing import Calendar, entries, price_of, published, ranges_of_run

SMALL = {"clients_per_leaf": 4, "clients_per_block": 8}
ASKED = {"clusters": 2, "rounds": 2, "horizon": 2}


@pytest.fixture(scope="module")
def workers():
    with dask_client(2) as client:
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("method, asked", [("toy", {"horizon": 2}), ("histograms", ASKED)])
def test_two_workers_change_no_bit_of_three_months(toy, tmp_path, workers, method, asked):
    """The window moves on, late rows come, the last run starts from the one before."""
    ends = []
    for name in ("one", "two"):
        calendar, runs = Calendar(tmp_path / name, months=2, window=2, **SMALL), []
        for month in (2, 3):
            backend = DaskBackend(workers) if name == "two" else None
            start = str(runs[-1].run.path) if runs and method == "histograms" else None
            runs.append(calendar.run(method, f"month-{month}", start, backend, **asked))
            assert ranges_of_run(runs[-1]) == ((month - 1, month),) and len(calendar.population.blocks) > 2
            calendar.append(entries("late", {1: 4, month: 5}), months=1)
        balance = calendar.ledger.verify(calendar.population.id)
        ends.append(([published(run) for run in runs], balance.segments, balance.lifetime_spent))
    assert ends[0] == ends[1]


FLOW = """
import sys
from fedcore.flows.train import FLOWS, Compute
from fedcore.methods.histograms.config import HistogramsConfig

population, runs, name, start, settings = sys.argv[1:]
ended = FLOWS["histograms"](population=population, runs=runs, run_id=name, start_from=start or None, test_noise="a key",
    config=HistogramsConfig.model_validate_json(settings), compute=Compute(workers=2))
print(type(ended).__name__)
"""


@pytest.mark.heavy
@pytest.mark.prefect
def test_months_in_postgresql_through_prefect_and_dask(postgres, tmp_path):  # noqa: F811
    """To the last bit what one process and a file give, and every month has paid what an independent sum says."""
    url = f"postgresql+psycopg://owner@{postgres}"
    near = Calendar(tmp_path / "near", months=2, window=2, **SMALL)
    far = Calendar(tmp_path / "far", months=2, window=2, url=url, **SMALL)
    server = Server(tmp_path / "server")
    server.start()
    try:
        spent, lifetime, start = dict.fromkeys(range(1, 5), Fraction(0)), Fraction(0), ""
        for month in range(2, 5):
            name = f"month-{month}"
            command = (str(far.path), str(tmp_path / "far" / "runs"), name, start and str(far.folder / "runs" / start))
            done = subprocess.run(
                [sys.executable, "-c", FLOW, *command, json.dumps(ASKED)],
                env=server.environment | {"PREFECT_API_URL": server.api},
                capture_output=True,
                text=True,
                timeout=200,
            )
            assert done.stdout.split()[-1:] == ["str"], done.stderr[-3000:]
            session = near.run("histograms", name, str(near.folder / "runs" / start) if start else None, **ASKED)
            assert same_result(load_run(far.folder / "runs" / name), load_run(session.run.path))
            assert ranges_of_run(session) == ((month - 1, month),)
            for read in (month - 1, month):
                spent[read] += price_of(session)
            lifetime, start = lifetime + 4 * price_of(session), name
            for calendar in (near, far):
                calendar.append(entries("late", {1: month}), months=1 if month < 4 else 0)
    finally:
        server.kill()
    ledger, population = open_ledger(url), far.population
    balance = ledger.verify(population.id)
    assert balance == ledger.balance(population.id) and balance.rho_reserved == 0
    assert balance.segments == near.ledger.verify(near.population.id).segments
    assert max(spent.values()) <= far.rho_max < max(spent.values()) * Fraction(1 + 1e-6)
    for month in spent:
        (piece,) = [one for one in balance.segments if one.first <= month <= one.last]
        assert spent[month] <= Fraction(piece.rho_spent) <= spent[month] * Fraction(1 + 1e-12)
    assert lifetime <= Fraction(balance.lifetime_spent) <= lifetime * Fraction(1 + 1e-12)
    assert population.verify().problems == ()
    assert ranges_of_run(far.run("histograms", "last", **ASKED)) == ((1, 1), (4, 4))  # what is left
    with pytest.raises(Waiting, match="Nothing was charged"):
        far.run("histograms", "none", **ASKED)
    with pytest.raises(BudgetExceeded):
        far.run("histograms", "named", cohorts="3", **ASKED)
