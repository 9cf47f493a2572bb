"""Model "background": one image that all frames share, times the gain of each, plus its offset, plus what is sparse.

    y_t = g_t B + o_t + s_t + noise        of every frame t of every client; B (d,), s_t sparse: objects that move

A row is a frame, all its pixels and channels in position; a client is a camera's, or a run of consecutive frames. In
each round a client fits the gains and offsets of its frames to the shared image by itself, and sends two sums of each
pixel over its frames, of which the server makes one step of iteratively reweighted least squares:

    sum of v g w(r) r,  sum of v g^2 w(r)     r = y - g B - o;  w(r) = min(1, c/|r|) (Huber), v: weight of the client

In the last rounds w is Tukey's biweight (1 - r^2 / k^2)^2, which is 0 beyond k: an M-estimate of high efficiency from a
robust start. A client's answer is bounded whatever it holds: |g w(r) r| <= 4 c for each of its frames, and all of them
have weight 1 together (`weights`); so are gains and offsets in the sums that the image is brought to scale by. Only the
mean image at the start has no residuals; there pixels are cut to a range.

Medians do not add over clients. What is wanted of them, the range and the spread of residuals, is read from histograms
over a fixed grid of logarithms, which do: each client adds 1 to them.

Source: Huber, "Robust Statistics" (1981), Chapter 7; Beaton, Tukey 1974 (biweight); Yohai 1987 (MM-estimates).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedcore.errors import PopulationError
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.robust import TO_STANDARD_DEVIATION
from fedcore.population.blocks import RowsBlock
from fedcore.randomness import stream
from fedcore.rounds.method import Memory
from fedcore.rounds.statistics import FloatSum, Statistic, Statistics

SAMPLED = 8192  # pixels of a frame by which its gain, offset and spread are found
FRAMES = 8  # of a client that are in memory together; its sums do not depend on where they are read from
TILE = 8192  # pixels of them that are treated together: what is made of them stays in the cache
MOST_GAIN = 4.0  # of a frame, and 1/4 the least: others do not show the scene
EXPOSURE_STEPS = 6  # of reweighting
EXPOSURE_CUT = 1.345  # standard deviations: 95 % efficient with normal noise (Huber 1981)
FLAT = 1e-10  # variance of an image's pixels, over their mean square, below which no gain can be told
PER_OCTAVE, OCTAVES = 16, 40  # of the grid of logarithms: from 2^-40 to 2^40
BIWEIGHT = 4.685  # standard deviations at which the biweight is 0: 95 % efficient
Exposures = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True)
class BackgroundMessage:
    """Asks every client for its sums.

    phase:     "start": the histogram of its pixels; "mean": its mean image; "rounds": residuals by the shared image
    number:    of the round, from 1; seed: names the stream of the sampled pixels
    image:     (d,) B, in the precision of messages; empty before there is one
    low, high: range that pixels of the mean are cut to, and whose width is the most that an offset counts for
    cut:       c, or k of the biweight, in the units of the data; biweight: which of the two
    """

    phase: str
    number: int
    seed: int
    image: np.ndarray
    low: float
    high: float
    cut: float
    biweight: bool


# --- a client's frames ----------------------------------------------------------------------------------------------


def frames_of(block: RowsBlock, client: int) -> Iterator[tuple[int, np.ndarray]]:
    """(number of the first, (n, d)) of a few frames of a client after the others. Raises PopulationError for values
    that are not finite, naming the client's number."""
    low, high = int(block.ptr[client]), int(block.ptr[client + 1])
    for first in range(low, high, FRAMES):
        frames = np.asarray(block.x[first : min(first + FRAMES, high)])
        with np.errstate(over="ignore", invalid="ignore"):
            fine = bool(np.isfinite(frames.sum()))
        if not (fine or np.isfinite(frames).all()):
            raise PopulationError(
                f"client number {block.first + client} has frames with missing or infinite values.",
                "A background needs whole frames: leave these out before ingesting.",
            )
        yield first, frames


