"""Runs that several sites make together (`fedcore.sites`) have the bits of one place.

Sites are objects of this process. Their ledgers, mailbox and run keys are in memory; publishers, shares of the noise,
masks and signatures are those of the product.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcore.errors import PatienceOver
from fedcore.privacy.ledger.leases import Lease
from fedcore.privacy.ledger.ledger import Charge
from fedcore.privacy.noise_shares import SMALLEST_SCALE, TestShareNoise
from fedcore.privacy.plan import PlannedRelease
from fedcore.sites.identity import Identity
from fedcore.sites.mailbox import Header, Mailbox
from fedcore.sites.publisher import SitesPublisher, StudyPublishing
from fedcore.sites.run_key import RunKey
from fedcore.sites.study import Schema, Signer, Study, StudySite
from fedcore.testing.bits import difference
from fedcore.testing.broken import require
from fedcore.testing.cases import NOISE_KEY, Case, answers, released
from fedcore.testing.laws import law
from fedcore.testing.populations import SmallPopulation

SITES: Final = 3  # of the law; `same_at_sites` takes any number
TURNS: Final = 3  # of each site in a round, in which all answer: members, answers, totals


@law("sites")
def sites(case: Case) -> None:
    """Three sites, each with a part of the clients, publish what one place with all of them publishes, bit for bit."""
    if case.method.private:
        same_at_sites(case, SITES, range(SITES))


def same_at_sites(case: Case, count: int, order: Sequence[int]) -> None:
    """Raises LawBroken unless `count` sites publish what one place publishes. order: in which they answer a round."""
    method = case.method
    if min(planned.scale for planned in case.plan) < SMALLEST_SCALE * math.sqrt(2 * count):
        return  # a study with this budget is refused: one share of the noise would be too small
    places = _places(case, count)
    memories: list[Any] = [None] * count
    for made in case.history.rounds:
        grids = []
        for number, place in enumerate(places):
            statistics, memories[number] = answers(
                method, made.message, place.people.leaves_for(method, made.message), memories[number]
            )
            grids.append(released(method, made.number, made.planned, made.message, statistics))
        totals: dict[int, dict[str, np.ndarray]] = {}
        for _ in range(TURNS):
            for number in order:
                if number not in totals and (own := _turn(places[number].publisher, made.planned, grids[number])):
                    totals[number] = own
        require(len(totals) == count, f"round {made.number}: {len(totals)} of {count} sites know the totals.")
        for number, found in totals.items():
            wrong = difference(dict(made.result), found, "the totals")
            require(not wrong, f"round {made.number} at site {number} of {count} differs from one place: {wrong}.")
            places[number].run.round = made.number
            places[number].run.copies |= found


def _turn(
    publisher: SitesPublisher, planned: Sequence[PlannedRelease], grids: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray] | None:
    """As the engine asks for a round; None if other sites have to answer first."""
    try:
        stored = {release.name: publisher.published(release) for release in planned}
        if planned and all(value is not None for value in stored.values()):
            return {name: value for name, value in stored.items() if value is not None}
        totals = publisher.release_round(planned, grids)
    except PatienceOver:
        return None
    return None if totals is None else dict(totals)


# --- sites in memory --------------------------------------------------------------------------------------------------


@dataclass
class _Run:
    """The part of a run that a publisher uses."""

    id: str = "run"
    round: int = 0
    copies: dict[str, np.ndarray] = field(default_factory=dict)

    def releases(self) -> dict[str, np.ndarray]:
        return self.copies


class _Ledger:
    """The part of a ledger that a publisher uses: the first value of a release stays."""

    id = "memory"

    def __init__(self) -> None:
        self.values: dict[str, np.ndarray] = {}

    def published(self, run_id: str, name: str) -> np.ndarray | None:
        return self.values.get(name)

    def recorded(self, run_id: str, kind: str) -> None:
        return None

    def charge_round(self, lease: Lease, planned: Sequence[PlannedRelease]) -> list[Charge]:
        return [Charge("run", one.round, one.name, 0, self.values.get(one.name)) for one in planned]

    def publish_round(self, lease: Lease, charges: Sequence[Charge], noised: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [self.values.setdefault(one.name, value) for one, value in zip(charges, noised, strict=True)]


class _Key(RunKey):
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def since(self, round: int) -> float:
        return time.time()

    def _create(self, name: str, content: bytes) -> None:
        if name in self.files:
            raise FileExistsError
        self.files[name] = content

    def _read(self, name: str) -> bytes | None:
        return self.files.get(name)


class _Mailbox(Mailbox):
    def __init__(self, study: Study) -> None:
        self.study = study
        self.place = Path("memory")
        self.files: dict[str, bytes] = {}

    def _create(self, header: Header, content: bytes) -> None:
        self.files.setdefault(header.name, content)

    def _read(self, header: Header, most: int) -> bytes | None:
        content = self.files.get(header.name)
        return None if content is None else content[:most]


@dataclass(frozen=True)
class _Place:
    people: SmallPopulation
    run: _Run
    publisher: SitesPublisher


def _places(case: Case, count: int) -> list[_Place]:
    keys = [Ed25519PrivateKey.generate() for _ in range(count)]
    known = [Identity(f"site-{n}", key.public_key().public_bytes_raw(), key) for n, key in enumerate(keys)]
    people, nominal = case.population, case.public.nominal_clients or 1
    study = Study(
        method=case.method.name,
        arithmetic=case.method.arithmetic_version,
        settings={},
        schema=Schema(kind=people.kind, features=people.features),
        rho=1.0,
        sites=tuple(StudySite(name=one.name, key=one.public.hex(), nominal=-(-nominal // count)) for one in known),
        seed=case.seed,
        proposer=Signer(name=known[0].name, key=known[0].public.hex()),
    )
    mailbox, made = _Mailbox(study), []
    parts = np.array_split(np.arange(len(people.clients)), count)
    for number, identity in enumerate(known):
        low, high = int(parts[number][0]), int(parts[number][-1]) + 1
        own = replace(people, clients=people.clients[low:high], heldout=people.heldout and people.heldout[low:high])
        run, publishing = _Run(), StudyPublishing(study, 1, identity, mailbox, waits=0.0)
        publisher = SitesPublisher(
            publishing,
            case.plan,
            cast(Any, run),
            cast(Any, _Ledger()),
            Lease("run", 1),
            TestShareNoise(NOISE_KEY, number),
        )
        publisher.key = _Key()
        made.append(_Place(own, run, publisher))
    return made
