"""The method `perma`: which atoms clients have in common, by the matching of whole dictionaries.

    start    every client learns a dictionary alone (`initialisation`); those of some are matched (`matching`), and
             their aggregate is the global dictionary; or that is given
    rounds   clients move their dictionaries (`learners`, `robust`) and send their versions of the global atoms
             (`alignment`), of which the server makes one (`aggregation`)

`clients` and `server` put this between messages, memories and states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np

from fedcore.errors import ConfigError, RunError
from fedcore.methods.dictionary_learning import scores
from fedcore.methods.dictionary_learning.result import Code, Parts, outputs_of, parts_together, result_of
from fedcore.methods.dictionary_learning.sparse_codes import omp
from fedcore.methods.perma import clients, server
from fedcore.methods.perma.config import PermaConfig
from fedcore.methods.perma.learners import coder_of
from fedcore.methods.perma.robust import robust_parts
from fedcore.methods.perma.state import Message, PermaState, RoundMessage
from fedcore.population.blocks import ClientBlock, Kind, RowsBlock
from fedcore.rounds.fitted import FittedDictionary
from fedcore.rounds.method import ClientOutputs, Memory, NonPrivateMethod, PublicFacts, RoundInfo, took_no_part
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
    Metric(
        "distance",
        "Distance of the clients' versions of the global atoms",
        "",
        "From the global atoms; mean over clients and atoms. Orthogonal atoms are 1.41 apart.",
    ),
    Metric("nonzero", "Atoms of a sample's code", "", "Mean over the samples."),
    Metric("active_clients", "Active clients", "", "Clients that took part in each round."),
    Metric("begun_anew", caption="Clients with new local atoms after a restart."),
    Metric("bytes_down", caption="Received by all clients."),
    Metric("bytes_up", caption="Sent by all clients."),
    Metric("clients", caption="Clients with samples other than zero."),
    Metric("collisions", caption="Atoms that clients chose twice as global ones."),
    Metric("far", caption="Clients whose mean matched distance is above the limit."),
    Metric("farthest", caption="Largest mean matched distance of a client."),
    Metric("few_samples", caption="Clients with fewer samples than atoms."),
    Metric("global_atoms", caption="Number of global atoms."),
    Metric("least_norm", caption="Smallest norm of a global atom before scaling."),
    Metric("left_out", caption="Matched atoms, later clients, that are left out of the aggregate."),
    Metric("matched", caption="Clients whose dictionaries were matched."),
    Metric("not_shared", caption="Global atoms on whose direction the clients do not agree."),
    Metric("objective", caption="Of the clients' own dictionaries, for each sample.", follows_data=True),
    Metric("rows", caption="Samples."),
    Metric("score", caption="Of the worst matched atom."),
    Metric("silent", caption="Clients without samples other than zero."),
    Metric("unused_atoms", caption="Atoms that no sample of their client uses."),
    Metric("worst_loss", caption="Largest loss of a client.", follows_data=True),
)


SOFT = (
    "codes are those of the run drawn towards zero by the threshold: scikit-learn has soft thresholds and no hard ones"
)


class Perma(NonPrivateMethod[PermaConfig, PermaState]):
    """PerMA: clients' dictionaries, with atoms that they have in common, found by matching, and local atoms.

    Source: Liang, Shi, Al Kontar, Fattahi, "Personalized Dictionary Learning for Heterogeneous Datasets" (2023),
    Algorithms 1 to 6.
    """

    name: ClassVar[str] = "perma"
    kinds: ClassVar[tuple[Kind, ...]] = ("rows",)
    arithmetic_version: ClassVar[str] = "perma-1"
    streams_rows: ClassVar[bool] = True
    Config = PermaConfig
    State = PermaState
    metrics: ClassVar[tuple[Metric, ...]] = METRICS
    main_settings: ClassVar[tuple[str, ...]] = (
        "profile",
        "atoms",
        "global_atoms",
        "learner",
        "code",
        "threshold",
        "sparsity",
        "rounds",
    )
    algorithm: ClassVar[str] = "PerMA"
    scores_use_memories: ClassVar[bool] = True
    accepts_warm_start: ClassVar[bool] = True

    @property
    def not_private_because(self) -> str:
        return (
            "clients' whole dictionaries, local atoms included, reach the server for the matching, on which one "
            "client's influence is not bounded, and clients' versions of the global atoms reach the server without "
            "noise in every round"
        )

    # --- rounds -----------------------------------------------------------------------------------------------------

    def init(self, public: PublicFacts) -> PermaState:
        return server.init(self.config, public)

    def total_rounds(self, state: PermaState) -> int:
        return server.total_rounds(self.config, state)

    def message(self, state: PermaState) -> Message | None:
        return server.message(self.config, state)

    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        return clients.client_update(self.config, message, cast(RowsBlock, block), memory)

    def server_update(self, state: PermaState, result: Mapping[str, Any]) -> tuple[PermaState, RoundInfo]:
        return server.server_update(self.config, state, result)

    def phase(self, state: PermaState, message: Message) -> str:
        return state.phase

    def clients_kept_apart(self, clients: int) -> int:
        """Those whose whole dictionaries are matched."""
        return server.MATCHED_CLIENTS

    # --- what a run shows, and leaves to the next -------------------------------------------------------------------

    def result(self, state: PermaState, features: Features) -> Result:
        """The global atoms; see `fedcore.methods.dictionary_learning.result`. Empty before the matching."""
        return result_of(state.common, features) if state.begun else Result()

    def fitted_model(self, state: PermaState) -> FittedDictionary:
        """The global atoms, with codes of scikit-learn's that are nearest to the run's; clients' own are not in the
        state. Atoms are scaled to norm 1 for matching pursuit. Raises RunError if the run has no global atoms."""
        atoms = state.common
        if not state.begun or not len(atoms):
            raise RunError("the run has no global atoms.", "Resume it, or train with global_atoms of 1 or more.")
        if self.config.code == "threshold":
            return FittedDictionary(atoms, "threshold", None, self.config.threshold, state.round, SOFT)
        norms = np.linalg.norm(atoms, axis=1, keepdims=True)
        unit = atoms / np.where(norms > 0, norms, 1.0)
        return FittedDictionary(unit, "omp", min(self.config.sparsity, *unit.shape), None, state.round)

    def warm_start_of(self, state: PermaState) -> dict[str, np.ndarray]:
        """global: (rg, d) the global dictionary, one atom a row. Raises ConfigError before the matching."""
        if not state.begun:
            raise ConfigError("stopped before it had a global dictionary.", "Name a run that has.")
        return {"global": state.common}

    def checked_warm_start(self, arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
        """global: (rg, d), atoms scaled to norm 1."""
        return server.checked_warm_start(self.config, arrays, what, features)

    # --- for each client, and on held-out data ----------------------------------------------------------------------

    @property
    def _parts(self) -> Parts:
        """Samples are coded with [G | L] together, or robustly with G first. By matching pursuit where k atoms are
        asked for: G and L are orthogonal to each other only nearly, and a plain top-k is then biased."""
        coder = coder_of(self.config)
        if self.config.robust:
            return partial(robust_parts, coder=coder)
        code: Code = partial(omp, k=coder.sparsity) if coder.code == "top_k" else coder
        return parts_together(code)

    def personalise(self, state: PermaState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """Local atoms, and samples split in two; see `fedcore.methods.dictionary_learning.result`. Raises RunError
        before the matching, and for clients that took no part."""
        if not state.begun:
            raise RunError("the run stopped before its first round.", "Resume it first.")
        if memory is None:
            raise took_no_part()
        rows = cast(RowsBlock, block)
        kept = _remembered(state, rows, memory)
        return outputs_of(self._parts, state.common, rows, kept, stacked=not self.config.robust)

    def score_block(self, state: PermaState, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        """Of global atoms, and with local ones; see `fedcore.methods.dictionary_learning.scores`."""
        if not state.begun:
            raise RunError("the run stopped before it had a global dictionary.", "Resume it first.")
        rows, known = cast(RowsBlock, block), memories
        if known is not None:
            known = replace(known, memory=dict(_remembered(state, rows, known.memory)))
        local_atoms = max(self.config.atoms - len(state.common), 0)
        return scores.evaluate_block(self._parts, state.common, local_atoms, rows, known)

    def score_table(self, statistics: Mapping[str, np.ndarray]) -> ScoreTable:
        return scores.table(statistics)


def _remembered(state: PermaState, block: RowsBlock, memory: Memory) -> Memory:
    """What clients remember, with their local atoms in "local" also if the run stopped before its first round."""
    message = RoundMessage(state.round, state.seed, state.common, state.matched, state.index, False, False)
    return clients.with_local_atoms(message, block, memory)
