"""What the next round of a private_mixture run needs: arrays and scalars only, so that a checkpoint is Zarr and
JSON."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedcore.methods.mixture_models.whole_rows import WholeMap

RUNNING, MIXTURE, NORMAL = "running", "mixture", "one normal distribution"


@dataclass(frozen=True, slots=True)
class PrivateMixtureState:
    """State after a round. d: columns, q: leading directions, m: cells, k: components, e: edges. The names of the
    fields are stored with the run.

    round: finished rounds; done: whether there are no more. outcome: "running", "mixture" or "one normal distribution"
    warm: whether the run continues a series, so that it begins with components; profiled: whether it starts from a
        profile, so that it begins with centre and scale
    seed: of public streams. unit, relation: of the budget. declared: declared number of units; rho: of the run
    noise: (releases,) standard deviations in grid steps, in the order of the plan
    count: noisy number of units; missing: (d,) released numbers of missing values in columns, or in a series the shares
        that its first run has found
    centre, scale: (d,) of the columns, in the units of the data; before whitening the scale is what distances are cut
    to
    atoms, steps, share: (d,) what was found of columns with many zeros (`columns.Forms`); 0 for others
    `told`: (d,) bool, whether centre and scale of a column stood out of noise; others stay at 0 and the largest scale,
        at which a column has no information
    clip: of the next round, in units of its coordinates
    map_*: from standardised rows to the coordinates of the components (`WholeMap`), in which all rows have about mean
        0 and covariance 1; lead_*: to the leading directions, (d, q)
    spread: (q,) standard deviations of all rows in the leading directions
    cells: (m, q) in units; of all rounds and cells that held enough: found_cells (f, q), found_counts (f,) noisy, and
        found_noise (f,) the standard deviation of a coordinate
    weights: (k + 1,) the background's last; means: (k, d); covariances: (k, d, d), in the coordinates of the components
    known: (k, 4) variances of the noise in shares, means, scales and shapes, in own units; see `series.Pool`
    edge: of the noise in the second whitening, by released values (`feasibility`); 0 before it is known
    gain, gain_noise: nats a unit of the mixture over one normal distribution, and the noise of it; 0 before it is known
    node: (k,) int64 of each component, the same for those that overlap; edges: (e, 2) int64 pairs of nodes;
        mass, depth, p: (e,) of the tested edges; group: (k,) int64 of the components
    """

    round: int
    done: bool
    outcome: str
    warm: bool
    seed: int
    unit: str
    relation: str
    declared: int
    rho: float
    noise: np.ndarray
    count: float
    missing: np.ndarray
    centre: np.ndarray
    scale: np.ndarray
    told: np.ndarray
    atoms: np.ndarray
    steps: np.ndarray
    share: np.ndarray
    clip: float
    map_centre: np.ndarray
    map_matrix: np.ndarray
    map_exponent: np.ndarray
    lead_centre: np.ndarray
    lead_matrix: np.ndarray
    lead_exponent: np.ndarray
    spread: np.ndarray
    cells: np.ndarray
    found_cells: np.ndarray
    found_counts: np.ndarray
    found_noise: np.ndarray
    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    known: np.ndarray
    edge: float
    gain: float
    gain_noise: float
    node: np.ndarray
    edges: np.ndarray
    mass: np.ndarray
    depth: np.ndarray
    p: np.ndarray
    group: np.ndarray
    profiled: bool = field(default=False, kw_only=True)

    @property
    def features(self) -> int:
        """Columns of numbers."""
        return len(self.centre)

    @property
    def map(self) -> WholeMap:
        return WholeMap(self.map_centre, self.map_matrix, self.map_exponent)

    @property
    def lead(self) -> WholeMap:
        return WholeMap(self.lead_centre, self.lead_matrix, self.lead_exponent)


@dataclass(frozen=True, slots=True)
class MixedState(PrivateMixtureState):
    """State of a run with categories. W: their values together.

    probabilities: (k + 1, W) of a component's answers, the background's last; (0, W) before the first round of EM
    answers_known: (k, categories) variances of the noise in a probability
    """

    probabilities: np.ndarray
    answers_known: np.ndarray
