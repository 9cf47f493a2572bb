"""The method `paper_gradient_em`: `gradient_em`, and the methods that its paper compares it with, on the same starts.

What clients have of a run is scored on their held-out rows, also for algorithms in which a client that comes later
could not find its own from common centres: local fits, and mixtures of all rows. Only clients of the training can be
scored by what they have alone; pooled-em scores any.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np
from fedcore.papers.fedgrem import baselines, norm
from fedcore.papers.fedgrem.state import (
    POOLED,
    BaselineMessage,
    PaperGradientEMConfig,
    PaperGradientEMState,
    TotalsMessage,
)
from scipy.special import logsumexp

from fedcore.errors import ConfigError, RunError
from fedcore.methods.gradient_em import GradientEM, GradientEMState, clients, personal, server
from fedcore.methods.gradient_em.coordinates import coordinates_of, log_scale, rows_of, to_model
from fedcore.methods.gradient_em.messages import RoundMessage, StartMessage
from fedcore.methods.gradient_em.personal import ClientParameters, known_memory, squared_errors
from fedcore.methods.gradient_em.result import result_of
from fedcore.methods.mixture_models.local_steps import LOG_WEIGHT_FLOOR, Rows, e_step, posteriors
from fedcore.population.blocks import ClientBlock, RowsBlock
from fedcore.rounds.method import ClientOutputs, Memory, PublicFacts, RoundInfo
from fedcore.rounds.results import Column, Features, Metric, Result, Table
from fedcore.rounds.scores import RUN, KnownMemories, held_out, sums_with_errors
from fedcore.rounds.statistics import Statistics

# --- what a client has of a run ---------------------------------------------------------------------------------------


def personalise(
    config: PaperGradientEMConfig, state: PaperGradientEMState, block: RowsBlock, memory: Memory | None
) -> ClientOutputs:
    """As `gradient_em`; baselines have no distance."""
    own = parameters(config, state, block, memory)
    rows = rows_of(config, coordinates_of(state), block)
    g = labelling(config, state, block, known_memory(state, memory), own, rows)
    return personal.outputs_of(config, state, block, rows, own, g)


def parameters(
    config: PaperGradientEMConfig, state: PaperGradientEMState, block: RowsBlock, memory: Memory | None
) -> ClientParameters:
    """The parameters that the clients of a leaf have from the run. Raises RunError before the first round."""
    if not config.baseline:
        return personal.parameters(config, state, block, memory)
    memory, coordinates = known_memory(state, memory), coordinates_of(state)
    w = memory["w"]
    if config.algorithm in POOLED:
        w = np.broadcast_to(state.weights, w.shape)
    if config.local:
        return ClientParameters(to_model(config, coordinates, memory["theta"]), w)
    v = to_model(config, coordinates, state.centres)
    return ClientParameters(np.broadcast_to(v, (block.clients, *v.shape)), w)


def labelling(
    config: PaperGradientEMConfig,
    state: PaperGradientEMState,
    block: RowsBlock,
    memory: Memory,
    own: ClientParameters,
    rows: Rows | None = None,
) -> np.ndarray:
    """(N, R) posterior probabilities of the components of the rows of a leaf, which need not be those trained on."""
    rows = rows_of(config, coordinates_of(state), block) if rows is None else rows
    if config.algorithm == "pooled-em":
        y = rows.x if rows.y is None else np.column_stack([rows.x, rows.y])
        model = baselines.model_of(config, state.centres.shape[1])
        return model.personalise(baselines.parameters_of(config, state), y)["responsibilities"]
    theta = own.theta
    if config.algorithm == "local-fit" and rows.y is None:
        white = np.linalg.inv(np.linalg.cholesky(memory["covariance"])).transpose(0, 2, 1)
        theta = np.matmul(theta, white)
        x = np.empty_like(rows.x)
        for client, (low, high) in enumerate(zip(block.ptr[:-1], block.ptr[1:], strict=True)):
            x[low:high] = rows.x[low:high] @ white[client]
        rows = Rows(x, None, rows.ptr)
    return posteriors(rows, theta, own.w)


# --- scores -----------------------------------------------------------------------------------------------------------


def only_as_trained(config: PaperGradientEMConfig) -> bool:
    """Whether clients are scored by what they have from the run and in no other way."""
    return config.local or config.algorithm in ("pooled-em", "fedgmm")


def score_block(
    config: PaperGradientEMConfig, state: PaperGradientEMState, block: RowsBlock, memories: KnownMemories | None
) -> Statistics:
    """As of `gradient_em`, but for baselines that are scored as they were trained alone.

    Raises also ConfigError for these on another population than that of the training.
    """
    if not only_as_trained(config):
        return personal.score_block(config, state, block, memories, of_clients=parameters, move=not config.common)
    held_part = cast(RowsBlock, held_out(block))
    if state.round < 1:
        raise RunError("the run stopped before its first round.", "Resume it first.")
    scored, nll, squares = losses(config, state, block, held_part, memories)
    return sums_with_errors(block.leaf, scored, {RUN: nll}, {} if squares is None else {RUN: squares})


def losses(
    config: PaperGradientEMConfig,
    state: PaperGradientEMState,
    block: RowsBlock,
    held: RowsBlock,
    known: KnownMemories | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """(C,) held-out rows that are scored, 0 of clients who remember nothing; (C,) their negative log-likelihood, nats,
    units of the data, summed; and of regressions (C,) their squared errors, summed.

    Raises ConfigError where this is not the population of the training.
    """
    if known is None and block.first < state.population:
        raise ConfigError(
            f"clients have what a run of algorithm {config.algorithm!r} gives them from the training alone.",
            "Evaluate it on the population that it was trained on, ingested with a held-out part.",
        )
    if known is None:  # clients who came after the training
        nothing = np.zeros(block.clients)
        return nothing, nothing, nothing if config.model == "regression" else None
    coordinates = coordinates_of(state)
    rows = rows_of(config, coordinates, held, block)
    memory = _filled(known)
    own = parameters(config, state, block, memory)
    units = log_scale(config, coordinates, block)
    found = rows.sizes * units - _log_likelihood(config, state, memory, own, rows)
    counted = np.where(known.known, rows.sizes, 0.0)
    if config.model != "regression":
        return counted, found, None
    return counted, found, np.exp(2 * units) * squared_errors(rows, own.theta, own.w)


def _filled(known: KnownMemories) -> Memory:
    """The memories, with covariances that are some where nobody remembers one."""
    memory = dict(known.memory)
    for name, one in (("covariance", lambda p: np.eye(p)), ("variances", lambda p: np.ones(p))):
        if name in memory:
            values = memory[name]
            there = known.known.reshape(-1, *[1] * (values.ndim - 1))
            memory[name] = np.where(there, values, one(values.shape[-1]))
    return memory


def _log_likelihood(
    config: PaperGradientEMConfig, state: PaperGradientEMState, memory: Memory, own: ClientParameters, held: Rows
) -> np.ndarray:
    """(C,) summed over the rows, nats, model's units."""
    clients = len(held.sizes)
    if config.algorithm == "pooled-em":
        y = held.x if held.y is None else np.column_stack([held.x, held.y])
        model = baselines.model_of(config, state.centres.shape[1])
        density = model.log_likelihood(baselines.parameters_of(config, state), y) if len(y) else np.zeros(0)
        return np.bincount(held.owners, density, clients)
    if config.algorithm != "local-fit":
        return e_step(held, own.theta, own.w).log_likelihood
    if held.y is not None:  # a noise variance of each of a client's regressions
        owners, variances = held.owners, memory["variances"]
        left = held.responses[:, None] - np.einsum("np,nrp->nr", held.x, own.theta[owners])
        logs = np.log(np.maximum(own.w, LOG_WEIGHT_FLOOR)) - 0.5 * np.log(2 * np.pi * variances)
        density = logsumexp(logs[owners] - 0.5 * left**2 / variances[owners], axis=1)
        return np.bincount(owners, density, clients)
    white = np.linalg.inv(np.linalg.cholesky(memory["covariance"])).transpose(0, 2, 1)
    x = np.einsum("np,npq->nq", held.x, white[held.owners])
    fit = e_step(Rows(x, None, held.ptr), np.matmul(own.theta, white), own.w).log_likelihood
    return cast(np.ndarray, fit - held.sizes * 0.5 * np.linalg.slogdet(memory["covariance"])[1])


