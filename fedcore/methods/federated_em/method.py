"""The method `federated_em`: FedEM, VR-FedEM, exact EM, and a private variant."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np

from fedcore.errors import ConfigError, RunError
from fedcore.methods.federated_em import clients, given, looks, models, narrow, private, scores, seeding, server, start
from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.messages import (
    ClusterMessage,
    InitialMemoryMessage,
    MomentsMessage,
    ObjectiveMessage,
    ReleaseMessage,
    SeedMessage,
    StartsMessage,
    TrialMessage,
    plain_scaling,
)
from fedcore.methods.federated_em.moved import MOVED
from fedcore.methods.federated_em.personal import personalise
from fedcore.methods.federated_em.result import order_of, result_of
from fedcore.methods.federated_em.round_metrics import METRICS
from fedcore.methods.federated_em.row_weights import rows_that_count
from fedcore.methods.federated_em.state import FederatedEMState
from fedcore.methods.mixture_models.student import degrees_in
from fedcore.population.blocks import ClientBlock, Kind, RowsBlock
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.fitted import FittedMixture
from fedcore.rounds.method import (
    INCOMPLETE_ROWS,
    ClientOutputs,
    Memory,
    Message,
    PrivateMethod,
    PrivateSettings,
    PublicFacts,
    RoundInfo,
)
from fedcore.rounds.old_names import Renamed
from fedcore.rounds.results import Features, Metric, Result
from fedcore.rounds.scores import KnownMemories, ScoreTable
from fedcore.rounds.statistics import Statistics

LIKELY_GAPS = 0.1  # share of the entries
CELLS_HELD_BACK = 0.1  # of the observed cells of tables, when settings are compared
NOT_PRIVATE = {
    "em": "exact sums of the clients' statistics reach the server",
    "fedem": "messages are compressed and have no noise",
    "vr-fedem": "messages are compressed and have no noise",
}


class FederatedEM(PrivateMethod[FederatedEMConfig, FederatedEMState]):
    """Expectation maximisation over clients who send compressed statistics and remember what they sent.

    Source: Dieuleveut, Fort, Moulines, Robin, "Federated Expectation Maximization with heterogeneity mitigation and
    variance reduction" (2021). One driver, configured by oracle, codec, gamma and participation, is FedEM,
    VR-FedEM, online EM, SPIDER-EM (one client, no codec) and EM. `algorithm = "private"` is
    `fedcore.methods.federated_em.private`. `fedcore.papers.fedem.reference` has the paper's algorithms on one
    page.
    """

    name: ClassVar[str] = "federated_em"
    kinds: ClassVar[tuple[Kind, ...]] = ("rows", "counts")
    arithmetic_version: ClassVar[str] = "federated-em-10"
    Config = FederatedEMConfig
    State = FederatedEMState
    metrics: ClassVar[tuple[Metric, ...]] = METRICS
    main_settings: ClassVar[tuple[str, ...]] = (
        "algorithm",
        "model",
        "components",
        "covariance",
        "max_passes",
        "rounds",
        "validation",
        "epsilon",
    )
    moved_settings: ClassVar[Mapping[str, str]] = MOVED
    renamed_settings: ClassVar[Mapping[str, Renamed]] = {"tolerance": Renamed("tol", since="1.0")}
    accepts_warm_start: ClassVar[bool] = True
    series_arrays: ClassVar[tuple[str, ...]] = given.KNOWN_OF_SERIES
    streams_rows: ClassVar[bool] = True
    outputs_use_memories: ClassVar[bool] = False

    @property
    def kind(self) -> Kind:
        return self.config.model.kind

    @property
    def private(self) -> bool:
        return self.config.private

    @property
    def private_settings(self) -> PrivateSettings:
        return self.config.private_run

    @property
    def nominal_clients(self) -> int | None:
        return self.config.private_run.nominal_clients if self.private else None

    @property
    def not_private_because(self) -> str:
        counts = self.config.model.kind == "counts"
        what = "do all counts of a sample of them" if counts else "does a sample of their rows"
        return NOT_PRIVATE.get(self.config.algorithm.name, "") + (f", and so {what}" if self.config.searches else "")

    def plan(self, public: PublicFacts) -> Sequence[PlannedRelease]:
        """Raises ConfigError if a private run has no budget, no declared number of clients or no warm start."""
        return private.plan(self.config, public) if self.private else []

    def left_out(self, columns: Features) -> str:
        """Private runs leave rows out, unless their model is of missing entries; others read them, or end with an
        error."""
        return INCOMPLETE_ROWS if self.private and not models.factory_of(self.config).missing else ""

    def budget_sketch(self, public: PublicFacts, plan: Sequence[PlannedRelease]) -> dict[str, Any]:
        """Rounds, and the noise that is left in the statistics of this run of a series."""
        return private.budget_sketch(self.config, public, plan)

    def likely_warm_start(self, public: PublicFacts) -> dict[str, np.ndarray] | None:
        """Of private runs: parameters, and how precise the series knows them."""
        return private.likely_warm_start(self.config, public) if self.private else None

    def init(self, public: PublicFacts) -> FederatedEMState:
        return private.init(self.config, public) if self.private else server.init(self.config, public)

    def total_rounds(self, state: FederatedEMState) -> int:
        return len(state.multipliers) if self.private else server.total_rounds(self.config, state)

    def message(self, state: FederatedEMState) -> Message | None:
        return private.message(self.config, state) if self.private else server.message(self._decided(state), state)

    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        scaling = None if isinstance(message, MomentsMessage) else message.scaling
        config = self.config.decided(0.0 if scaling is None else scaling.chosen)
        block = rows_that_count(block, config.weight_column)
        if isinstance(message, MomentsMessage):
            plain = plain_scaling(config.columns(block.features) * config.rows_per_observation)
            return clients.moments(config, models.model_of(config, plain), message, block), None
        everything, block = block, clients.training_rows(block, message.scaling.split)
        if isinstance(message, SeedMessage):
            return seeding.draw_seeds(config, message, block), None
        if isinstance(message, ClusterMessage):
            return seeding.sum_clusters(config, message, block), None
        model = models.model_of(config, message.scaling)
        match message:
            case ReleaseMessage():  # the settings of a private run are for rows
                return private.client_update(config, model, message, cast(RowsBlock, block)), None
            case TrialMessage():
                return clients.trials(config, model, message, everything), None
            case StartsMessage():
                return clients.rounds_of_starts(config, model, message, block, memory)
            case InitialMemoryMessage():
                return clients.initial_memory(config, model, message, block)
            case ObjectiveMessage():
                held_out = clients.held_out(config, model, message, everything)
                return clients.objective(config, model, message, block) | held_out, memory
        codec = clients.codec_of_round(config, model, message)
        statistics, memory = clients.round_update(config, model, codec, message, block, memory)
        return {**statistics, **clients.held_out(config, model, message, everything)}, memory

    def server_update(self, state: FederatedEMState, result: Mapping[str, Any]) -> tuple[FederatedEMState, RoundInfo]:
        if self.private:
            return private.server_update(self.config, state, result[private.release_name(state.round + 1)])
        return server.server_update(self._decided(state), state, result)

    def _decided(self, state: FederatedEMState) -> FederatedEMConfig:
        """The settings with what the run chose, once it has."""
        return self.config.decided(state.chosen) if state.chosen else self.config

    def phase(self, state: FederatedEMState, message: Message) -> str:
        return state.phase

    def tries(self) -> Mapping[str, Sequence[Any]]:
        if self.config.model.name == "gaussian":
            return {"components": (1, 2, 3, 5, 8, 12, 16), "covariance": ("full", "tied", "diag")}
        if self.config.mixture:
            return {"components": (1, 2, 3, 5, 8, 12, 16)}
        if self.config.model.table_rows is not None:
            return {"nuclear_penalty": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)}
        return {"rank": (1, 2, 3, 5, 8)}

    @property
    def held_back_share(self) -> float:
        return CELLS_HELD_BACK if self.config.model.table_rows is not None else super().held_back_share

    def likely_rows(self, public: PublicFacts, count: int, generator: np.random.Generator) -> np.ndarray:
        """With gaps where the model fills them."""
        rows = super().likely_rows(public, count, generator)
        if models.factory_of(self.config).missing:
            rows[generator.random(rows.shape) < LIKELY_GAPS] = np.nan
        return rows

    def parameters(self, state: FederatedEMState) -> dict[str, np.ndarray]:
        """The parameters by name, of rows in the units of the data; empty before there are any."""
        return dict(models.in_data_units(self._decided(state), state.parameters(), state.scaling()))

    def result(self, state: FederatedEMState, features: Features) -> Result:
        """See `fedcore.methods.federated_em.result`. Empty before the first round."""
        if not state.round:
            return Result()
        if self.config.weight_column is not None:
            own = [self.config.population_column(column) for column in range(self.config.columns(features.count))]
            names, units = zip(*((features.name(column), features.unit(column)) for column in own), strict=True)
            features = Features(len(own), names, units, people=features.people)
        learnt = result_of(self.config, self.parameters(state), features)
        return replace(learnt, tables=learnt.tables + narrow.narrow_table(self._decided(state), state, features))

    def segments(self, state: FederatedEMState) -> Sequence[int]:
        """Components of mixtures, the largest first."""
        return order_of(self.parameters(state)) if self.config.mixture and state.round else ()

    def fitted_model(self, state: FederatedEMState) -> FittedMixture:
        """Raises ConfigError unless it is a mixture of Gaussians with a covariance for each component, RunError before
        the first round."""
        if self.config.model.name != "gaussian" or self.config.model.covariance == "known":
            what = (
                'with covariance = "known"'
                if self.config.model.name == "gaussian"
                else f"of model {self.config.model.name!r}"
            )
            raise ConfigError(f"runs {what} have no counterpart among scikit-learn's estimators.")
        theta = self.parameters(state)
        if not theta:
            raise RunError("the run stopped before it had parameters.", "Resume it first.")
        converged = self.private or looks.converged(self.config, state)
        arrays = theta["weights"], theta["means"], theta["covariances"]
        kind = self.config.model.covariance
        return FittedMixture(*arrays, kind, state.round, converged, degrees=degrees_in(theta) or math.inf)

    def outcome(self, state: FederatedEMState) -> str:
        """Whether the run converged (`fedcore.methods.federated_em.looks`; private runs do not look, but say what
        they know from runs before), and a warning of components that are narrow."""
        pooled = private.pooled_in_words(self.config, state) if self.private else ""
        chosen = self._decided(state).chosen_in_words(self.config.undecided) if state.chosen else ""
        tails = self.config.tails_in_words(degrees_in(state.parameters())) if len(state.theta) else ""
        said = (
            looks.status(self.config, state),
            chosen,
            tails,
            pooled,
            narrow.warning(self._decided(state), state) if state.round else "",
        )
        return " ".join(part for part in said if part)

    def warm_start_of(self, state: FederatedEMState) -> dict[str, np.ndarray]:
        """Parameters, and what rows and clipped parts were scaled by."""
        return start.warm_start_of(state)

    def checked_warm_start(self, arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
        """float64, finite, with the covariances and as many components as the settings say; whether they are parameters
        of the model is checked when the run is planned."""
        return given.checked_arrays(self.config, arrays, what)

    def personalise(self, state: FederatedEMState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """What each client's own rows say under the shared parameters: `fedcore.methods.federated_em.personal`."""
        return personalise(self._decided(state), state, block)

    def score_block(self, state: FederatedEMState, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        """See `fedcore.methods.federated_em.scores`."""
        return scores.evaluate_block(self._decided(state), state, block)

    def score_table(self, statistics: Mapping[str, np.ndarray]) -> ScoreTable:
        return scores.table(self.config, statistics)
