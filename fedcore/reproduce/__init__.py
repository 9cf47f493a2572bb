"""Tables and figures of the papers, rebuilt: the paper's column beside ours."""

from __future__ import annotations

from importlib import import_module

from fedcore.errors import ConfigError
from fedcore.reproduce.experiment import Experiment

EXPERIMENTS = {
    "histograms-table1": "fedcore.reproduce.histograms_table1:HistogramsTable1",
    "fedem-synthetic": "fedcore.reproduce.fedem_synthetic:FedEMSynthetic",
    "fedem-mnist": "fedcore.reproduce.fedem_mnist:FedEMMnist",
    "fedem-missing": "fedcore.reproduce.fedem_missing:FedEMMissing",
    "fedem-tabular": "fedcore.reproduce.fedem_tabular:FedEMTabular",
}


def experiment(name: str) -> Experiment:
    """The experiment of this name. Raises ConfigError if there is none."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"there is no experiment {name!r}.", f"Known: {', '.join(EXPERIMENTS)}.")
    module, attribute = EXPERIMENTS[name].split(":")
    return getattr(import_module(module), attribute)()
