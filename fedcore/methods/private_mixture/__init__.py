"""A private Gaussian mixture at any separation, whose groups are parted by valleys."""

from fedcore.methods.private_mixture.config import PrivateMixtureConfig
from fedcore.methods.private_mixture.density import PrivateMixtureModel
from fedcore.methods.private_mixture.method import PrivateMixture
from fedcore.methods.private_mixture.state import PrivateMixtureState

__all__ = ["PrivateMixture", "PrivateMixtureConfig", "PrivateMixtureModel", "PrivateMixtureState"]
