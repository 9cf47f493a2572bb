"""What a training run is asked to do, and what becomes of the runs of a deployment."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedcore.errors import ConfigError
from fedcore.methods.names import canonical
from fedcore.methods.registry import explain
from fedcore.privacy.ledger.shares import NAME
from fedcore.rounds.clients import DEFAULT_CACHE_BYTES, MOST_CACHE_BYTES

LARGEST_SEED = 2**63 - 1
SHARE_NAME = rf"^{NAME.pattern}$"


class Series(BaseModel):
    """What becomes of the runs of a deployment once they have finished (`fedcore.operations.series`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    retention: int | None = Field(
        None, ge=1, le=1_000_000, description="finished runs whose model is kept; None: all of them"
    )
    evaluate_on: str | None = Field(
        None,
        min_length=1,
        description="a population with a held-out part that its owner declared public for "
        "evaluation; the new run and the latest one are scored on it",
    )
    promote: Literal["always", "if_better", "never"] = Field(
        "always", description="when a finished run becomes the latest one of its deployment"
    )
    tolerance: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="by how much of the score (nats; lower is better) a new run may be "
        "worse and still count as no worse",
    )

    @model_validator(mode="after")
    def _has_a_score(self) -> Series:
        if self.promote == "if_better" and self.evaluate_on is None:
            raise ValueError('promote = "if_better" needs evaluate_on, the public population to compare on')
        if self.tolerance and self.promote != "if_better":
            raise ValueError('tolerance goes with promote = "if_better"')
        return self


class TrainRequest(BaseModel):
    """What a training run is asked to do; the same for the command line, a flow and a deployment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Annotated[str, AfterValidator(canonical)] = Field(description="name of the method")
    population: str = Field(description="folder or URL of the population")
    settings: dict[str, Any] = Field(
        default_factory=dict, description="settings of the method; unset ones take their defaults"
    )
    runs: str = Field("runs", description="folder or URL of the runs")
    run_id: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$", description="name of the run")
    version: int | None = Field(None, ge=1, le=2**31, description="version of the population; the newest by default")
    start_from: str | None = Field(
        None,
        min_length=1,
        description="folder or URL of a run, or .npz file of arrays, whose centres the run starts "
        'from; "previous": the newest finished run of the same method, population and deployment among the runs',
    )
    public_start_because: str | None = Field(
        None, min_length=1, description="why the start is public, if it is not the outcome of a private run"
    )
    public_arrival_because: str | None = Field(
        None,
        min_length=1,
        pattern=r"\S",
        description="why the arrival of files is public, where whether the run happens, or which clients came with "
        "which append, follows from it",
    )
    share: str | None = Field(
        None, pattern=SHARE_NAME, description="share of the population's budget to charge, where it is divided"
    )
    deployment: str | None = Field(None, description="name of the deployment that asks for the run")
    series: Series | None = Field(None, description="what becomes of the runs of that deployment")
    seed: int = Field(
        0, ge=0, le=LARGEST_SEED, description="seed for simulation randomness; privacy noise does not use it"
    )
    cache_bytes: int = Field(
        DEFAULT_CACHE_BYTES, ge=0, le=MOST_CACHE_BYTES, description="decoded blocks that each process may keep, bytes"
    )
    test_noise: str | None = Field(
        None, min_length=1, description="key of pseudo-random noise; makes the run not private, and needs a test ledger"
    )

    @classmethod
    def read(cls, remedy: str = "", **asked: Any) -> TrainRequest:
        """The request of what a person wrote. remedy: where to read what may be asked. Raises ConfigError."""
        try:
            return cls(**asked)
        except ValidationError as error:
            raise ConfigError(f"the run cannot be made: {explain(error)}", remedy) from None
