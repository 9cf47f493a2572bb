"""The benchmark of a series: weekly runs through the platform, killed on the way, and what they are compared with."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from benchmarks.series.demo import OURS, make_weeks, planned_kills, result_of, series_in
from benchmarks.series.figure import series_figure
from benchmarks.series.in_time import Way, losses, ways
from benchmarks.series.stream import Stream, StreamSettings
from benchmarks.series.weekly import as_csv
from fedcore.errors import ConfigError
from fedcore.population.store import Population

SMALL = StreamSettings(weeks=5, clients=300, features=20, clusters=2, tokens=30, arrivals=0.42)  # a horizon of 3


def test_ways_end_when_their_budget_does():
    stream = Stream(SMALL, 1)
    stays = list(losses(stream, Way("ends", 1 / 2, runs=2), 50.0, "key"))
    goes_on = list(losses(stream, Way("goes on", 1 / 2), 50.0, "key"))
    assert stays[:2] == goes_on[:2] and stays[2:] != goes_on[2:]
    assert len(ways(3, 5)) == len({way.label for way in ways(3, 5)}) and len(stays) == 5


def test_kills_are_planned_from_the_seed():
    kills = planned_kills(104, 5, 1)
    assert len(kills) == 5 and kills == planned_kills(104, 5, 1) != planned_kills(104, 5, 2)
    assert [kill.week for kill in kills] == sorted({kill.week for kill in kills})
    assert len(planned_kills(3, 9, 1)) == 3


def test_counts_as_csv():
    ids, counts = Stream(SMALL, 1).arrived(2)
    lines = as_csv(ids, counts).splitlines()
    assert lines[0] == "client,token,count" and len(lines) == 1 + counts.nnz
    assert Counter(line.split(",")[0] for line in lines[1:]) == {
        one: int(number) for one, number in zip(ids, np.diff(counts.indptr), strict=True)
    }


def test_the_figure():
    png = series_figure({OURS: [1.0, 0.5], "another": [2.0, 1.0]}, np.array([0.0, 0.5, 1.0]), {"another": 1})
    assert png[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_folder_holds_one_series(tmp_path):
    series_in(tmp_path, SMALL, 1)
    with pytest.raises(ConfigError, match="other settings"):
        series_in(tmp_path, SMALL, 2)


@pytest.mark.heavy
@pytest.mark.slow
def test_a_series_that_is_killed_ends_in_the_same_bits(tmp_path):
    calm, disturbed = (series_in(tmp_path / name, SMALL, 1) for name in ("calm", "disturbed"))
    assert make_weeks(calm, 0) == 0
    assert make_weeks(disturbed, 3) == 3
    assert calm.digest() == disturbed.digest() and calm.done() == disturbed.done()
    assert make_weeks(calm, 0) == 0  # nothing is left to do

    result = result_of(calm, 0)
    assert json.loads((calm.folder / "series.json").read_text()) == result
    assert (calm.folder / "series.png").read_bytes()[:4] == b"\x89PNG"
    assert result["refused"][OURS] == 0 and len(result["loss"][OURS]) == 5

    # Every client's spend, from the pairs (client, run) of the ledger's own account.
    population, ledger = Population.open(calm.place), calm.ledger()
    account = ledger.account(population.id)
    paid: dict[int, Fraction] = {}
    runs_of: Counter[int] = Counter()
    for run_id, run in account.runs.items():
        taken = ledger.participants_of(run_id)
        assert taken is not None
        for cohort in range(1, 6):
            if taken.holds(cohort):
                runs_of[cohort] += 1
                paid[cohort] = paid.get(cohort, Fraction(0)) + sum(Fraction(a.rho) for a in run.spent())
    budget = account.required_budget()
    assert all(spent <= Fraction(budget.rho_max) for spent in paid.values())
    # The founders' first run, from nothing, has another price than warm ones: their last one does not fit with spares.
    assert calm.horizon == 3 and runs_of == {1: 2, 2: 3, 3: 3, 4: 2, 5: 1}
    spent = calm.spent_by_clients()
    assert spent.max() <= 1 and spent[0] == pytest.approx(float(paid[1]) / budget.rho_max)

    # Who has left is gone: neither id nor data.
    gone = {one for week in range(1, 6) for one in calm.stream.left(week)}
    there = {one for index in range(len(population.blocks)) for one in population.client_ids(index).tolist()}
    assert gone and not gone & there and population.versions() == [population.version]
