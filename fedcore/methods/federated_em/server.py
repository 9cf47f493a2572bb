"""The server's side of a run that is not private. A run goes through phases; each is one or more passes:

    moments   sizes of the clients, column means and variances; rows are checked on the way
    pick      the seeds of mixtures, one more in each of G passes
    clusters  k-means from the seeds
    penalties exact EM steps of one initialisation with several penalties, without a share of each client's rows; the
              penalty that suits these rows best is taken
    trials    exact EM steps of several initialisations, side by side; the best one continues
    starts    rounds of several initialisations, side by side, in natural units; the best one continues
    memory    V_{0,i} = h_i(S_0), uncompressed
    rounds    Algorithm 1, or 2 with its full passes
    last      the objective at the final parameters

`PHASES` at the end lists what each phase requests and what the server computes from it.

Source: Dieuleveut, Fort, Moulines, Robin 2021, Algorithms 1 and 2. That steps are cut back is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.federated_em import coded_starts, criteria, looks, models, start
from fedcore.methods.federated_em.anderson import advanced
from fedcore.methods.federated_em.codecs import Codec
from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.differences import remembers, treats_clients_singly
from fedcore.methods.federated_em.messages import (
    BITS_PER_NUMBER,
    InitialMemoryMessage,
    Message,
    ObjectiveMessage,
    Oracle,
    RoundMessage,
    StartsMessage,
    bits_to_client,
    plain_scaling,
)
from fedcore.methods.federated_em.resolution import AXES, SETTLED, component_step, next_resolution
from fedcore.methods.federated_em.row_weights import check_column
from fedcore.methods.federated_em.search import sample_share
from fedcore.methods.federated_em.start import MARGIN, Step
from fedcore.methods.federated_em.state import FederatedEMState, empty, pack, unpack
from fedcore.methods.mixture_models.contract import CurvedEM, Theta
from fedcore.methods.mixture_models.mixture import Mixture
from fedcore.rounds.method import PublicFacts, RoundInfo

HALVINGS = 12  # of a step, at most
LEAST_BEYOND = 0.5
LEAST_RATIO = 0.2  # of a weight or a variance after a step to what it was: the fraction to the boundary
WINDOW, OFTEN = 20, 0.05  # a step that is cut back in more than 5 % of 20 rounds is too long
NUMBERS_OF_ENTRY = 4  # of a sample of token counts
AUDIT_EVERY, AUDIT_TOLERANCE = 50, 1e-10


def init(config: FederatedEMConfig, public: PublicFacts) -> FederatedEMState:
    """Raises ConfigError for a warm start that the model cannot use, and for a column of weights that is not there."""
    check_column(config.weight_column, public.features)
    state = empty(
        seed=public.seed,
        population=public.clients or 0,
        validation=config.algorithm.validation,
        hides_cells=config.algorithm.validation > 0 and config.model.table_rows is not None,
    )
    if config.searches:
        model = models.model_of(config.decided(0.0), plain_scaling(config.columns(public.features)))
        rows, numbers = public.rows or 0, public.features
        if config.model.kind == "counts":  # whose rows are tokens
            clients = public.clients or 0
            rows, numbers = clients, min(numbers, math.ceil(NUMBERS_OF_ENTRY * rows / max(clients, 1)))
        first, sample = sample_share(model.q, max(numbers, 1), rows)
        state = replace(state, first_share=first, sample_share=sample)
    if config.algorithm.start == "given":
        theta, layout = pack(start.public_parameters(public, start.public_model(config, public)))
        scaling = start.public_scaling(config, public)
        state = replace(state, theta=theta, layout=layout, centre=scaling.centre, scale=scaling.scale)
        state = replace(state, pseudo_rows=start.public_pseudo_rows(public))
    return state


def total_rounds(config: FederatedEMConfig, state: FederatedEMState) -> int:
    """All passes, if the objective stops falling only after the last round, and a run that compares ends with other
    parameters than its last ones.
    """
    if config.fits_cells:
        return 2
    passes = looks.start_passes(config) + config.all_rounds + 1
    compares = config.algorithm.validation > 0 and config.variant.safeguards and not config.accelerated
    return passes + compares  # the look at the best statistic (`_after_objective`)


def message(config: FederatedEMConfig, state: FederatedEMState) -> Message | None:
    return None if state.phase == "done" else PHASES[state.phase].message(config, state)


def server_update(config: FederatedEMConfig, state: FederatedEMState, result: Mapping[str, Any]) -> Step:
    """result: finished statistics of the pass. Returns the next state and its RoundInfo."""
    return PHASES[state.phase].update(config, state, result)


# --- first memories -------------------------------------------------------------------------------------------------


def _initial_memory_message(config: FederatedEMConfig, state: FederatedEMState) -> InitialMemoryMessage:
    return InitialMemoryMessage(state.parameters(), state.statistic, state.scaling(), state.clients, state.rows)


def _after_initial_memory(config: FederatedEMConfig, state: FederatedEMState, result: Mapping[str, Any]) -> Step:
    v = np.asarray(result["sum"])
    after = replace(
        state,
        phase="rounds",
        memory=v,
        expectations=state.expectations + state.rows,
        bits_up=state.bits_up + BITS_PER_NUMBER * len(state.statistic) * state.clients,
        bits_down=state.bits_down + bits_to_client(len(state.statistic), len(state.theta)) * state.clients,
    )
    return after, RoundInfo({"field_norm": float(v @ v)})


# --- several starts ---------------------------------------------------------------------------------------------------


def _starts_message(config: FederatedEMConfig, state: FederatedEMState) -> StartsMessage:
    rounds = [_round_message(config, one) for one in coded_starts.apart(config, state)]
    return coded_starts.message(config, state, rounds)


def _after_starts(config: FederatedEMConfig, state: FederatedEMState, result: Mapping[str, Any]) -> Step:
    model, moved, losses = models.model_of(config, state.scaling()), [], []
    for number, one in enumerate(coded_starts.apart(config, state)):
        answers = coded_starts.of_start(result, number)
        moved.append(_moved(config, one, model, answers)[0])
        if "loss" in answers:
            losses.append(float(answers["loss"]) + model.penalty(one.parameters()))
    return coded_starts.after_pass(config, state, moved, losses)


# --- rounds ---------------------------------------------------------------------------------------------------------


def _round_message(config: FederatedEMConfig, state: FederatedEMState) -> RoundMessage:
    number, oracle = state.round + 1, _oracle(state)
    return RoundMessage(
        number=number,
        seed=state.seed,
        theta=state.parameters(),
        previous=unpack(state.previous, state.layout) if oracle == "recursive" else None,
        oracle=oracle,
        s=state.statistic if config.sends_statistic else np.zeros(0),
        scaling=state.scaling(),
        threshold=answering(config, state),
        batch=0 if oracle == "full" else state.batch,
        clients=state.clients,
        rows=state.rows,
        monitor=_looks(config, state),
        audit=number % AUDIT_EVERY == 0,
        resolution=state.resolution,
        everything=config.natural and not state.heard,
        won=-1 if state.round else state.won,
        component_step=_component_step(config, state) if config.follows_em else math.inf,
    )


def _component_step(config: FederatedEMConfig, state: FederatedEMState) -> float:
    columns = len(state.variance) if config.model.covariance in ("full", "tied") else AXES
    return component_step(columns, state.effective_clients * answering(config, state))


def answering(config: FederatedEMConfig, state: FederatedEMState) -> float:
    """The expected share of clients in the next round. Fast steps and old memories do not go together, so all clients
    answer until a step gains little, and while several starts are compared."""
    all_answer = not state.settled or state.phase == "starts"
    return 1.0 if config.follows_em and all_answer else config.algorithm.participation


def _looks(config: FederatedEMConfig, state: FederatedEMState) -> bool:
    """Whether the objective is requested: at regular rounds, and before VR-FedEM continues from an anchor."""
    anchor = config.variance_reduced and config.variant.safeguards and state.since_full == 0
    return anchor or config.accelerated or state.round % config.variant.monitor_every == 0


def _oracle(state: FederatedEMState) -> Oracle:
    if state.inner_rounds:
        return "recursive" if state.since_full else "full"
    return "batch" if state.batch else "full"


def _after_round(config: FederatedEMConfig, state: FederatedEMState, result: Mapping[str, Any]) -> Step:
    if config.accelerated:
        return _after_pass(config, state, result)
    model = models.model_of(config, state.scaling())
    _audit(state, result)
    state, look, falls = _after_look(config, state, model, result)
    after, scalars = _moved(config, state, model, result)
    if looks.must_go_back(config, state):
        after = looks.gone_back(model, after)
    if after.round == config.all_rounds or not falls:
        exactly, _ = pack(model.maximise(after.statistic, start=after.parameters()))
        after = replace(after, phase="last", theta=exactly)
    return after, RoundInfo(scalars | look)


def _moved(
    config: FederatedEMConfig, state: FederatedEMState, model: CurvedEM, result: Mapping[str, Any]
) -> tuple[FederatedEMState, dict[str, float]]:
    """H, a step along H, and V_{k+1} (lines 14 to 16 of Algorithm 1)."""
    codec = models.codec_of(config, model, state.parameters(), state.statistic)
    field, answered = _field(config, state, model, codec, result)
    s, theta, gamma, halvings, cut = _step(config, answered, model, codec, field)
    active, expectations, bits = result["costs"]
    sizes_of_steps = config.natural + config.follows_em
    down = float(active) * bits_to_client(model.q * config.sends_statistic + sizes_of_steps, len(state.theta))
    after = replace(
        answered,
        round=state.round + 1,
        statistic=s,
        theta=pack(theta)[0],
        previous=state.theta,
        since_full=(state.since_full + 1) % state.inner_rounds if state.inner_rounds else 0,
        shortened=state.shortened + cut,
        expectations=state.expectations + float(expectations),
        bits_up=state.bits_up + float(bits),
        bits_down=state.bits_down + down,
    )
    after = _with_shorter_steps(config, after, halvings)
    scalars = {
        "field_norm": float(field @ field),
        "gamma": gamma,
        "halvings": float(halvings),
        "active_clients": float(active),
        "expectations": float(expectations),
        "epochs": after.expectations / state.rows,
        "bits_up": float(bits),
        "bits_down": down,
    }
    return after, scalars


def _after_pass(config: FederatedEMConfig, state: FederatedEMState, result: Mapping[str, Any]) -> Step:
    """A step of accelerated EM (`fedcore.methods.federated_em.anderson`), or the end with M of the best point."""
    model, number = models.model_of(config, state.scaling()), state.round + 1
    mapped, theta = np.asarray(result["total"]), state.parameters()
    objective = float(result["loss"]) + model.penalty(theta)
    s, trail = advanced(model, state.trail(), theta, state.statistic, mapped, objective)
    least = config.least_gain  # 0: all rounds are made, whatever rounding says
    done = number == config.all_rounds or (least > 0 and trail.gain is not None and trail.gain < least)
    if done:
        s = trail.best
    active, expectations, bits = (float(number) for number in result["costs"])
    after = replace(
        state,
        phase="last" if done else state.phase,
        round=number,
        statistic=s,
        theta=pack(model.maximise(s, start=theta))[0],
        points=trail.points,
        fields=trail.fields,
        best=trail.best,
        best_objective=trail.objective,
        first_objective=objective if state.first_objective is None else state.first_objective,
        objective=objective,
        slope=trail.gain,
        first_gain=trail.gain if number == 2 else state.first_gain,
        expectations=state.expectations + expectations,
        bits_up=state.bits_up + bits,
        bits_down=state.bits_down + active * bits_to_client(model.q, len(state.theta)),
    )
    field = mapped - state.statistic
    scalars = {
        "objective": objective,
        "field_norm": float(field @ field),
        "active_clients": active,
        "expectations": expectations,
        "epochs": after.expectations / state.rows,
        "bits_up": bits,
        "bits_down": after.bits_down - state.bits_down,
    }
    return after, RoundInfo(scalars | held_out_losses(result))


def _after_look(
    config: FederatedEMConfig, state: FederatedEMState, model: CurvedEM, result: Mapping[str, Any]
) -> tuple[FederatedEMState, dict[str, float], bool]:
    """The state with the objective of S_k, if the clients sent it; the reported values; and whether it still falls by
    the tolerance."""
    if "loss" not in result:
        return state, {}, True
    mean_field = np.asarray(result["total"]) - state.statistic
    objective, falls = float(result["loss"]) + model.penalty(state.parameters()), True
    if config.least_gain and state.objective is not None:
        falls = state.objective - objective >= config.least_gain * (state.round - state.looked)
    scalars = {"objective": objective, "mean_field_norm": float(mean_field @ mean_field)} | held_out_losses(result)
    if config.follows_em:
        z = models.units_of(model, state.parameters(), state.statistic).forward(mean_field[None])
        state = replace(state, exact_gain=float(np.sum(z**2)) / 2)
    return looks.looked(config, state, objective), scalars, falls


def _field(
    config: FederatedEMConfig, state: FederatedEMState, model: CurvedEM, codec: Codec, result: Mapping[str, Any]
) -> tuple[np.ndarray, FederatedEMState]:
    """H = V_k + sum w_i Q_i / p, and the state with V_{k+1}. In natural units V is the weighted sum of what is known of
    the clients, H is their mean less S_k, and the size of H says how fine the next messages are."""
    total = np.asarray(result["sum"])
    v = state.memory + config.memory_rate(codec.omega) * total if remembers(config, codec) else state.memory
    if not config.natural:
        return state.memory + total / config.algorithm.participation, replace(state, memory=v)
    heard = state.heard + float(result["heard"])
    if not heard:
        return np.zeros(model.q), state
    field = v / heard - state.statistic
    units = models.units_of(model, state.parameters(), state.statistic)
    size = float(np.linalg.norm(units.forward(field[None])))
    state = replace(state, memory=v, heard=heard, settled=state.settled or size**2 / 2 < SETTLED)
    resolution = next_resolution(config, size, model.q, state.effective_clients, answering(config, state))
    return field, replace(state, resolution=resolution)


def _may_go_further(state: FederatedEMState, model: CurvedEM, field: np.ndarray) -> bool:
    """Whether a step beyond EM's own changes little."""
    if not state.settled:
        return False
    before, after = state.parameters(), model.maximise(state.statistic + state.gamma * field)
    return model.least_ratio(before, after) >= LEAST_BEYOND


