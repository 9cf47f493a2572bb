"""How the releases of a private run are charged and published: in one place, by the population's ledger alone.

`start_run` and `resume` take another `Publishing` for a run that several places make together (`fedcore.sites`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.population.store import Population
from fedcore.privacy.ledger.chain import ChainHead
from fedcore.privacy.ledger.leases import Lease
from fedcore.privacy.mechanisms import NoiseSource, noise_of
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.engine import Publisher
from fedcore.runs.store import Run
from fedcore.training.spec import RunSpec

if TYPE_CHECKING:  # a run that is not private needs no database
    from fedcore.privacy.ledger.ledger import Ledger


class Publishing:
    """What a private run reserves, and who publishes. This one is that of one place.

    study: what run.json states of a run that several places make together (`RunSpec.study`); None for this one.
    """

    study: Mapping[str, Any] | None = None

    def charged(self, plan: Sequence[PlannedRelease]) -> tuple[PlannedRelease, ...]:
        """The releases as this place's ledger reserves and charges them: same names, rounds and shapes as the plan."""
        return tuple(plan)

    def publisher(self, spec: RunSpec, run: Run, ledger: Ledger, lease: Lease) -> Publisher:
        """The engine's publisher of a run whose plan is reserved."""
        return LedgerPublisher(ledger, spec.population, run, lease, noise_of(spec.test_noise))


ONE_PLACE = Publishing()


class LedgerPublisher:
    """Charges the ledger, draws the noise, publishes; one release at a time (the `Publisher` of the engine)."""

    def __init__(self, ledger: Ledger, population: Population, run: Run, lease: Lease, noise: NoiseSource):
        self.ledger = ledger
        self.population = population
        self.run = run
        self.lease = lease
        self.noise = noise
        # Of what is published, or may be: no other process publishes while the lease is held.
        self._names: set[str] | None = None

    def published(self, planned: PlannedRelease) -> np.ndarray | None:
        if self._names is None:
            self._names = self.ledger.published_names(self.run.id)
        return self.ledger.published(self.run.id, planned.name) if planned.name in self._names else None

    def release_round(
        self, planned: Sequence[PlannedRelease], grids: Mapping[str, np.ndarray]
    ) -> Mapping[str, np.ndarray] | None:
        published: dict[str, np.ndarray] = {}
        for release in planned:
            noised = self.release(release, grids[release.name])
            if noised is None:
                return None
            published[release.name] = noised
        return published

    def release(self, planned: PlannedRelease, grid_values: np.ndarray) -> np.ndarray | None:
        """The published value of one release, int64; None if it was given up."""
        self.noise.ready(planned, grid_values)  # refuses before anything is charged
        charge = self.ledger.charge(self.lease, planned)
        if charge is None:
            return None
        if charge.stored is not None:
            return charge.stored
        drawn = self.noise.draw(planned, self.run.id, grid_values)
        if self._names is not None:
            self._names.add(planned.name)
        return self.ledger.publish(self.lease, charge, drawn)

    def ending(self, status: str) -> None:
        """Nothing: the ledger closes the account."""

    def head(self) -> dict[str, Any]:
        (lease, seen), self.ledger.published_as = self.ledger.published_as or (None, None), None
        return chain_head(self.ledger, self.lease, seen if lease == self.lease else None)


def chain_head(ledger: Ledger, lease: Lease, seen: ChainHead | None = None) -> dict[str, Any]:
    """What the head of a run keeps of its ledger. seen: the newest record when the lease was extended a moment ago;
    None: it is extended here.
    """
    head = ledger.renew(lease) if seen is None else seen
    return {"ledger_id": head.ledger_id, "seq": head.seq, "hash": head.hash}
