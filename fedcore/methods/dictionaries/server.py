"""The server's side: matching of the clients' dictionaries, aggregation of their global atoms, the end.

start    one pass: every client's own dictionary; those of some are matched, and their aggregate is G
rounds   Algorithm 1; or, with the learner "statistics", G moved atom after atom by the sums of all clients

What the learner "statistics" does with split = "nested" is in `statistics_server`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedcore.errors import ConfigError, PopulationError, RunError
from fedcore.methods.dictionaries import series, statistics_server
from fedcore.methods.dictionaries.aggregation import Aggregate, aggregate, with_norm
from fedcore.methods.dictionaries.clients import MATCHED
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.distances import d12
from fedcore.methods.dictionaries.learners import descend
from fedcore.methods.dictionaries.matching import Matching, matched_atoms, path, star
from fedcore.methods.dictionaries.messages import Counts, InitialMessage, Message, RoundMessage, in_message_precision
from fedcore.methods.dictionaries.number_of_global_atoms import number_by_rule
from fedcore.methods.dictionaries.operators import polar
from fedcore.methods.dictionaries.sizes import atoms_of, global_atoms_of
from fedcore.methods.dictionaries.start import first_global_dictionary
from fedcore.methods.dictionaries.state import DictionariesState
from fedcore.methods.dictionaries.unused_atoms import without_unused
from fedcore.randomness import client_uniforms, stream
from fedcore.rounds.method import PublicFacts, RoundInfo

STAR_CLIENTS = 3  # with fewer, medians over clients say nothing, and the path is taken
SUM_BYTES = 8  # of a number of a sum in a message
MANY = 0.25  # share of clients; if so many are far, it is not they who are at fault
SCORES_IN_NOTE = 50


# --- before the first round -----------------------------------------------------------------------------------------


def init(config: DictionariesConfig, public: PublicFacts) -> DictionariesState:
    """Raises ConfigError if the settings do not fit the features, or a start is missing or of another shape."""
    d = public.features
    if config.learner == "orthogonal" and atoms_of(config, d) > d:
        raise ConfigError(
            f"{atoms_of(config, d)} orthonormal atoms do not fit into {d} features.",
            "Ask for fewer atoms, or take the learner gradient or statistics.",
        )
    common = first_global_dictionary(config, public)
    warm = config.nested and len(common) > 0
    state = DictionariesState("start", 0, public.seed, d, public.clients or 0, common=common, warm=warm)
    return series.begun(state, public.warm_start or {}, config.forgetting) if warm else state


def total_rounds(config: DictionariesConfig, state: DictionariesState) -> int:
    """With the start, and the pass for local atoms if there is one."""
    return 1 + config.rounds + (config.nested and statistics_server.has_local_pass(config, state))


def message(config: DictionariesConfig, state: DictionariesState) -> Message | None:
    if state.phase == "done":
        return None
    if config.nested and (state.phase != "start" or config.start != "local"):
        return (
            statistics_server.first_message(config, state)
            if state.phase == "start"
            else statistics_server.message(config, state)
        )
    if state.phase == "start":
        fewest = global_atoms_of(config, state.features) or 1
        return InitialMessage(state.seed, _matching_threshold(config, state), fewest)
    number = state.round + 1
    return RoundMessage(
        number,
        state.seed,
        in_message_precision(config, state.common),
        state.matched,
        state.index,
        config.participation,
        number > config.rounds - config.local_rounds,
        state.far < MANY,
    )


def _atom_bytes(config: DictionariesConfig) -> int:
    """Of a number of an atom in a message."""
    return np.dtype(config.precision).itemsize


def _matching_threshold(config: DictionariesConfig, state: DictionariesState) -> float:
    """A client sends its dictionary if its uniform number is at most this: all, the smallest few, or nobody."""
    if config.start == "given":
        return -1.0
    if state.population <= config.matched_clients:
        return 1.0
    uniforms = client_uniforms(state.seed, MATCHED, 0, 0, state.population)[:, 0]
    return float(np.partition(uniforms, config.matched_clients - 1)[config.matched_clients - 1])


def server_update(
    config: DictionariesConfig, state: DictionariesState, result: Mapping[str, Any]
) -> tuple[DictionariesState, RoundInfo]:
    """Raises PopulationError if nobody has samples, RunError if the global dictionary is not finite."""
    if config.nested and "votes" in result:
        return statistics_server.after_first_sums(config, state, result)
    if state.phase == "start":
        return _after_start(config, state, result)
    if state.phase == "local":
        return statistics_server.after_local_atoms(config, state, result)
    if config.nested:
        return statistics_server.after_round(config, state, result)
    return _after_round(config, state, result)


# --- start ----------------------------------------------------------------------------------------------------------


def _after_start(
    config: DictionariesConfig, state: DictionariesState, result: Mapping[str, Any]
) -> tuple[DictionariesState, RoundInfo]:
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
        "bytes_up": float(_atom_bytes(config) * sent.size),
    }
    state = replace(state, phase="rounds", clients=clients, rows=rows)
    note = ""
    if config.start != "given":
        if not len(sent):
            raise PopulationError(
                "none of the clients that were drawn for the matching has samples other than zero.",
                "Raise matched_clients.",
            )
        numbers, ranks = senders.astype(np.int64).T
        dictionaries = [atoms[:rank] for atoms, rank in zip(sent, ranks, strict=True)]
        wanted = global_atoms_of(config, state.features)
        if wanted is not None:
            count = wanted
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
    count = len(state.common)
    scalars["global_atoms"] = float(count)
    if config.learner == "statistics":
        state = replace(state, xx=np.zeros((count, count)), xy=np.zeros((count, state.features)))
    return state, RoundInfo(scalars, note)


def _first_aggregate(config: DictionariesConfig, atoms: np.ndarray) -> Aggregate:
    """The global atoms that the rounds begin with, of matched ones (N, rg, d)."""
    if not config.robust:
        return aggregate(atoms, config.aggregate, config.norm)
    # Clients' own atoms were not learnt robustly: even if atoms of the rounds may be averaged, these may not.
    together = aggregate(atoms, "median", "unit")
    return replace(together, atoms=polar(together.atoms))


def match(config: DictionariesConfig, dictionaries: Sequence[np.ndarray], count: int, seed: int) -> Matching:
    """By the configured rule. dictionaries: (r_i, d) each, in the order of the clients."""
    if config.matcher == "star" and len(dictionaries) >= STAR_CLIENTS:
        return star(dictionaries, count, stream(seed, "dictionaries/anchors"))
    generator = stream(seed, "dictionaries/orders")
    return path(dictionaries, count, [generator.permutation(len(dictionaries)) for _ in range(config.orders - 1)])


# --- rounds ---------------------------------------------------------------------------------------------------------


def _after_round(
    config: DictionariesConfig, state: DictionariesState, result: Mapping[str, Any]
) -> tuple[DictionariesState, RoundInfo]:
    counts, number, before = Counts.from_array(result["counts"]), state.round + 1, state.common
    if config.learner == "statistics":
        state, scalars = _moved_by_sums(config, state, result, counts)
    else:
        state, scalars = _moved_by_versions(config, state, result, counts)
    if not np.isfinite(state.common).all():
        raise RunError(
            f"the global dictionary of round {number} is not finite.", "Scale the data, or take smaller steps."
        )
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
        "bytes_down": counts.active_clients * _atom_bytes(config) * state.common.size,
    }
    if config.restarts:
        scalars["begun_anew"] = counts.restarted
    state = replace(
        state,
        round=number,
        matched=np.zeros(0, np.int64),
        index=np.zeros((0, 0), np.int64),
        far=counts.far / clients,
        phase="done" if _is_last(config, number, movement) else state.phase,
    )
    return state, RoundInfo(scalars)


def _moved_by_versions(
    config: DictionariesConfig, state: DictionariesState, result: Mapping[str, Any], counts: Counts
) -> tuple[DictionariesState, dict[str, float]]:
    """G as the aggregate of the clients' versions (Algorithm 1, step 13)."""
    together = Aggregate(state.common, 1.0, 0)  # nobody answered, or there are no global atoms: nothing moves
    if config.aggregate == "median":
        sent = np.asarray(result["sent"], np.float64)
        answers = float(len(sent))
        if len(sent):
            together = aggregate(sent, "median", config.norm, state.common)
    else:
        total = np.asarray(result["sum"])
        answers = counts.active_clients - counts.left_out
        if len(total) and total[0, -1] > 0:
            together = with_norm(total[:, :-1] / total[:, -1:], config.norm, state.common)
    scalars = {
        "least_norm": together.least_norm,
        "not_shared": float(together.not_shared),
        "bytes_up": answers * _atom_bytes(config) * state.common.size,
    }
    return replace(state, common=together.atoms), scalars


