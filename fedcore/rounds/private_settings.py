"""Settings that all private methods have: the budget of a run, and who takes part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo

from fedcore.storage.ranges import Ranges, parsed

ABLE: Final = "able"
LONGEST = 10_000  # runs of a horizon


def _without_epsilon(value: int | None, info: ValidationInfo) -> int | None:
    if value is not None and info.data.get("epsilon") is not None:
        raise ValueError("horizon and epsilon exclude each other: each sets the run's budget")
    return value


def _named_cohorts(value: str) -> str:
    try:
        named = value == ABLE or parsed(value)[0][0] >= 1
    except ValueError:
        named = False
    if not named:
        raise ValueError(f'cohorts must be "{ABLE}", or numbers from 1 such as 1-27 or 1-27,30')
    return value


class PrivateRunSettings(BaseModel):
    """Settings of every private run: its budget, and which clients take part. A private method's `Config` inherits
    them.

    The settings from horizon to cohorts are for per-cohort budgets (docs/privacy/cohorts.md).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    epsilon: float | None = Field(
        None, gt=0, le=100, description="this run's part of the population's budget; None: all that is left"
    )
    horizon: Annotated[int | None, AfterValidator(_without_epsilon)] = Field(
        None,
        ge=1,
        le=LONGEST,
        description="instead of epsilon, for a per-cohort budget: number of runs that each cohort's budget funds",
    )
    at_least: int | None = Field(
        None,
        ge=1,
        description="declared number of clients in cohorts with enough budget, below which a run waits for new "
        "clients; None: one cohort",
    )
    recent_cohorts: int | None = Field(
        None, ge=1, description="only this many of the newest cohorts take part; None: no limit"
    )
    cohorts: Annotated[str, AfterValidator(_named_cohorts)] = Field(
        ABLE, description=f"{ABLE}: all with enough budget left; or a range such as 1-27: all must have enough"
    )
    nominal_clients: int | None = Field(
        None, ge=1, description="declared number of clients to plan with; None: that of the population"
    )
    spare_releases: int = Field(
        0,
        ge=0,
        le=10,
        description="reserve releases beyond the plan, to repeat one that a crash lost; each costs as much as "
        "the plan's most costly release",
    )
    anyway: bool = Field(
        False, description="override: run even if the budget is too small for a useful result (rating 'none')"
    )


@dataclass(frozen=True, slots=True)
class CohortRule:
    """Settings of a run that determine which cohorts take part.

    chosen: ranges of numbers of cohorts, all of which need enough budget; None: all that have enough
    """

    horizon: int | None = None
    at_least: int | None = None
    recent: int | None = None
    chosen: Ranges | None = None

    @property
    def asked(self) -> str | None:
        """Name of a setting that was set; None if none was."""
        names = {
            "horizon": self.horizon,
            "at_least": self.at_least,
            "recent_cohorts": self.recent,
            "cohorts": self.chosen,
        }
        return next((name for name, value in names.items() if value is not None), None)


def cohort_rule(settings: Any) -> CohortRule:
    """Of a private method's settings, which may be those of a method that has none of these."""
    chosen = getattr(settings, "cohorts", ABLE)
    return CohortRule(
        getattr(settings, "horizon", None),
        getattr(settings, "at_least", None),
        getattr(settings, "recent_cohorts", None),
        None if chosen == ABLE else parsed(chosen),
    )
