"""The metrics of a round of `mixed_effects`, with the curves that are drawn of them."""

from fedcore.rounds.results import Metric

METRICS = (
    Metric(
        "movement",
        "Movement of the common coefficients",
        "",
        "How far common coefficients, or standard deviations around them, moved in each round.",
    ),
    Metric(
        "between_clients",
        "Standard deviation of clients' coefficients around the common ones",
        "",
        "Root mean square of all coefficients, in units of the noise.",
    ),
    Metric("apart", "Share of clients left apart", "", "Clients that do not count in the common coefficients."),
    Metric("active_clients", "Active clients", "", "Clients that took part in each round."),
    Metric("centre_step"),
    Metric("clients"),
    Metric("fitted"),
    Metric("gain", follows_data=True),
    Metric("log_likelihood", follows_data=True),
    Metric("noise"),
    Metric("robust"),
    Metric("rows"),
    Metric("second_starts"),
)
