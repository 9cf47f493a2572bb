"""What clients are given, what people are shown, and scores on held-out frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.background.clients import predicted
from fedcore.methods.background.config import BackgroundConfig
from fedcore.methods.background.frames import frames_of, sampled_pixels
from fedcore.methods.background.scenes import scene_numbers, scenes_of
from fedcore.methods.background.server import least_change, least_noise
from fedcore.methods.background.shakes import Registration
from fedcore.methods.background.state import BackgroundState
from fedcore.population.blocks import RowsBlock
from fedcore.rounds import scores as held_rows
from fedcore.rounds.method import ClientOutputs
from fedcore.rounds.results import Column, Features, Pictures, Result, Table
from fedcore.rounds.scores import held_out
from fedcore.rounds.statistics import Statistics

RUN, PLAIN, FLAT = "background, gain and offset of the frame", "background alone", "one brightness of the frame"
LINES = (RUN, PLAIN, FLAT)
CAPTION = "The image that all frames share, at their mean gain; black is 0 and white 1."


def check_trained(state: BackgroundState) -> None:
    """Raises RunError before there is a background that the rounds made."""
    if state.round < 1:
        raise RunError("the run stopped before it had a background.", "Resume it first.")


def split_frames(config: BackgroundConfig, state: BackgroundState, block: RowsBlock) -> ClientOutputs:
    """Split every frame of a leaf. Needs no client memory, so it also works for clients that took no part in the run.

    rows_gain, rows_offset, rows_spread: (N,) float64: its exposure, and 1.4826 median |frame - background|
    rows_down, rows_across: (N,) float64 pixels by which the frame shows the scene farther down and to the right than
        the background does; 0 where frames are not registered
    rows_shown: (N,) int64: 0 for frames that do not show the scene, whose backgrounds mean nothing
    rows_global, rows_local: (N, d) float32 background, and the frame less it; they add up to the frame
    scene: (C,) int64 number of the client's scene, from 0
    noise: (C, d) float32 standard deviation of each pixel about its background, the same for all of a scene
    least_change: (C,) float64 change of a pixel below which it is in no mask, the same for all
    shadows: (C,) int64 1 if shadows are in masks, the same for all
    """
    check_trained(state)
    pixels, scenes = sampled_pixels(state.seed, state.features), scenes_of(state)
    numbers = scene_numbers(block, pixels, state.leaders)
    noise = np.array([_noise(scenes[number]) for number in numbers], np.float32).reshape(len(numbers), state.features)
    count = len(block.x)
    outputs = {
        name: np.zeros(count) for name in ("rows_gain", "rows_offset", "rows_spread", "rows_down", "rows_across")
    }
    outputs["rows_shown"] = np.zeros(count, np.int64)
    shared = np.empty((count, state.features), np.float32)
    local = np.empty_like(shared)
    registrations = [Registration(own.images, own.energies, pixels, own.registered) for own in scenes]
    for client in range(block.clients):
        registration = registrations[numbers[client]]
        images = registration.images.astype(np.float32)
        for first, frames in frames_of(block, client):
            registered = registration(frames)
            found = registered.codes
            at = slice(first, first + len(frames))
            outputs["rows_gain"][at], outputs["rows_offset"][at] = found.gains, found.offsets
            outputs["rows_spread"][at], outputs["rows_shown"][at] = found.spreads, found.shown
            outputs["rows_down"][at], outputs["rows_across"][at] = registered.shifts.T
            shared[at] = registration.in_place(registered, predicted(images, found))
            np.subtract(frames, shared[at], out=local[at], casting="same_kind")
    change = np.full(block.clients, least_change(config, state))
    shadows = np.full(block.clients, int(config.shadows))
    of_clients = {"scene": numbers, "noise": noise, "least_change": change, "shadows": shadows}
    return {**outputs, "rows_global": shared, "rows_local": local, **of_clients}


def _noise(state: BackgroundState) -> np.ndarray:
    """(d,) of a scene; the median spread for all pixels in states that have no more."""
    return state.noise if len(state.noise) else np.full(state.features, max(state.spread, least_noise(state)))


def result_of(state: BackgroundState, features: Features) -> Result:
    """How bright and how sharp the background is; and the image, where rows are pictures."""
    if state.round < 1:
        return Result()
    scenes = scenes_of(state)
    columns = [_numbers(one) for one in scenes]
    titles = tuple(f"scene {number}" for number in range(len(scenes))) if len(scenes) > 1 else ("",)
    shown = (Column(title, list(own.values())) for title, own in zip(titles, columns, strict=True))
    table = Table("background", "Background", (Column("of the image", list(columns[0])), *shown))
    if features.image is None:
        return Result((table,))
    picture = features.pictures(np.stack([one.images[0] for one in scenes]))
    labels = titles if len(scenes) > 1 else ("background",)
    return Result((table,), (Pictures("background", "Background", CAPTION, labels, picture, brightness=True),))


def _numbers(state: BackgroundState) -> dict[str, float]:
    image = state.images[0]
    return {
        "numbers": float(image.size),
        "mean": float(image.mean()),
        "least": float(image.min()),
        "largest": float(image.max()),
        "modes": float(len(state.energies)),
        "median spread of a frame about it": state.spread,
        **({"median noise of a pixel": float(np.median(state.noise))} if len(state.noise) else {}),
    }


def score_frames(state: BackgroundState, block: RowsBlock) -> Statistics:
    """Squared errors of held-out frames by the background with their own gain and offset, by it alone, and by the mean
    of the frame. What moves is in all of them. Raises RunError if there is no background."""
    held = cast(RowsBlock, held_out(block))
    check_trained(state)
    pixels, scenes = sampled_pixels(state.seed, state.features), scenes_of(state)
    numbers = scene_numbers(held, pixels, state.leaders)
    losses = {name: np.zeros(block.clients) for name in LINES}
    registrations = [Registration(own.images, own.energies, pixels, own.registered) for own in scenes]
    for client in range(block.clients):
        own, registration = scenes[numbers[client]], registrations[numbers[client]]
        for _, frames in frames_of(held, client):
            found = registration(frames)
            estimates = {
                RUN: registration.in_place(found, predicted(registration.images, found.codes)),
                PLAIN: own.images[0],
                FLAT: frames.mean(axis=1, keepdims=True, dtype=np.float64),
            }
            for name, estimate in estimates.items():
                losses[name][client] += ((frames - estimate) ** 2).mean(axis=1).sum()
    return held_rows.sums(block.leaf, np.diff(held.ptr).astype(np.float64), losses)


def score_table(statistics: Mapping[str, np.ndarray]) -> held_rows.Table:
    """The table of the finished sums of all leaves. Raises PopulationError if nothing was held out."""
    return held_rows.table(statistics, LINES, "mse")