# --- the method -------------------------------------------------------------------------------------------------------


class PaperGradientEM(GradientEM):
    """The tables of the FedGrEM paper: FedGrEM, local and pooled EM, FedEM, TGMM and FedGMM from the same starts.

    Source: Tian, Weng, Feng, "Towards the Theory of Unsupervised Federated Learning" (2024), Section 4. For a model of
    your own clients use `gradient_em`.
    """

    name: ClassVar[str] = "paper_gradient_em"
    arithmetic_version: ClassVar[str] = "paper-gradient-em-2"
    Config = PaperGradientEMConfig
    State = PaperGradientEMState
    metrics: ClassVar[tuple[Metric, ...]] = (
        *GradientEM.metrics,
        *(Metric(name) for name in ("central_gradient", "central_steps", "penalty", "sources")),
    )
    main_settings: ClassVar[tuple[str, ...]] = ("algorithm", *GradientEM.main_settings[:7])
    moved_settings: ClassVar[Mapping[str, str]] = {}

    config: PaperGradientEMConfig

    # --- rounds -----------------------------------------------------------------------------------------------------

    def init(self, public: PublicFacts) -> PaperGradientEMState:
        return PaperGradientEMState.of(super().init(public))

    def total_rounds(self, state: GradientEMState) -> int:
        return baselines.total_rounds(self.config) if self.config.baseline else super().total_rounds(state)

    def message(self, state: GradientEMState) -> Any:
        if state.phase == "totals":
            return TotalsMessage(state.orders, state.centres, coordinates_of(state))
        if state.phase == "rounds" and self.config.baseline:
            return baselines.message(cast(PaperGradientEMState, state))
        return super().message(state)

    def client_update(
        self, message: Any, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        rows, known = cast(RowsBlock, block), cast(Memory, memory)  # the start leaves one
        if isinstance(message, StartMessage):
            return baselines.own_fits(self.config, message, rows)
        if isinstance(message, TotalsMessage):
            return baselines.totals(message, rows, known)
        if isinstance(message, BaselineMessage):
            return baselines.client_round(self.config, message, rows, known)
        if isinstance(message, RoundMessage) and not self.config.estimated:
            return clients.gradient_round(self.config, message, rows, known, norm.sent)
        return super().client_update(message, block, memory)

    def server_update(self, state: GradientEMState, result: Mapping[str, Any]) -> tuple[GradientEMState, RoundInfo]:
        own = cast(PaperGradientEMState, state)
        if state.phase == "totals":
            return baselines.after_totals(own, result)
        if state.phase == "start" and self.config.baseline:
            return baselines.after_start(self.config, own, result)
        if state.phase == "rounds" and self.config.baseline:
            return baselines.server_update(self.config, own, result)
        if state.phase == "rounds" and not self.config.estimated:
            solve = norm.authors_sweep if self.config.one_sweep else norm.solve
            return server.gradient_round(self.config, state, result, partial(norm.solved, solve=solve))
        return super().server_update(state, result)

    def clients_kept_apart(self, clients: int) -> int:
        """Of the paper's norm all, because the server solves the update."""
        every = not self.config.baseline and not self.config.estimated
        return clients if every else super().clients_kept_apart(clients)

    # --- what a run shows -------------------------------------------------------------------------------------------

    def outcome(self, state: GradientEMState) -> str:
        """Of rounds with estimated differences, as of `gradient_em`; others have no standard errors."""
        return super().outcome(state) if self.config.estimated and not self.config.baseline else ""

    def result(self, state: GradientEMState, features: Features) -> Result:
        """Of algorithms whose clients have no centres in common: how many fitted a model."""
        if not self.config.local or state.round < 1:
            return result_of(self.config, state, features, estimated=self.config.estimated)
        alone = (Column("clients", [int(state.clients)]), Column("rows", [int(state.rows)]))
        return Result((Table("clients", "Clients that fitted models of their own", alone),))

    # --- for each client --------------------------------------------------------------------------------------------

    def personalise(self, state: GradientEMState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        own = cast(PaperGradientEMState, state)
        return personalise(self.config, own, cast(RowsBlock, block), memory)

    def outlier_distances(self, state: GradientEMState, block: ClientBlock, memory: Memory | None) -> np.ndarray:
        if self.config.baseline:
            raise ConfigError(
                "the run has no penalty that could leave clients apart.",
                'Name a run of paper_gradient_em with algorithm = "fedgrem".',
            )
        return super().outlier_distances(state, block, memory)

    # --- scores on held-out data ------------------------------------------------------------------------------------

    def score_block(self, state: GradientEMState, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        own = cast(PaperGradientEMState, state)
        return score_block(self.config, own, cast(RowsBlock, block), memories)
