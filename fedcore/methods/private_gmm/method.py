"""The method `private_gmm`: a mixture of separated Gaussians, learned under differential privacy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from fedcore.methods.private_gmm import clients, server, start
from fedcore.methods.private_gmm.config import PrivateGMMConfig
from fedcore.methods.private_gmm.feasibility import worth
from fedcore.methods.private_gmm.passes import context_of
from fedcore.methods.private_gmm.plan import SHIFTS, plan, sizes_of
from fedcore.methods.private_gmm.result import PrivateMixture, mixture_of, personalise, result_of
from fedcore.methods.private_gmm.scores import score_block, score_table
from fedcore.methods.private_gmm.series import SERIES_NAMES
from fedcore.methods.private_gmm.start import likely_rows
from fedcore.methods.private_gmm.state import PrivateGMMState
from fedcore.population.blocks import ClientBlock, Kind, RowsBlock
from fedcore.population.columns import Bounds
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.fitted import FittedMixture
from fedcore.rounds.method import (
    INCOMPLETE_ROWS,
    ClientOutputs,
    Memory,
    Message,
    PrivateMethod,
    PublicFacts,
    RoundInfo,
    Worth,
)
from fedcore.rounds.results import Features, Metric, Result, heaviest
from fedcore.rounds.scores import KnownMemories, ScoreTable
from fedcore.rounds.statistics import Statistics

METRICS = (
    Metric(
        "radius",
        "Largest radius of a ball",
        "units of the data",
        "The released balls that rows are cut to: of the nodes of the level, or of the cells, that the round is about; "
        "it jumps where a level begins.",
    ),
    Metric("leaves", "Cells", "", "Cells of the partition found so far; each becomes a component."),
    Metric(
        "candidates",
        "Candidate centres",
        "",
        "Released centres of boxes that hold many rows, before balls are chosen among them.",
    ),
    Metric("noise_of_a_count"),  # of the round's first release, as if it were one; sums of squares have far more
    Metric("level"),
    Metric("released_count"),
)


class PrivateGMM(PrivateMethod[PrivateGMMConfig, PrivateGMMState]):
    """A mixture of separated Gaussians under differential privacy, by recursive partition of the rows.

    Source: Kamath, Sheffet, Singhal, Ullman, "Differentially Private Algorithms for Learning Mixtures of Separated
    Gaussians" (2019). This is its recursion (bound, project, terrific ball, split, recurse, estimate) with statistics
    that are all sums, so that it runs over clients and all of its noise is Gaussian. The outline of a run is in
    `fedcore.methods.private_gmm.server`, the privacy argument in docs/privacy/private-gmm.md. The budget's unit may be
    a client or a record. A run that finds no components ends cleanly and says so.
    """

    name: ClassVar[str] = "private_gmm"
    kinds: ClassVar[tuple[Kind, ...]] = ("rows",)
    arithmetic_version: ClassVar[str] = "private-gmm-2"
    Config = PrivateGMMConfig
    State = PrivateGMMState
    metrics: ClassVar[tuple[Metric, ...]] = METRICS
    main_settings: ClassVar[tuple[str, ...]] = (
        "epsilon",
        "components",
        "up_to",
        "covariance",
        "radius",
        "sigma_min",
        "sigma_max",
        "least_weight",
    )
    fixed_settings: ClassVar[Mapping[str, Any]] = {
        name: getattr(PrivateGMMConfig, name) for name in ("partition_share", "widths", "box_dimensions")
    }
    streams_rows: ClassVar[bool] = True
    units: ClassVar[tuple[str, ...]] = ("client", "record")
    facts_in_state: ClassVar[tuple[str, ...]] = ("unit", "relation")
    accepts_warm_start: ClassVar[bool] = True
    warm_starts_for: ClassVar[tuple[str, ...]] = ("federated_em",)
    series_arrays: ClassVar[tuple[str, ...]] = SERIES_NAMES

    def plan(self, public: PublicFacts) -> Sequence[PlannedRelease]:
        """Raises ConfigError without a budget or a radius, or for a relation or unit that the method does not know."""
        return plan(self.config, public)

    def worth(self, public: PublicFacts) -> Worth | None:
        """By the noise of the plan; see `fedcore.methods.private_gmm.feasibility`."""
        return worth(self.config, public)

    def left_out(self, columns: Features) -> str:
        return INCOMPLETE_ROWS

    def settings_of_bounds(self, bounds: Bounds) -> Mapping[str, Any]:
        """The radius of the ball about the origin that holds every row within the bounds."""
        if self.config.radius is not None or not bounds.everywhere:
            return {}
        return {"radius": float(np.linalg.norm(np.maximum(np.abs(bounds.low), np.abs(bounds.high))))}

    def init(self, public: PublicFacts) -> PrivateGMMState:
        """Raises ConfigError for what `plan` refuses."""
        return server.init(self.config, public)

    def total_rounds(self, state: PrivateGMMState) -> int:
        return len(context_of(self.config, state).passes)

    def message(self, state: PrivateGMMState) -> Message | None:
        return server.message(self.config, state)

    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        return clients.client_update(message, _rows(block)), None

    def check_message(self, message: Message, features: int) -> None:
        """Also if a row could count in more histograms than the plan has noise for."""
        super().check_message(message, features)
        clients.check_weight(message, SHIFTS * self.config.widths, sizes_of(self.config, features).candidates)

    def server_update(self, state: PrivateGMMState, result: Mapping[str, Any]) -> tuple[PrivateGMMState, RoundInfo]:
        return server.server_update(self.config, state, result)

    def mixture(self, state: PrivateGMMState) -> PrivateMixture:
        """The mixture of a finished run, or why there is none."""
        return mixture_of(self.config.covariance, state)

    def outcome(self, state: PrivateGMMState) -> str:
        """How many components were found; or that none were, and what would be enough."""
        return state.reason

    def result(self, state: PrivateGMMState, features: Features) -> Result:
        """Shares, means and standard deviations of the components."""
        return result_of(self.config.covariance, state, features)

    def segments(self, state: PrivateGMMState) -> Sequence[int]:
        """Components, the largest first."""
        return heaviest(len(state.weights), state.weights, len(state.weights)) if state.found else ()

    def fitted_model(self, state: PrivateGMMState) -> FittedMixture:
        """Raises RunError if the run has found no components."""
        found, form = self.mixture(state), self.config.covariance
        simplified = np.flatnonzero(found.unreliable)
        remark = f"too noisy, and simplified: {', '.join(str(k) for k in simplified)}" if len(simplified) else ""
        theta = found.parameters()
        arrays = theta["weights"], theta["means"], theta["covariances"]
        return FittedMixture(*arrays, form, state.round, remark=remark)

    def warm_start_of(self, state: PrivateGMMState) -> dict[str, np.ndarray]:
        """What federated EM may start from, and what the series knows; see `fedcore.methods.private_gmm.start`."""
        return start.warm_start_of(self.config, state)

    def checked_warm_start(self, arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
        return start.checked_warm_start(self.config, arrays, what, features)

    def likely_warm_start(self, public: PublicFacts) -> dict[str, np.ndarray]:
        """Components anywhere, and how precisely a run with these facts would leave them."""
        return start.likely_warm_start(self.config, public)

    def budget_sketch(self, public: PublicFacts, plan: Sequence[PlannedRelease]) -> dict[str, Any]:
        """Rounds, whether there is a search, and the budget of a single run with as little noise as the series."""
        return start.budget_sketch(self.config, public, plan)

    def personalise(self, state: PrivateGMMState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """Labels of the clients' own rows, for them alone; see `fedcore.methods.private_gmm.result`."""
        return personalise(self.mixture(state), _rows(block))

    def score_block(self, state: PrivateGMMState, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        """See `fedcore.methods.private_gmm.scores`."""
        return score_block(self.config, state, _rows(block))

    def score_table(self, statistics: Mapping[str, np.ndarray]) -> ScoreTable:
        return score_table(statistics)

    def likely_rows(self, public: PublicFacts, count: int, generator: np.random.Generator) -> np.ndarray:
        """Rows of separated components in the declared ball, so that a search finds them; or of the series'
        components."""
        return likely_rows(self.config, public, count, generator)

    def phase(self, state: PrivateGMMState, message: Message) -> str:
        """Of the search, and the pass of a level within it."""
        return f"{state.phase}: {message.kind}"


def _rows(block: ClientBlock) -> RowsBlock:
    """The block. Raises TypeError unless it is one of rows."""
    if not isinstance(block, RowsBlock):
        raise TypeError(f"private_gmm reads blocks of rows, not {type(block).__name__}")
    return block
