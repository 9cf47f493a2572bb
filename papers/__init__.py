"""Tables and figures of the papers, rebuilt: the paper's column beside ours."""

from __future__ import annotations

from importlib import import_module

from fedcore.papers.table import Experiment

from fedcore.errors import ConfigError

EXPERIMENTS = {
    "histograms-table1": "fedcore.papers.histograms.table1:TABLE_1",
    "fedem-synthetic": "fedcore.papers.fedem.synthetic:SYNTHETIC",
    "fedem-mnist": "fedcore.papers.fedem.mnist:MNIST",
    "fedem-missing": "fedcore.papers.fedem.missing:MISSING",
    "fedem-bytes": "fedcore.papers.fedem.bytes:BYTES",
    "fedem-tabular": "fedcore.papers.fedem.tabular:TABULAR",
    "em-defaults": "fedcore.papers.fedem.defaults:DEFAULTS",
    "imputation": "fedcore.papers.fedem.imputation:IMPUTATION",
    "imputation-species": "fedcore.papers.fedem.species:SPECIES",
    "fedgrem-gmm": "fedcore.papers.fedgrem.tables:GAUSSIAN_MIXTURES",
    "fedgrem-mor": "fedcore.papers.fedgrem.tables:REGRESSION_MIXTURES",
    "fedgrem-pendigits": "fedcore.papers.fedgrem.tables:PEN_DIGITS",
    "fedgrem-mnist": "fedcore.papers.fedgrem.tables:MNIST",
    "fedgrem-fashion": "fedcore.papers.fedgrem.tables:FASHION",
    "perma-synthetic": "fedcore.papers.perma.synthetic:SYNTHETIC",
    "perma-mnist": "fedcore.papers.perma.mnist:MNIST",
    "perma-video": "fedcore.papers.perma.video:VIDEO",
    "perma-rg": "fedcore.papers.perma.rg:RG",
    "dictionary-mnist": "fedcore.papers.perma.learners:DICTIONARY_MNIST",
    "dictionary-femnist": "fedcore.papers.perma.learners:DICTIONARY_FEMNIST",
    "dictionary-series": "fedcore.papers.perma.series:SERIES",
    "dictionary-sizes": "fedcore.papers.perma.sizes:SIZES",
    "dictionary-influence": "fedcore.papers.perma.sizes:INFLUENCE",
    "dictionary-private": "fedcore.papers.perma.private_dictionaries:PRIVATE",
    "dictionary-private-mnist": "fedcore.papers.perma.private_dictionaries:PRIVATE_MNIST",
    "dictionary-cosines": "fedcore.papers.perma.private_dictionaries:COSINES",
    "background-clips": "fedcore.papers.perma.background_clips:CLIPS_TABLE",
    "private-gmm": "fedcore.papers.private_gmm.tables:PRIVATE_GMM",
    "private-mixture": "fedcore.papers.private_mixture.tables:PRIVATE_MIXTURE",
}


def experiment(name: str) -> Experiment:
    """The experiment of this name. Raises ConfigError if there is none."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"there is no experiment {name!r}.", f"Known: {', '.join(EXPERIMENTS)}.")
    module, attribute = EXPERIMENTS[name].split(":")
    found: Experiment = getattr(import_module(module), attribute)
    return found
