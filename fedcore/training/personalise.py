"""Per-client outputs, written on request: one row for each client, outside the run.

They contain each client's own data and are not differentially private: they are for that client only.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import zarr

from fedcore.errors import ConfigError, PopulationError, RunError, WrongKind
from fedcore.methods.registry import make_method, with_free_settings
from fedcore.population.blocks import ClientBlock, CountsBlock, leaves
from fedcore.population.store import Population
from fedcore.rounds.clients import read_memory, redacted
from fedcore.rounds.method import ROWS, AnyMethod, Memory, State
from fedcore.runs.store import Run
from fedcore.storage.files import Place, flush, is_remote, make_folder, place, seal, sweep_partials
from fedcore.training.spec import recorded_request

ROWS_PER_CHUNK = 16_384
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
    """Write `dest`: a Zarr group with an array for each output, first axis = clients, and clients.jsonl with their ids.

    An output whose name begins with "rows_" has a row for each row of the population instead; client i then owns the
    rows ptr[i] .. ptr[i + 1] - 1, in the order in which the population stores them.

    settings: that act after training alone (`Method.free_settings`), given anew; what is in force is recorded.

    Memory stays at one block. Raises RunError, WrongKind if run and population do not fit, PopulationError if `dest`
    exists, ConfigError if it is a URL, or for other settings. Returns {"dest", "clients", "outputs", "settings",
    "sensitive", "note"}.
    """
    run, population, dest = Run.open(run_path), Population.open(population_path), _local(dest)
    check_fits(run, population)
    if dest.exists():
        raise PopulationError(f"{str(dest)!r} exists already.", "Name a folder that does not exist.")
    method, state = trained(run, settings)
    memory, digests = memories_of(run, population)
    partial = dest.with_name(f".{dest.name}.{os.getpid()}.partial")
    try:
        sweep_partials(dest)
        shutil.rmtree(partial, ignore_errors=True)  # of a dead process that had this number: in a container all have
        make_folder(partial, private=True)
        group = zarr.open_group(partial, mode="a", zarr_format=3)
        about: dict[str, Any] = {"sensitive": True, "note": NOTE, "run": run.id, "method": method.name}
        group.attrs.update({**about, "settings": method.free_settings_in_force(state)})
        with open(partial / "clients.jsonl", "w") as ids:
            first_row = 0
            for index in range(len(population.blocks)):
                clients = population.blocks[index].clients
                kept = None if memory is None else read_memory(memory, index, clients, digests)
                outputs = _write_block(group, method, state, population, index, kept, first_row)
                first_row += population.blocks[index].train.entries
                ids.writelines(json.dumps(str(client)) + "\n" for client in population.client_ids(index))
                if progress is not None:
                    progress(index + 1, len(population.blocks))
        seal(partial)
        partial.rename(dest)
        flush(dest.parent)
    except OSError as error:
        raise PopulationError(f"cannot write {str(dest)!r}: {error.strerror}.", "Nothing was kept.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return {
        "dest": str(dest),
        "clients": population.n_clients,
        "outputs": sorted(outputs),
        "settings": method.free_settings_in_force(state),
        "sensitive": True,
        "note": NOTE,
    }


def _local(dest: str | Path) -> Path:
    path = place(dest)
    if is_remote(path):
        raise ConfigError(
            f"Personalised outputs are not written to {path}.", "They hold clients' own data: name a local folder."
        )
    return Path(str(path))


def _write_block(
    group: zarr.Group,
    method: AnyMethod,
    state: State,
    population: Population,
    index: int,
    memory: Memory | None,
    first_row: int,
) -> set[str]:
    """first_row: of the block, counted over the population. Returns the names of the outputs."""
    names: set[str] = set()
    block = population.read(index)
    with redacted(method, index):
        for leaf in leaves(block, population.clients_per_leaf):
            start = leaf.first - block.first
            mine = None if memory is None else {k: v[start : start + leaf.clients] for k, v in memory.items()}
            outputs = method.personalise(state, leaf, mine)
            if not isinstance(leaf, CountsBlock) and any(name.startswith(ROWS) for name in outputs):
                ends = leaf.ptr[1:] + first_row
                _put(group, "ptr", ends, leaf.first + 1, population.n_clients + 1, population.clients_per_leaf)
            for name, values in outputs.items():
                if name.startswith(ROWS):
                    _put(group, name, values, first_row, population.n_rows, ROWS_PER_CHUNK)
                else:
                    _put(group, name, values, leaf.first, population.n_clients, population.clients_per_leaf)
                names.add(name)
            first_row += 0 if isinstance(leaf, CountsBlock) else int(leaf.ptr[-1])
    return names


def _put(group: zarr.Group, name: str, values: np.ndarray, first: int, length: int, chunk: int) -> None:
    """values to entries first ... of the array of this name, which is made if it is not there."""
    if name not in group:
        group.create_array(
            name,
            shape=(length, *values.shape[1:]),
            dtype=values.dtype,
            chunks=(chunk, *values.shape[1:]),
            config={"write_empty_chunks": True},
        )
    array = cast("zarr.Array[Any]", group[name])
    array[first : first + len(values)] = values


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
    """The run's method and its last committed state. settings: that act after training alone, given anew.

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
    if run.round < 1:
        raise RunError(f"run {run.id!r} has not finished a round yet.", "Resume it first.")
