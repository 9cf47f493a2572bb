"""People who are in several populations of one ledger lose the sum of what is spent on each: how the operator learns of
it, and when the budget owner must declare it. The argument is docs/privacy/shared-ids.md.

What is compared here is for the operator's terminal. A run only learns whether a declaration is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedcore.errors import PopulationError, SharedIds
from fedcore.population import manifest as manifests
from fedcore.population.periods import client_of
from fedcore.population.store import Population
from fedcore.privacy.id_sketch import Overlap, Sketch, key_name, keyed_block, keyed_names, overlap
from fedcore.storage.files import place

if TYPE_CHECKING:
    from fedcore.privacy.ledger.ledger import Ledger
    from fedcore.privacy.ledger.sketch_accounts import KeptSketch

LATER = 8  # new ids wait until they are one in this many, since every addition brings noise
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shared:
    """What a population shares with another one. ids: None without a sketch of both; blocks: that are the same"""

    population_id: str
    name: str
    has_budget: bool
    ids: Overlap | None
    blocks: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """found: populations with many of the same ids, or with the same block. undeclared: ids of those with a budget that
    were found now or before, and that neither owner has declared. not_compared: ids of other populations with a budget
    whose sketch has another key. unknown: of those without a sketch. lost: whether there is no key
    """

    found: tuple[Shared, ...] = ()
    undeclared: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    lost: bool = False


def register(population: Population, ledger: Ledger, *, new_key: bool | None = None) -> Comparison:
    """Make the population known to its ledger, bring its sketch there up to date, and compare it with all others.

    new_key: make a key if there is none. None: make one only if no other population has a sketch. Without a key,
    nothing is compared. A test ledger keeps no sketches. Raises LedgerError, ChunkError.
    """
    ledger.register(population.id)
    if ledger.is_test:
        return Comparison()
    budgets, sketched = ({*ids} - {population.id} for ids in (ledger.with_budget(), ledger.sketched()))
    key = ledger.sketch_key(make=not sketched if new_key is None else new_key)
    if key is None and not sketched:  # there is nothing to compare with
        return Comparison(unknown=tuple(sorted(budgets)), lost=True)
    if key is None:
        _log.warning("%s is missing: ids are not compared with those of other populations.", ledger.sketch_key_file)
        return Comparison(not_compared=tuple(sorted(budgets)), lost=True)
    kept = _up_to_date(population, ledger, key)
    if population.manifest.public_for_evaluation:
        ledger.note_shared(population.id, ())
        return Comparison()
    found, other_key = list[Shared](), list[str]()
    for one in sorted(sketched):
        other = ledger.kept_sketch(one)
        if other is None:
            continue
        if other.key != kept.key:
            other_key.append(one)
            continue
        shared = _shared(kept, other, one in budgets)
        if shared.blocks or (shared.ids is not None and shared.ids.many):
            found.append(shared)
    open = ledger.note_shared(population.id, [one.population_id for one in found])
    not_compared = tuple(one for one in other_key if one in budgets)
    return Comparison(tuple(found), tuple(open), not_compared, tuple(sorted(budgets - sketched)))


def check_run(population: Population, ledger: Ledger) -> None:
    """Make sure, before a private run reserves, that this version of the population is compared with others.

    A version that the ledger's sketch describes takes constant time, and no data are opened. Raises SharedIds if a
    declaration is missing or the key is lost, LedgerError, ChunkError. The text never says how many ids are shared.
    """
    if ledger.is_test:
        return
    path, kept = population.path, ledger.kept_sketch(population.id)
    if kept is None or population.id in kept.undeclared or not _describes(kept, population):
        compared = register(population, ledger)
        if compared.lost and compared.not_compared and not population.manifest.public_for_evaluation:
            raise SharedIds(
                f"the ids of population {path.name!r} cannot be compared with those of other populations with a "
                "budget: the key of the ledger's sketches is missing. Nothing was released.",
                f"Restore {str(ledger.sketch_key_file)!r}. If it is lost for good, declare what you know of these ids: "
                f"fedcore budget shared-ids {path} REASON",
            )
    if {*ledger.undeclared(population.id)} - {population.id}:
        raise SharedIds(
            f"many ids of population {path.name!r} are also in another population with a budget, and the budget owner "
            "has not declared why. Nothing was released.",
            f"See how many: fedcore budget shared-ids {path}. Then declare why: fedcore budget shared-ids {path} "
            "REASON",
        )


def check_declared(population: Population, compared: Comparison, ledger: Ledger) -> None:
    """Raises SharedIds unless a budget can be set without a declaration."""
    name, remedy = population.path.name, "Declare why in a sentence that statements quote: --shared-ids REASON"
    if compared.undeclared:
        raise SharedIds(
            f"many ids of population {name!r} are also in population {', '.join(compared.undeclared)}, which has a "
            "budget. The privacy losses of a person in several populations add up. No budget was set.",
            f"{remedy}, e.g. 'the same patients as in the weekly export; their losses add up', or 'ids are numbers "
            "that each hospital gives to its own patients'.",
        )
    if compared.not_compared:
        raise SharedIds(
            f"the ids of population {name!r} cannot be compared with those of {len(compared.not_compared)} other "
            f"populations with a budget: the key of the ledger's sketches is "
            f"{'missing' if compared.lost else 'another one'}. No budget was set.",
            f"Restore {str(ledger.sketch_key_file)!r}. If it is lost for good: {remedy[0].lower()}{remedy[1:]}.",
        )


def holds_data_of(
    population: Population, others: dict[str, list[tuple[str, int | None]]], ledger: Ledger | None
) -> str | None:
    """The id of the first of these populations that has a block with the same ids and data as one of this population;
    None if none is known to.

    others: by id the places where a version of each may be: (path, number; None: any). The ledger also knows those that
    are gone.
    """
    if not others:
        return None
    own, kept = _fingerprints(population.location), None if ledger is None else ledger.kept_sketch(population.id)
    for one, places in others.items():
        other = None if ledger is None else ledger.kept_sketch(one)
        if kept is not None and other is not None and kept.key == other.key and kept.blocks & other.blocks:
            return one
        if any(own & _fingerprints(*where) for where in places):
            return one
    return None


# --- one population ---------------------------------------------------------------------------------------------------


def _up_to_date(population: Population, ledger: Ledger, key: bytes) -> KeptSketch:
    """What the ledger keeps of the population, once it describes this version."""
    while True:
        before = ledger.kept_sketch(population.id)
        kept = _following(population, before, key)
        if kept is before or ledger.keep_sketch(kept, before):
            return kept


def _following(population: Population, before: KeptSketch | None, key: bytes) -> KeptSketch:
    """before: None, or what is kept; it is returned if it describes this version, or one that came after it."""
    from fedcore.privacy.ledger.sketch_accounts import KeptSketch  # a run that is not private needs no database

    made, named = population.manifest, key_name(key)
    named_people = not (made.records or made.public_for_evaluation)
    several = made.blocks.fingerprints(least_clients=2)
    blocks = frozenset(keyed_block(one, key) for one in several)
    if before is not None and before.key != named:
        before = None
    known = frozenset[bytes]() if before is None else before.blocks  # they stay when clients are forgotten
    if before is not None and not _continues(population, before, blocks):
        before = None
    if before is not None and before.version >= population.version and named_people == (before.sketch is not None):
        return before
    sketch, clients = None, 0
    if named_people:
        old = None if before is None else before.sketch
        if before is not None and old is not None and not old.outgrown:
            sketch, clients = old, before.clients
        if sketch is None or LATER * (population.n_clients - clients) >= clients:
            names = _names(population, clients, key)
            sketch = (Sketch.empty(len(names)) if sketch is None else sketch).with_ids(names)
            clients = population.n_clients
    name, version, checksum = population.path.name, population.version, population.checksum
    return KeptSketch(population.id, name, named, version, checksum, clients, sketch, blocks | known)


def _describes(kept: KeptSketch, population: Population) -> bool:
    """Whether the version that is described is this one, or a later one of the same folder."""
    return kept.version >= population.version and _checksum(population, kept.version) == kept.manifest


def _continues(population: Population, before: KeptSketch, blocks: frozenset[bytes]) -> bool:
    """Whether the version that is described is this one or a later one, or one that only appends came after: then
    clients have kept their places. blocks: keyed digests of this version
    """
    if before.version in dict(population.manifest.removed):  # clients were forgotten, or moved
        return False
    there = _checksum(population, before.version)
    if there is None:  # it was not copied here; a later one of another copy has the blocks of this one
        return before.version < population.version or blocks <= before.blocks
    return there == before.manifest


def _checksum(population: Population, version: int) -> str | None:
    """The checksum of a version in the folder of this one; None if the version is not there."""
    if version == population.version:
        return population.checksum
    try:
        return Population.open(population.path, version=version).checksum
    except PopulationError:
        return None


def _names(population: Population, first: int, key: bytes) -> np.ndarray:
    """Keyed names of the ids of clients from index `first` on. Of calendar periods those of clients, as far as no entry
    before `first` has them.
    """
    of_entries = population.manifest.period is not None

    def parts(start: int, stop: int) -> Iterator[np.ndarray]:
        for index, entry in enumerate(population.blocks):
            if entry.first < stop and entry.first + entry.clients > start:
                inside = slice(max(start - entry.first, 0), stop - entry.first)
                ids = [one for one in population.client_ids(index)[inside].tolist() if one]
                yield keyed_names(map(client_of, ids) if of_entries else ids, key)

    found = np.unique(np.concatenate([np.zeros(0, np.uint64), *parts(first, population.n_clients)]))
    if of_entries and first:
        for known in parts(0, first):
            found = found[~np.isin(found, known)]
    return found


# --- two populations --------------------------------------------------------------------------------------------------


def _shared(one: KeptSketch, other: KeptSketch, has_budget: bool) -> Shared:
    ids = None if one.sketch is None or other.sketch is None else overlap(one.sketch, other.sketch)
    return Shared(other.population_id, other.name, has_budget, ids, len(one.blocks & other.blocks))


def _fingerprints(path: str, version: int | None = None) -> set[str]:
    """Digests of the blocks of a version at a place, or of all versions there; none if nothing can be read."""
    try:
        where = place(path)
        versions = Population.open(where).versions() if version is None else [version]
        stored = [manifests.load(where, number) for number in versions]
    except PopulationError:
        return set()
    return {fingerprint for made in stored for fingerprint in made.blocks.fingerprints()}
