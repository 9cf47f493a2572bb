"""The background of a camera on generated clips that are harder: what sways, light that moves, objects that stay.

`background` with and without modes, beside the median of the frames and robust PCA of all
of them in one place; on `simulation.swaying_video`, whose truth is known for every frame.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from fedcore.papers.columns import mean
from fedcore.papers.perma import baselines
from fedcore.papers.perma.baselines import principal_component_pursuit
from fedcore.papers.perma.clip import background_run, images_from, shown_frames, to_text
from fedcore.papers.perma.clips import CONDITIONS, HEIGHT, WIDTH, Clip, swaying
from fedcore.papers.perma.truth import best_mask_scores, energy_inside, mask_scores, psnr
from fedcore.papers.table import Column, Condition, Experiment, Found, Options, Place, Row, Seeds, Trial
from threadpoolctl import threadpool_limits

from fedcore.rounds.pictures import difference, own_threshold

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
    "sways": "sways",
    "sways-widely": "sways widely",
    "all": "all of it",
}
QUICK_CLIPS = ("still", "stays-larger", "light", "sways")
LINES = {"median": "median of the frames", "pursuit": "robust PCA", "no-modes": "modes = 0", "default": "default"}
SETTINGS: dict[str, dict[str, int]] = {"no-modes": {"modes": 0}, "default": {}}
DRAWN = ("sways", "all")


def conditions(options: Options) -> dict[str, Condition]:
    return {
        f"{clip}-{line}": Condition(f"{CLIPS[clip]}, {title}", {"clip": clip, "line": line})
        for clip in clips(options)
        for line, title in LINES.items()
    }


def clips(options: Options) -> Sequence[str]:
    return QUICK_CLIPS if options.quick else tuple(CLIPS)


def measure(trial: Trial) -> dict:
    name, seed = trial["clip"], trial.seed
    clip = swaying(seed, CONDITIONS[name])
    with threadpool_limits(1):
        began = time.process_time()
        background, modes = estimated(trial.place, trial.key, clip.frames, trial["line"], seed)
        seconds = time.process_time() - began
    pictures = {}
    if seed == 1 and name in DRAWN:
        at = shown_frames(len(clip.frames))
        pictures = {"backgrounds": to_text(np.broadcast_to(background, clip.frames.shape)[at])}
    return {**scores(clip, background), "modes": modes, "cpu": seconds, **pictures}


def joined(*columns: Column) -> Column:
    return lambda found, row: " / ".join(column(found, row) for column in columns)


def columns(options: Options) -> dict[str, Column]:
    def of(line: str, score: str, form: str = ".3f") -> Column:
        return mean(score, form, at=f"{{}}-{line}")

    return {
        **{title: joined(of(line, "f1"), of(line, "psnr", ".1f"), of(line, "inside")) for line, title in LINES.items()},
        "modes kept": of("default", "modes", ".1f"),
        "F1, own threshold": joined(*(of(line, "own_f1") for line in LINES)),
        "CPU s": joined(*(of(line, "cpu", ".1f") for line in LINES)),
    }


def figure(found: Found) -> bytes:
    from fedcore.evaluation.images import grid_figure

    rows: dict[str, np.ndarray] = {}
    for name in (name for name in DRAWN if name in clips(found.options)):
        clip = swaying(1, CONDITIONS[name])
        at = shown_frames(len(clip.frames))
        rows |= {f"{CLIPS[name]}: frame": clip.frames[at], f"{CLIPS[name]}: true background": clip.background[at]}
        for line, title in LINES.items():
            backgrounds = found.one(f"{name}-{line}")["backgrounds"]
            rows[f"{CLIPS[name]}: {title}"] = images_from(backgrounds, clip.frames.shape[1:])
    return grid_figure(rows, "Backgrounds of what sways")


def estimated(place: Place, key: str, frames: np.ndarray, line: str, seed: int) -> tuple[np.ndarray, int]:
    """(backgrounds (F, H, W, C) or one (H, W, C), modes kept) of frames (F, H, W, C)."""
    if line == "median":
        return baselines.frame_median(frames), 0
    if line == "pursuit":
        return principal_component_pursuit(frames.reshape(len(frames), -1)).reshape(frames.shape), 0
    found, ran = background_run(place, key, frames, "clip", seed, FRAMES_PER_CLIENT, SETTINGS[line])
    return found, len(ran.state.energies)


def scores(clip: Clip, background: np.ndarray) -> dict:
    """JSON. f1: of the best threshold; own_f1: of one that needs no truth; psnr: mean over the frames, in dB, about the
    true frames without objects; inside: of the energy of frame - background, in frames with objects, the share inside
    these."""
    has = clip.masks.any(axis=(1, 2))
    left, change = clip.frames - background, difference(clip.frames, background)
    return {
        "f1": best_mask_scores(change, clip.masks, LEVELS)[0].f1,
        "own_f1": mask_scores(change > own_threshold(change), clip.masks).f1,
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
        "F1 at own threshold (median + 6 MAD, which needs no truth) and CPU seconds: of each in turn.",
    ]


CLIPS_TABLE = Experiment(
    name="background-clips",
    title="Background of a camera: clips that sway, with light that moves and objects that stay",
    seeds=Seeds(3, quick=1),
    conditions=conditions,
    measure=measure,
    rows=lambda found: [Row({"clips": CLIPS[clip]}, clip) for clip in clips(found.options)],
    columns=columns,
    notes=notes,
    figure=figure,
)
