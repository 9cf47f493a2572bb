"""Tables and figures of the papers, rebuilt: the paper's column beside ours."""

from __future__ import annotations

from importlib import import_module

from fedcore.papers.experiment import Experiment

from fedcore.errors import ConfigError

EXPERIMENTS = {
    "histograms-table1": "fedcore.papers.histograms.table1:HistogramsTable1",
    "fedem-synthetic": "fedcore.papers.fedem.synthetic:FedEMSynthetic",
    "fedem-mnist": "fedcore.papers.fedem.mnist:FedEMMnist",
    "fedem-missing": "fedcore.papers.fedem.missing:FedEMMissing",
    "fedem-bytes": "fedcore.papers.fedem.bytes:FedEMBytes",
    "fedem-tabular": "fedcore.papers.fedem.tabular:FedEMTabular",
    "em-defaults": "fedcore.papers.fedem.defaults:EMDefaults",
    "fedgrem-gmm": "fedcore.papers.fedgrem.simulations:FedGrEMGaussians",
    "fedgrem-mor": "fedcore.papers.fedgrem.simulations:FedGrEMRegressions",
    "fedgrem-pendigits": "fedcore.papers.fedgrem.clusters:FedGrEMPenDigits",
    "fedgrem-mnist": "fedcore.papers.fedgrem.clusters:FedGrEMMnist",
    "fedgrem-fashion": "fedcore.papers.fedgrem.clusters:FedGrEMFashion",
    "perma-synthetic": "fedcore.papers.perma.synthetic:PermaSynthetic",
    "perma-mnist": "fedcore.papers.perma.mnist:PermaMnist",
    "perma-video": "fedcore.papers.perma.video:PermaVideo",
    "perma-rg": "fedcore.papers.perma.rg:PermaRg",
    "dictionary-mnist": "fedcore.papers.perma.learners:DictionaryMnist",
    "dictionary-femnist": "fedcore.papers.perma.learners:DictionaryFemnist",
    "dictionary-series": "fedcore.papers.perma.series:DictionarySeries",
    "background-clips": "fedcore.papers.perma.background_clips:BackgroundClips",
    "private-gmm": "fedcore.papers.private_gmm.tables:PrivateGMMTables",
    "private-mixture": "fedcore.papers.private_mixture.tables:PrivateMixtureTables",
}


def experiment(name: str) -> Experiment:
    """The experiment of this name. Raises ConfigError if there is none."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"there is no experiment {name!r}.", f"Known: {', '.join(EXPERIMENTS)}.")
    module, attribute = EXPERIMENTS[name].split(":")
    return getattr(import_module(module), attribute)()
