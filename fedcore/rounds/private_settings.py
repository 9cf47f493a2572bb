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
        raise ValueError("a run's share of the budget is its horizon or its epsilon, not both")
    return value


def _named_cohorts(value: str) -> str:
    try:
        named = value == ABLE or parsed(value)[0][0] >= 1
    except ValueError:
        named = False
    if not named:
        raise ValueError(f'cohorts are "{ABLE}", or numbers from 1 such as 1-27 or 1-27,30')
    return value


class PrivateRunSettings(BaseModel):
    """What every private run can be told of its budget, and of who takes part. A private method's `Config` inherits it.

    horizon to cohorts are for budgets that are kept by cohort (docs/privacy/cohorts.md).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    epsilon: float | None = Field(
        None, gt=0, le=100, description="this run's share of the population's budget; None: all that is left"
    )
    horizon: Annotated[int | None, AfterValidator(_without_epsilon)] = Field(
        None,
        ge=1,
        le=LONGEST,
        description="instead of epsilon, where the budget is kept by cohort: each cohort of clients pays for so many "
        "runs",
    )
    at_least: int | None = Field(
        None,
        ge=1,
        description="declared number of clients in cohorts that can pay, below which a run waits for newcomers; None: "
        "one cohort",
    )
    recent_cohorts: int | None = Field(
        None, ge=1, description="only the newest so many cohorts take part; None: all that can pay"
    )
    cohorts: Annotated[str, AfterValidator(_named_cohorts)] = Field(
        ABLE, description=f"{ABLE}: all that can pay; or numbers of cohorts that all must, such as 1-27"
    )
    nominal_clients: int | None = Field(
        None, ge=1, description="public number of clients to plan with; None: as declared of the population"
    )
    spare_releases: int = Field(
        0,
        ge=0,
        le=10,
        description="releases set aside beyond the plan, to draw one again that a crash lost; each costs as much as "
        "the plan's dearest",
    )
    anyway: bool = Field(
        False, description="make a run also if its budget is too small for it to be of any use (its word is 'none')"
    )


@dataclass(frozen=True, slots=True)
class CohortRule:
    """What the settings of a run say of who takes part.

    chosen: ranges of numbers of cohorts, of which all must be able to pay; None: all that are
    """

    horizon: int | None = None
    at_least: int | None = None
    recent: int | None = None
    chosen: Ranges | None = None

    @property
    def asked(self) -> str | None:
        """Name of a setting that says something; None if none does."""
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
