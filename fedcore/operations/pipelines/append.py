"""The step `ingest`: what is new becomes a version of the population, in one append, whatever is wrong with some files.

Where every append opens a cohort, each run of a pipeline opens exactly one, whether files came or not and whether they
could be read: the list of cohorts is the calendar's. The manifest says for which time that was done, so that a run that
is taken up after an interruption does not do it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from fedcore.errors import ConfigError, IngestError, PopulationNotFound, SourceChanged
from fedcore.operations.pipelines.files import Aside, Found, Sorted, find, folder_of, read, sort
from fedcore.operations.pipelines.journal import TIME
from fedcore.operations.pipelines.steps import Ingest, Pipeline
from fedcore.population.conversion import open_cohort
from fedcore.population.deliveries import Delivered
from fedcore.population.ingest.dealing import Sharing
from fedcore.population.ingest.ingest import ingest
from fedcore.population.ingest.request import IngestRequest, current_names
from fedcore.population.ingest.schema import read_schema
from fedcore.population.periods import label_at
from fedcore.population.store import Population
from fedcore.storage.files import is_url
from fedcore.training.budget import ledger_name, ledger_of
from fedcore.training.shared_ids import register

LEFT_OUT = 2**62  # bad rows that are let pass


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of the files. population: as it is now, None if there is none yet; version: the one that this time's
    files came with, if any came; new: their names, also of an earlier attempt for the same time; bad_rows: left out;
    cohort: the number of the one that was opened
    """

    population: Population | None
    files: Sorted
    version: int | None = None
    new: tuple[str, ...] = ()
    bad_rows: int = 0
    cohort: int | None = None
    done_before: bool = False
    aside: list[Aside] = field(default_factory=list)


class _Read(Exception):
    """The files could be read and written, and the version is not made: it was a rehearsal."""


class _Overtaken(Exception):
    """Another process made a version since the files were compared with the population."""


def look(step: Ingest, pipeline: Pipeline, at: datetime, aside: dict[str, Aside]) -> tuple[Population | None, Sorted]:
    """(the population, if there is one; what of the files is new). One that cannot be read keeps no other one out.
    Raises IngestError, what opening it raises.
    """
    population, folder = existing(pipeline.population), folder_of(step.files)
    paths, later = find(step, at)
    found, unreadable = list[Found](), list[Aside]()
    for path in paths:
        try:
            found.append(read(path, folder))
        except FileNotFoundError:  # taken away since it was found
            continue
        except OSError as error:
            name = path.relative_to(folder).as_posix()
            unreadable.append(Aside(name, "", f"It cannot be read: {error.strerror}. Check its permissions."))
    known = () if population is None else population.manifest.deliveries
    made = sort(found, known, aside, step.changed == "append")
    made.aside, made.later = [*made.aside, *unreadable], later
    return population, made


def existing(where: str) -> Population | None:
    """The newest version of a population; None if there is none. Raises what `Population.open` raises otherwise."""
    try:
        return Population.open(where)
    except PopulationNotFound:
        return None


def append(
    step: Ingest, pipeline: Pipeline, at: datetime, aside: dict[str, Aside], sharing: Sharing | None = None
) -> Appended:
    """Make the version. aside: files that were set aside before, by name. sharing: as for `ingest`

    Raises IngestError if the folder of the files is not there, ConfigError for a URL, and what writing a population
    raises: a full disk, another writer.
    """
    if is_url(pipeline.population):
        raise ConfigError(
            f"The population {pipeline.population} is behind a URL, where nothing is appended.",
            "Let the pipeline write a folder, and copy that: fedcore population copy.",
        )
    population = existing(pipeline.population)
    when = at.astimezone(UTC).strftime(TIME)
    if population is not None and _done(population, pipeline.name, when):
        return _before(population, pipeline.name, when)
    population, files = look(step, pipeline, at, aside)
    asides = list(files.aside)
    trying, bad_rows, made = files.new, 0, None
    while trying and made is None:
        try:
            made = _one_append(step, pipeline, population, trying, when, sharing)
            bad_rows = made.manifest.provenance.bad_rows
        except _Overtaken:
            return append(step, pipeline, at, aside, sharing)
        except SourceChanged as error:  # its content, or only its time: it is read again the next time
            steady = [file for file in trying if str(file.path) not in error.files]
            files.later += [file.name for file in trying if file not in steady]
            trying = steady if len(steady) < len(trying) else []
        except IngestError as error:
            steady = [file for file in trying if _same(file, folder_of(step.files))]
            files.later += [file.name for file in trying if file not in steady]
            if len(steady) == len(trying):
                good, bad, changed = _rehearsed(step, pipeline, population, trying, when, sharing)
                if len(good) == len(trying):  # each by itself, and not together
                    good, bad = [], [_aside(file, error) for file in trying]
                asides += bad
                files.later += changed
                steady = good
            trying = steady
    if made is None and population is not None and _opens_without_files(step, population, at):
        population = open_cohort(population, **_opening(step, population, at), delivered=_came(pipeline, (), when))
        return Appended(population, files, aside=asides, cohort=len(population.manifest.cohorts))
    if made is None:
        earlier = () if population is None else _names(population, pipeline.name, when)
        return Appended(population, files, new=earlier, aside=asides, done_before=bool(earlier))
    if made.manifest.ledger is not None:
        register(made, ledger_of(made, to_show=True))
    cohort = len(made.manifest.cohorts) or None
    return Appended(made, files, made.version, _names(made, pipeline.name, when), bad_rows, cohort, aside=asides)


# --- what was done for this time --------------------------------------------------------------------------------------


