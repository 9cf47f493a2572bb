"""The metrics of a round of `federated_em`, with the curves that are drawn of them."""

from fedcore.rounds.results import Metric

METRICS = (
    Metric(
        "objective",
        "Negative log-likelihood",
        "nats per row",
        "Objective of the training data after each round.",
        follows_data=True,
    ),
    Metric(
        "field_norm",
        "Squared norm of the field H",
        "",
        "How far the statistics still are from a fixed point of EM; compression and batches add noise to it.",
    ),
    Metric("active_clients", "Active clients", "", "Clients that took part in each round."),
    Metric("bits_up", "Bits from clients", "bits", "Encoded messages of all active clients in each round."),
    Metric("movement", "Movement of the parameters", "", "How far centres or parameters moved in each round."),
    Metric("bits_down"),
    Metric("clients", follows_data=True),
    Metric("epochs"),
    Metric("expectations"),
    Metric("gamma"),
    Metric("halvings"),
    Metric(
        "held_out_loss",
        "Negative log-likelihood of held-out rows",
        "nats per row",
        "Mean loss of the clients' rows that take no part in training, in the units of the objective.",
        follows_data=True,
    ),
    Metric("held_out_loss_in_data_units", follows_data=True),
    Metric("bic", follows_data=True),
    Metric("icl", follows_data=True),
    Metric("largest_cluster", follows_data=True),
    Metric("mean_field_norm", follows_data=True),
    Metric("noise_multiplier"),
    Metric("picked"),
    Metric("pseudo_rows", follows_data=True),
    Metric("rows", follows_data=True),
    Metric("sampled_rows", follows_data=True),
    Metric("smallest_cluster", follows_data=True),
    Metric("spread_of_starts", follows_data=True),
)
