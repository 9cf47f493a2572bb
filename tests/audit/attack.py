"""The distinguishing attack: runs of the pipeline on D and on D + canary, and all that leaks from them to somebody who
knows D, the canary, the code and everything published, and wants to know which it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from fedcore.population.blocks import ClientBlock
from fedcore.privacy.ledger.ledger import Charge
from fedcore.privacy.mechanisms import NoiseSource, SecureNoise, TestNoise
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import Method
from fedcore.training.publishing import LedgerPublisher
from tests.audit.em_releases import Rows
from tests.audit.releases import Case, Round, sums
from tests.audit.sabotage import counting, no_clip
from tests.privacy.test_mechanisms import DrawnTwice, QuarterScale

CLIENTS = np.array([[3, 1, 0, 0], [0, 2, 2, 0], [1, 1, 1, 0], [0, 0, 3, 0], [5, 0, 0, 0]])
CANARY, INSTEAD = np.array([0, 0, 0, 4]), np.array([2, 0, 0, 0])
ABSENT = {"add_or_remove_one": CLIENTS, "replace_one": np.vstack([CLIENTS, INSTEAD])}


def worlds_of(case: Case | Rows) -> tuple[ClientBlock, ClientBlock]:
    """D without and with the canary, neighbours in the relation of the plan."""
    return case.block(ABSENT[case.relation]), case.block(np.vstack([CLIENTS, CANARY]))


class Shelf:
    """The two functions of a ledger by which a publisher releases, in memory: the first value of a release stays."""

    def __init__(self):
        self.values = {}

    def charge(self, lease, planned):
        return Charge("run", planned.round, planned.name, attempt=0, stored=self.values.get(planned.name))

    def publish(self, lease, charge, noised):
        return self.values.setdefault(charge.name, noised)


class ForgetfulShelf(Shelf):
    """Does not know what it published, so that a retry draws again."""

    def publish(self, lease, charge, noised):
        return noised


@dataclass(frozen=True)
class Build:
    """The product, or a sabotaged version of it.

    method: makes the method under audit of the product's. noise: of the n-th run. attempts: how often a round is
    published, as by retries after a crash; all are seen.
    peel: what the attacker makes of a published value first, in the n-th run. pairs: of runs that catch it for sure;
    200, if three times the claim is given away, which none of 4000 simulated audits missed.
    """

    method: Callable[[Method], Method] = lambda method: method
    noise: Callable[[int], NoiseSource] = lambda number: SecureNoise()
    shelf: type[Shelf] = Shelf
    attempts: int = 2
    peel: Callable[[int, PlannedRelease, np.ndarray], np.ndarray] = lambda number, planned, value: value
    sabotage: Callable[[], AbstractContextManager] = field(default=nullcontext)
    pairs: int = 200


def _known_noise(number: int, planned: PlannedRelease, value: np.ndarray) -> np.ndarray:
    return value - TestNoise(f"seed {number}").draw(planned, "run", np.zeros_like(value))


PRODUCT = Build()
SABOTAGES = {
    "sigma / 4": Build(noise=lambda number: QuarterScale()),
    "no clip": Build(sabotage=no_clip),
    "two draws averaged": Build(noise=lambda number: DrawnTwice(), pairs=2000),
    "a count without noise": Build(method=counting),
    "a retry that draws again": Build(shelf=ForgetfulShelf, pairs=2000),
    "noise of a known seed": Build(noise=lambda number: TestNoise(f"seed {number}"), peel=_known_noise),
}


def evidence(seen: Sequence[np.ndarray], absent: np.ndarray, present: np.ndarray, scale: float) -> float:
    """Log-likelihood ratio of "present" against "absent", given the mean of what was seen of a release.

    Exact up to the grid for one draw of the planned noise; for any other build a weight that is the same for both
    worlds, so that the error counts remain valid.
    """
    canary = (present - absent).astype(float)
    residual = np.mean([value - absent for value in seen], axis=0) - canary / 2
    return float((residual * canary).sum()) / scale**2


def whole_run(build: Build, case: Case | Rows, rho: float, world: int, number: int) -> float:
    """The attacker's statistic after one run on `worlds_of(case)[world]`."""
    method, worlds = build.method(case.method), worlds_of(case)
    public = case.public(CLIENTS.shape[1], rho, seed=number)
    publisher = LedgerPublisher(build.shelf(), None, SimpleNamespace(id="run"), None, build.noise(number))
    state, total = method.init(public), 0.0
    plan = list(method.plan(public))
    rounds = {planned.round for planned in plan}
    for round in sorted(rounds):
        message = method.message(state)
        # The true world comes last, in case a sabotaged method keeps something of it.
        grids = {
            other: method.release_values(message, method.client_update(message, worlds[other], None)[0])
            for other in (1 - world, world)
        }
        result = {}
        for planned in plan:
            if planned.round != round:
                continue
            seen = [publisher.release(planned, grids[world][planned.name]) for _ in range(build.attempts)]
            result[planned.name] = seen[0]
            peeled = [build.peel(number, planned, value) for value in seen]
            total += evidence(peeled, grids[0][planned.name], grids[1][planned.name], planned.scale)
        state, info = method.server_update(state, result)
        if "clients" in info.scalars:
            total += 1e6 * (info.scalars["clients"] - len(CLIENTS) - 0.5)
    assert method.message(state) is None
    return total


def attack_runs(build: Build, case: Case | Rows, rho: float, runs: int) -> tuple[np.ndarray, np.ndarray]:
    """(runs,) statistics of runs without, and of runs with the canary."""
    with build.sabotage():
        made = [[whole_run(build, case, rho, world, number) for world in (0, 1)] for number in range(runs)]
    absent, present = np.array(made).T
    return absent, present


def attack_release(
    build: Build, case: Case | Rows, round: Round, planned: PlannedRelease, runs: int
) -> tuple[np.ndarray, np.ndarray]:
    """The same for one release whose message stands."""
    with build.sabotage():
        worlds = [sums(case, round.message, block)[planned.name] for block in worlds_of(case)]
    found = []
    for grid in worlds:
        statistics = []
        for number in range(runs):
            publisher = LedgerPublisher(build.shelf(), None, SimpleNamespace(id="run"), None, build.noise(number))
            seen = [publisher.release(planned, grid) for _ in range(build.attempts)]
            peeled = [build.peel(number, planned, value) for value in seen]
            statistics.append(evidence(peeled, *worlds, planned.scale))
        found.append(np.array(statistics))
    return found[0], found[1]
