"""Per-client outputs: components and groups of a client's rows, for that client only. None of them is released."""

from __future__ import annotations

import numpy as np

from fedcore.methods.mixture_models.row_labels import labelled
from fedcore.methods.private_mixture.density import PrivateMixtureModel
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import ClientOutputs

TILE = 2**14  # rows that are labelled at once


def personalise(model: PrivateMixtureModel, block: RowsBlock) -> ClientOutputs:
    """For each of the C clients of a leaf, and for its N rows: the output of `labelled`, where rows with an infinite
    number, or without any number, have no component; rows_groups: (N,) int32 and group: (C,) int32, the groups of these
    components.
    """
    found = labelled(block, model.components, TILE, model.usable, model.labels)
    group = np.append(model.group, -1).astype(np.int32)
    groups = {"rows_groups": group[found["rows_labels"]], "group": group[found["component"]]}
    return {name: (found | groups)[name] for name in ("rows_labels", "rows_groups", "shares", "component", "group")}