def sampled_pixels(seed: int, features: int) -> np.ndarray:
    """Increasing numbers of the pixels that frames are compared by, the same for everybody."""
    if features <= SAMPLED:
        return np.arange(features)
    return np.sort(stream(seed, "dictionaries/pixels").choice(features, SAMPLED, replace=False))


def exposures(samples: np.ndarray, image: np.ndarray) -> Exposures:
    """(gains, offsets, spreads), each (n,): robust regression of the pixels of frames (n, m) on those of an image (m,).

    Huber weights from medians on, of which neither objects nor a changed exposure moves many. spread: 1.4826 median of
    the absolute residuals.
    """
    y, b = np.asarray(samples, np.float64), np.asarray(image, np.float64)
    middle, centre = np.median(y, axis=1), float(np.median(b))
    width = float(np.median(np.abs(b - centre)))
    gains = np.median(np.abs(y - middle[:, None]), axis=1) / width if width > 0 else np.ones(len(y))
    offsets = middle - gains * centre
    b2, flat, tiny = b * b, FLAT * float((b * b).mean()), np.finfo(float).tiny
    yb = y * b
    for _ in range(EXPOSURE_STEPS):
        rest = np.abs(y - gains[:, None] * b - offsets[:, None])
        cut = EXPOSURE_CUT * TO_STANDARD_DEVIATION * np.median(rest, axis=1)[:, None]
        w = np.where(rest > cut, cut / np.maximum(rest, np.maximum(cut, tiny)), 1.0)
        total = w.sum(1)
        of_image, of_frame = (w @ b) / total, np.einsum("nm,nm->n", w, y) / total
        variance = (w @ b2) / total - of_image**2
        shared = np.einsum("nm,nm->n", w, yb) / total - of_image * of_frame
        gains = np.where(variance > flat, shared / np.maximum(variance, max(flat, tiny)), 1.0)
        offsets = of_frame - gains * of_image
    rest = np.abs(y - gains[:, None] * b - offsets[:, None])
    return gains, offsets, TO_STANDARD_DEVIATION * np.median(rest, axis=1)


def shows_the_scene(gains: np.ndarray) -> np.ndarray:
    """(n,) bool: frames whose gain is neither far too large nor far too small, as of one that is black or noise."""
    return (gains >= 1 / MOST_GAIN) & (gains <= MOST_GAIN)


