"""What a run of histograms has learnt, for people: the centres by the tokens that tell them from the mean."""

from __future__ import annotations

import numpy as np

from fedcore.methods.histograms.state import HistogramsState
from fedcore.rounds.results import Column, Features, Profiles, Result, Table, distinguishing, heaviest

TOP = 8  # tokens of a profile
CAPTION = "The tokens whose share of a centre exceeds their share of the mean the most."


def result_of(state: HistogramsState, features: Features) -> Result:
    """Empty before the first centres."""
    centres, mean = state.centres, state.mean
    if state.round == 0 or not centres.size or not (np.isfinite(centres).all() and np.isfinite(mean).all()):
        return Result()
    counts = np.maximum(state.counts, 0.0)  # noised counts may be negative
    weights = counts / counts.sum() if counts.shape == centres.shape[:1] and counts.sum() > 0 else None
    order = heaviest(len(centres), weights, len(centres))
    tokens = [[features.name(int(i), "token") for i in distinguishing(centres[k], mean, TOP)[0]] for k in order]
    shares = None if weights is None else [float(weights[k]) for k in order]
    table = Table(
        "profiles",
        "Centres",
        (
            Column("centre", [int(k) + 1 for k in order]),
            Column("share", shares or [None] * len(centres), "%"),
            Column("tokens that distinguish it", tokens),
        ),
    )
    return Result((table,), (Profiles("profiles", "Profiles of the centres", CAPTION, centres, mean, weights),))
