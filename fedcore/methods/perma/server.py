"""The server's side: matching of the clients' dictionaries, aggregation of their global atoms, the end.

start    one pass: every client's own dictionary; those of some are matched, and their aggregate is G
rounds   Algorithm 1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedcore.errors import ConfigError, PopulationError, RunError
from fedcore.methods.dictionary_learning.distances import d12
from fedcore.methods.dictionary_learning.operators import given_global, polar
from fedcore.methods.perma.clients import MATCHED
from fedcore.methods.perma.config import PermaConfig
from fedcore.methods.perma.matching import (
    Aggregate,
    Matching,
    aggregate,
    matched_atoms,
    number_by_rule,
    path,
    star,
    with_norm,
)
from fedcore.methods.perma.state import Counts, InitialMessage, Message, PermaState, RoundMessage
from fedcore.randomness import client_uniforms, stream
from fedcore.rounds.method import PublicFacts, RoundInfo

STAR_CLIENTS = 3  # with fewer, medians over clients say nothing, and the path is taken
NUMBER_BYTES = 8  # of a number in a message
MATCHED_CLIENTS = 1000  # whose dictionaries are matched; the others join by assignment
MANY = 0.25  # share of clients; if this many are far, the fault is not theirs
SCORES_IN_NOTE = 50


# --- before the first round -----------------------------------------------------------------------------------------


def init(config: PermaConfig, public: PublicFacts) -> PermaState:
    """Raises ConfigError if the settings do not fit the features, or a start is missing or of another shape."""
    polar_atoms = (config.wanted or 0) if norm_of(config) == "polar" else 0
    d, most = public.features, max(config.atoms if config.steps_of == "orthogonal" else 0, polar_atoms)
    if most > d:
        raise ConfigError(
            f"{most} orthonormal atoms do not fit into {d} features.",
            'Ask for fewer atoms, or take learner = "gradient" and norm = "unit".',
        )
    none = np.zeros((0, 0), np.int64)
    return PermaState("start", 0, public.seed, d, public.clients or 0, given_atoms(config, public), none.ravel(), none)


def norm_of(config: PermaConfig) -> str:
    """What is done with the norms of the aggregate."""
    return "polar" if config.robust else config.norm


def given_atoms(config: PermaConfig, public: PublicFacts) -> np.ndarray:
    """(rg, d) of the warm start, orthonormal for the robust learner; (0, d) if there is none."""
    if public.warm_start is None:
        return np.zeros((0, public.features))
    common = np.asarray(public.warm_start["global"], np.float64)
    _check_shape(config, common, "the start", public.features)
    return polar(common) if config.robust else common


def checked_warm_start(
    config: PermaConfig, arrays: Mapping[str, np.ndarray], what: str, features: int
) -> dict[str, np.ndarray]:
    """The array 'global' as float64 (rg, d), atoms scaled to norm 1. Raises ConfigError, naming `what`."""
    return {"global": given_global(arrays, what, lambda common: _check_shape(config, common, what, features))}


def _check_shape(config: PermaConfig, common: np.ndarray, what: str, features: int) -> None:
    """Raises ConfigError unless it is (rg, d)."""
    if config.wanted is None:
        raise ConfigError("a run from a given global dictionary needs global_atoms as a number.")
    if common.shape != (config.wanted, features):
        raise ConfigError(
            f"'global' of {what} has shape {common.shape}, and the run needs {(config.wanted, features)}."
        )


def total_rounds(config: PermaConfig, state: PermaState) -> int:
    """With the start."""
    return 1 + config.rounds


def message(config: PermaConfig, state: PermaState) -> Message | None:
    if state.phase == "done":
        return None
    if state.phase == "start":
        return InitialMessage(state.seed, _matching_threshold(state))
    number, last = state.round + 1, state.round + 1 == config.rounds
    return RoundMessage(number, state.seed, state.common, state.matched, state.index, last, state.far < MANY)


def _matching_threshold(state: PermaState) -> float:
    """A client sends its dictionary if its uniform number is at most this: all, the smallest few, or none."""
    if len(state.common):
        return -1.0
    if state.population <= MATCHED_CLIENTS:
        return 1.0
    uniforms = client_uniforms(state.seed, MATCHED, 0, 0, state.population)[:, 0]
    return float(np.partition(uniforms, MATCHED_CLIENTS - 1)[MATCHED_CLIENTS - 1])


def server_update(config: PermaConfig, state: PermaState, result: Mapping[str, Any]) -> tuple[PermaState, RoundInfo]:
    """Raises PopulationError if no client has samples, RunError if the global dictionary is not finite."""
    return _after_start(config, state, result) if state.phase == "start" else _after_round(config, state, result)


# --- start ----------------------------------------------------------------------------------------------------------


def _after_start(config: PermaConfig, state: PermaState, result: Mapping[str, Any]) -> tuple[PermaState, RoundInfo]:
    clients, rows, silent, few, objective = (float(value) for value in result["sizes"])
    if clients == 0:
        raise PopulationError("no client of the population has samples other than zero.", "Check what was ingested.")
    senders, sent = np.asarray(result["senders"]), np.asarray(result["dictionaries"], np.float64)
    scalars = {
        "clients": clients,
        "rows": rows,
        "silent": silent,
        "few_samples": few,
        "objective": objective / rows,
        "matched": float(len(sent)),
        "bytes_up": float(NUMBER_BYTES * sent.size),
    }
    state = replace(state, phase="rounds", clients=clients, rows=rows)
    note = ""
    if not len(state.common):
        if not len(sent):
            raise PopulationError(
                "none of the clients that were drawn for the matching has samples other than zero.",
                "Check what was ingested.",
            )
        numbers, ranks = senders.astype(np.int64).T
        dictionaries = [atoms[:rank] for atoms, rank in zip(sent, ranks, strict=True)]
        if config.wanted is not None:
            count = config.wanted
        else:
            count, scores = number_by_rule(str(config.global_atoms), dictionaries, state.seed)
            note = f"{count} global atoms; scores " + " ".join(f"{value:.3f}" for value in scores[:SCORES_IN_NOTE])
        matching = match(config, dictionaries, count, state.seed)
        together = _first_aggregate(config, matched_atoms(dictionaries, matching))
        scalars |= {
            "global_atoms": float(count),
            "least_norm": together.least_norm,
            "not_shared": float(together.not_shared),
            "score": float(matching.scores.max(initial=0.0)),
            "left_out": float((~matching.kept).sum()),
        }
        state = replace(state, common=together.atoms, matched=numbers, index=matching.index)
    scalars["global_atoms"] = float(len(state.common))
    return state, RoundInfo(scalars, note)


def _first_aggregate(config: PermaConfig, atoms: np.ndarray) -> Aggregate:
    """The global atoms that the rounds begin with, of matched ones (N, rg, d)."""
    if not config.robust:
        return aggregate(atoms, config.aggregate, config.norm)
    # Clients' own atoms were not learnt robustly: even if atoms of the rounds may be averaged, these may not.
    together = aggregate(atoms, "median", "unit")
    return replace(together, atoms=polar(together.atoms))


def match(config: PermaConfig, dictionaries: Sequence[np.ndarray], count: int, seed: int) -> Matching:
    """By the configured rule. dictionaries: (r_i, d) each, in the order of the clients."""
    if config.matcher == "star" and len(dictionaries) >= STAR_CLIENTS:
        return star(dictionaries, count, stream(seed, "dictionaries/anchors"))
    return path(dictionaries, count)


# --- rounds ---------------------------------------------------------------------------------------------------------


def _after_round(config: PermaConfig, state: PermaState, result: Mapping[str, Any]) -> tuple[PermaState, RoundInfo]:
    counts, number, before = Counts.from_array(result["counts"]), state.round + 1, state.common
    state, scalars = _moved_by_versions(config, state, result, counts)
    if not np.isfinite(state.common).all():
        raise RunError(f"the global dictionary of round {number} is not finite.", "Scale the data.")
    movement = d12(state.common, before)
    clients, samples = max(counts.active_clients, 1.0), max(counts.samples, 1.0)
    scalars |= {
        "movement": movement,
        "loss": counts.loss / samples,
        "worst_loss": max(float(result["worst"].score), 0.0),
        "nonzero": counts.nonzero / samples,
        "collisions": counts.collisions,
        "unused_atoms": counts.unused_atoms,
        "distance": counts.distance / clients,
        "farthest": max(float(result["farthest"].score), 0.0),
        "active_clients": counts.active_clients,
        "left_out": counts.left_out,
        "far": counts.far,
        "bytes_down": counts.active_clients * NUMBER_BYTES * state.common.size,
    }
    if config.restarts:
        scalars["begun_anew"] = counts.restarted
    state = replace(
        state,
        round=number,
        matched=np.zeros(0, np.int64),
        index=np.zeros((0, 0), np.int64),
        far=counts.far / clients,
        phase="done" if number >= config.rounds else state.phase,
    )
    return state, RoundInfo(scalars)


def _moved_by_versions(
    config: PermaConfig, state: PermaState, result: Mapping[str, Any], counts: Counts
) -> tuple[PermaState, dict[str, float]]:
    """G as the aggregate of the clients' versions (Algorithm 1, step 13)."""
    together = Aggregate(state.common, 1.0, 0)  # no client answered, or there are no global atoms: nothing moves
    if config.aggregate == "median":
        sent = np.asarray(result["sent"], np.float64)
        answers = float(len(sent))
        if len(sent):
            together = aggregate(sent, "median", norm_of(config), state.common)
    else:
        total = np.asarray(result["sum"])
        answers = counts.active_clients - counts.left_out
        if len(total) and total[0, -1] > 0:
            together = with_norm(total[:, :-1] / total[:, -1:], norm_of(config), state.common)
    scalars = {
        "least_norm": together.least_norm,
        "not_shared": float(together.not_shared),
        "bytes_up": answers * NUMBER_BYTES * state.common.size,
    }
    return replace(state, common=together.atoms), scalars
