"""Versions that change what a population is, and not whom it holds.

Beginning cohorts: from then on the privacy budget of a population is kept for each append's clients by themselves. An
append opens a cohort whether anybody came or not, so that the list of cohorts is the operator's calendar.
"""

from __future__ import annotations

from collections.abc import Callable

from fedcore.errors import PopulationError
from fedcore.population import cohorts, versions
from fedcore.population.cohorts import FOUNDERS
from fedcore.population.deliveries import Delivered, added
from fedcore.population.ingest import calendars
from fedcore.population.ingest.request import IngestRequest
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population


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