def predicted(image: np.ndarray, gains: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """(n, d) backgrounds g B + o of frames, in the precision of the image (d,)."""
    dtype = image.dtype
    return gains[:, None].astype(dtype) * image + offsets[:, None].astype(dtype)


def add_sums(
    frames: np.ndarray, image: np.ndarray, gains: np.ndarray, offsets: np.ndarray, message: BackgroundMessage
) -> tuple[np.ndarray, np.ndarray, float]:
    """((d,) sums of g w r, (d,) of g^2 w, sum of w r^2) over frames (n, d) with gains (n,) and offsets (n,).

    In the precision of the frames, by tiles of pixels.
    """
    dtype, (n, d) = frames.dtype, frames.shape
    first, second = gains.astype(dtype), (gains**2).astype(dtype)
    up, down, loss, cut = np.empty(d, dtype), np.empty(d, dtype), 0.0, dtype.type(message.cut)
    added = offsets[:, None].astype(dtype)
    room, spare = np.empty((2, n, min(TILE, d)), dtype)
    for low in range(0, d, TILE):
        high = min(low + TILE, d)
        rest, w = room[:, : high - low], spare[:, : high - low]
        np.multiply(first[:, None], image[low:high], out=rest)
        rest += added
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
        loss += float(np.einsum("nm,nm->", w, rest))
    return up, down, loss


# --- histograms -----------------------------------------------------------------------------------------------------


def histogram(values: np.ndarray) -> np.ndarray:
    """(B,) shares of values in the cells of the grid: below 0 from large to small, about 0, above 0."""
    half = 2 * OCTAVES * PER_OCTAVE
    size = np.log2(np.maximum(np.abs(values.astype(np.float64)), 2.0 ** -(OCTAVES + 1)))
    place = np.clip(np.floor((size + OCTAVES) * PER_OCTAVE).astype(np.int64) + 1, 0, half)
    place = np.where(values < 0, -place, place) + half
    return np.bincount(place.ravel(), minlength=2 * half + 1) / max(values.size, 1)


def quantile(counts: np.ndarray, share: float) -> float:
    """The value in the middle of the cell in which the quantile lies, of sums of `histogram`."""
    half = len(counts) // 2
    below = np.cumsum(counts)  # the last of which may be less than the sum by rounding
    place = int(np.searchsorted(below, min(share * counts.sum(), below[-1]))) - half
    if place == 0:
        return 0.0
    return float(np.sign(place) * 2.0 ** ((abs(place) - 0.5) / PER_OCTAVE - OCTAVES))


# --- a round --------------------------------------------------------------------------------------------------------


def client_weight(config: DictionariesConfig, frames: int) -> float:
    """Of all frames of a client together."""
    if config.weights == "clients":
        return 1.0
    return float(frames if config.weight_cap is None else min(frames, config.weight_cap))


def background_update(
    config: DictionariesConfig, message: BackgroundMessage, block: RowsBlock
) -> tuple[Statistics, Memory | None]:
    """The answer of a leaf; clients remember nothing. Raises PopulationError for values that are not finite."""
    d = block.features
    pixels = sampled_pixels(message.seed, d)
    if message.phase == "start":
        return _pixels_of(block, pixels), None
    sizes = np.diff(block.ptr)
    image = np.array(message.image, block.x.dtype)
    up, down, counts = np.zeros(d), np.zeros(d), np.zeros(7)
    spreads = np.zeros_like(histogram(np.zeros(1)))
    for client in map(int, np.flatnonzero(sizes)):
        weight = client_weight(config, int(sizes[client])) / float(sizes[client])
        for _, frames in frames_of(block, client):
            if message.phase == "mean":
                up += weight * np.clip(frames, message.low, message.high).sum(axis=0, dtype=np.float64)
                counts[:2] += weight * len(frames), len(frames)
                continue
            gains, offsets, spread = exposures(frames[:, pixels], image[pixels])
            shown = shows_the_scene(gains)
            there = int(shown.sum())
            counts[[1, 4]] += there, len(frames) - there
            if not there:
                continue
            if there < len(frames):  # what strangers hold need not even be numbers that can be squared
                frames, gains, offsets, spread = frames[shown], gains[shown], offsets[shown], spread[shown]
            ups, downs, loss = add_sums(frames, image, gains, offsets, message)
            up += weight * ups
            down += weight * downs
            width = message.high - message.low
            bounded = np.clip(offsets, -width, width).sum()
            counts[[0, 2, 3, 5]] += weight * there, weight * gains.sum(), weight * bounded, loss
            spreads += histogram(spread) * there / float(sizes[client])
        counts[6] += 1
    statistics: dict[str, Statistic] = {"up": FloatSum.at(block.leaf, up), "counts": FloatSum.at(block.leaf, counts)}
    if message.phase == "rounds":
        statistics |= {"down": FloatSum.at(block.leaf, down), "spreads": FloatSum.at(block.leaf, spreads)}
    return statistics, None


def _pixels_of(block: RowsBlock, pixels: np.ndarray) -> Statistics:
    sizes = np.diff(block.ptr)
    total = np.zeros_like(histogram(np.zeros(1)))
    for client in map(int, np.flatnonzero(sizes)):
        for _, frames in frames_of(block, client):
            total += histogram(frames[:, pixels]) * len(frames) / float(sizes[client])
    counts = [(sizes > 0).sum(), sizes.sum(), (sizes == 0).sum()]
    return {"pixels": FloatSum.at(block.leaf, total), "counts": FloatSum.at(block.leaf, counts)}
