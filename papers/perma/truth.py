"""Synthetic clients who share some atoms, with their truth; scores of images and masks against the truth.

Source: Liang, Shi, Al Kontar, Fattahi 2023, Section 5.1. An orthonormal frame is cut in two: the first atoms are
everybody's, the others span the complement, which every client turns in its own way. Codes are Bernoulli times normal,
entries raised to a floor; zeros stay zero. Here samples, atoms and codes are rows.

Images hold pixels of [0, 1]; they are neither rescaled nor clipped before scoring, unless that is asked for. Means are
over images of the value of each image, which for the PSNR is not the PSNR of the mean (Jensen); the paper's Table 1 is
consistent with the former. SSIM: Wang, Bovik, Sheikh, Simoncelli 2004, with a uniform window and sample covariances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.ndimage import uniform_filter

from fedcore.errors import ConfigError
from fedcore.methods.dictionary_learning.operators import random_atoms
from fedcore.methods.perma.learners import Code, Coder
from fedcore.randomness import stream

GARBAGE_DENSITY = 0.9


@dataclass(frozen=True, slots=True)
class SharedAtoms:
    """Samples and truth.

    samples: N arrays (n_i, d); common: (rg, d); local: N arrays (l_i, d), of a garbage client too, who does not use it
    garbage: (N,) bool, whose samples have nothing to do with the atoms
    """

    samples: tuple[np.ndarray, ...]
    common: np.ndarray
    local: tuple[np.ndarray, ...]
    garbage: np.ndarray

    def atoms(self, client: int) -> np.ndarray:
        """(rg + l_i, d) true dictionary of a client."""
        return np.concatenate([self.common, self.local[client]])


def shared_atoms(
    seed: int,
    clients: int = 10,
    features: int = 6,
    common: int = 3,
    local: int | Sequence[int] = 3,
    samples: int | Sequence[int] = 200,
    density: float = 0.2,
    floor: float = 0.3,
    garbage: int = 0,
    noise: float = 0.0,
) -> SharedAtoms:
    """Draw the population. local, samples: of all clients, or of each; the last `garbage` clients are garbage.

    Every client has a stream of its own, so that more clients or other sizes change nobody else's dictionary.
    noise: standard deviation added to every number. Raises ConfigError if so many orthonormal atoms do not fit.
    """
    own = [local] * clients if isinstance(local, int) else list(local)
    sizes = [samples] * clients if isinstance(samples, int) else list(samples)
    if len(own) != clients or len(sizes) != clients:
        raise ConfigError(
            f"{clients} clients, but {len(own)} numbers of local atoms and {len(sizes)} of samples.",
            "Give one number for all, or one for each client.",
        )
    if common + max(own, default=0) > features or min(common, *own, *sizes) < 0:
        raise ConfigError(
            f"{common} global and {max(own, default=0)} local orthonormal atoms do not fit into {features} dimensions.",
            "Ask for fewer atoms, or none below 0.",
        )
    frame = random_atoms(stream(seed, "dictionaries/frame"), features, features)
    drawn, locals_, bad = [], [], np.arange(clients) >= clients - garbage
    for client in range(clients):
        generator = stream(seed, "dictionaries/client", client=client)
        turn = random_atoms(generator, features - common, features - common)
        mine = turn[: own[client]] @ frame[common:]
        locals_.append(mine)
        atoms = np.concatenate([frame[:common], mine])
        drawn.append(_samples(generator, sizes[client], atoms, density, floor, noise, bool(bad[client])))
    return SharedAtoms(tuple(drawn), frame[:common], tuple(locals_), bad)


def _samples(
    generator, n: int, atoms: np.ndarray, density: float, floor: float, noise: float, garbage: bool
) -> np.ndarray:
    if garbage:
        mixing = generator.standard_normal((atoms.shape[1], atoms.shape[1])) / np.sqrt(atoms.shape[1])
        y = sparse_codes(generator, n, atoms.shape[1], GARBAGE_DENSITY, 0.0) @ mixing
    else:
        y = sparse_codes(generator, n, len(atoms), density, floor) @ atoms
    return y + noise * generator.standard_normal(y.shape) if noise else y


def sparse_codes(generator: np.random.Generator, n: int, r: int, density: float, floor: float) -> np.ndarray:
    """(n, r) codes: 0 with probability 1 - density, else standard normal, raised to the floor in size."""
    there, normal = generator.random((n, r)) < density, generator.standard_normal((n, r))
    raised = np.where(np.abs(normal) < floor, np.copysign(floor, normal), normal)
    return np.where(there, raised, 0.0)


# --- scores against the truth -----------------------------------------------------------------------------------------


WINDOW = 7  # pixels of an SSIM window, each way
STABLE = (0.01, 0.03)  # K1, K2 of the SSIM
LEVELS = 25  # thresholds among which the best is looked for


class ImageQuality(NamedTuple):
    """Means over images: mse per pixel, psnr in dB, ssim; clipped: mse of estimates clipped to [0, 1]."""

    mse: float
    psnr: float
    ssim: float
    clipped: float


class MaskScores(NamedTuple):
    """Scores of a mask, of all pixels: f1, iou (intersection over union)."""

    f1: float
    iou: float


# --- images ---------------------------------------------------------------------------------------------------------


def reconstructed(samples: np.ndarray, atoms: np.ndarray, k: int, code: Code = "omp") -> np.ndarray:
    """(n, d) estimates of samples (n, d) from k of the atoms (r, d).

    code: "top_k" for orthonormal atoms, where it is the best choice; "omp", a least-squares refit, for any others,
    where the k largest correlations would be biased.
    """
    return Coder(code, sparsity=k)(samples, atoms) @ atoms


def image_quality(images: np.ndarray, estimates: np.ndarray, shape: Sequence[int]) -> ImageQuality:
    """images, estimates: (n, pixels) of images of this shape (height, width)."""
    errors = np.mean((estimates - images) ** 2, axis=1)
    clipped = np.clip(estimates, 0.0, 1.0)
    similar = ssim(images.reshape(-1, *shape), estimates.reshape(-1, *shape))
    return ImageQuality(
        float(errors.mean()), float(psnr(errors).mean()), float(similar.mean()), float(np.mean((clipped - images) ** 2))
    )


def psnr(errors: np.ndarray) -> np.ndarray:
    """10 log10(1 / mean squared error) of each image, in dB; infinite for an image without error."""
    with np.errstate(divide="ignore"):
        return -10.0 * np.log10(errors)


def exposure_fitted_psnr(truth: np.ndarray, background: np.ndarray) -> float:
    """Mean over the frames of the PSNR of backgrounds (F, H, W, C), or one (H, W, C), with the gain and the offset of
    each that fit the truth (H, W, C) best: nobody can tell these from the brightness of the frames."""
    wanted, frames = truth.ravel(), background.reshape(-1, truth.size)
    errors = []
    for frame in frames:
        columns = np.stack([frame, np.ones_like(frame)], axis=1)
        errors.append(np.mean((columns @ np.linalg.lstsq(columns, wanted, rcond=None)[0] - wanted) ** 2))
    return float(psnr(np.array(errors)).mean())


def ssim(a: np.ndarray, b: np.ndarray, window: int = WINDOW) -> np.ndarray:
    """(n,) structural similarity of images (n, H, W), values of range 1; means over windows that are whole.

    Raises ValueError if an image is smaller than the window.
    """
    if min(a.shape[1:]) < window:
        raise ValueError(f"images of {a.shape[1]} x {a.shape[2]} pixels are smaller than a window of {window}")
    edge = (window - 1) // 2
    inner = (slice(None), slice(edge, a.shape[1] - edge), slice(edge, a.shape[2] - edge))

    def mean(values: np.ndarray) -> np.ndarray:
        return uniform_filter(values, size=(1, window, window))[inner]

    sample = window**2 / (window**2 - 1)
    mean_a, mean_b = mean(a), mean(b)
    both = sample * (mean(a * b) - mean_a * mean_b)
    variances = sample * (mean(a * a) - mean_a**2 + mean(b * b) - mean_b**2)
    c1, c2 = STABLE[0] ** 2, STABLE[1] ** 2
    similarity = (2 * mean_a * mean_b + c1) * (2 * both + c2) / ((mean_a**2 + mean_b**2 + c1) * (variances + c2))
    return similarity.mean(axis=(1, 2))


# --- masks ----------------------------------------------------------------------------------------------------------


def mask_scores(mask: np.ndarray, truth: np.ndarray) -> MaskScores:
    """Scores of a bool mask against the true one, same shape; 1 if both are empty."""
    hits, either, total = int((mask & truth).sum()), int((mask | truth).sum()), int(mask.sum() + truth.sum())
    return MaskScores(2 * hits / total, hits / either) if total else MaskScores(1.0, 1.0)


def best_mask_scores(values: np.ndarray, truth: np.ndarray, levels: int = LEVELS) -> tuple[MaskScores, float]:
    """(scores, threshold) of the mask values > threshold that is best in F1: chosen with the truth, so optimistic.

    Thresholds lie between the smallest and the largest value, closer together where they are small.
    """
    low, high = float(values.min()), float(values.max())
    tried = low + (high - low) * np.linspace(0.0, 1.0, levels, endpoint=False) ** 2
    scored = [(mask_scores(values > level, truth), float(level)) for level in tried]
    return max(scored, key=lambda each: each[0].f1)


def energy_inside(foreground: np.ndarray, region: np.ndarray) -> float:
    """Share of the squared values (F, H, W, C) that lies inside the region (F, H, W) or (H, W) bool."""
    energy = (foreground**2).sum(axis=-1)
    total = float(energy.sum())
    return float((energy * region).sum() / total) if total > 0 else 0.0
