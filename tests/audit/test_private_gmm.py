"""Attacks on a canary in private GMM: every release of a run that goes its whole way, found by the plan.

The messages are those of a run that was driven by a structured population (`tests.private_gmm.worlds`), since a run on
few clients ends at its first count; what stands beside the canary are a few clients of one row. Adaptivity adds nothing
to guess from: a message is a function of what was published before.
"""

import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from fedcore.methods.private_gmm import PrivateGMM
from fedcore.privacy.gdp import epsilon_of
from fedcore.privacy.mechanisms import TestNoise
from fedcore.training.publishing import LedgerPublisher
from tests.audit.attack import PRODUCT, SABOTAGES, Build, evidence
from tests.audit.bounds import epsilon_lower_bound, mu_lower_bound
from tests.private_gmm.test_sensitivity import clients_of_many_rows, every_ring, no_clip
from tests.private_gmm.worlds import CASES, CENTRES, D, block_of, facts, rounds_of, sums

MU, DELTA = 1.5, 1e-5
RHO = MU**2 / 2
CASE = "two levels"
ROUNDS = rounds_of(CASE)
PLAN = {planned.name: planned for planned in PrivateGMM(CASES[CASE]).plan(facts(rho=RHO))}
KNOWN = "no search"  # of a series that knows all components
OTHERS = [CENTRES[number % 3][None] + 0.2 * number for number in range(6)]
CANARY = np.repeat((CENTRES[0] + np.array([0.0, 0.0, 1.5, 1.0]))[None], 3, axis=0)
FAR = np.array([[3000.0, 0.0, 4000.0, 0.0]])
SLOPPY = Build(sabotage=no_clip, noise=lambda number: TestNoise(f"far {number}"))


def worlds(canary: np.ndarray = CANARY, rounds=ROUNDS, plan=PLAN) -> dict[str, tuple]:
    """By planned name the exact sums without and with the canary."""
    method, found = PrivateGMM(CASES[CASE]), {}
    for round in rounds:
        absent, present = (sums(method, round.message, block_of(people)) for people in (OTHERS, [*OTHERS, canary]))
        found |= {planned.name: (absent[planned.name], present[planned.name]) for planned in round.planned}
    assert found.keys() == plan.keys(), "every planned release is attacked, and no other is made"
    return found


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


def paid(canary: np.ndarray = CANARY) -> float:
    """mu of what the canary changes, which may not exceed what is charged."""
    return math.sqrt(
        sum(
            float(((p - a).astype(float) ** 2).sum()) / PLAN[name].scale ** 2 for name, (a, p) in worlds(canary).items()
        )
    )


@pytest.mark.heavy
@pytest.mark.slow
def test_a_whole_run_gives_away_no_more_than_its_price():
    """Pseudo-random noise of the same law, since so many runs are many draws; the mechanism is audited elsewhere."""
    claim = math.sqrt(2 * math.fsum(planned.rho for planned in PLAN.values()))
    assert claim == pytest.approx(MU, rel=1e-6) and 0.6 * MU < paid() <= claim
    absent, present = attack(Build(noise=lambda number: TestNoise(f"key {number}"), attempts=1), 1000)
    shown, epsilon = mu_lower_bound(absent, present), epsilon_lower_bound(absent, present, DELTA)
    print(f"mu >= {shown:.3f} of {claim:.3f}; the canary changes {paid():.3f}; epsilon >= {epsilon:.3f}")
    assert 0.4 * MU <= shown <= claim
    assert epsilon <= epsilon_of(2 * Fraction(RHO), DELTA)


@pytest.mark.parametrize("canary", [CANARY, FAR, np.vstack([FAR, CENTRES])])
def test_a_run_without_a_search_changes_no_more_than_is_paid_for(canary):
    plan = {planned.name: planned for planned in PrivateGMM(CASES[KNOWN]).plan(facts(rho=RHO, case=KNOWN))}
    changes = {
        name: ((p - a).astype(float) ** 2).sum() for name, (a, p) in worlds(canary, rounds_of(KNOWN), plan).items()
    }
    assert all(change <= plan[name].sensitivity ** 2 for name, change in changes.items())
    paid = math.sqrt(sum(change / plan[name].scale ** 2 for name, change in changes.items()))
    assert 0.1 * MU < paid <= MU * (1 + 1e-9)


@pytest.mark.slow
def test_releases_with_the_real_noise_give_away_no_more_than_their_price():
    """The counts and means of the root and of the leaves, published twice as after a crash."""
    names = {"level0_counts", "level0_mean_0", "leaf_mean_1"}
    absent, present = attack(PRODUCT, 300, names=names)
    assert mu_lower_bound(absent, present) <= math.sqrt(2 * sum(PLAN[name].rho for name in names))


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [Build(noise=lambda number: SABOTAGES["sigma / 4"].noise(number), attempts=1), SLOPPY],
    ids=["sigma / 4", "no clip"],
)
def test_a_sabotaged_build_is_caught(build):
    names = {"level0_mean_0", "level0_mean_1", "leaf_mean_1", "leaf_counts", "level1_mean_2"}
    priced = math.sqrt(2 * sum(PLAN[name].rho for name in names))
    canary = FAR if build is SLOPPY else CANARY
    shown = mu_lower_bound(*attack(build, 400, canary, names))
    print(f"mu >= {shown:.3f} of {priced:.3f}")
    assert shown > priced


@pytest.mark.parametrize("sabotage", [no_clip, clients_of_many_rows, every_ring])
def test_a_sabotaged_kernel_changes_more_than_is_paid_for(sabotage):
    """No noise is needed to see it: what the canary changes exceeds the sensitivity of some release."""
    canary = np.vstack([FAR, np.repeat(CANARY, 5, axis=0)])
    with sabotage():
        over = [
            name
            for name, (a, p) in worlds(canary).items()
            if ((p - a).astype(float) ** 2).sum() > PLAN[name].sensitivity ** 2
        ]
    assert over
    assert all(
        ((p - a).astype(float) ** 2).sum() <= PLAN[name].sensitivity ** 2 for name, (a, p) in worlds(canary).items()
    )


def test_columns_fit():
    assert CENTRES.shape[1] == D and all(round.planned for round in ROUNDS)
