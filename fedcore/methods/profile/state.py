"""State of a profile: arrays and scalars only, so that a checkpoint is Zarr and JSON."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class ProfileState:
    """State after a round. The names of the fields are stored with the run.

    features: columns of the population. unit, relation: of the budget. noise: standard deviation in a cell, in grid
    steps. released: (cells,) int64 the published vector; (0,) before the release
    """

    features: int
    unit: str
    relation: str
    noise: float
    released: np.ndarray
