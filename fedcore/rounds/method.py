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

from fedcore.errors import ConfigError, MethodError, RunError
from fedcore.population.blocks import ClientBlock, Kind
from fedcore.population.columns import Bounds, ColumnEntry
from fedcore.population.manifest import Halves
from fedcore.privacy.plan import PlannedRelease, Relation, Unit
from fedcore.rounds.choices import known_settings
from fedcore.rounds.fitted import Fitted
from fedcore.rounds.messages import check_numbers
from fedcore.rounds.old_names import Renamed
from fedcore.rounds.results import Features, Metric, Result
from fedcore.rounds.scores import KnownMemories, ScoreTable
from fedcore.rounds.statistics import Statistics

Message = Any  # a frozen dataclass of arrays and scalars
State = Any  # the same; what the next round needs, and what a checkpoint holds
INCOMPLETE_ROWS = "A row with a missing or infinite value in any column is left out."  # see `Method.left_out`
Memory = dict[str, "np.ndarray"]  # per-client state of a block; first axis = clients
# Personalised outputs. First axis = clients; of those whose name begins with ROWS, the rows of the clients.
ClientOutputs = dict[str, "np.ndarray"]
ROWS = "rows_"

ConfigT = TypeVar("ConfigT", bound=BaseModel)
StateT = TypeVar("StateT")


