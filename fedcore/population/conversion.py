"""New versions that change the form of a population, but not its clients.

Beginning cohorts: from then on the clients of each append are a cohort with a separate privacy budget. Every append
opens a cohort, also without new clients, so the list of cohorts follows the operator's calendar and not the data.
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
    """Make a version with the same blocks, in which all clients are in cohort 1.

    record: called with the number of the version that is converted, its checksum and a new token, while the writer
        lock is held. It records them in the ledger and returns the token to use: that of an earlier attempt at the
        same version, if there was one. Its exceptions are passed on, and nothing has changed then.

    Returns the population unchanged if it already has cohorts. Raises PopulationError if this is not the newest
    version, or if another process writes; ConfigError for a URL.
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
    declared_clients: int | None = None,
    through: str | None = None,
    delivered: Delivered | None = None,
) -> Population:
    """Make the version of an append without new clients: the same clients, and one more cohort. For a population of
    calendar periods it opens all periods up to `through`.

    declared_clients: the new declared total of clients, or the declared number in each period; None: not declared
    delivered: the append of a pipeline that received no file

    Raises PopulationError if the population has no cohorts, this is not its newest version, or another process writes;
    IngestError if `through` does not follow its calendar; ConfigError for a URL.
    """
    old = population.manifest
    if not old.cohorts:
        raise PopulationError(
            f"The population {population.path} has no cohorts.", "Begin them with `fedcore budget cohorts POPULATION`."
        )
    day = None if delivered is None else delivered.day
    if old.period is not None or through is not None:
        request = IngestRequest.of({"through": through, "declared_clients": declared_clients})
        dealt = calendars.declared(population, request)
        if not dealt.labels:
            raise PopulationError("There is no new period to declare.", "Pass the last new one: --through LABEL.")
        fields = versions.declaring(old.cohorts, dealt.labels, declared_clients, old.order, day)
    else:
        fields = versions.opening(old, declared_clients, day=day)
    if delivered is not None:
        fields |= added(old.deliveries, old.occasions, delivered, old.version + 1, cohorts=True)
    with versions.writing(population) as path:
        return versions.commit(path, versions.following(old, Provenance(), **fields))
