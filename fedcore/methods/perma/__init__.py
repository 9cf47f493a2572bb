"""PerMA: personalised dictionaries by matching (Liang, Shi, Al Kontar, Fattahi 2023)."""

from fedcore.methods.perma.config import PermaConfig
from fedcore.methods.perma.method import Perma
from fedcore.methods.perma.state import PermaState

__all__ = ["Perma", "PermaConfig", "PermaState"]
