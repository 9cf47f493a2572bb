"""The metrics of a round of `histograms`, with the curves that are drawn of them.

Those that follow data are made from exact sums, and only algorithms without privacy have them.
"""

from fedcore.rounds.results import Metric

METRICS = (
    Metric(
        "objective",
        "Objective",
        "nats per client",
        "Objective of the training data after each round.",
        follows_data=True,
    ),
    Metric("movement", "Movement of the centres", "total variation", "How far the centres moved in each round."),
    Metric("cell", follows_data=True),
    Metric("chosen"),
    Metric("clear_eigenvectors"),
    Metric("clients", follows_data=True),
    Metric("clip"),
    Metric("empty_clusters", follows_data=True),
    Metric("entropy", follows_data=True),
    Metric("floor"),
    Metric("kept_mass", follows_data=True),
    Metric("kept_tokens"),
    Metric("live_cells"),
    Metric("misfit", follows_data=True),
    Metric("noise_multiplier"),
    Metric("prior_tokens"),
    Metric("released_count"),
)
