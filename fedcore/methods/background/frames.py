"""A camera's background: one image that all frames share, times the gain of each, plus its offset, plus what is sparse.

    y_t = g_t B + o_t + s_t + noise        of every frame t of every client; B (d,), s_t sparse: objects that move

A row is a frame, all its pixels and channels in position; a client is a camera's, or a run of consecutive frames. In
each round a client fits the gains and offsets of its frames to the shared image by itself, and sends two sums of each
pixel over its frames, of which the server makes one step of iteratively reweighted least squares:

    sum of v g w(r) r,  sum of v g^2 w(r)     r = y - g B - o;  w(r) = min(1, c/|r|) (Huber), v: weight of the client

In the last rounds w is Tukey's biweight (1 - r^2 / k^2)^2, which is 0 beyond k: an M-estimate of high efficiency from a
robust start. A client's answer is bounded whatever it holds: |g w(r) r| <= 4 c for each of its frames, and all of them
have weight 1 together (`weight_cap`); so are gains and offsets in the sums that the image is brought to scale by. Only
the mean image at the start has no residuals; there pixels are cut to a range.

Medians do not add over clients. What is wanted of them, the range and the spread of residuals, is read from histograms
over a fixed grid of logarithms, which do: each client adds 1 to them.

Source: Huber, "Robust Statistics" (1981), Chapter 7; Beaton, Tukey 1974 (biweight); Yohai 1987 (MM-estimates).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fedcore.errors import PopulationError
from fedcore.population.blocks import RowsBlock
from fedcore.randomness import stream

TO_STANDARD_DEVIATION = 1.4826  # of a normal distribution, from its median absolute value
SAMPLED = 8192  # pixels of a frame by which its gain, offset and spread are found
FRAMES = 8  # of a client that are in memory together; its sums do not depend on where they are read from
TILE = 8192  # pixels of them that are treated together: what is made of them stays in the cache
MOST_GAIN = 4.0  # of a frame, and 1/4 the least: others do not show the scene
DARKEST = 16.0  # 1 / the least gain of a dark frame
EXPOSURE_STEPS = 6  # of reweighting
EXPOSURE_CUT = 1.345  # standard deviations: 95 % efficient with normal noise (Huber 1981)
FLAT = 1e-10  # variance of an image's pixels, over their mean square, below which no gain can be estimated
PER_OCTAVE, OCTAVES = 16, 40  # of the grid of logarithms: from 2^-40 to 2^40
BIWEIGHT = 4.685  # standard deviations at which the biweight is 0: 95 % efficient
Exposures = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True)
class BackgroundMessage:
    """Asks every client for its sums.

    phase:     "start": the histogram of its pixels; "mean": its mean image; "rounds": residuals by the shared image;
               "noise": squares of these residuals
    number:    of the round, from 1; seed: names the stream of the sampled pixels
    images:    (1 + K, d) B and its modes, in the precision of messages; (0, d) before there is one
    energies:  (K,) mean squares of the codes of modes; sketched: modes of which the first sketch is asked for
    low, high: range that pixels of the mean are cut to, and whose width is the most that an offset counts for
    cut:       c, or k of the biweight, in the units of the data; biweight: which of the two
    noise:     (d,) last standard deviations of the pixels, by which squares are cut; (0,) before there are any
    every:     in the phase "start": every k-th client sends a signature of its scene
    looked_at, registered: (height, width) of pictures in which clients look for shakes, and of those that they register
               (`fedcore.methods.background.shakes`); else None
    leaders:   (S, G) signatures of several scenes, each of which has a message in scenes; empty for a single one
    """

    phase: str
    number: int
    seed: int
    images: np.ndarray
    energies: np.ndarray
    sketched: int
    low: float
    high: float
    cut: float
    biweight: bool
    noise: np.ndarray
    every: int = 1
    looked_at: tuple[int, int] | None = None
    registered: tuple[int, int] | None = None
    leaders: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    scenes: tuple[BackgroundMessage, ...] = ()


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
    """Increasing numbers of the pixels by which frames are compared, the same for all clients."""
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


def shows_the_scene(gains: np.ndarray, spreads: np.ndarray, width: float) -> np.ndarray:
    """(n,) bool: frames whose gain is neither far too large nor far too small, as of one that is black or noise. A dark
    one shows the scene if the image, of which `width` is the spread over the pixels, is louder in it than its spread
    about the image."""
    dark = (gains >= 1 / DARKEST) & (gains * width > spreads)
    return (gains <= MOST_GAIN) & ((gains >= 1 / MOST_GAIN) | dark)


# --- histograms -----------------------------------------------------------------------------------------------------


def histogram(values: np.ndarray) -> np.ndarray:
    """(B,) shares of values in the cells of the grid: below 0 from large to small, about 0, above 0."""
    half = 2 * OCTAVES * PER_OCTAVE
    size = np.log2(np.maximum(np.abs(values.astype(np.float64)), 2.0 ** -(OCTAVES + 1)))
    place = np.clip(np.floor((size + OCTAVES) * PER_OCTAVE).astype(np.int64) + 1, 0, half)
    place = np.where(values < 0, -place, place) + half
    return np.bincount(place.ravel(), minlength=2 * half + 1) / max(values.size, 1)


def quantile(counts: np.ndarray, share: float) -> float:
    """The middle of the cell that contains the quantile. counts: sums of `histogram`."""
    half = len(counts) // 2
    below = np.cumsum(counts)  # the last of which may be less than the sum by rounding
    place = int(np.searchsorted(below, min(share * counts.sum(), below[-1]))) - half
    if place == 0:
        return 0.0
    return float(np.sign(place) * 2.0 ** ((abs(place) - 0.5) / PER_OCTAVE - OCTAVES))
