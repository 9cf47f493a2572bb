"""The metrics of a round of `dictionaries`; those with a title are drawn as curves."""

from fedcore.rounds.results import Metric

METRICS = (
    Metric(
        "loss",
        "Squared residual of a sample",
        "units of the data, squared",
        "Mean over all samples of the clients that took part, before they moved their atoms.",
        follows_data=True,
    ),
    Metric("movement", "Largest movement of a global atom", "", "How far the atom moved that moved the most."),
    Metric("nonzero", "Atoms of a sample's code", "", "Mean over the samples."),
    Metric("active_clients", "Active clients", "", "Clients that took part in each round."),
    Metric("bytes_down", caption="Received by all clients."),
    Metric("bytes_up", caption="Sent by all clients."),
    Metric("clip", caption="Norm to which a client's steps of the atoms were clipped."),
    Metric("clients", caption="Clients with samples other than zero."),
    Metric("doubled", caption="Unused global atoms that were replaced."),
    Metric("few_samples", caption="Clients with fewer samples than atoms."),
    Metric("found", caption="Directions of the released second moments that stand out of the noise."),
    Metric("global_atoms", caption="Number of global atoms."),
    Metric("local_atoms", caption="Local atoms of a client that keeps some, mean."),
    Metric("loud_clients", caption="Share of clients whose rows were scaled down, as all of them are loud."),
    Metric("loud_rows", caption="Share of rows that were scaled down, as they are far louder than most."),
    Metric("noise_of_step", caption="Expected length of the noise in a full step of an atom; median over atoms."),
    Metric("rows", caption="Samples."),
    Metric("scale", caption="Typical mean squared norm of a client's rows, as released."),
    Metric("silent", caption="Clients without samples other than zero."),
    Metric("step", caption="Share of a full step that atoms make; median over atoms."),
    Metric("with_local_atoms", caption="Clients that keep local atoms, because held-out samples are coded better."),
    Metric("worst_loss", caption="Largest loss of a client.", follows_data=True),
)
