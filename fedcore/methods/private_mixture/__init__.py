"""A private Gaussian mixture at any separation; density dips separate its groups."""

from fedcore.methods.private_mixture.config import PrivateMixtureConfig
from fedcore.methods.private_mixture.density import PrivateMixtureModel
from fedcore.methods.private_mixture.method import PrivateMixture
from fedcore.methods.private_mixture.state import PrivateMixtureState

__all__ = ["PrivateMixture", "PrivateMixtureConfig", "PrivateMixtureModel", "PrivateMixtureState"]
