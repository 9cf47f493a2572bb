"""PerMA on video: Figures 4 and 6 of its paper as scores, on a clip whose truth is known.

Source: Liang, Shi, Al Kontar, Fattahi 2023, Section 5.2: every frame is a client, global atoms hold the background,
local ones the foreground. The paper shows pictures. Here rectangles move over a texture, and masks are scored with a
threshold that needs no truth, median + 6 MAD of |frame - background|, and beside it with the best of 25, chosen with
the truth. Where FEDCORE_DATA has it, a real clip is separated too: a tree in the wind, before which a hand comes. With
--population CLIP it is a clip of one's own instead (`fedcore.papers.perma.background_clips`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
from fedcore.papers.data import data_file, needed_data
from fedcore.papers.perma import background_clips as perma_clip
from fedcore.papers.perma import baselines, clips
from fedcore.papers.perma.background_clips import (
    SHOWN,
    background_of,
    images_from,
    masks_from,
    parts,
    shown_frames,
    spread_left,
    to_text,
)
from fedcore.papers.perma.baselines import personalised_pca, principal_component_pursuit
from fedcore.papers.perma.truth import best_mask_scores, energy_inside, exposure_fitted_psnr, mask_scores, psnr
from fedcore.papers.table import Column, Condition, Experiment, Found, Options, Place, Seeds, Trial, verdict
from fedcore.papers.table import mean as average
from scipy.ndimage import gaussian_filter
from threadpoolctl import threadpool_limits

from fedcore.rounds import pictures

ATOMS, KEPT = 100, 50
BLOCKS = {"polyphase": (10, 10), "tiles": (12, 16)}  # both give 100 samples of 576 numbers
TREE, TREE_BLOCK = ("video_tree", "tree.npz"), (20, 20)
TREE_ATOMS = {"atoms": 50, "global_atoms": 30, "sparsity": 10}
HAND = 53  # first frame of that clip with a hand
BLUR, CHANGED = 4.0, 0.15  # pixels, and the blurred change from the frames before, which make the region of the hand
SETTLED = 1.15  # ratio of spreads up to which more global atoms are not worth it


class Size(NamedTuple):
    """height, width: of the clip; frames; rounds: of PerMA; tree: each so-many-th frame of the real clip."""

    height: int
    width: int
    frames: int
    rounds: int
    tree: int


FULL, QUICK = Size(120, 160, 24, 10, 2), Size(120, 160, 12, 3, 8)


class Line(NamedTuple):
    """background(place, key, frames, size, seed): (F, H, W, C) or (H, W, C)."""

    title: str
    background: Callable[..., np.ndarray]


# --- backgrounds ----------------------------------------------------------------------------------------------------


def mean(place: Place, key: str, frames: np.ndarray, size: Size, seed: int) -> np.ndarray:
    return baselines.frame_mean(frames)


def median(place: Place, key: str, frames: np.ndarray, size: Size, seed: int) -> np.ndarray:
    return baselines.frame_median(frames)


def perma(
    place: Place,
    key: str,
    frames: np.ndarray,
    size: Size,
    seed: int,
    layout: clips.Layout,
    common: int,
    changes: Mapping[str, object] = {},
) -> np.ndarray:
    """A run of the method on whole frames; the background is the global part of the rows. changes: of the settings."""
    settings = {
        "profile": "paper",
        "atoms": ATOMS,
        "global_atoms": common,
        "code": "top_k",
        "sparsity": KEPT,
        "starts": 1,
        "start_steps": 1,
        "rounds": size.rounds,
        **changes,
    }
    return parts(place, key, frames, f"{layout}-{seed}", layout, BLOCKS[layout], settings, seed)[0]


def background(place: Place, key: str, frames: np.ndarray, size: Size, seed: int) -> np.ndarray:
    """model = "background": one image times the gain of each frame, plus its offset, by robust sums over clients of a
    few consecutive frames."""
    return background_of(place, key, frames, f"background-{seed}", seed)


def robust_pca(place: Place, key: str, frames: np.ndarray, size: Size, seed: int) -> np.ndarray:
    return principal_component_pursuit(frames.reshape(len(frames), -1)).reshape(frames.shape)


def perpca(place: Place, key: str, frames: np.ndarray, size: Size, seed: int, common: int) -> np.ndarray:
    rows = [clips.to_rows(frame, BLOCKS["polyphase"]) for frame in frames]
    found = personalised_pca(rows, common, common, size.rounds, seed).common
    return np.stack([clips.to_frame(own @ found.T @ found, frames.shape[1:], BLOCKS["polyphase"]) for own in rows])


ROBUST: dict[str, object] = {"profile": "robust", "aggregate": "mean", "start_steps": 0, "far": None, "refine_steps": 1}
STAR: dict[str, object] = {
    "profile": "recommended",
    "matcher": "star",
    "aggregate": "median",
    "norm": "polar",
    "align": "lsa",
}
GRADIENT: dict[str, object] = {"learner": "gradient", "norm": "unit", "align": "lsa", "refine_steps": 5}


def polyphase(common: int, changes: Mapping[str, object] = {}) -> Callable[..., np.ndarray]:
    """`perma` with this layout and so many global atoms. changes: of the settings."""
    return partial(perma, layout="polyphase", common=common, changes=changes)


LINES = {
    "median": Line("median of the frames", median),
    "mean": Line("mean of the frames", mean),
    "background": Line("background: image, gains, offsets", background),
    "robust-pca": Line("robust PCA of all frames in one place", robust_pca),
    "robust-30": Line("PerMA, robust, polyphase, 30 global", polyphase(30, ROBUST)),
    "robust-10": Line("PerMA, robust, polyphase, 10 global", polyphase(10, ROBUST)),
    "robust-20": Line("PerMA, robust, polyphase, 20 global", polyphase(20, ROBUST)),
    "robust-60": Line("PerMA, robust, polyphase, 60 global", polyphase(60, ROBUST)),
    "robust-30-median": Line(
        "PerMA, robust, median of atoms, 30 global", polyphase(30, {**ROBUST, "aggregate": "median"})
    ),
    "paper-10": Line("PerMA as printed, polyphase, 10 global", polyphase(10)),
    "paper-30": Line("PerMA as printed, polyphase, 30 global", polyphase(30)),
    "paper-3": Line("PerMA as printed, polyphase, 3 global", polyphase(3)),
    "star-10": Line("PerMA, star, median, polyphase, 10 global", polyphase(10, STAR)),
    "gradient-10": Line("PerMA, Algorithms 5 and 6, polyphase, 10 global", polyphase(10, GRADIENT)),
    "gradient-alone-10": Line(
        "PerMA, Algorithm 5 without 6, polyphase, 10 global", polyphase(10, {**GRADIENT, "refine_steps": 0})
    ),
    "gradient-omp-10": Line(
        "PerMA, Algorithms 5 and 6, codes by OMP, polyphase, 10 global", polyphase(10, {**GRADIENT, "code": "omp"})
    ),
    "tiles-10": Line("PerMA as printed, tiles, 10 global", partial(perma, layout="tiles", common=10)),
    "tiles-30": Line("PerMA as printed, tiles, 30 global", partial(perma, layout="tiles", common=30)),
    "perpca-30": Line("PerPCA, polyphase, 30 + 30", partial(perpca, common=30)),
}
GAIN, MORE_GAIN = 0.02, 0.06  # standard deviation of a frame's brightness
MORE_GAIN_LINES = ("background", "median", "mean", "robust-pca", "robust-30")
DRAWN = ("background", "robust-30", "median")
TREE_IMAGES = {
    "frame": "frame",
    "shared_background": "background model",
    "shared_rest": "frame less background, twice",
    "background": "robust PerMA, background",
    "foreground": "robust PerMA, local part, twice",
}
QUICK_LINES = ("median", "mean", "background", "robust-30", "paper-10", "tiles-10", "perpca-30")


def conditions(options: Options) -> dict[str, Condition]:
    """Every line, and some on clips of other brightness."""
    if options.population is not None:
        return perma_clip.own_conditions(options)
    lines = QUICK_LINES if options.quick else tuple(LINES)
    usual = {line: (line, GAIN, LINES[line].title) for line in lines}
    more = (line for line in MORE_GAIN_LINES if line in usual)
    usual |= {f"{line}-gain": (line, MORE_GAIN, f"{LINES[line].title}; brightness 6 %") for line in more}
    found = {
        key: Condition(title, {"line": line, "gain": gain}, {"background": title})
        for key, (line, gain, title) in usual.items()
    }
    if data_file(*TREE) is not None:
        found["tree"] = Condition("a real clip: a tree in the wind, and a hand", {"line": "tree"}, once=True)
    return found


def measure(trial: Trial) -> dict:
    size, line, seed = QUICK if trial.quick else FULL, trial["line"], trial.seed
    with threadpool_limits(1):  # as the engine has it, so that seconds compare
        if trial.options.population is not None:
            return perma_clip.measure_own(trial, size.rounds)
        if line == "tree":
            return tree(trial.place, trial.key, size)
        clip = clips.surveillance(seed, size.frames, size.height, size.width, gain=trial["gain"])
        began = time.perf_counter()
        background = LINES[line].background(trial.place, trial.key, clip.frames, size, seed)
        seconds = time.perf_counter() - began
    pictures = images_of(clip, background) if seed == 1 and line in DRAWN and trial["gain"] == GAIN else {}
    return {**scores(clip, background), **pictures, "seconds": seconds}


def columns(options: Options) -> dict[str, Column]:
    if options.population is not None:
        return dict(perma_clip.OWN_COLUMNS)
    return {
        "F1, own threshold": average("f1"),
        "IoU, own threshold": average("iou"),
        "F1, best threshold": average("best_f1"),
        "IoU, best threshold": average("best_iou"),
        "least F1, own": lambda found, row: f"{min(found.values(str(row.of), 'f1')):.3f}",
        "PSNR of the background": average("psnr", ".1f"),
        "PSNR, exposure fitted": average("fitted", ".1f"),
        "spread left": average("spread", ".4f"),
        "s": average("seconds", ".1f"),
    }


def figure(found: Found) -> bytes:
    if found.options.population is not None:
        return perma_clip.own_figure(found)
    from fedcore.evaluation.images import grid_figure

    size = QUICK if found.options.quick else FULL
    clip = clips.surveillance(1, size.frames, size.height, size.width)
    at = shown_frames(size.frames)
    rows = {"frame": clip.frames[at], "true mask": clip.masks[at]}
    for line in DRAWN:
        cell = found.one(line)
        rows[f"{LINES[line].title}: background"] = images_from(cell["backgrounds"], clip.frames.shape[1:])
        rows[f"{LINES[line].title}: mask, own threshold"] = masks_from(cell["masks"], clip.frames.shape[1:3])
    if "tree" in found:
        cell = found.one("tree")
        rows |= {
            f"tree and hand: {title}": images_from(cell[part], cell["shape"]) for part, title in TREE_IMAGES.items()
        }
    return grid_figure(rows, "Background and foreground of a fixed camera")


# --- scores ---------------------------------------------------------------------------------------------------------


def scores(clip: clips.Clip, background: np.ndarray) -> dict:
    """JSON. spread: 1.4826 median |frame - background|, which needs no truth."""
    difference = pictures.difference(clip.frames, background)
    own = mask_scores(difference > pictures.own_threshold(difference), clip.masks)
    best, _ = best_mask_scores(difference, clip.masks)
    return {
        "f1": own.f1,
        "iou": own.iou,
        "best_f1": best.f1,
        "best_iou": best.iou,
        "psnr": float(psnr(np.mean((background - clip.background) ** 2))),
        "fitted": exposure_fitted_psnr(clip.background, background),
        "spread": spread_left(clip.frames, background),
    }


def images_of(clip: clips.Clip, background: np.ndarray) -> dict:
    """JSON of the images in the figure: backgrounds, and masks at the threshold without truth."""
    difference = pictures.difference(clip.frames, background)
    at = shown_frames(len(clip.frames))
    return {
        "backgrounds": to_text(np.broadcast_to(background, clip.frames.shape)[at]),
        "masks": to_text(difference[at] > pictures.own_threshold(difference)),
    }


def tree(place: Place, key: str, size: Size) -> dict:
    """The real clip by the background model and by robust PerMA with 30 global atoms.

    JSON: of the frames with a hand, the share of the energy of frame - background that lies in the hand, by background;
    local: of the local atoms' part; and images.

    The hand's region is where the blurred frame differs from the median of the frames before it came.
    """
    frames = clips.read_clip(needed_data(*TREE), size.tree)
    began = time.perf_counter()
    settings = {"profile": "robust", "aggregate": "mean", "far": None, "rounds": size.rounds, **TREE_ATOMS}
    background, foreground = parts(place, key, frames, "tree", "polyphase", TREE_BLOCK, settings, 1)
    seconds = time.perf_counter() - began
    shared = background_of(place, f"{key}-background", frames, "tree-frames", 1)
    shape = frames.shape[1:]
    hand = -(-HAND // size.tree)
    change = pictures.difference(frames[hand:], np.median(frames[:hand], axis=0))
    region = gaussian_filter(change, (0, BLUR, BLUR)) > CHANGED

    def inside(estimate: np.ndarray) -> float:
        return energy_inside(frames[hand:] - estimate, region)

    at = np.array([hand // 2, *np.linspace(hand + 1, len(frames) - 1, SHOWN - 1).round().astype(int)])
    at = np.minimum(at, len(frames) - 1)
    small = (shape[0] // 2, shape[1] // 2, shape[2])

    def halved(images: np.ndarray) -> str:
        return to_text(images[at].reshape(SHOWN, small[0], 2, small[1], 2, 3).mean(axis=(2, 4)))

    return {
        "inside": inside(background[hand:]),
        "local": energy_inside(foreground[hand:], region),
        "shared": inside(shared[hand:]),
        "pursuit": inside(principal_component_pursuit(frames.reshape(len(frames), -1)).reshape(frames.shape)[hand:]),
        "median": inside(baselines.frame_median(frames)),
        "mean": inside(baselines.frame_mean(frames)),
        "area": float(region.mean()),
        "frames": len(frames),
        "hand": len(frames) - hand,
        "seconds": seconds,
        "shape": list(small),
        "frame": halved(frames),
        "shared_background": halved(shared),
        "shared_rest": halved(np.abs(frames - shared) * 2),
        "background": halved(background),
        "foreground": halved(np.abs(foreground) * 2),
    }


# --- what the table says --------------------------------------------------------------------------------------------


def findings(found: Found) -> list[str]:
    if found.options.population is not None:
        return []
    of = found.mean
    image = [of(key, score) for key in ("background", "background-gain") for score in ("fitted", "best_f1")]
    best, plain, tiles = of("robust-30", "f1"), of("paper-10", "best_f1"), of("tiles-10", "best_f1")
    texts = [
        "Asked of the background model: at least 40 dB with the exposure fitted and best F1 .97, also with brightness "
        f"that changes by 6 %: {image[0]:.1f} dB and {image[1]:.3f}, {image[2]:.1f} dB and {image[3]:.3f}, "
        f"{verdict(min(image[0], image[2]) >= 40 and min(image[1], image[3]) >= 0.97)}.",
        f"Asked: F1 of at least .95 at a threshold without truth: {best:.3f} (30 global atoms, robust), "
        f"{verdict(best >= 0.95)}; the median of the frames has {of('median', 'f1'):.3f}.",
        f"Asked: best F1 of polyphase above tiles, and at least .70 with 10 global atoms as printed: {plain:.3f} and "
        f"{tiles:.3f}, {verdict(plain > tiles and plain >= 0.7)}.",
    ]
    counts = [line for line in found.by_condition if line.removeprefix("robust-").isdigit()]
    if len(counts) > 1:
        spreads = {int(line.removeprefix("robust-")): of(line, "spread") for line in counts}
        chosen = min(count for count, spread in spreads.items() if spread <= SETTLED * min(spreads.values()))
        texts.append(
            f"How many global atoms, by a rule made on these clips that needs no truth: the least whose spread left is "
            f"within {SETTLED - 1:.0%} of the smallest: {chosen}, F1 {of(f'robust-{chosen}', 'f1'):.3f}."
        )
    if "tree" in found:
        tree = found.one("tree")
        texts.append(
            f"A real clip, {tree['frames']} frames of a tree in the wind, {tree['hand']} of them with a hand in "
            f"{tree['area']:.0%} of the pixels: of the energy of frame - background of those frames the share in "
            f"the hand: background model {tree['shared']:.3f}; robust PerMA {tree['inside']:.3f}, and "
            f"{tree['local']:.3f} of that of its local atoms' part, {tree['seconds']:.0f} s; median of the frames "
            f"{tree['median']:.3f}, mean {tree['mean']:.3f}, robust PCA {tree['pursuit']:.3f}."
        )
    return texts


def notes(found: Found) -> list[str]:
    if found.options.population is not None:
        return perma_clip.own_notes(found)
    size = QUICK if found.options.quick else FULL
    return [
        f"Clips {len(found.seeds)}: {size.frames} frames of {size.height} x {size.width} x 3, three rectangles "
        "(about 6 % of the pixels) over smoothed noise and a ramp, 2 % brightness of a frame, noise .01. A frame is a "
        "client with 100 samples of 576 numbers in both layouts. The paper gives no scores of its clips.",
        f"as printed: 100 atoms from singular vectors, path, mean without scaling, greedy choice, 50 atoms a code, "
        f"{size.rounds} rounds; background: the global part of the code.",
        "background: one image times each frame's gain, plus its offset, by robust sums (model = background), clients "
        "of 3 frames, float32. robust PCA: principal component pursuit of all frames, not federated. exposure fitted: "
        "with the gain and offset of each background that fit the truth best.",
        "robust: global atoms are learned from samples whose residuals are cut (Huber's modified residuals), codes of "
        "least Huber loss, the server's mean of the clients' atoms; local atoms learn the rest. It is not a median "
        "over frames: samples of a frame may be shuffled, and frames may differ in brightness. Its background has each "
        "frame's brightness, which the PSNR counts as an error.",
        "own threshold: median + 6 MAD of the largest difference over the channels, all frames; best threshold: of 25, "
        "chosen with the truth, so optimistic. spread left: 1.4826 median |frame - background|; .01 is noise, so too "
        "few global atoms show without truth.",
    ]


VIDEO = Experiment(
    name="perma-video",
    title="PerMA on a surveillance clip: background, and masks of what moves",
    seeds=Seeds(3, quick=1),
    population=True,
    check=lambda options: options.population is None or perma_clip.read(options),  # before anything is computed
    conditions=conditions,
    measure=measure,
    columns=columns,
    notes=notes,
    checks=findings,
    figure=figure,
)