def _moved_by_sums(
    config: DictionariesConfig, state: DictionariesState, result: Mapping[str, Any], counts: Counts
) -> tuple[DictionariesState, dict[str, float]]:
    """G moved atom after atom by the sums of codes and samples of all clients."""
    xx, xy = np.asarray(result["xx"]), np.asarray(result["xy"])
    if config.participation < 1:
        # About as many samples as those of all clients: the last rounds', older ones fading
        xx, xy = (1 - config.participation) * state.xx + xx, (1 - config.participation) * state.xy + xy
    generator = stream(state.seed, "dictionaries/split", state.round + 1)
    common, doubled = without_unused(descend(state.common, xx, xy), np.diagonal(xx), generator)
    scalars = {"doubled": float(doubled), "bytes_up": counts.active_clients * SUM_BYTES * (xx.size + xy.size)}
    return replace(state, common=common, xx=xx, xy=xy), scalars


def _is_last(config: DictionariesConfig, number: int, movement: float) -> bool:
    """Whether the run ends with this round. All rounds are made if clients are sampled, if local atoms are learnt in
    the last rounds only, and until local atoms were restarted."""
    if number >= config.rounds:
        return True
    may_end = config.participation == 1 and not config.robust and number >= (config.restart_round or 0)
    return may_end and movement < config.tolerance
