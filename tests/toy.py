"""Two tiny methods that exercise the whole contract: a mean with client memory, and a private mean."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import RoundInfo
from fedcore.rounds.statistics import FloatSum, IntegerSum

GRID = 2**16


class ToyConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    rounds: int = Field(3, ge=1)
    private: bool = False
    epsilon: float | None = None
    spare_releases: int = 1
    nominal_clients: int | None = None


@dataclass(frozen=True)
class ToyState:
    centre: np.ndarray
    step: int
    clients: int


@dataclass(frozen=True)
class Toy:
    """Moves a centre half-way to the mean histogram of the clients, who remember how often they were asked."""

    config: ToyConfig = field(default_factory=ToyConfig)
    name: ClassVar[str] = "toy"
    kind: ClassVar[str] = "counts"
    kernel: ClassVar[str] = "toy-1"
    Config: ClassVar[type] = ToyConfig
    State: ClassVar[type] = ToyState

    @property
    def private(self):
        return self.config.private

    @property
    def not_private_because(self):
        return "" if self.private else "it adds no noise"

    def plan(self, public):
        if not self.private:
            return []
        sigma = (self.config.rounds / (2 * public.rho)) ** 0.5 * (1 + 1e-9)
        return [
            PlannedRelease(f"mean-{r}", r, (public.features,), GRID, sigma, "toy", "one cell")
            for r in range(1, self.config.rounds + 1)
        ]

    def init(self, public):
        return ToyState(np.zeros(public.features), 0, public.clients or public.nominal_clients)

    def total_rounds(self, state):
        return self.config.rounds

    def message(self, state):
        return None if state.step == self.config.rounds else state

    def client_update(self, message, block, memory):
        asked = np.zeros(block.clients) if memory is None else memory["asked"]
        shares = block.csr.multiply(1 / np.maximum(block.totals, 1)[:, None]).tocsr()
        if self.private:
            return {"mean": IntegerSum(np.asarray(np.trunc(shares.toarray() * GRID).sum(axis=0), np.int64))}, None
        answer = {
            "mean": FloatSum.at(block.leaf, np.asarray(shares.sum(axis=0)).ravel()),
            "asked": FloatSum.at(block.leaf, asked.sum()),
        }
        return answer, {"asked": asked + 1}

    def quantise(self, message, statistics):
        return {f"mean-{message.step + 1}": statistics["mean"].value()}

    def server_update(self, state, result):
        total = result[f"mean-{state.step + 1}"] / GRID if self.private else result["mean"]
        centre = (state.centre + total / state.clients) / 2
        info = RoundInfo({"movement": float(np.abs(centre - state.centre).sum())})
        return ToyState(centre, state.step + 1, state.clients), info

    def personalise(self, state, block, memory):
        return {"distance": np.abs(block.csr.toarray() - state.centre).sum(axis=1).astype(np.float32)}
