"""Settings of the method `mixed_effects`: one model for the TOML file, the command line, the flow and its form."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

MOVED = dict.fromkeys(
    ("starts", "aligned_clients", "second_start"), "has its former default always: leave it out"
)  # for the error that refuses one (`Method.moved_settings`)


class MixedEffectsConfig(BaseModel):
    """Settings of mixed-effects regressions. Each field declares its range."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    components: int = Field(
        1, ge=1, le=200, description="regressions R of each client; with several, a row belongs to one of them"
    )
    intercept: bool = Field(False, description="a further input that is 1")
    robust: bool | Literal["auto"] = Field(
        "auto",
        description="true: clients whose coefficients or noise are far from the others' count less or not at all; "
        "false: maximum likelihood; auto: the one that predicts held-out rows of the clients better",
    )

    # Constants: docs/notes/mixed-effects.md has what other values change.
    aligned_clients: ClassVar[int] = 1000  # whose own fits are compared before the first round
    # Several components: random first guesses of a client's own fit, and EM steps of each; five times as many from the
    # best. Random sequences in which components of up to 200 clients are put in one order; those of more clients are
    # put in the order of common centres.
    starts: ClassVar[int] = 10
    start_steps: ClassVar[int] = 15
    shuffles: ClassVar[int] = 50
    # In this round, and in those of 4, 16, ... times its number, clients also start from the common coefficients and
    # keep the better end.
    second_start: ClassVar[int] = 10

    rounds: int = Field(100, ge=1, le=1_000_000, description="maximum number of rounds")
    tolerance: float = Field(
        1e-6, ge=0, description="the run ends when no common coefficient or standard deviation moves by more"
    )

    def inputs(self, features: int) -> int:
        """p, the numbers of a client's coefficients."""
        return features - 1 + self.intercept

    def starts_again(self, number: int) -> bool:
        """Whether clients start from the common coefficients as well in round `number`."""
        later = self.second_start
        while 0 < later < number:
            later *= 4
        return 0 < later == number
