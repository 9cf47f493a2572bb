"""What each client is given, and how well its held-out rows are rebuilt; with codes by matching pursuit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.dictionaries.clients import local_round
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.server import has_local_pass, local_message
from fedcore.methods.dictionaries.start import code_length, local_atoms_of
from fedcore.methods.dictionaries.state import DictionariesState
from fedcore.methods.dictionary_learning import scores
from fedcore.methods.dictionary_learning.distances import groups
from fedcore.methods.dictionary_learning.result import Parts, outputs_of, parts_together
from fedcore.methods.dictionary_learning.sparse_codes import omp
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import ROWS, ClientOutputs, Memory
from fedcore.rounds.scores import KnownMemories
from fedcore.rounds.statistics import Statistics


def personalise(
    config: DictionariesConfig, state: DictionariesState, block: RowsBlock, memory: Memory | None
) -> ClientOutputs:
    """See `dictionary_learning.result.outputs_of`; distances are 0. The global dictionary is in the state.

    Clients that took no part (memory is None) learn local atoms now, from these rows, as they would have in the run.
    Rows that the clients of a private run leave out, because they or their squares are not finite, have parts of NaN
    and count nowhere. Raises RunError before the first round; PopulationError for values that are not finite in a run
    that is not private.
    """
    if not state.begun:
        raise RunError("the run stopped before its first round.", "Resume it first.")
    if config.private:
        return _of_usable_rows(config, state, block)
    known = newcomers(config, state, block) if memory is None else remembered(state, memory)
    return _outputs(config, state, block, known)


def score_block(
    config: DictionariesConfig, state: DictionariesState, block: RowsBlock, known: KnownMemories | None
) -> Statistics:
    """See `dictionary_learning.scores`. Raises RunError before the first round, ValueError if the block has no held-out
    part, PopulationError for rows that are not finite, which are left out if the run is private."""
    if not state.begun:
        raise RunError("the run stopped before it had a global dictionary.", "Resume it first.")
    if known is not None:
        known = replace(known, memory=remembered(state, known.memory))
    local_atoms = local_atoms_of(config, state, len(state.common))
    usable = usable_rows if config.private else None
    return scores.evaluate_block(parts_of(config, state), state.common, local_atoms, block, known, usable)


def parts_of(config: DictionariesConfig, state: DictionariesState, with_codes: bool = False) -> Parts:
    k = code_length(config, state)
    return parts_together(lambda samples, atoms: omp(samples, atoms, k), with_codes)


def _outputs(config: DictionariesConfig, state: DictionariesState, block: RowsBlock, memory: Memory) -> ClientOutputs:
    parts, longest = parts_of(config, state, with_codes=True), code_length(config, state)
    return outputs_of(parts, state.common, block, memory, longest=longest)


def newcomers(config: DictionariesConfig, state: DictionariesState, block: RowsBlock) -> Memory:
    """What the clients of a block would remember, had they taken part in the pass for local atoms."""
    sounds = np.zeros(block.clients, bool)
    for group in groups(block, np.ones(block.clients, np.int64)):
        for tile in group.tiles():
            sounds[group.clients] |= tile.any(axis=(1, 2))
    rank = np.where(sounds, len(state.common), 0)
    memory = {"rank": rank} | {name: np.zeros(block.clients) for name in ("loss", "distance", "left")}
    if not has_local_pass(config, state):
        return remembered(state, memory)
    return local_round(local_message(config, state), block, memory)[1]


def remembered(state: DictionariesState, memory: Memory) -> Memory:
    """What clients remember, with local atoms also before the pass in which they learn some: none."""
    if "own" in memory:  # of a run that finds its sizes, whose shared atoms may have become fewer since
        return {**memory, "rank": np.where(memory["rank"] > 0, len(state.common) + memory["own"], 0)}
    if "local" in memory:
        return memory
    rank = np.where(memory["rank"] > 0, len(state.common), 0)
    return {**memory, "rank": rank, "local": np.zeros((len(rank), 0, state.features))}


# --- clients of a private run, who remember nothing -----------------------------------------------------------------


def usable_rows(x: np.ndarray) -> np.ndarray:
    """(N,) bool: which rows (N, d) are finite, and have a finite energy."""
    rows = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        return np.isfinite(np.einsum("ij,ij->i", rows, rows))


def _of_usable_rows(config: DictionariesConfig, state: DictionariesState, block: RowsBlock) -> ClientOutputs:
    """No client's row makes them fail, as none made the run fail."""
    with np.errstate(all="ignore"):
        usable = usable_rows(block.x)
        ptr = np.concatenate([[0], np.cumsum(usable)])[block.ptr]
        kept = block if usable.all() else replace(block, x=block.x[usable], ptr=ptr)
        outputs = _outputs(config, state, kept, afresh(config, state, kept))
    if usable.all():
        return outputs
    for name in [name for name in outputs if name.startswith(ROWS)]:
        nothing = np.nan if outputs[name].dtype.kind == "f" else -1
        every = np.full((len(usable), *outputs[name].shape[1:]), nothing, outputs[name].dtype)
        every[usable] = outputs[name]
        outputs[name] = every
    return outputs


def afresh(config: DictionariesConfig, state: DictionariesState, block: RowsBlock) -> Memory:
    """As `remembered`: local atoms are singular vectors of what the global atoms leave, and distances are 0. A client
    whose sums are not finite has no local atoms."""
    local_atoms = local_atoms_of(config, state, len(state.common))
    rank = np.zeros(block.clients, np.int64)
    local, parts = np.zeros((block.clients, local_atoms, block.features)), parts_of(config, state)
    for group in groups(block, np.full(block.clients, len(state.common) + local_atoms)):
        for i, client in enumerate(group.clients):
            rest, nonzero = np.zeros((block.features, block.features)), False
            for tile in group.tiles():
                nonzero = nonzero or bool(tile[i].any())
                if local_atoms:
                    left = tile[i] - parts(tile[i], state.common, state.common[:0])[0]
                    rest += left.T @ left
            rank[client] = len(state.common) + local_atoms if nonzero else 0
            if nonzero and local_atoms and np.isfinite(rest).all():
                local[client, : block.features] = np.linalg.eigh(rest)[1][:, ::-1].T[:local_atoms]
    return {"rank": rank, "local": local, "distance": np.zeros(block.clients)}
