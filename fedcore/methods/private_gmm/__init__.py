"""Private learning of separated Gaussian mixtures (Kamath, Sheffet, Singhal, Ullman 2019)."""

from fedcore.methods.private_gmm.config import PrivateGMMConfig
from fedcore.methods.private_gmm.method import PrivateGMM
from fedcore.methods.private_gmm.result import PrivateMixture
from fedcore.methods.private_gmm.state import PrivateGMMState

__all__ = ["PrivateGMM", "PrivateGMMConfig", "PrivateGMMState", "PrivateMixture"]
