"""What the tables of the FedEM paper vary in addition to the settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variant:
    """The defaults are what `federated_em` does, and not settings: docs/federated-em.md has tables of some others.
    `paper_federated_em` has others.

    memories: whether clients remember what they sent; without them compression keeps the estimate away from EM's
    norms_by_part: of dithering: a norm for each part of the statistic (weights, means ...), not one for all of it
    standardise: whether Gaussians, regressions and imputers see rows less their mean, over their standard deviations
    regularisation: the penalty as a share of the data, whatever their number; None: by pseudo-rows, and of models
        without these REGULARISATION
    cluster_rounds: passes of k-means before a mixture starts from the clusters
    monitor_every: rounds between two looks at the objective, which cost up to a pass each; VR-FedEM looks at every
        full pass, em of mixtures in every round
    trial_rounds: EM steps of each start, and with each penalty, before the best one is taken
    inner_rounds: of VR-FedEM between two full passes; None: until batches cost a pass, 2 to 8
    gamma_decay: k0 of the decreasing step gamma / (1 + k / k0); None: constant
    safeguards: whether a step is halved until no weight and no variance falls below a fifth, and the best statistic
        that was looked at is what a run ends with
    """

    memories: bool = True
    norms_by_part: bool = True
    standardise: bool = True
    regularisation: float | None = None
    cluster_rounds: int = 3
    monitor_every: int = 10
    trial_rounds: int = 20
    inner_rounds: int | None = None
    gamma_decay: float | None = None
    safeguards: bool = True
