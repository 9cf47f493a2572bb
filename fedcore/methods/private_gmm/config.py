"""Settings of the method `private_gmm`: one validated model for the TOML file, the command line and the flow."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedcore.errors import ConfigError
from fedcore.rounds.private_settings import PrivateRunSettings

Covariance = Literal["spherical", "diag", "full"]
WIDE = 8.0  # sigma_max / sigma_min from which components may hide in each other's scale, so that two levels are planned
SMALLEST_SCALE = 1e-3  # sigma_min, if none is given, as a share of the radius


class PrivateGMMConfig(PrivateRunSettings):
    """A mixture of separated Gaussians under differential privacy (after Kamath, Sheffet, Singhal, Ullman 2019).

    radius, sigma_min, sigma_max and least_weight are public inputs: set them from knowledge that does not come from the
    data. None means "by the rule that the description states".
    """

    # Settings once, of which no table has another value: share of the budget that the search gets; widths of boxes in
    # which candidate centres are looked for; leading principal directions in which boxes are cut.
    partition_share: ClassVar[float] = 0.6
    widths: ClassVar[int] = 4
    box_dimensions: ClassVar[int] = 8

    # the mixture
    components: int = Field(3, ge=2, le=64, description="components k of the mixture")
    up_to: bool = Field(
        False, description="accept any number of components from 2 to k; otherwise a run that finds fewer than k fails"
    )
    covariance: Covariance = Field(
        "full", description="covariances to estimate: one variance each, variances of the columns, or full matrices"
    )

    # what is public about the data
    radius: float | None = Field(
        None,
        gt=0,
        le=1e100,
        description="radius R of a ball about the origin that contains nearly all rows; needed unless every column has "
        "public bounds, which then give it. Rows outside are moved to its surface. A value that is far too large costs "
        "little",
    )
    sigma_min: float | None = Field(
        None,
        gt=0,
        le=1e100,
        description=f"lower bound of every standard deviation in any direction; None: radius * {SMALLEST_SCALE:g}",
    )
    sigma_max: float | None = Field(
        None, gt=0, le=1e100, description="upper bound of every standard deviation in any direction; None: not known"
    )
    least_weight: float | None = Field(
        None,
        gt=0,
        le=0.5,
        description="lower bound of every component's share of the records (or of the clients, if "
        "the budget is for clients); None: 1 / (2 k)",
    )

    # the search
    depth: int | None = Field(
        None,
        ge=1,
        le=4,
        description="levels of the recursion, one for each scale of distances between groups; each "
        f"further level halves the budget of the others; None: 2 if sigma_max / sigma_min > {WIDE:g}, else 1",
    )

    @property
    def public_radius(self) -> float:
        """R. Raises ConfigError if it is not set, since no rule can choose it."""
        if self.radius is None:
            raise ConfigError(
                "a private_gmm run needs the radius of a ball that holds nearly all rows.",
                "Set radius from what is known without looking at the data, rather too large than too small; or ingest "
                "with public bounds of every column (--bounds).",
            )
        return self.radius

    @property
    def sigma_floor(self) -> float:
        """The sigma_min in force."""
        return self.sigma_min or SMALLEST_SCALE * (self.radius or 1.0)

    @property
    def w_min(self) -> float:
        """The least_weight in force."""
        return self.least_weight or 0.5 / self.components

    @property
    def levels(self) -> int:
        """The depth in force, D."""
        if self.depth is not None:
            return self.depth
        return 2 if self.sigma_max is not None and self.sigma_max > WIDE * self.sigma_floor else 1

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if self.radius is not None and self.sigma_floor > self.radius:
            raise ValueError("sigma_min exceeds the radius")
        if self.sigma_max is not None and self.sigma_max < self.sigma_floor:
            raise ValueError("sigma_max is below sigma_min")
        if self.w_min * self.components > 1 + 1e-9:
            raise ValueError("least_weight * components exceeds 1")
        if self.radius is not None and math.log2(self.radius / self.sigma_floor) > 60:
            raise ValueError("radius / sigma_min exceeds 2^60")
        return self
