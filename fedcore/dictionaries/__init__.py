"""Personalised dictionary learning: PerMA (Liang, Shi, Al Kontar, Fattahi 2023) and what it is compared with."""

from fedcore.dictionaries.config import DictionariesConfig
from fedcore.dictionaries.method import Dictionaries
from fedcore.dictionaries.state import DictionariesState

__all__ = ["Dictionaries", "DictionariesConfig", "DictionariesState"]
