"""The metrics of a round of `private_gmm`, with the curves that are drawn of them."""

from fedcore.rounds.results import Metric

METRICS = (
    Metric(
        "radius",
        "Largest radius of a ball",
        "units of the data",
        "The released balls that rows are cut to: of the nodes of the level, or of the cells, that the round is about; "
        "it jumps where a level begins.",
    ),
    Metric("leaves", "Cells", "", "Cells of the partition found so far; each becomes a component."),
    Metric(
        "candidates",
        "Candidate centres",
        "",
        "Released centres of boxes that hold many rows, before balls are chosen among them.",
    ),
    Metric("noise_of_a_count"),  # of the round's first release, as if it were one; sums of squares have far more
    Metric("level"),
    Metric("released_count"),
)
