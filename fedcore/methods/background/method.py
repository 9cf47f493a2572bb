"""The method `background`: one image that all frames of a camera share, with a gain and an offset of each frame.

    start    clients answer with the histogram of their pixels, which gives their range
    mean     with their mean image; left out where a warm start gives one
    rounds   with two sums of each pixel (`frames`), and sums for the modes by which the image varies (`modes`)
    noise    with two sums of each pixel more, for its standard deviation

Clients of several cameras have an image for each (`scenes`), and frames of a camera that shakes are moved back onto it
(`shakes`). `frames` and `codes` have what a frame is compared by, `clients` the sums, `server` the steps, `outputs`
what clients are given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.background import clients, outputs, server
from fedcore.methods.background.config import BackgroundConfig
from fedcore.methods.background.frames import BackgroundMessage
from fedcore.methods.background.scenes import MOST, SIGNED, scenes_of
from fedcore.methods.background.state import BackgroundState
from fedcore.population.blocks import ClientBlock, Kind, RowsBlock
from fedcore.rounds.method import ClientOutputs, Memory, NonPrivateMethod, PublicFacts, RoundInfo
from fedcore.rounds.results import Features, Metric, Result
from fedcore.rounds.scores import KnownMemories, ScoreTable
from fedcore.rounds.statistics import Statistics

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
    Metric("moved", caption="Frames farther than half a pixel from their place, where frames are compared with it."),
    Metric("noise", caption="Median over the pixels of their standard deviation.", follows_data=True),
    Metric("rows", caption="Frames."),
    Metric("scenes", caption="Scenes that clients show, such as those of several cameras."),
    Metric("silent", caption="Clients without frames."),
    Metric("strangers", caption="Frames that do not show the scene, by their gain."),
)


class Background(NonPrivateMethod[BackgroundConfig, BackgroundState]):
    """The background of a camera that stands still, and what moves before it, by robust sums over clients' frames.

    A row is a frame, all its pixels and channels in position; a client is a camera's, or a run of consecutive frames.
    """

    name: ClassVar[str] = "background"
    kinds: ClassVar[tuple[Kind, ...]] = ("rows",)
    arithmetic_version: ClassVar[str] = "background-3"
    streams_rows: ClassVar[bool] = True
    Config = BackgroundConfig
    State = BackgroundState
    metrics: ClassVar[tuple[Metric, ...]] = METRICS
    algorithm: ClassVar[str] = "robust sums of frames"
    accepts_warm_start: ClassVar[bool] = True
    outputs_use_memories: ClassVar[bool] = False
    free_settings: ClassVar[tuple[str, ...]] = ("least_change", "shadows")

    @property
    def not_private_because(self) -> str:
        return "sums of clients' frames reach the server without noise in every round"

    # --- rounds -----------------------------------------------------------------------------------------------------

    def init(self, public: PublicFacts) -> BackgroundState:
        given = public.warm_start
        images = np.atleast_2d(given["background"]) if given else np.zeros((0, public.features))
        every = -(-(public.clients or 1) // SIGNED)
        height, width = public.image or (0, 0)
        return BackgroundState(
            "start", 0, public.seed, public.features, images, bool(given), every=every, height=height, width=width
        )

    def total_rounds(self, state: BackgroundState) -> int:
        """With the passes for the range and, unless an image is given, for the mean."""
        return self.config.rounds + server.NOISE_PASSES + (1 if state.given else 2)

    def message(self, state: BackgroundState) -> BackgroundMessage | None:
        return server.message(self.config, state)

    def client_update(
        self, message: BackgroundMessage, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        """Clients remember nothing. Raises PopulationError for values that are not finite."""
        return clients.client_update(self.config, message, cast(RowsBlock, block)), None

    def server_update(self, state: BackgroundState, result: Mapping[str, Any]) -> tuple[BackgroundState, RoundInfo]:
        return server.server_update(self.config, state, result)

    def clients_kept_apart(self, clients: int) -> int:
        return min(clients, SIGNED)

    def phase(self, state: BackgroundState, message: BackgroundMessage) -> str:
        return state.phase

    # --- what a run shows, and leaves to the next -------------------------------------------------------------------

    def result(self, state: BackgroundState, features: Features) -> Result:
        """How bright and how sharp the image is; and the image, where rows are pictures."""
        return outputs.result_of(state, features)

    def warm_start_of(self, state: BackgroundState) -> dict[str, np.ndarray]:
        """background: (d,) the image, or (S, d) of several scenes. Gains, offsets and modes are estimated again: rounds
        that started from the modes of an earlier run ended farther from the truth. Raises ConfigError before the first
        round."""
        if state.round < 1:
            raise ConfigError("stopped before it had a background.", "Name a run that has.")
        images = np.concatenate([one.images[:1] for one in scenes_of(state)])
        return {"background": images if len(images) > 1 else images[0]}

    def checked_warm_start(self, arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
        """The array 'background' as float64 (d,), or (S, d) of several scenes. Raises ConfigError, naming `what`."""
        image = arrays.get("background")
        if image is None or image.dtype.kind not in "iuf" or not np.isfinite(image).all():
            raise ConfigError(f"{what} has no array 'background' of finite numbers.")
        if image.shape != (features,) and not (
            image.ndim == 2 and image.shape[1] == features and 1 < len(image) <= MOST
        ):
            raise ConfigError(f"'background' of {what} has shape {image.shape}, and the run needs {(features,)}.")
        return {"background": np.asarray(image, np.float64)}

    def free_settings_in_force(self, state: BackgroundState) -> dict[str, Any]:
        return {"least_change": server.least_change(self.config, state), "shadows": self.config.shadows}

    # --- for each client --------------------------------------------------------------------------------------------

    def personalise(self, state: BackgroundState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """Every frame split in its background and what is left; see `fedcore.methods.background.outputs`."""
        return outputs.split_frames(self.config, state, cast(RowsBlock, block))

    # --- scores on held-out data ------------------------------------------------------------------------------------

    def score_block(self, state: BackgroundState, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        return outputs.score_frames(state, cast(RowsBlock, block))

    def score_table(self, statistics: Mapping[str, np.ndarray]) -> ScoreTable:
        return outputs.score_table(statistics)
