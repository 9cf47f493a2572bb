"""The metrics of a round of `histograms`, with the curves that are drawn of them."""

from fedcore.rounds.results import Metric

METRICS = (
    Metric(
        "objective",
        "Objective",
        "nats per client",
        "Objective of the training data after each round.",
        follows_data=True,
    ),
    Metric(
        "movement", "Movement of the centres", "total variation", "How far centres or parameters moved in each round."
    ),
    Metric("cell"),
    Metric("chosen"),
    Metric("clear_eigenvectors"),
    Metric("clients"),
    Metric("clip"),
    Metric("empty_clusters"),
    Metric("entropy", follows_data=True),
    Metric("kept_mass"),
    Metric("kept_tokens"),
    Metric("live_cells"),
    Metric("misfit", follows_data=True),
    Metric("noise_multiplier"),
    Metric("released_count"),
)
