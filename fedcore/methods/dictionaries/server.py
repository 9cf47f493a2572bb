"""The server's side: matching of the clients' dictionaries, aggregation of their global atoms, the end.

start    one pass: every client's own dictionary; those of some are matched, and their centres are G
rounds   Algorithm 1; or, with the learner "statistics", G moved atom after atom by the sums of all clients
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedcore.errors import ConfigError, PopulationError, RunError
from fedcore.methods.dictionaries.aggregation import Centre, centre, scaled
from fedcore.methods.dictionaries.clients import MATCHED, as_sent
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.distances import d12
from fedcore.methods.dictionaries.learners import UNUSED, descend
from fedcore.methods.dictionaries.matching import Matching, matched_atoms, path, star
from fedcore.methods.dictionaries.number_of_global_atoms import automatic
from fedcore.methods.dictionaries.operators import normalise, polar
from fedcore.methods.dictionaries.state import DictionariesState, RoundMessage, StartMessage
from fedcore.randomness import client_uniforms, stream
from fedcore.rounds.method import PublicFacts, RoundInfo

STAR_CLIENTS = 3  # with fewer, medians over clients say nothing, and the path is taken
BYTES = 8  # of a number of a sum in a message
MANY = 0.25  # share of clients; if so many are far, it is not they who are at fault
SPLIT = 0.01  # by how much the two halves of a doubled atom differ


# --- before the first round -----------------------------------------------------------------------------------------


def init(config: DictionariesConfig, public: PublicFacts) -> DictionariesState:
    """Raises ConfigError if the settings do not fit the features, or a start is missing or of another shape."""
    d = public.features
    if config.learner == "orthogonal" and config.atoms > d:
        raise ConfigError(
            f"{config.atoms} orthonormal atoms do not fit into {d} features.",
            "Ask for fewer atoms, or take the learner gradient or statistics.",
        )
    state = DictionariesState("start", 0, public.seed, d, public.clients or 0, common=np.zeros((0, d)))
    if config.start == "given":
        if public.warm_start is None or "global" not in public.warm_start:
            raise ConfigError(
                'start = "given" needs a global dictionary to start from.',
                "Name a start: an earlier run, or a file with an array 'global'.",
            )
        state = replace(state, common=np.asarray(public.warm_start["global"], np.float64))
        if state.common.shape != (config.global_atoms, d):
            raise ConfigError(
                f"'global' of the start has shape {state.common.shape}, and the run needs {(config.global_atoms, d)}."
            )
        if config.robust:
            state = replace(state, common=polar(state.common))
    return state


def total_rounds(config: DictionariesConfig) -> int:
    return 1 + config.rounds


def message(config: DictionariesConfig, state: DictionariesState):
    if state.phase == "done":
        return None
    if state.phase == "start":
        least = 1 if config.automatic else config.global_atoms
        return StartMessage(state.seed, _threshold(config, state), least)
    number = state.round + 1
    common = as_sent(config, state.common)
    return RoundMessage(
        number,
        state.seed,
        common,
        state.matched,
        state.index,
        config.participation,
        number > config.rounds - config.local_rounds,
        state.far < MANY,
    )


def _width(config: DictionariesConfig) -> int:
    """Bytes of a number of an atom in a message."""
    return np.dtype(config.precision).itemsize


def _threshold(config, state) -> float:
    """A client sends its dictionary if its uniform is at most this: all, the smallest few, or nobody."""
    if config.start == "given":
        return -1.0
    if state.population <= config.matched_clients:
        return 1.0
    uniforms = client_uniforms(state.seed, MATCHED, 0, 0, state.population)[:, 0]
    return float(np.partition(uniforms, config.matched_clients - 1)[config.matched_clients - 1])


def server_update(config: DictionariesConfig, state: DictionariesState, result: Mapping):
    if state.phase == "start":
        return _matched(config, state, result)
    if config.learner == "statistics":
        common, state, info = _by_sums(config, state, result)
    else:
        common, info = _by_centres(config, state, result)
    if not np.isfinite(common).all():
        raise RunError(
            f"the global dictionary of round {state.round + 1} is not finite.", "Scale the data, or take smaller steps."
        )
    return _moved(config, state, common, info, result)


# --- start ----------------------------------------------------------------------------------------------------------


def _matched(config, state, result):
    clients, rows, silent, few, objective = (float(value) for value in result["sizes"])
    if clients == 0:
        raise PopulationError("no client of the population has samples other than zero.", "Check what was ingested.")
    senders, sent = np.asarray(result["senders"]), np.asarray(result["dictionaries"], np.float64)
    info = {
        "clients": clients,
        "rows": rows,
        "silent": silent,
        "few_samples": few,
        "objective": objective / rows,
        "matched": float(len(sent)),
        "bytes_up": float(_width(config) * sent.size),
    }
    state = replace(state, phase="rounds", clients=clients, rows=rows)
    if config.start == "given":
        return _ready(config, state), RoundInfo(info | {"global_atoms": float(len(state.common))})
    if not len(sent):
        raise PopulationError(
            "none of the clients that were drawn for the matching has samples other than zero.",
            "Raise matched_clients.",
        )
    numbers, ranks = senders.astype(np.int64).T
    dictionaries = [atoms[:rank] for atoms, rank in zip(sent, ranks, strict=True)]
    note = ""
    if config.automatic:
        count, scores = automatic(config.global_atoms, dictionaries, state.seed)
        note = f"{count} global atoms; scores " + " ".join(f"{value:.3f}" for value in scores[:50])
    else:
        count = config.global_atoms
    found = match(config, dictionaries, count, state.seed)
    together = _begun(config, matched_atoms(dictionaries, found))
    info |= {
        "global_atoms": float(count),
        "least_norm": together.least,
        "not_shared": float(together.not_shared),
        "score": float(found.scores.max(initial=0.0)),
        "left_out": float((~found.kept).sum()),
    }
    state = replace(state, common=together.atoms, matched=numbers, index=found.index)
    return _ready(config, state), RoundInfo(info, note)


def _begun(config, atoms: np.ndarray) -> Centre:
    """The global atoms that rounds begin with, of matched ones (N, rg, d)."""
    if not config.robust:
        return centre(atoms, config.aggregate, config.norm)
    # Clients' own atoms were not learnt robustly: even if atoms of the rounds may be averaged, these may not.
    found = centre(atoms, "median", "unit")
    return replace(found, atoms=polar(found.atoms))


def _ready(config, state):
    if config.learner != "statistics":
        return state
    count = len(state.common)
    return replace(state, xx=np.zeros((count, count)), xy=np.zeros((count, state.features)))


def match(config: DictionariesConfig, dictionaries: list[np.ndarray], count: int, seed: int) -> Matching:
    """By the configured rule. dictionaries: (r_i, d) each, in the order of the clients."""
    if config.matcher == "star" and len(dictionaries) >= STAR_CLIENTS:
        return star(dictionaries, count, stream(seed, "dictionaries/anchors"))
    return path(dictionaries, count, config.orders, stream(seed, "dictionaries/orders"))


# --- rounds ---------------------------------------------------------------------------------------------------------


def _by_centres(config, state, result) -> tuple[np.ndarray, dict[str, float]]:
    count = len(state.common)
    if config.aggregate == "median":
        sent = np.asarray(result["sent"], np.float64)
        found = centre(sent, "median", config.norm, state.common) if len(sent) else _nobody(state)
        answers = float(len(sent))
    else:
        total = np.asarray(result["sum"])
        answers = float(result["counts"][0]) - float(result["counts"][7])
        if count and total[0, -1] > 0:
            found = scaled(total[:, :-1] / total[:, -1:], config.norm, state.common)
        else:
            found = _nobody(state)
    info = {
        "least_norm": found.least,
        "not_shared": float(found.not_shared),
        "bytes_up": answers * _width(config) * count * state.features,
    }
    return found.atoms, info


def _nobody(state) -> Centre:
    """Nobody answered, or there are no global atoms: nothing moves."""
    return Centre(state.common, 1.0, 0)


def _by_sums(config, state, result) -> tuple[np.ndarray, DictionariesState, dict[str, float]]:
    xx, xy = np.asarray(result["xx"]), np.asarray(result["xy"])
    if config.participation < 1:
        # About as many samples as those of all clients: the last rounds', older ones fading
        xx, xy = (1 - config.participation) * state.xx + xx, (1 - config.participation) * state.xy + xy
    common, doubled = state.common, 0
    if len(common):
        common, doubled = without_unused(
            descend(common, xx, xy, config.sweeps),
            np.diagonal(xx),
            stream(state.seed, "dictionaries/split", state.round + 1),
        )
    info = {"doubled": float(doubled), "bytes_up": float(result["counts"][0]) * BYTES * (xx.size + xy.size)}
    return common, replace(state, xx=xx, xy=xy), info


def without_unused(common: np.ndarray, energy: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, int]:
    """(dictionary, number of replaced atoms): an atom that nobody uses becomes a slightly moved copy of the most used
    one that has not been copied yet; the next codes tell them apart. No sample is needed for that.
    """
    dead = np.flatnonzero(energy <= UNUSED * max(float(energy.mean()), np.finfo(float).tiny))
    if not len(dead) or len(dead) == len(energy):
        return common, 0
    common = common.copy()
    alive = np.setdiff1d(np.argsort(-energy, kind="stable"), dead, assume_unique=True)
    order = alive[np.argsort(-energy[alive], kind="stable")]
    for at, source in zip(dead, np.resize(order, len(dead)), strict=True):
        noise = generator.standard_normal(common.shape[1]) / np.sqrt(common.shape[1])
        common[at] = normalise(common[source] + SPLIT * noise)[0]
    return common, len(dead)


def _moved(config, state, common, info, result):
    taking, rows, loss, nonzero, collisions, dead, distance, left_out, far, anew = (float(v) for v in result["counts"])
    movement = d12(common, state.common)
    none = max(taking, 1.0)
    info |= {
        "movement": movement,
        "loss": loss / max(rows, 1.0),
        "worst_loss": max(float(result["worst"].score), 0.0),
        "nonzero": nonzero / max(rows, 1.0),
        "collisions": collisions,
        "unused_atoms": dead,
        "distance": distance / none,
        "farthest": max(float(result["farthest"].score), 0.0),
        "active_clients": taking,
        "left_out": left_out,
        "far": far,
        "bytes_down": taking * _width(config) * common.size,
    }
    if config.restarts:
        info["begun_anew"] = anew
    number = state.round + 1
    empty = np.zeros(0, np.int64)
    state = replace(state, round=number, common=common, matched=empty, index=empty.reshape(0, 0), far=far / none)
    # Sampled clients, or local atoms that are learnt in the last rounds only: then all rounds are made.
    last = config.robust or (config.learner == "statistics" and config.split == "nested")
    open_end = config.participation == 1 and not last
    open_end = open_end and number >= (config.restart_round or 0)
    if number >= config.rounds or (open_end and movement < config.tolerance):
        state = replace(state, phase="done")
    return state, RoundInfo(info)
