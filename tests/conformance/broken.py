"""A sound small method, private or not, and methods that break one law each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedcore.errors import ConfigError, RunError
from fedcore.population.blocks import ClientBlock, CountsBlock
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import ClientOutputs, Memory, PublicFacts, RoundInfo
from fedcore.rounds.results import Column, Features, Metric, Result, Table
from fedcore.rounds.scores import KnownMemories, ScoreTable, sums
from fedcore.rounds.scores import table as table_of
from fedcore.rounds.statistics import FloatSum, IntegerSum, Statistics
from tests.toy import GRID, Toy, ToyState


class SoundConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    rounds: int = Field(3, ge=1, description="rounds")
    private: bool = Field(False, description="whether sums are noised")
    epsilon: float | None = Field(None, description="of the run")
    spare_releases: int = Field(1, description="to redo lost releases")
    nominal_clients: int | None = Field(None, description="public size")


class Sound(Toy):
    """Obeys every law."""

    name: ClassVar[str] = "sound"
    Config = SoundConfig

    def plan(self, public: PublicFacts) -> Sequence[PlannedRelease]:
        """Shares of two clients are at most sqrt(2) apart."""
        steps = math.isqrt(2 * GRID**2) + 1 if public.relation == "replace_one" else GRID
        return [replace(planned, sensitivity=steps) for planned in super().plan(public)]

    def result(self, state: ToyState, features: Features) -> Result:
        names = [features.name(i) for i in range(features.count)]
        columns = (Column("feature", names), Column("share", state.centre.tolist(), "%"))
        return Result((Table("centre", "Centre", columns),))

    def score_block(self, state: ToyState, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        errors = np.square(block.heldout.csr.toarray() - state.centre).sum(axis=1)
        return sums(block.leaf, (block.heldout.totals > 0).astype(float), {"this run": errors})

    def score_table(self, statistics: Mapping[str, np.ndarray]) -> ScoreTable:
        return table_of(statistics, ["this run"], "mse")


# --- definition -------------------------------------------------------------------------------------------------------


class NotDescribed(Toy):
    """Settings without descriptions."""


class UnknownFree(Sound):
    """Calls a setting free that it does not have."""

    free_settings = ("prior",)


class UnknownMain(Sound):
    """Shows a setting first that it does not have."""

    main_settings = ("clusters",)


class NineSettings(SoundConfig):
    sixth: int = Field(1, description="a setting")
    seventh: int = Field(1, description="a setting")
    eighth: int = Field(1, description="a setting")
    ninth: int = Field(1, description="a setting")


class NoMain(Sound):
    """Has 9 settings, and does not say which are shown first."""

    Config = NineSettings


class TooManyMain(NoMain):
    """Shows 9 settings first."""

    main_settings = tuple(NoMain.Config.model_fields)


class UnreadConfig(SoundConfig):
    shape: float = Field(1.0, gt=0, le=2, description="read by no function")


class Unread(Sound):
    """Has a setting that nothing reads."""

    Config = UnreadConfig


class DeclaredTwice(Sound):
    """A metric that is declared twice."""

    metrics = (Metric("movement"), Metric("movement"))


class NoReason(Sound):
    """Not private, and does not say why."""

    not_private_because = ""


# --- rounds and metrics -----------------------------------------------------------------------------------------------


class Endless(Sound):
    """Never says None."""

    def message(self, state):
        return state


class NoState(Sound):
    """Its first state is a dictionary."""

    def init(self, public):
        return vars(super().init(public))


class NoPhase(Sound):
    """Gives a number as phase."""

    def phase(self, state, message):
        return state.step


class Undeclared(Sound):
    """Tells a scalar that it does not declare."""

    def server_update(self, state, result):
        state, info = super().server_update(state, result)
        return state, RoundInfo({**info.scalars, "clients": 3.0})


class NotFinite(Sound):
    """Tells a scalar that is no number."""

    def server_update(self, state, result):
        return super().server_update(state, result)[0], RoundInfo({"movement": np.nan})


class Telling(Sound):
    """Declares that a scalar follows the raw data, and tells it in a private run."""

    metrics = (Metric("movement", follows_data=True),)


# --- statistics -------------------------------------------------------------------------------------------------------


@dataclass
class PlainSum:
    """A float sum in the order in which it comes."""

    total: np.ndarray

    def merge(self, other):
        return PlainSum(self.total + other.total)

    def value(self):
        return self.total


class AnyOrder(Sound):
    """Adds floats as they come."""

    def client_update(self, message, block, memory):
        statistics, memory = super().client_update(message, block, memory)
        return {**statistics, "mean": PlainSum(statistics["mean"].value() / 3)}, memory


class FirstLeaf(Sound):
    """Takes every leaf for the first one."""

    def client_update(self, message, block, memory):
        statistics, memory = super().client_update(message, block, memory)
        return {name: FloatSum.at(0, statistic.value()) for name, statistic in statistics.items()}, memory


class NoPair(Sound):
    """Answers with statistics alone."""

    def client_update(self, message, block, memory):
        return super().client_update(message, block, memory)[0]


class Forgetful(Sound):
    """Empty clients are left out of what is remembered."""

    def client_update(self, message, block, memory):
        statistics, memory = super().client_update(message, block, None)
        return statistics, {"asked": memory["asked"][block.totals > 0]}


# --- purity -----------------------------------------------------------------------------------------------------------


class Writing(Sound):
    """Counts in the memory that it was given."""

    def client_update(self, message, block, memory):
        statistics, new = super().client_update(message, block, memory)
        if memory is not None:
            memory["asked"] += 1
        return statistics, new


class Chance(Sound):
    """Draws from NumPy's own generator."""

    def client_update(self, message, block, memory):
        statistics, memory = super().client_update(message, block, memory)
        return {**statistics, "mean": FloatSum.at(block.leaf, np.random.rand(block.features))}, memory  # noqa: NPY002


