"""The metrics of a round of `dictionaries`, with the curves that are drawn of them."""

from fedcore.rounds.results import Metric

METRICS = (
    Metric(
        "loss",
        "Squared residual of a sample",
        "units of the data, squared",
        "Mean over all samples of the clients that took part, before their step.",
        follows_data=True,
    ),
    Metric("movement", "Largest movement of a global atom", "", "How far centres or parameters moved in each round."),
    Metric(
        "distance",
        "Clients' own version of the global atoms from them",
        "",
        "Mean over clients and atoms; unit atoms that have nothing in common are 1.41 apart.",
    ),
    Metric("nonzero", "Atoms of a sample's code", "", "Mean over the samples."),
    Metric("active_clients", "Active clients", "", "Clients that took part in each round."),
    Metric("begun_anew"),
    Metric("bytes_down"),
    Metric("bytes_up"),
    Metric("clients"),
    Metric("collisions"),
    Metric("doubled"),
    Metric("far"),
    Metric("farthest"),
    Metric("few_samples"),
    Metric("global_atoms"),
    Metric("least_norm"),
    Metric("left_out"),
    Metric("matched"),
    Metric("not_shared"),
    Metric("objective", follows_data=True),
    Metric("rows"),
    Metric("score"),
    Metric("silent"),
    Metric("unused_atoms"),
    Metric("worst_loss", follows_data=True),
)
