"""The method `paper_federated_em`: `federated_em` with what the tables of its paper vary beside the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, ClassVar

from pydantic import Field

from fedcore.methods.federated_em import FederatedEM, FederatedEMConfig
from fedcore.methods.federated_em.config import Compressed, Exact, FedEM, PrivateEM, VRFedEM
from fedcore.methods.federated_em.variant import Variant


class PlainEM(Exact):
    """EM whose starts are tried, and whose steps are made, on all rows."""

    rounds: int | None = Compressed.model_fields["rounds"]  # type: ignore[assignment]
    gamma: float | None = Compressed.model_fields["gamma"]  # type: ignore[assignment]
    accelerated: ClassVar[bool] = False


class PaperFederatedEMConfig(FederatedEMConfig):
    """Settings of federated EM, and the parts of a `Variant` that the tables set."""

    algorithm: Annotated[FedEM | VRFedEM | PlainEM | PrivateEM, Field(discriminator="name")] = Field(  # type: ignore[assignment]
        FedEM(),
        description="fedem: Algorithm 1; vr-fedem: Algorithm 2; em: exact, without search or acceleration; private",
    )
    memories: bool = Field(True, description="clients remember what they sent; false: the naive variant, a baseline")
    norms_by_part: bool = Field(True, description="dithering: a norm for each part of the statistic, not one for all")
    standardise: bool = Field(True, description="rows less their mean, over their standard deviations")
    regularisation: float | None = Field(
        None, ge=0, le=10, description="the penalty as a share of the data; None: by pseudo_rows"
    )
    cluster_rounds: int = Field(3, ge=1, le=1000, description="passes of k-means before the mixture starts")
    inner_rounds: int | None = Field(
        None,
        ge=2,
        le=1_000_000,
        description="vr-fedem: rounds between two full passes; None: until batches cost a pass, 2 to 8",
    )
    monitor_every: int = Field(
        10, ge=1, description="rounds between two looks at the objective, which cost up to a pass each"
    )
    gamma_decay: float | None = Field(
        None, gt=0, description="k0 of the decreasing step gamma / (1 + k / k0); None: constant"
    )
    safeguards: bool = Field(True, description="steps are cut back, and the best statistic is kept; false: the paper's")

    @property
    def variant(self) -> Variant:
        names = {field.name for field in fields(Variant)} & type(self).model_fields.keys()
        return Variant(**{name: getattr(self, name) for name in names})


class PaperFederatedEM(FederatedEM):
    """The tables of the FedEM paper: no memories, one norm, fixed inner rounds, decreasing steps, no safeguards, and EM
    without a search or acceleration.

    Source: Dieuleveut, Fort, Moulines, Robin (2021). For a model of your own clients use `federated_em`.
    """

    name: ClassVar[str] = "paper_federated_em"
    arithmetic_version: ClassVar[str] = "paper-federated-em-2"
    Config = PaperFederatedEMConfig
    main_settings: ClassVar[tuple[str, ...]] = (
        "algorithm",
        "model",
        "components",
        "covariance",
        "rounds",
        "gamma",
        "memories",
        "regularisation",
    )
    moved_settings: ClassVar[Mapping[str, str]] = {}
