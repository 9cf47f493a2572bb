"""Files that a pipeline has ingested: recorded in the manifest of the version that they came with, and of all later
ones, so that forgetting clients, which removes older versions, does not make a file that is delivered again look new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field


class Delivery(BaseModel):
    """One file. name: its path below the folder that the pipeline looks into; size: bytes; sha256: of its content;
    version: of the population, which it came with; pipeline, at: which ingested it, and for which time
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(min_length=1)
    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    version: int = Field(ge=1)
    pipeline: str
    at: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """What an append brings. files: (name, bytes, sha256) of each; pipeline, at: whose append it is and for which time,
    as YYYY-MM-DDTHH:MM:SSZ, which is also the day on which its cohort opens
    """

    files: Sequence[tuple[str, int, str]]
    pipeline: str
    at: str

    @property
    def day(self) -> str:
        return self.at[:10]


def added(
    known: tuple[Delivery, ...], occasions: tuple[tuple[str, str], ...], came: Delivered, version: int, cohorts: bool
) -> dict[str, tuple]:
    """Fields of the manifest of the version that `came` makes. cohorts: whether every append opens one, so that the
    next one of the same time must not.
    """
    new = (
        Delivery(name=name, size=size, sha256=sha256, version=version, pipeline=came.pipeline, at=came.at)
        for name, size, sha256 in came.files
    )
    others = tuple(pair for pair in occasions if pair[0] != came.pipeline)
    return {"deliveries": (*known, *new), "occasions": (*others, (came.pipeline, came.at)) if cohorts else occasions}
