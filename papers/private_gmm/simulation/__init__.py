"""Simulated data: separated mixtures, data without structure, and scores against the truth. privacy: nobody's data."""

from fedcore.papers.private_gmm.simulation.mixtures import Prior, Truth, mixture, prior, sample
from fedcore.papers.private_gmm.simulation.structureless import Structureless, structureless, structureless_prior
from fedcore.papers.private_gmm.simulation.truth_scores import Scores, nearest, scores

__all__ = [
    "Prior",
    "Scores",
    "Structureless",
    "Truth",
    "mixture",
    "nearest",
    "prior",
    "sample",
    "scores",
    "structureless",
    "structureless_prior",
]
