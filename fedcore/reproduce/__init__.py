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
    "fedem-bytes": "fedcore.reproduce.fedem_bytes:FedEMBytes",
    "fedem-tabular": "fedcore.reproduce.fedem_tabular:FedEMTabular",
    "em-defaults": "fedcore.reproduce.em_defaults:EMDefaults",
    "fedgrem-gmm": "fedcore.reproduce.fedgrem_simulations:FedGrEMGaussians",
    "fedgrem-mor": "fedcore.reproduce.fedgrem_simulations:FedGrEMRegressions",
    "fedgrem-pendigits": "fedcore.reproduce.fedgrem_clusters:FedGrEMPenDigits",
    "fedgrem-mnist": "fedcore.reproduce.fedgrem_clusters:FedGrEMMnist",
    "fedgrem-fashion": "fedcore.reproduce.fedgrem_clusters:FedGrEMFashion",
    "perma-synthetic": "fedcore.reproduce.perma_synthetic:PermaSynthetic",
    "perma-mnist": "fedcore.reproduce.perma_mnist:PermaMnist",
    "perma-video": "fedcore.reproduce.perma_video:PermaVideo",
    "perma-rg": "fedcore.reproduce.perma_rg:PermaRg",
    "dictionary-mnist": "fedcore.reproduce.dictionary_learners:DictionaryMnist",
    "dictionary-femnist": "fedcore.reproduce.dictionary_learners:DictionaryFemnist",
    "dictionary-series": "fedcore.reproduce.dictionary_series:DictionarySeries",
    "background-clips": "fedcore.reproduce.background_clips:BackgroundClips",
    "private-gmm": "fedcore.reproduce.private_gmm:PrivateGMMTables",
    "private-mixture": "fedcore.reproduce.private_mixture:PrivateMixtureTables",
}


def experiment(name: str) -> Experiment:
    """The experiment of this name. Raises ConfigError if there is none."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"there is no experiment {name!r}.", f"Known: {', '.join(EXPERIMENTS)}.")
    module, attribute = EXPERIMENTS[name].split(":")
    return getattr(import_module(module), attribute)()
