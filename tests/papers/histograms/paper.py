"""The method `paper_histograms` with settings by name."""

from functools import reduce

from fedcore.papers.histograms import PaperHistograms

from fedcore.methods.registry import make_method
from fedcore.rounds.statistics import merge, values


def paper(**settings) -> PaperHistograms:
    return make_method("paper_histograms", settings)


def in_two_orders(method, message, parts, cut: int) -> tuple[dict, dict]:
    """What the clients of these leaves answer together; and the same, with the leaves from `cut` on merged first."""

    def total(group):
        return reduce(merge, (method.client_update(message, part, None)[0] for part in group))

    return values(total(parts)), values(merge(total(parts[cut:]), total(parts[:cut])))
