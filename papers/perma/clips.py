"""Frames of a fixed camera as clients' samples, and synthetic clips whose truth is known.

Source: Liang, Shi, Al Kontar, Fattahi 2023, Section 5.2. A frame is a client: its pixels become samples (n, d). Two
layouts have the paper's size, 1600 samples of 576 numbers, for a frame of 480 x 640 x 3:

    polyphase   blocks of 40 x 40 pixels; a sample holds the pixel at one offset of every block, in three channels: a
                thumbnail of the whole frame. A feature is a place in the scene. This is what the authors' scripts do.
    tiles       tiles of 12 x 16 pixels; a sample is one tile. Places are lost.

Clips of `swaying` are harder than those of `surveillance`: texture sways, light moves, objects stay. What sways is
moved by smooth fields whose codes are random in time, so a frame is no sum of a few images. Noise follows brightness,
and that of a codec comes in blocks and where there is texture. Frames have 8 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from scipy.ndimage import gaussian_filter, map_coordinates

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


# --- clips that are harder --------------------------------------------------------------------------------------------


HEIGHT, WIDTH = 72, 96
MARGIN = 12  # pixels beyond the border, which may sway into the frame
TEXTURE = ((1.0, 0.5), (3.0, 0.7), (10.0, 1.0))  # widths in pixels of its smoothed noises, and their weights
PATCHES = 12  # rectangles of one colour in a scene, for edges
FIELDS = (1.0, 0.6, 0.4, 0.3, 0.2)  # standard deviations of the codes of the fields that sway, of that of the first
LIGHTS, SLOW = 2, 0.95  # fields of light, and the correlation of their codes from frame to frame
LAST = 0.2  # of the frames, in which the large object is there
BLOCK = 8  # pixels of a block of the codec


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a clip has. Standard deviations, but for counts and shares; pixels are in [0, 1].

    frames:         how many
    gain:           of a frame's brightness, relative
    noise:          of a pixel; shot: of a pixel of brightness 1, with a variance in proportion to it; codec: of the
                    noise of a codec, about
    sway:           of the first field, in pixels; fields: how many; extent: share of the frame that sways;
                    memory: correlation of their codes from frame to frame
    light:          of the light that moves over the scene, relative
    objects, share: rectangles that cross the frame, and their share of the pixels, about
    stay:           frames that each of them stands still on its way
    large:          share of the pixels of an object that comes in the last fifth of the frames; 0 for none
    """

    frames: int
    gain: float = 0.02
    noise: float = 0.008
    shot: float = 0.0
    codec: float = 0.0
    sway: float = 0.0
    fields: int = 3
    extent: float = 0.5
    memory: float = 0.6
    light: float = 0.0
    objects: int = 3
    share: float = 0.06
    stay: int = 0
    large: float = 0.0


CONDITIONS = {
    "still": Conditions(24, noise=0.01),
    "gains": Conditions(24, gain=0.06, noise=0.01),
    "noise": Conditions(30, gain=0.03, shot=0.02, codec=0.006),
    "stays": Conditions(40, gain=0.04, stay=9),
    "stays-larger": Conditions(30, gain=0.04, stay=9, share=0.1),
    "large": Conditions(34, gain=0.04, objects=0, large=0.22),
    "light": Conditions(40, gain=0.03, shot=0.01, light=0.06),
    "sways": Conditions(40, shot=0.01, sway=1.2),
    "sways-widely": Conditions(60, shot=0.01, sway=3.0, fields=5, extent=0.6, memory=0.3),
    "all": Conditions(
        34,
        gain=0.03,
        shot=0.015,
        codec=0.004,
        sway=2.0,
        fields=4,
        extent=0.6,
        light=0.03,
        objects=1,
        share=0.02,
        stay=4,
        large=0.2,
    ),
}


def swaying(seed: int, conditions: Conditions, height: int = HEIGHT, width: int = WIDTH) -> Clip:
    """A clip of height x width x 3 pixels of 8 bits, divided by 255; its background (F, H, W, 3) is what each frame
    would show without objects and noise, with its gain, in [0, 1]. The same seed has the same scene only if the
    conditions are the same."""
    generator, frames = stream(seed, "dictionaries/swaying-video"), conditions.frames
    wide = scene(generator, height + 2 * MARGIN, width + 2 * MARGIN)
    middle = wide[MARGIN:-MARGIN, MARGIN:-MARGIN]
    background = _swayed(generator, wide, conditions) if conditions.sway else np.repeat(middle[None], frames, axis=0)
    if conditions.light:
        background *= 1.0 + conditions.light * _moving_light(generator, frames, height, width)[..., None]

    clip = Clip(background.copy(), background, np.zeros((frames, height, width), bool))
    moving_objects(generator, clip, conditions, middle.mean(axis=(0, 1)))

    brightness = 1.0 + conditions.gain * generator.standard_normal((frames, 1, 1, 1))
    noisy = with_noise(generator, brightness * clip.frames, conditions)
    eight_bits = np.rint(np.clip(noisy, 0.0, 1.0) * 255.0) / 255.0
    return Clip(eight_bits, np.clip(brightness * background, 0.0, 1.0), clip.masks)


