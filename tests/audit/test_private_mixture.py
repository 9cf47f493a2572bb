"""Attacks on a canary in private_mixture: every release of a run that goes its whole way, found by the plan.

The messages are those of a run on rows of nobody without noise (`tests.private_mixture.test_sensitivity`); what
stands beside the canary are a few clients of one row.
"""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from fedcore.privacy.gdp import epsilon_of
from fedcore.privacy.mechanisms import TestNoise
from fedcore.rounds.method import PublicFacts
from fedcore.training.budget import LedgerPublisher
from tests.audit.attack import SABOTAGES, Build, evidence
from tests.audit.bounds import epsilon_lower_bound, mu_lower_bound
from tests.private_mixture.test_sensitivity import CENTRES, D, clients_of_many_rows, no_cut, rounds_of
from tests.private_mixture.worlds import block_of, sums

MU, DELTA = 1.5, 1e-5
RHO = MU**2 / 2
METHOD, ROUNDS = rounds_of("client", "add_or_remove_one")
PUBLIC = PublicFacts("rows", D, 1024, 900, None, RHO, 0, "add_or_remove_one", None, "client")
ASKED = {planned.name for _, releases in ROUNDS for planned in releases}
PLAN = {planned.name: planned for planned in METHOD.plan(PUBLIC)}
OTHERS = [CENTRES[number % 3][None] + 0.2 * number for number in range(6)]
CANARY = np.repeat((CENTRES[0] + np.array([0.0, 1.5, 2.5]))[None], 3, axis=0)
FAR = np.array([[3000.0, 0.0, 4000.0]])
SLOPPY = Build(sabotage=no_cut, noise=lambda number: TestNoise(f"far {number}"))


def worlds(canary: np.ndarray = CANARY) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By planned name the exact sums without and with the canary."""
    found = {}
    for message, _ in ROUNDS:
        absent, present = (sums(METHOD, message, block_of(people)) for people in (OTHERS, [*OTHERS, canary]))
        found |= {name: (absent[name], present[name]) for name in message.names if name in PLAN}
    return found


def changes(canary: np.ndarray = CANARY) -> dict[str, float]:
    """By planned name the squared norm of what the canary changes."""
    return {name: float(((p - a).astype(float) ** 2).sum()) for name, (a, p) in worlds(canary).items()}


def one_run(build: Build, exact, world: int, number: int) -> float:
    """The attacker's statistic after all releases; noise of another key in each world."""
    noise = build.noise(2 * number + world)
    publisher, total = LedgerPublisher(build.shelf(), None, SimpleNamespace(id="run"), None, noise), 0.0
    for name, (absent, present) in exact.items():
        seen = [publisher.release(PLAN[name], (absent, present)[world]) for _ in range(build.attempts)]
        total += evidence(seen, absent, present, PLAN[name].scale)
    return total


def attack(build: Build, pairs: int, canary: np.ndarray = CANARY, names=None) -> tuple[np.ndarray, np.ndarray]:
    with build.sabotage():
        exact = {name: both for name, both in worlds(canary).items() if names is None or name in names}
    made = [[one_run(build, exact, world, number) for world in (0, 1)] for number in range(pairs)]
    absent, present = np.array(made).T
    return absent, present


def test_every_planned_release_is_attacked():
    assert set(PLAN) <= ASKED and worlds().keys() == PLAN.keys()


def test_a_canary_changes_no_more_than_is_charged():
    claim = math.sqrt(2 * math.fsum(planned.rho for planned in PLAN.values()))
    changed = math.sqrt(sum(square / PLAN[name].scale ** 2 for name, square in changes().items()))
    assert claim == pytest.approx(MU, rel=1e-6) and 0.5 * MU < changed <= claim


@pytest.mark.slow
def test_a_whole_run_gives_away_no_more_than_its_price():
    """Pseudo-random noise of the same law, since so many runs are many draws; the mechanism is audited elsewhere."""
    absent, present = attack(Build(noise=lambda number: TestNoise(f"key {number}"), attempts=1), 400)
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
    priced = math.sqrt(2 * sum(PLAN[name].rho for name in names))
    shown = mu_lower_bound(*attack(build, 300, FAR if build is SLOPPY else CANARY, names))
    print(f"mu >= {shown:.3f} of {priced:.3f}")
    assert shown > priced


@pytest.mark.parametrize("sabotage", [no_cut, clients_of_many_rows])
def test_a_sabotaged_kernel_changes_more_than_is_paid_for(sabotage):
    """No noise is needed to see it: what the canary changes exceeds the sensitivity of some release."""
    canary = np.vstack([FAR, np.repeat(CANARY, 5, axis=0)])
    with sabotage():
        assert any(square > PLAN[name].sensitivity ** 2 for name, square in changes(canary).items())
    assert all(square <= PLAN[name].sensitivity ** 2 for name, square in changes(canary).items())
