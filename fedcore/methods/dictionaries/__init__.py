"""Personalised dictionary learning: PerMA (Liang, Shi, Al Kontar, Fattahi 2023) and what it is compared with."""

from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.method import Dictionaries
from fedcore.methods.dictionaries.state import DictionariesState

__all__ = ["Dictionaries", "DictionariesConfig", "DictionariesState"]
