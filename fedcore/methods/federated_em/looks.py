"""What the server makes of the objective, each time that it looks at it: the best statistic so far, whether VR-FedEM
has to go back to it, and in the end what a run says of itself.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedcore.methods.federated_em import models
from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.state import FederatedEMState, pack
from fedcore.methods.mixture_models.contract import CurvedEM

WORSE = 0.01  # nats a row: a last statistic that is worse than the best by more is not what a run ends with
RISES = 1e-3  # between two full passes of VR-FedEM: more sends it back
CONVERGED = 1e-4  # nats a row and round; a start that is as good as the end is no rise, whatever rounding says
COLLAPSED = 0.1  # nats a row above the best
OFTEN = 0.2  # of the rounds
UNLIKE = 5.0  # times what a first step over all rows gains after a search on a sample that is like them
SEVERAL = 0.05  # nats a row between the best and the worst end of a search


def start_passes(config: FederatedEMConfig) -> int:
    """Passes over the rows before the first round."""
    if config.searches or config.fits_cells:
        return 1
    seeds = models.seeding_passes(config)
    tried = (config.starts_tried > 1) + config.tries_penalties
    clusters = config.variant.cluster_rounds if seeds else 0
    return 1 + seeds + clusters + config.variant.trial_rounds * tried + config.fills_memories


def looked(config: FederatedEMConfig, state: FederatedEMState, objective: float) -> FederatedEMState:
    """After a look at the objective of `state.statistic`, before a step is taken from there."""
    if state.objective is not None and state.round > state.looked:
        state = replace(state, slope=(state.objective - objective) / (state.round - state.looked))
    if state.first_objective is None:
        state = replace(state, first_objective=objective)
    if config.variant.safeguards and (state.best_objective is None or objective < state.best_objective):
        state = replace(state, best=state.statistic, best_objective=objective, best_round=state.round)
    return replace(state, objective=objective, looked=state.round)


def must_go_back(config: FederatedEMConfig, state: FederatedEMState) -> bool:
    """Whether the statistic is an anchor of VR-FedEM, was looked at, and is worse than the best one."""
    anchor = config.variance_reduced and config.variant.safeguards and state.since_full == 0
    if not anchor or state.objective is None or state.best_objective is None:
        return False
    return state.looked == state.round and state.objective > state.best_objective + RISES


def gone_back(model: CurvedEM, state: FederatedEMState) -> FederatedEMState:
    """At the best statistic again, with half the step; the next round begins with a full pass. The clients' memories
    stay: they say what the server knows of the clients, wherever the model is."""
    theta, _ = pack(model.maximise(state.best))
    return replace(state, statistic=state.best, theta=theta, previous=theta, gamma=state.gamma / 2, since_full=0)


def ended(config: FederatedEMConfig, model: CurvedEM, state: FederatedEMState, objective: float) -> FederatedEMState:
    """After the last look; the best statistic instead of the last one if that is worse."""
    state = replace(looked(config, state, objective), last_objective=objective)
    if state.best_objective is None or objective <= state.best_objective + WORSE:
        return state
    theta, _ = pack(model.maximise(state.best))
    return replace(state, statistic=state.best, theta=theta, objective=state.best_objective)


def converged(config: FederatedEMConfig, state: FederatedEMState) -> bool:
    """Whether the last steps gained little, as far as the run knows."""
    if config.accelerated:
        return state.slope is not None and state.slope < max(config.least_gain, CONVERGED)
    return status(config, state).startswith("converged")


def status_of_accelerated(config: FederatedEMConfig, state: FederatedEMState) -> str:
    """As `status`. A maximum of the likelihood of n rows is about q / (2 n) nats a row below that of all rows, for q
    parameters: a first step that gains much more says that the sample is not like all rows."""
    passes, ends, said = start_passes(config) + state.round + 1, state.ends, []
    gain = "an unknown number of" if state.slope is None else f"{state.slope:.1g}"
    gain = f"{passes} passes over the rows, and the last one gains {gain} nats a row"
    spread = float(np.ptp(ends)) if len(ends) else 0.0
    searches = f"{len(ends)} searches end {spread:.2g} nats apart"
    if not converged(config, state):
        said.append(f"stopped after {gain}; raise max_passes.")
    elif spread > SEVERAL:
        said.append(f"several optima: {searches}, and the best was kept; raise restarts. Converged: {gain}.")
    else:
        said.append(f"converged: {gain}" + (f"; {searches}." if len(ends) > 1 else "."))
    expected = len(state.statistic) / (2 * state.sampled) if state.sample_share < 1 and state.sampled else np.inf
    if state.first_gain is not None and state.first_gain > UNLIKE * expected:
        said.append(
            f"A sample of {state.sampled:.0f} rows does not represent all rows: the first step over them gained "
            f"{state.first_gain:.2g} nats a row, and {expected:.1g} was to be expected."
        )
    if not converged(config, state) and spread > SEVERAL:
        said.append(f"Several optima: {searches}, and the best was kept; raise restarts.")
    return " ".join(said)


def status(config: FederatedEMConfig, state: FederatedEMState) -> str:
    """One line: converged, not converged, cut back, collapsed or diverged, and why. Empty before the last look."""
    if config.accelerated:
        return "" if state.last_objective is None else status_of_accelerated(config, state)
    last, first, best = state.last_objective, state.first_objective, state.best_objective
    if last is None or first is None:
        return ""
    kept = "" if best is None or last <= best + WORSE else f" The parameters are those of round {state.best_round}."
    if last > first + CONVERGED:
        return f"diverged: the last objective, {last:.4g}, is above that of the start, {first:.4g}.{kept}"
    if best is not None and last > best + COLLAPSED:
        return f"collapsed: the last objective, {last:.4g}, is above the best, {best:.4g}.{kept}"
    falls = state.slope is not None and state.slope > CONVERGED
    if state.shortened > OFTEN * state.round and (falls or state.exact_gain is None):
        said = f"cut back: {state.shortened} of {state.round} steps had to be shortened."
        if state.exact_gain is not None:
            said += f" A step of uncompressed messages would gain about {state.exact_gain:.2g}: set codec to identity."
        return said + kept
    if falls:
        more = "raise max_passes" if config.fits_cells else "train for more rounds"
        return f"not converged: the objective still falls by {state.slope:.2g} a round; {more}.{kept}"
    return f"converged: the objective falls by no more than {CONVERGED:g} a round.{kept}"
