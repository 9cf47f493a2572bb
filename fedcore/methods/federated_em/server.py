"""The server's side of a run that is not private: phases, damped steps inside the model's domain, memories, costs.

    moments   one pass: sizes, column means and variances; rows are checked
    pick      rows of clients for the starts of mixtures, one more in each of G passes
    clusters  k-means from these rows
    trials    plain EM steps of several starts, side by side; the best goes on
    memory    V_{0,i} = h_i(S_0), uncompressed
    rounds    Algorithm 1, or 2 with its full passes
    last      the objective at the final parameters

Source: Dieuleveut, Fort, Moulines, Robin 2021, Algorithms 1 and 2. Backtracking and the practical step are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedcore.errors import ConfigError, PopulationError, RunError
from fedcore.methods.federated_em import models as families
from fedcore.methods.federated_em import start as given
from fedcore.methods.federated_em.clients import PARTICIPATION, remembers
from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.messages import (
    ClusterMessage,
    FieldMessage,
    Message,
    MomentsMessage,
    ObjectiveMessage,
    PickMessage,
    RoundMessage,
    Scaling,
    TrialMessage,
)
from fedcore.methods.federated_em.state import FederatedEMState, empty, pack, unpack
from fedcore.methods.mixture_models.contract import CurvedEM
from fedcore.methods.mixture_models.initialisation import lloyd_step, start_from_clusters
from fedcore.randomness import client_uniforms, stream
from fedcore.rounds.method import PublicFacts, RoundInfo

START = "federated_em/start"
HALVINGS = 12
WINDOW, OFTEN = 20, 0.05  # a step that is cut back in more than 5 % of 20 rounds is too long
AUDIT_EVERY, AUDIT_TOLERANCE = 50, 1e-10
CONSTANT = 1e-12  # a variance this small beside the squared mean is rounding
HEADER_BITS = 64  # the number of the round
PLACES = 64  # bits of a number on the way to the clients


def init(config: FederatedEMConfig, public: PublicFacts) -> FederatedEMState:
    state = empty(seed=public.seed, population=public.clients or 0)
    if config.start_name == "given":
        theta, layout = pack(given.parameters(public, given.model(config, public)))
        fixed = given.scaling(config, public)
        state = replace(state, theta=theta, layout=layout, centre=fixed.centre, scale=fixed.scale)
    return state


def total_rounds(config: FederatedEMConfig, state: FederatedEMState) -> int:
    """All passes, if the objective stops falling only after the last round."""
    passes = 1 + config.all_rounds + 1 + families.picking_passes(config)
    passes += config.cluster_rounds if families.picking_passes(config) else 0
    if config.restarts > 1:
        passes += config.trial_rounds
    return passes + (1 if config.memories else 0)


def scaling(state: FederatedEMState) -> Scaling:
    return Scaling(state.centre, state.scale, state.variance, state.mean, state.seen)


# --- messages -------------------------------------------------------------------------------------------------------


def message(config: FederatedEMConfig, state: FederatedEMState) -> Message | None:
    if state.phase == "done":
        return None
    if state.phase == "moments":
        return MomentsMessage()
    if state.phase == "clusters":
        return ClusterMessage(state.picked, scaling(state))
    if state.phase == "pick":
        return PickMessage(state.picked, config.start_name == "kmeans++", scaling(state), state.seed)
    model = families.model_of(config, scaling(state))
    if state.phase == "trials":
        thetas = tuple(model.maximise(s) for s in state.starts)
        return TrialMessage(thetas, scaling(state), state.clients, state.rows)
    if state.phase == "memory":
        return FieldMessage(state.parameters(), state.statistic, scaling(state), state.clients, state.rows)
    if state.phase == "last":
        return ObjectiveMessage(state.parameters(), scaling(state), state.clients, state.rows)
    number = state.round + 1
    oracle = _oracle(state)
    return RoundMessage(
        number=number,
        seed=state.seed,
        theta=state.parameters(),
        previous=unpack(state.previous, state.layout) if oracle == "recursive" else None,
        oracle=oracle,
        s=state.statistic,
        scaling=scaling(state),
        threshold=_threshold(config, state, number),
        batch=0 if oracle == "full" else state.batch,
        clients=state.clients,
        rows=state.rows,
        monitor=_looks(config, number),
        audit=number % AUDIT_EVERY == 0,
    )


def _oracle(state: FederatedEMState) -> str:
    if state.inner_rounds:
        return "full" if state.round % state.inner_rounds == 0 else "recursive"
    return "batch" if state.batch else "full"


def _looks(config: FederatedEMConfig, number: int) -> bool:
    return (number - 1) % config.look_every == 0


def _threshold(config: FederatedEMConfig, state: FederatedEMState, number: int) -> float:
    """A client takes part if its uniform is at most this: p, or the k-th smallest uniform of all clients."""
    if config.participation == 1:
        return 1.0
    if config.sampling == "bernoulli":
        return config.participation
    uniforms = client_uniforms(state.seed, PARTICIPATION, number, 0, state.population)[:, 0]
    taken = _fixed(config, state)
    return float(np.partition(uniforms, taken - 1)[taken - 1])


def _fixed(config: FederatedEMConfig, state: FederatedEMState) -> int:
    return max(1, round(config.participation * state.population))


def participation(config: FederatedEMConfig, state: FederatedEMState) -> float:
    """The known expected share of clients in a round, by which sums are divided; never the share that came."""
    if config.participation == 1 or config.sampling == "bernoulli":
        return config.participation
    return _fixed(config, state) / state.population


# --- steps ----------------------------------------------------------------------------------------------------------


def server_update(config: FederatedEMConfig, state: FederatedEMState, result: Mapping):
    """result: finished statistics of the pass. Returns the next state and its RoundInfo."""
    if state.phase == "moments":
        return _moments(config, state, result)
    model = families.model_of(config, scaling(state))
    step = {"pick": _pick, "clusters": _clusters, "trials": _trials, "memory": _memory, "rounds": _round}
    return step.get(state.phase, _last)(config, model, state, result)


def _moments(config, state, result):
    clients, rows, squares = (float(number) for number in result["sizes"])
    if rows == 0:
        raise PopulationError("no client of the population has any rows.", "Check what was ingested.")
    count, total, square = result["moments"]
    if not np.isfinite(square).all():
        column = int(np.argmin(np.isfinite(square)))
        raise PopulationError(
            f"the values of column {column} are too large to be squared.", "Rescale it, or look for wrong values."
        )
    known = np.maximum(count, 1.0)
    mean = total / known
    variance = np.maximum(square / known - mean**2, 0.0)
    state = replace(
        state, clients=clients, rows=rows, effective_clients=rows**2 / squares if config.by_rows else clients
    )
    if families.standardises(config):
        constant = variance <= CONSTANT * mean**2
        scale = np.where(constant, 1.0, np.sqrt(variance))
        if families.one_scale(config):
            scale = np.full(len(mean), np.sqrt(variance.mean()) or 1.0)
        state = replace(state, centre=mean, scale=scale)
    if len(state.scale):
        mean, variance = (mean - state.centre) / state.scale, variance / state.scale**2
    state = replace(state, mean=mean, variance=variance, seen=count)
    if config.start_name == "given":
        state = _begin_with(config, state, [state.parameters()])
    elif families.picking_passes(config) == 0:
        seeds = [int(stream(state.seed, START, number).integers(2**62)) for number in range(config.restarts)]
        state = _begin_with(config, state, [families.start(config, scaling(state), seed) for seed in seeds])
    else:
        state = replace(state, phase="pick", picked=np.zeros((config.restarts, 0, len(mean))))
    return state, RoundInfo({"clients": clients, "rows": rows})


def _pick(config, model, state, result):
    drawn = [result[f"row_{start}"] for start in range(config.restarts)]
    if any(draw.score == -np.inf for draw in drawn):
        raise PopulationError(
            f"the population has fewer than {config.components} different rows.", "Ask for fewer components."
        )
    rows = np.stack([draw.payload["row"] for draw in drawn])
    picked = np.concatenate([state.picked, rows[:, None, :]], axis=1)
    state = replace(state, picked=picked)
    if picked.shape[1] == families.picking_passes(config):
        state = replace(state, phase="clusters", step=0)
    return state, RoundInfo({"picked": float(picked.shape[1])})


def _clusters(config, model, state, result):
    sums = np.asarray(result["clusters"])
    sizes = sums[:, :, 0]
    info = RoundInfo({"smallest_cluster": float(sizes.min()), "largest_cluster": float(sizes.max())})
    step = state.step + 1
    if step < config.cluster_rounds:
        moved = np.stack([lloyd_step(centres, own) for centres, own in zip(state.picked, sums, strict=True)])
        return replace(state, step=step, picked=moved), info
    thetas = [
        start_from_clusters(model, centres, own, state.mean, state.variance)
        for centres, own in zip(state.picked, sums, strict=True)
    ]
    return _begin_with(config, replace(state, step=0), thetas), info


def _begin_with(config, state, thetas):
    model = families.model_of(config, scaling(state))
    statistics = np.stack([model.statistic_of(theta) for theta in thetas])
    state = replace(state, picked=np.zeros((0, 0, 0)))
    if len(statistics) > 1:
        return replace(state, phase="trials", starts=statistics)
    return _begin(config, model, state, statistics[0])


def _trials(config, model, state, result):
    losses = [
        float(loss) + model.penalty(model.maximise(s)) for loss, s in zip(result["losses"], state.starts, strict=True)
    ]
    best, starts = int(np.argmin(losses)), np.asarray(result["totals"])
    info = RoundInfo({"objective": losses[best], "spread_of_starts": max(losses) - min(losses)})
    evaluations, answers = state.rows * len(starts), state.clients * len(starts)
    state = replace(
        state,
        starts=starts,
        step=state.step + 1,
        expectations=state.expectations + evaluations,
        bits_up=state.bits_up + PLACES * model.q * answers,
        bits_down=state.bits_down + _down(model, state) * answers,
    )
    if state.step == config.trial_rounds:
        state = _begin(config, model, replace(state, starts=np.zeros((0, model.q)), step=0), starts[best])
    return state, info


def _begin(config, model: CurvedEM, state, s):
    """S_0, T(S_0), the step and the sizes of batches; then the memories or the first round."""
    if not model.admissible(s):
        raise ConfigError("the start is outside the domain of the model.", "Start from other rows or parameters.")
    codec = families.codec_of(config, model)
    theta, layout = pack(model.maximise(s))
    batch, inner = _batches(config, codec.omega, state.rows / state.clients)
    phase = "memory" if config.memories and remembers(config, codec) else "rounds"
    return replace(
        state,
        phase=phase,
        statistic=s,
        theta=theta,
        previous=theta,
        layout=layout,
        memory=np.zeros(model.q),
        batch=batch,
        inner_rounds=inner,
        gamma=config.step(codec.omega, state.effective_clients),
    )


def _batches(config, omega: float, mean_rows: float) -> tuple[int, int]:
    """Rows of a batch and rounds between full passes; k_in = b (1 + omega)^2 balances their costs (Theorem 3)."""
    if not config.variance_reduced:
        return config.batch or 0, 0
    if config.batch is None and config.inner_rounds is not None:
        batch = math.ceil(config.inner_rounds / (1 + omega) ** 2)
    else:
        batch = config.batch or math.ceil(math.sqrt(mean_rows / 2) / (1 + omega))
    return batch, config.inner_rounds or max(2, math.ceil(batch * (1 + omega) ** 2))


def _memory(config, model, state, result):
    v = np.asarray(result["sum"])
    info = RoundInfo({"field_norm": float(v @ v)})
    return replace(
        state,
        phase="rounds",
        memory=v,
        expectations=state.expectations + state.rows,
        bits_up=state.bits_up + PLACES * model.q * state.clients,
        bits_down=state.bits_down + _down(model, state) * state.clients,
    ), info


def _down(model, state) -> float:
    """Bits to a client: the number of the round, S_k and T(S_k); not compressed in the paper either."""
    return float(HEADER_BITS + PLACES * (model.q + len(state.theta)))


def advance(model: CurvedEM, s: np.ndarray, field: np.ndarray, gamma: float, margin: float):
    """S + gamma H with gamma halved until it is in the domain: (S', gamma used, halvings); S itself if 12 halvings do
    not do. The domain is open and convex for every model here, so a small enough step always stays inside.
    """
    for halvings in range(HALVINGS + 1):
        moved = s + gamma * field
        if np.isfinite(moved).all() and model.admissible(moved, margin):
            return moved, gamma, halvings
        gamma /= 2
    return s, 0.0, HALVINGS


def _round(config, model, state, result):
    codec, number = families.codec_of(config, model), state.round + 1
    _audit(state, result)
    total, (active, expectations, bits) = np.asarray(result["sum"]), result["costs"]
    field = state.memory + total / participation(config, state)
    gamma = state.gamma / (1 + state.round / config.gamma_decay) if config.gamma_decay else state.gamma
    s, used, halvings = advance(model, state.statistic, field, gamma, config.margin)
    theta, _ = pack(model.maximise(s, start=state.parameters()))
    down = float(active) * _down(model, state)
    v = state.memory + config.memory_rate(codec.omega) * total if remembers(config, codec) else state.memory
    after = replace(
        state,
        round=number,
        statistic=s,
        theta=theta,
        previous=state.theta,
        memory=v,
        expectations=state.expectations + float(expectations),
        bits_up=state.bits_up + float(bits),
        bits_down=state.bits_down + down,
    )
    after = _shortened(config, after, halvings)
    scalars = {
        "field_norm": float(field @ field),
        "gamma": used,
        "halvings": float(halvings),
        "active_clients": float(active),
        "expectations": float(expectations),
        "epochs": after.expectations / state.rows,
        "bits_up": float(bits),
        "bits_down": down,
    }
    falls = True
    if "loss" in result:
        exact = np.asarray(result["total"]) - state.statistic
        value = float(result["loss"]) + model.penalty(state.parameters())
        scalars |= {"objective": value, "mean_field_norm": float(exact @ exact)}
        if config.tolerance and state.objective is not None:
            falls = state.objective - value >= config.tolerance * (number - state.looked)
        after = replace(after, objective=value, looked=number)
    if number == config.all_rounds or not falls:
        after = replace(after, phase="last")
    return after, RoundInfo(scalars)


def _shortened(config, state, halvings):
    """The automatic step is halved for good if it was cut back too often within a window of rounds."""
    cut_back = state.cut_back + (halvings > 0)
    gamma = state.gamma
    if state.round % WINDOW == 0:
        if config.gamma is None and cut_back > OFTEN * WINDOW:
            gamma /= 2
        cut_back = 0
    return replace(state, cut_back=cut_back, gamma=gamma)


def _audit(state, result) -> None:
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


def _last(config, model, state, result):
    value = float(result["loss"]) + model.penalty(state.parameters())
    return replace(state, phase="done", objective=value, looked=state.round), RoundInfo({"objective": value})
