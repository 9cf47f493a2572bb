"""A client's side: sums over its frames, as `fedcore.methods.background.frames` has them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcore.methods.background.config import BackgroundConfig
from fedcore.methods.background.frames import TILE, BackgroundMessage, frames_of, histogram, sampled_pixels
from fedcore.methods.background.modes import Codes, codes_of
from fedcore.population.blocks import RowsBlock
from fedcore.randomness import stream
from fedcore.rounds.statistics import FloatSum, Statistic, Statistics

COUNTS = 7  # weight, frames, gains, offsets, strangers, loss, clients


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
    pixels = sampled_pixels(message.seed, block.features)
    if message.phase == "start":
        return _pixels_of(block, pixels)
    if message.phase == "mean":
        return _means_of(config, message, block)
    return _residuals_of(config, message, block, pixels)


def _pixels_of(block: RowsBlock, pixels: np.ndarray) -> Statistics:
    sizes = np.diff(block.ptr)
    total = np.zeros_like(histogram(np.zeros(1)))
    for client in map(int, np.flatnonzero(sizes)):
        for _, frames in frames_of(block, client):
            total += histogram(frames[:, pixels]) * len(frames) / float(sizes[client])
    counts = [(sizes > 0).sum(), sizes.sum(), (sizes == 0).sum()]
    return {"pixels": FloatSum.at(block.leaf, total), "counts": FloatSum.at(block.leaf, counts)}


def _means_of(config: BackgroundConfig, message: BackgroundMessage, block: RowsBlock) -> Statistics:
    sizes, up, counts = np.diff(block.ptr), np.zeros(block.features), np.zeros(COUNTS)
    for client in map(int, np.flatnonzero(sizes)):
        weight = client_weight(config, int(sizes[client])) / float(sizes[client])
        for _, frames in frames_of(block, client):
            up += weight * np.clip(frames, message.low, message.high).sum(axis=0, dtype=np.float64)
            counts[:2] += weight * len(frames), len(frames)
        counts[6] += 1
    return {"up": FloatSum.at(block.leaf, up), "counts": FloatSum.at(block.leaf, counts)}


def _residuals_of(
    config: BackgroundConfig, message: BackgroundMessage, block: RowsBlock, pixels: np.ndarray
) -> Statistics:
    sizes, d, width = np.diff(block.ptr), block.features, message.high - message.low
    images = np.array(message.images, block.x.dtype)
    at_pixels, count = images[:, pixels], len(message.energies)
    up, down, counts = np.zeros(d), np.zeros(d), np.zeros(COUNTS)
    spreads = np.zeros_like(histogram(np.zeros(1)))
    modes = np.zeros((max(count, message.sketched), d))
    gram, sizes_of_codes = np.zeros((count, count)), np.zeros((count, len(spreads)))
    for client in map(int, np.flatnonzero(sizes)):
        weight = client_weight(config, int(sizes[client])) / float(sizes[client])
        signs = stream(message.seed, "dictionaries/sketch", 0, block.first + client)
        for _, frames in frames_of(block, client):
            lots = signs.choice([-1.0, 1.0], (len(frames), message.sketched))
            codes = codes_of(frames[:, pixels], at_pixels, message.energies)
            shown = codes.shown
            there = int(shown.sum())
            counts[[1, 4]] += there, len(frames) - there
            if not there:
                continue
            if there < len(frames):  # what strangers hold need not even be numbers that can be squared
                frames, lots, codes = frames[shown], lots[shown], Codes(*(part[shown] for part in codes))
            sums = add_sums(frames, images, codes, codes.modes if count else lots, message)
            up += weight * sums.up
            down += weight * sums.down
            bounded = np.clip(codes.offsets, -width, width).sum()
            counts[[0, 2, 3, 5]] += weight * there, weight * codes.gains.sum(), weight * bounded, sums.loss
            spreads += histogram(codes.spreads) * there / float(sizes[client])
            if len(modes):
                modes += weight * sums.modes
            if count:
                gram += weight * codes.modes.T @ codes.modes
                for mode, own in zip(sizes_of_codes, np.abs(codes.modes).T, strict=True):
                    mode += histogram(own) * there / float(sizes[client])
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
