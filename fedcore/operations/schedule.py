"""When something is run and on which machine: what deployments and pipelines have in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from fedcore.rounds.clients import DEFAULT_CACHE_BYTES, MOST_CACHE_BYTES

MOST_SECONDS = 10 * 366 * 86_400.0  # ten years, of any setting in seconds; further times overflow a calendar's
NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"


class Schedule(BaseModel):
    """Exactly one of cron, interval and rrule. timezone goes with cron and rrule."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cron: str | None = None
    interval: float | None = Field(None, ge=1, le=MOST_SECONDS, description="seconds between starts")
    rrule: str | None = None
    timezone: str = "UTC"

    @model_validator(mode="after")
    def _one(self):
        if sum(value is not None for value in (self.cron, self.interval, self.rrule)) != 1:
            raise ValueError("give exactly one of cron, interval and rrule")
        return self

    @property
    def in_words(self) -> str:
        return f"every {self.interval:g} s" if self.interval else f"{self.cron or self.rrule} ({self.timezone})"


class Compute(BaseModel):
    """Where the clients are answered."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workers: int | None = Field(
        None,
        ge=1,
        le=256,
        description="worker processes of the local cluster; by default 2, and none for a "
        "population that could be one block",
    )
    dask: str | None = Field(None, description="address of a running Dask scheduler, instead of a local cluster")
    cache_bytes: int = Field(
        DEFAULT_CACHE_BYTES, ge=0, le=MOST_CACHE_BYTES, description="decoded blocks that each worker may keep, bytes"
    )


def _which(given: Any) -> str:
    return "several" if isinstance(given, list) else "one"


Schedules = Annotated[
    Annotated[Schedule, Tag("one")] | Annotated[list[Schedule], Tag("several")], Discriminator(_which)
]  # distinguished before they are read, so that an error names what is wrong in the one that was meant


class Scheduled(BaseModel):
    """Settings of everything that a server starts: its schedules, if any, and how it runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schedule: Schedules | None = Field(None, description="one or several; without it, started manually")
    paused: bool = Field(False, description="its schedules start nothing until you resume them in the UI")
    description: str = Field("", description="free text, for example the purpose and a contact")
    tags: list[str] = Field(default_factory=list)
    readers: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="trainings, evaluations and the like on the population at once; any number without it",
    )
    job_variables: dict[str, Any] = Field(
        default_factory=dict, description="for the infrastructure of the work pool, such as env or working_dir"
    )

    @field_validator("schedule")
    @classmethod
    def _some(cls, given: Any) -> Any:
        if given == []:
            raise ValueError("give at least one, or leave it out")
        return given

    @property
    def schedules(self) -> list[Schedule]:
        if self.schedule is None:
            return []
        return list(self.schedule) if isinstance(self.schedule, list) else [self.schedule]

    @property
    def schedules_in_words(self) -> str:
        if not self.schedules:
            return "by hand"
        words = ", ".join(schedule.in_words for schedule in self.schedules)
        return f"{words}, paused" if self.paused else words
