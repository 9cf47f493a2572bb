"""What a private mixture may start from: the range of each column. It follows from the release alone."""

from __future__ import annotations

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.profiled import CENTRE, HELD, REACH
from fedcore.methods.profile.config import ProfileConfig
from fedcore.methods.profile.estimates import Tree
from fedcore.methods.profile.layout import layout_of
from fedcore.methods.profile.result import found_of
from fedcore.methods.profile.state import ProfileState
from fedcore.rounds.results import Features


def warm_start_of(config: ProfileConfig, state: ProfileState) -> dict[str, np.ndarray]:
    """The arrays of `PROFILED_NAMES`, (features,) float64 each; 0 for categories, for columns without bounds, whose
    leaves are too wide, and for columns with too few numbers. Raises ConfigError before the release, and if no column
    is left."""
    if not len(state.released):
        raise ConfigError("has not released anything yet.", "Let it finish.")
    layout = layout_of(config, state.features)
    centre, reach = np.zeros(state.features), np.zeros(state.features)
    for column, tree in zip(
        layout.numbers, found_of(config, state, Features(state.features), False).trees, strict=True
    ):
        if tree.bounded and tree.enough:
            centre[column], reach[column] = _range_of(tree)
    if not reach.any():
        raise ConfigError(
            "knows no range of a column: its columns have no bounds, or too few people have numbers in them.",
            "Declare bounds of the columns and make a profile of more people, or start from nothing.",
        )
    return {CENTRE: centre, REACH: reach}


def _range_of(tree: Tree) -> tuple[float, float]:
    """The median, and the distance from it to the further one of the two quantiles; at least half a leaf."""
    low, middle, high = (tree.quantile(share)[0] for share in ((1 - HELD) / 2, 0.5, (1 + HELD) / 2))
    return middle, max(middle - low, high - middle, float(tree.edges[2] - tree.edges[1]) / 2)
