"""Frames of a fixed camera as clients' samples, and a synthetic clip whose truth is known.

Source: Liang, Shi, Al Kontar, Fattahi 2023, Section 5.2. A frame is a client: its pixels become samples (n, d). Two
layouts have the paper's size, 1600 samples of 576 numbers, for a frame of 480 x 640 x 3:

    polyphase   blocks of 40 x 40 pixels; a sample holds the pixel at one offset of every block, in three channels: a
                thumbnail of the whole frame. A feature is a place in the scene. This is what the authors' scripts do.
    tiles       tiles of 12 x 16 pixels; a sample is one tile. Places are lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from scipy.ndimage import gaussian_filter

from fedcore.errors import ConfigError, IngestError
from fedcore.randomness import stream

Layout = Literal["polyphase", "tiles"]
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
CONTRAST = (0.05, 0.3)  # range of the distance of an object's colour from the mean of the scene, in each channel


@dataclass(frozen=True, slots=True)
class Clip:
    """A clip with its truth.

    frames: (F, H, W, C) float64, about [0, 1]; background: (H, W, C), without gain and noise, or (F, H, W, C), of each
            frame with its gain
    masks:  (F, H, W) bool, where an object is
    """

    frames: np.ndarray
    background: np.ndarray
    masks: np.ndarray


# --- layouts --------------------------------------------------------------------------------------------------------


def to_rows(frame: np.ndarray, block: tuple[int, int], layout: Layout = "polyphase") -> np.ndarray:
    """(n, d) samples of a frame (H, W, C); block: height and width in pixels, which must divide the frame's.

    polyphase: n = bh bw, d = C HW / (bh bw); entry (u bw + v, channel * blocks + block) is the pixel at offset (u, v)
    of the block. tiles: n = HW / (bh bw), d = bh bw C. Raises ConfigError if the blocks do not fill the frame.
    """
    rows, columns = blocks_of(frame.shape, block)
    cut = frame.reshape(rows, block[0], columns, block[1], frame.shape[2])
    if layout == "polyphase":
        return cut.transpose(1, 3, 4, 0, 2).reshape(block[0] * block[1], -1)
    return cut.transpose(0, 2, 1, 3, 4).reshape(rows * columns, -1)


def to_frame(
    rows: np.ndarray, shape: Sequence[int], block: tuple[int, int], layout: Layout = "polyphase"
) -> np.ndarray:
    """The frame (H, W, C) = shape of samples made by `to_rows`."""
    down, across = blocks_of(shape, block)
    if layout == "polyphase":
        cut = rows.reshape(*block, shape[2], down, across).transpose(3, 0, 4, 1, 2)
    else:
        cut = rows.reshape(down, across, *block, shape[2]).transpose(0, 2, 1, 3, 4)
    return cut.reshape(shape)


def blocks_of(shape: Sequence[int], block: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of blocks of a frame of this shape. Raises ConfigError if the blocks do not fill it."""
    if min(block) < 1 or shape[0] % block[0] or shape[1] % block[1]:
        raise ConfigError(
            f"blocks of {block[0]} x {block[1]} pixels do not fill a frame of {shape[0]} x {shape[1]}.",
            "Choose a height and a width that divide those of the frame.",
        )
    return shape[0] // block[0], shape[1] // block[1]


# --- clips ----------------------------------------------------------------------------------------------------------


