"""The metrics of a round of `private_mixture`, with the curves that are drawn of them, and its line for the log."""

from fedcore.methods.private_mixture.config import PrivateMixtureConfig
from fedcore.methods.private_mixture.feasibility import words_of
from fedcore.methods.private_mixture.plan import Phase
from fedcore.methods.private_mixture.state import PrivateMixtureState
from fedcore.rounds.method import RoundInfo
from fedcore.rounds.results import Metric

METRICS = (
    Metric("components", "Components", "", "Components that hold enough to be kept; 0 before there are starts."),
    Metric("background", "Share of the background", "", "Weight of the broad component that takes what fits no other."),
    Metric("groups", "Groups", "", "Groups of components that density dips separate from all others."),
    Metric("released_count"),
)
LOWERED = (
    "by the first releases the expected utility is {now}, not {before}. If that is of no use, stop here: "
    "`fedcore runs abandon` returns the budget of the rounds that were not made"
)


def info_of(config: PrivateMixtureConfig, made: Phase, after: PrivateMixtureState) -> RoundInfo:
    """After a round: released count, components, background and groups. The round whose releases lower the expected
    utility has a line for the log, before EM spends anything."""
    note = ""
    if (made.kind, made.step) == ("norms", 1):
        before, now = words_of(config, after)
        note = LOWERED.format(now=now, before=before) if now != before else ""
    return RoundInfo(
        {
            "released_count": after.count,
            "components": float(len(after.means)),
            "background": float(after.weights[-1]) if len(after.weights) else 0.0,
            "groups": float(after.group.max() + 1) if len(after.group) else 0.0,
        },
        note,
    )
