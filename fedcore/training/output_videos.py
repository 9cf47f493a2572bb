"""Personalised outputs of rows that are frames, as videos: NAME.videos, a folder.

For each sequence of frames there are SEQUENCE-background.mkv and SEQUENCE-mask.mkv. Tables and contact sheet are
those of NAME.pngs (`fedcore.training.output_pictures`). Clients FILE:0, FILE:8 ... that follow each other are the
sequence FILE. Any other client is one sequence. Frames are written one by one, so memory does not grow with
their number.

The format is Matroska with FFV1, which loses nothing: a mask is exactly 0 or 255. The time of a frame is unknown. A
second of video has RATE frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.errors import needs
from fedcore.population.store import Population
from fedcore.storage.files import opened
from fedcore.training.output_pictures import PictureFolder, bytes_of, folder_name

RATE = 25
ENDS = ("-background.mkv", "-mask.mkv")
EXACT = "+bitexact"  # FFmpeg writes no time, no version and no random number


class VideoFolder(PictureFolder):
    """Raises ConfigError, when it is asked for, if rows are no pictures, ExtraMissing if PyAV is not installed."""

    def __init__(self, path: Path, population: Population, features: Sequence[str]):
        super().__init__(path, population, features)
        with needs(f"The folder of videos {path.name!r}", "av", "Or end the name in .pngs."):
            import av
        self.av = av
        self.videos: list[_Video] = []
        self.names: dict[str, int] = {}

    def _begin(self, sequence: str) -> None:
        super()._begin(sequence)
        self._end()
        name = folder_name(sequence)
        self.names[name] = again = self.names.get(name, 0) + 1
        name += "" if again == 1 else f"-{again}"
        self.videos = [_Video(self.av, self.partial / (name + end)) for end in ENDS]

    def _keep(self, client: str, number: int, background: np.ndarray, mask: np.ndarray) -> None:
        for video, picture in zip(self.videos, (background, mask), strict=True):
            video.add(bytes_of(picture))

    def _end(self) -> None:
        videos, self.videos = self.videos, []
        for video in videos:
            video.close()

    def commit(self) -> None:
        self._end()
        super().commit()

    def close(self) -> None:
        self._end()
        super().close()


class _Video:
    """A file that frames are added to, all of one size."""

    def __init__(self, av: Any, path: Path):
        self.av, self.sink = av, opened(path, "wb", private=True)
        self.stream: Any = None
        self.container = av.open(self.sink, "w", format="matroska", options={"fflags": EXACT})

    def add(self, picture: np.ndarray) -> None:
        """picture: (H, W) or (H, W, 3) uint8."""
        stored, form = ("gray", "gray") if picture.ndim == 2 else ("bgr0", "rgb24")
        if self.stream is None:
            self.stream = self.container.add_stream("ffv1", rate=RATE, options={"flags": EXACT})
            self.stream.height, self.stream.width, self.stream.pix_fmt = *picture.shape[:2], stored
            self.stream.codec_context.thread_count = 1
        frame = self.av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format=form)
        self.container.mux(self.stream.encode(frame))

    def close(self) -> None:
        try:
            if self.stream is not None:
                self.container.mux(self.stream.encode())
            self.container.close()
        finally:
            self.sink.close()
