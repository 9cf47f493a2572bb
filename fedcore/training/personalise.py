"""Per-client outputs, written on request: one row for each client, outside the run.

They contain each client's own data and are not differentially private: they are for that client only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedcore.errors import PopulationError, RunError, WrongKind
from fedcore.methods.registry import make_method, with_free_settings
from fedcore.population.blocks import ClientBlock, CountsBlock, leaves
from fedcore.population.store import Population
from fedcore.rounds.clients import read_memory, redacted
from fedcore.rounds.method import AnyMethod, Memory, State
from fedcore.runs.store import Run
from fedcore.storage.files import Place
from fedcore.training.columns import other_columns
from fedcore.training.output_files import output_files
from fedcore.training.spec import recorded_request

NOTE = (
    "Personalised outputs contain each client's own data. They are not differentially private: give each client "
    "its own row and nobody else's."
)


def personalise(
    run_path: str | Place,
    population_path: str | Place,
    dest: str | Path,
    progress: Callable[[int, int], None] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write `dest`, a Zarr folder, or a Parquet or CSV file by its ending: `fedcore.training.output_files`.

    An output whose name begins with "rows_" has a row for each row of the population, in the order in which it stores
    them, instead of one for each client.

    settings: that may be given to a run that was made (`Method.free_settings`), given anew; the outputs say which.

    Memory stays at one block. Raises RunError, WrongKind if run and population do not fit, PopulationError if `dest`
    exists, ConfigError if it is a URL or ends otherwise, or for other settings. Returns {"dest", "files" (of single
    files), "clients", "outputs", "settings", "sensitive", "note"}.
    """
    run, population = Run.open(run_path), Population.open(population_path)
    check_fits(run, population)
    method, state = trained(run, settings)
    about: dict[str, Any] = {"sensitive": True, "note": NOTE, "run": run.id, "method": method.name}
    about["settings"] = method.free_settings_in_force(state)
    memory, digests = memories_of(run, population)
    names: set[str] = set()
    try:
        with output_files(dest, population, method.feature_outputs) as files:
            files.begin(about)
            first_row = 0
            for index, stored in enumerate(population.blocks):
                kept = None if memory is None else read_memory(memory, index, stored.clients, digests)
                block, ids = population.read(index), population.client_ids(index)
                for leaf in leaves(block, population.clients_per_leaf):
                    at = slice(leaf.first - block.first, leaf.first - block.first + leaf.clients)
                    with redacted(method, index):
                        mine = None if kept is None else {name: value[at] for name, value in kept.items()}
                        outputs = method.personalise(state, leaf, mine)
                    files.add(leaf, [str(client) for client in ids[at]], outputs, first_row)
                    names |= outputs.keys()
                    first_row += 0 if isinstance(leaf, CountsBlock) else int(leaf.ptr[-1])
                if progress is not None:
                    progress(index + 1, len(population.blocks))
            files.commit()
    except OSError as error:
        raise PopulationError(f"cannot write {str(dest)!r}: {error.strerror}.", "Nothing was kept.") from error
    return {
        "dest": str(dest),
        **({"files": files.files} if files.files else {}),
        "clients": files.clients,
        "outputs": sorted(names),
        "settings": about["settings"],
        "sensitive": True,
        "note": NOTE,
    }


def remembering_leaves(run: Run, population: Population) -> Iterator[tuple[int, ClientBlock, Memory | None]]:
    """(block, leaf, what its clients remember of the run's last round) for every leaf, in order; one block at a time.
    Raises RunError for damaged memories."""
    folder, digests = memories_of(run, population)
    for index in range(len(population.blocks)):
        block = population.read(index)
        memory = None if folder is None else read_memory(folder, index, block.clients, digests)
        for leaf in leaves(block, population.clients_per_leaf):
            at = slice(leaf.first - block.first, leaf.first - block.first + leaf.clients)
            yield index, leaf, None if memory is None else {name: value[at] for name, value in memory.items()}


def memories_of(run: Run, population: Population) -> tuple[Place | None, dict[str, str] | None]:
    """Folder and digests of what the clients remember; None for a run that keeps nothing.

    Raises RunError if they are lost, or if the version that they belong to was removed: clients were forgotten since,
    and others may be in their places.
    """
    folder, digests = run.memories(), run.memory_digests()
    where = recorded_request(run)["population"]
    if folder is not None and where["id"] == population.id and where["version"] not in population.versions():
        raise RunError(
            f"version {where['version']} of the population, to whose clients the memories of run {run.id!r} belong, is "
            f"not at {population.location}: clients were forgotten, or it was never copied there.",
            "Train again on the newest version, or name the place that has this version.",
        )
    return folder, digests


def trained(run: Run, settings: Mapping[str, Any] | None = None) -> tuple[AnyMethod, State]:
    """The run's method and its last committed state. settings: that may be given to a run that was made, given anew.

    Raises RunError, also for a state of another version's, ConfigError for settings that act on training.
    """
    info = recorded_request(run)
    method = make_method(info["method"], info["config"])
    if settings:
        method = with_free_settings(method, settings)
    values = run.read_state()
    try:
        return method, method.State(**values)
    except TypeError as error:
        raise RunError(
            f"the state of run {run.id!r} is not one of method {method.name!r} ({error}).",
            "Restore it from a backup, or use the version that wrote it.",
        ) from error


def check_fits(run: Run, population: Population) -> None:
    """Raises unless the run's model can be applied to this population."""
    info = recorded_request(run)
    kind = make_method(info["method"], info["config"]).kind
    if population.kind != kind or population.features != info["features"]:
        raise WrongKind(
            f"run {run.id!r} needs {kind} with {info['features']} features; population {population.path.name!r} "
            f"holds {population.kind} with {population.features}.",
            "Ingest it with the same vocabulary or columns.",
        )
    if other := other_columns(info, population):
        raise WrongKind(
            f"run {run.id!r} was trained on other columns than those of population {population.path.name!r}: {other}.",
            "Ingest it with the same columns in the same order, in the same units.",
        )
    if run.round < 1:
        raise RunError(f"run {run.id!r} has not finished a round yet.", "Resume it first.")
