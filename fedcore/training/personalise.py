"""Per-client outputs, written on request: one row for each client, outside the run.

They contain each client's own data and are not differentially private: they are for that client only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.errors import PopulationError, RunError, WrongKind
from fedcore.methods.registry import method_of_run, with_free_settings
from fedcore.population.blocks import ClientBlock, CountsBlock, joined, leaves
from fedcore.population.sizing import usable_cores
from fedcore.population.store import Population
from fedcore.rounds.clients import Source, answer_all, expect_block, population_of, read_block, read_memory, redacted
from fedcore.rounds.engine import Backend, InProcessBackend
from fedcore.rounds.method import ROWS, AnyMethod, ClientOutputs, Memory, State
from fedcore.rounds.results import segment_names
from fedcore.rounds.statistics import IntegerSum, Statistics
from fedcore.runs.store import Run
from fedcore.storage.files import Place
from fedcore.training.output_files import Leaf, OutputFiles
from fedcore.training.output_kinds import output_files
from fedcore.training.output_parts import Parts, write_part
from fedcore.training.record import other_columns
from fedcore.training.spec import recorded_request

NOTE = (
    "Personalised outputs contain each client's own data. They are not differentially private: give each client "
    "only its own row."
)


def personalise(
    run_path: str | Place,
    population_path: str | Place,
    dest: str | Path,
    progress: Callable[[int, int], None] | None = None,
    settings: Mapping[str, Any] | None = None,
    backend: Backend | None = None,
    at_once: int = 1,
    *,
    safe_cells: bool = False,
) -> dict[str, Any]:
    """Write `dest`, a Zarr folder, a Parquet or CSV file, arrays or pictures by its ending:
    `fedcore.training.output_files`, `fedcore.training.output_pictures`.

    An output whose name begins with "rows_" has a row for each row of the population, in the order in which it stores
    them, instead of one for each client.

    settings: new values of settings that may change after a run (`Method.free_settings`); the outputs state them.
    backend: computes the outputs; this process by default. Its workers write to the folder of `dest`.
    at_once: blocks that are requested from it together
    safe_cells: of a CSV file, whether ids that a spreadsheet would run as formulas get an apostrophe before them
    progress: called after each block with the number of rows (of counts: clients) that are written, and of all

    Memory stays at one block in each process, and the next where it is read ahead. Outputs of blocks are kept next to
    `dest` until all are there, so the disk holds everything twice at the end. After an interruption, the same call
    continues, to the same bytes (`fedcore.training.output_parts`). Raises RunError, WrongKind if run and population do
    not fit, PopulationError if `dest` exists or another process writes it, ConfigError if it is a URL or has another
    ending, or for other settings.
    Returns {"dest", "files" (of single files), "clients", "outputs", "settings", "sensitive", "note", "blocks_kept"
    (from an interrupted call, if any)}.
    """
    run, population = Run.open(run_path), Population.open(population_path)
    check_fits(run, population)
    method, state = trained(run, settings)
    about: dict[str, Any] = {"sensitive": True, "note": NOTE, "run": run.id, "method": method.name}
    about["settings"] = method.free_settings_in_force(state)
    if segments := method.segments(state):
        about["segments"] = dict(zip(segment_names(len(segments)), map(int, segments), strict=True))
    read, blocks, backend = _blocks(run, population, method), len(population.blocks), backend or InProcessBackend()
    here = isinstance(backend, InProcessBackend)
    try:
        files = output_files(dest, population, method.feature_outputs, safe_cells=safe_cells)
        with Parts(files.path, {**about, **_identity(run, population)}) as parts, files:
            files.begin(about)
            function = _Answer(read, parts.folder.absolute())
            together = _Joined(files, parts, population)
            kept = set(parts.there(blocks))

            def answer(lot: Iterable[int]) -> None:
                missing = [index for index in lot if index not in kept]
                if not missing:
                    return
                if here:
                    coming = (index for index in range(missing[-1] + 1, blocks) if index not in kept)
                    for following in islice(coming, 1):
                        function.expect(state, following, usable_cores() > 1)
                backend.map_blocks(function, state, missing, _sizes(population, missing))

            lots = [range(low, min(low + at_once, blocks)) for low in range(0, blocks, at_once)]
            for lot, settled in _answered(lots, answer, ahead=not here):
                for index in lot:
                    if not together.add(index):  # damaged
                        settled()
                        kept.discard(index)
                        answer([index])
                        together.add(index)
                    if progress is not None:
                        progress(*together.written)
            files.commit()
            parts.finished()
    except OSError as error:
        raise PopulationError(f"cannot write {str(dest)!r}: {error.strerror}.", "Nothing was kept.") from error
    return {
        "dest": str(dest),
        **({"files": files.files} if files.files else {}),
        "clients": files.clients,
        "outputs": sorted(together.names),
        "settings": about["settings"],
        "sensitive": True,
        "note": NOTE,
        **({"blocks_kept": len(kept)} if kept else {}),
    }


def _identity(run: Run, population: Population) -> dict[str, Any]:
    """What outputs depend on besides the settings."""
    return {
        "committed": run.committed_digest,
        "population": [population.id, population.version, population.checksum],
        "fedcore": version("fedcore"),
    }


def _answered(
    lots: Sequence[range], answer: Callable[[range], None], ahead: bool
) -> Iterator[tuple[range, Callable[[], object]]]:
    """(each lot once it is answered, what waits until nothing is being answered). ahead: the next one is being answered
    meanwhile, as other processes can while this one writes."""
    if not ahead:
        for lot in lots:
            answer(lot)
            yield lot, lambda: None
        return
    with ThreadPoolExecutor(1) as pool:
        made = [pool.submit(answer, lot) for lot in lots[:1]]
        for number, lot in enumerate(lots):
            made[number].result()
            made += [pool.submit(answer, following) for following in lots[number + 1 : number + 2]]
            yield lot, partial(wait, made)


def _sizes(population: Population, blocks: Sequence[int]) -> list[int]:
    return [population.decoded_bytes(index) for index in blocks]


@dataclass(frozen=True)
class _Blocks:
    """Reads a block, with all that its clients' outputs are made of, and what they remember; None: nothing.

    memories: where memories are, with their digests; None: outputs are made without
    """

    method: AnyMethod
    source: Source
    memories: Place | None
    digests: Mapping[str, str] | None

    def __call__(self, state: State, index: int) -> tuple[ClientBlock, Memory | None]:
        block = read_block(population_of(self.source), index, self.all_documents)
        if self.all_documents and isinstance(block, CountsBlock):
            block = joined(block)
        folder = self.memories
        return block, None if folder is None else read_memory(folder, index, block.clients, self.digests)

    def expect(self, state: State, index: int, spare: bool) -> None:
        """This block comes next (`fedcore.rounds.clients.answer_all`)."""
        expect_block(population_of(self.source), index, self.all_documents, spare)

    def leaves(self, block: ClientBlock, memory: Memory | None) -> Iterator[tuple[ClientBlock, Memory | None]]:
        for leaf in leaves(block, population_of(self.source).clients_per_leaf):
            at = slice(leaf.first - block.first, leaf.first - block.first + leaf.clients)
            yield leaf, None if memory is None else {name: value[at] for name, value in memory.items()}

    @property
    def all_documents(self) -> bool:
        """Whether outputs are made of the held-out part too."""
        return self.method.personalises_all_documents and population_of(self.source).manifest.one_whole


def _blocks(run: Run, population: Population, method: AnyMethod) -> _Blocks:
    """Raises RunError if memories are needed and lost."""
    folder, digests = memories_of(run, population, method) if method.outputs_use_memories else (None, None)
    return _Blocks(method, Source.of(population), folder, digests)


@dataclass(frozen=True)
class _Answer:
    """Writes the outputs of one block to the folder of parts, leaf by leaf; returns how many clients it has."""

    blocks: _Blocks
    parts: Path

    def __call__(self, state: State, index: int) -> Statistics:
        found: list[ClientOutputs] = []
        block, memory = self.blocks(state, index)
        for leaf, mine in self.blocks.leaves(block, memory):
            with redacted(self.blocks.method, index):
                found.append(self.blocks.method.personalise(state, leaf, mine))
        names = found[0] if found else ()
        outputs = {name: np.concatenate([leaf[name] for leaf in found]) for name in names}
        ptr = None if isinstance(block, CountsBlock) else np.asarray(block.ptr, np.int64)
        write_part(self.parts, index, outputs, ptr)
        return {"clients": IntegerSum(np.array(block.clients, np.int64))}

    def expect(self, state: State, index: int, spare: bool) -> None:
        self.blocks.expect(state, index, spare)


class _Joined:
    """Parts of blocks, put together leaf by leaf, so that what is written does not depend on the blocks."""

    def __init__(self, files: OutputFiles, parts: Parts, population: Population):
        self.files, self.parts, self.population = files, parts, population
        self.first_row, self.clients, self.names = 0, 0, set[str]()

    @property
    def written(self) -> tuple[int, int]:
        """How many rows of all, or clients of all in a population of counts."""
        if self.population.kind == "rows":
            return self.first_row, self.population.n_rows
        return self.clients, self.population.n_clients

    def add(self, index: int) -> bool:
        """Write the outputs of the next block; False if its part is not whole."""
        read = self.parts.read(index)
        if read is None:
            return False
        outputs, ptr = read
        stored, ids = self.population.blocks[index], self.population.client_ids(index)
        self.names |= outputs.keys()
        for low in range(0, stored.clients, self.population.clients_per_leaf):
            at = slice(low, min(low + self.population.clients_per_leaf, stored.clients))
            rows = slice(0, 0) if ptr is None else slice(int(ptr[at.start]), int(ptr[at.stop]))
            own = None if ptr is None else ptr[at.start : at.stop + 1] - rows.start
            leaf = Leaf(stored.first + low, at.stop - low, self.first_row + rows.start, own)
            mine = {name: values[rows if name.startswith(ROWS) else at] for name, values in outputs.items()}
            self.files.add(leaf, [str(client) for client in ids[at]], mine)
        self.first_row += 0 if ptr is None else int(ptr[-1])
        self.clients += stored.clients
        return True


def remembering_leaves(
    run: Run, population: Population, method: AnyMethod
) -> Iterator[tuple[int, ClientBlock, Memory | None]]:
    """(block, leaf, what its clients remember of the run's last round) for every leaf, in order. One block is in
    memory, and the next where it is read ahead. None where outputs are made without memories, and for clients that took
    no part. Raises RunError for damage."""
    blocks = _blocks(run, population, method)
    for index, read in enumerate(answer_all(blocks, None, range(len(population.blocks)), spare=usable_cores() > 1)):
        for leaf, memory in blocks.leaves(*read):
            yield index, leaf, memory


def memories_of(run: Run, population: Population, method: AnyMethod) -> tuple[Place | None, dict[str, str] | None]:
    """Folder and digests of what the clients remember; None for a run that keeps nothing, and for other people than
    those who took part in it: what they remember is not that of these clients.

    Raises RunError if the memories are lost, or if the version that they belong to was removed: clients were forgotten
    since, and others may be in their places; and if clients came since, who remember nothing, unless the method serves
    them too.
    """
    folder, digests = run.memories(), run.memory_digests()
    where = recorded_request(run)["population"]
    if folder is None or where["id"] != population.id:
        return None, None
    if where["version"] not in population.versions():
        if method.serves_newcomers:
            return None, None
        raise RunError(
            f"version {where['version']} of the population, to whose clients the memories of run {run.id!r} belong, is "
            f"not at {population.location}: clients were forgotten, or it was never copied there.",
            "Train again on the newest version, or name the place that has this version.",
        )
    store = Population.open(population.location, version=where["version"])
    if where.get("manifest") != store.checksum:  # a branch of it, with other clients
        return None, None
    if [(block.first, block.clients) for block in store.blocks] != [(b.first, b.clients) for b in population.blocks]:
        if method.serves_newcomers:
            return None, None
        raise RunError(
            f"version {population.version} of the population has clients that came after run {run.id!r}, which "
            f"they took no part in, and what each client is given is made of what it remembers of it.",
            "Train again on the newest version, from this run if the method can (--start-from).",
        )
    return folder, digests


def trained(run: Run, settings: Mapping[str, Any] | None = None) -> tuple[AnyMethod, State]:
    """The run's method and its last committed state. settings: new values of those that may change after a run.

    Raises RunError, also for a state of another version's, ConfigError for settings that act on training.
    """
    info = recorded_request(run)
    method = method_of_run(info)
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
    kind = method_of_run(info).kind
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
