"""Several starts of FedEM, which run rounds side by side; the best one continues.

Each start has a separate statistic, step of the codec and client memories. The memories of start r have `_r` after
their names. Messages are coded as in all rounds. After the last of these rounds, the start with the least objective
continues with its memories, and clients forget the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedcore.methods.federated_em import models
from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.messages import RoundMessage, StartsMessage
from fedcore.methods.federated_em.start import Step, enter_rounds
from fedcore.methods.federated_em.state import FederatedEMState
from fedcore.rounds.method import Memory, RoundInfo


def apart(config: FederatedEMConfig, state: FederatedEMState) -> list[FederatedEMState]:
    """The state of each start, as if it were the only one."""
    model, found = models.model_of(config, state.scaling()), []
    for number, s in enumerate(state.starts):
        one = replace(enter_rounds(config, model, state, s), phase="starts")
        if state.step:
            heard, resolution, settled = state.start_rounds[number].tolist()
            memory = state.start_memories[number]
            one = replace(one, memory=memory, heard=heard, resolution=resolution, settled=bool(settled))
        found.append(one)
    return found


def message(config: FederatedEMConfig, state: FederatedEMState, rounds: Sequence[RoundMessage]) -> StartsMessage:
    """rounds: the message of each start. Their numbers, which name random streams, are above those of all rounds; the
    objective is asked for in the last pass."""
    first, last = config.all_rounds + 1 + state.step * len(rounds), state.step + 1 == config.variant.trial_rounds
    own = (replace(one, number=first + r, monitor=last, audit=False) for r, one in enumerate(rounds))
    return StartsMessage(tuple(own), state.scaling())


def after_pass(
    config: FederatedEMConfig, state: FederatedEMState, moved: Sequence[FederatedEMState], losses: Sequence[float]
) -> Step:
    """moved: the state of each start after its round. losses: the objective of each start before it, where it was asked
    for."""
    cost = {
        name: getattr(state, name) + sum(getattr(one, name) - getattr(state, name) for one in moved)
        for name in ("expectations", "bits_up", "bits_down")
    }
    info = {"bits_up": cost["bits_up"] - state.bits_up}
    if losses:
        best = int(np.argmin(losses))
        info |= {"objective": losses[best], "spread_of_starts": max(losses) - min(losses)}
        none = np.zeros((0, 0))
        taken: dict[str, Any] = dict(
            phase="rounds", starts=none, start_memories=none, start_rounds=none, step=0, round=0, shortened=0, won=best
        )
        return replace(moved[best], **taken, **cost), RoundInfo(info)
    after = replace(
        state,
        step=state.step + 1,
        starts=np.stack([one.statistic for one in moved]),
        start_memories=np.stack([one.memory for one in moved]),
        start_rounds=np.array([(one.heard, one.resolution, one.settled) for one in moved], np.float64),
        **cost,
    )
    return after, RoundInfo(info)


def of_start(arrays: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The memories, or the statistics, of one start by their names in a round of one."""
    end = f"_{number}"
    return {name.removesuffix(end): array for name, array in arrays.items() if name.endswith(end)}


def with_number(arrays: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The inverse of `of_start`."""
    return {f"{name}_{number}": array for name, array in arrays.items()}


def kept_memory(memory: Memory | None, won: int) -> Memory | None:
    """What clients remember in the first round after the starts, of the start that won; -1: there were none."""
    return memory if memory is None or won < 0 else of_start(memory, won)
