"""Personalised dictionaries from sums of codes and samples over clients, also private."""

from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.method import Dictionaries
from fedcore.methods.dictionaries.state import DictionariesState

__all__ = ["Dictionaries", "DictionariesConfig", "DictionariesState"]
