"""The contract of one federated round, as a base class.

    The server says something, every active client answers from its own rows and memory, the answers add up,
    perhaps noise is added, the server moves.

A method holds its validated settings and a handful of pure functions. The engine (`fedcore.rounds.engine`) runs it;
the engine, not the method, charges the budget, draws noise and publishes. A private method never sees a raw sum in
`server_update`, nor an exact count in `init`.

A new method derives from `NonPrivateMethod` or `PrivateMethod`, is registered under the entry-point group
`fedcore.methods`, and is checked by `python -m fedcore.testing PACKAGE:Class`. What must be written is abstract here;
everything else has a default. docs/adding-a-method.md builds one from an empty folder.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar, cast

import numpy as np
from pydantic import BaseModel

from fedcore.deprecated import Renamed
from fedcore.errors import ConfigError, MethodError, RunError
from fedcore.population.blocks import ClientBlock, Kind
from fedcore.population.columns import Bounds, ColumnEntry
from fedcore.population.manifest import Halves
from fedcore.privacy.plan import PlannedRelease, Relation, Unit
from fedcore.rounds.choices import known_settings
from fedcore.rounds.fitted import Fitted
from fedcore.rounds.messages import check_numbers
from fedcore.rounds.results import Features, Metric, Result
from fedcore.rounds.scores import KnownMemories, ScoreTable
from fedcore.rounds.statistics import Statistics

Message = Any  # a frozen dataclass of arrays and scalars
State = Any  # likewise; what the next round needs, and what a checkpoint holds
INCOMPLETE_ROWS = "A row with a missing or infinite value in any column is left out."  # see `Method.left_out`
Memory = dict[str, np.ndarray]  # per-client state of a block; first axis = clients
# Personalised outputs. First axis = clients; of those whose name begins with ROWS, the rows of the clients.
ClientOutputs = dict[str, np.ndarray]
ROWS = "rows_"

ConfigT = TypeVar("ConfigT", bound=BaseModel)
StateT = TypeVar("StateT")


@dataclass(frozen=True, slots=True)
class PublicFacts:
    """What a method may know before any client has answered.

    kind, features, clients_per_leaf: from the manifest; the schema is public
    nominal_clients: the size that the owner declared; None if nobody declared one
    clients:  the exact number of clients; always None for a private run
    rho:      budget of this run without its spares; None for a non-private run
    seed:     names the streams of simulation randomness (never of noise that protects people)
    relation: neighbouring relation of the population's budget: "add_or_remove_one" or "replace_one"
    warm_start: public arrays by name that the run starts from (released earlier, or declared public), or None
    unit:     what the population's budget protects: "client" or "record"; the latter only for methods that say so in
              `units`
    halves:   how the owner says that clients' data were dealt to the training part and the held-out part: whole
              documents, or single tokens; None if nobody says. Never found out by looking: whether there is a held-out
              part can depend on a single client
    one_whole: whether the held-out part is as good as the training part to this run (`Manifest.one_whole`)
    rows:     the exact number of rows; always None for a private run
    image:    (height, width) where the owner declared that a row is a picture; of the schema, like features
    """

    kind: Kind
    features: int
    clients_per_leaf: int
    nominal_clients: int | None
    clients: int | None
    rho: float | None
    seed: int
    relation: Relation = "add_or_remove_one"
    warm_start: Mapping[str, np.ndarray] | None = None
    unit: Unit = "client"
    halves: Halves | None = None
    one_whole: bool = False
    rows: int | None = None
    image: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class RoundInfo:
    """What a person or a plot needs to know of a round; the next round never reads it.

    scalars: one number for each name, the same names in every round of a phase; they become the metrics row, and each
        name is declared in `Method.metrics`
    note:    one line for the log, or empty
    """

    scalars: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Worth:
    """What a private run is likely to be worth, by public facts alone.

    word:   how good it is; a run whose word is "none" is refused, unless its setting `anyway` is true
    expect: what to expect of it, in words
    loss:   in `unit`, about how much is lost to noise; None: nobody knows
    """

    word: Literal["none", "weak", "fair", "good"]
    expect: str
    loss: float | None = None
    unit: str = ""

    @property
    def in_words(self) -> str:
        return f"{self.word}: {self.expect}"


class PrivateSettings(Protocol):
    """The settings that every private method has.

    epsilon: what a run may spend, at the delta of the population's budget; None: all that is left
    spare_releases: reserved for values that are drawn and lost, each at the price of the dearest release
    nominal_clients: the public size of the population; None: that of the manifest
    """

    @property
    def epsilon(self) -> float | None: ...

    @property
    def spare_releases(self) -> int: ...

    @property
    def nominal_clients(self) -> int | None: ...


def took_no_part() -> RunError:
    """What `personalise` raises for clients whose memories it needs, and who have none."""
    return RunError(
        "these clients took no part in the run, and what each client is given is made of what it remembers.",
        "Name the population that the run was trained on, or train on this one.",
    )


class Method(ABC, Generic[ConfigT, StateT]):
    """A method with its settings. All functions are pure, and the object is never changed after it was made.

    name:    of the method, as on the command line
    kinds:   the kinds of population that it can read; `kind` is that of these settings
    arithmetic_version: changes whenever the bits of `client_update` do; a run is resumed only with its own
    Config:  its settings, a frozen pydantic model in which every field has a default
    State:   a frozen dataclass of arrays and scalars; see `fedcore.storage.arrays` for what may be in one
    metrics: every scalar that a `RoundInfo` may hold
    units:   units of privacy that the method has an argument for
    facts_in_state: fields of the state that repeat those of PublicFacts; a run continues only with its own
    streams_rows: whether `client_update` can read the rows of a block part by part, so that a block need not fit in
        memory
    accepts_warm_start: whether a run may start from public arrays (`PublicFacts.warm_start`)
    warm_starts_for: names of other methods whose runs may start from what a run of this one ends with
    series_arrays: names of arrays of a warm start that tell what runs of this method on this very population have
        released so far; runs on another one start without them, and so do runs of another method that does not name
        them too
    scores_use_memories: whether `score_block` wants what the clients of the run remember
    outputs_use_memories: whether `personalise` does; where it does not, it is given None
    serves_newcomers: whether `personalise`, given None, makes for clients that took no part what they would remember
    free_settings: names of settings of `personalise`, `score_block`, `score_table` and `headline`, which neither the
        clients' answers nor the server's moves depend on, but through what they are asked: what they do is a function
        of what a run has ended with, so that they may be given anew to a run that was made
    main_settings: the settings that `--help`, forms and the method's page show first, in this order; all others are
        under "Advanced". At most `MOST_MAIN`; a method with no more settings in all may leave it empty
    personalises_all_documents: whether a client's outputs are made of both halves of its documents, where these were
        dealt to halves and are not public for evaluation (`joined`); for methods of counts
    algorithm: what runs are said to train, of a method without a setting of this name; empty: nothing is said
    moved_settings: settings that the method had and has no more, "name" or "name=value", with what to read of them in
        the error that refuses one: "is the method mixed_effects now"
    fixed_settings: settings that the method had and that are constants now, with their values. Runs and files that have
        this value are as they were; another value is refused
    renamed_settings: old names of settings, which still work for one minor version, with their new names
    feature_outputs: names of outputs of `personalise` whose last axis are the features of the population
    usual_share: fraction of the whole budget that a private run takes if its settings give no epsilon; None: all that
        is left
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[Kind, ...]]
    arithmetic_version: ClassVar[str]
    Config: type[ConfigT]
    State: type[StateT]
    metrics: ClassVar[tuple[Metric, ...]] = ()
    units: ClassVar[tuple[str, ...]] = ("client",)
    facts_in_state: ClassVar[tuple[str, ...]] = ()
    streams_rows: ClassVar[bool] = False
    accepts_warm_start: ClassVar[bool] = False
    warm_starts_for: ClassVar[tuple[str, ...]] = ()
    series_arrays: ClassVar[tuple[str, ...]] = ()
    scores_use_memories: ClassVar[bool] = False
    outputs_use_memories: ClassVar[bool] = True
    serves_newcomers: ClassVar[bool] = False
    personalises_all_documents: ClassVar[bool] = False
    free_settings: ClassVar[tuple[str, ...]] = ()
    main_settings: ClassVar[tuple[str, ...]] = ()
    algorithm: ClassVar[str] = ""
    moved_settings: ClassVar[Mapping[str, str]] = {}
    fixed_settings: ClassVar[Mapping[str, Any]] = {}
    renamed_settings: ClassVar[Mapping[str, Renamed]] = {}
    feature_outputs: ClassVar[tuple[str, ...]] = ()
    usual_share: ClassVar[Fraction | None] = None

    config: ConfigT

    def __init__(self, config: ConfigT | None = None):
        self.config = self.Config() if config is None else config

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.config == cast(Method[Any, Any], other).config

    def __hash__(self) -> int:
        return hash((type(self), self.config))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config!r})"

    @property
    def kind(self) -> Kind:
        """The kind of population that a run with these settings reads."""
        return self.kinds[0]

    # --- privacy ----------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def private(self) -> bool:
        """Whether these settings release only noised values."""

    @property
    @abstractmethod
    def not_private_because(self) -> str:
        """The reason, for the privacy statement; empty if private."""

    @abstractmethod
    def plan(self, public: PublicFacts) -> Sequence[PlannedRelease]:
        """Every noised release of the run and its price, from settings and public facts alone; empty if not private.

        Raises ConfigError if there can be no such run.
        """

    @abstractmethod
    def release_values(self, message: Message, statistics: Statistics) -> dict[str, np.ndarray]:
        """The int64 grid values to be noised in this round, by planned name; the engine does the rest."""

    @property
    def private_settings(self) -> PrivateSettings:
        """The settings that say what a private run may spend. Raises MethodError if the method has none."""
        raise MethodError(f"method {self.name!r} has no settings of a private run.")

    @property
    def nominal_clients(self) -> int | None:
        """The public number of clients that the settings name; None: that of the manifest."""
        return None

    def settings_of_bounds(self, bounds: Bounds) -> Mapping[str, Any]:
        """Settings that follow from the public bounds of the population's columns, where these settings leave them
        open. A run records them as if somebody had chosen them.
        """
        return {}

    def settings_of_columns(self, columns: Sequence[ColumnEntry]) -> Mapping[str, Any]:
        """Settings that follow from how the population's columns were declared, likewise; none may be named. Raises
        ConfigError for a setting that names a column which there is not.
        """
        return {}

    # --- rounds -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def init(self, public: PublicFacts) -> StateT:
        """The state before the first round. Raises ConfigError for settings that do not suit the population."""

    @abstractmethod
    def total_rounds(self, state: StateT) -> int:
        """The largest number of rounds that the run can take, for progress."""

    @abstractmethod
    def message(self, state: StateT) -> Message | None:
        """What the server says in this round; None when the run is finished."""

    @abstractmethod
    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        """The answer of one leaf of clients. Called leaf by leaf; may be called again for the same leaf.

        A private method returns no memory. `block.heldout` is None unless `reads_heldout(message)`, and also then where
        no client of the block has a held-out part.
        """

    def check_message(self, message: Message, features: int) -> None:
        """Raises SensitivityError for a message with which the bound on a client's contribution would not hold.

        The clients of a block call it before they answer. features: of the population. By default, for a private
        method: unless every number is finite, and in the range that its field declares
        (`fedcore.rounds.messages.between`). Override it where the bound also relies on the shapes of arrays.
        """
        if self.private:
            check_numbers(message)

    def reads_heldout(self, message: Message) -> bool:
        """Whether clients answer this message from their held-out part as well, which is otherwise kept for evaluation.

        Only for private methods, whose unit is a client with everything it holds: scores of a run that saw what it is
        scored on would say little.
        """
        return False

    @abstractmethod
    def server_update(self, state: StateT, result: Mapping[str, Any]) -> tuple[StateT, RoundInfo]:
        """result: published noised values by planned name if private, else the finished statistics by name."""

    def phase(self, state: StateT, message: Message) -> str:
        """What kind of round this is; rounds of one phase cost about the same, and a plan counts them together."""
        return "rounds"

    @property
    def kept_beside(self) -> float:
        """Bytes that may be kept beside a cached block (`CountsBlock.aside`) for each of its decoded ones."""
        return 0.0

    def clients_kept_apart(self, clients: int) -> int:
        """Of how many clients the server keeps single answers (`Stack`) in a round, at most."""
        return clients

    # --- what a run shows -------------------------------------------------------------------------------------------

    def outcome(self, state: StateT) -> str:
        """What a finished run has found, or why nothing, in one line; empty if there is nothing to tell."""
        return ""

    def rows_used(self, state: StateT) -> tuple[float, float] | None:
        """(share of the rows that a finished run has used, its standard error by the noise); None if that is unknown.
        Made of released and declared numbers alone, never of an exact count of a private run."""
        return None

    def result(self, state: StateT, features: Features) -> Result:
        """What the run has learnt, as tables and figures for people; empty before there is anything."""
        return Result()

    def segments(self, state: StateT) -> Sequence[int]:
        """Numbers of the components that are segments A, B ..., the largest first, as in `result` and in the labels of
        `personalise`; empty if the method has none."""
        return ()

    def fitted_model(self, state: StateT) -> Fitted:
        """The model of a trained run as parameters in the units of the data, for other programs.

        Raises ConfigError for settings whose model has no counterpart there, RunError if the run has found none.
        """
        raise ConfigError(f"runs of method {self.name!r} have no counterpart among scikit-learn's estimators.")

    # --- warm starts ------------------------------------------------------------------------------------------------

    def warm_start_of(self, state: StateT) -> dict[str, np.ndarray]:
        """Public arrays that a later run may start from. Raises ConfigError ("has not ...") if it is too early."""
        raise ConfigError(f"is one of method {self.name!r}, which leaves nothing to start from.")

    def checked_warm_start(self, arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
        """The arrays as float64. Raises ConfigError, naming `what`, unless a run over so many features can use them."""
        raise ConfigError(f"method {self.name!r} does not start from given values, such as {what}.", "Leave it out.")

    # --- after training ---------------------------------------------------------------------------------------------

    def free_settings_in_force(self, state: StateT) -> dict[str, Any]:
        """The settings that may be given to a run that was made, as JSON; of what the run chose itself, its choice."""
        found: dict[str, Any] = self.config.model_dump(mode="json", include=set(self.free_settings))
        return {name: found[name] for name in self.free_settings}

    # --- for each client --------------------------------------------------------------------------------------------

    def personalise(self, state: StateT, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """Outputs for each client of the block (and for its rows), from the state and the client's own data."""
        raise ConfigError(f"method {self.name!r} has no outputs for single clients.")

    def outlier_distances(self, state: StateT, block: ClientBlock, memory: Memory | None) -> np.ndarray:
        """(C, R) float64: how far each client is from what all share, by component, in units of the distance beyond
        which it counts as apart; NaN where a component does not count.
        """
        raise ConfigError(f"runs of method {self.name!r} have no penalty that could leave clients apart.")

    # --- scores on held-out data ------------------------------------------------------------------------------------

    def score_block(self, state: StateT, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        """Sums over the clients of a leaf that have held-out data, for this run and for its baselines."""
        raise ConfigError(f"runs of method {self.name!r} cannot be scored on held-out data.", "Choose another method.")

    def score_table(self, statistics: Mapping[str, np.ndarray]) -> ScoreTable:
        """The table of scores from the finished statistics of all leaves. Raises PopulationError if it is empty."""
        raise ConfigError(f"runs of method {self.name!r} cannot be scored on held-out data.", "Choose another method.")

    def headline(self, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The row of a table of scores (as JSON) for what the run gives its clients; by it runs are compared."""
        return next((row for row in rows if row.get("method") == "this run"), rows[0])

    @property
    def can_be_scored(self) -> bool:
        return type(self).score_block is not Method.score_block

    # --- budgets over several runs ----------------------------------------------------------------------------------

    def budget_sketch(self, public: PublicFacts, plan: Sequence[PlannedRelease]) -> dict[str, Any]:
        """What a run with this plan buys, as JSON; made from public facts, no data are opened."""
        return {"rounds": max((planned.round for planned in plan), default=0), "releases": len(plan)}

    def worth(self, public: PublicFacts) -> Worth | None:
        """What a run with these facts is likely to be worth, for a person who may ask for it or not; made from public
        facts, no data are opened. None if the method cannot say.
        """
        return None

    def left_out(self, columns: Features) -> str:
        """Which rows a run leaves out without an error, in sentences for people; empty if it reads every row or ends at
        one that it cannot read. Made from the settings and the declared columns alone."""
        return ""

    def likely_warm_start(self, public: PublicFacts) -> dict[str, np.ndarray] | None:
        """Stand-ins, of the right shapes, for what a run with these facts would leave to the next one, so that the runs
        of a series can be planned one after the other; None if runs do not start warm.
        """
        return None

    def tries(self) -> Mapping[str, Sequence[Any]]:
        """Values of settings that are worth comparing on held-out rows when nobody says which; empty if none are known.
        For methods with a setting `validation`."""
        return {}

    @property
    def held_back_share(self) -> float:
        """The share that is held back when settings are compared and nobody says how much."""
        return 0.2

    # --- plans of runs ----------------------------------------------------------------------------------------------

    def likely_rows(self, public: PublicFacts, count: int, generator: np.random.Generator) -> np.ndarray:
        """(count, features) rows as clients may hold them, drawn from settings and public facts alone. A plan of a
        private run times its rounds with them, because it may not look at the clients' own. By default three groups.
        """
        groups = generator.normal(scale=4.0, size=(3, public.features))
        rows: np.ndarray = groups[generator.integers(3, size=count)] + generator.normal(size=(count, public.features))
        return rows


AnyMethod: TypeAlias = Method[Any, Any]


class NonPrivateMethod(Method[ConfigT, StateT]):
    """A method that releases exact sums: it only has to say why it is not private."""

    @property
    def private(self) -> bool:
        return False

    @property
    @abstractmethod
    def not_private_because(self) -> str: ...

    def plan(self, public: PublicFacts) -> Sequence[PlannedRelease]:
        return []

    def release_values(self, message: Message, statistics: Statistics) -> dict[str, np.ndarray]:
        return {}


class PrivateMethod(Method[ConfigT, StateT]):
    """A method that releases noised values, in all or in some of its settings. Its settings are `PrivateSettings`.

    Settings in which it is not private override `private` and `not_private_because`.
    """

    @property
    def private(self) -> bool:
        return True

    @property
    def not_private_because(self) -> str:
        return ""

    def release_values(self, message: Message, statistics: Statistics) -> dict[str, np.ndarray]:
        """By default every statistic is an exact sum of grid steps under the name of its release."""
        return {name: cast(np.ndarray, statistic.value()) for name, statistic in statistics.items()}

    @property
    def private_settings(self) -> PrivateSettings:
        return cast(PrivateSettings, self.config)

    @property
    def nominal_clients(self) -> int | None:
        return self.private_settings.nominal_clients


# --- mistakes of authors ----------------------------------------------------------------------------------------------

PRIVATE_SETTINGS = ("epsilon", "spare_releases", "nominal_clients")
MOST_MAIN = 8  # settings of a method that are shown first


def settings_by_place(cls: type[AnyMethod]) -> tuple[list[str], list[str]]:
    """The names of a method's settings: those that are shown first, and those under "Advanced"."""
    every = list(known_settings(cls.Config))
    main = list(cls.main_settings) or every[:MOST_MAIN]
    return main, [name for name in every if name not in main]


def check_definition(cls: Any) -> type[AnyMethod]:
    """`cls`, if it is a method that the platform can run. Raises MethodError that names what is missing or wrong."""
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise MethodError(f"{cls!r} is not a method.", "Derive it from NonPrivateMethod or PrivateMethod.")
    where = f"method class {cls.__name__}"
    for name in ("name", "kinds", "arithmetic_version", "Config", "State"):
        if not hasattr(cls, name):
            raise MethodError(f"{where} has no attribute {name!r}.", "See fedcore.rounds.method.Method.")
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        raise MethodError(f"{where} does not define {', '.join(missing)}.", "See fedcore.rounds.method.Method.")
    config = cls.Config
    if not (isinstance(config, type) and issubclass(config, BaseModel)):
        raise MethodError(f"Config of {where} is not a pydantic model.")
    if not config.model_config.get("frozen"):
        raise MethodError(f"Config of {where} is not frozen.", "Give it model_config = ConfigDict(frozen=True, ...).")
    if config.model_config.get("extra") != "forbid":
        raise MethodError(f"Config of {where} takes unknown settings.", 'Give it ConfigDict(extra="forbid", ...).')
    known = known_settings(config)
    required = sorted(name for name, info in config.model_fields.items() if info.is_required())
    if required:
        raise MethodError(f"settings {', '.join(required)} of {where} have no default.")
    if not (dataclasses.is_dataclass(cls.State) and cls.State.__dataclass_params__.frozen):  # type: ignore[attr-defined]
        raise MethodError(f"State of {where} is not a frozen dataclass.")
    if issubclass(cls, PrivateMethod):
        lacking = [name for name in PRIVATE_SETTINGS if name not in known and not hasattr(config, name)]
        if lacking:
            raise MethodError(f"Config of {where} lacks the setting {lacking[0]!r} of a private method.")
    for names, what in ((cls.free_settings, "a free setting"), (cls.main_settings, "a main setting")):
        if unknown := [name for name in names if name not in known]:
            raise MethodError(f"{where} calls {unknown[0]!r} {what}, and its Config has no such setting.")
    if len(cls.main_settings) > MOST_MAIN or len(cls.main_settings) != len({*cls.main_settings}):
        raise MethodError(f"{where} has {len(cls.main_settings)} main settings.", f"Name up to {MOST_MAIN}, each once.")
    if not isinstance(cls.kinds, tuple) or not cls.kinds or not set(cls.kinds) <= {"counts", "rows"}:
        raise MethodError(f"kinds of {where} is {cls.kinds!r}.", 'Name "counts", "rows", or both, in a tuple.')
    return cls
