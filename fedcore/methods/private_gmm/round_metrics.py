"""The metrics of a round of `private_gmm`, with the curves that are drawn of them."""

from fedcore.rounds.results import Metric

METRICS = (
    Metric(
        "radius",
        "Largest radius of a cell's ball",
        "units of the data",
        "The released ball that rows are cut to, of the level or the leaves in work; jumps where a level begins.",
    ),
    Metric("leaves", "Cells", "", "Cells that the search has found so far; each becomes a component."),
    Metric(
        "candidates",
        "Candidate centres",
        "",
        "Released centres of boxes that hold many rows, before balls are chosen among them.",
    ),
    Metric(
        "noise_of_a_count",
        "Noise of a count (standard deviation)",
        "units",
        "What one unit of noise in a release hides, were every release a count.",
    ),
    Metric("level"),
    Metric("released_count"),
)