def _opens_without_files(step: Ingest, population: Population, at: datetime) -> bool:
    """Whether the run of this time opens cohorts though no file came: always one, but of calendar periods those that
    have begun and are not declared, which may be none.
    """
    made = population.manifest
    return bool(made.cohorts) and (made.period is None or "through" in _opening(step, population, at))


def _done(population: Population, pipeline: str, when: str) -> bool:
    """Whether the cohort of this time, or of a later one, was opened."""
    return any(name == pipeline and newest >= when for name, newest in population.manifest.occasions)


def _names(population: Population, pipeline: str, when: str) -> tuple[str, ...]:
    return tuple(one.name for one in population.manifest.deliveries if (one.pipeline, one.at) == (pipeline, when))


def _before(population: Population, pipeline: str, when: str) -> Appended:
    names = _names(population, pipeline, when)
    versions = [one.version for one in population.manifest.deliveries if (one.pipeline, one.at) == (pipeline, when)]
    if population.manifest.ledger is not None:  # of a process that died in between
        register(population, ledger_of(population, to_show=True))
    return Appended(population, Sorted(), max(versions, default=None), names, done_before=True)


# --- appending --------------------------------------------------------------------------------------------------------


def _came(pipeline: Pipeline, files: Sequence[Found], when: str) -> Delivered:
    return Delivered(tuple(file.facts for file in files), pipeline.name, when)


def _same(file: Found, folder: Path) -> bool:
    """Whether the file is as it was found."""
    try:
        return read(file.path, folder).facts == file.facts
    except OSError:
        return False


def _one_append(
    step: Ingest,
    pipeline: Pipeline,
    population: Population | None,
    files: Sequence[Found],
    when: str,
    sharing: Sharing | None,
) -> Population:
    def unchanged() -> Delivered:
        newest = existing(pipeline.population)  # to which no other process writes now
        if newest is not None and population is not None and newest.version != population.version:
            raise _Overtaken
        if changed := [str(file.path) for file in files if not _same(file, folder_of(step.files))]:
            raise SourceChanged(changed)
        return _came(pipeline, files, when)

    return _ingest(step, pipeline, population, files, when, unchanged, sharing)


def _aside(file: Found, error: IngestError) -> Aside:
    """For journals and pages, which hold nothing of what is in the file."""
    return Aside(file.name, file.sha256, str(error.without_values))


def _rehearsed(
    step: Ingest,
    pipeline: Pipeline,
    population: Population | None,
    files: Sequence[Found],
    when: str,
    sharing: Sharing | None,
) -> tuple[list[Found], list[Aside], list[str]]:
    """(files that can be ingested by themselves, the others with what is wrong, names of those that are changing)."""

    def enough() -> Delivered:
        raise _Read

    good, bad, changed = list[Found](), list[Aside](), list[str]()
    for file in files:
        try:
            _ingest(step, pipeline, population, [file], when, enough, sharing)
        except _Read:
            good.append(file)
        except SourceChanged:
            changed.append(file.name)
        except IngestError as error:
            bad.append(_aside(file, error))
    return good, bad, changed


def _ingest(
    step: Ingest,
    pipeline: Pipeline,
    population: Population | None,
    files: Sequence[Found],
    when: str,
    delivered: Callable[[], Delivered],
    sharing: Sharing | None,
) -> Population:
    said: dict[str, Any] = {} if step.schema_file is None else read_schema(Path(step.schema_file))
    said |= {**current_names(step.options), "tolerance": LEFT_OUT if step.bad_rows == "leave_out" else 0}
    if population is not None:
        for name in ("declared_clients", "public_for_evaluation", "first", "through", "clients_per_leaf"):
            said.pop(name, None)  # of the first version
        said |= _opening(step, population, datetime.strptime(when, TIME).replace(tzinfo=UTC))
        if population.manifest.public_for_evaluation:
            said["public_for_evaluation"] = population.manifest.public_reason
    return ingest(
        [file.path for file in files],
        pipeline.population,
        IngestRequest.of(said),
        append=population is not None,
        ledger=ledger_name() if population is None else None,
        delivered=delivered,
        sharing=sharing,
    )


def _opening(step: Ingest, population: Population, at: datetime) -> dict[str, Any]:
    """What is declared with an append that opens cohorts: it follows from the calendar and the file, never from data.

    Of calendar periods those that have begun by the day before are declared: the newest day whose rows are all there.
    """
    old = population.manifest
    if not old.cohorts:
        return {}
    if old.period is None:
        if step.newcomers is None or old.nominal_clients is None:
            return {}
        return {"declared_clients": old.nominal_clients + step.newcomers}
    label = label_at(old.period.unit, at.date() - timedelta(days=1))
    last = old.cohorts[-1].period
    if last is not None and label <= last:
        return {}
    return {"through": label, **({} if step.newcomers is None else {"declared_clients": step.newcomers})}


# --- forgetting by age ------------------------------------------------------------------------------------------------


def aged(population: Population, at: datetime, after_days: int) -> int | None:
    """The newest cohort that is older than `days`; None if there is none. The newest of all always stays.

    A cohort is as old as its append, a calendar period as its end.
    """
    old = population.manifest
    before: date = at.date() - timedelta(days=after_days)
    if old.period is not None:
        limit = label_at(old.period.unit, before)
        numbers = [cohort.number for cohort in old.cohorts if cohort.period is not None and cohort.period < limit]
    else:
        numbers = [cohort.number for cohort in old.cohorts if cohort.opened < before.isoformat()]
    return min(max(numbers), len(old.cohorts) - 1) or None if numbers else None
