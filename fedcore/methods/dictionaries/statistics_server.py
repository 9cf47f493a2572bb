"""The server's side of the learner "statistics" with split = "nested": from sums to global atoms.

start    signed sums of all samples become atoms; or atoms are given
rounds   every atom moves to its minimum by the sums of this round and by what is remembered of earlier ones
local    one pass in which clients learn local atoms; the global ones stay
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedcore.errors import PopulationError, RunError
from fedcore.methods.dictionaries import series
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.distances import d12
from fedcore.methods.dictionaries.learners import descend
from fedcore.methods.dictionaries.messages import (
    Counts,
    FirstSumsMessage,
    LocalAtomsMessage,
    SumsMessage,
    in_message_precision,
    to_compute_with,
)
from fedcore.methods.dictionaries.shared_statistics import (
    FIRST_ROUNDS,
    LOUD,
    WIDE,
    ahead,
    median_of_votes,
    orthonormal_atoms,
    singular_atoms,
    sparsity_in,
)
from fedcore.methods.dictionaries.sizes import atoms_of, global_atoms_of, least_sparsity_of, sparsity_of
from fedcore.methods.dictionaries.state import DictionariesState
from fedcore.methods.dictionaries.unused_atoms import without_unused
from fedcore.randomness import stream
from fedcore.rounds.method import RoundInfo

SUM_BYTES = 8  # of a number of a sum in a message


def has_local_pass(config: DictionariesConfig, state: DictionariesState) -> bool:
    count = len(state.common) or global_atoms_of(config, state.features) or 0
    return atoms_of(config, state.features, count) > count


def first_message(config: DictionariesConfig, state: DictionariesState) -> FirstSumsMessage:
    if given := len(state.common):
        return FirstSumsMessage(state.seed, given, "", state.seen)
    sums = "moments" if state.features <= WIDE else "signed"
    return FirstSumsMessage(state.seed, global_atoms_of(config, state.features) or 0, sums, 0)


def message(config: DictionariesConfig, state: DictionariesState) -> SumsMessage | LocalAtomsMessage:
    if state.phase == "local":
        return LocalAtomsMessage(state.seed, in_message_precision(config, state.common))
    number, d = state.round + 1, state.features
    common = in_message_precision(config, coded_at(config, state))
    least, most = least_sparsity_of(config, d), sparsity_of(config, d)
    if not state.warm:
        least, most = sparsity_in(number, least, most)
    return SumsMessage(number, state.seed, common, config.participation, least, most, state.cap, state.seen)


def coded_at(config: DictionariesConfig, state: DictionariesState) -> np.ndarray:
    """(rg, d) atoms that code in the next round. Where clients are sampled, moves are too uncertain to lengthen."""
    return state.common if config.participation < 1 else ahead(state.common, state.previous, state.round + 1)


def after_first_sums(
    config: DictionariesConfig, state: DictionariesState, result: Mapping[str, Any]
) -> tuple[DictionariesState, RoundInfo]:
    """Raises PopulationError if nobody has samples."""
    clients, rows, silent, few = (float(value) for value in result["sizes"])
    all_prints, seen_prints, seen_rows = (float(value) for value in result["prints"])
    if clients == 0:
        raise PopulationError("no client of the population has samples other than zero.", "Check what was ingested.")
    cap = LOUD * median_of_votes(np.asarray(result["votes"]))
    sums, common = np.asarray(result["sums"]), state.common
    if not len(common):
        generator, wanted = stream(state.seed, "dictionaries/first"), global_atoms_of(config, state.features) or 0
        wide = state.features > WIDE
        common = orthonormal_atoms(sums, generator) if wide else singular_atoms(sums, wanted, generator)
    count = len(common)
    scalars = {
        "clients": clients,
        "rows": rows,
        "silent": silent,
        "few_samples": few,
        "global_atoms": float(count),
        "bytes_up": clients * SUM_BYTES * sums.size,
    }
    xx, xy = np.zeros((count, count)), np.zeros((count, state.features))
    state = replace(state, phase="rounds", clients=clients, rows=rows, common=common, cap=cap, xx=xx, xy=xy)
    state = series.after_count(replace(state, prints=all_prints), seen_rows, seen_prints)
    words = f"sums of {state.seen} clients are remembered, and the others answer" if state.remembers else ""
    return state, RoundInfo(scalars, words)


def after_round(
    config: DictionariesConfig, state: DictionariesState, result: Mapping[str, Any]
) -> tuple[DictionariesState, RoundInfo]:
    """Raises RunError if the global dictionary is not finite."""
    counts, number, before = Counts.from_array(result["counts"]), state.round + 1, state.common
    coded = to_compute_with(in_message_precision(config, coded_at(config, state)))
    xx, xy = np.asarray(result["xx"]), np.asarray(result["xy"])
    if config.participation < 1:
        # About as many samples as those of all clients: the last rounds', older ones fading
        xx, xy = (1 - config.participation) * state.xx + xx, (1 - config.participation) * state.xy + xy
    generator = stream(state.seed, "dictionaries/split", number)
    all_xx, all_xy = (state.old_xx + xx, state.old_xy + xy) if state.remembers else (xx, xy)
    common, replaced = without_unused(descend(coded, all_xx, all_xy), np.diagonal(all_xx), generator)
    if not np.isfinite(common).all():
        raise RunError(f"the global dictionary of round {number} is not finite.", "Scale the data.")
    movement = d12(common, before)
    samples = max(counts.samples, 1.0)
    loud, bounded = (float(value) for value in result["loud"])
    scalars = {
        "movement": movement,
        "loss": counts.loss / samples,
        "worst_loss": max(float(result["worst"].score), 0.0),
        "nonzero": counts.nonzero / samples,
        "doubled": float(replaced),
        "loud_rows": loud / samples,
        "loud_clients": bounded / max(counts.active_clients, 1.0),
        "active_clients": counts.active_clients,
        "bytes_up": counts.active_clients * SUM_BYTES * (xx.size + xy.size),
        "bytes_down": counts.active_clients * np.dtype(config.precision).itemsize * common.size,
    }
    may_end = config.participation == 1 and (state.warm or number > FIRST_ROUNDS[-1][0])
    last = number >= config.rounds or (may_end and movement < config.tolerance)
    phase = state.phase if not last else "local" if has_local_pass(config, state) else "done"
    return replace(state, round=number, common=common, previous=before, xx=xx, xy=xy, phase=phase), RoundInfo(scalars)


def after_local_atoms(
    config: DictionariesConfig, state: DictionariesState, result: Mapping[str, Any]
) -> tuple[DictionariesState, RoundInfo]:
    counts = Counts.from_array(result["counts"])
    atoms, clients = (float(value) for value in result["local"])
    scalars = {
        "active_clients": counts.active_clients,
        "with_local_atoms": clients,
        "local_atoms": atoms / max(clients, 1.0),
        "bytes_down": counts.active_clients * np.dtype(config.precision).itemsize * state.common.size,
    }
    return replace(state, phase="done"), RoundInfo(scalars, f"{clients:g} clients keep local atoms")
