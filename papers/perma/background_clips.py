"""The background of a camera on generated clips that are harder: what sways, light that moves, objects that stay.

`background` with and without modes, beside the median of the frames, robust PCA of all of them in one place, and the
two subtractors of OpenCV, where it is installed. Clips are those of `swaying`, whose truth is known for every frame,
and frames of a real camera with objects pasted before them, where FEDCORE_DATA has them.

Then a clip of your own, separated into background and what moves, and what all clips of experiments share. The clip is
a video file, an NPZ or NPY of frames or a folder of images (`clips.read_clip`) from a camera that stands still. Its
truth is unknown, so a background is judged by the standard deviation of what it leaves and by the share of the pixels
beyond a threshold that needs no truth.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import numpy as np
from fedcore.papers.data import data_file, needed_data, rows_population
from fedcore.papers.perma import baselines, clips
from fedcore.papers.perma.baselines import principal_component_pursuit
from fedcore.papers.perma.clips import CONDITIONS, HEIGHT, WIDTH, Clip, pasted, swaying
from fedcore.papers.perma.learning import Trained, train
from fedcore.papers.perma.shaken import shaken
from fedcore.papers.perma.truth import best_mask_scores, energy_inside, mask_scores, psnr
from fedcore.papers.table import Column, Condition, Experiment, Found, Options, Place, Row, Seeds, Trial, mean
from threadpoolctl import threadpool_limits

from fedcore.methods.background.frames import TO_STANDARD_DEVIATION
from fedcore.population.ingest.sources_frames import VIDEOS, video_frames
from fedcore.rounds.pictures import difference, foreground, own_threshold
from fedcore.training.output_pictures import SHIFTS

SHOWN = 4
FEATURES = 576  # numbers of a sample that blocks of a clip are chosen for, as in the paper
GLOBAL, LOCAL, SPARSITY = 30, 20, 10  # of the robust background of somebody's clip, if samples suffice
FRAMES_OF_A_CLIENT = 3  # of the method background; clips of experiments are short
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
    return background_run(place, key, frames, name, seed, FRAMES_OF_A_CLIENT, {})[0]


def background_run(
    place: Place, key: str, frames: np.ndarray, name: str, seed: int, frames_per_client: int, settings: Mapping
) -> tuple[np.ndarray, Trained]:
    """(backgrounds (F, H, W, C) of frames, the run of the method background with these settings that made them)."""
    rows = frames.astype(np.float32).reshape(len(frames), -1)
    clients = [rows[at : at + frames_per_client] for at in range(0, len(rows), frames_per_client)]
    image = (frames.shape[1], frames.shape[2])
    population = rows_population(place, kept_as(name, frames), lambda: clients, "a clip for an experiment", image)
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


def own_conditions(options: Options) -> dict[str, Condition]:
    return {
        f"own-{name}": Condition(title, {"line": name}, {"background": title}, once=True)
        for name, title in BACKGROUNDS.items()
    }


def measure_own(trial: Trial, rounds: int) -> dict:
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


OWN_COLUMNS = {
    "spread left": mean("spread", ".4f"),
    "pixels that move": mean("moving", ".4f"),
    "s": mean("seconds", ".1f"),
}


def own_notes(found: Found) -> list[str]:
    return [
        f"Your clip, {found.one('own-robust')['count']} frames. Nobody knows its truth: spread left is 1.4826 median "
        "|frame - background|; pixels that move lie beyond median + 6 MAD of the largest difference over the channels."
    ]


def own_figure(found: Found) -> bytes:
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


FRAMES_PER_CLIENT = 4
LEVELS = 60  # thresholds among which the best is looked for
CLIPS = {
    "still": "stands still, gains of 2 %",
    "gains": "the same, 6 %",
    "noise": "noise by brightness, codec",
    "stays": "objects that stay 9 of 40 frames",
    "stays-larger": "larger ones, 9 of 30",
    "large": "one on a fifth of the pixels",
    "light": "light that moves",
    "shakes-1": "camera that shakes by up to 1 pixel",
    "shakes-2": "by up to 2 pixels",
    "sways": "sways",
    "sways-widely": "sways widely",
    "all": "all of it",
    "pasted": "a tree, objects pasted",
}
PASTED = ("video_tree", "tree.npz")
BEFORE_THE_HAND, EVERY = 48, 2  # frames of it, of which each second one is taken
QUICK_CLIPS = ("still", "stays-larger", "light", "sways")
LINES = {"median": "median of the frames", "pursuit": "robust PCA", "no-modes": "modes = 0", "default": "default"}
OPENCV = {"mog2": "OpenCV MOG2", "knn": "OpenCV KNN"}  # which have masks alone
SETTINGS: dict[str, dict[str, int]] = {"no-modes": {"modes": 0}, "default": {}}
DRAWN = ("sways", "all")


def conditions(options: Options) -> dict[str, Condition]:
    return {
        f"{clip}-{line}": Condition(f"{CLIPS[clip]}, {title}", {"clip": clip, "line": line})
        for clip in clip_names(options)
        for line, title in {**LINES, **subtractors()}.items()
    }


def clip_names(options: Options) -> Sequence[str]:
    there = [name for name in CLIPS if name != "pasted" or data_file(*PASTED)]
    return QUICK_CLIPS if options.quick else there


def subtractors() -> Mapping[str, str]:
    """OPENCV, if it is installed."""
    return OPENCV if find_spec("cv2") else {}


def clip_of(name: str, seed: int) -> Clip:
    if name == "pasted":
        return pasted(seed, clips.read_clip(needed_data(*PASTED))[:BEFORE_THE_HAND:EVERY])
    if name.startswith("shakes-"):
        return shaken(seed, CONDITIONS["still"], float(name.removeprefix("shakes-")))
    return swaying(seed, CONDITIONS[name])


def measure(trial: Trial) -> dict:
    name, seed = trial["clip"], trial.seed
    clip = clip_of(name, seed)
    with threadpool_limits(1):
        began = time.process_time()
        if trial["line"] in OPENCV:
            masks = subtracted(clip.frames, trial["line"])
            return {"own_f1": mask_scores(masks, clip.masks).f1, "cpu": time.process_time() - began}
        background, masks, modes = estimated(trial.place, trial.key, clip.frames, trial["line"], seed)
        seconds = time.process_time() - began
    pictures = {}
    if seed == 1 and name in DRAWN:
        at = shown_frames(len(clip.frames))
        pictures = {"backgrounds": to_text(np.broadcast_to(background, clip.frames.shape)[at])}
    return {**scores(clip, background, masks), "modes": modes, "cpu": seconds, **pictures}


def joined(*columns: Column) -> Column:
    return lambda found, row: " / ".join(column(found, row) for column in columns)


def columns(options: Options) -> dict[str, Column]:
    def of(line: str, score: str, form: str = ".3f") -> Column:
        return mean(score, form, at=f"{{}}-{line}")

    both = (*LINES, *subtractors())
    return {
        **{title: joined(of(line, "f1"), of(line, "psnr", ".1f"), of(line, "inside")) for line, title in LINES.items()},
        "modes kept": of("default", "modes", ".1f"),
        "F1 of masks": joined(*(of(line, "own_f1") for line in both)),
        "CPU s": joined(*(of(line, "cpu", ".1f") for line in both)),
    }


def figure(found: Found) -> bytes:
    from fedcore.evaluation.images import grid_figure

    rows: dict[str, np.ndarray] = {}
    for name in (name for name in DRAWN if name in clip_names(found.options)):
        clip = swaying(1, CONDITIONS[name])
        at = shown_frames(len(clip.frames))
        rows |= {f"{CLIPS[name]}: frame": clip.frames[at], f"{CLIPS[name]}: true background": clip.background[at]}
        for line, title in LINES.items():
            backgrounds = found.one(f"{name}-{line}")["backgrounds"]
            rows[f"{CLIPS[name]}: {title}"] = images_from(backgrounds, clip.frames.shape[1:])
    return grid_figure(rows, "Backgrounds of what sways")


def estimated(place: Place, key: str, frames: np.ndarray, line: str, seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """(backgrounds (F, H, W, C) or one (H, W, C), masks (F, H, W), modes kept) of frames (F, H, W, C)."""
    if line in ("median", "pursuit"):
        if line == "median":
            background = baselines.frame_median(frames)
        else:
            background = principal_component_pursuit(frames.reshape(len(frames), -1)).reshape(frames.shape)
        change = difference(frames, background)
        return background, change > own_threshold(change), 0
    found, ran = background_run(place, key, frames, "clip", seed, FRAMES_PER_CLIENT, SETTINGS[line])
    return found, delivered(ran, frames, found), len(ran.state.energies)


def delivered(ran: Trained, frames: np.ndarray, background: np.ndarray) -> np.ndarray:
    """(F, H, W) masks of frames (F, H, W, C) as `fedcore predict` writes them."""
    least = ran.method.free_settings_in_force(ran.state)["least_change"]
    shifts = np.stack([ran.outputs[name] for name in SHIFTS], axis=1)
    return foreground(frames, background, ran.outputs["noise"][0].reshape(frames.shape[1:]), least, shifts)


def subtracted(frames: np.ndarray, line: str) -> np.ndarray:
    """(F, H, W) bool masks of a subtractor of OpenCV, which sees frames (F, H, W, 3) of [0, 1] once before."""
    import cv2

    make = {"mog2": cv2.createBackgroundSubtractorMOG2, "knn": cv2.createBackgroundSubtractorKNN}[line]
    subtractor, pictures = make(detectShadows=False), np.rint(frames * 255).astype(np.uint8)
    for one in pictures:
        subtractor.apply(one)
    return np.stack([subtractor.apply(one) > 0 for one in pictures])


def scores(clip: Clip, background: np.ndarray, masks: np.ndarray) -> dict:
    """JSON. f1: of the best threshold; own_f1: of the masks, which need no truth; psnr: mean over the frames, in dB,
    about the true frames without objects; inside: of the energy of frame - background, in frames with objects, the
    share inside these."""
    has = clip.masks.any(axis=(1, 2))
    left, change = clip.frames - background, difference(clip.frames, background)
    return {
        "f1": best_mask_scores(change, clip.masks, LEVELS)[0].f1,
        "own_f1": mask_scores(masks, clip.masks).f1,
        "psnr": float(psnr(((background - clip.background) ** 2).mean(axis=(1, 2, 3))).mean()),
        "inside": energy_inside(left[has], clip.masks[has]),
    }


def notes(found: Found) -> list[str]:
    return [
        f"Clips {len(found.seeds)} of each kind, of {HEIGHT} x {WIDTH} x 3 pixels, 8 bits; means: F1 of the best of "
        f"{LEVELS} thresholds, chosen with the truth; PSNR in dB of the backgrounds about the true frames without "
        "objects; share of the energy of frame - background that lies in the objects.",
        "robust PCA: principal component pursuit of all frames in one place, not federated. modes = 0 and default: "
        f'model = "background", clients of {FRAMES_PER_CLIENT} frames, float32.',
        "F1 of masks that need no truth, and CPU seconds, of each in turn: median of the frames and robust PCA beyond "
        "median + 6 MAD; modes = 0 and default as delivered; "
        + (
            "OpenCV's MOG2 and KNN with their defaults, without shadows, in the second pass over the frames."
            if subtractors()
            else "OpenCV is not installed."
        ),
    ]


CLIPS_TABLE = Experiment(
    name="background-clips",
    title="Background of a camera: clips that sway, with light that moves and objects that stay",
    seeds=Seeds(3, quick=1),
    conditions=conditions,
    measure=measure,
    rows=lambda found: [Row({"clips": CLIPS[clip]}, clip) for clip in clip_names(found.options)],
    columns=columns,
    notes=notes,
    figure=figure,
)
