"""A first look at a private table: histograms, missing values, quantiles, counts and means, from one release."""

from fedcore.methods.profile.config import ProfileConfig
from fedcore.methods.profile.method import Profile
from fedcore.methods.profile.state import ProfileState

__all__ = ["Profile", "ProfileConfig", "ProfileState"]
