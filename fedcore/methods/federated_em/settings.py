"""What can be set of a federated EM run, and what follows from it where nothing is set."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedcore.methods.federated_em.belonging import Only
from fedcore.methods.federated_em.variant import Variant
from fedcore.methods.mixture_models.validation import LARGEST_SHARE
from fedcore.rounds.private_settings import PrivateRunSettings

COUNT_MODELS = ("poisson", "multinomial", "bernoulli")
TABLES = ("gaussian_tables", "poisson_tables", "bernoulli_tables")
PENALISED_BY_ROWS = ("gaussian", "regression", "gaussian_imputer")
WITH_RANK = ("gaussian_imputer", *TABLES)
MIXTURES = ("gaussian", "regression", *COUNT_MODELS)
COMPRESSED = ("fedem", "vr-fedem")
NOT_PRIVATE = ("em", *COMPRESSED)
PASSES = 10  # reads of all rows: one for the sample, one for the last objective, and E-steps between
TOLERANCE = 1e-4  # nats a row and pass
ROUNDS, REDUCED_ROUNDS, PRIVATE_ROUNDS = 100, 300, 30
PRIVATE_GAMMA = 0.5
PSEUDO_ROWS = 1e-3
CANDIDATES = (PSEUDO_ROWS, 0.1, 1.0)  # pseudo-rows that "auto" tries
AUTO_SHARE = 0.2  # of the rows, on which it compares them
STARTS_OF_EM = 4
REGULARISATION = 1e-3  # of models whose penalty is a share of the data
SMALLEST_SHARE = 1e-8  # of a penalty that is not 0: below it columns that determine each other drown in rounding
BATCH_GAMMA = 0.3  # an upper bound: the noise of a batch does not die with the compression's
NATURAL_GAMMA = 1.5  # over-relaxed: the table in docs/federated-em.md says what that saves
REDUCED_GAMMA = 0.5  # an upper bound for VR-FedEM, whose estimates drift between two full passes
LEVELS = 4
OWN = Variant()


class Settings(PrivateRunSettings):
    """The fields, each in its range. `fedcore.methods.federated_em.config.FederatedEMConfig` holds them together."""

    algorithm: Literal["fedem", "vr-fedem", "em", "private"] = Field(
        "fedem",
        description="fedem: compressed differences to client memories (Algorithm 1); vr-fedem: with variance reduction "
        "(Algorithm 2); em: exact, uncompressed; private: clipped statistics with noise, without memories",
    )

    # the model
    model: Literal[
        "gaussian",
        "regression",
        "poisson",
        "multinomial",
        "bernoulli",
        "gaussian_imputer",
        "gaussian_tables",
        "poisson_tables",
        "bernoulli_tables",
    ] = Field(
        "gaussian",
        description="mixture of Gaussians, of linear regressions (the response is the last column), or of Poisson, "
        "multinomial or Bernoulli counts; one Gaussian with missing entries; one low-rank table behind incomplete ones",
    )
    kind: Annotated[Literal["rows", "counts"], Only(models=COUNT_MODELS, algorithms=NOT_PRIVATE)] = Field(
        "rows",
        description="population that is read; counts (a client's token counts are its only row) is for "
        "poisson, multinomial and bernoulli",
    )
    components: int = Field(3, ge=1, le=1000, description="components G of a mixture")
    covariance: Annotated[Literal["full", "tied", "diag", "spherical", "known"], Only(models=("gaussian",))] = Field(
        "full",
        description="covariances of the model gaussian: one each, one for all, only variances, one variance; "
        "known: the identity, for rows that are whitened already",
    )
    pseudo_rows: Annotated[
        Annotated[float, Field(ge=0, le=1e6)] | Literal["auto"] | None,
        Only(models=PENALISED_BY_ROWS, algorithms=NOT_PRIVATE),
    ] = Field(
        None,
        description="penalty of gaussian, regression and gaussian_imputer, in rows: as if so many rows of the pooled "
        "variances were added to each scatter, and to the inputs of regressions; auto: the best of "
        f"{', '.join(f'{nu:g}' for nu in CANDIDATES)} for rows that take no part meanwhile: by em for mixtures rows "
        f"of its sample, else {AUTO_SHARE:.0%} of each client's rows, after 20 uncompressed EM steps with each; None: "
        f"auto for Gaussians by em, else {PSEUDO_ROWS}",
    )
    rank: Annotated[int | None, Only(models=WITH_RANK)] = Field(
        None,
        ge=1,
        le=10_000,
        description="largest rank of the table behind tables, or factors of gaussian_imputer; None: no limit",
    )
    table_rows: Annotated[int | None, Only(models=TABLES, algorithms=NOT_PRIVATE)] = Field(
        None, ge=1, description="rows of a table: so many consecutive rows of the population are one table"
    )
    nuclear_penalty: Annotated[float, Only(models=TABLES)] = Field(
        0.5, gt=0, le=1e9, description="lambda of the tables' penalty lambda ||theta||_*"
    )
    weight_column: Annotated[
        int | None, Only(kinds=("rows",), models=(*MIXTURES, "gaussian_imputer"), algorithms=("fedem", "em"))
    ] = Field(
        None,
        ge=0,
        description="column of the rows, from 0, that says how much a row counts: a number of 0 or more, 2 as if it "
        "were there twice; the model sees the other columns, and the response of regressions is the last of them. "
        "None: all rows count once. Not for counts, tables, batches and private runs",
    )

    # messages
    codec: Annotated[Literal["natural", "identity", "dithering"] | None, Only(algorithms=COMPRESSED)] = Field(
        None,
        description="compressor of messages; natural: one step for all numbers, in units of likelihood, for mixtures "
        "alone; dithering: levels of each part of the statistic relative to its norm; None: natural for mixtures "
        "unless levels are given, else dithering",
    )
    levels: Annotated[int, Only(codecs=("dithering",))] = Field(
        LEVELS, ge=1, le=2**20, description="levels s of dithering"
    )

    # clients
    participation: Annotated[float, Only(algorithms=("fedem",))] = Field(
        1.0,
        gt=0,
        le=1,
        description="expected share p of clients in a round, every client by its own coin; with "
        "the codec natural all clients answer until a step gains little, about ten rounds",
    )
    batch: Annotated[int | None, Only(algorithms=COMPRESSED)] = Field(
        None,
        ge=1,
        le=1_000_000,
        description="rows that a client draws in a round, with replacement; None: all its "
        "rows, for vr-fedem a twentieth of the mean client's rows, at least 32 of them",
    )
    weights: Literal["rows", "clients"] | None = Field(
        None,
        description="weight of a client in the objective: its share of the rows, or one vote each; None: rows, "
        "in a private run clients",
    )

    # steps
    rounds: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description=f"rounds; None: {ROUNDS}, for mixtures by em {PASSES - 2}, which read the rows {PASSES} times at "
        f"most, for vr-fedem {REDUCED_ROUNDS}, in a private run {PRIVATE_ROUNDS}",
    )
    gamma: float | None = Field(
        None,
        gt=0,
        le=2,
        description="step in the space of statistics; None: min(1, p "
        f"sqrt(n) / (2 (1 + omega) sqrt(omega_p))), with the codec natural 1, and {NATURAL_GAMMA} once a step gains "
        f"little; at most {BATCH_GAMMA} with batches and {REDUCED_GAMMA} for vr-fedem; all are halved when steps are "
        f"often cut back; {PRIVATE_GAMMA} in a private run",
    )

    # start and end
    start: Literal["kmeans++", "random", "given"] | None = Field(
        None,
        description="first centres: rows drawn far from each other, rows drawn uniformly, or parameters given "
        "from outside; None: kmeans++, in a private run given",
    )
    restarts: Annotated[int | None, Only(algorithms=NOT_PRIVATE)] = Field(
        None,
        ge=1,
        le=100,
        description="starts that are tried side by side for 20 rounds: by fedem with the codec natural in its own, "
        f"else in plain EM steps, whose messages are not compressed; None: {STARTS_OF_EM} for mixtures by em, and by "
        "fedem with the codec natural and no batches, else 1",
    )
    monitor_every: Annotated[int | None, Only(algorithms=NOT_PRIVATE)] = Field(
        None,
        ge=1,
        description="rounds between two looks at the objective, which cost up to a pass each; None: 10, or "
        "never in a private run",
    )
    validation: Annotated[float, Only(kinds=("rows",), algorithms=NOT_PRIVATE)] = Field(
        0.0,
        ge=0,
        le=LARGEST_SHARE,
        description="share of each client's rows that takes no part in training; their loss is among the metrics. "
        "Clients with one or two rows keep them for training. Of tables a share of the observed cells",
    )
    tolerance: Annotated[float | None, Only(algorithms=NOT_PRIVATE)] = Field(
        None,
        ge=0,
        description="the run ends when the objective falls by less than this per round between two looks at "
        f"it; 0: all rounds are made; None: {TOLERANCE:g} for mixtures by em, else 0",
    )

    # privacy; the budget's settings are those of PrivateRunSettings
    clip: Annotated[float, Only(algorithms=("private",))] = Field(
        3.0, ge=1e-6, le=1e6, description="private: L2 clip C of a client's scaled statistic minus S_k"
    )
    record_bound: Annotated[float | None, Only(algorithms=("private",))] = Field(
        None, gt=0, le=1e9, description="private: L2 bound of a standardised row; None: 3 sqrt(columns)"
    )

    @property
    def variant(self) -> Variant:
        """What is no setting."""
        return OWN

    @property
    def private(self) -> bool:
        return self.algorithm == "private"

    @property
    def variance_reduced(self) -> bool:
        return self.algorithm == "vr-fedem"

    @property
    def rows_per_observation(self) -> int:
        """Rows of the population that are one observation of the model: those of a table, else 1."""
        return self.table_rows or 1

    def columns(self, features: int) -> int:
        """Columns that the model sees, of this many in the population."""
        return features - (self.weight_column is not None)

    def population_column(self, column: int) -> int:
        """The number in the population of a column that the model sees."""
        return column + (self.weight_column is not None and column >= self.weight_column)

    @property
    def least_gain(self) -> float:
        """Nats a row and round: a run that gains less ends."""
        if self.tolerance is not None:
            return self.tolerance
        return TOLERANCE if self.accelerated else 0.0

    @property
    def all_rounds(self) -> int:
        if self.rounds is not None:
            return self.rounds
        if self.variance_reduced:  # most of them see a twentieth of the rows
            return REDUCED_ROUNDS
        if self.accelerated:
            return PASSES - 2
        return PRIVATE_ROUNDS if self.private else ROUNDS

    @property
    def codec_name(self) -> str:
        if self.codec is not None or self.algorithm not in COMPRESSED:
            return self.codec or "identity"
        return "natural" if self.mixture and self.variant.memories and self.levels == LEVELS else "dithering"

    @property
    def natural(self) -> bool:
        """Whether messages are in natural units; memories then hold the clients' statistics themselves."""
        return self.codec_name == "natural"

    @property
    def follows_em(self) -> bool:
        """Whether rounds take EM's own steps, kept inside the domain component by component, and no step is halved: of
        all rows, in natural units."""
        full = self.algorithm == "fedem" and self.batch is None
        return full and self.natural and self.variant.safeguards

    @property
    def sends_statistic(self) -> bool:
        """Whether the server sends S_k beside T(S_k): natural units need it of regressions alone."""
        return not self.natural or self.model == "regression"

    @property
    def start_name(self) -> str:
        return self.start or ("given" if self.private else "kmeans++")

    @property
    def accelerated(self) -> bool:
        """Whether the steps over all rows are accelerated EM, which ends by itself."""
        return self.algorithm == "em" and self.mixture and not self.variant.plain

    @property
    def searches(self) -> bool:
        """Whether the run begins with a search on a sample of the rows."""
        return self.accelerated and self.start_name != "given"

    @property
    def monitoring_interval(self) -> int:
        return self.monitor_every or 10

    @property
    def by_rows(self) -> bool:
        """Whether a client weighs as much as its rows."""
        return self.weights != "clients" and not self.private

    @property
    def mixture(self) -> bool:
        """Whether the model has components."""
        return self.model in MIXTURES

    def penalty_share(self, rows: float, chosen: float = PSEUDO_ROWS) -> float | None:
        """The penalty as a share of the data, from pseudo-rows over the rows N; None if it does not depend on N.

        chosen: pseudo-rows where the settings name no number
        """
        if self.private or self.variant.regularisation is not None or self.model not in PENALISED_BY_ROWS:
            return None
        wanted = self.pseudo_rows if isinstance(self.pseudo_rows, float | int) else chosen
        return max(wanted / rows, SMALLEST_SHARE) if wanted else 0.0

    @property
    def tries_penalties(self) -> bool:
        """Whether a phase of the run chooses the pseudo-rows."""
        if self.pseudo_rows is not None or self.variant.regularisation is not None:
            return self.pseudo_rows == "auto"
        exact = self.algorithm == "em" and self.start_name != "given"
        return exact and self.model == "gaussian" and self.covariance != "known"

    @property
    def starts_tried(self) -> int:
        if self.restarts is not None:
            return self.restarts
        searches = self.algorithm == "em" or self.follows_em
        return STARTS_OF_EM if searches and self.start_name != "given" and self.mixture else 1

    @property
    def fixed_share(self) -> float:
        """The penalty as a share of the data where it does not depend on their number."""
        share = self.variant.regularisation
        return REGULARISATION if share is None else share

    @property
    def fills_memories(self) -> bool:
        """Whether a pass gives the memories their first values, if there are memories."""
        return self.algorithm in COMPRESSED and self.variant.memories and not self.natural

    def memory_rate(self, omega: float) -> float:
        """alpha."""
        return 1 / (1 + omega) if self.variant.memories else 0.0
