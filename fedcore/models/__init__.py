"""Likelihoods shared by the EM methods: curved exponential families, see `fedcore.models.contract`."""

from fedcore.models.contract import CurvedEM, Rows, Theta
from fedcore.models.counts import BernoulliMixture, MultinomialMixture, PoissonMixture
from fedcore.models.gaussian import GaussianMixture
from fedcore.models.imputer import GaussianImputer
from fedcore.models.missing import LowRankTables
from fedcore.models.regression import RegressionMixture

__all__ = [
    "BernoulliMixture",
    "CurvedEM",
    "GaussianImputer",
    "GaussianMixture",
    "LowRankTables",
    "MultinomialMixture",
    "PoissonMixture",
    "RegressionMixture",
    "Rows",
    "Theta",
]
