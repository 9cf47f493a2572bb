"""Attacks on a canary in private_mixture: every release of a run that goes its whole way, found by the plan.

The messages are those of a run on rows of nobody without noise (`tests.private_mixture.test_sensitivity`), of numbers
alone or with categories and steps; what stands beside the canary are a few clients of one row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from fedcore.methods.private_mixture import PrivateMixture
from fedcore.privacy.gdp import epsilon_of
from fedcore.privacy.mechanisms import TestNoise
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import PublicFacts
from fedcore.training.publishing import LedgerPublisher
from tests.audit.attack import SABOTAGES, Build, evidence
from tests.audit.bounds import epsilon_lower_bound, mu_lower_bound
from tests.private_mixture import test_mixed_sensitivity as mixed
from tests.private_mixture.test_sensitivity import CENTRES, D, clients_of_many_rows, no_cut, rounds_of
from tests.private_mixture.worlds import block_of, sums

MU, DELTA = 1.5, 1e-5
RHO = MU**2 / 2


@dataclass(frozen=True)
class Attacked:
    """method, rounds: of the run; features: columns of the rows; others: beside the canary, a client of 3 rows."""

    method: PrivateMixture
    rounds: list
    features: int
    others: list[np.ndarray]
    canary: np.ndarray

    @property
    def plan(self) -> dict[str, PlannedRelease]:
        public = PublicFacts("rows", self.features, 1024, 900, None, RHO, 0, "add_or_remove_one", None, "client")
        return {planned.name: planned for planned in self.method.plan(public)}


def answered(x: np.ndarray, codes: list[int]) -> np.ndarray:
    """Rows (n, D) of numbers with the same answers to all categories."""
    return np.column_stack([x, mixed.entries(np.tile(codes, (len(x), 1)))])


CANARY = np.repeat((CENTRES[0] + np.array([0.0, 1.5, 2.5]))[None], 3, axis=0)
OTHERS = [CENTRES[number % 3][None] + 0.2 * number for number in range(6)]
NUMBERS = Attacked(*rounds_of("client", "add_or_remove_one"), D, OTHERS, CANARY)
MIXED = {
    name: Attacked(
        *mixed.rounds_of("client", "add_or_remove_one", steps=steps),
        mixed.COLUMNS,
        [answered(own, mixed.CODES[number % 3].tolist()) for number, own in enumerate(OTHERS)],
        answered(CANARY, [0, 2, 1]),
    )
    for name, steps in (("categories", False), ("categories and steps", True))
}
GAP = np.array([False, True, False])
WITH_GAPS = Attacked(
    NUMBERS.method,
    NUMBERS.rounds,
    D,
    [np.where(GAP & (number % 2 == 0), np.nan, own) for number, own in enumerate(OTHERS)],
    np.where(GAP & (np.arange(3) == 1)[:, None], np.nan, CANARY),
)
RUNS = {"numbers": NUMBERS, "gaps": WITH_GAPS, **MIXED}
PLAN = NUMBERS.plan
FAR = np.array([[3000.0, 0.0, 4000.0]])
SLOPPY = Build(sabotage=no_cut, noise=lambda number: TestNoise(f"far {number}"))


def worlds(run: Attacked, canary: np.ndarray | None = None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By planned name the exact sums without and with the canary."""
    found, plan, joins = {}, run.plan, run.canary if canary is None else canary
    for message, _ in run.rounds:
        absent, present = (sums(run.method, message, block_of(own)) for own in (run.others, [*run.others, joins]))
        found |= {name: (absent[name], present[name]) for name in message.names if name in plan}
    return found


def changes(run: Attacked, canary: np.ndarray | None = None) -> dict[str, float]:
    """By planned name the squared norm of what the canary changes."""
    return {name: float(((p - a).astype(float) ** 2).sum()) for name, (a, p) in worlds(run, canary).items()}


def one_run(build: Build, plan, exact, world: int, number: int) -> float:
    """The attacker's statistic after all releases; noise of another key in each world."""
    noise = build.noise(2 * number + world)
    publisher, total = LedgerPublisher(build.shelf(), None, SimpleNamespace(id="run"), None, noise), 0.0
    for name, (absent, present) in exact.items():
        seen = [publisher.release(plan[name], (absent, present)[world]) for _ in range(build.attempts)]
        total += evidence(seen, absent, present, plan[name].scale)
    return total


