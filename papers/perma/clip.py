"""A clip of one's own, separated into background and what moves; and what all clips of experiments share.

The clip is a video file, an NPZ or NPY of frames or a folder of images (`dictionaries.simulation.video.read_clip`) from
a camera that stands still. Its truth is unknown, so a background is judged by the standard deviation of what it leaves
and by the share of the pixels beyond a threshold that needs no truth.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from fedcore.papers.columns import mean
from fedcore.papers.data import rows_population
from fedcore.papers.perma import baselines, clips
from fedcore.papers.perma.learning import Trained, train
from fedcore.papers.table import Condition, Found, Options, Place, Trial

from fedcore.methods.background.frames import TO_STANDARD_DEVIATION
from fedcore.population.ingest.sources_frames import VIDEOS, video_frames
from fedcore.rounds.pictures import difference, own_threshold

SHOWN = 4
FEATURES = 576  # numbers of a sample that blocks of a clip are chosen for, as in the paper
GLOBAL, LOCAL, SPARSITY = 30, 20, 10  # of the robust background of somebody's clip, if samples suffice
FRAMES_PER_CLIENT = 3  # of the method background; clips of experiments are short
FRAMES, QUICK_FRAMES = 60, 12
WIDE = 240  # pixels of a picture in the figure
BACKGROUNDS = {
    "background": "background: image, gains, offsets",
    "robust": "PerMA, robust",
    "median": "median of the frames",
    "mean": "mean of the frames",
}


# --- what all clips share -------------------------------------------------------------------------------------------


def parts(
    place: Place,
    key: str,
    frames: np.ndarray,
    name: str,
    layout: clips.Layout,
    block: tuple[int, int],
    settings: dict,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """(global parts, local parts) of frames, both (F, H, W, C), by a run of the method. name: of their population."""
    rows = [clips.to_rows(frame, block, layout) for frame in frames]
    population = rows_population(place, kept_as(name, frames), lambda: rows, "a clip for an experiment")
    outputs = train(place, key, settings, population, seed).outputs
    split = (outputs[part].reshape(len(frames), *rows[0].shape) for part in ("rows_global", "rows_local"))
    back, front = (np.stack([clips.to_frame(own, frames.shape[1:], block, layout) for own in part]) for part in split)
    return back, front


def kept_as(name: str, frames: np.ndarray) -> str:
    """The name of a population of these frames: cells of an experiment keep theirs for each other."""
    return f"{name}-{hashlib.blake2b(np.ascontiguousarray(frames).data, digest_size=6).hexdigest()}"


def background_of(place: Place, key: str, frames: np.ndarray, name: str, seed: int) -> np.ndarray:
    """(F, H, W, C) backgrounds of frames, by a run of the method background. name: of their population."""
    return background_run(place, key, frames, name, seed, FRAMES_PER_CLIENT, {})[0]


def background_run(
    place: Place, key: str, frames: np.ndarray, name: str, seed: int, frames_per_client: int, settings: Mapping
) -> tuple[np.ndarray, Trained]:
    """(backgrounds (F, H, W, C) of frames, the run of the method background with these settings that made them)."""
    rows = frames.astype(np.float32).reshape(len(frames), -1)
    clients = [rows[at : at + frames_per_client] for at in range(0, len(rows), frames_per_client)]
    population = rows_population(place, kept_as(name, frames), lambda: clients, "a clip for an experiment")
    trained = train(place, key, settings, population, seed, method="background")
    return np.asarray(trained.outputs["rows_global"], np.float64).reshape(frames.shape), trained


def shown_frames(frames: int) -> np.ndarray:
    """Numbers of the frames that a figure shows."""
    return np.linspace(0, frames - 1, SHOWN + 2).round().astype(int)[1:-1]


def spread_left(frames: np.ndarray, background: np.ndarray) -> float:
    """1.4826 median |frame - background|, which needs no truth."""
    return TO_STANDARD_DEVIATION * float(np.median(np.abs(frames - background)))


def to_text(images: np.ndarray) -> str:
    """Images of [0, 1], or masks, as hexadecimal text for JSON."""
    if images.dtype == bool:
        return np.packbits(images).tobytes().hex()
    return np.rint(np.clip(images, 0, 1) * 255).astype(np.uint8).tobytes().hex()


def images_from(text: str, shape: Sequence[int]) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text), np.uint8).reshape(-1, *shape) / 255.0


def masks_from(text: str, shape: Sequence[int], count: int = SHOWN) -> np.ndarray:
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8))
    return bits[: count * shape[0] * shape[1]].reshape(-1, *shape).astype(bool)


# --- a clip of one's own --------------------------------------------------------------------------------------------


def read(options: Options) -> np.ndarray:
    """(F, H, W, C) the clip that the options name, every so-many-th frame of it. Raises IngestError."""
    assert options.population is not None
    path = Path(options.population)
    if path.suffix.lower() in VIDEOS:
        step = -(-sum(1 for _ in video_frames(path)) // (QUICK_FRAMES if options.quick else FRAMES))
        frames = np.stack(list(islice(video_frames(path), 0, None, step))).astype(np.float64)
        return frames if frames.ndim == 4 else frames[..., None]
    frames = clips.read_clip(path)
    return frames[:: -(-len(frames) // (QUICK_FRAMES if options.quick else FRAMES))]


def block_for(shape: Sequence[int]) -> tuple[int, int]:
    """(height, width) of blocks that fill frames (H, W, C), so that a sample of `polyphase` has about 576 numbers; of
    equal ones the most square."""
    height, width, channels = shape

    def far(block: tuple[int, int]) -> tuple[float, float]:
        numbers = channels * (height // block[0]) * (width // block[1])
        return abs(float(np.log(numbers / FEATURES))), abs(float(np.log(block[0] / block[1])))

    return min(((a, b) for a in _divisors(height) for b in _divisors(width)), key=far)


def _divisors(number: int) -> list[int]:
    return [k for k in range(1, number + 1) if number % k == 0]


def settings_for(block: tuple[int, int], shape: Sequence[int], rounds: int) -> dict:
    """Of the method: 30 global and 20 local atoms, or as many as samples and their numbers allow."""
    samples = block[0] * block[1]
    room = min(samples, int(np.prod(shape)) // samples)
    common = max(min(GLOBAL, room // 2), 1)
    return {
        "profile": "robust",
        "atoms": common + min(LOCAL, room - common),
        "global_atoms": common,
        "sparsity": SPARSITY,
        "rounds": rounds,
    }


def conditions(options: Options) -> dict[str, Condition]:
    return {
        f"own-{name}": Condition(title, {"line": name}, {"background": title}, once=True)
        for name, title in BACKGROUNDS.items()
    }


def measure(trial: Trial, rounds: int) -> dict:
    """JSON: spread; moving: share of the pixels beyond the threshold; seconds; shape and texts of pictures."""
    place, key, name, frames = trial.place, trial.key, trial["line"], read(trial.options)
    began, local = time.perf_counter(), None
    if name == "robust":
        block = block_for(frames.shape[1:])
        settings = settings_for(block, frames.shape[1:], rounds)
        background, local = parts(place, key, frames, "own", "polyphase", block, settings, 1)
    elif name == "background":
        background = background_of(place, key, frames, "own-frames", 1)
    else:
        background = (baselines.frame_median if name == "median" else baselines.frame_mean)(frames)
    seconds = time.perf_counter() - began
    change = difference(frames, background)
    masks = change > own_threshold(change)
    at, step = shown_frames(len(frames)), -(-frames.shape[2] // WIDE)
    small = (slice(None, None, step),) * 2
    pictures = {"frames": frames, "backgrounds": np.broadcast_to(background, frames.shape), "masks": masks}
    if local is not None:
        pictures["local"] = 2 * np.abs(local)
    return {
        "spread": spread_left(frames, background),
        "moving": float(masks.mean()),
        "seconds": seconds,
        "count": len(frames),
        "shape": list(frames[0][small].shape),
        **{key: to_text(images[at][:, *small]) for key, images in pictures.items()},
    }


COLUMNS = {"spread left": mean("spread", ".4f"), "pixels that move": mean("moving", ".4f"), "s": mean("seconds", ".1f")}


def notes(found: Found) -> list[str]:
    return [
        f"Your clip, {found.one('own-robust')['count']} frames. Nobody knows its truth: spread left is 1.4826 median "
        "|frame - background|; pixels that move lie beyond median + 6 MAD of the largest difference over the channels."
    ]


def figure(found: Found) -> bytes:
    """Frames, and of each background the background and the mask; of PerMA what its local atoms hold."""
    from fedcore.evaluation.images import grid_figure

    shape = found.one("own-robust")["shape"]
    rows = {"frame": images_from(found.one("own-robust")["frames"], shape)}
    for name, title in BACKGROUNDS.items():
        cell = found.one(f"own-{name}")
        rows[f"{title}: background"] = images_from(cell["backgrounds"], shape)
        if "local" in cell:
            rows[f"{title}: local atoms"] = images_from(cell["local"], shape)
        rows[f"{title}: mask"] = masks_from(cell["masks"], shape[:2])
    return grid_figure(rows, "Background and what moves")
