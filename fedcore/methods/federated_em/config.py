"""Settings of the method `federated_em`: an algorithm and a model, each with its own settings."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedcore.methods.federated_em.variant import Variant
from fedcore.methods.mixture_models.student import LEAST_DEGREES
from fedcore.methods.mixture_models.validation import LARGEST_SHARE
from fedcore.rounds.choices import ChoiceSettings
from fedcore.rounds.private_settings import PrivateRunSettings

PASSES = 10  # reads of all rows: one for the sample, one for the last objective, and E-steps between
TOLERANCE = 1e-4  # nats a row and pass
ROUNDS, REDUCED_ROUNDS, PRIVATE_ROUNDS = 100, 300, 30
PRIVATE_GAMMA = 0.5
PSEUDO_ROWS = 1e-3
CANDIDATES = (PSEUDO_ROWS, 0.1, 1.0)  # pseudo-rows that "auto" tries
DEGREES_TRIED = (3.0, 5.0, 10.0, 30.0)  # degrees of freedom of Student-t components that "auto" tries
AUTO_SHARE = 0.2  # of the rows, on which it compares them
STARTS_OF_EM = 4
REGULARISATION = 1e-3  # of models whose penalty is a share of the data
SMALLEST_SHARE = 1e-8  # of a penalty that is not 0: below it columns that determine each other drown in rounding
BATCH_GAMMA = 0.3  # an upper bound: the noise of a batch does not die with the compression's
NATURAL_GAMMA = 1.5  # over-relaxed: the table in docs/federated-em.md says what that saves
REDUCED_GAMMA = 0.5  # an upper bound for VR-FedEM, whose estimates drift between two full passes
LEVELS = 4
OWN = Variant()

Covariance = Literal["full", "tied", "diag", "spherical", "known"]
PseudoRows = Annotated[float, Field(ge=0, le=1e6)] | Literal["auto"] | None
CodecName = Literal["natural", "identity", "dithering"]
Codec = CodecName | Annotated[int, Field(ge=1, le=2**20)]
Rank = Annotated[int, Field(ge=1, le=10_000)]
MOST_CHOSEN = 64  # components
NO_LIMIT = -1.0  # a chosen rank that is none


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


# --- models -----------------------------------------------------------------------------------------------------------
# Constants stand where a model does not have the setting.


class Mixture(Part):
    components: Annotated[int, Field(ge=1, le=1000)] | Literal["auto"] = Field(
        3,
        description="components G of a mixture; auto, of em: 1, 2, 4 ... as long as held-out cells, or rows where none "
        "is missing, are fitted better",
    )
    rank: ClassVar[int | None] = None
    table_rows: ClassVar[int | None] = None


class Penalised(Part):
    pseudo_rows: PseudoRows = Field(
        None,
        description="penalty in rows: as if that many rows of the pooled variances were added to each scatter, and to "
        f"the inputs of regressions; auto: the best of {', '.join(f'{nu:g}' for nu in CANDIDATES)} for rows that take "
        f"no part meanwhile: by em rows of its sample, else {AUTO_SHARE:.0%} of each client's rows, "
        f"after 20 uncompressed EM steps with each; None: auto for Gaussians by em, else {PSEUDO_ROWS}. A private run "
        "has a fixed penalty",
    )


class Gaussians(Mixture, Penalised):
    """A mixture of Gaussians."""

    name: Literal["gaussian"] = "gaussian"
    covariance: Covariance = Field(
        "full",
        description="covariances of Gaussians: one each, one for all, only variances, one variance; known: the "
        "identity, for rows that are whitened already",
    )
    tails: Literal["normal", "auto"] | Annotated[float, Field(gt=LEAST_DEGREES, le=1e6)] = Field(
        "normal",
        description="of the components, by em: normal; Student-t with this many degrees of freedom, above 2; auto: "
        f"normal, or the best of {', '.join(f'{nu:g}' for nu in DEGREES_TRIED)} degrees for held-out rows of the "
        "sample; with a given start those of the run that it is from. Not for covariances tied and known",
    )
    kind: ClassVar[Literal["rows"]] = "rows"


class Regressions(Mixture, Penalised):
    """A mixture of linear regressions; the response is the last column."""

    name: Literal["regression"] = "regression"
    covariance: ClassVar[Covariance] = "full"
    kind: ClassVar[Literal["rows"]] = "rows"


class Counts(Mixture):
    """A mixture of Poisson, multinomial or Bernoulli counts."""

    name: Literal["poisson", "multinomial", "bernoulli"] = "poisson"
    kind: Literal["rows", "counts"] = Field(
        "rows",
        description="kind of population; counts: a client's token counts are its only row, and the run is not private",
    )
    covariance: ClassVar[Covariance] = "full"
    pseudo_rows: ClassVar[PseudoRows] = None


class Imputer(Penalised):
    """One Gaussian behind rows with missing entries."""

    name: Literal["gaussian_imputer"] = "gaussian_imputer"
    rank: Rank | Literal["auto"] | None = Field(
        None, description="factors; None: no limit; auto, of em: the number that suits held-out cells best"
    )
    components: ClassVar[int] = 1
    covariance: ClassVar[Covariance] = "full"
    kind: ClassVar[Literal["rows"]] = "rows"
    table_rows: ClassVar[int | None] = None


class Tables(Part):
    """One low-rank table behind incomplete tables. Not for private runs."""

    name: Literal["gaussian_tables", "poisson_tables", "bernoulli_tables"] = "gaussian_tables"
    table_rows: int = Field(ge=1, description="rows of a table: that many consecutive rows of the population")
    rank: Rank | None = Field(None, description="largest rank of the table; None: no limit")
    nuclear_penalty: Annotated[float, Field(gt=0, le=1e9)] | Literal["auto"] = Field(
        0.5,
        description="lambda of the tables' penalty lambda ||theta||_*; auto, of em: the one that suits held-out cells "
        "best",
    )
    components: ClassVar[int] = 1
    covariance: ClassVar[Covariance] = "full"
    kind: ClassVar[Literal["rows"]] = "rows"
    pseudo_rows: ClassVar[PseudoRows] = None


Model = Annotated[Gaussians | Regressions | Counts | Imputer | Tables, Field(discriminator="name")]


# --- algorithms -------------------------------------------------------------------------------------------------------


class NotPrivate(Part):
    """What all algorithms but the private one have."""

    start: Literal["kmeans++", "random", "given"] = Field(
        "kmeans++",
        description="first centres: rows drawn far from each other, rows drawn uniformly, or parameters given from "
        "outside",
    )
    restarts: int | None = Field(
        None,
        ge=1,
        le=100,
        description="starts that are compared: by em of mixtures on a sample; by fedem with the codec natural in 20 "
        f"rounds of the run; else in 20 uncompressed EM steps; None: {STARTS_OF_EM} for mixtures by em, and by fedem "
        "with the codec natural and no batches, else 1",
    )
    validation: float = Field(
        0.0,
        ge=0,
        le=LARGEST_SHARE,
        description="fraction of each client's rows that is held out; their loss is among the metrics. Clients with "
        "one or two rows keep them for training. For tables, a fraction of the observed cells; not for counts",
    )
    weights: Literal["rows", "clients"] = Field(
        "rows", description="weight of a client in the objective: its fraction of the rows, or the same for all clients"
    )
    tol: float | None = Field(
        None,
        ge=0,
        description="nats per row: the run ends when a pass of em gains less, or a round of the others on average "
        f"between two evaluations; 0: all rounds are made; None: {TOLERANCE:g} for em except tables, else 0",
    )


class Weighted(Part):
    weight_column: int | None = Field(
        None,
        ge=0,
        description="column of the rows, counted from 0, with the weight of a row, 0 or more; a row of weight 2 counts "
        "like two rows. The model sees the other columns, and the response of regressions is the last of them. None: "
        "all rows count once. Not for counts, tables and batches",
    )


class Compressed(NotPrivate):
    """What FedEM and VR-FedEM have."""

    codec: Codec | None = Field(
        None,
        description="compressor of messages; natural: one step for all numbers, in units of likelihood, for mixtures "
        f"alone; dithering: {LEVELS} levels of each part of the statistic relative to its norm, or as many as a number "
        "says; None: natural for mixtures, else dithering",
    )
    batch: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="rows that a client draws in a round, with replacement; None: all its rows, for vr-fedem a "
        "twentieth of the mean client's rows, at least 32 of them",
    )
    rounds: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description=f"rounds; None: {ROUNDS}, for vr-fedem {REDUCED_ROUNDS}; in a private run {PRIVATE_ROUNDS}",
    )
    gamma: float | None = Field(
        None,
        gt=0,
        le=2,
        description="step in the space of statistics; None: min(1, p sqrt(n) / (2 (1 + omega) sqrt(omega_p))), with "
        f"the codec natural 1, and {NATURAL_GAMMA} once a step gains little; at most {BATCH_GAMMA} with batches and "
        f"{REDUCED_GAMMA} for vr-fedem; all are halved when steps are often cut back; {PRIVATE_GAMMA} in a private run",
    )


class FedEM(Compressed, Weighted):
    """Compressed differences to client memories (Algorithm 1)."""

    name: Literal["fedem"] = "fedem"
    participation: float = Field(
        1.0,
        gt=0,
        le=1,
        description="expected fraction p of clients in a round, drawn independently; with the codec natural all "
        "clients answer until a step gains little, about ten rounds",
    )
    accelerated: ClassVar[bool] = False


class VRFedEM(Compressed):
    """FedEM with variance reduction (Algorithm 2)."""

    name: Literal["vr-fedem"] = "vr-fedem"
    participation: ClassVar[float] = 1.0
    weight_column: ClassVar[int | None] = None
    accelerated: ClassVar[bool] = False


class Exact(NotPrivate, Weighted):
    """What exact EM has in every form."""

    name: Literal["em"] = "em"
    codec: ClassVar[Codec | None] = "identity"
    participation: ClassVar[float] = 1.0
    batch: ClassVar[int | None] = None


class EM(Exact):
    """Exact sums; mixtures and the imputer by accelerated steps."""

    max_passes: int | None = Field(
        None,
        ge=3,
        le=1_000_000,
        description="reads of all rows: the first, one for each step, and the last. EM of tables needs two, and makes "
        f"max_passes - 2 steps between them; None: {PASSES}, for tables {ROUNDS + 2}",
    )
    gamma: ClassVar[float | None] = None
    accelerated: ClassVar[bool] = True

    @property
    def rounds(self) -> int | None:
        """Steps over all rows."""
        return None if self.max_passes is None else self.max_passes - 2


class PrivateEM(PrivateRunSettings):
    """Clipped statistics with noise, without memories, from public parameters. Each client counts once."""

    name: Literal["private"] = "private"
    rounds: int = Field(PRIVATE_ROUNDS, ge=1, le=1_000_000, description="rounds")
    gamma: float = Field(PRIVATE_GAMMA, gt=0, le=2, description="step in the space of statistics")
    clip: float = Field(3.0, ge=1e-6, le=1e6, description="L2 clip C of a client's scaled statistic minus S_k")
    record_bound: float | None = Field(
        None, gt=0, le=1e9, description="L2 bound of a standardised row; None: 3 sqrt(columns)"
    )
    codec: ClassVar[Codec | None] = "identity"
    participation: ClassVar[float] = 1.0
    batch: ClassVar[int | None] = None
    tol: ClassVar[float | None] = 0.0
    start: ClassVar[Literal["given"]] = "given"
    restarts: ClassVar[int | None] = 1
    validation: ClassVar[float] = 0.0
    weights: ClassVar[Literal["clients"]] = "clients"
    weight_column: ClassVar[int | None] = None
    accelerated: ClassVar[bool] = False


Algorithm = Annotated[FedEM | VRFedEM | EM | PrivateEM, Field(discriminator="name")]


# --- both -------------------------------------------------------------------------------------------------------------


class FederatedEMConfig(ChoiceSettings):
    """FedEM and VR-FedEM (Dieuleveut, Fort, Moulines, Robin 2021), EM, and a private variant.

    None means "by the algorithm"; each description says what that is. Settings of both may be given in one
    list: {"algorithm": "em", "components": 5}.
    """

    algorithm: Algorithm = Field(
        FedEM(),
        description="fedem: compressed differences to client memories (Algorithm 1); vr-fedem: with variance reduction "
        "(Algorithm 2); em: exact, uncompressed; private: clipped statistics with noise, without memories",
    )
    model: Model = Field(
        Gaussians(),
        description="mixture of Gaussians, of linear regressions (the response is the last column), or of Poisson, "
        "multinomial or Bernoulli counts; one Gaussian with missing entries; one low-rank table behind incomplete ones",
    )

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        algorithm, model = self.algorithm, self.model
        counts, tables = model.kind == "counts", isinstance(model, Tables)
        weighted = self.weight_column is not None
        heavy = self.tails != "normal"
        for wrong, text in (
            (heavy and not algorithm.accelerated, f"tails = {self.tails} is for the algorithm em"),
            (
                heavy and model.covariance in ("tied", "known"),
                f"tails = {self.tails} is for covariances full, diag and spherical, not {model.covariance}",
            ),
            (self.natural and not self.mixture, f"natural units are of mixtures, not of {model.name}"),
            (self.natural and not self.variant.memories, "natural units need memories"),
            (weighted and (counts or tables), "weight_column is for rows of mixtures and of gaussian_imputer"),
            (weighted and algorithm.batch is not None, "batches are drawn of rows without weights"),
            (self.private and (counts or tables), "a private run reads rows, not counts or tables"),
            (
                self.private and model.pseudo_rows is not None,
                "pseudo_rows is not for a private run, whose penalty is fixed",
            ),
            (counts and algorithm.validation > 0, "validation is for rows, not for counts"),
            (
                self.undecided is not None and not (algorithm.accelerated and algorithm.start != "given"),
                f"{self.undecided} = auto is for the algorithm em without a given start",
            ),
        ):
            if wrong:
                raise ValueError(text)
        return self

    # what may be chosen by the run

    @property
    def undecided(self) -> str | None:
        """The setting of the model that the run chooses; None if there is none."""
        for name in ("components", "rank", "nuclear_penalty"):
            if getattr(self.model, name, None) == "auto":
                return name
        return None

    def decided(self, chosen: float) -> Self:
        """The settings with the number that was chosen; 0: with one that stands for it, before it is."""
        values: dict[str | None, float | int | None] = {
            "components": int(chosen) or MOST_CHOSEN,
            "rank": int(chosen) if chosen > 0 else None,
            "nuclear_penalty": chosen or 1.0,
        }
        if self.undecided is None:
            return self
        return self.model_copy(update={"model": self.model.model_copy(update={self.undecided: values[self.undecided]})})

    def chosen_in_words(self, name: str | None) -> str:
        """One sentence: what a run chose for this setting."""
        if name is None:
            return ""
        if name == "components":
            return f"Chosen: {self.components} component{'s' * (self.components > 1)}."
        if name == "rank":
            return "Chosen: no limit of the rank." if self.model.rank is None else f"Chosen: rank {self.model.rank}."
        return f"Chosen: a nuclear penalty of {cast(Tables, self.model).nuclear_penalty:.3g}."

    def tails_in_words(self, degrees: float | None) -> str:
        """One sentence: the tails of the components, where they may be heavy. degrees: of freedom; None: normal."""
        if self.tails == "normal":
            return ""
        chosen = "Chosen: c" if self.tails == "auto" else "C"
        if degrees is None:
            return f"{chosen}omponents are normal."
        return f"{chosen}omponents are Student-t with {degrees:g} degrees of freedom."

    @property
    def tails(self) -> Literal["normal", "auto"] | float:
        """The setting, which other models than Gaussians do not have."""
        return self.model.tails if isinstance(self.model, Gaussians) else "normal"

    @property
    def degrees(self) -> float | None:
        """Degrees of freedom of the components, if the settings say them; None: they are normal, or to be chosen."""
        return None if isinstance(self.tails, str) else self.tails

    @property
    def components(self) -> int:
        """Raises TypeError while the number is not chosen."""
        if isinstance(self.model.components, str):
            raise TypeError("the number of components is not chosen yet")
        return self.model.components

    @property
    def variant(self) -> Variant:
        """What is no setting."""
        return OWN

    @property
    def private(self) -> bool:
        return isinstance(self.algorithm, PrivateEM)

    @property
    def private_run(self) -> PrivateEM:
        """The settings of a private run. Raises TypeError for another."""
        if not isinstance(self.algorithm, PrivateEM):
            raise TypeError(f"{self.algorithm.name} is not private")
        return self.algorithm

    @property
    def variance_reduced(self) -> bool:
        return isinstance(self.algorithm, VRFedEM)

    @property
    def mixture(self) -> bool:
        """Whether the model has components."""
        return isinstance(self.model, Mixture)

    # rows

    @property
    def weight_column(self) -> int | None:
        return self.algorithm.weight_column

    @property
    def rows_per_observation(self) -> int:
        """Rows of the population that are one observation of the model: those of a table, else 1."""
        return self.model.table_rows or 1

    def columns(self, features: int) -> int:
        """Columns that the model sees, of this many in the population."""
        return features - (self.weight_column is not None)

    def population_column(self, column: int) -> int:
        """The number in the population of a column that the model sees."""
        return column + (self.weight_column is not None and column >= self.weight_column)

    @property
    def by_rows(self) -> bool:
        """Whether a client weighs as much as its rows."""
        return self.algorithm.weights == "rows"

    # messages

    @property
    def codec_name(self) -> CodecName:
        codec = self.algorithm.codec
        if codec is None:
            return "natural" if self.mixture and self.variant.memories else "dithering"
        return "dithering" if isinstance(codec, int) else codec

    @property
    def levels(self) -> int:
        """Of dithering."""
        return self.algorithm.codec if isinstance(self.algorithm.codec, int) else LEVELS

    @property
    def natural(self) -> bool:
        """Whether messages are in natural units; memories then hold the clients' statistics themselves."""
        return self.codec_name == "natural"

    @property
    def follows_em(self) -> bool:
        """Whether rounds take EM's own steps, kept inside the domain component by component, and no step is halved: of
        all rows, in natural units."""
        full = isinstance(self.algorithm, FedEM) and self.algorithm.batch is None
        return full and self.natural and self.variant.safeguards

    @property
    def sends_statistic(self) -> bool:
        """Whether the server sends S_k and not only T(S_k): natural units need it of regressions alone."""
        return not self.natural or isinstance(self.model, Regressions)

    @property
    def fills_memories(self) -> bool:
        """Whether a pass gives the memories their first values, if there are memories."""
        return isinstance(self.algorithm, Compressed) and self.variant.memories and not self.natural

    def memory_rate(self, omega: float) -> float:
        """alpha."""
        return 1 / (1 + omega) if self.variant.memories else 0.0

    # steps

    @property
    def accelerated(self) -> bool:
        """Whether the steps over all rows are accelerated EM, which ends by itself."""
        return self.algorithm.accelerated and not self.fits_cells

    @property
    def all_rounds(self) -> int:
        if self.algorithm.rounds is not None:
            return self.algorithm.rounds
        if self.variance_reduced:  # most of them see a twentieth of the rows
            return REDUCED_ROUNDS
        return PASSES - 2 if self.accelerated else ROUNDS

    @property
    def least_gain(self) -> float:
        """Nats a row and round: a run that gains less ends."""
        if self.algorithm.tol is not None:
            return self.algorithm.tol
        return TOLERANCE if self.accelerated else 0.0

    def step(self, omega: float, effective_clients: float) -> float:
        """gamma_0: as given, or the practical rule with omega_p = omega + (1 + omega)(1 - p) / p. The steps of the
        theorems need constants that are unknown, and that for mixtures are not finite."""
        if self.algorithm.gamma is not None:
            return self.algorithm.gamma
        p = self.algorithm.participation
        omega_p = omega + (1 + omega) * (1 - p) / p
        rule = 1.0
        if self.natural:  # absent clients are known by what they sent last: nothing is divided by p
            rule = NATURAL_GAMMA
        elif omega_p > 0:
            rule = min(1.0, 0.5 * p * math.sqrt(effective_clients) / ((1 + omega) * math.sqrt(omega_p)))
        if self.variance_reduced:
            return min(rule, REDUCED_GAMMA)
        return min(rule, BATCH_GAMMA) if self.algorithm.batch is not None else rule

    # starts and penalties

    @property
    def searches(self) -> bool:
        """Whether the run begins with a search on a sample of the rows."""
        return self.accelerated and self.algorithm.start != "given"

    @property
    def fits_cells(self) -> bool:
        """Whether all steps follow the first pass: those of exact EM of tables, from the moments of the cells."""
        return self.algorithm.accelerated and isinstance(self.model, Tables)

    @property
    def starts_tried(self) -> int:
        if self.algorithm.accelerated and not self.mixture:  # which have one start
            return 1
        if self.algorithm.restarts is not None:
            return self.algorithm.restarts
        compares = isinstance(self.algorithm, Exact) or self.follows_em
        return STARTS_OF_EM if compares and self.algorithm.start != "given" and self.mixture else 1

    @property
    def tries_penalties(self) -> bool:
        """Whether a phase of the run chooses the pseudo-rows."""
        if self.model.pseudo_rows is not None or self.variant.regularisation is not None:
            return self.model.pseudo_rows == "auto"
        exact = isinstance(self.algorithm, Exact) and self.algorithm.start != "given"
        return exact and isinstance(self.model, Gaussians) and self.model.covariance != "known"

    def penalty_share(self, rows: float, chosen: float = PSEUDO_ROWS) -> float | None:
        """The penalty as a share of the data, from pseudo-rows over the rows N; None if it does not depend on N.

        chosen: pseudo-rows where the settings name no number
        """
        if self.private or self.variant.regularisation is not None or not isinstance(self.model, Penalised):
            return None
        own = self.model.pseudo_rows
        wanted = own if isinstance(own, float | int) else chosen
        return max(wanted / rows, SMALLEST_SHARE) if wanted else 0.0

    @property
    def fixed_share(self) -> float:
        """The penalty as a share of the data where it does not depend on their number."""
        share = self.variant.regularisation
        return REGULARISATION if share is None else share
