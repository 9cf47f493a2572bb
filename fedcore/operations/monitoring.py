"""What is monitored of runs, and how: the table `[monitoring]` of a deployment file, and the part that a run needs."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from fedcore.operations.schedule import MOST_SECONDS

RUNS_LEFT = 5


class RunMonitoring(BaseModel):
    """What a run needs to know of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    runs_left: int = Field(
        RUNS_LEFT, ge=0, le=1_000_000, description="with this many runs left, or fewer, the budget is low"
    )
    metrics_file: str | None = Field(
        None, min_length=1, description="text file of Prometheus with numbers about the run"
    )


class Monitoring(BaseModel):
    """Of the deployments of a file, or of one of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    runs_left: int = Field(
        RUNS_LEFT, ge=0, le=1_000_000, description="with this many runs left, or fewer, the budget is low"
    )

    late: float = Field(
        900.0, ge=1, le=MOST_SECONDS, description="seconds after its time a start that has not happened is missed"
    )
    hanging: float = Field(
        10.0, ge=2, le=1e6, description="usual round times without a committed round, after which a run is stalled"
    )
    patience: float = Field(
        600.0, ge=1, le=MOST_SECONDS, description="seconds without a committed round that are never too long"
    )

    metrics: str | None = Field(None, min_length=1, description="folder in which each deployment has a file of metrics")

    def of_run(self, deployment: str) -> RunMonitoring:
        """The part that the runs of a deployment need."""
        file = None if self.metrics is None else f"{self.metrics.rstrip('/')}/fedcore-{deployment}.prom"
        return RunMonitoring(runs_left=self.runs_left, metrics_file=file)
