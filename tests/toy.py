"""Two tiny methods in one that exercise the whole contract: a mean with client memory, and a private mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from fedcore.population.blocks import ClientBlock, Kind
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import ClientOutputs, Memory, Message, PrivateMethod, PublicFacts, RoundInfo
from fedcore.rounds.private_settings import PrivateRunSettings
from fedcore.rounds.results import Metric
from fedcore.rounds.statistics import FloatSum, IntegerSum, Statistics

GRID = 2**16


class ToyConfig(PrivateRunSettings):
    rounds: int = Field(3, ge=1)
    private: bool = False
    spare_releases: int = 1


@dataclass(frozen=True)
class ToyState:
    centre: np.ndarray
    step: int
    clients: int


class Toy(PrivateMethod[ToyConfig, ToyState]):
    """Moves a centre half-way to the mean histogram of the clients, who remember how often they were asked."""

    name: ClassVar[str] = "toy"
    kinds: ClassVar[tuple[Kind, ...]] = ("counts",)
    arithmetic_version: ClassVar[str] = "toy-1"
    Config = ToyConfig
    State = ToyState
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("movement", "Movement of the centre"),)

    @property
    def private(self) -> bool:
        return self.config.private

    @property
    def not_private_because(self) -> str:
        return "" if self.private else "it adds no noise"

    def plan(self, public: PublicFacts) -> Sequence[PlannedRelease]:
        if not self.private:
            return []
        sigma = (self.config.rounds / (2 * public.rho)) ** 0.5 * (1 + 1e-9)
        return [
            PlannedRelease(f"mean-{r}", r, (public.features,), GRID, sigma, "toy", "one cell")
            for r in range(1, self.config.rounds + 1)
        ]

    def init(self, public: PublicFacts) -> ToyState:
        return ToyState(np.zeros(public.features), 0, public.clients or public.nominal_clients)

    def total_rounds(self, state: ToyState) -> int:
        return self.config.rounds

    def message(self, state: ToyState) -> Message | None:
        return None if state.step == self.config.rounds else state

    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        asked = np.zeros(block.clients) if memory is None else memory["asked"]
        shares = block.csr.multiply(1 / np.maximum(block.totals, 1)[:, None]).tocsr()
        if self.private:
            grid = np.asarray(np.trunc(shares.toarray() * GRID).sum(axis=0), np.int64)
            return {f"mean-{message.step + 1}": IntegerSum(grid)}, None
        answer = {
            "mean": FloatSum.at(block.leaf, np.asarray(shares.sum(axis=0)).ravel()),
            "asked": FloatSum.at(block.leaf, asked.sum()),
        }
        return answer, {"asked": asked + 1}

    def server_update(self, state: ToyState, result: Mapping[str, Any]) -> tuple[ToyState, RoundInfo]:
        total = result[f"mean-{state.step + 1}"] / GRID if self.private else result["mean"]
        centre = (state.centre + total / state.clients) / 2
        info = RoundInfo({"movement": float(np.abs(centre - state.centre).sum())})
        return ToyState(centre, state.step + 1, state.clients), info

    def personalise(self, state: ToyState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        return {"distance": np.abs(block.csr.toarray() - state.centre).sum(axis=1).astype(np.float32)}


class WarmToy(Toy):
    """The same, which may start from where another one ended."""

    accepts_warm_start: ClassVar[bool] = True

    def init(self, public: PublicFacts) -> ToyState:
        state = super().init(public)
        return state if public.warm_start is None else replace(state, centre=public.warm_start["centre"])

    def warm_start_of(self, state: ToyState) -> dict[str, np.ndarray]:
        return {"centre": state.centre}

    def checked_warm_start(self, arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
        return dict(arrays)
