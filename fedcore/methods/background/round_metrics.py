"""The metrics of a round of `background`; those with a title are drawn as curves."""

from fedcore.rounds.results import Metric

METRICS = (
    Metric(
        "spread",
        "Spread of a frame about the background",
        "units of the data",
        "1.4826 median |frame - background|, the median over the frames.",
        follows_data=True,
    ),
    Metric("movement", "Movement of the background", "units of the data", "Root mean square over the pixels."),
    Metric("active_clients", "Active clients", "", "Clients that took part in each round."),
    Metric(
        "loss",
        caption="Mean of weight times squared residual, over the pixels of the frames that show the scene.",
        follows_data=True,
    ),
    Metric("bytes_down", caption="Received by all clients."),
    Metric("bytes_up", caption="Sent by all clients."),
    Metric("clients", caption="Clients with frames."),
    Metric("modes", caption="Images by which the background varies."),
    Metric("rows", caption="Frames."),
    Metric("silent", caption="Clients without frames."),
    Metric("strangers", caption="Frames that do not show the scene, by their gain."),
)
