"""Settings of the method `background`: one model for the TOML file, the command line, the flow and its form."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class BackgroundConfig(BaseModel):
    """Settings of a camera's background. Each field declares its range."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    modes: int = Field(
        4,
        ge=0,
        le=32,
        description="maximum number of images by which the background may vary, such as swaying branches or moving "
        "light. Those that frames do not show are dropped; 0, or fewer than 12 rounds: none",
    )
    rounds: int = Field(16, ge=1, le=1_000_000, description="rounds T after the mean image")
    cut: float = Field(
        1.0,
        gt=0,
        le=1e12,
        description="spreads (1.4826 median |residual|) of the median frame beyond which a residual counts no more; "
        "the last rounds have the biweight's 4.685",
    )
    weight_cap: int | None = Field(
        1,
        ge=1,
        description="frames up to which a client's weight grows; 1: all clients have the same weight; None: all frames "
        "have the same weight",
    )
    precision: Literal["float64", "float32"] = Field(
        "float64", description="precision of the images sent to clients; sums are in float64"
    )
    shadows: bool = Field(
        True, description="whether masks include shadows: pixels that are darker by the same factor in all channels"
    )
    least_change: float | None = Field(
        None,
        ge=0,
        le=1e12,
        description="change that a fifth of a mask's pixels exceed, and all others by half, in the units of the rows; "
        "None: 20 / 255 for pixels of [0, 1], else 8 times the median noise of a pixel",
    )
