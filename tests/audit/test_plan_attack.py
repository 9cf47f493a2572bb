"""Guesses from repeated `fedcore plan`s whether one client is another one.

A plan is free: it charges nothing, and whoever may plan may plan again. So plans of populations that differ in one
client must be equal, whatever is drawn on the way and however often somebody asks, but for what measures time and
memory. The client that is exchanged here sits where a trial training of the first clients would meet it, and decides
there whether a second component is found, hence which phases such a training has.
"""

import json
from collections.abc import Sequence

import numpy as np
import pytest

from fedcore.planning import calibration, run_plan
from fedcore.planning.run_plan import Resources, plan_run
from fedcore.population.blocks import leaves
from fedcore.population.manifest import Provenance
from fedcore.population.writer import PopulationWriter
from fedcore.privacy.ledger.ledger import create_ledger, default_ledger_url
from tests import sessions
from tests.audit.bounds import CONFIDENCE, mu_of, upper_rate

ROWS, MANY = 20, 1200  # of each client, and of one of them in a neighbour
OTHERS = 2  # of the first clients are in the second component, beside the one in question
SETTINGS = {"components": 2, "radius": 12.0, "sigma_min": 0.2, "covariance": "spherical", "least_weight": 0.39}
EPSILON, DELTA = 0.8, 1e-6
MEASURED = ("seconds", "bytes_per_worker", "bytes_of_flow", "pace", "calibration")


def neighbours(folder, clients: int) -> list:
    """Two populations of so many clients, of which one is another in the second; the second without it, and with
    MANY rows of it."""
    ledger = create_ledger(default_ledger_url())
    x = np.array([4.0, 0.0]) + 0.3 * np.random.Generator(np.random.Philox(1)).normal(size=(clients, ROWS, 2))
    made = []
    for name, there in (("absent", OTHERS), ("present", OTHERS + 1), ("removed", OTHERS), ("many", OTHERS + 1)):
        rows = x.copy()
        rows[:there, :, 0] -= 8.0
        held = list(np.delete(rows, OTHERS, axis=0) if name == "removed" else rows)
        if name == "many":
            held[OTHERS] = np.resize(held[OTHERS], (MANY, 2))
        with PopulationWriter(
            folder / name / "p",
            "rows",
            2,
            clients_per_block=-(-clients // 1024) * 1024,
            nominal_clients=clients,
            ledger={"id": ledger.id, "url": ledger.url},
        ) as writer:
            ptr = np.cumsum([0, *map(len, held)])
            writer.write([f"c{number}" for number in range(len(held))], (ptr, np.concatenate(held).astype(np.float32)))
            population = writer.commit(Provenance(sources=("test",)))
        ledger.register(population.id)
        ledger.set_budget(population.id, EPSILON, DELTA, relation="replace_one")
        made.append(population)
    return made


def plans(population, folder, times: int, limit: float) -> list[dict]:
    request = sessions.request_for(population, folder, "private_gmm", SETTINGS)
    return [plan_run(request, Resources(workers=0), limit=limit) for _ in range(times)]


def timeless(plan: dict) -> str:
    """What is neither a time nor a measurement of memory."""
    kept = {name: value for name, value in plan.items() if not any(part in name for part in MEASURED)}
    kept["phases"] = [{name: row[name] for name in ("phase", "passes")} for row in plan["phases"]]
    tried = plan["calibration"]["phases"]
    kept["tried"] = [{name: row[name] for name in ("phase", "count", "statistics", "memory")} for row in tried]
    return json.dumps(kept, sort_keys=True)


def mu_shown(absent: Sequence[bool], present: Sequence[bool]) -> float:
    """What mu must at least be, from how often each side alarms: the threshold is not chosen by looking."""
    alpha = (1 - CONFIDENCE) / 2
    rates = (
        (sum(absent), len(present) - sum(present)),
        (len(absent) - sum(absent), sum(present)),  # the same guess, the other way round
    )
    shown = [mu_of(upper_rate(fp, len(absent), alpha), upper_rate(fn, len(present), alpha)) for fp, fn in rates]
    return max(0.0, *map(float, shown))


def attack(folder, clients: int, times: int, limit: float = 1.0) -> float:
    """The lower bound on mu from so many plans of each of two neighbours. All, and one of others, must be equal."""
    one, two, *others = neighbours(folder, clients)
    seen = [plans(population, folder, times, limit) for population in (one, two)]
    found = [[any("leaf" in row["phase"] for row in plan["phases"]) for plan in each] for each in seen]
    shown = mu_shown(*found)
    different = {timeless(plan) for each in [*seen, *(plans(p, folder, 1, limit) for p in others)] for plan in each}
    print(f"leaf phases in {sum(found[0])} and {sum(found[1])} of {times}: mu >= {shown:.2f}; {len(different)} plans")
    assert len(different) == 1, "plans of neighbours, or two plans of one population, differ"
    return shown


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Without the fresh process that measures imports."""
    monkeypatch.setattr(calibration, "started_process", lambda method, private: (0.5, 10**8, 2 * 10**8))


def test_the_bound_counts():
    """2 and 60 of 60 show what they showed when the leak was found; no difference shows nothing."""
    two = [True] * 2 + [False] * 58
    assert mu_shown(two, [True] * 60) == pytest.approx(2.08, abs=0.05)
    assert mu_shown([True] * 60, two) == pytest.approx(2.08, abs=0.05)
    assert mu_shown(two, two) == mu_shown([False] * 60, [False] * 60) == mu_shown([True] * 60, [True] * 60) == 0.0


def test_a_plan_says_nothing_of_a_client(tmp_path):
    assert attack(tmp_path, clients=200, times=2, limit=0.1) == 0.0


def test_a_trial_with_the_first_clients_is_caught(tmp_path, monkeypatch):
    """As plans were made once: with the clients of the first leaf, and with the phases that were met."""
    made, nominal = [], run_plan.public_shape

    def first_leaf(method, public, shape, clients, leaf=0):
        return next(leaves(made[-1].read(0), made[-1].clients_per_leaf))

    def seen(method, population, clients, rows):
        made.append(population)
        return nominal(method, population, clients, rows)

    monkeypatch.setattr(calibration, "FIRST_BYTES", 0)  # the fewest clients, among whom one decides
    monkeypatch.setattr(run_plan, "public_shape", seen)
    monkeypatch.setattr(calibration, "stand_ins", first_leaf)
    monkeypatch.setattr(calibration, "_scheduled", lambda phases, met: tuple(met.values()))
    with pytest.raises(AssertionError, match="plans of neighbours"):
        attack(tmp_path, clients=200, times=1, limit=0.1)
    told = [
        plans(population, tmp_path, 1, 0.1)[0]["phases"] for population in list({p.path: p for p in made}.values())[:2]
    ]
    assert [any("leaf" in row["phase"] for row in phases) for phases in told] == [False, True]


@pytest.mark.heavy
@pytest.mark.slow
def test_many_plans_add_up_to_nothing(tmp_path):
    assert attack(tmp_path, clients=2000, times=8) == 0.0


@pytest.mark.slow
@pytest.mark.heavy
def test_sixty_plans_of_each_of_two_large_neighbours_add_up_to_nothing(tmp_path):
    assert attack(tmp_path, clients=20_000, times=60) == 0.0
