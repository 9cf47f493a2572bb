"""A client's side: sums over its frames, as `fedcore.methods.background.frames` has them.

Images by which a background varies from frame to frame: branches that sway, light that moves over the scene.

    y_t = g_t B + o_t + sum over k of a_tk M_k + s_t + noise

Clients find the codes a_tk with the gain and the offset (`codes_of`). As with the shared image, the server learns the
modes from sums of cut residuals, and from nothing else:

    first      sum of v e_tk psi(r_t), random e_tk = +-1: a random sketch of the space that residuals fill
    then       sum of v a_tk psi(r_t), and (K, K) sums of v a a': a step of least squares on residuals that are cut

Modes have mean square 1 over the pixels, are orthogonal to each other, to the image and to what is flat, and are
ordered by the mean square of their codes, their energy. A code counts for at most BOUND of its root, so a client's
answer stays bounded. Three conditions distinguish what sways from noise and from objects. A mode that fails one is
dropped (`kept`):

    its codes are larger than those of noise:       median code^2 > LOUD spread^2 / frames
    they are on in most frames:                     1.4826 median |code| > OFTEN root mean square
    it is spread over the picture:                  (sum M^2)^2 / (d sum M^4) > WIDE

Sources: Halko, Martinsson, Tropp 2011 (sketch); Huber, "Robust Statistics" (1981), Chapter 7; Tipping, Bishop 1999
(codes with a normal prior).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcore.methods.background.codes import RIDGE, Codes
from fedcore.methods.background.config import BackgroundConfig
from fedcore.methods.background.frames import (
    BIWEIGHT,
    TILE,
    TO_STANDARD_DEVIATION,
    BackgroundMessage,
    frames_of,
    histogram,
    sampled_pixels,
)
from fedcore.methods.background.scenes import scene_numbers, signatures
from fedcore.methods.background.shakes import Registration, moved_frames
from fedcore.population.blocks import RowsBlock
from fedcore.randomness import stream
from fedcore.rounds.statistics import FloatSum, Stack, Statistic, Statistics

FIRST = 2.0  # root of a mode's energy before it is known, in spreads of the frames
LOUD, OFTEN, WIDE = 5.0, 0.7, 0.06
FULLEST = 0.3  # least share of its weight by which the step of a pixel is divided


# --- the server's modes ---------------------------------------------------------------------------------------------


def first_modes(sketch: np.ndarray, image: np.ndarray, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """((K, d) modes, (K,) energies) of sums of residuals (K, d) with random signs; K may be less: of those with any."""
    rest = _off(sketch, image)
    return _ordered(rest, np.eye(len(rest)), np.full(len(rest), (FIRST * spread) ** 2))


def moved_modes(
    modes: np.ndarray, image: np.ndarray, sums: np.ndarray, gram: np.ndarray, medians: np.ndarray, share: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """((K, d) modes, (K,) energies) after a step.

    sums: (K, d) of codes and cut residuals; gram: (K, K) mean of the products of codes; medians: (K,) of their sizes,
    which energies follow where they are smaller than the mean squares say, as with an object that fills a few frames;
    share: (d,) of the weight of each pixel, 0 for those that are not to move.
    """
    step = np.linalg.solve(gram + _ridge(gram), sums)
    step /= np.maximum(share, FULLEST)
    step[:, share == 0] = 0.0
    step += modes
    typical = np.minimum(TO_STANDARD_DEVIATION * medians / np.maximum(np.sqrt(np.diag(gram)), 1e-300), 1.0)
    return _ordered(_off(step, image), gram * np.outer(typical, typical), None)


def kept(modes: np.ndarray, gram: np.ndarray, medians: np.ndarray, spread: float, frames: float) -> np.ndarray:
    """(K,) bool: modes (K, d) whose codes, of mean products gram (K, K) and median sizes (K,), are those of a scene
    that varies, see above."""
    typical = TO_STANDARD_DEVIATION * medians
    square = modes * modes
    wide = square.sum(axis=1) ** 2 / (modes.shape[1] * np.maximum((square * square).sum(axis=1), 1e-300))
    loud = typical**2 > LOUD * spread**2 / max(frames, 1.0)
    chosen: np.ndarray = loud & (typical > OFTEN * np.sqrt(np.diag(gram))) & (wide > WIDE)
    return chosen


def _off(images: np.ndarray, image: np.ndarray) -> np.ndarray:
    """What of images (K, d) is orthogonal to the flat image and to another (d,)."""
    rest = images - images.mean(axis=1, keepdims=True)
    direction = image - image.mean()
    square = float(direction @ direction)
    return rest - np.outer(rest @ direction / square, direction) if square > 0 else rest


def _ordered(images: np.ndarray, gram: np.ndarray, energies: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The principal axes of images (K, d) with codes of mean products gram (K, K), and their energies, if not given."""
    factor = np.linalg.cholesky(gram + _ridge(gram)).T
    values, vectors = np.linalg.eigh(factor @ (images @ images.T) @ factor.T)
    values, vectors = values[::-1], vectors[:, ::-1]
    there = values > 1e-12 * max(float(values[0]), 1e-300)
    values, vectors = values[there], vectors[:, there]
    d = images.shape[1]
    modes = (vectors.T / np.sqrt(values)[:, None] * np.sqrt(d)) @ factor @ images
    return modes, values / d if energies is None else energies[there]


