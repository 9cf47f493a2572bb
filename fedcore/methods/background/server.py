"""The server's side: a range, a mean image, then steps of reweighted least squares.

start    histogram of the pixels: the range that pixels of the mean are cut to; and signatures, which show whether
         clients have several scenes (`fedcore.methods.background.scenes`), for each of which all else is done
mean     the first image; left out where a warm start gives one
rounds   image += sum v g w r / sum v g^2 w; then gains have mean 1 and offsets mean 0 over the frames that show the
         scene, so that gains and image are identifiable. The first round cuts at the range, and fits gains
         by it; the others at multiples of the median spread of the frames about the image before. Round SKETCHED asks
         for a sketch of what the image leaves; from then on modes move with it (`modes`), and from round
         TESTED on those that are not of the scene are dropped
noise    after the last round, the standard deviation of each pixel: root of sum w r^2 / sum w, w the biweight by the
         last one, drawn towards the median spread of the frames as by PRIOR more frames
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedcore.errors import PopulationError, RunError
from fedcore.methods.background.clients import first_modes, kept, moved_modes
from fedcore.methods.background.config import BackgroundConfig
from fedcore.methods.background.frames import BIWEIGHT, BackgroundMessage, quantile, sampled_pixels
from fedcore.methods.background.scenes import leaders_of, matched, of_scene, round_of, scenes_of, together
from fedcore.methods.background.shakes import MANY
from fedcore.methods.background.state import BackgroundState
from fedcore.rounds.method import RoundInfo

SHARES = (0.3, 0.1, 0.02, 0.0)  # of the pixels below the range's core, and above; the next where a core has no width
WIDER = 3.0  # widths of the core by which the range goes beyond it
BIWEIGHT_ROUNDS = 4  # the last ones
HUBER_ROUNDS = 3  # at least, before them
LONGER = 1.8  # steps of the Huber rounds: below 2 they descend, as each minimises a quadratic bound of the loss
FEW = 0.05  # share of the weight that a pixel must keep under the biweight to move
SKETCHED, TESTED = 7, 10  # numbers of rounds; with fewer than FEWEST there are no modes
FEWEST = 12
BIWEIGHT_OF_MODES = 7.0  # standard deviations: while modes are learnt, what sways is beyond the usual
SMALLEST = 1e-6  # cut, of the range: below it residuals are rounding
NOISE_PASSES = 3
PRIOR = 4.0  # frames that the median spread counts for in the noise of a pixel
LEAST_NOISE = 0.7  # of a pixel, in median spreads of the frames
KEPT_SQUARE = 0.8  # of a normal variable's square, under the biweight and over its mean weight
LEVEL = 1 / 255  # of a camera's pixel of [0, 1]
DARKEST, BRIGHTEST = 0.1, 1.5  # of the largest pixels that those of [0, 1] have
LEAST_LEVELS, LEAST_DEVIATIONS = 20.0, 8.0  # of a change that is movement, without and with a known range


def message(config: BackgroundConfig, state: BackgroundState) -> BackgroundMessage | None:
    if state.phase == "done":
        return None
    if not len(state.leaders):
        return _message(config, state)
    parts = tuple(_message(config, one) for one in scenes_of(state))
    empty: dict[str, Any] = {"images": np.zeros((0, state.features)), "energies": np.zeros(0), "noise": np.zeros(0)}
    return replace(parts[0], **empty, leaders=state.leaders, scenes=parts)


def _message(config: BackgroundConfig, state: BackgroundState) -> BackgroundMessage:
    number = state.round + 1
    biweight = _biweight(config, number)
    width = state.high - state.low
    factor = config.cut
    if biweight:
        factor = BIWEIGHT if number > config.rounds - BIWEIGHT_ROUNDS else BIWEIGHT_OF_MODES
    cut = width if state.spread < 0 else max(factor * state.spread, SMALLEST * width)
    images = state.images.astype(config.precision, copy=False) if len(state.images) else state.images
    sketched = config.modes if number == SKETCHED and config.rounds >= FEWEST else 0
    return BackgroundMessage(
        state.phase,
        number,
        state.seed,
        images,
        state.energies,
        sketched,
        state.low,
        state.high,
        cut,
        biweight,
        state.noise.astype(config.precision, copy=False),
        state.every,
        looked_at=state.picture if state.phase == "rounds" and number == 1 else None,
        registered=state.registered,
    )


def _biweight(config: BackgroundConfig, number: int) -> bool:
    """Whether this is one of the rounds with the biweight: the last ones, and all in which modes are learnt, or objects
    would become part of them."""
    if number > config.rounds - BIWEIGHT_ROUNDS and number > HUBER_ROUNDS:
        return True
    return number >= SKETCHED and config.modes > 0 and config.rounds >= FEWEST


def server_update(
    config: BackgroundConfig, state: BackgroundState, result: Mapping[str, Any]
) -> tuple[BackgroundState, RoundInfo]:
    """Raises PopulationError if no client has frames, RunError if no frame shows what the others show."""
    if state.phase == "start":
        return _after_start(state, result)
    scenes = scenes_of(state)
    if len(scenes) == 1:
        return _of_a_scene(config, state, result)
    moved = [_of_a_scene(config, one, of_scene(result, scene)) for scene, one in enumerate(scenes)]
    return together([one for one, _ in moved], state.leaders), round_of([info for _, info in moved])


def _of_a_scene(
    config: BackgroundConfig, state: BackgroundState, result: Mapping[str, Any]
) -> tuple[BackgroundState, RoundInfo]:
    if state.phase == "mean":
        weight, frames = (float(value) for value in np.asarray(result["counts"])[:2])
        image = np.asarray(result["up"]) / weight
        sent = 8.0 * image.size * state.clients
        return replace(state, phase="rounds", images=image[None]), RoundInfo({"rows": frames, "bytes_up": sent})
    if state.phase == "noise":
        return _after_squares(config, state, result)
    return _after_round(config, state, result)


def _after_start(state: BackgroundState, result: Mapping[str, Any]) -> tuple[BackgroundState, RoundInfo]:
    clients, rows, silent = (float(value) for value in result["counts"])
    if clients == 0:
        raise PopulationError("no client of the population has frames.", "Check what was ingested.")
    pixels = np.asarray(result["pixels"])
    for share in SHARES:
        low, high = quantile(pixels, max(share, 1e-12)), quantile(pixels, 1.0 - share)
        if high > low:
            break
    else:
        raise PopulationError(f"all pixels of all frames are about {low:g}.", "There is no background to be found.")
    low, high = low - WIDER * (high - low), high + WIDER * (high - low)
    signed = np.asarray(result["signatures"])
    leaders = leaders_of(signed[:, 1:], signed[:, 0] * state.every)
    scalars = {"clients": clients, "rows": rows, "silent": silent, "scenes": float(len(leaders))}
    scalars["bytes_up"] = 8.0 * pixels.size * clients + signed.nbytes
    images = matched(state.images, sampled_pixels(state.seed, state.features), leaders) if state.given else None
    state = replace(state, clients=clients, rows=rows, low=low, high=high, given=images is not None)
    if images is None:
        none = np.zeros((0, state.features))
        scenes = [replace(state, phase="mean", images=none)] * len(leaders)
    else:
        scenes = [replace(state, phase="rounds", images=image[None]) for image in images]
    return together(scenes, leaders), RoundInfo(scalars)


def _after_round(
    config: BackgroundConfig, state: BackgroundState, result: Mapping[str, Any]
) -> tuple[BackgroundState, RoundInfo]:
    weight, frames, gains, offsets, strangers, loss, clients, moved = (float(value) for value in result["counts"])
    if weight == 0:
        raise RunError(
            "no frame shows what the mean of the frames shows.",
            "Frames of one camera that stands still have a background: look at the frames.",
        )
    up, down, before = np.asarray(result["up"]), np.asarray(result["down"]), state.images[0]
    moves = down > FEW * weight
    step = np.divide(up, down, out=np.zeros_like(up), where=moves)
    if 1 < state.round + 1 and not _biweight(config, state.round + 1):
        step *= LONGER
    image = (gains / weight) * (before + step) + offsets / weight
    number = state.round + 1
    modes, energies = _modes_after(config, state, result, image, np.where(moves, down / weight, 0.0))
    if not (np.isfinite(image).all() and np.isfinite(loss)):
        raise RunError(f"the background of round {number} is not finite.", "Leave out frames whose pixels are huge.")
    spread = quantile(np.asarray(result["spreads"]), 0.5)
    sent = 8.0 * clients * (2 * image.size + np.asarray(result.get("modes", ())).size)
    scalars = {
        "movement": float(np.sqrt(np.mean((image - before) ** 2))),
        "loss": loss / (max(frames, 1.0) * image.size),
        "spread": spread,
        "strangers": strangers,
        "moved": moved,
        "modes": float(len(modes)),
        "active_clients": clients,
        "bytes_up": sent,
        "bytes_down": clients * np.dtype(config.precision).itemsize * state.images.size,
    }
    images = np.concatenate([image[None], modes])
    shaken = state.shaken or (number == 1 and moved > MANY * frames)
    state = replace(state, round=number, images=images, energies=energies, spread=spread, shaken=shaken)
    if number >= config.rounds:
        state = replace(state, phase="noise", noise=np.full(image.size, max(spread, least_noise(state))))
    return state, RoundInfo(scalars)


def _after_squares(
    config: BackgroundConfig, state: BackgroundState, result: Mapping[str, Any]
) -> tuple[BackgroundState, RoundInfo]:
    counts = np.asarray(result["counts"])
    weight, frames, strangers, clients = (float(counts[place]) for place in (0, 1, 4, 6))
    per_weight = frames / weight if weight > 0 else 0.0  # so that PRIOR is in frames, whatever a client weighs
    prior = PRIOR * KEPT_SQUARE * state.spread**2
    variance = np.asarray(result["squares"]) * per_weight + prior
    variance /= KEPT_SQUARE * (np.asarray(result["weights"]) * per_weight + PRIOR)
    noise, number = np.maximum(np.sqrt(variance), least_noise(state)), state.round + 1
    scalars = {
        "noise": float(np.median(noise)),
        "strangers": strangers,
        "active_clients": clients,
        "bytes_up": 16.0 * clients * noise.size,
        "bytes_down": clients * np.dtype(config.precision).itemsize * (state.images.size + noise.size),
    }
    phase = "done" if number >= config.rounds + NOISE_PASSES else "noise"
    return replace(state, round=number, phase=phase, noise=noise), RoundInfo(scalars)


def least_noise(state: BackgroundState) -> float:
    """The least standard deviation of a pixel: a share of the median spread, and that of rounding to 8 bits."""
    tiny = SMALLEST * (state.high - state.low)
    return max(LEAST_NOISE * state.spread, LEVEL / np.sqrt(12.0) if _of_a_camera(state) else tiny)


def least_change(config: BackgroundConfig, state: BackgroundState) -> float | None:
    """The setting, or what stands for it; None before there is a background."""
    if config.least_change is not None or not len(state.images):
        return config.least_change
    if all(_of_a_camera(one) for one in scenes_of(state)):
        return LEAST_LEVELS * LEVEL
    return LEAST_DEVIATIONS * (float(np.median(state.noise)) if len(state.noise) else state.spread)


def _of_a_camera(state: BackgroundState) -> bool:
    """Whether the pixels of the background look like a camera's, scaled to [0, 1]."""
    image = state.images[0]
    return bool(DARKEST <= image.max() <= BRIGHTEST and image.min() > -DARKEST)


def _modes_after(
    config: BackgroundConfig, state: BackgroundState, result: Mapping[str, Any], image: np.ndarray, share: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """((K, d) modes, (K,) energies). share: (d,) of the weight that pixels keep, 0 for those that do not move."""
    if "modes" not in result:
        return np.zeros((0, image.size)), np.zeros(0)
    sums, (weight, frames) = np.asarray(result["modes"]), (float(value) for value in np.asarray(result["counts"])[:2])
    if "gram" not in result:
        return first_modes(sums, image, state.spread)
    modes, gram, number = state.images[1:], np.asarray(result["gram"]) / weight, state.round + 1
    medians = np.array([quantile(counts, 0.5) for counts in np.asarray(result["codes"])])
    if number >= TESTED:
        stay = kept(modes, gram, medians, state.spread, frames)
        modes, sums, gram, medians = modes[stay], sums[stay], gram[np.ix_(stay, stay)], medians[stay]
    if not len(modes):
        return np.zeros((0, image.size)), np.zeros(0)
    return moved_modes(modes, image, sums / weight, gram, medians, share)