def _step(
    config: FederatedEMConfig, state: FederatedEMState, model: CurvedEM, codec: Codec, field: np.ndarray
) -> tuple[np.ndarray, Theta, float, int, bool]:
    """A step along H from S: (S', T(S'), gamma used, halvings, whether it was changed)."""
    before, planned, possible = state.parameters(), planned_step(config, state), as_it_is
    if config.natural:
        possible = models.units_of(model, before, state.statistic).possible
    if config.follows_em:
        if config.algorithm.gamma is None and not _may_go_further(state, model, field):
            planned = 1.0
        moved = state.statistic + planned * field
        s, cut = cast(Mixture, model).nearest_inside(before, state.statistic, moved)
        s = possible(s)
        if model.admissible(s, MARGIN):
            return s, model.maximise(s, start=before, rough=True), planned, 0, cut
        field = (s - state.statistic) / planned
    exact = planned <= 1 and not treats_clients_singly(config, codec)  # such steps of EM never raise the objective
    guarded = config.variant.safeguards and not exact
    s, theta, gamma, halvings = guarded_step(model, before, state.statistic, field, planned, guarded, possible)
    return s, theta, gamma, halvings, halvings > 0


def planned_step(config: FederatedEMConfig, state: FederatedEMState) -> float:
    """gamma of the coming round, before it is cut back. An automatic step in natural units is at most 1 before the
    first client has answered."""
    if config.natural and not state.heard and config.algorithm.gamma is None:
        return min(1.0, state.gamma)
    return decreased_step(config, state.gamma, state.round)