def _ridge(gram: np.ndarray) -> np.ndarray:
    return (RIDGE * float(np.trace(gram)) + np.finfo(float).tiny) * np.eye(len(gram))


COUNTS = 8  # weight, frames, gains, offsets, strangers, loss, clients, moved frames


class Sums(NamedTuple):
    """Over frames: up (d,) of g psi(r), down (d,) of g^2 w, modes (K, d) of codes or signs by psi(r), loss of w r^2."""

    up: np.ndarray
    down: np.ndarray
    modes: np.ndarray
    loss: float


def predicted(images: np.ndarray, codes: Codes) -> np.ndarray:
    """(n, d) backgrounds g B + o + a M of frames, in the precision of the images (1 + K, d)."""
    dtype = images.dtype
    return codes.gains[:, None].astype(dtype) * images[0] + _beyond_the_image(images, codes)


def _beyond_the_image(images: np.ndarray, codes: Codes) -> np.ndarray:
    offsets = codes.offsets[:, None].astype(images.dtype)
    return offsets + codes.modes.astype(images.dtype) @ images[1:] if len(images) > 1 else offsets


def add_sums(
    frames: np.ndarray, images: np.ndarray, codes: Codes, factors: np.ndarray, message: BackgroundMessage
) -> Sums:
    """Sums over frames (n, d), by tiles of pixels. factors: (n, K) that residuals count by in the sums of modes."""
    dtype, (n, d) = frames.dtype, frames.shape
    first, second = codes.gains.astype(dtype), (codes.gains**2).astype(dtype)
    factors = np.ascontiguousarray(factors.T.astype(dtype))
    up, down, modes = np.empty(d, dtype), np.empty(d, dtype), np.empty((len(factors), d), dtype)
    loss, cut = 0.0, dtype.type(message.cut)
    room, spare = np.empty((2, n, min(TILE, d)), dtype)
    for low in range(0, d, TILE):
        high = min(low + TILE, d)
        rest, w = room[:, : high - low], spare[:, : high - low]
        np.multiply(first[:, None], images[0, low:high], out=rest)
        rest += _beyond_the_image(images[:, low:high], codes)
        np.subtract(frames[:, low:high], rest, out=rest)
        if message.biweight:
            np.divide(rest, cut, out=w)
            np.clip(w, -1, 1, out=w)
            np.multiply(w, w, out=w)
            np.subtract(1, w, out=w)
            np.multiply(w, w, out=w)
        else:
            np.abs(rest, out=w)
            np.maximum(w, cut, out=w)
            np.divide(cut, w, out=w)
        np.matmul(second, w, out=down[low:high])
        np.multiply(w, rest, out=w)
        np.matmul(first, w, out=up[low:high])
        if len(factors):
            np.matmul(factors, w, out=modes[:, low:high])
        loss += float(np.einsum("nm,nm->", w, rest))
    return Sums(up, down, modes, loss)