# --- the scene ------------------------------------------------------------------------------------------------------


def scene(generator: np.random.Generator, height: int, width: int) -> np.ndarray:
    """(H, W, 3) a ramp with texture and patches of one colour, in [.02, .98]."""
    down, across = np.mgrid[0:height, 0:width]
    found = 0.3 + 0.15 * (down / height + across / width)[..., None] + 0.1 * _texture(generator, height, width)
    for _ in range(PATCHES):
        centre, half = generator.uniform(0, 1, 2) * (height, width), generator.uniform(0.05, 0.2) * height
        angle = generator.uniform(0, np.pi)
        y, x = down - centre[0], across - centre[1]
        along, aside = y * np.cos(angle) + x * np.sin(angle), x * np.cos(angle) - y * np.sin(angle)
        patch = (np.abs(along) < half) & (np.abs(aside) < half * generator.uniform(0.3, 1))
        found[patch] += generator.uniform(-0.25, 0.25, 3)
    return np.clip(found, 0.02, 0.98)


def _texture(generator: np.random.Generator, height: int, width: int) -> np.ndarray:
    """(H, W, 3) noise of several widths, of standard deviation 1."""
    total = np.zeros((height, width, 3))
    for wide, weight in TEXTURE:
        total += weight * _smooth(generator, (height, width, 3), (wide, wide, 0))
    return total / total.std()


def _smooth(generator: np.random.Generator, shape: tuple[int, ...], widths: tuple[float, ...]) -> np.ndarray:
    """Smoothed normal noise of this shape, of standard deviation 1."""
    found: np.ndarray = gaussian_filter(generator.standard_normal(shape), widths, mode="wrap")
    return found / found.std()


def _codes(generator: np.random.Generator, frames: int, count: int, memory: float) -> np.ndarray:
    """(F, count) normal codes of variance 1, correlated from frame to frame (autoregression of order 1)."""
    codes = generator.standard_normal((frames, count))
    for at in range(1, frames):
        codes[at] = memory * codes[at - 1] + np.sqrt(1.0 - memory**2) * codes[at]
    return codes


def pasted(seed: int, frames: np.ndarray, objects: int = 4, share: float = 0.06) -> Clip:
    """Frames (F, H, W, 3) of [0, 1] of a camera, as the truth of the background, with rectangles that cross them.

    objects, share: of them, and of the pixels that they cover, about. Pixels have 8 bits.
    """
    generator = stream(seed, "dictionaries/pasted-video")
    clip = Clip(frames.copy(), frames, np.zeros(frames.shape[:3], bool))
    conditions = Conditions(len(frames), objects=objects, share=share)
    for _ in range(objects):
        _cross(generator, clip, conditions, frames.mean(axis=(0, 1, 2)))
    clip.frames[:] = np.rint(clip.frames * 255.0) / 255.0
    return clip


def _swayed(generator: np.random.Generator, wide: np.ndarray, conditions: Conditions) -> np.ndarray:
    """(F, H, W, 3) the scene with a margin, (H + 2 margin, W + 2 margin, 3), moved where it sways."""
    height, width = wide.shape[0] - 2 * MARGIN, wide.shape[1] - 2 * MARGIN
    blob = _smooth(generator, (height, width), (height / 8, height / 8))
    where = gaussian_filter((blob > np.quantile(blob, 1.0 - conditions.extent)).astype(float), 3.0)
    fields = np.stack(
        [_smooth(generator, (2, height, width), (0, height / 12, height / 12)) for _ in range(conditions.fields)]
    )
    codes = _codes(generator, conditions.frames, conditions.fields, conditions.memory)
    codes *= conditions.sway * np.array(FIELDS[: conditions.fields])
    places = np.mgrid[MARGIN : MARGIN + height, MARGIN : MARGIN + width].astype(float)
    moved = np.empty((conditions.frames, height, width, 3))
    for at, code in enumerate(codes):
        shifted = places + np.tensordot(code, fields, 1) * where
        for channel in range(3):
            moved[at, ..., channel] = map_coordinates(wide[..., channel], shifted, order=1, mode="reflect")
    return moved


def _moving_light(generator: np.random.Generator, frames: int, height: int, width: int) -> np.ndarray:
    """(F, H, W) sums of smooth fields with slow codes."""
    fields = np.stack([_smooth(generator, (height, width), (height / 3, height / 3)) for _ in range(LIGHTS)])
    return np.tensordot(_codes(generator, frames, LIGHTS, SLOW), fields, 1)


