"""Private personalised histograms (after Setlur, Feldman, Talwar 2023)."""

from fedcore.methods.histograms.config import HistogramsConfig
from fedcore.methods.histograms.method import Histograms
from fedcore.methods.histograms.state import HistogramsState

__all__ = ["Histograms", "HistogramsConfig", "HistogramsState"]
