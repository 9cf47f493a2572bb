"""The contract of one federated round.

    The server says something, every active client answers from its own rows and memory, the answers add up,
    perhaps noise is added, the server moves.

A method is a frozen value (its validated config) with a handful of pure functions. The engine (`fedcore.rounds.engine`)
runs it; the engine, not the method, charges the budget, draws noise and publishes. A private method never sees a
raw sum in `server_update`, nor an exact count in `init`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from pydantic import BaseModel

from fedcore.population.blocks import ClientBlock, Kind
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.statistics import Statistics

Message = Any  # a frozen dataclass of arrays and scalars
State = Any  # likewise; what the next round needs, and what a checkpoint holds
Memory = dict[str, np.ndarray]  # per-client state of a block; first axis = clients
# Personalised outputs. First axis = clients; of those whose name begins with ROWS, the rows of the clients.
ClientOutputs = dict[str, np.ndarray]
ROWS = "rows_"


@dataclass(frozen=True, slots=True)
class PublicFacts:
    """What a method may know before any client has answered.

    kind, features, clients_per_leaf: from the manifest; the schema is public
    nominal_clients: the size that the owner declared; None if nobody declared one
    clients:  the exact number of clients; always None for a private run
    rho:      zCDP budget of this run without its spares; None for a non-private run
    seed:     names the streams of simulation randomness (never of noise that protects people)
    relation: neighbouring relation of the population's budget: "add_or_remove_one" or "replace_one"
    start:    public arrays by name that the run starts from (released earlier, or declared public); None: no start
    unit:     what the population's budget protects: "client" or "record"; the latter only for methods that say so in
              `units`
    """

    kind: Kind
    features: int
    clients_per_leaf: int
    nominal_clients: int | None
    clients: int | None
    rho: float | None
    seed: int
    relation: str = "add_or_remove_one"
    start: Mapping[str, np.ndarray] | None = None
    unit: str = "client"


@dataclass(frozen=True, slots=True)
class RoundInfo:
    """What a person or a plot needs to know of a round; the next round never reads it.

    scalars: one number for each name, the same names in every round of a phase; they become the metrics row
    note:    one line for the log, or empty
    """

    scalars: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


class FederatedMethod(Protocol):
    """A method: a frozen dataclass holding its config. All functions are pure.

    name:       of the method, as on the command line
    kind:       the kind of population it reads
    Config:     its pydantic model; State: its state dataclass (see `fedcore.runs.store` for what may be in one)
    kernel:     changes whenever the arithmetic of client_update does; a run is resumed only with its own
    private:    whether this configuration releases only noised values
    not_private_because: the reason, for the privacy statement; empty if private
    """

    name: str
    kind: Kind
    kernel: str
    Config: type[BaseModel]
    State: type
    config: BaseModel

    @property
    def private(self) -> bool: ...

    @property
    def not_private_because(self) -> str: ...

    def plan(self, public: PublicFacts) -> Sequence[PlannedRelease]:
        """Every noised release of the run and its price, from config and public facts alone; [] if not private."""

    def init(self, public: PublicFacts) -> State: ...

    def total_rounds(self, state: State) -> int:
        """The largest number of rounds that the run can take, for progress."""

    def message(self, state: State) -> Message | None:
        """What the server says in this round; None when the run is finished."""

    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        """The answer of one leaf of clients. Called leaf by leaf; may be called again for the same leaf."""

    def quantise(self, message: Message, statistics: Statistics) -> dict[str, np.ndarray]:
        """Private methods: the int64 grid values to be noised, by planned name; the engine does the rest."""

    def server_update(self, state: State, result: Mapping[str, Any]) -> tuple[State, RoundInfo]:
        """result: published noised values by planned name if private, else the finished statistics by name."""

    def personalise(self, state: State, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """Outputs for each client of the block (and for its rows), from the state and the client's own data."""


class SaysOutcome(FederatedMethod, Protocol):
    """A method whose runs may finish without what was asked for."""

    def outcome(self, state: State) -> str:
        """What a finished run has found, or why nothing, in one line; kept with the run."""


class StartsFromGiven(FederatedMethod, Protocol):
    """A method whose runs may start from public arrays (`PublicFacts.start`)."""

    def as_start(self, state: State) -> dict[str, np.ndarray]:
        """What a later run may start from. Raises ConfigError ("has not ...") if the run is not far enough."""

    def checked_start(self, arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
        """The arrays as float64. Raises ConfigError, naming `what`, unless a run over so many features can use them."""
