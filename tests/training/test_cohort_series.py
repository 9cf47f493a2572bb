"""What thirty weekly runs tell of one client together: all releases of a series by cohort, in two worlds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

import numpy as np
import pytest
from fedcore.papers.private_gmm import simulation

from fedcore.population.ingest.ingest import ingest
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.privacy.mechanisms import TestNoise
from fedcore.runs.store import load_run
from fedcore.training import publishing
from fedcore.training.budget import begin_cohorts
from tests.growing import NOISE, Growing
from tests.population.contents import write_csv
from tests.private_gmm import test_run as mixtures

WEEKS, HORIZON, ARRIVES = 30, 10, 4
SETTINGS = {"horizon": HORIZON, "clusters": 2, "rounds": 2, "overseed": 2}


class Recorded(TestNoise):
    """The same values are published in both worlds: those of the first one. sums: what noise was added to, by run and
    name, with the scale of the noise.
    """

    def __init__(self, published: dict[tuple[str, str], np.ndarray]) -> None:
        super().__init__(NOISE)
        self.published = published
        self.sums: dict[tuple[str, str], tuple[np.ndarray, float]] = {}

    def draw(self, planned, run_key, values):
        key = run_key, planned.name
        self.sums[key] = values.copy(), planned.scale
        if key not in self.published:
            self.published[key] = super().draw(planned, run_key, values)
        return self.published[key]


@contextmanager
def noise_of(monkeypatch, recorded: Recorded) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "noise_of", lambda _: recorded)
        yield


def series(folder, monkeypatch, recorded: Recorded, there: bool) -> Growing:
    """Thirty weeks; in one of them somebody comes whose every token is one that nobody else has."""
    growing = Growing(folder, epsilon=4.0)
    with noise_of(monkeypatch, recorded):
        for week in range(1, WEEKS + 1):
            growing.run(f"w{week}", "histograms", "previous" if week > 1 else None, **SETTINGS)
            come = [f"n{week}", f"m{week}"]
            if week + 1 == ARRIVES and there:
                append_canary(growing, come)
            else:
                growing.append(*come, declared=200)
    return growing


def append_canary(growing: Growing, others: list[str]) -> None:
    rows = [(one, token, 1 + (len(one) + token) % 3) for one in others for token in range(3)]
    growing.appended += 1
    file = write_csv(
        growing.folder / f"append-{growing.appended}.csv",
        ["client", "token", "count"],
        [*rows, ("canary", growing.population.features - 1, 10**6)],
    )
    ingest(file, growing.path, append=True, nominal_clients=growing.population.manifest.nominal_clients + 200)


@pytest.mark.heavy
@pytest.mark.slow
def test_thirty_runs_together_tell_no_more_of_a_client_than_its_cohort_has_paid(tmp_path, monkeypatch):
    """Gaussian noise of scale s around sums that differ by D costs D**2 / (2 s**2); given the same published values,
    the costs of all releases add up. That of the client's runs is at most what its cohort was charged, and not next to
    nothing; that of all others is nothing.
    """
    published: dict[tuple[str, str], np.ndarray] = {}
    first, second = Recorded(published), Recorded(published)
    without = series(tmp_path / "without", monkeypatch, first, there=False)
    with_it = series(tmp_path / "with", monkeypatch, second, there=True)
    assert with_it.cohort_of_each()["canary"] == ARRIVES and first.sums.keys() == second.sums.keys()

    realised, told = Fraction(0), set()
    for key, (sums, scale) in first.sums.items():
        other, other_scale = second.sums[key]
        assert scale == other_scale
        difference = [int(value) for value in (other - sums).ravel() if value]
        if difference:
            told.add(int(key[0][1:]))
            realised += Fraction(sum(value * value for value in difference)) / (2 * Fraction(scale) ** 2)
    assert told == set(range(ARRIVES, ARRIVES + HORIZON)), "of the horizon's runs, and of no other"

    account = with_it.ledger.account(with_it.population.id)
    paid = account.totals(ARRIVES).rho_spent
    assert paid / 2 < realised <= paid <= Fraction(account.required_budget().rho_max)
    spent = [growing.ledger.verify(growing.population.id).segments for growing in (without, with_it)]
    assert spent[0] == spent[1]


def _of_search(state) -> float:
    """The largest noise of a second moment of a component."""
    return float(state["pooled_noise"][:, 2].max())


def _of_mixture(state) -> float:
    """The same, in the component's own units."""
    return float(np.sqrt(state["known"][:, 3].max()))


@pytest.mark.slow
@pytest.mark.usefixtures("few_repetitions")
@pytest.mark.parametrize(
    "method, own, found, warm, precision",
    [
        ("private_gmm", mixtures.SETTINGS, "found", lambda state: not state["searches"], _of_search),
        ("private_mixture", {"components": 2, "rounds": 3}, "mixture", lambda state: state["warm"], _of_mixture),
    ],
)
def test_what_retired_cohorts_released_stays_in_a_series_of_mixtures(tmp_path, method, own, found, warm, precision):
    """Four runs that the founders pay for and a fifth one of newcomers alone, which does not search either: it starts
    where the others ended, and nobody pays for that."""
    made, ledger = mixtures.population(tmp_path / "p", test=True, block=1000, leaf=250)
    begin_cohorts(made, ledger)
    settings = {**own, "epsilon": None, "horizon": 4}
    runs = []
    for number in range(5):
        if number == 4:
            people = simulation.sample(mixtures.TRUTH, mixtures.CLIENTS, 1)[0]
            parent = Population.open(made.path)
            with PopulationWriter.extending(parent, nominal_clients=2 * mixtures.CLIENTS) as writer:
                for block in parent.blocks:
                    writer.keep(block)
                writer.write([f"n{one}" for one in range(mixtures.CLIENTS)], (np.arange(mixtures.CLIENTS + 1), people))
                writer.commit(Provenance(sources=("test",)))
        at = Population.open(made.path)
        runs.append(
            mixtures.to_end(
                mixtures.begin(
                    at, tmp_path, method, settings, run_id=f"r{number}", test_noise="k", start_from="previous"
                )
            )
        )
    states = [load_run(one.path).state for one in runs]
    assert [state["outcome"] for state in states] == [found] * 5
    assert [bool(warm(state)) for state in states] == [False] + [True] * 4
    assert [one.info["cohorts"] for one in runs] == [[[1, 1]]] * 4 + [[[2, 2]]]
    noise = [precision(state) for state in states]
    assert noise == sorted(noise, reverse=True) and noise[4] < 0.4 * noise[0]
    account = ledger.account(made.id)
    prices = [Fraction(sum(Fraction(planned["rho"]) for planned in one.info["plan"])) for one in runs]
    assert account.totals(1).rho_spent == sum(prices[:4]) and account.totals(2).rho_spent == prices[4]
    assert account.totals(1).rho_spent <= Fraction(account.required_budget().rho_max)