def client_weight(config: BackgroundConfig, frames: int) -> float:
    """Of all frames of a client together."""
    return float(frames if config.weight_cap is None else min(frames, config.weight_cap))


def client_update(config: BackgroundConfig, message: BackgroundMessage, block: RowsBlock) -> Statistics:
    """The answer of a leaf of clients. Raises PopulationError for values that are not finite."""
    pixels, sizes = sampled_pixels(message.seed, block.features), np.diff(block.ptr)
    if message.phase == "start":
        return _pixels_of(message, block, pixels, sizes)
    if not message.scenes:
        return _answer(config, message, block, pixels, sizes)
    numbers, found = scene_numbers(block, pixels, message.leaders), dict[str, Statistic]()
    for scene, one in enumerate(message.scenes):
        answer = _answer(config, one, block, pixels, np.where(numbers == scene, sizes, 0))
        found |= {f"{name}_{scene}": statistic for name, statistic in answer.items()}
    return found


def _answer(
    config: BackgroundConfig, message: BackgroundMessage, block: RowsBlock, pixels: np.ndarray, sizes: np.ndarray
) -> Statistics:
    """Of clients with these numbers of frames (C,); 0 for those that do not answer."""
    if message.phase == "mean":
        return _means_of(config, message, block, sizes)
    if message.phase == "noise":
        return _squares_of(config, message, block, pixels, sizes)
    return _residuals_of(config, message, block, pixels, sizes)


def _pixels_of(message: BackgroundMessage, block: RowsBlock, pixels: np.ndarray, sizes: np.ndarray) -> Statistics:
    total = np.zeros_like(histogram(np.zeros(1)))
    for client in map(int, np.flatnonzero(sizes)):
        for _, frames in frames_of(block, client):
            total += histogram(frames[:, pixels]) * len(frames) / float(sizes[client])
    counts = [(sizes > 0).sum(), sizes.sum(), (sizes == 0).sum()]
    asked = [client for client in map(int, np.flatnonzero(sizes)) if (block.first + client) % message.every == 0]
    signed = np.column_stack([sizes[asked].astype(np.float32), signatures(block, pixels, asked)])
    return {
        "pixels": FloatSum.at(block.leaf, total),
        "counts": FloatSum.at(block.leaf, counts),
        "signatures": Stack({block.first: signed}),
    }


def _means_of(config: BackgroundConfig, message: BackgroundMessage, block: RowsBlock, sizes: np.ndarray) -> Statistics:
    up, counts = np.zeros(block.features), np.zeros(COUNTS)
    for client in map(int, np.flatnonzero(sizes)):
        weight = client_weight(config, int(sizes[client])) / float(sizes[client])
        for _, frames in frames_of(block, client):
            up += weight * np.clip(frames, message.low, message.high).sum(axis=0, dtype=np.float64)
            counts[:2] += weight * len(frames), len(frames)
        counts[6] += 1
    return {"up": FloatSum.at(block.leaf, up), "counts": FloatSum.at(block.leaf, counts)}