def decreased_step(config: FederatedEMConfig, gamma: float, finished: int) -> float:
    """gamma after this many rounds, before it is cut back."""
    decay = config.variant.gamma_decay
    return gamma / (1 + finished / decay) if decay else gamma


def as_it_is(s: np.ndarray) -> np.ndarray:
    return s


def damped_step(
    model: CurvedEM,
    s: np.ndarray,
    field: np.ndarray,
    gamma: float,
    possible: Callable[[np.ndarray], np.ndarray] = as_it_is,
) -> tuple[np.ndarray, float, int]:
    """S + gamma H with gamma halved until it is in the domain of T: (S', gamma used, halvings); S itself if 12 halvings
    do not do. The domain is open and convex for every model here, so that a small enough step always stays inside.
    possible: what a moved statistic is replaced by.
    """
    for halvings in range(HALVINGS + 1):
        moved = possible(s + gamma * field)
        if np.isfinite(moved).all() and model.admissible(moved, MARGIN):
            return moved, gamma, halvings
        gamma /= 2
    return s, 0.0, HALVINGS


def guarded_step(
    model: CurvedEM,
    theta: Theta,
    s: np.ndarray,
    field: np.ndarray,
    gamma: float,
    guarded: bool = True,
    possible: Callable[[np.ndarray], np.ndarray] = as_it_is,
) -> tuple[np.ndarray, Theta, float, int]:
    """`damped_step` that is, if guarded, halved further until no weight and no variance in any direction falls below
    LEAST_RATIO of what it is in theta = T(S): (S', T(S'), gamma used, halvings)."""
    moved, gamma, halvings = damped_step(model, s, field, gamma, possible)
    after = model.maximise(moved, start=theta, rough=True)
    while guarded and halvings < HALVINGS and model.least_ratio(theta, after) < LEAST_RATIO:
        gamma, halvings = gamma / 2, halvings + 1
        moved = possible(s + gamma * field)
        after = model.maximise(moved, start=theta, rough=True)
    return moved, after, gamma, halvings


