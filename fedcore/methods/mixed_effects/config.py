"""Settings of the method `mixed_effects`: one model for the TOML file, the command line, the flow and its form."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field


class MixedEffectsConfig(BaseModel):
    """Settings of mixed-effects regressions. Ranges stand beside the fields."""

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

    # Random sequences in which components of up to 200 clients are put in one order; of more clients they are put in
    # the order of common centres. Rule and number were settings, and changed no result that was measured.
    shuffles: ClassVar[int] = 50
    start_steps: ClassVar[int] = 15  # EM steps of each guess; five times as many from the best. Was a setting, likewise

    # start
    starts: int = Field(10, ge=1, le=1000, description="several components: random first guesses of a client's own fit")
    aligned_clients: int = Field(
        1000, ge=2, le=100_000, description="clients whose own fits are compared before the first round"
    )
    second_start: int = Field(
        10,
        ge=0,
        le=1_000_000,
        description="several components: in this round, and in those of 4, 16, ... times its number, clients also "
        "start from the common coefficients and keep the better end; 0: never",
    )

    # end
    rounds: int = Field(100, ge=1, le=1_000_000, description="rounds at most")
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
