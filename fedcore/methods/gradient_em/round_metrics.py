"""The metrics of a round of `gradient_em`, with the curves that are drawn of them."""

from fedcore.rounds.results import Metric

METRICS = (
    Metric("movement", "Movement of the common centres", "", "How far centres or parameters moved in each round."),
    Metric(
        "between_clients",
        "Standard deviation of clients' centres around the common ones",
        "",
        "For each coordinate, in units of the standard deviation within a component.",
    ),
    Metric(
        "apart",
        "Share of outlying estimates",
        "",
        "Estimates of clients that are farther from the common centre than the penalty reaches.",
    ),
    Metric("active_clients", "Active clients", "", "Clients that took part in each round."),
    Metric("central_gradient"),
    Metric("central_steps"),
    Metric("centre_step"),
    Metric("clients"),
    Metric("diverged"),
    Metric("fitted"),
    Metric("gain", follows_data=True),
    Metric("held_out", follows_data=True),
    Metric("left_out"),
    Metric("log_likelihood", follows_data=True),
    Metric("penalty"),
    Metric("rows"),
    Metric("second_starts"),
    Metric("spread"),
)
