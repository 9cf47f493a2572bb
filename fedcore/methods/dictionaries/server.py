"""The server's side: from sums to global atoms.

start    sums of all samples become atoms; or atoms are given
rounds   every atom moves to its minimum by the sums of this round and by what is remembered of earlier ones
local    one pass in which clients learn local atoms; the global ones stay
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedcore.errors import PopulationError, RunError
from fedcore.methods.dictionaries import structure_server as structure
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.start import (
    CODE_LENGTH,
    after_count,
    atoms_of,
    begun_series,
    given_atoms,
    global_atoms_of,
    least_sparsity_of,
    local_atoms_of,
    rounds_of,
    sparsity_of,
    warning,
)
from fedcore.methods.dictionaries.state import (
    DictionariesState,
    FirstSumsMessage,
    LocalAtomsMessage,
    Message,
    SumsMessage,
)
from fedcore.methods.dictionaries.sums import (
    FIRST_ROUNDS,
    LARGEST_IN_BIN,
    LAST_ROUNDS,
    LOUD,
    SETTLING_ROUNDS,
    WIDE,
    ahead,
    median_of_votes,
    orthonormal_atoms,
    singular_atoms,
    sparsity_in,
)
from fedcore.methods.dictionary_learning.distances import d12
from fedcore.methods.dictionary_learning.sparse_codes import descend, without_unused
from fedcore.randomness import stream
from fedcore.rounds.method import PublicFacts, RoundInfo

NUMBER_BYTES = 8  # of a number in a message


def init(config: DictionariesConfig, public: PublicFacts) -> DictionariesState:
    """Raises ConfigError for given atoms of another shape."""
    common = given_atoms(config, public)
    warm = len(common) > 0
    clients, rows = public.clients or 0, float(public.rows or 0)
    state = DictionariesState("start", 0, public.seed, public.features, clients, rows=rows, common=common, warm=warm)
    given = public.warm_start or {}
    if CODE_LENGTH in given:
        return replace(state, sparsity=min(int(given[CODE_LENGTH][0]), sparsity_of(config, public.features)))
    return begun_series(state, given, config.forgetting) if warm else state


def total_rounds(config: DictionariesConfig, state: DictionariesState) -> int:
    """With the start, the pass for local atoms if there is one, and a search for sizes that is refused."""
    search = structure.REFUSED_AFTER if structure.searches(config, state) else 0
    return 1 + rounds_of(config) + search + has_local_pass(config, state)


def has_local_pass(config: DictionariesConfig, state: DictionariesState) -> bool:
    count = len(state.common) or global_atoms_of(config, state.features)
    return atoms_of(config, state.features, count) > count


def message(config: DictionariesConfig, state: DictionariesState) -> Message | None:
    match state.phase:
        case "done":
            return None
        case "start":
            return _first_message(config, state)
        case "local":
            return local_message(config, state)
        case "look" | "claims" | "grow" | "held" | "last":
            return structure.message(config, state)
    number, d = state.round + 1, state.features
    least, most = least_sparsity_of(config, d), sparsity_of(config, d)
    if not state.warm:
        least, most = sparsity_in(number, least, most)
    coded = coded_at(config, state)
    return SumsMessage(
        number, state.seed, coded, config.participation, least, most, state.cap, state.seen, state.typical, state.left
    )


def local_message(config: DictionariesConfig, state: DictionariesState) -> LocalAtomsMessage:
    """For the pass for local atoms, in which also clients that were not in the run learn theirs."""
    d, count = state.features, len(state.common)
    lengths = least_sparsity_of(config, d), sparsity_of(config, d)
    if state.structured:
        lengths = structure.lengths_of(state)
    atoms = local_atoms_of(config, state, count)
    return LocalAtomsMessage(state.seed, state.common, atoms, *lengths, config.local_rounds)


def _first_message(config: DictionariesConfig, state: DictionariesState) -> FirstSumsMessage:
    if given := len(state.common):
        return FirstSumsMessage(state.seed, given, "", state.seen, 0.0)
    sums = "moments" if state.features <= WIDE else "signed"
    mean = state.rows / max(state.population, 1)
    return FirstSumsMessage(state.seed, global_atoms_of(config, state.features), sums, 0, mean)


def coded_at(config: DictionariesConfig, state: DictionariesState) -> np.ndarray:
    """(rg, d) atoms that code in the next round. Where clients are sampled, moves are too uncertain to lengthen."""
    return state.common if config.participation < 1 else ahead(state.common, state.previous, state.round + 1)


def server_update(
    config: DictionariesConfig, state: DictionariesState, result: Mapping[str, Any]
) -> tuple[DictionariesState, RoundInfo]:
    """Raises PopulationError if no client has samples, RunError if the global dictionary is not finite."""
    match state.phase:
        case "start":
            return _after_first_sums(config, state, result)
        case "local":
            return _after_local_atoms(state, result)
        case "look" | "claims" | "grow" | "held" | "last":
            return structure.server_update(config, state, result)
    return _after_round(config, state, result)


def _after_first_sums(
    config: DictionariesConfig, state: DictionariesState, result: Mapping[str, Any]
) -> tuple[DictionariesState, RoundInfo]:
    """Raises PopulationError if no client has samples."""
    clients, rows, silent, few = (float(value) for value in result["sizes"])
    all_prints, seen_prints, seen_rows = (float(value) for value in result["prints"])
    if clients == 0:
        raise PopulationError("no client of the population has samples other than zero.", "Check what was ingested.")
    norms, sizes = np.asarray(result["votes"])
    cap, typical = LOUD * median_of_votes(norms), LARGEST_IN_BIN * median_of_votes(sizes)
    sums, common = np.asarray(result["sums"]), state.common
    if not len(common):
        generator, wanted = stream(state.seed, "dictionaries/first"), global_atoms_of(config, state.features)
        wide = state.features > WIDE
        common = orthonormal_atoms(sums, generator) if wide else singular_atoms(sums, wanted, generator)
    count = len(common)
    scalars = {
        "clients": clients,
        "rows": rows,
        "silent": silent,
        "few_samples": few,
        "global_atoms": float(count),
        "bytes_up": clients * NUMBER_BYTES * sums.size,
    }
    xx, xy = np.zeros((count, count)), np.zeros((count, state.features))
    state = replace(state, phase="rounds", clients=clients, rows=rows, common=common, cap=cap, xx=xx, xy=xy)
    state = replace(state, typical=typical)
    state = after_count(replace(state, prints=all_prints), seen_rows, seen_prints)
    words = f"sums of {state.seen} clients are remembered, and the others answer" if state.remembers else ""
    said = "; ".join(part for part in (words, warning(config, state)) if part)
    return structure.begun(state), RoundInfo(scalars, said)


def _after_round(
    config: DictionariesConfig, state: DictionariesState, result: Mapping[str, Any]
) -> tuple[DictionariesState, RoundInfo]:
    """Raises RunError if the global dictionary is not finite."""
    number, before = state.round + 1, state.common
    clients, samples, loss, nonzero = (float(value) for value in result["counts"])
    coded = coded_at(config, state)
    xx, xy = np.asarray(result["xx"]), np.asarray(result["xy"])
    if config.participation < 1:
        # About as many samples as those of all clients: the last rounds', older ones fading
        xx, xy = (1 - config.participation) * state.xx + xx, (1 - config.participation) * state.xy + xy
    generator = stream(state.seed, "dictionaries/split", number)
    all_xx, all_xy = (state.old_xx + xx, state.old_xy + xy) if state.remembers else (xx, xy)
    settled = FIRST_ROUNDS[-1][0] + SETTLING_ROUNDS < number <= rounds_of(config) - LAST_ROUNDS
    moved = descend(coded, all_xx, all_xy)
    common, replaced = without_unused(moved, np.diagonal(all_xx), generator, settled)
    if not np.isfinite(common).all():
        raise RunError(f"the global dictionary of round {number} is not finite.", "Scale the data.")
    movement = d12(common, before)
    samples = max(samples, 1.0)
    loud, bounded = (float(value) for value in result["loud"])
    scalars = {
        "movement": movement,
        "loss": loss / samples,
        "worst_loss": max(float(result["worst"].score), 0.0),
        "nonzero": nonzero / samples,
        "doubled": float(replaced),
        "loud_rows": loud / samples,
        "loud_clients": bounded / max(clients, 1.0),
        "active_clients": clients,
        "bytes_up": clients * NUMBER_BYTES * (xx.size + xy.size),
        "bytes_down": clients * NUMBER_BYTES * common.size,
    }
    left = median_of_votes(np.asarray(result["left"]))
    phase = state.phase if number < rounds_of(config) else "local" if has_local_pass(config, state) else "done"
    if number == structure.BEGUN and structure.searches(config, state):
        phase = "look"
    state = replace(state, round=number, common=common, previous=before, xx=xx, xy=xy, left=left, phase=phase)
    return state, RoundInfo(scalars)


def _after_local_atoms(state: DictionariesState, result: Mapping[str, Any]) -> tuple[DictionariesState, RoundInfo]:
    active, atoms, clients = (float(value) for value in result["local"])
    scalars = {
        "active_clients": active,
        "with_local_atoms": clients,
        "local_atoms": atoms / max(clients, 1.0),
        "bytes_down": active * NUMBER_BYTES * state.common.size,
    }
    return replace(state, phase="done"), RoundInfo(scalars, f"{clients:g} clients keep local atoms")