class Remembering(Sound):
    """Keeps the last state in the method object."""

    def server_update(self, state, result):
        self.last = state
        return super().server_update(state, result)


class Moving(Sound):
    """Moves the state that it was given."""

    def server_update(self, state, result):
        state.centre[:] = 1.0
        return super().server_update(state, result)


# --- the run store ----------------------------------------------------------------------------------------------------


class NumpyScalars(Sound):
    """Its step is a number of NumPy's."""

    def server_update(self, state, result):
        state, info = super().server_update(state, result)
        return replace(state, step=np.int64(state.step)), info


class Lists(Sound):
    """Its centre is a list."""

    def server_update(self, state, result):
        state, info = super().server_update(replace(state, centre=np.array(state.centre)), result)
        return replace(state, centre=state.centre.tolist()), info


class Beyond(Sound):
    """Looks beyond its leaf, at the whole of the block that it is a part of."""

    def client_update(self, message, block, memory):
        statistics, memory = super().client_update(message, block, memory)
        whole = block.data if block.data.base is None else block.data.base
        return {**statistics, "mean": FloatSum.at(block.leaf, np.full(block.features, float(np.size(whole))))}, memory


class Beside(Sound):
    """What it knows of the rounds so far is beside the state, and gone when the run is resumed."""

    centres: ClassVar[dict[int, np.ndarray]] = {}

    def init(self, public):
        Beside.centres = {}
        return super().init(public)

    def server_update(self, state, result):
        Beside.centres[id(self)] = Beside.centres.get(id(self), 0.0) + np.ones(1)
        state, info = super().server_update(state, result)
        return replace(state, centre=state.centre + Beside.centres[id(self)]), info


# --- what a run gives -------------------------------------------------------------------------------------------------


class FewOutputs(Sound):
    """Gives outputs to clients with tokens only."""

    def personalise(self, state, block, memory) -> ClientOutputs:
        return {name: array[block.totals > 0] for name, array in super().personalise(state, block, memory).items()}


class NoTitle(Sound):
    """A table of scores that says less than it should."""

    def score_table(self, statistics):
        class Bare:
            def to_json(self, where):
                return {"rows": [{"method": "this run"}]}

        return Bare()


class UnequalColumns(Sound):
    """A table with columns of two lengths."""

    def result(self, state, features):
        return Result((Table("t", "T", (Column("a", [1, 2]), Column("b", [1]))),))


class BadStart(Sound):
    """Leaves what is no number."""

    accepts_warm_start = True

    def warm_start_of(self, state):
        return {"centre": state.centre * np.nan}

    def checked_warm_start(self, arrays, what, features):
        return dict(arrays)


# --- privacy ----------------------------------------------------------------------------------------------------------


