"""The method `paper_histograms` with settings by name."""

from fedcore.papers.histograms import PaperHistograms

from fedcore.methods.registry import make_method


def paper(**settings) -> PaperHistograms:
    return make_method("paper_histograms", settings)
