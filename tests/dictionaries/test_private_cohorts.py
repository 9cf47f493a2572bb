"""Private dictionaries where the budget is kept by cohort: horizons, who is asked, and clients who leave."""

from fractions import Fraction

import numpy as np
import pytest

from fedcore.errors import Waiting
from fedcore.methods.dictionary_learning.operators import random_atoms
from fedcore.population.erasing import forget
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.privacy.ledger.ledger import create_ledger
from fedcore.runs.store import load_run
from fedcore.training.budget import begin_cohorts
from tests import sessions
from tests.growing import price_of, published, ranges_of_run, to_end

D, COME = 5, 12
SETTINGS = {"private": True, "global_atoms": 4, "sparsity": 2, "rounds": 1, "horizon": 2}


class Series:
    """A population of rows that grows by a cohort before each run."""

    def __init__(self, folder, canary_in=None):
        self.folder, self.canary_in, self.cohort = folder, canary_in, 1
        folder.mkdir()
        self.atoms = random_atoms(np.random.default_rng(0), 4, D)
        self.ledger = create_ledger(f"sqlite:///{folder / 'ledger.sqlite'}", test=True)
        named = {"id": self.ledger.id, "url": self.ledger.url}
        self.path = folder / "p"
        with PopulationWriter(
            self.path, "rows", D, clients_per_leaf=1, clients_per_block=16, nominal_clients=COME, ledger=named
        ) as writer:
            made = self._commit(writer)
        self.ledger.register(made.id)
        self.ledger.set_budget(made.id, 20.0, 1e-6)
        begin_cohorts(made, self.ledger)

    @property
    def population(self):
        return Population.open(self.path)

    def _commit(self, writer):
        generator, there = np.random.default_rng(self.cohort), self.canary_in == self.cohort
        rows = [generator.normal(size=(7, 4)) * (generator.random((7, 4)) < 0.5) @ self.atoms for _ in range(COME)]
        rows += [np.full((3, D), 9.0)] * there
        ptr = np.concatenate([[0], np.cumsum([len(own) for own in rows])])
        names = [f"c{self.cohort}-{number}" for number in range(COME)] + ["canary"] * there
        writer.write(names, (ptr, np.concatenate(rows)))
        return writer.commit(Provenance(sources=("test",)))

    def come(self):
        self.cohort += 1
        parent = self.population
        with PopulationWriter.extending(parent, nominal_clients=COME * self.cohort) as writer:
            for block in parent.blocks:
                writer.keep(block)
            self._commit(writer)

    def run(self, name, **changes):
        named = {"run_id": name, "start_from": "previous", "test_noise": "k"}
        return to_end(sessions.begin(self.path, self.folder, "dictionaries", SETTINGS | changes, **named))


@pytest.mark.slow
def test_each_cohort_pays_for_its_horizon_and_moves_no_other_run(tmp_path):
    series = {there: Series(tmp_path / str(there), canary_in=2 if there else None) for there in (True, False)}
    runs = {True: [], False: []}
    for there, one in series.items():
        for week in range(1, 5):
            runs[there].append(one.run(f"w{week}"))
            one.come()
    expected = [((max(week - 1, 1), week),) for week in range(1, 5)]  # horizon 2
    for there in (True, False):
        assert [ranges_of_run(run) for run in runs[there]] == expected
        account = series[there].ledger.account(series[there].population.id)
        prices = [price_of(run) for run in runs[there]]
        for cohort in range(2, 4):
            spent = account.totals(cohort).rho_spent
            assert spent == prices[cohort - 1] + prices[cohort]
            assert spent <= Fraction(account.required_budget().rho_max)
    # The canary is in the second and the third run. The fourth begins with atoms that it moved; its scale is equal
    differ = [published(one) != published(other) for one, other in zip(runs[True], runs[False], strict=True)]
    assert differ == [False, True, True, True]
    first = [next(iter(published(run).items())) for there in (True, False) for run in runs[there][3:]]
    assert first[0] == first[1] and first[0][0] == "scale"
    states = [load_run(run.run.path).state for run in runs[False]]
    assert [round(float(state["step"]), 3) for state in states] == [1.6] + [0.4] * 3


@pytest.mark.slow
def test_runs_go_on_without_clients_who_were_forgotten(tmp_path):
    series, other = Series(tmp_path / "a"), Series(tmp_path / "b")
    for one in (series, other):
        one.run("first")
        one.come()
    gone = [f"c2-{number}" for number in range(3)]
    forget(series.population, clients=gone)
    left, whole = (one.run("second", cohorts="2", horizon=None, epsilon=2.0) for one in (series, other))
    assert published(left) != published(whole) and left.run.info["nominal_clients"] == COME
    sums = [published(one).keys() for one in (left, whole)]
    assert sums[0] == sums[1] and left.run.status == "finished"
    forget(series.population, cohorts_to=1)
    with pytest.raises(Waiting):
        series.run("third", cohorts="1", horizon=None, epsilon=2.0)
