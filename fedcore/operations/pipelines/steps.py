"""A pipeline in a deployment file: its steps, in their order, and when each of them is made.

[[pipeline]]
name = "nightly"
population = "population"
schedule = { cron = "0 3 * * *", timezone = "UTC" }

[[pipeline.step]]
do = "ingest"
files = "arrivals/*.csv"                # or by date: "arrivals/%Y-%m-%d/*.csv", with days_back
options = { client = "person" }

[[pipeline.step]]
do = "forget"
after_days = 30

[[pipeline.step]]
do = "train"
deployment = "histograms"               # a [[deployment]] of the file

[[pipeline.step]]
do = "export"                           # or evaluate, personalise
deployment = "histograms"
to = "model.parquet"
when = "if_promoted"
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from fedcore.operations.schedule import MOST_SECONDS, NAME, Scheduled

When = Literal["always", "if_new_files", "if_promoted", "if_grown"]


class _Step(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = Field(None, pattern=NAME, description="distinguishes steps that do the same")


class Ingest(_Step):
    """Append what is new. A file is known by its content: what was ingested before, under any name, is not again."""

    do: Literal["ingest"] = "ingest"
    files: str = Field(min_length=1, description="pattern of the files; %Y, %m, %d and the like are those of the day")
    days_back: int = Field(0, ge=0, le=3660, description="of a pattern by date: days before, for files that come late")
    timezone: str = Field("UTC", description="whose days these are")
    schema_file: str | None = Field(None, min_length=1, description="TOML file that says what a table holds")
    options: dict[str, Any] = Field(default_factory=dict, description="as of `fedcore population ingest`")
    workers: int | None = Field(
        None, ge=1, le=256, description="processes that read a large table in parts, on a server; by default one"
    )
    newcomers: int | None = Field(
        None,
        ge=0,
        le=10**15,
        description="clients that are declared, in public, to come with each append that opens a cohort",
    )
    changed: Literal["refuse", "append"] = Field(
        "refuse", description="a file of a known name and other content: set it aside, or append it as a new one"
    )
    bad_rows: Literal["refuse", "leave_out"] = Field(  # the name in files before 1.0, and in what servers keep
        "refuse",
        validation_alias=AliasChoices("invalid_rows", "bad_rows"),
        description="a file with an invalid row: skip it, or append its other rows",
    )
    quiet_seconds: float = Field(
        60.0, ge=0, le=MOST_SECONDS, description="a file that was written to so lately is left for the next run"
    )

    @property
    def by_date(self) -> bool:
        return "%" in self.files

    @model_validator(mode="after")
    def _dated(self) -> Ingest:
        if self.days_back and not self.by_date:
            raise ValueError("days_back goes with a pattern by date, such as arrivals/%Y-%m-%d/*.csv")
        if taken := sorted({"append", "ledger", "tolerance", "workers", "schema_file"} & self.options.keys()):
            raise ValueError(f"options: {taken[0]!r} is not said here")
        return self


class Forget(_Step):
    """Forget clients by age: all clients in older cohorts (or calendar periods)."""

    do: Literal["forget"] = "forget"
    after_days: int = Field(
        ge=1, le=36_600, description="days after which a cohort, or a period that has ended, is forgotten"
    )


class _OfDeployment(_Step):
    deployment: str = Field(pattern=NAME, description="name of a [[deployment]] of the file")
    when: When | None = Field(
        None,
        description="whether it follows from what was done or declared before; by default if_grown for private "
        "trainings, and always for everything else",
    )
    of: str | None = Field(
        None, pattern=NAME, description="with if_promoted: the deployment whose run must have become the latest one"
    )

    @model_validator(mode="after")
    def _which(self):
        if self.of is not None and self.when != "if_promoted":
            raise ValueError('`of` goes with when = "if_promoted"')
        return self

    @property
    def decider(self) -> str:
        """With if_promoted: whose run decides."""
        return self.of or self.deployment


class Train(_OfDeployment):
    """Train, compare, promote and prune, as the deployment says."""

    do: Literal["train"] = "train"

    @model_validator(mode="after")
    def _another(self):
        if self.when == "if_promoted" and self.of in (None, self.deployment):
            raise ValueError("a training that follows a promotion names another deployment's: of = NAME")
        return self


class Evaluate(_OfDeployment):
    """Score the latest run of a deployment on a population that its owner declared public for evaluation."""

    do: Literal["evaluate"] = "evaluate"
    on: str = Field(min_length=1, description="folder or URL of that population")


class Export(_OfDeployment):
    """Write what the latest run of a deployment has learnt to one file, which is replaced."""

    do: Literal["export"] = "export"
    to: str = Field(min_length=1, description="file, by its ending as of `fedcore export`")
    table: str | None = Field(None, min_length=1, description="of .csv and .parquet: which table")


class Personalise(_OfDeployment):
    """Write each client's own output of the latest run of a deployment, for the newest version of the population."""

    do: Literal["personalise"] = "personalise"
    to: str = Field(min_length=1, description="folder, in which RUN-vVERSION.ENDING is made")
    ending: Literal["parquet", "csv", "zarr"] = "parquet"
    settings: dict[str, Any] = Field(default_factory=dict, description="as of `fedcore predict --set`")


Step = Annotated[Ingest | Forget | Train | Evaluate | Export | Personalise, Field(discriminator="do")]
OfDeployment = Train | Evaluate | Export | Personalise


class Pipeline(Scheduled):
    """Steps on one population, in their order."""

    name: str = Field(pattern=NAME)
    population: str = Field(min_length=1, description="folder or URL of the population")
    runs: str = Field("runs", description="folder or URL in which the journal of the pipeline is kept")
    files_are_public_because: str | None = Field(
        None,
        pattern=r"\S",
        description="why the arrival of files, and whether they can be read, reveals nothing about the clients",
    )
    step: list[Step] = Field(min_length=1)

    @model_validator(mode="after")
    def _steps(self) -> Pipeline:
        labels = self.labels
        if twice := sorted({label for label in labels if labels.count(label) > 1}):
            raise ValueError(f"there are two steps {twice[0]!r}: give them names")
        for kind in ("ingest", "forget"):
            if sum(step.do == kind for step in self.step) > 1:
                raise ValueError(f"a pipeline has one step {kind!r} at most")
        return self

    @property
    def labels(self) -> list[str]:
        """What each step is called, in their order."""
        return [label(step) for step in self.step]

    @property
    def ingests(self) -> bool:
        """Whether it makes, or adds to, its population."""
        return any(isinstance(step, Ingest) for step in self.step)

    def labelled(self, called: str) -> Step:
        """The step of this label. Raises KeyError."""
        return dict(zip(self.labels, self.step, strict=True))[called]


def label(step: Step) -> str:
    """What a step is called on pages and in the journal."""
    if step.name is not None:
        return step.name
    return f"{step.do}-{step.deployment}" if isinstance(step, OfDeployment) else step.do
