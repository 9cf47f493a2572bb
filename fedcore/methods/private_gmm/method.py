"""The method `private_gmm`: a mixture of separated Gaussians, learned under differential privacy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedcore.methods.private_gmm import schedule, server, statistics
from fedcore.methods.private_gmm.config import PrivateGMMConfig
from fedcore.methods.private_gmm.personal import personalise
from fedcore.methods.private_gmm.result import PrivateMixture, result_of
from fedcore.methods.private_gmm.start import start_of
from fedcore.methods.private_gmm.state import PrivateGMMState
from fedcore.population.blocks import ClientBlock, Kind
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import ClientOutputs, Memory, Message, PublicFacts, RoundInfo
from fedcore.rounds.statistics import Statistics


@dataclass(frozen=True)
class PrivateGMM:
    """A mixture of separated Gaussians under differential privacy, by recursive partition of the rows.

    Source: Kamath, Sheffet, Singhal, Ullman, "Differentially Private Algorithms for Learning Mixtures of Separated
    Gaussians" (2019); this is its skeleton (bound, project, terrific ball, split, recurse, estimate) with statistics
    that are all sums, so that it runs over clients and its noise is Gaussian throughout. The argument is
    docs/privacy/private-gmm.md. The budget's unit may be a client or a record. A run without a result ends cleanly and
    says so. See `fedcore.rounds.method.FederatedMethod` for the functions.
    """

    config: PrivateGMMConfig = PrivateGMMConfig()

    name: ClassVar[str] = "private_gmm"
    kind: ClassVar[Kind] = "rows"
    kernel: ClassVar[str] = "private-gmm-1"
    Config: ClassVar[type[PrivateGMMConfig]] = PrivateGMMConfig
    State: ClassVar[type[PrivateGMMState]] = PrivateGMMState
    streams_rows: ClassVar[bool] = True
    units: ClassVar[tuple[str, ...]] = ("client", "record")
    starts_for: ClassVar[tuple[str, ...]] = ("federated_em",)

    @property
    def private(self) -> bool:
        return True

    @property
    def not_private_because(self) -> str:
        return ""

    def plan(self, public: PublicFacts) -> Sequence[PlannedRelease]:
        """Raises ConfigError without a budget or a radius, or for a relation or unit that the method does not know."""
        return schedule.plan(self.config, public)

    def init(self, public: PublicFacts) -> PrivateGMMState:
        return server.init(self.config, public)

    def total_rounds(self, state: PrivateGMMState) -> int:
        return len(server.passes_of(self.config, state))

    def message(self, state: PrivateGMMState) -> Message | None:
        return server.message(self.config, state)

    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        return statistics.client_update(message, block), None

    def quantise(self, message: Message, statistics: Statistics) -> dict[str, np.ndarray]:
        """The sums are whole grid steps already, by planned name."""
        return {name: statistic.value() for name, statistic in statistics.items()}

    def server_update(self, state: PrivateGMMState, result: Mapping[str, Any]) -> tuple[PrivateGMMState, RoundInfo]:
        return server.server_update(self.config, state, result)

    def result(self, state: PrivateGMMState) -> PrivateMixture:
        """The mixture of a finished run, or why there is none."""
        return result_of(self.config.covariance, state)

    def outcome(self, state: PrivateGMMState) -> str:
        """How many components were found; or that none were, and what would be enough."""
        return state.reason

    def as_start(self, state: PrivateGMMState) -> dict[str, np.ndarray]:
        """What federated EM may start from. Raises ConfigError if the run has found nothing."""
        return start_of(self.config.covariance, state)

    def checked_start(self, arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
        """Raises ConfigError: this method needs no start."""
        return _no_start(what)

    def personalise(self, state: PrivateGMMState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """Labels of the clients' own rows, for them alone; see `fedcore.methods.private_gmm.personal`."""
        return personalise(self.result(state), block)


def _no_start(what: str):
    from fedcore.errors import ConfigError

    raise ConfigError(f"method 'private_gmm' does not start from given values, such as {what}.", "Leave the start out.")
