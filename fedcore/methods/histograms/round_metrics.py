"""The metrics of a round of `histograms`, with the curves that are drawn of them."""

from fedcore.rounds.results import Metric

METRICS = (
    Metric("movement", "Movement of the centres", "total variation", "How far the centres moved in each round."),
    Metric("clear_eigenvectors"),
    Metric("clip"),
    Metric("floor"),
    Metric("kept_tokens"),
    Metric("live_cells"),
    Metric("noise_multiplier"),
    Metric("prior_tokens"),
    Metric("released_count"),
)
