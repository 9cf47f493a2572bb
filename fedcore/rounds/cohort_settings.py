"""Settings of private methods that say which clients take part, where a budget is kept by cohort
(docs/privacy/cohorts.md).

A method declares them beside `epsilon`, which comes first:

    horizon: Horizon = None
    at_least: AtLeast = None
    recent_cohorts: RecentCohorts = None
    cohorts: ChosenCohorts = ABLE
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, ValidationInfo

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


Horizon = Annotated[
    int | None,
    Field(
        ge=1,
        le=LONGEST,
        description="instead of epsilon, where the budget is kept by cohort: each cohort of clients pays for so many "
        "runs",
    ),
    AfterValidator(_without_epsilon),
]
AtLeast = Annotated[
    int | None,
    Field(
        ge=1,
        description="declared number of clients in cohorts that can pay, below which a run waits for newcomers; None: "
        "one cohort",
    ),
]
RecentCohorts = Annotated[
    int | None, Field(ge=1, description="only the newest so many cohorts take part; None: all that can pay")
]
ChosenCohorts = Annotated[
    str,
    Field(description=f"{ABLE}: all that can pay; or numbers of cohorts that all must, such as 1-27"),
    AfterValidator(_named_cohorts),
]


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
