"""The method `dictionaries`: atoms that all clients share, from sums of codes and samples, and local atoms.

    start    clients answer with sums from which the first atoms are computed; or atoms are given
    rounds   with sums of codes and samples (`sums`), by which every atom moves to its minimum
    search   after ten rounds, where no size is set: numbers of atoms, and lengths of codes, by held-out samples
             (`structure`)
    local    every client learns local atoms, and keeps them where they improve the code (`local_atoms`)

`clients` and `server` connect this to messages, memories and states. With `private = true`, the modules in `private` do
so, with noise, and no local atoms are learnt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.dictionaries import clients, personal, server, start, structure_server
from fedcore.methods.dictionaries.config import MOVED, DictionariesConfig
from fedcore.methods.dictionaries.private import clients as private_clients
from fedcore.methods.dictionaries.private import plan as private_plan
from fedcore.methods.dictionaries.private import server as private_server
from fedcore.methods.dictionaries.private.clients import PrivateMessage
from fedcore.methods.dictionaries.start import code_length
from fedcore.methods.dictionaries.state import DictionariesState, Message
from fedcore.methods.dictionary_learning import scores
from fedcore.methods.dictionary_learning.result import result_of
from fedcore.population.blocks import ClientBlock, Kind, RowsBlock
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.fitted import FittedDictionary
from fedcore.rounds.method import INCOMPLETE_ROWS, ClientOutputs, Memory, PrivateMethod, PublicFacts, RoundInfo, Worth
from fedcore.rounds.results import Features, Metric, Result
from fedcore.rounds.scores import KnownMemories, ScoreTable
from fedcore.rounds.statistics import Statistics

METRICS = (
    Metric(
        "loss",
        "Squared residual of a sample",
        "units of the data, squared",
        "Mean over all samples of the clients that took part, before they moved their atoms.",
        follows_data=True,
    ),
    Metric("movement", "Largest movement of a global atom", "", "How far the atom moved that moved the most."),
    Metric("nonzero", "Atoms of a sample's code", "", "Mean over the samples."),
    Metric("active_clients", "Active clients", "", "Clients that took part in each round."),
    Metric("bytes_down", caption="Received by all clients."),
    Metric("bytes_up", caption="Sent by all clients."),
    Metric("clip", caption="Norm to which a client's steps of the atoms were clipped."),
    Metric("clients", caption="Clients with samples other than zero."),
    Metric("doubled", caption="Unused global atoms that were replaced."),
    Metric("few_samples", caption="Clients with fewer samples than atoms."),
    Metric("found", caption="Directions of the released second moments that stand out of the noise."),
    Metric("global_atoms", caption="Number of global atoms."),
    Metric("local_atoms", caption="Local atoms of a client that keeps some, mean."),
    Metric("loud_clients", caption="Share of clients whose rows were scaled down, as all of them are loud."),
    Metric("loud_rows", caption="Share of rows that were scaled down, as they are far louder than most."),
    Metric("noise_of_step", caption="Expected length of the noise in a full step of an atom; median over atoms."),
    Metric("rows", caption="Samples."),
    Metric("scale", caption="Typical mean squared norm of a client's rows, as released."),
    Metric("silent", caption="Clients without samples other than zero."),
    Metric("step", caption="Share of a full step that atoms make; median over atoms."),
    Metric("with_local_atoms", caption="Clients that keep local atoms, because held-out samples are coded better."),
    Metric("worst_loss", caption="Largest loss of a client.", follows_data=True),
)


class Dictionaries(PrivateMethod[DictionariesConfig, DictionariesState]):
    """Personalised dictionaries: atoms that all clients share, from sums over clients, and atoms that each has alone.

    Source: Mairal, Bach, Ponce, Sapiro, "Online learning for matrix factorization and sparse coding" (2010), Algorithm
    2, whose sums add over clients.
    """

    name: ClassVar[str] = "dictionaries"
    kinds: ClassVar[tuple[Kind, ...]] = ("rows",)
    arithmetic_version: ClassVar[str] = "dictionaries-6"
    streams_rows: ClassVar[bool] = True
    Config = DictionariesConfig
    State = DictionariesState
    metrics: ClassVar[tuple[Metric, ...]] = METRICS
    main_settings: ClassVar[tuple[str, ...]] = (
        "global_atoms",
        "atoms",
        "sparsity",
        "rounds",
        "private",
        "epsilon",
        "participation",
    )
    algorithm: ClassVar[str] = "sums of codes and samples"
    moved_settings: ClassVar[Mapping[str, str]] = MOVED
    scores_use_memories: ClassVar[bool] = True
    serves_newcomers: ClassVar[bool] = True
    accepts_warm_start: ClassVar[bool] = True
    series_arrays: ClassVar[tuple[str, ...]] = (*start.SERIES_NAMES, start.RELEASED)

    @property
    def private(self) -> bool:
        return self.config.private

    @property
    def not_private_because(self) -> str:
        if self.private:
            return ""
        return "sums of codes and samples reach the server without noise in every round"

    # --- what a private run releases --------------------------------------------------------------------------------

    def plan(self, public: PublicFacts) -> Sequence[PlannedRelease]:
        """Raises ConfigError if a private run has no budget or no declared number of clients."""
        return private_plan.plan(self.config, public) if self.private else []

    def budget_sketch(self, public: PublicFacts, plan: Sequence[PlannedRelease]) -> dict[str, Any]:
        """With the noise in an atom's step."""
        return private_plan.budget_sketch(self.config, public, plan)

    def worth(self, public: PublicFacts) -> Worth | None:
        """By the noise in an atom's step. Raises ConfigError as `plan` does."""
        return private_plan.worth(self.config, public) if self.private else None

    def left_out(self, columns: Features) -> str:
        """Private runs leave rows out; others end with an error."""
        return INCOMPLETE_ROWS if self.private else ""

    def likely_warm_start(self, public: PublicFacts) -> dict[str, np.ndarray] | None:
        return private_plan.likely_warm_start(self.config, public) if self.private else None

    # --- rounds -----------------------------------------------------------------------------------------------------

    def init(self, public: PublicFacts) -> DictionariesState:
        return private_server.init(self.config, public) if self.private else server.init(self.config, public)

    def total_rounds(self, state: DictionariesState) -> int:
        if self.private:
            return private_server.total_rounds(self.config, state)
        return server.total_rounds(self.config, state)

    def message(self, state: DictionariesState) -> Message | PrivateMessage | None:
        return private_server.message(self.config, state) if self.private else server.message(self.config, state)

    def client_update(
        self, message: Message | PrivateMessage, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        rows = cast(RowsBlock, block)
        if self.private:
            return private_clients.client_update(cast(PrivateMessage, message), rows), None
        return clients.client_update(cast(Message, message), rows, memory)

    def server_update(self, state: DictionariesState, result: Mapping[str, Any]) -> tuple[DictionariesState, RoundInfo]:
        update = private_server.server_update if self.private else server.server_update
        return update(self.config, state, result)

    def phase(self, state: DictionariesState, message: Message | PrivateMessage) -> str:
        return state.phase

    def clients_kept_apart(self, clients: int) -> int:
        return 0

    # --- what a run shows, and leaves to the next -------------------------------------------------------------------

    def outcome(self, state: DictionariesState) -> str:
        """The sizes that the run found, and a warning of codes that are as long as the dictionary."""
        return "; ".join(said for said in (structure_server.words(state), start.warning(self.config, state)) if said)

    def result(self, state: DictionariesState, features: Features) -> Result:
        """The global atoms; see `fedcore.methods.dictionary_learning.result`. Empty before the first round."""
        if not state.begun:
            return Result()
        energies = np.maximum(state.energies, 0.0)
        if len(state.xx):
            energies = np.diagonal(state.xx) * np.linalg.norm(state.common, axis=1) ** 2
        return result_of(state.common, features, energies)

    def fitted_model(self, state: DictionariesState) -> FittedDictionary:
        """The atoms that all share, which code samples by matching pursuit; clients' own are not in the state. Raises
        RunError before the first round."""
        if not state.begun:
            raise RunError("the run has no global atoms.", "Resume it.")
        norms = np.linalg.norm(state.common, axis=1, keepdims=True)
        unit = state.common / np.where(norms > 0, norms, 1.0)
        return FittedDictionary(unit, "omp", min(code_length(self.config, state), *unit.shape), None, state.round)

    def warm_start_of(self, state: DictionariesState) -> dict[str, np.ndarray]:
        """global: (rg, d) the global dictionary, one atom a row; and what runs of a series keep, see `start`."""
        return start.warm_start_of(state)

    def checked_warm_start(self, arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
        """global: (rg, d), atoms scaled to norm 1."""
        return start.checked_warm_start(self.config, arrays, what, features)

    # --- for each client, and on held-out data ----------------------------------------------------------------------

    def personalise(self, state: DictionariesState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """Local atoms, and samples split in two; see `fedcore.methods.dictionaries.personal`."""
        return personal.personalise(self.config, state, cast(RowsBlock, block), memory)

    def score_block(self, state: DictionariesState, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        """Of global atoms, and with local ones; see `fedcore.methods.dictionary_learning.scores`."""
        return personal.score_block(self.config, state, cast(RowsBlock, block), memories)

    def score_table(self, statistics: Mapping[str, np.ndarray]) -> ScoreTable:
        return scores.table(statistics)