def _with_shorter_steps(config: FederatedEMConfig, state: FederatedEMState, halvings: int) -> FederatedEMState:
    """The automatic step is halved for good if it was cut back too often within a window of rounds."""
    cut_back = state.cut_back + (halvings > 0)
    gamma = state.gamma
    if state.round % WINDOW == 0:
        if config.algorithm.gamma is None and not config.natural and cut_back > OFTEN * WINDOW:
            gamma /= 2
        cut_back = 0
    return replace(state, cut_back=cut_back, gamma=gamma)


def _audit(state: FederatedEMState, result: Mapping[str, Any]) -> None:
    """V_k = sum w_i V_{k,i} over all clients, active or not. Raises RunError if the memories say otherwise."""
    if "memory" not in result:
        return
    off = float(np.max(np.abs(np.asarray(result["memory"]) - state.memory), initial=0.0))
    if off > AUDIT_TOLERANCE * max(1.0, float(np.max(np.abs(state.memory), initial=0.0))):
        raise RunError(
            f"after round {state.round} the clients' memories add up to something else than the server's (off by "
            f"{off:.3g}).",
            "Memory files were lost, changed or taken from another run: restore them, or train again.",
        )


def held_out_losses(result: Mapping[str, Any]) -> dict[str, float]:
    """Mean losses of the rows that take no part, nats a row; nothing if all take part."""
    if "held_out" not in result:
        return {}
    rows, loss, in_data_units = (float(number) for number in result["held_out"])
    return {"held_out_loss": loss / rows, "held_out_loss_in_data_units": in_data_units / rows}