def _squares_of(
    config: BackgroundConfig, message: BackgroundMessage, block: RowsBlock, pixels: np.ndarray, sizes: np.ndarray
) -> Statistics:
    """Sums over frames of w r^2 and w (d,), w the biweight of a residual r by the last noise of its pixel."""
    dtype = block.x.dtype
    cut = (BIWEIGHT * message.noise).astype(dtype)
    registration = Registration(np.array(message.images, dtype), message.energies, pixels, message.registered)
    images = registration.images
    squares, weights, counts = np.zeros(block.features), np.zeros(block.features), np.zeros(COUNTS)
    for client in map(int, np.flatnonzero(sizes)):
        weight = client_weight(config, int(sizes[client])) / float(sizes[client])
        for _, frames in frames_of(block, client):
            found = registration(frames)
            shown = found.codes.shown
            there = int(shown.sum())
            counts[[0, 1, 4]] += weight * there, there, len(frames) - there
            if not there:
                continue
            found = found if there == len(frames) else found.only(shown)
            frames, codes = found.frames, found.codes
            rest = frames - predicted(images, codes)
            w = np.clip(rest / cut, -1, 1)
            w = (1 - w * w) ** 2
            squares += weight * np.einsum("nm,nm,nm->m", w, rest, rest)
            weights += weight * registration.where_known(w.sum(axis=0), found, np.ones(there))
        counts[6] += 1
    sums = (("squares", squares), ("weights", weights), ("counts", counts))
    return {name: FloatSum.at(block.leaf, total) for name, total in sums}


def _residuals_of(
    config: BackgroundConfig, message: BackgroundMessage, block: RowsBlock, pixels: np.ndarray, sizes: np.ndarray
) -> Statistics:
    d, width = block.features, message.high - message.low
    registration = Registration(np.array(message.images, block.x.dtype), message.energies, pixels, message.registered)
    images, extra, count = registration.images, registration.extra, len(message.energies)
    looking = None
    if message.looked_at is not None:
        looking = Registration(images, message.energies, pixels, message.looked_at)
    up, down, counts = np.zeros(d), np.zeros(d), np.zeros(COUNTS)
    spreads = np.zeros_like(histogram(np.zeros(1)))
    modes = np.zeros((max(count, message.sketched), d))
    gram, sizes_of_codes = np.zeros((count, count)), np.zeros((count, len(spreads)))
    for client in map(int, np.flatnonzero(sizes)):
        weight = client_weight(config, int(sizes[client])) / float(sizes[client])
        signs = stream(message.seed, "dictionaries/sketch", 0, block.first + client)
        for _, frames in frames_of(block, client):
            lots = signs.choice([-1.0, 1.0], (len(frames), message.sketched))
            found = registration(frames)
            shown = found.codes.shown
            there = int(shown.sum())
            if looking is not None:
                counts[7] += moved_frames(looking(frames))
            elif extra:
                counts[7] += moved_frames(found)
            counts[[1, 4]] += there, len(frames) - there
            if not there:
                continue
            if there < len(frames):  # what strangers hold need not even be numbers that can be squared
                found, lots = found.only(shown), lots[shown]
            frames, codes = found.frames, found.codes
            own = codes.modes[:, extra:]
            sums = add_sums(frames, images, codes, own if count else lots, message)
            up += weight * sums.up
            down += weight * registration.where_known(sums.down, found, codes.gains**2)
            bounded = np.clip(codes.offsets, -width, width).sum()
            counts[[0, 2, 3, 5]] += weight * there, weight * codes.gains.sum(), weight * bounded, sums.loss
            spreads += histogram(codes.spreads) * there / float(sizes[client])
            if len(modes):
                modes += weight * sums.modes
            if count:
                gram += weight * own.T @ own
                for mode, sizes_of_mode in zip(sizes_of_codes, np.abs(own).T, strict=True):
                    mode += histogram(sizes_of_mode) * there / float(sizes[client])
        counts[6] += 1
    statistics: dict[str, Statistic] = {
        name: FloatSum.at(block.leaf, total)
        for name, total in (("up", up), ("down", down), ("counts", counts), ("spreads", spreads))
    }
    if len(modes):
        statistics["modes"] = FloatSum.at(block.leaf, modes)
    if count:
        statistics |= {"gram": FloatSum.at(block.leaf, gram), "codes": FloatSum.at(block.leaf, sizes_of_codes)}
    return statistics