# --- objects --------------------------------------------------------------------------------------------------------


def moving_objects(generator: np.random.Generator, clip: Clip, conditions: Conditions, colour: np.ndarray) -> None:
    """Put the objects of the conditions into frames and masks. colour: (3,) mean of the scene."""
    for _ in range(conditions.objects):
        _cross(generator, clip, conditions, colour)
    if conditions.large:
        _come(generator, clip, conditions.large, colour)


def _object(
    generator: np.random.Generator, size: tuple[int, int], colour: np.ndarray, least: float, grain: float
) -> np.ndarray:
    """(h, w, 3) an object: a colour (3,) moved by least to the largest contrast in each channel, with texture."""
    contrast = generator.uniform(least, CONTRAST[1], 3) * generator.choice([-1.0, 1.0], 3)
    plain = np.clip(colour + contrast, 0.0, 1.0)
    return np.clip(plain + grain * _texture(generator, *size), 0.0, 1.0)


def _put(clip: Clip, at: int, top: int, left: int, image: np.ndarray) -> None:
    """Write an object (h, w, 3) into frame and mask; what lies beyond the right border is cut."""
    image = image[:, : clip.masks.shape[2] - left]
    covered = (at, slice(top, top + image.shape[0]), slice(left, left + image.shape[1]))
    clip.frames[covered], clip.masks[covered] = image, True


def _cross(generator: np.random.Generator, clip: Clip, conditions: Conditions, colour: np.ndarray) -> None:
    """A rectangle that goes from border to border in a straight line, and may stand still on its way."""
    frames, *whole = clip.masks.shape
    side, stretch = np.sqrt(conditions.share * whole[0] * whole[1] / conditions.objects), generator.uniform(0.7, 1.4)
    size = np.maximum(np.rint([side * stretch, side / stretch]).astype(int), 2)
    room = np.maximum(np.array(whole) - size, 0)
    start, end = generator.uniform(0, 1, (2, 2)) * room
    axis = int(generator.integers(2))
    start[axis], end[axis] = (0, room[axis])[:: int(generator.choice([-1, 1]))]
    image = _object(generator, (int(size[0]), int(size[1])), colour, CONTRAST[0], 0.03)
    stops = int(generator.integers(frames // 4, max(3 * frames // 4 - conditions.stay, frames // 4 + 1)))
    for at in range(frames):
        moved = min(at, stops) + max(at - stops - conditions.stay, 0)
        part = min(moved / max(frames - conditions.stay - 1, 1), 1.0)
        top, left = np.rint(start + (end - start) * part).astype(int)
        _put(clip, at, top, left, image)


def _come(generator: np.random.Generator, clip: Clip, share: float, colour: np.ndarray) -> None:
    """A large object that comes in from the right near the end, as a hand or a lorry, and trembles."""
    frames, height, width = clip.masks.shape
    there, tall = max(int(LAST * frames), 2), min(int(np.sqrt(share) * height * 1.1), height)
    size = (tall, int(share * height * width / tall))
    image = _object(generator, size, colour, 0.1, 0.05)
    middle = generator.uniform(0, height - tall)
    for step in range(there):
        top = int(np.clip(middle + 4.0 * np.sin(1.3 * step), 0, height - tall))
        left = round(width - size[1] * min(1.0, 0.3 + 1.2 * step / there) + 4.0 * np.sin(step))
        _put(clip, frames - there + step, top, min(max(left, 0), width - 2), image)


# --- noise ----------------------------------------------------------------------------------------------------------


def with_noise(generator: np.random.Generator, clean: np.ndarray, conditions: Conditions) -> np.ndarray:
    """Clean frames (F, H, W, C) with the noise of a camera and of a codec."""
    variance = conditions.noise**2 + conditions.shot**2 * np.clip(clean, 0.0, 1.0)
    noisy: np.ndarray = clean + np.sqrt(variance) * generator.standard_normal(clean.shape)
    if conditions.codec:
        noisy += conditions.codec * _codec_noise(generator, clean)
    return noisy


def _codec_noise(generator: np.random.Generator, clean: np.ndarray) -> np.ndarray:
    """(F, H, W, 3) noise of whole blocks and of single pixels, in proportion to the texture around."""
    frames, height, width, _ = clean.shape
    detail = np.abs(clean - gaussian_filter(clean, (0, 1.5, 1.5, 0))).mean(axis=-1)
    activity = gaussian_filter(detail, (0, 3, 3))
    blocks = generator.standard_normal((frames, -(-height // BLOCK), -(-width // BLOCK), 3))
    blocks = blocks.repeat(BLOCK, axis=1).repeat(BLOCK, axis=2)[:, :height, :width]
    pixels = _smooth(generator, clean.shape, (0, 0.8, 0.8, 0))
    return (activity / activity.mean())[..., None] * (0.6 * blocks + 0.8 * pixels)