@dataclass(frozen=True, slots=True)
class PublicFacts:
    """Facts that a method may use before any client has answered.

    kind, features, clients_per_leaf: from the manifest; the schema is public
    nominal_clients: the declared number of clients; None if not declared
    clients:  the exact number of clients; always None for a private run
    rho:      budget of this run without its spares; None for a non-private run
    seed:     of the streams of simulation randomness (never of privacy noise)
    relation: neighbouring relation of the population's budget: "add_or_remove_one" or "replace_one"
    warm_start: public arrays by name that the run starts from (released earlier, or declared public), or None
    unit:     what the population's budget protects: "client" or "record"; the latter only for methods that list it in
              `units`
    halves:   how the owner declares that clients' data were split into the training part and the held-out part: whole
              documents, or single tokens; None if not declared. Never found by looking at the data: whether there is a
              held-out part can depend on a single client
    one_whole: whether this run may use the held-out part like the training part (`Manifest.one_whole`)
    rows:     the exact number of rows; always None for a private run
    image:    (height, width) if the owner declared that a row is a picture; part of the schema, like features
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
    """Information on a round for people and plots; the next round never reads it.

    scalars: one number for each name, the same names in every round of a phase. They become the metrics row, and
        `Method.metrics` declares each name
    note:    one line for the log, or empty
    """

    scalars: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Worth:
    """Expected utility of a private run, from public facts only.

    word:   rating of the run; a run with the rating "none" is refused, unless its setting `anyway` is true
    expect: what to expect, in words
    loss:   approximate loss due to noise, in `unit`; None: unknown
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
    spare_releases: reserve releases for lost values, each at the cost of the most costly release
    nominal_clients: the declared number of clients; None: that of the manifest
    """

    @property
    def epsilon(self) -> float | None: ...

    @property
    def spare_releases(self) -> int: ...

    @property
    def nominal_clients(self) -> int | None: ...


def took_no_part() -> RunError:
    """The error of `personalise` for clients whose memory it needs, and that have none."""
    return RunError(
        "these clients took no part in the run, and per-client outputs need their memory of it.",
        "Pass the population that the run was trained on, or train on this one.",
    )


class Method(ABC, Generic[ConfigT, StateT]):
    """A method with its settings. All functions are pure, and the object never changes.

    name:    of the method, as on the command line
    kinds:   the kinds of population that it can read; `kind` is that of these settings
    arithmetic_version: must change whenever the bits of `client_update` do; a run is resumed only with the same version
    Config:  its settings, a frozen pydantic model in which every field has a default
    State:   a frozen dataclass of arrays and scalars; `fedcore.storage.arrays` lists the allowed types
    metrics: every scalar that a `RoundInfo` may hold
    units:   privacy units for which the method has a proof
    facts_in_state: fields of the state that repeat those of PublicFacts; a run continues only with the same values
    streams_rows: whether `client_update` can read the rows of a block part by part, so that a block need not fit in
        memory
    accepts_warm_start: whether a run may start from public arrays (`PublicFacts.warm_start`)
    warm_starts_for: names of other methods whose runs may start from the result of a run of this one
    series_arrays: names of arrays of a warm start that hold what runs of this method on this population have released
        so far; runs on another population start without them, and so do runs of another method that does not list
        them too
    scores_use_memories: whether `score_block` needs the client memory of the run
    outputs_use_memories: whether `personalise` needs it; if not, it gets None
    serves_newcomers: whether `personalise`, given None, computes the memory of clients that took no part
    free_settings: names of settings of `personalise`, `score_block`, `score_table` and `headline` on which neither the
        clients' answers nor the server's moves depend, except through the messages. Their effect is a function of the
        final state of a run, so an existing run may get new values of them
    main_settings: the settings that `--help`, forms and the method's page show first, in this order; all others are
        under "Advanced". At most `MOST_MAIN`; a method with no more settings in all may leave it empty
    personalises_all_documents: whether a client's outputs use both halves of its documents, if these were split into
        halves and are not public for evaluation (`joined`); for methods of counts
    algorithm: name of the algorithm of runs, for a method without a setting of this name; empty: none is shown
    moved_settings: settings that the method had and has no more, "name" or "name=value", with the text of the error
        that refuses one: "is the method mixed_effects now"
    fixed_settings: settings that the method had and that are constants now, with their values. Runs and files with
        this value stay valid; another value is refused
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
        """Whether these settings release only noisy values."""

    @property
    @abstractmethod
    def not_private_because(self) -> str:
        """The reason, for the privacy statement; empty if private."""

    @abstractmethod
    def plan(self, public: PublicFacts) -> Sequence[PlannedRelease]:
        """Every noisy release of the run and its privacy cost, from settings and public facts only; empty if not
        private.

        Raises ConfigError if there can be no such run.
        """

    @abstractmethod
    def release_values(self, message: Message, statistics: Statistics) -> dict[str, np.ndarray]:
        """The int64 grid values that get noise in this round, by planned name; the engine does the rest."""

    @property
    def private_settings(self) -> PrivateSettings:
        """The settings of a private run's budget. Raises MethodError if the method has none."""
        raise MethodError(f"method {self.name!r} has no settings of a private run.")

    @property
    def nominal_clients(self) -> int | None:
        """The declared number of clients in the settings; None: that of the manifest."""
        return None

    def settings_of_bounds(self, bounds: Bounds) -> Mapping[str, Any]:
        """Settings that follow from the public bounds of the population's columns, where these settings leave them
        open. A run records them as if they had been set.
        """
        return {}

    def settings_of_columns(self, columns: Sequence[ColumnEntry]) -> Mapping[str, Any]:
        """Settings that follow from the declarations of the population's columns, in the same way; columns may have no
        names. Raises ConfigError for a setting with a column that does not exist.
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
        """The server's message in this round; None when the run is finished."""

    @abstractmethod
    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        """Compute the answer of one leaf of clients. Called leaf by leaf; may be called again for the same leaf.

        A private method returns no memory. `block.heldout` is None unless `reads_heldout(message)`. It is also None if
        no client of the block has a held-out part.
        """

    def check_message(self, message: Message, features: int) -> None:
        """Raise SensitivityError for a message with which the bound on a client's contribution would not hold.

        The clients of a block call it before they answer. features: of the population. By default it checks, for a
        private method, that every number is finite, and in the range that its field declares
        (`fedcore.rounds.messages.between`). Override it if the bound also depends on the shapes of arrays.
        """
        if self.private:
            check_numbers(message)

    def reads_heldout(self, message: Message) -> bool:
        """Whether clients also use their held-out part to answer this message; otherwise it is kept for evaluation.

        Only for private methods, whose unit is a client with all its data. Scores on data that a run has used would
        mean little.
        """
        return False

    @abstractmethod
    def server_update(self, state: StateT, result: Mapping[str, Any]) -> tuple[StateT, RoundInfo]:
        """result: published noisy values by planned name if private, else the finished statistics by name."""

    def phase(self, state: StateT, message: Message) -> str:
        """The kind of this round. Rounds of one phase cost about the same, and a plan counts them together."""
        return "rounds"

    @property
    def kept_beside(self) -> float:
        """Bytes that may be kept with a cached block (`CountsBlock.aside`) for each of its decoded ones."""
        return 0.0

    def clients_kept_apart(self, clients: int) -> int:
        """Largest number of clients whose separate answers (`Stack`) the server keeps in a round."""
        return clients

    # --- what a run shows -------------------------------------------------------------------------------------------

    def outcome(self, state: StateT) -> str:
        """What a finished run has found, or why it found nothing, in one line; empty if there is nothing to report."""
        return ""

    def rows_used(self, state: StateT) -> tuple[float, float] | None:
        """(share of the rows that a finished run has used, its standard error by the noise); None if that is unknown.
        Uses released and declared numbers only, never an exact count of a private run."""
        return None

    def result(self, state: StateT, features: Features) -> Result:
        """The run's result as tables and figures; empty before there is any."""
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
        """The arrays as float64. Raises ConfigError, naming `what`, unless a run over `features` features can use
        them."""
        raise ConfigError(f"method {self.name!r} does not start from given values, such as {what}.", "Leave it out.")

    # --- after training ---------------------------------------------------------------------------------------------

    def free_settings_in_force(self, state: StateT) -> dict[str, Any]:
        """The settings that may change after a run, as JSON. If the run chose a value itself, its choice."""
        found: dict[str, Any] = self.config.model_dump(mode="json", include=set(self.free_settings))
        return {name: found[name] for name in self.free_settings}

    # --- for each client --------------------------------------------------------------------------------------------

    def personalise(self, state: StateT, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """Outputs for each client of the block (and for its rows), from the state and the client's own data."""
        raise ConfigError(f"method {self.name!r} has no outputs for single clients.")

    def outlier_distances(self, state: StateT, block: ClientBlock, memory: Memory | None) -> np.ndarray:
        """(C, R) float64: distance of each client from the common model, by component, in units of the distance beyond
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
        """The row of a table of scores (as JSON) by which runs are compared: that of the run's per-client outputs."""
        return next((row for row in rows if row.get("method") == "this run"), rows[0])

    @property
    def can_be_scored(self) -> bool:
        return type(self).score_block is not Method.score_block

    # --- budgets over several runs ----------------------------------------------------------------------------------

    def budget_sketch(self, public: PublicFacts, plan: Sequence[PlannedRelease]) -> dict[str, Any]:
        """Expected utility of a run with this plan, as JSON; made from public facts, no data are opened."""
        return {"rounds": max((planned.round for planned in plan), default=0), "releases": len(plan)}

    def worth(self, public: PublicFacts) -> Worth | None:
        """Expected utility of a run with these facts, for a person who decides about it; made from public facts, no
        data are opened. None if the method cannot predict it.
        """
        return None

    def left_out(self, columns: Features) -> str:
        """Describe which rows a run leaves out without an error; empty if it reads every row or fails at one that it
        cannot read. Uses the settings and the declared columns only."""
        return ""

    def likely_warm_start(self, public: PublicFacts) -> dict[str, np.ndarray] | None:
        """Simulated arrays, of the right shapes, that a run with these facts would leave to the next one. With them the
        runs of a series can be planned one after the other; None if runs do not start warm.
        """
        return None

    def tries(self) -> Mapping[str, Sequence[Any]]:
        """Default values of settings to compare on held-out rows; empty if none are known.
        For methods with a setting `validation`."""
        return {}

    @property
    def held_back_share(self) -> float:
        """The default fraction of rows that is held out when settings are compared."""
        return 0.2

    # --- plans of runs ----------------------------------------------------------------------------------------------

    def likely_rows(self, public: PublicFacts, count: int, generator: np.random.Generator) -> np.ndarray:
        """(count, features) plausible rows, drawn from settings and public facts only. A plan of a private run times
        its rounds with them, because it may not read the clients' rows. By default three groups.
        """
        groups = generator.normal(scale=4.0, size=(3, public.features))
        rows: np.ndarray = groups[generator.integers(3, size=count)] + generator.normal(size=(count, public.features))
        return rows


AnyMethod: TypeAlias = Method[Any, Any]


class NonPrivateMethod(Method[ConfigT, StateT]):
    """A method that releases exact sums. It only has to state why it is not private."""

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
    """A method that releases noisy values, in all or in some of its settings. Its settings are `PrivateSettings`.

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
