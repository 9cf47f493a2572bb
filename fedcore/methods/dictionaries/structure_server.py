"""The server's side of a run that finds its sizes, where the settings name none: see `structure`.

Rounds 1 to BEGUN are as in every run. Then a look at the samples says how many atoms their codes ask for, and which
shared atoms are one client's own. The search continues where many are, where a step of growth lowers the error of
held-out samples by far, and where they then agree on the length of a code. Otherwise it is refused: the run continues
from round BEGUN + 1 as if nothing had been.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.start import sizes_are_open, sparsity_of
from fedcore.methods.dictionaries.state import DictionariesState, StructureMessage
from fedcore.methods.dictionary_learning.distances import d12
from fedcore.methods.dictionary_learning.sparse_codes import descend
from fedcore.rounds.method import RoundInfo

BEGUN = 10  # rounds before the look
PASSES = 4  # of growth in a step, and after the last one
STEPS = 3  # of growth, at most
REFUSED_AFTER = 2 + PASSES + 1  # passes of a search that is refused, at most
FEWEST_CLIENTS = 3  # below which no atom can be shown to be one client's
FEWEST_ATOMS = 4  # of a code by the features, below which there is nothing to find
VOTES = 0.5  # share of held-out samples that a further atom improves enough, below which codes end
MOST_SPARSITY = 0.6  # of the length by the features, beyond which it stays
CLAIMED = 0.1  # share of the shared atoms, below which the search is refused
GAIN = 0.3  # fall of the logarithm of the held-out error in the first step, below which the search is refused
AGREE = 1 / 3  # of the samples that ask for the last atom of a code, those that may ask for another
PAYS = 0.03  # fall of that logarithm for which another step is taken
NEAR = 0.01  # of the best held-out error, so that more atoms are dropped
CLAIMS, FEWEST_CLAIMS = 4, 8  # a client claims at most this many times an equal share of the atoms, or this many
NEW_SHARE, NEW = 10, 4  # own atoms of a client in a step: one for this many shared ones, and at least this many


def searches(config: DictionariesConfig, state: DictionariesState) -> bool:
    """Whether the run looks for sizes: they are open, and no atoms are given."""
    enough = state.population >= FEWEST_CLIENTS and sparsity_of(config, state.features) >= FEWEST_ATOMS
    return sizes_are_open(config) and enough and not state.warm


def begun(state: DictionariesState) -> DictionariesState:
    """The state after the start: a run from the atoms of one that found its sizes continues with their growth."""
    return replace(state, phase="grow") if state.warm and state.sparsity else state


def words(state: DictionariesState) -> str:
    """The sizes that a run found, for people; empty if it found none."""
    if not state.structured or state.phase != "done":
        return ""
    return (
        f"sizes from held-out samples: {len(state.common)} shared atoms, at most {state.width} own atoms of a client, "
        f"and codes of {state.sparsity} atoms"
    )


def lengths_of(state: DictionariesState) -> tuple[int, int]:
    """(least, most) atoms of a code while atoms are learnt."""
    return max(state.sparsity - 1, 1), state.sparsity


def message(config: DictionariesConfig, state: DictionariesState) -> StructureMessage:
    longest, (least, most) = sparsity_of(config, state.features), lengths_of(state)
    ask = "grow" if state.phase == "last" else state.phase
    if ask == "look":
        least = most = max(longest // 2, 1)
    begins = state.phase == "grow" and state.passes == 0
    seeds = max(len(state.common) // NEW_SHARE, NEW) if begins else 0
    sums = (state.round + 1, state.seed, state.common, 1.0, least, most, state.cap, 0, state.typical, state.left)
    width = state.width + seeds
    if ask == "claims":  # all claims together are no more than the shared atoms, so few clients have many
        width = min(len(state.common), max(CLAIMS * len(state.common) // state.population, FEWEST_CLAIMS))
    drop = state.drop if state.passes == 0 and ask == "grow" else -1
    return StructureMessage(*sums, ask, longest, state.energies, drop, seeds, width, state.phase == "last")


def server_update(
    config: DictionariesConfig, state: DictionariesState, result: Mapping[str, Any]
) -> tuple[DictionariesState, RoundInfo]:
    """Raises RunError if the shared dictionary is not finite."""
    match state.phase:
        case "look":
            return _after_look(config, state, result)
        case "claims":
            return _after_claims(state, result)
        case "held":
            return _after_held(config, state, result)
    return _after_growth(state, result)


def _after_look(
    config: DictionariesConfig, state: DictionariesState, result: Mapping[str, Any]
) -> tuple[DictionariesState, RoundInfo]:
    held, asked, _ = _paths(np.asarray(result["held"]))
    longest = sparsity_of(config, state.features)
    if not 0 < asked[0] <= MOST_SPARSITY * longest:
        return _refused(state, f"samples ask for codes of {asked[0]} atoms")
    energies = np.asarray(result["energies"])
    state = replace(state, phase="claims", sparsity=int(asked[0]), held=held[0], energies=energies)
    return state, RoundInfo({}, f"samples ask for codes of {asked[0]} atoms")


def _after_claims(state: DictionariesState, result: Mapping[str, Any]) -> tuple[DictionariesState, RoundInfo]:
    claimed = np.asarray(result["claims"]) > 0
    share = float(claimed.mean())
    if share < CLAIMED or claimed.all():
        return _refused(state, f"{share:.0%} of the shared atoms are one client's own")
    kept = np.stack([state.common, state.previous])
    width = int(result["most"].score)
    state = replace(state, phase="grow", kept=kept, common=state.common[~claimed], width=width, energies=np.zeros(0))
    return state, RoundInfo({}, f"{share:.0%} of the shared atoms are one client's own")


def _after_growth(state: DictionariesState, result: Mapping[str, Any]) -> tuple[DictionariesState, RoundInfo]:
    """Raises RunError if the shared dictionary is not finite."""
    xx, xy, number = np.asarray(result["xx"]), np.asarray(result["xy"]), state.round + 1
    common = descend(state.common, xx, xy)
    if not np.isfinite(common).all():
        raise RunError(f"the global dictionary of round {number} is not finite.", "Scale the data.")
    clients, rows, loss, nonzero = (float(value) for value in result["counts"])
    _, own, with_own = (float(value) for value in result["own"])
    scalars = {
        "movement": d12(common, state.common),
        "loss": loss / max(rows, 1.0),
        "nonzero": nonzero / max(rows, 1.0),
        "active_clients": clients,
        "with_local_atoms": with_own,
        "local_atoms": own / max(with_own, 1.0),
    }
    last, passes = state.phase == "last", state.passes + 1
    phase = state.phase if passes < PASSES else "done" if last else "held"
    width = int(result["most"].score)
    state = replace(state, round=number, common=common, previous=state.common, xx=xx, xy=xy, width=width)
    return replace(state, phase=phase, passes=passes % PASSES), RoundInfo(scalars)


def _after_held(
    config: DictionariesConfig, state: DictionariesState, result: Mapping[str, Any]
) -> tuple[DictionariesState, RoundInfo]:
    held, asked, votes = _paths(np.asarray(result["held"]))
    now = held[:, state.sparsity]
    drop = int(np.flatnonzero(now <= now.min() + NEAR)[-1])
    longest = sparsity_of(config, state.features)
    grid = sorted({max(longest // 4, 1), max(longest // 2, 1), longest})
    gain = float((state.held - held[drop])[state.sparsity]) if len(state.held) else np.inf
    least = state.sparsity if state.warm else 1  # before own atoms are learnt, samples ask for too few
    sparsity, steps = int(np.clip(asked[drop], least, longest)), state.steps + 1
    if steps == 1 and len(state.kept):
        agree = votes[drop, sparsity] <= AGREE * votes[drop, sparsity - 1] if sparsity < longest else False
        fall = float((state.held - held[drop])[grid].mean())
        if fall < GAIN or not agree:
            why = f"own atoms change the held-out error by a factor of {np.exp(-fall):.2f}"
            return _refused(state, why if fall < GAIN else f"{why}, and samples do not agree on the length of codes")
    phase = "grow" if steps < STEPS and gain >= PAYS else "last"
    note = f"codes of {sparsity} atoms; own atoms change the held-out error by a factor of {np.exp(-gain):.2f}"
    state = replace(state, phase=phase, sparsity=sparsity, steps=steps, drop=drop, held=held[drop])
    state = replace(state, kept=np.zeros((0, 0, 0)))
    return state, RoundInfo({}, note)


def _refused(state: DictionariesState, why: str) -> tuple[DictionariesState, RoundInfo]:
    """The run continues as one that does not search."""
    common, previous = state.kept if len(state.kept) else (state.common, state.previous)
    nothing = np.zeros(0)
    state = replace(state, phase="rounds", round=BEGUN, common=common, previous=previous, kept=np.zeros((0, 0, 0)))
    state = replace(state, sparsity=0, steps=0, passes=0, drop=-1, width=0, held=nothing, energies=nothing)
    return state, RoundInfo({}, f"sizes stay as the features say: {why}")


def _paths(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of sums (c, 2 t + 2) (`structure`): (c, t + 1) logarithms of held-out errors; (c,) atoms before the share of
    votes first falls below VOTES; (c, t) these shares."""
    longest = sums.shape[1] // 2 - 1
    votes = sums[:, longest + 1 : -1] / np.maximum(sums[:, -1:], 1.0)
    asked = np.cumprod(votes >= VOTES, axis=1).sum(1)
    return np.log(np.maximum(sums[:, : longest + 1], np.finfo(float).tiny)), asked, votes
