"""What each client is given: its local atoms, and its samples split into a global and a local part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.dictionaries.client_groups import groups
from fedcore.methods.dictionaries.clients import with_local_atoms
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.matching_pursuit import omp
from fedcore.methods.dictionaries.messages import RoundMessage
from fedcore.methods.dictionaries.robust import robust_parts
from fedcore.methods.dictionaries.sizes import local_atoms_of
from fedcore.methods.dictionaries.sparse_coding import Coder, coder_of
from fedcore.methods.dictionaries.state import DictionariesState
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import ROWS, ClientOutputs, Memory, took_no_part


def personalise(
    config: DictionariesConfig, state: DictionariesState, block: RowsBlock, memory: Memory | None
) -> ClientOutputs:
    """One row for each client of a leaf, or for each of its samples. The global dictionary is in the state.

    local:    (C, r - rg, d) float64 local atoms, zeros beyond a client's rank
    rank:     (C,) int64 atoms of its dictionary [G | L_i]; 0 for a client without samples other than zero
    loss:     (C,) float64 mean squared residual of a sample with the codes given here; NaN without samples
    distance: (C,) float64 mean distance of its own version of the global atoms from them, in its last round
    rows_global, rows_local: (N, d) float32 parts of the samples; their sum is the reconstruction

    Rows that the clients of a private run leave out, because they or their squares are not finite, have parts of NaN
    and count nowhere. Raises RunError before the matching, and for clients that took no part; PopulationError for
    values that are not finite in a run that is not private.
    """
    if not state.begun:
        raise RunError("the run stopped before its first round.", "Resume it first.")
    if config.private:
        return of_usable_rows(config, state, block)
    if memory is None:
        raise took_no_part()
    return outputs_of(config, state, block, remembered(state, block, memory))


def usable_rows(x: np.ndarray) -> np.ndarray:
    """(N,) bool: which rows (N, d) are finite, and have a finite energy."""
    rows = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        return np.isfinite(np.einsum("ij,ij->i", rows, rows))


def of_usable_rows(config: DictionariesConfig, state: DictionariesState, block: RowsBlock) -> ClientOutputs:
    """Outputs of clients of a private run: no row of anybody makes them fail, as none made the run fail."""
    with np.errstate(all="ignore"):
        usable = usable_rows(block.x)
        ptr = np.concatenate([[0], np.cumsum(usable)])[block.ptr]
        kept = block if usable.all() else replace(block, x=block.x[usable], ptr=ptr)
        outputs = outputs_of(config, state, kept, afresh(config, state, kept))
    if usable.all():
        return outputs
    for name in [name for name in outputs if name.startswith(ROWS)]:
        every = np.full((len(usable), *outputs[name].shape[1:]), np.nan, outputs[name].dtype)
        every[usable] = outputs[name]
        outputs[name] = every
    return outputs


def outputs_of(config: DictionariesConfig, state: DictionariesState, block: RowsBlock, memory: Memory) -> ClientOutputs:
    """As `personalise`, of what clients remember."""
    shape = block.x.shape
    outputs = {
        "local": memory["local"],
        "rank": memory["rank"],
        "loss": np.full(block.clients, np.nan),
        "distance": memory["distance"],
        "rows_global": np.zeros(shape, np.float32),
        "rows_local": np.zeros(shape, np.float32),
    }
    sizes = np.diff(block.ptr)
    outputs["loss"][(sizes > 0) & (memory["rank"] == 0)] = 0.0
    coder, wanted = coder_of(config, block.features), len(state.common)
    for group in groups(block, memory["rank"]):
        done = np.zeros(len(group.clients), np.int64)
        loss = np.zeros(len(group.clients))
        local = memory["local"][group.clients, : group.rank - wanted]
        for tile in group.tiles():
            whole = None if config.robust else parts(config, coder, tile, state.common, local)
            for i, client in enumerate(group.clients):
                low = int(block.ptr[client] + done[i])
                high = min(low + tile.shape[1], int(block.ptr[client + 1]))
                samples = tile[i, : high - low]
                if whole is None:
                    global_part, local_part = parts(config, coder, samples, state.common, local[i])
                else:
                    global_part, local_part = (part[i, : high - low] for part in whole)
                outputs["rows_global"][low:high], outputs["rows_local"][low:high] = global_part, local_part
                loss[i] += ((samples - global_part - local_part) ** 2).sum()
                done[i] += high - low
        outputs["loss"][group.clients] = loss / group.sizes
    return outputs


def parts(
    config: DictionariesConfig, coder: Coder, samples: np.ndarray, common: np.ndarray, local: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(global part, local part) of samples (n, d), coded with [G | L] together, or robustly with G first.

    common: (rg, d); local: (l, d). Many clients at once, if not robustly: samples (c, n, d), local (c, l, d).

    Together they are coded by matching pursuit where k atoms are asked for: G and L are orthogonal to each other only
    nearly, and a plain top-k is then biased.
    """
    if config.robust:
        return robust_parts(config, samples, common, local, coder)
    atoms = common
    if local.shape[-2]:
        atoms = np.concatenate([np.broadcast_to(common, (*local.shape[:-2], *common.shape)), local], axis=-2)
    codes = omp(samples, atoms, coder.sparsity) if coder.code == "top_k" else coder(samples, atoms)
    return codes[..., : len(common)] @ common, codes[..., len(common) :] @ local


def remembered(state: DictionariesState, block: RowsBlock, memory: Memory) -> Memory:
    """What clients remember, with their local atoms in "local" also if the run stopped before its first round."""
    message = RoundMessage(state.round, state.seed, state.common, state.matched, state.index, 1.0, False, False)
    return with_local_atoms(message, block, memory)


def afresh(config: DictionariesConfig, state: DictionariesState, block: RowsBlock) -> Memory:
    """As `remembered`, for the clients of a private run, who keep nothing: local atoms are singular vectors of what the
    global atoms leave, and distances are 0. A client whose sums are not finite has no local atoms."""
    local_atoms = local_atoms_of(config, block.features, len(state.common))
    rank = np.zeros(block.clients, np.int64)
    local, coder = np.zeros((block.clients, local_atoms, block.features)), coder_of(config, block.features)
    for group in groups(block, np.full(block.clients, len(state.common) + local_atoms)):
        for i, client in enumerate(group.clients):
            rest, nonzero = np.zeros((block.features, block.features)), False
            for tile in group.tiles():
                nonzero = nonzero or bool(tile[i].any())
                if local_atoms:
                    left = tile[i] - parts(config, coder, tile[i], state.common, state.common[:0])[0]
                    rest += left.T @ left
            rank[client] = len(state.common) + local_atoms if nonzero else 0
            if nonzero and local_atoms and np.isfinite(rest).all():
                local[client, : block.features] = np.linalg.eigh(rest)[1][:, ::-1].T[:local_atoms]
    return {"rank": rank, "local": local, "distance": np.zeros(block.clients)}
