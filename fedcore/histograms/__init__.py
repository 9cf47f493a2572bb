"""Private personalised histograms (Setlur, Feldman, Talwar 2023)."""

from fedcore.histograms.config import HistogramsConfig
from fedcore.histograms.method import Histograms
from fedcore.histograms.state import HistogramsState

__all__ = ["Histograms", "HistogramsConfig", "HistogramsState"]