def surveillance(
    seed: int,
    frames: int = 24,
    height: int = 120,
    width: int = 160,
    objects: int = 3,
    share: float = 0.06,
    gain: float = 0.02,
    noise: float = 0.01,
    smooth: float = 2.0,
    texture: float = 0.15,
) -> Clip:
    """Rectangles of one colour each that cross a fixed textured scene in straight lines.

    share: of the pixels that objects cover, about; gain: standard deviation of a frame's brightness, relative; noise:
    of a pixel; texture: standard deviation of the scene's smoothed noise around a ramp; smooth: its width in pixels.
    """
    generator = stream(seed, "dictionaries/surveillance")
    down, across = np.mgrid[0:height, 0:width]
    smoothed = gaussian_filter(generator.standard_normal((height, width, 3)), (smooth, smooth, 0), mode="wrap")
    ramp = 0.3 + 0.2 * (down / height + across / width)
    background = np.clip(ramp[:, :, None] + texture * smoothed / smoothed.std(), 0.0, 1.0)

    clean = np.repeat(background[None], frames, axis=0)
    masks = np.zeros((frames, height, width), bool)
    side = np.sqrt(share * height * width / objects)
    for _ in range(objects):
        stretch = generator.uniform(0.7, 1.4)
        size = np.maximum(np.rint([side * stretch, side / stretch]).astype(int), 1)
        room = np.maximum(np.array([height, width]) - size, 0)
        start, end = generator.uniform(0, 1, (2, 2)) * room
        axis = int(generator.integers(2))
        start[axis], end[axis] = (0, room[axis])[:: int(generator.choice([-1, 1]))]  # from border to border
        contrast = generator.uniform(*CONTRAST, 3) * generator.choice([-1.0, 1.0], 3)
        colour = np.clip(background.mean(axis=(0, 1)) + contrast, 0.0, 1.0)
        for at in range(frames):
            low = np.rint(start + (end - start) * at / max(frames - 1, 1)).astype(int)
            covered = (at, slice(low[0], low[0] + size[0]), slice(low[1], low[1] + size[1]))
            clean[covered], masks[covered] = colour, True
    brightness = 1.0 + gain * generator.standard_normal((frames, 1, 1, 1))
    return Clip(brightness * clean + noise * generator.standard_normal(clean.shape), background, masks)


def read_clip(path: str | Path, every: int = 1) -> np.ndarray:
    """(F, H, W, C) float64 in [0, 1] from an NPZ or NPY of frames, or a folder of images in the order of their names.

    Integers are divided by the largest of their type; grey frames get one channel. every: keep each so-many-th frame.
    Raises IngestError for anything else.
    """
    path = Path(path)
    if path.is_dir():
        return _folder(path, every)
    try:
        stored = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise IngestError(
            f"{path.name!r} cannot be read as frames ({type(error).__name__}).",
            "Give an .npz with an array 'frames', an .npy, or a folder of images.",
        ) from error
    if isinstance(stored, np.lib.npyio.NpzFile):
        with stored:
            name = "frames" if "frames" in stored.files else stored.files[0] if len(stored.files) == 1 else None
            if name is None:
                raise IngestError(f"{path.name!r} holds {', '.join(stored.files)}.", "Name the array 'frames'.")
            frames = stored[name]
    else:
        frames = stored
    return _scaled(frames[::every], path.name)


def _folder(path: Path, every: int) -> np.ndarray:
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGES)[::every]
    if not files:
        raise IngestError(f"folder {path.name!r} holds no images.", f"Known endings: {', '.join(IMAGES)}.")
    from PIL import Image, UnidentifiedImageError

    frames = []
    for file in files:
        try:
            with Image.open(file) as image:
                frames.append(np.asarray(image.convert("RGB")))
        except (OSError, UnidentifiedImageError) as error:
            raise IngestError(f"{file.name!r} cannot be read as an image.", "Remove or replace it.") from error
        if frames[-1].shape != frames[0].shape:
            raise IngestError(
                f"{file.name!r} is of another size than {files[0].name!r}.", "All frames of a clip have one size."
            )
    return _scaled(np.stack(frames), path.name)


def _scaled(frames: np.ndarray, name: str) -> np.ndarray:
    frames = frames[..., None] if frames.ndim == 3 else frames
    if frames.ndim != 4 or not frames.size or frames.dtype.kind not in "uif":
        raise IngestError(
            f"{name!r}: frames of shape {frames.shape} and type {frames.dtype}.",
            "Frames are numbers of shape (frames, height, width) or (frames, height, width, channels).",
        )
    if frames.dtype.kind == "f":
        if not np.isfinite(frames).all():
            raise IngestError(f"{name!r} has pixels that are not finite.", "Replace them.")
        return frames.astype(np.float64)
    return frames / np.float64(np.iinfo(frames.dtype).max)
