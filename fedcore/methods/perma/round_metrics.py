"""The metrics of a round of `perma`; those with a title are drawn as curves."""

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
    Metric(
        "distance",
        "Distance of the clients' versions of the global atoms",
        "",
        "From the global atoms; mean over clients and atoms. Orthogonal atoms are 1.41 apart.",
    ),
    Metric("nonzero", "Atoms of a sample's code", "", "Mean over the samples."),
    Metric("active_clients", "Active clients", "", "Clients that took part in each round."),
    Metric("begun_anew", caption="Clients with new local atoms after a restart."),
    Metric("bytes_down", caption="Received by all clients."),
    Metric("bytes_up", caption="Sent by all clients."),
    Metric("clients", caption="Clients with samples other than zero."),
    Metric("collisions", caption="Atoms that clients chose twice as global ones."),
    Metric("far", caption="Clients whose mean matched distance is above the limit."),
    Metric("farthest", caption="Largest mean matched distance of a client."),
    Metric("few_samples", caption="Clients with fewer samples than atoms."),
    Metric("global_atoms", caption="Number of global atoms."),
    Metric("least_norm", caption="Smallest norm of a global atom before scaling."),
    Metric("left_out", caption="Matched atoms, later clients, that are left out of the aggregate."),
    Metric("matched", caption="Clients whose dictionaries were matched."),
    Metric("not_shared", caption="Global atoms on whose direction the clients do not agree."),
    Metric("objective", caption="Of the clients' own dictionaries, for each sample.", follows_data=True),
    Metric("rows", caption="Samples."),
    Metric("score", caption="Of the worst matched atom."),
    Metric("silent", caption="Clients without samples other than zero."),
    Metric("unused_atoms", caption="Atoms that no sample of their client uses."),
    Metric("worst_loss", caption="Largest loss of a client.", follows_data=True),
)
