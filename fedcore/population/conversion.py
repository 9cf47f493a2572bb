"""Versions that change what a population is, and not whom it holds.

Beginning cohorts: from then on the privacy budget of a population is kept for each append's clients by themselves. An
append opens a cohort whether anybody came or not, so that the list of cohorts is the operator's calendar.

Checking ids: from then on each person has one id, and clients may be appended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fedcore.errors import PopulationError
from fedcore.population import cohorts, identifiers, layout, versions
from fedcore.population.cohorts import FOUNDERS
from fedcore.population.deliveries import Delivered, added
from fedcore.population.erasing import written_again
from fedcore.population.identifiers import FOLDED, STRIPPED, Rule
from fedcore.population.ingest import calendars
from fedcore.population.ingest.request import IngestRequest
from fedcore.population.manifest import Provenance
from fedcore.population.periods import clients_of, stored_ids
from fedcore.population.store import Population

SHOWN = 20  # groups of ids, and single ids, that a check shows


def begin_cohorts(population: Population, record: Callable[[int, str, str], str]) -> Population:
    """Makes a version in which everybody who is there is of cohort 1, the founders; its blocks are the same.

    record: called with the number of the version that is converted, its checksum and a new token,
        while nobody else can write; it records them in the ledger and returns the token that holds: that of an earlier
        attempt at the same version, if there was one. What it raises is passed on, and nothing has happened.

    Returns the population as it is if it has cohorts already. Raises PopulationError if this is not the newest version,
    or if somebody else writes; ConfigError for a URL.
    """
    old = population.manifest
    if old.cohorts:
        return population
    with versions.writing(population) as path:
        token = record(old.version, population.checksum, cohorts.new_token())
        founders = cohorts.opened(FOUNDERS, old.nominal_clients).model_copy(update={"token": token})
        made = versions.following(
            old,
            Provenance(options={"cohorts": "begun"}),
            cohorts=(founders,),
            order=old.order or ((FOUNDERS, old.n_clients),),
        )
        return versions.commit(path, made)


def open_cohort(
    population: Population,
    nominal_clients: int | None = None,
    through: str | None = None,
    delivered: Delivered | None = None,
) -> Population:
    """The version that an append makes to which nobody came: the same clients, and one more cohort; of entries of
    calendar periods all periods up to `through`.

    nominal_clients: the new total of the sizes that the owner declares, or that of each period; None: not declared
    delivered: the append of a pipeline to which no file came

    Raises PopulationError if the population has no cohorts, this is not its newest version, or somebody else writes;
    IngestError if its calendar does not go on with `through`; ConfigError for a URL.
    """
    old = population.manifest
    if not old.cohorts:
        raise PopulationError(
            f"The population {population.path} has no cohorts.", "Begin them with `fedcore budget cohorts POPULATION`."
        )
    day = None if delivered is None else delivered.day
    if old.period is not None or through is not None:
        request = IngestRequest.of({"through": through, "nominal_clients": nominal_clients})
        dealt = calendars.declared(population, request)
        if not dealt.labels:
            raise PopulationError("No period was named that is not declared.", "Say up to which: --through LABEL.")
        fields = versions.declaring(old.cohorts, dealt.labels, nominal_clients, old.order, day)
    else:
        fields = versions.opening(old, nominal_clients, day=day)
    if delivered is not None:
        fields |= added(old.deliveries, old.occasions, delivered, old.version + 1, cohorts=True)
    with versions.writing(population) as path:
        return versions.commit(path, versions.following(old, Provenance(), **fields))


@dataclass(frozen=True, slots=True)
class CheckedIds:
    """What `check_ids` did. population: its newest version; changed: ids that this version spells in another way;
    forgotten: whether clients were forgotten before there was a rule
    """

    population: Population
    changed: int = 0
    forgotten: bool = False


def check_ids(
    population: Population,
    *,
    fold_ids: bool = False,
    show: Callable[[str], object] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CheckedIds:
    """Makes a version whose manifest has the rule of client ids that appends need (`fedcore.population.identifiers`),
    if every client keeps an id of its own under it.

    Blocks are the same, except those with an id that the rule spells in another way (without the blanks at its ends,
    say). Holds 24 bytes for each client.

    fold_ids: the rule that also folds ids
    show: called with each of the first ids that are in the way, before the error is raised: data about people
    progress: called with (blocks done, blocks)

    Returns the population as it is if it has the rule already, or folds. Raises PopulationError if ids of several
    clients would be equal, or the rule refuses an id; if ids were folded that forgotten clients or dealt documents had;
    if this is not the newest version, or another process writes. ConfigError for a URL.
    """
    old = population.manifest
    rule: Rule = FOLDED if fold_ids else STRIPPED
    if old.id_rule in (rule, FOLDED):
        return CheckedIds(population)
    if fold_ids and old.suppression is not None:
        raise PopulationError(
            f"Clients of {population.path} were forgotten. Only hashes of their ids are kept, which cannot be folded. "
            "A client that comes back in another spelling would get a new budget.",
            "Check the ids without --fold-ids.",
        )
    with versions.writing(population) as path:
        found = _Spelled(population, rule)
        found.read(progress)
        found.refuse(show)
        blocks = list(population.blocks)
        for number, (index, ids) in enumerate(found.changed()):
            slot = layout.block_folder(path, versions.slot_name(old.version + 1, number))
            gone = population.are_holes(blocks[index].first, blocks[index].clients)
            blocks[index] = written_again(population, index, ids, gone, slot)
        alike = 0 if fold_ids or old.records else len(identifiers.alike(found.made, found.folded))
        provenance = Provenance(options={"ids": rule}, alike_ids=alike)
        made = versions.commit(path, versions.following(old, provenance, rule, blocks=tuple(blocks)))
        return CheckedIds(made, sum(found.changes.values()), old.suppression is not None)


class _Spelled:
    """The ids of a population under a rule. own, made, folded: for each block `identifiers.hashes` of its clients as
    they are, as the rule spells them, and folded; the same array where these are the same."""

    def __init__(self, population: Population, rule: Rule):
        self.population, self.rule, self.entries = population, rule, population.manifest.period is not None
        self.own: list[np.ndarray] = []
        self.made: list[np.ndarray] = []
        self.folded: list[np.ndarray] = []
        self.changes: dict[int, int] = {}  # ids that change, by block
        self.unusable: list[str] = []  # the first ones
        self.refused = 0

    def _clients(self, index: int) -> tuple[list[str], list[str], list[str]]:
        """(clients of a block, the same by the rule, why each cannot be used)"""
        clients = clients_of(self.population.client_ids(index).tolist(), self.entries)
        return (clients, *identifiers.spelled_or_why(clients, self.rule))

    def read(self, progress: Callable[[int, int], None] | None) -> None:
        for index in range(len(self.population.blocks)):
            clients, made, faults = self._clients(index)
            bad = [f"{one!r}: {why}" for one, why in zip(clients, faults, strict=False) if one and why]
            self.refused += len(bad)
            self.unusable += bad[: SHOWN - len(self.unusable)]
            folded = identifiers.folded(made)
            self.own.append(identifiers.hashes(clients))
            self.made.append(self.own[-1] if made == clients else identifiers.hashes(made))
            self.folded.append(self.made[-1] if folded == made else identifiers.hashes(folded))
            if made != clients:
                self.changes[index] = sum(one != other for one, other in zip(clients, made, strict=True))
            if progress is not None:
                progress(index + 1, len(self.population.blocks))

    def refuse(self, show: Callable[[str], object] | None) -> None:
        """Raises PopulationError if the rule cannot be stored."""
        alike = identifiers.alike(self.own, self.made)
        groups = self._groups(alike[:SHOWN])
        number = len(groups) if len(alike) <= SHOWN else len(alike)
        path = self.population.path
        if number or self.refused:
            for line in (*groups, *self.unusable):
                if show is not None:
                    show(line)
            once, option = "without blanks at the ends", ""
            forgetting = "Or forget these clients (`fedcore population forget`)."
            if self.rule == FOLDED:
                once, option = "folded", " with --fold-ids"
                forgetting = "Forgetting clients does not help: afterwards ids cannot be folded."
            raise PopulationError(
                f"The rule for client ids cannot be stored in {path}: {number} groups of ids are equal once {once}, "
                f"and {self.refused} ids are empty or hold a refused character. No version was made.",
                f"Ingest the sources again{option}, which makes one client of each group. The new population has its "
                f"own budget, and the privacy losses of both add up. {forgetting} To see their ids, use --show.",
            )
        if self.changes and self.population.manifest.halves == "document":
            raise PopulationError(
                f"{sum(self.changes.values())} ids of {path} would change. They decide in which half each document of "
                "their clients is.",
                "Ingest the sources again.",
            )

    def _groups(self, wanted: np.ndarray) -> list[str]:
        """The ids of the groups with these hashes. Ids that have only the hash in common are no group."""
        found: dict[str, set[str]] = defaultdict(set)
        for index, hashes in enumerate(self.made if len(wanted) else ()):
            if not np.isin(hashes, wanted).any():
                continue
            clients, made, _ = self._clients(index)
            for place in np.flatnonzero(np.isin(hashes, wanted)).tolist():
                found[made[place]].add(clients[place])
        return [" = ".join(map(repr, sorted(group))) for group in found.values() if len(group) > 1]

    def changed(self) -> Iterator[tuple[int, list[str]]]:
        """(block, all ids as they are stored) of blocks with an id that changes"""
        for index in self.changes:
            yield index, stored_ids(self.population.client_ids(index).tolist(), self.rule, self.entries)
