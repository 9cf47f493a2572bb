"""What a file declares besides its deployments and pipelines: the populations that are to be made, their budgets, and
where things are kept. `fedcore up` creates what is missing (`fedcore.operations.creating`).

    [[population]]
    path = "shop"                       # as deployments name it
    source = "orders.csv"               # the first ingest; left out where a pipeline of the file ingests
    client = "customer"                 # and every other option of `fedcore population ingest`
    declared_clients = 4000

    [population.budget]                 # as `fedcore budget set`, `cohorts` and `divide`
    epsilon = 4.0
    delta = 1e-6
    public_schema = "articles of the public catalogue"
    cohorts = true

    [storage]
    ledger = "sqlite:///ledger.sqlite"
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedcore.errors import ConfigError
from fedcore.population.ingest.request import Files, IngestRequest
from fedcore.privacy.ledger.shares import check_shares, read_shares
from fedcore.privacy.plan import CLIENT_PERIOD, Relation, Unit


class DeclaredBudget(BaseModel):
    """The privacy budget of a population. It is set once; a file never changes a budget that is set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epsilon: float = Field(gt=0, le=1e6, description="total epsilon of everything ever released")
    delta: float = Field(gt=0, lt=1, description="total delta; well below 1 / number of clients")
    public_schema: str = Field(
        min_length=1,
        pattern=r"\S",
        description="why the columns or vocabulary, bounds and thresholds of runs are public; statements quote it",
    )
    delta_extra: float | None = Field(
        None, ge=0, lt=1, description="part of delta kept for thresholding steps; none by default"
    )
    relation: Relation = Field("add_or_remove_one", description="against what a client is protected")
    unit: Unit = Field("client", description="privacy unit")
    window: int | None = Field(
        None, ge=1, le=10_000, description="with unit client_period: periods that a run may read; 1 by default"
    )
    cohorts: bool = Field(False, description="keep the budget by cohort: each append opens one, with a whole budget")
    shares: dict[str, float | str] = Field(
        default_factory=dict, description='named parts of the budget, as 0.5 or "1/3"; the rest is undivided'
    )
    shared_ids: str | None = Field(
        None,
        pattern=r"\S",
        description="declaration of ids that are also in other populations of the ledger; statements quote it",
    )
    spent_before: float | None = Field(
        None, ge=0, le=1e6, description="starting charge: rho spent in an account that this version does not read"
    )
    spent_before_reason: str | None = Field(None, pattern=r"\S", description="where that rho comes from")

    @model_validator(mode="after")
    def _fitting(self) -> DeclaredBudget:
        if (self.spent_before is None) != (self.spent_before_reason is None):
            raise ValueError("spent_before and spent_before_reason go together")
        if self.window is not None and self.unit != CLIENT_PERIOD:
            raise ValueError(f'window goes with unit = "{CLIENT_PERIOD}"')
        try:
            check_shares(self.parts)
        except ConfigError as error:
            raise ValueError(error.message.rstrip(".")) from None
        return self

    @property
    def parts(self) -> Mapping[str, Fraction]:
        """The shares, exactly as they are written. Raises ConfigError for one that is no part of a budget."""
        return read_shares(f"{name}={part}" for name, part in self.shares.items())


class DeclaredPopulation(IngestRequest):
    """A population of the file: where it is kept, what it is made of, and its budget. The options of an ingest are read
    once, when there is no population yet.
    """

    path: str = Field(min_length=1, description="folder of the population, as deployments and pipelines name it")
    source: Files | None = Field(
        None,
        description="file, folder or pattern of the first ingest (with format sql a query); left out where a pipeline "
        "of the file ingests, or where there is a population",
    )
    budget: DeclaredBudget | None = Field(None, description="its privacy budget, which private runs need")

    @model_validator(mode="after")
    def _read(self) -> DeclaredPopulation:
        if self.source is None and (unread := sorted(self.options)):
            raise ValueError(f"{unread[0]} goes with source: a pipeline has its own options in its step")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The options of its ingest that are given."""
        return {name: getattr(self, name) for name in self.model_fields_set & IngestRequest.model_fields.keys()}


class Storage(BaseModel):
    """Where things are kept."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ledger: str | None = Field(
        None,
        pattern="://",
        description="URL of the ledger that new populations name, unless FEDCORE_LEDGER is set; the user's own by "
        "default. A path after sqlite:/// is taken from the file's folder",
    )
    ui_days: float | None = Field(
        None,
        ge=1 / 24,
        le=36_600,
        description="days after which artifacts of flow runs that ended are removed, but for the newest of each; by "
        "default 30 on a Prefect server that fedcore starts, and never on another one",
    )
    keep_blocks_bytes: int = Field(
        0, ge=0, le=2**62, description="decoded client data to keep on this machine's disk for later runs, bytes"
    )
