"""Likelihoods shared by the EM methods: curved exponential families, see `fedcore.methods.mixture_models.contract`."""

from fedcore.methods.mixture_models.contract import CurvedEM, Rows, Theta
from fedcore.methods.mixture_models.counts import BernoulliMixture, MultinomialMixture, PoissonMixture
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.imputer import GaussianImputer
from fedcore.methods.mixture_models.low_rank_tables import LowRankTables
from fedcore.methods.mixture_models.regression import RegressionMixture

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
