"""Checks of the deployments and pipelines of a file. Problems are reported before they are served or deployed, instead
of by each of their runs.

Everything is looked up as in the first run, and nothing is written or spent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from fedcore.errors import (
    BudgetExceeded,
    ConfigError,
    FedcoreError,
    IngestError,
    NotReady,
    PopulationNotFound,
    Unreachable,
    Waiting,
)
from fedcore.evaluation.evaluate import check_public, check_scored
from fedcore.evaluation.export import FORMS
from fedcore.methods.registry import make_method, with_free_settings
from fedcore.operations.deployment import Deployment, DeploymentFile
from fedcore.operations.pipelines.append import existing
from fedcore.operations.pipelines.files import folder_of, patterns_at
from fedcore.operations.pipelines.law import Ready, ready
from fedcore.operations.pipelines.steps import Evaluate, Export, Forget, Ingest, Personalise, Step, label
from fedcore.operations.series import public_population
from fedcore.population.ingest.batches import read_vocabulary
from fedcore.population.ingest.request import IngestRequest, current_names
from fedcore.population.ingest.schema import read_schema
from fedcore.population.store import Population
from fedcore.storage.files import is_url, place
from fedcore.training.request import Series
from fedcore.training.spec import open_inputs, resolve

Problem = tuple[str, FedcoreError]  # (of what, in words; the error that its first run would meet)


def problems(content: DeploymentFile, unmade: Collection[str] = ()) -> list[Problem]:
    """Return all problems: populations that are missing, or lack the kind, columns and vocabulary that are needed;
    budgets that are missing, or do not allow the first run; evaluation sets that are not public; impossible steps.

    A population that a pipeline of the file makes may be missing. A run that would wait for new clients is no problem.
    unmade: populations that will be made before anything is served, or whose budgets will be set then.
    """
    made = {item.population for item in content.pipeline if item.ingests}
    found = [
        (f"deployment {item.name!r}", error)
        for item in content.deployment
        for error in _of_deployment(item, item.population in made, item.population in unmade)
    ]
    for pipeline in content.pipeline:
        try:
            whole = ready(pipeline, content.deployment)
        except FedcoreError as error:
            found.append((f"pipeline {pipeline.name!r}", error))
            continue
        for step in pipeline.step:
            where = f"step {label(step)!r} of pipeline {pipeline.name!r}"
            found += [(where, error) for error in _of_step(whole, step)]
    return found


def that_pass(found: Sequence[Problem], served_before: bool) -> list[Problem]:
    """Those that no mistake in the file causes: a budget that is exhausted and, in a file that was served before, a
    folder or a store that cannot be reached. The file is served in spite of them; the runs that they concern are
    refused, and say why.
    """
    passing = BudgetExceeded | IngestError | Unreachable if served_before else BudgetExceeded
    return [one for one in found if isinstance(one[1], passing)]


UNCHECKED = "Nothing was registered. Fix them; or give --unchecked, if what they need is only out of reach from here."


def check_ready(name: str, found: Sequence[Problem], remedy: str = UNCHECKED) -> None:
    """Raises NotReady with the whole list, if there is one. name: of the file."""
    if not found:
        return
    lines = "".join(f"\n  - {where}: {type(error).__name__}: {error}" for where, error in found)
    raise NotReady(f"{len(found)} problem{'s' * (len(found) != 1)} in {name}:{lines}", remedy)


def _caught(*looks: Callable[[], object]) -> Iterator[FedcoreError]:
    """What these looks raise."""
    for look in looks:
        try:
            look()
        except Waiting:
            pass
        except FedcoreError as error:
            yield error


def _of_deployment(item: Deployment, made_here: bool, unmade: bool) -> Iterator[FedcoreError]:
    if unmade or (made_here and existing(item.population) is None):
        if item.evaluate_on is not None:
            yield from _caught(lambda: check_public(Population.open(str(item.evaluate_on))))
        return
    try:
        Population.open(item.population)
    except FedcoreError as error:
        yield error
        return
    yield from _caught(
        lambda: resolve(item.request, open_inputs(item.request)).check_worth(),
        lambda: public_population(item.series, make_method(item.method, item.config), Population.open(item.population)),
    )


def _of_step(whole: Ready, step: Step) -> Iterator[FedcoreError]:
    if isinstance(step, Ingest):
        yield from _of_ingest(whole, step)
    elif isinstance(step, Forget):
        yield from _caught(lambda: _check_cohorts(whole))
    elif isinstance(step, Evaluate):
        yield from _caught(lambda: _check_evaluation(whole, step))
    elif isinstance(step, Export):
        yield from _caught(lambda: _check_export(step))
    elif isinstance(step, Personalise):
        yield from _caught(lambda: _check_outputs(whole, step))


# --- steps ------------------------------------------------------------------------------------------------------------


def _of_ingest(whole: Ready, step: Ingest) -> Iterator[FedcoreError]:
    population = whole.pipeline.population
    if is_url(population):
        yield _not_written(population)
        return
    if not folder_of(step.files).is_dir():
        yield IngestError(f"the folder {folder_of(step.files)}, in which files arrive, is not there.", "Make it.")
    yield from _caught(
        lambda: _check_options(step),
        lambda: patterns_at(step, datetime.now(UTC)),
        lambda: _check_schema(step, existing(population)),
    )


def _check_options(step: Ingest) -> None:
    """Raises ConfigError for options that do not exist or are out of range, IngestError for an unusable vocabulary."""
    request = IngestRequest.of(step.options)
    if request.vocabulary is not None:
        read_vocabulary(request.vocabulary)


def _check_schema(step: Ingest, population: Population | None) -> None:
    """Raises IngestError for a schema that cannot be read, ConfigError for columns that the population has not."""
    if step.schema_file is None:
        return
    said = read_schema(Path(step.schema_file))
    if both := sorted(said.keys() & current_names(step.options).keys()):
        raise ConfigError(f"{', '.join(both)}: given in {step.schema_file} and in options.", "Give it in the schema.")
    if population is None or not population.manifest.columns:
        return
    theirs = {column.of or column.name for column in population.manifest.columns}
    if other := sorted(set(said["columns"]) ^ theirs):
        raise ConfigError(
            f"column {other[0]!r} is in one of {step.schema_file} and the population {population.path} only.",
            "What is appended has the columns of the population.",
        )


def _not_written(population: str) -> ConfigError:
    return ConfigError(
        f"the population {population} is behind a URL, where nothing is appended or forgotten.",
        "Let a separate pipeline ingest and forget in a folder, and copy that: fedcore population copy FOLDER URL.",
    )


def _check_cohorts(whole: Ready) -> None:
    if is_url(whole.pipeline.population):
        raise _not_written(whole.pipeline.population)
    population = existing(whole.pipeline.population)
    if population is None and whole.ingest is None:
        raise PopulationNotFound(f"There is no population at {whole.pipeline.population}.", "Ingest it.")
    if population is not None and not population.manifest.cohorts:
        raise ConfigError(
            f"The population {population.path} has no cohorts, so the age of its clients is unknown.",
            "Begin them with `fedcore budget cohorts POPULATION`.",
        )


def _check_evaluation(whole: Ready, step: Evaluate) -> None:
    item = whole.deployment(step.deployment)
    method, population = make_method(item.method, item.config), existing(item.population)
    check_scored(method)
    if population is None:
        return check_public(Population.open(step.on))
    public_population(Series(evaluate_on=step.on), method, population)


def _check_export(step: Export) -> None:
    path = place(step.to)
    if not path.suffix or path.suffix.lower() not in FORMS or path.suffix.lower() == ".zarr":
        known = ", ".join(sorted(suffix for suffix in FORMS if suffix and suffix != ".zarr"))
        raise ConfigError(
            f"{step.to} cannot be replaced by every run: it is no single file of a known form.", f"End it in {known}."
        )
    if step.table is not None and path.suffix.lower() not in (".csv", ".parquet"):
        raise ConfigError(f"{step.to} does not hold a single table.", "Leave out `table`.")


def _check_outputs(whole: Ready, step: Personalise) -> None:
    item = whole.deployment(step.deployment)
    if is_url(step.to):
        raise ConfigError("Personalised outputs are not written to a URL.", "Name a local folder.")
    if step.settings:
        with_free_settings(make_method(item.method, item.config), step.settings)
