"""The metrics of a round of `private_mixture`, with the curves that are drawn of them."""

from fedcore.rounds.results import Metric

METRICS = (
    Metric("components", "Components", "", "Components that hold enough to be kept; 0 before there are starts."),
    Metric("background", "Share of the background", "", "Weight of the broad component that takes what fits no other."),
    Metric("groups", "Groups", "", "Groups of components that a valley parts from all others."),
    Metric("released_count"),
)