# --- the end --------------------------------------------------------------------------------------------------------


def _objective_message(config: FederatedEMConfig, state: FederatedEMState) -> ObjectiveMessage:
    return ObjectiveMessage(state.parameters(), state.scaling(), state.clients, state.rows)


def _after_objective(config: FederatedEMConfig, state: FederatedEMState, result: Mapping[str, Any]) -> Step:
    model = models.model_of(config, state.scaling())
    objective = float(result["loss"]) + model.penalty(state.parameters())
    if config.accelerated:
        scalars = {"objective": objective, **held_out_losses(result), **criteria.criteria(config, state, result)}
        return replace(state, phase="done", objective=objective, last_objective=objective), RoundInfo(scalars)
    first = state.last_objective is None
    after = looks.ended(config, model, state, objective) if first else replace(state, objective=objective)
    # Comparisons are of the final parameters of the run.
    again = first and config.algorithm.validation > 0 and after.statistic is not state.statistic
    scalars = {"objective": objective, **held_out_losses(result), **criteria.criteria(config, state, result)}
    return replace(after, phase="last" if again else "done"), RoundInfo(scalars)


# --- phases ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Phase:
    """message: what the server says in a pass of the phase. update: the next state, from the clients' answers."""

    message: Callable[[FederatedEMConfig, FederatedEMState], Message]
    update: Callable[[FederatedEMConfig, FederatedEMState, Mapping[str, Any]], Step]


PHASES = {
    "moments": Phase(start.moments_message, start.after_moments),
    "pick": Phase(start.seed_message, start.after_seed),
    "clusters": Phase(start.cluster_message, start.after_clusters),
    "penalties": Phase(start.penalty_message, start.after_penalties),
    "trials": Phase(start.trial_message, start.after_trials),
    "starts": Phase(_starts_message, _after_starts),
    "memory": Phase(_initial_memory_message, _after_initial_memory),
    "rounds": Phase(_round_message, _after_round),
    "last": Phase(_objective_message, _after_objective),
}