def attack(run: Attacked, build: Build, pairs: int, canary=None, names=None) -> tuple[np.ndarray, np.ndarray]:
    plan = run.plan
    with build.sabotage():
        exact = {name: both for name, both in worlds(run, canary).items() if names is None or name in names}
    made = [[one_run(build, plan, exact, world, number) for world in (0, 1)] for number in range(pairs)]
    absent, present = np.array(made).T
    return absent, present


def priced(run: Attacked, names) -> float:
    """mu of these releases."""
    return math.sqrt(2 * sum(planned.rho for name, planned in run.plan.items() if name in names))


of_runs = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


@of_runs
def test_every_planned_release_is_attacked(run):
    asked = {planned.name for _, releases in run.rounds for planned in releases}
    assert set(run.plan) <= asked and worlds(run).keys() == run.plan.keys()
    assert ("em_answers_0" in run.plan) == (run in MIXED.values())


@of_runs
def test_a_canary_changes_no_more_than_is_charged(run):
    plan = run.plan
    claim = math.sqrt(2 * math.fsum(planned.rho for planned in plan.values()))
    changed = math.sqrt(sum(square / plan[name].scale ** 2 for name, square in changes(run).items()))
    assert claim == pytest.approx(MU, rel=1e-6) and 0.5 * MU < changed <= claim


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run, id=name, marks=[pytest.mark.heavy] * (name in ("gaps", "numbers", "categories")))
        for name, run in RUNS.items()
    ],
)
def test_a_whole_run_gives_away_no_more_than_its_price(run):
    """Pseudo-random noise of the same law, since so many runs are many draws; the mechanism is audited elsewhere."""
    absent, present = attack(run, Build(noise=lambda number: TestNoise(f"key {number}"), attempts=1), 400)
    shown, epsilon = mu_lower_bound(absent, present), epsilon_lower_bound(absent, present, DELTA)
    print(f"mu >= {shown:.3f} of {MU:.3f}; epsilon >= {epsilon:.3f}")
    assert 0.3 * MU <= shown <= MU
    assert epsilon <= epsilon_of(2 * Fraction(RHO), DELTA)


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [Build(noise=lambda number: SABOTAGES["sigma / 4"].noise(number), attempts=1), SLOPPY],
    ids=["sigma / 4", "no cut"],
)
def test_a_sabotaged_build_is_caught(build):
    names = {"moments_sum_0", "moments_sum_1", "cells_sum_0", "em_pv_0", "em_pooled_1", "count"}
    shown = mu_lower_bound(*attack(NUMBERS, build, 300, FAR if build is SLOPPY else CANARY, names))
    print(f"mu >= {shown:.3f} of {priced(NUMBERS, names):.3f}")
    assert shown > priced(NUMBERS, names)


@pytest.mark.slow
@pytest.mark.parametrize("sabotage", [mixed.answers_count_whole, mixed.copies_count_whole])
def test_answers_that_count_too_much_are_caught(sabotage):
    run, names = MIXED["categories and steps"], {"em_answers_0", "em_answers_1"}
    build = Build(sabotage=sabotage, noise=lambda number: TestNoise(f"answers {number}"), attempts=1)
    shown = mu_lower_bound(*attack(run, build, 300, names=names))
    print(f"mu >= {shown:.3f} of {priced(run, names):.3f}")
    assert shown > priced(run, names)


@pytest.mark.parametrize("sabotage", [no_cut, clients_of_many_rows])
def test_a_sabotaged_kernel_changes_more_than_is_paid_for(sabotage):
    """No noise is needed to see it: what the canary changes exceeds the sensitivity of some release."""
    canary = np.vstack([FAR, np.repeat(CANARY, 5, axis=0)])
    with sabotage():
        assert any(square > PLAN[name].sensitivity ** 2 for name, square in changes(NUMBERS, canary).items())
    assert all(square <= PLAN[name].sensitivity ** 2 for name, square in changes(NUMBERS, canary).items())