class PlansAnew(Sound):
    """Plans another run each time."""

    plans = 0

    def plan(self, public: PublicFacts) -> Sequence[PlannedRelease]:
        PlansAnew.plans += 1
        return [replace(planned, argument=f"plan {PlansAnew.plans}") for planned in super().plan(public)]


class Unplanned(Sound):
    """Releases more than it plans."""

    def release_values(self, message, statistics):
        return {**super().release_values(message, statistics), "more": np.zeros(1, np.int64)}


class Floats(Sound):
    """Adds floats in a private round."""

    def client_update(self, message, block, memory):
        statistics, memory = super().client_update(message, block, memory)
        return {name: FloatSum.at(block.leaf, statistic.value()) for name, statistic in statistics.items()}, memory

    def release_values(self, message, statistics):
        return {name: statistic.value().astype(np.int64) for name, statistic in statistics.items()}


class OtherShape(Sound):
    """Releases a column where a row is planned."""

    def release_values(self, message, statistics):
        return {name: grid[:, None] for name, grid in super().release_values(message, statistics).items()}


class KnowsItsClients(Sound):
    """Answers for clients of the population at hand only."""

    def client_update(self, message, block: CountsBlock, memory: Memory | None):
        if block.clients > 3:  # of a leaf there
            raise ConfigError("nobody has so many clients in a leaf.")
        return super().client_update(message, block, memory)


class Unclipped(Sound):
    """Releases sums of whole counts."""

    def client_update(self, message, block: CountsBlock, memory: Memory | None):
        grid = np.asarray(block.csr.astype(np.int64).sum(axis=0), np.int64).ravel()
        return {f"mean-{message.step + 1}": IntegerSum(grid)}, None


class SharedOut(Sound):
    """Divides what a leaf sends by the number of its clients: each contribution follows from who else is there."""

    def client_update(self, message, block, memory):
        ((name, statistic),) = super().client_update(message, block, memory)[0].items()
        return {name: IntegerSum(statistic.value() * 8 // max(block.clients, 1))}, None


class TrustsItsMessage(Sound):
    """Clients add more if a coordinate of the centre is negative, and do not check it."""

    def client_update(self, message, block, memory):
        ((name, statistic),) = super().client_update(message, block, memory)[0].items()
        return {name: IntegerSum(statistic.value() * (9 if (message.centre < 0).any() else 1))}, None


class FollowsTotals(Sound):
    """Clients add more once the centre is where no sums of theirs could bring it."""

    def client_update(self, message, block, memory):
        ((name, statistic),) = super().client_update(message, block, memory)[0].items()
        return {name: IntegerSum(statistic.value() * (9 if np.abs(message.centre).max() > 1e3 else 1))}, None


class NoName(Sound):
    """Squares what was published, as Python does."""

    def server_update(self, state, result):
        state, info = super().server_update(state, result)
        float(abs(np.float64(result[f"mean-{state.step}"]).sum())) ** 20
        return state, info


class FailsForSome(Sound):
    """Clients with much data refuse a centre that is too far away, and others do not."""

    def client_update(self, message, block, memory):
        if np.abs(message.centre).max() > 1e3 and block.totals.max(initial=0) > 10**6:
            raise RunError("a client has too much data.")
        return super().client_update(message, block, memory)


class TakesAnyStart(Sound):
    """Looks into a start that it has not checked."""

    accepts_warm_start = True

    def warm_start_of(self, state):
        return {"centre": state.centre}

    def checked_warm_start(self, arrays, what, features):
        return dict(arrays)

    def init(self, public):
        state = super().init(public)
        start = public.warm_start or {"centre": state.centre}
        return replace(state, centre=start["centre"] * np.ones(public.features))


class CountsLeaves(Sound):
    """Adds something for each leaf, whoever is in it."""

    def client_update(self, message, block, memory):
        ((name, statistic),) = super().client_update(message, block, memory)[0].items()
        return {name: IntegerSum(statistic.value() + 1)}, None


class TooOften(Sound):
    """Counts clients with much data twice as heavily as it planned."""

    def client_update(self, message, block, memory):
        shares = block.csr.multiply(1 / np.maximum(block.totals, 1)[:, None]).toarray()
        heavy = np.where(block.totals > 10**6, 2, 1)[:, None]
        return {
            f"mean-{message.step + 1}": IntegerSum(np.trunc(shares * heavy * GRID).astype(np.int64).sum(axis=0))
        }, None
