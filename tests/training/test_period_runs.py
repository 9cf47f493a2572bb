"""Runs on entries of one client and one calendar period: what a client moves, and what goes together. What they pay for
and whom they read: `test_account_runs.py`.
"""

from __future__ import annotations

import numpy as np
import pytest

from fedcore.errors import ConfigError, PrivacyError
from fedcore.methods.registry import make_method
from fedcore.operations.population_page import population_page
from fedcore.population.ingest.ingest import ingest
from fedcore.population.store import Population
from fedcore.rounds.clients import Answer, Source
from fedcore.rounds.engine import InProcessBackend
from fedcore.rounds.statistics import values
from fedcore.storage.ranges import ranges_of
from fedcore.training.budget import plan_within_budget, public_facts
from tests.command import works
from tests.growing import HEADER, Calendar, entries, label, ranges_of_run
from tests.population.contents import ids_of, write_csv
from tests.toy import GRID

pytestmark = pytest.mark.usefixtures("toy")
MONTHS = 6


# --- what a client moves ----------------------------------------------------------------------------------------------


def people(folder, rows) -> Population:
    folder.mkdir(parents=True, exist_ok=True)
    options = {"period": "month", "time": "when", "first": label(1), "through": label(MONTHS)}
    return ingest(
        write_csv(folder / "rows.csv", HEADER, rows), folder / "p", features=30, clients_per_leaf=4, **options
    )


def first_sums(method, population: Population, months) -> dict[str, np.ndarray]:
    """The exact sums of the first round of a run that reads these months."""
    public = public_facts(method, population, 0.1, 0)
    source = Source(str(population.path), population.version, ranges=population.participants(ranges_of(months)))
    message = method.message(method.init(public))
    return values(InProcessBackend().map_blocks(Answer(method, source), message, range(len(population.blocks))))


def test_a_client_moves_a_sum_by_one_for_each_month_that_is_read_and_by_no_more(tmp_path):
    """Bit-equal if none is. For the sums of every method: `test_period_sensitivity.py`."""
    method, others = make_method("toy", {"private": True, "nominal_clients": 100}), entries("v", {1: 2, 2: 3})
    worlds = [
        people(tmp_path / "without", others),
        people(tmp_path / "with", [*others, *entries("u", {1: 5, 2: 5, 3: 5})]),
    ]
    for window in ({1}, {1, 3}, {1, 2, 3}, {4, 5}):
        one, other = (first_sums(method, world, window)["mean-1"] for world in worlds)
        assert np.linalg.norm(one - other) == np.abs(one - other).max() == GRID * len(window & {1, 2, 3})


# --- month by month ---------------------------------------------------------------------------------------------------


def test_histograms_by_month(tmp_path):
    calendar = Calendar(tmp_path, months=3, window=2)
    session = calendar.run("histograms", clusters=2, rounds=2, horizon=2)
    assert ranges_of_run(session) == ((2, 3),)
    assert session.spec.public.nominal_clients == 200
    assert session.run.info["unit"] == "client_period" and session.spec.public.unit == "client"


def test_months_are_named_by_date(tmp_path):
    """In the statement of a run, in what `budget show` prints and on the page of the population."""
    calendar = Calendar(tmp_path, months=3, window=2, people=True)
    session = calendar.run(horizon=2)
    text = session.statement().text()
    assert "This run used months 2025-02 to 2025-03; others were not used" in text
    assert "The months that have spent most: 2025-02 to 2025-03, mu = " in text
    page, shown = population_page(calendar.path, calendar.folder / "runs"), works("budget", "show", calendar.path).out
    for found in (page, shown):
        assert "months" in found and "2025-02 to 2025-03" in found and "2025-01" in found
    assert "Months so far: 2025-01 to 2025-03." in page


# --- unit and population ----------------------------------------------------------------------------------------------


def test_unit_and_population_go_together(tmp_path):
    for name, unit, period, why in (
        ("a", "client", True, "would promise too much: a client may have many entries"),
        ("b", "record", True, "would promise too much"),
        ("c", "client_period", False, "does not deal clients to calendar periods"),
    ):
        (tmp_path / name).mkdir()
        with pytest.raises(ConfigError, match=why):
            Calendar(tmp_path / name, unit=unit, period=period)
    (tmp_path / "d").mkdir()
    with pytest.raises(ConfigError, match="a window is a number of calendar periods"):
        Calendar(tmp_path / "d", unit="client", period=False)


def test_a_budget_that_was_set_past_the_check_is_refused_by_training(tmp_path):
    calendar = Calendar(tmp_path, unit="")
    calendar.ledger.set_budget(calendar.population.id, 4.0, 1e-6)
    with pytest.raises(ConfigError, match="would promise too much"):
        calendar.run()


def test_thresholds_are_refused_before_anything_is_reserved(tmp_path, monkeypatch):
    calendar = Calendar(tmp_path)
    method = make_method("toy", {"private": True})
    planned = type(method).plan

    def with_threshold(self, public):
        first, *rest = planned(self, public)
        return [type(first)(**{**{n: getattr(first, n) for n in first.__slots__}, "delta": 1e-9}), *rest]

    monkeypatch.setattr(type(method), "plan", with_threshold)
    with pytest.raises(
        PrivacyError, match="'toy' with these settings thresholds .*'mean-1'.* no privacy cost per client and"
    ):
        plan_within_budget(method, calendar.population, calendar.ledger.balance(calendar.population.id), 0)


def test_entries_of_one_client_are_clients_to_everything_else(tmp_path):
    calendar = Calendar(tmp_path, months=2)
    calendar.append(entries("u1", {1: 3}))
    ids = ids_of(calendar.population)
    assert {"2025-01/u1", "2025-02/u1"} <= {*ids} and len(ids) == len({*ids}) == 24
    session = calendar.run(private=False)
    assert session.population.n_clients == 24 and "cohorts" not in session.run.info
